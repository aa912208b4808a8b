package model

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"
)

// sort is the sort of a thing.
type sort uint8

const (
	lock sort = iota + 1
	queue
	variable
)

var sortNames = [...]string{"", "lock", "queue", "variable"}

// thing is a lock, a queue or a variable.
type thing struct {
	sort sort
	name string
}

// ErrUndecided is the error of a history with so many calls at the same time that not all orders
// can be tried.
var ErrUndecided = errors.New("there are too many orders of the calls to try all of them")

// mostSteps bounds the steps of a model in the search for an order. It is a count and no time, so
// that the result does not depend on the machine.
const mostSteps = 300_000

// Check returns an error if no run of a scheduler without bugs explains the answers.
func (h *History) Check() error {
	h.mu.Lock()
	ops := make([]*Op, len(h.ops))
	for i, op := range h.ops {
		snapshot := *op
		ops[i] = &snapshot
	}
	h.mu.Unlock()
	things := split(ops)
	var problems []error
	for _, t := range slices.SortedFunc(maps.Keys(things), func(a, b thing) int {
		return cmp.Or(cmp.Compare(a.sort, b.sort), cmp.Compare(a.name, b.name))
	}) {
		problems = append(problems, checkThing(t, things[t]))
	}
	problems = append(problems, checkTasks(ops))
	return errors.Join(problems...)
}

// split returns the calls about each thing. The end of a lease is about each lock that the client
// has asked for.
func split(ops []*Op) map[thing][]*Op {
	things := map[thing][]*Op{}
	requests := map[string]thing{}
	wanted := map[string][]thing{}
	for _, op := range ops {
		t := thing{name: op.Call.Name}
		switch op.Call.Kind {
		case Acquire, Release, Holders:
			t.sort = lock
			if !slices.Contains(wanted[op.Call.Client], t) {
				wanted[op.Call.Client] = append(wanted[op.Call.Client], t)
			}
		case Put, Take, Size:
			t.sort = queue
		case Set, Get, Delete:
			t.sort = variable
		case LeaseEnds, Withdraw, Submit, LetGo, Look, Retry, Cancel, WorkerGone, Lost, Open:
			continue
		}
		requests[op.Call.Client+"/"+op.Call.Request] = t
		things[t] = append(things[t], op)
	}
	for _, op := range ops {
		switch op.Call.Kind {
		case Withdraw:
			if t, known := requests[op.Call.Client+"/"+op.Call.Request]; known {
				things[t] = append(things[t], op)
			}
		case LeaseEnds:
			for _, t := range wanted[op.Call.Client] {
				things[t] = append(things[t], op)
			}
		case Acquire, Release, Holders, Put, Take, Size, Set, Get, Delete, Submit, LetGo, Look, Retry, Cancel, WorkerGone, Lost, Open:
		}
	}
	return things
}

func checkThing(t thing, ops []*Op) error {
	var m porcupine.Model
	switch t.sort {
	case lock:
		m = lockModel()
	case queue:
		m = queueModel()
	case variable:
		m = variableModel()
		ops = withoutUnseen(ops)
	}
	var history []porcupine.Operation
	for _, op := range ops {
		switch op.Call.Kind {
		case Holders, Size, Get:
			if !op.answered() {
				continue // It changes nothing.
			}
		case Acquire, Release, LeaseEnds, Put, Take, Withdraw, Set, Delete, Submit, LetGo, Look, Retry, Cancel, WorkerGone, Lost, Open:
		}
		history = append(history, porcupine.Operation{Input: op, Call: op.began, Return: op.ended})
	}
	steps, step := 0, m.Step
	bounded := m
	bounded.Step = func(state, input, output any) (bool, any) {
		if steps++; steps > mostSteps {
			return false, state
		}
		return step(state, input, output)
	}
	if porcupine.CheckOperations(bounded, history) {
		return nil
	}
	if steps > mostSteps {
		return fmt.Errorf("%s %q: %d calls: %w", sortNames[t.sort], t.name, len(history), ErrUndecided)
	}
	_, info := porcupine.CheckOperationsVerbose(m, history, 0)
	return fmt.Errorf("%s %q: no order of the calls explains all answers\n%s", sortNames[t.sort], t.name, explain(m, history, info))
}

// withoutUnseen leaves out the calls that set a value, were not answered, and whose value nobody
// has read: they can have happened after all others.
func withoutUnseen(ops []*Op) []*Op {
	seen := map[string]bool{}
	for _, op := range ops {
		for _, v := range op.Answer.Values {
			seen[v] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(ops), func(op *Op) bool {
		return op.Call.Kind == Set && !op.answered() && !seen[op.Call.Value]
	})
}

// explain shows the longest order that explains something, the state behind it, and the calls that
// have no place in it.
func explain(m porcupine.Model, history []porcupine.Operation, info porcupine.LinearizationInfo) string {
	var longest []porcupine.Operation
	for _, partial := range info.PartialLinearizationsOperations()[0] {
		if len(partial) > len(longest) {
			longest = partial
		}
	}
	var b strings.Builder
	state, placed := m.Init(), map[*Op]bool{}
	for i, o := range longest {
		_, state = m.Step(state, o.Input, o.Output)
		op := o.Input.(*Op)
		placed[op] = true
		if i >= len(longest)-20 {
			fmt.Fprintf(&b, "  %s\n", op)
		}
	}
	fmt.Fprintf(&b, "now it is %+v, and these have no place:\n", state)
	left := 0
	for _, o := range history {
		if op := o.Input.(*Op); !placed[op] {
			if left++; left <= 20 {
				fmt.Fprintf(&b, "  %s\n", op)
			}
		}
	}
	return b.String()
}
