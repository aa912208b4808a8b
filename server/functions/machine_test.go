package functions_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/functions"
)

func function(n int) functions.Function {
	return functions.Function{Hash: ids.FunctionHash{byte(n)}, Payload: make([]byte, n)}
}

func TestAFunctionIsSentOnce(t *testing.T) {
	m := functions.New()
	f := function(5)
	if _, missing := m.Take(nil, []ids.FunctionHash{f.Hash}); !slices.Equal(missing, []ids.FunctionHash{f.Hash}) {
		t.Fatalf("missing are %v", missing)
	}
	m.Take([]functions.Function{f}, []ids.FunctionHash{f.Hash, f.Hash})
	if m.Bytes() != 5 || m.Len() != 1 {
		t.Fatalf("%d functions have %d bytes", m.Len(), m.Bytes())
	}
	m.Opened(1, nil)
	for i, c := range []struct{ again, want bool }{{false, true}, {false, false}, {true, true}} {
		if _, send, known := m.Send(1, f.Hash, c.again); send != c.want || !known {
			t.Errorf("call %d: send %t, known %t", i, send, known)
		}
	}
	m.Opened(1, nil)
	if _, send, _ := m.Send(1, f.Hash, false); !send {
		t.Error("it is not sent in the next session, which the worker has opened without it")
	}
	if forget := m.Opened(1, []ids.FunctionHash{f.Hash}); forget != nil {
		t.Errorf("the worker is told to forget %v", forget)
	}
	if _, send, known := m.Send(1, f.Hash, false); send || !known {
		t.Errorf("the worker has it: send %t, known %t", send, known)
	}
	if at := m.Drop(f.Hash); !slices.Equal(at, []ids.WorkerID{1}) || m.Bytes() != 0 {
		t.Errorf("workers %v must forget it, and %d bytes are left", at, m.Bytes())
	}
	if _, _, known := m.Send(1, f.Hash, true); known {
		t.Error("it is known after its end")
	}
	if forget := m.Opened(1, []ids.FunctionHash{f.Hash}); !slices.Equal(forget, []ids.FunctionHash{f.Hash}) {
		t.Errorf("in the next session the worker is told to forget %v", forget)
	}
}

// TestWorkersHaveWhatTasksNeed plays workers that may miss the last messages of a session, and may
// come back after they were taken for lost. A connected worker has no function to which no task
// refers.
func TestWorkersHaveWhatTasksNeed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := functions.New()
		held := map[ids.WorkerID]map[ids.FunctionHash]bool{}
		connected := map[ids.WorkerID]bool{}
		known := map[ids.FunctionHash]bool{}
		worker := rapid.Custom(func(t *rapid.T) ids.WorkerID { return ids.WorkerID(rapid.IntRange(1, 3).Draw(t, "worker")) })
		number := rapid.IntRange(1, 4)
		drop := func(f functions.Function) {
			delete(known, f.Hash)
			for _, id := range m.Drop(f.Hash) {
				if connected[id] {
					delete(held[id], f.Hash)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"submit": func(t *rapid.T) {
				f := function(number.Draw(t, "function"))
				added, missing := m.Take([]functions.Function{f}, []ids.FunctionHash{f.Hash})
				if len(added) > 0 == known[f.Hash] || len(missing) > 0 {
					t.Fatalf("added %v, missing %v, known %t", added, missing, known[f.Hash])
				}
				if known[f.Hash] = true; len(added) > 0 && rapid.Bool().Draw(t, "refused") {
					m.Forget(added)
					delete(known, f.Hash)
				}
			},
			"drop": func(t *rapid.T) { drop(function(number.Draw(t, "function"))) },
			"open": func(t *rapid.T) {
				id := worker.Draw(t, "worker")
				if held[id] == nil {
					held[id] = map[ids.FunctionHash]bool{}
				}
				for _, hash := range m.Opened(id, slices.Collect(maps.Keys(held[id]))) {
					delete(held[id], hash)
				}
				connected[id] = true
				for hash := range held[id] {
					if !known[hash] {
						t.Fatalf("worker %d keeps %v in its new session", id, hash)
					}
				}
			},
			"break": func(t *rapid.T) { connected[worker.Draw(t, "worker")] = false },
			"lose": func(t *rapid.T) {
				id := worker.Draw(t, "worker")
				m.Gone(id)
				if connected[id] = false; rapid.Bool().Draw(t, "dead") {
					delete(held, id)
				}
			},
			"send": func(t *rapid.T) {
				id, f := worker.Draw(t, "worker"), function(number.Draw(t, "function"))
				if !connected[id] {
					return
				}
				_, send, isKnown := m.Send(id, f.Hash, false)
				if isKnown != known[f.Hash] || send && !isKnown || isKnown && !send && !held[id][f.Hash] {
					t.Fatalf("worker %d: send %t, known %t, and it has the function: %t", id, send, isKnown, held[id][f.Hash])
				}
				if send && !rapid.Bool().Draw(t, "and its connection breaks") {
					held[id][f.Hash] = true
				} else if send {
					connected[id] = false
				}
			},
			"": func(t *rapid.T) {
				if err := m.Check(); err != nil {
					t.Fatal(err)
				}
				for id, has := range held {
					for hash := range has {
						if connected[id] && !known[hash] {
							t.Fatalf("worker %d keeps %v, and no task refers to it", id, hash)
						}
					}
				}
				if m.Len() != len(known) {
					t.Fatal(fmt.Sprintf("%d functions are stored, and tasks refer to %d", m.Len(), len(known)))
				}
			},
		})
	})
}
