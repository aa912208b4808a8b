package purity

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// statementPlace matches one place in a table of statements: a package with its tests in Go, or a
// file with its tests in Python. statementTest matches the name of one test.
var (
	statementPlace = regexp.MustCompile(`^([a-z0-9/]+|test_[a-z]+\.py) ((?:` + "`[A-Za-z_]+`" + `(?:, )?)+)$`)
	statementTest  = regexp.MustCompile("`([A-Za-z_]+)`")
)

// TestStatementsHaveTheirTests: each test that the table of statements in docs/running.md names is
// at its place.
func TestStatementsHaveTheirTests(t *testing.T) {
	page, err := os.ReadFile("../../docs/running.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "| statement | test |\n|---|---|\n")
	if !found {
		t.Fatal("docs/running.md has no table of statements")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	for _, row := range strings.Split(table, "\n") {
		cells := strings.Split(strings.Trim(row, "| "), " | ")
		if len(cells) != 2 {
			t.Errorf("a row has %d cells: %s", len(cells), row)
			continue
		}
		for _, place := range strings.Split(cells[1], "; ") {
			match := statementPlace.FindStringSubmatch(place)
			if match == nil {
				t.Errorf("%q is no place with tests", place)
				continue
			}
			files, prefix, folder := "*_test.go", "\nfunc ", filepath.FromSlash("../../"+match[1])
			if strings.HasSuffix(match[1], ".py") {
				files, prefix, folder = match[1], "\ndef ", "../../clients/python/tests"
			}
			paths, err := filepath.Glob(filepath.Join(folder, files))
			if err != nil {
				t.Fatal(err)
			}
			var sources bytes.Buffer
			for _, path := range paths {
				source, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				sources.Write(source)
			}
			for _, test := range statementTest.FindAllStringSubmatch(match[2], -1) {
				if !bytes.Contains(sources.Bytes(), []byte(prefix+test[1]+"(")) {
					t.Errorf("docs/running.md: %s has no test %s", match[1], test[1])
				}
			}
		}
	}
}
