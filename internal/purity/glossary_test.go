package purity

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// maxGlossary is the largest number of words that a new reader has to learn.
const maxGlossary = 60

var (
	glossaryRow = regexp.MustCompile(`^\| ([^|]+) \| [^|]+ \| ([^|]+) \|$`)
	letters     = regexp.MustCompile(`[^a-z]+`)
)

// TestGlossaryNamesFilesThatHaveTheWord: each file or folder in docs/glossary.md exists, and uses
// the word in its code or its comments.
func TestGlossaryNamesFilesThatHaveTheWord(t *testing.T) {
	b, err := os.ReadFile("../../docs/glossary.md")
	if err != nil {
		t.Fatal(err)
	}
	words := 0
	for _, line := range strings.Split(string(b), "\n") {
		row := glossaryRow.FindStringSubmatch(line)
		if row == nil || row[1] == "word" {
			continue
		}
		words++
		for _, place := range code.FindAllStringSubmatch(row[2], -1) {
			if text := lettersOf(t, place[1]); !strings.Contains(text, letters.ReplaceAllString(stem(row[1]), "")) {
				t.Errorf("docs/glossary.md: %s has no word %q", place[1], row[1])
			}
		}
	}
	if words == 0 || words > maxGlossary {
		t.Errorf("docs/glossary.md has %d words; 1 to %d are allowed", words, maxGlossary)
	}
}

// stem removes the ending of a noun, so that the verb or the plural is found as well.
func stem(word string) string {
	for _, ending := range []string{"ion", "s"} {
		if short, cut := strings.CutSuffix(word, ending); cut {
			return short
		}
	}
	return word
}

// lettersOf returns the letters of a file, or of all Go files of a folder, in lower case and
// without anything between them: a word may be an identifier, or be split by the end of a line.
func lettersOf(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join("../..", name)
	paths := []string{path}
	if info, err := os.Stat(path); err != nil {
		t.Errorf("docs/glossary.md: %v", err)
		return ""
	} else if info.IsDir() {
		if paths, err = filepath.Glob(filepath.Join(path, "*.go")); err != nil {
			t.Fatal(err)
		}
	}
	var text strings.Builder
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Errorf("docs/glossary.md: %v", err)
		}
		text.WriteString(letters.ReplaceAllString(strings.ToLower(string(b)), ""))
	}
	return text.String()
}
