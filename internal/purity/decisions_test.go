package purity

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// maxDecisionLines is the length of a page: one decision has at most so many lines.
const maxDecisionLines = 60

// TestDecisionsAreOnePage: each decision fits on a page and is listed in docs/README.md. Diaries
// and long measurements belong to docs/lab.
func TestDecisionsAreOnePage(t *testing.T) {
	index, err := os.ReadFile("../../docs/README.md")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob("../../docs/adr/*.md")
	if err != nil || len(pages) < 19 {
		t.Fatalf("%d decisions: %v", len(pages), err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(page)
		if n := strings.Count(string(text), "\n"); n > maxDecisionLines {
			t.Errorf("docs/adr/%s has %d lines, at most %d are allowed: move measurements and diaries to docs/lab", name, n, maxDecisionLines)
		}
		if !strings.Contains(string(index), "(adr/"+name+")") {
			t.Errorf("docs/README.md does not list docs/adr/%s", name)
		}
	}
}
