package coord_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/server/coord"
)

// Calls without a client can neither fill a namespace for each other nor the machine for clients.
func TestWaitingCallsWithoutAClientAreBounded(t *testing.T) {
	m := coord.New(coord.Config{Unleased: 2, UnleasedBytes: 10_000})
	now, ticket := time.Unix(0, 0), uint64(0)
	ask := func(call coord.Call) *coord.Error {
		ticket++
		call.Ticket = ticket
		_, err := m.Ask(now, call, nil)
		return err
	}
	event := func(namespace string) coord.Call {
		return coord.Call{Namespace: namespace, Wait: time.Hour, Ask: coord.AwaitEvent{Name: "e"}}
	}
	refused := func(call coord.Call) {
		t.Helper()
		if err := ask(call); err == nil || err.Kind != coord.ErrFull {
			t.Errorf("%s in %q: %v", call.Ask, call.Namespace, err)
		}
	}
	accepted := func(call coord.Call) {
		t.Helper()
		if err := ask(call); err != nil {
			t.Errorf("%s in %q: %v", call.Ask, call.Namespace, err)
		}
	}
	accepted(event("a"))
	accepted(event("a"))
	refused(event("a"))
	// Those that do not wait, those of clients, and those in other namespaces go on.
	accepted(coord.Call{Namespace: "a", Ask: coord.AwaitEvent{Name: "e"}})
	of := event("a")
	of.Client, of.ID = 7, "r"
	accepted(of)
	accepted(event("b"))
	m.HungUp(now, 1, nil)
	accepted(event("a"))
	// Their values count, and so do all namespaces together.
	put := func(namespace string, bytes int) coord.Call {
		return coord.Call{Namespace: namespace, Wait: time.Hour, Ask: coord.PutInQueue{Name: "q", MaxSize: 1, Value: coord.Value{Data: make([]byte, bytes)}}}
	}
	accepted(put("c", 1))
	refused(put("c", 10_000))
	for _, namespace := range []string{"d", "e", "f", "g", "h", "i", "j", "k"} {
		accepted(put(namespace, 1))
		if namespace != "k" {
			accepted(put(namespace, 9_400))
		}
	}
	refused(put("k", 9_400))
	if err := m.Check(); err != nil {
		t.Error(err)
	}
}

// One namespace cannot take all of the memory. Others that come later find room.
func TestANamespaceLeavesRoomForOthers(t *testing.T) {
	const limit = 100_000
	m := coord.New(coord.Config{Bytes: limit})
	now := time.Unix(0, 0)
	fill := func(namespace string) (kept int) {
		for ; ; kept++ {
			_, err := m.SetVariable(now, namespace, fmt.Sprint("v", kept), coord.Value{Data: make([]byte, 680)}, nil)
			if err != nil {
				if err.Kind != coord.ErrFull || !strings.Contains(err.Message, namespace) {
					t.Error(err)
				}
				return kept
			}
		}
	}
	// Each value takes 1,002 bytes with its name, or 1,003.
	for i, want := range []int{50, 25, 12, 6, 3} {
		if got := fill(fmt.Sprint("n", i)); got < want-1 || got > want {
			t.Errorf("namespace %d kept %d values of 1 kB, want %d", i, got, want)
		}
		if err := m.Check(); err != nil {
			t.Fatal(err)
		}
	}
	m.DeleteVariable(now, "n0", "v0", nil)
	if got := fill("n5"); got != 1 && got != 2 {
		t.Errorf("after a value was deleted, another namespace keeps %d", got)
	}
}
