// Package statestest is Test support: it draws the states of a machine, from the table in its code,
// on a page in docs/states.
package statestest

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

var draw = flag.Bool("draw", false, "write the pages in docs/states")

// State is a state with those that it leads to.
type State struct {
	Name string
	Next []string
}

// Check fails the test unless the page docs/states/NAME.md shows the states. The first one stands
// for the beginning, where there is no state yet. about is the text above the picture. The folder
// of the caller is two below that of the repository.
func Check(t *testing.T, name, about string, states []State) {
	t.Helper()
	var page bytes.Buffer
	fmt.Fprintf(&page, "%s\n```mermaid\nstateDiagram-v2\n", about)
	for i, s := range states {
		from := s.Name
		if i == 0 {
			from = "[*]"
		}
		for _, next := range s.Next {
			fmt.Fprintf(&page, "    %s --> %s\n", from, next)
		}
	}
	page.WriteString("```\n\n| state | leads to |\n|---|---|\n")
	for _, s := range states {
		fmt.Fprintf(&page, "| %s |", s.Name)
		for i, next := range s.Next {
			if i > 0 {
				page.WriteByte(',')
			}
			page.WriteString(" " + next)
		}
		page.WriteString(" |\n")
	}
	file := filepath.Join("..", "..", "docs", "states", name+".md")
	if *draw {
		if err := os.WriteFile(file, page.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if drawn, err := os.ReadFile(file); err != nil || !bytes.Equal(drawn, page.Bytes()) {
		t.Errorf("docs/states/%s.md does not show the states of the code, %v: draw it by `go test . -run %s -args -draw`", name, err, t.Name())
	}
}
