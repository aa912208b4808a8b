package model

import (
	"cmp"
	"hash/fnv"
	"slices"

	"github.com/anishathalye/porcupine"
)

// holders is the state of a lock. fence is the highest number that was told.
type holders struct {
	names []string
	fence uint64
}

func lockModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return holders{} },
		Step: func(state, input, _ any) (bool, any) {
			s, op := state.(holders), input.(*Op)
			return stepLock(s, op)
		},
		Equal: func(a, b any) bool {
			x, y := a.(holders), b.(holders)
			return x.fence == y.fence && slices.Equal(x.names, y.names)
		},
	}
}

// stepLock returns whether the answer to a call is right in a state, and the state behind the call.
func stepLock(s holders, op *Op) (bool, holders) {
	c, a := &op.Call, &op.Answer
	holder := c.Client + "/" + c.Request
	held := slices.Contains(s.names, holder)
	free := len(s.names) < cmp.Or(c.Limit, 1)
	switch c.Kind {
	case Acquire:
		switch {
		case op.answered() && !a.Met:
			return !free, s
		case !free && !op.answered():
			return true, s
		case !free:
			return false, s
		case op.answered() && a.Fence <= s.fence:
			return false, s
		}
		names := append(slices.Clone(s.names), holder)
		slices.Sort(names)
		return true, holders{names, max(s.fence, a.Fence)}
	case Release:
		if op.answered() && a.Met != held {
			return false, s
		}
		return true, s.without(func(name string) bool { return name == holder })
	case Withdraw:
		return true, s.without(func(name string) bool { return name == holder })
	case LeaseEnds:
		return true, s.without(func(name string) bool { return len(name) > len(c.Client) && name[:len(c.Client)+1] == c.Client+"/" })
	case Holders:
		return len(s.names) == a.Size, s
	case Put, Take, Size, Set, Get, Delete, Submit, LetGo, Look, Retry, Cancel, WorkerGone, Lost, Open:
	}
	panic(op.String() + " is not about a lock")
}

func (s holders) without(gone func(string) bool) holders {
	return holders{slices.DeleteFunc(slices.Clone(s.names), gone), s.fence}
}

// list is the state of a queue: its values, in order, and those of takers that were not told.
type list struct {
	values []item
	last   int
	away   []away
}

// item is a value in a queue. place orders them.
type item struct {
	place int
	value string
}

// away are the values of a taker that was not told.
type away struct {
	taker  string
	values []item
}

func queueModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return list{} },
		Step: func(state, input, _ any) (bool, any) {
			s, op := state.(list), input.(*Op)
			return stepQueue(s, op)
		},
		Equal: func(a, b any) bool {
			x, y := a.(list), b.(list)
			return slices.Equal(x.values, y.values) && slices.EqualFunc(x.away, y.away, func(m, n away) bool {
				return m.taker == n.taker && slices.Equal(m.values, n.values)
			})
		},
		Hash: func(state any) uint64 {
			h := fnv.New64a()
			for _, v := range state.(list).values {
				_, _ = h.Write([]byte(v.value))
			}
			return h.Sum64()
		},
	}
}

// stepQueue is stepLock for queues.
func stepQueue(s list, op *Op) (bool, list) {
	c, a := &op.Call, &op.Answer
	taker := c.Client + "/" + c.Request
	room := c.Limit == 0 || len(s.values) < c.Limit
	n := min(max(c.Most, 1), len(s.values))
	switch c.Kind {
	case Put:
		if op.answered() && a.Met != room {
			return false, s
		}
		if room {
			s.last++
			s.values = append(slices.Clone(s.values), item{s.last, c.Value})
		}
		return true, s
	case Take:
		if !op.answered() {
			if n > 0 {
				s.away = append(slices.Clone(s.away), away{taker, s.values[:n]})
				slices.SortFunc(s.away, func(x, y away) int { return cmp.Compare(x.taker, y.taker) })
			}
			s.values = s.values[n:]
			return true, s
		}
		if len(a.Values) != n || a.Met != (n > 0) {
			return false, s
		}
		for i, v := range a.Values {
			if s.values[i].value != v {
				return false, s
			}
		}
		s.values = s.values[n:]
		return true, s
	case Withdraw:
		for i, x := range s.away {
			if x.taker == taker {
				s.values = slices.Concat(x.values, s.values)
				slices.SortFunc(s.values, func(x, y item) int { return cmp.Compare(x.place, y.place) })
				s.away = slices.Delete(slices.Clone(s.away), i, i+1)
				break
			}
		}
		return true, s
	case Size:
		return len(s.values) == a.Size, s
	case Acquire, Release, Holders, LeaseEnds, Set, Get, Delete, Submit, LetGo, Look, Retry, Cancel, WorkerGone, Lost, Open:
	}
	panic(op.String() + " is not about a queue")
}

// content is the state of a variable.
type content struct {
	value string
	given bool
}

func variableModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return content{} },
		Step: func(state, input, _ any) (bool, any) {
			s, op := state.(content), input.(*Op)
			return stepVariable(s, op)
		},
	}
}

// stepVariable is stepLock for variables.
func stepVariable(s content, op *Op) (bool, content) {
	switch op.Call.Kind {
	case Set:
		return true, content{op.Call.Value, true}
	case Delete:
		return true, content{}
	case Get:
		if !op.Answer.Met {
			return !s.given, s
		}
		return s == content{op.Answer.Values[0], true}, s
	case Acquire, Release, Holders, LeaseEnds, Put, Take, Withdraw, Size, Submit, LetGo, Look, Retry, Cancel, WorkerGone, Lost, Open:
	}
	panic(op.String() + " is not about a variable")
}
