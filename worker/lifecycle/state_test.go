package lifecycle

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// The package comment shows the ways between states as they are in the code.
func TestThePackageCommentShowsTheStates(t *testing.T) {
	var picture strings.Builder
	for _, s := range []State{0, PreAssigned, Admitting, Leasing, Pausing, Waiting, Fetching, Queued, Running} {
		name := s.String()
		if s == 0 {
			name = "(assigned)"
		}
		var next []string
		for _, n := range s.next() {
			next = append(next, n.String())
		}
		fmt.Fprintf(&picture, "//\t%-13s -> %s\n", name, strings.Join(next, ", "))
	}
	source, err := os.ReadFile("machine.go")
	if err != nil {
		t.Fatal(err)
	}
	comment, _, _ := strings.Cut(string(source), "\npackage ")
	if !strings.Contains(comment, picture.String()) {
		t.Errorf("the package comment does not have\n%s", &picture)
	}
}
