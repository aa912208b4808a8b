package purity

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The forms of commands in docs/bugs.md. In a table, `\|` stands for a `|`.
var (
	code       = regexp.MustCompile("`([^`]+)`")
	bareName   = regexp.MustCompile(`^(?:Test|Fuzz)\w+$`)
	options    = regexp.MustCompile(` -(?:race|count=\d+)\b`)
	goTest     = regexp.MustCompile(`^go test (\./\S+)(?: -run ('[^']+'|"[^"]+"|\S+))?$`)
	pyTest     = regexp.MustCompile(`^pytest (\S+?\.py)(?: -k ('[^']+'|"[^"]+"|\S+))?$`)
	pyName     = regexp.MustCompile(`^(?:(\w+\.py))?::(test_\w+)$`)
	words      = regexp.MustCompile(`\w+`)
	goFunction = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	pyFunction = regexp.MustCompile(`(?m)^\s*(?:async )?def (test_\w+)\(`)
	script     = regexp.MustCompile(`^go test \./(\S+) -run TestScripts/(\w+)$`)
)

// TestBugsNameTestsThatExist: each command in docs/bugs.md still selects a test by each of its
// names. A test that gets another name, or goes, must be replaced there by the test that holds the
// fix.
func TestBugsNameTestsThatExist(t *testing.T) {
	tests := testsByFolder(t)
	b, err := os.ReadFile("../../docs/bugs.md")
	if err != nil {
		t.Fatal(err)
	}
	commands := 0
	for i, line := range strings.Split(string(b), "\n") {
		for _, found := range code.FindAllStringSubmatch(line, -1) {
			command := options.ReplaceAllString(strings.ReplaceAll(found[1], `\|`, "|"), "")
			names, alternatives := selected(t, command, tests)
			if alternatives == nil {
				continue
			}
			commands++
			for _, a := range alternatives {
				if !matches(a, names) {
					t.Errorf("docs/bugs.md:%d: %s: no test is called %s", i+1, command, a)
				}
			}
			if s := script.FindStringSubmatch(command); s != nil {
				if files, _ := filepath.Glob("../../" + s[1] + "/testdata/scripts/" + s[2]); files == nil {
					t.Errorf("docs/bugs.md:%d: %s: there is no such script", i+1, command)
				}
			}
		}
	}
	if commands < 100 {
		t.Errorf("only %d commands were understood", commands)
	}
}

// selected returns the tests among which a command selects, and its expressions, each of which must
// match one of them. The expressions are nil if the text is no command that runs tests.
func selected(t *testing.T, command string, tests map[string][]string) (names, alternatives []string) {
	t.Helper()
	if m := goTest.FindStringSubmatch(command); m != nil {
		folder, deep := strings.CutSuffix(strings.TrimPrefix(m[1], "./"), "/...")
		for at, list := range tests {
			if at == folder || deep && strings.HasPrefix(at, folder+"/") {
				names = append(names, list...)
			}
		}
		pattern := strings.Trim(m[2], `'"`)
		if open, end := strings.Index(pattern, "("), strings.LastIndex(pattern, ")"); open >= 0 && end > open {
			for _, a := range strings.Split(pattern[open+1:end], "|") {
				alternatives = append(alternatives, pattern[:open]+a+pattern[end+1:])
			}
		} else {
			alternatives = strings.Split(pattern, "|")
		}
		for i, a := range alternatives {
			alternatives[i], _, _ = strings.Cut(a, "/") // subtests have names that only a run knows
		}
		return names, alternatives
	}
	if m := pyTest.FindStringSubmatch(command); m != nil {
		for _, w := range words.FindAllString(m[2], -1) {
			if w != "or" && w != "and" {
				alternatives = append(alternatives, w)
			}
		}
		if alternatives == nil {
			alternatives = []string{""} // all of its tests
		}
		return tests[m[1]], alternatives
	}
	if bareName.MatchString(command) {
		for _, list := range tests {
			names = append(names, list...)
		}
		return names, []string{"^" + command + "$"}
	}
	if m := pyName.FindStringSubmatch(command); m != nil {
		for file, list := range tests {
			if strings.HasSuffix(file, ".py") && (m[1] == "" || path.Base(file) == m[1]) {
				names = append(names, list...)
			}
		}
		return names, []string{"^" + m[2] + "$"}
	}
	return nil, nil
}

func matches(pattern string, names []string) bool {
	e, err := regexp.Compile(pattern)
	for _, n := range names {
		if err == nil && e.MatchString(n) {
			return true
		}
	}
	return false
}

// testsByFolder returns the names of Go's tests by folder, and those of Python's tests by file.
func testsByFolder(t *testing.T) map[string][]string {
	t.Helper()
	tests := map[string][]string{}
	sources(t, func(at, name string) {
		b, err := os.ReadFile(at)
		if err != nil {
			t.Fatal(err)
		}
		key, function := path.Dir(name), goFunction
		if strings.HasSuffix(name, ".py") {
			key, function = name, pyFunction
		}
		for _, m := range function.FindAllStringSubmatch(string(b), -1) {
			tests[key] = append(tests[key], m[1])
		}
	}, "_test.go", ".py")
	return tests
}
