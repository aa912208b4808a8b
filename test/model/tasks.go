package model

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// tasks has what a history says about tasks.
type tasks struct {
	ops []*Op
	// looks are the answered Looks, by task.
	looks map[uint64][]*Op
	// steady: no worker and no object was lost.
	steady   bool
	problems []error
}

// checkTasks compares each pair of answers about a task.
func checkTasks(ops []*Op) error {
	k := &tasks{ops: ops, looks: map[uint64][]*Op{}, steady: true}
	keys, life := map[uint64]*Op{}, (*Op)(nil)
	for _, op := range ops {
		if op.Call.Kind == WorkerGone || op.Call.Kind == Lost {
			k.steady = false
		}
		if !op.answered() {
			continue
		}
		if op.Answer.Life != 0 {
			if life != nil && life.Answer.Life != op.Answer.Life {
				k.fail("an answer is of another life of the cluster", life, op)
			}
			life = op
		}
		if task := op.Answer.Task; task != 0 && op.Call.Name != "" {
			if first := keys[task]; first != nil && first.Call.Name != op.Call.Name {
				k.fail("one number belongs to two tasks", first, op)
			}
			keys[task] = op
		}
		if op.Call.Kind == Look && op.Answer.Task != 0 {
			k.looks[op.Answer.Task] = append(k.looks[op.Answer.Task], op)
		}
	}
	k.ends()
	k.holds()
	k.workers()
	return errors.Join(k.problems...)
}

func (k *tasks) fail(what string, ops ...*Op) {
	if len(k.problems) >= 5 {
		return
	}
	text := "tasks: " + what
	for _, op := range ops {
		text += "\n  " + op.String()
	}
	k.problems = append(k.problems, errors.New(text))
}

// before says that a has taken effect before b.
func before(a, b *Op) bool {
	return a.ended < b.began || a.Call.Stream != "" && a.Call.Stream == b.Call.Stream && a.ended < b.ended
}

func (op *Op) sees(states ...string) bool {
	return op.Answer.Met && slices.Contains(states, op.Answer.State)
}

// ends checks that ends are committed once, and survive.
func (k *tasks) ends() {
	firm := k.firm()
	changed := map[uint64][]*Op{}
	for _, op := range k.ops {
		if op.Call.Kind == Retry || op.Call.Kind == Cancel {
			changed[op.Call.Task] = append(changed[op.Call.Task], op)
		}
	}
	for task, looks := range k.looks {
		for _, a := range looks {
			for _, b := range looks {
				x, y := &a.Answer, &b.Answer
				made := a.sees(Succeeded) && b.sees(Succeeded)
				switch {
				case made && k.steady && x.Generation != y.Generation:
					k.fail("a result was made twice, and nothing was lost", a, b)
				case made && x.Generation == y.Generation && x.Value != "" && y.Value != "" && x.Value != y.Value:
					k.fail("one generation has two values", a, b)
				case made && before(a, b) && x.Generation > y.Generation:
					k.fail("an older generation is seen after a newer one", a, b)
				case a.sees(Failed, Cancelled) && b.Answer.Met && firm(a) < b.began && (x.State != y.State || x.Reason != y.Reason) && !between(changed[task], a, b):
					k.fail("an end did not survive", a, b)
				}
			}
		}
	}
}

// between says whether one of the calls can have taken effect between two others.
func between(calls []*Op, a, b *Op) bool {
	return slices.ContainsFunc(calls, func(c *Op) bool { return c.ended > a.began && c.began < b.ended })
}

// firm returns the time from which on what a call saw is durable: the first answer to a call that
// became durable and began later.
func (k *tasks) firm() func(*Op) int64 {
	var durable []*Op
	for _, op := range k.ops {
		switch op.Call.Kind {
		case Acquire, Put, Take, Set, Submit, Retry:
			if op.answered() && op.Answer.Met {
				durable = append(durable, op)
			}
		case Release, Holders, LeaseEnds, Withdraw, Size, Get, Delete, LetGo, Look, Cancel, WorkerGone, Lost, Open:
		}
	}
	return func(seen *Op) int64 {
		at := int64(math.MaxInt64)
		for _, op := range durable {
			if op.began > seen.ended {
				at = min(at, op.ended)
			}
		}
		return at
	}
}

// holds checks that tasks are known while they are held, and gone when they were released.
func (k *tasks) holds() {
	type hold struct{ submit, end *Op }
	held := map[uint64][]hold{}
	// doubtful are the keys of submissions that were not answered, apart those of tasks that only
	// clients need.
	doubtful, apart := map[string]bool{}, map[uint64]bool{}
	for _, op := range k.ops {
		if op.Call.Kind != Submit {
			continue
		}
		if !op.answered() || !op.Answer.Met {
			doubtful[op.Call.Name] = true
			continue
		}
		task := op.Answer.Task
		_, known := apart[task]
		apart[task] = op.Call.Alone && (apart[task] || !known)
		h := hold{submit: op}
		for _, end := range k.ops {
			ends := end.Call.Kind == LetGo && end.Call.Task == task || end.Call.Kind == LeaseEnds
			if ends && end.Call.Client == op.Call.Client && end.ended > op.began && (h.end == nil || end.began < h.end.began) {
				h.end = end
			}
		}
		held[task] = append(held[task], h)
	}
	for _, look := range k.ops {
		task := look.Call.Task
		if look.Call.Kind != Look || !look.answered() || task == 0 || len(held[task]) == 0 {
			continue
		}
		gone := apart[task]
		for _, h := range held[task] {
			if !look.Answer.Met && before(h.submit, look) && (h.end == nil || h.end.began > look.ended) {
				k.fail("a task that a client holds is not known", h.submit, look)
			}
			gone = gone && !doubtful[h.submit.Call.Name] && h.end != nil && h.end.answered() && before(h.end, look)
		}
		if gone && look.Answer.Met {
			k.fail("a task is known after all have released it", held[task][0].end, look)
		}
	}
}

// workers checks that workers that are gone hold nothing.
func (k *tasks) workers() {
	for _, gone := range k.ops {
		if gone.Call.Kind != WorkerGone || !gone.answered() {
			continue
		}
		for _, look := range k.ops {
			if look.Call.Kind == Look && look.sees(Succeeded) && look.Answer.Worker == gone.Call.Worker && before(gone, look) {
				k.fail(fmt.Sprintf("worker %d is gone, and has a result", gone.Call.Worker), gone, look)
			}
		}
	}
}
