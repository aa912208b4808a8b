package lifecycle

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/statestest"
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

// docs/states/attempt.md shows the same.
func TestThePageShowsTheStatesOfAttempts(t *testing.T) {
	var states []statestest.State
	for _, s := range []State{0, PreAssigned, Admitting, Leasing, Pausing, Waiting, Fetching, Queued, Running} {
		state := statestest.State{Name: s.String()}
		if s == 0 {
			state.Name = "(assigned)"
		}
		for _, next := range s.next() {
			state.Next = append(state.Next, next.String())
		}
		states = append(states, state)
	}
	statestest.Check(t, "attempt", `# The states of an attempt

A worker keeps the state of each attempt that it was assigned. This page is drawn from the table in
`+"`worker/lifecycle/state.go`"+`. In test builds the machine stops at a step that is not in it. The
comment of the package says what the states mean. An attempt can end in each of them.
`, states)
}
