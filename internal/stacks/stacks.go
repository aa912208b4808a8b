// Package stacks is an Adapter: it sums the trees of calls that GetProfile returns.
package stacks

import (
	"cmp"
	"slices"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
)

// Tree is the sum of trees of calls. The zero value is empty.
type Tree struct {
	root  node
	nodes int
}

type node struct {
	call  *pb.ProfileCall // with the sum of the samples; nil in the root
	calls map[function]*node
	depth int
}

type function struct {
	name, file string
	first      uint32
}

// Add adds a tree. Calls that do not stand behind their callers are left out.
func (t *Tree) Add(calls []*pb.ProfileCall) {
	at := make([]*node, len(calls)+1)
	at[0] = &t.root
	for i, c := range calls {
		if c.GetCaller() > uint32(i) || at[c.GetCaller()] == nil {
			continue
		}
		caller := at[c.GetCaller()]
		f := function{c.GetName(), c.GetFile(), c.GetFirstLine()}
		n := caller.calls[f]
		if n == nil {
			n = &node{depth: caller.depth + 1, call: &pb.ProfileCall{
				Name: c.GetName(), File: c.GetFile(), FirstLine: c.GetFirstLine(), Line: c.GetLine(), Text: c.GetText(),
			}}
			if caller.calls == nil {
				caller.calls = map[function]*node{}
			}
			caller.calls[f] = n
			t.nodes++
		}
		n.call.Samples += c.GetSamples()
		at[i+1] = n
	}
}

// Samples returns the number of samples.
func (t *Tree) Samples() (n uint64) {
	for _, c := range t.root.calls { // order-free: a sum
		n += c.call.GetSamples()
	}
	return n
}

// Calls returns the sum as a list in which each call stands behind its caller, and calls of one
// caller in the order of their samples: at most limit of them, those with the most samples.
func (t *Tree) Calls(limit int) []*pb.ProfileCall {
	all := make([]*node, 0, t.nodes)
	all = t.root.appendTo(all)
	if len(all) > limit {
		// A caller has no fewer samples than its calls, so that it is before them.
		slices.SortStableFunc(all, func(a, b *node) int {
			return cmp.Or(cmp.Compare(b.call.GetSamples(), a.call.GetSamples()), cmp.Compare(a.depth, b.depth))
		})
		for _, n := range all[limit:] {
			n.call.Samples = 0
		}
	}
	return t.root.list(nil, 0)
}

// sorted returns the calls of a node, those with the most samples first.
func (n *node) sorted() []*node {
	calls := make([]*node, 0, len(n.calls))
	for _, c := range n.calls { // sorted: below
		calls = append(calls, c)
	}
	slices.SortFunc(calls, func(a, b *node) int {
		x, y := a.call, b.call
		return cmp.Or(cmp.Compare(y.GetSamples(), x.GetSamples()), cmp.Compare(x.GetName(), y.GetName()),
			cmp.Compare(x.GetFile(), y.GetFile()), cmp.Compare(x.GetFirstLine(), y.GetFirstLine()))
	})
	return calls
}

func (n *node) appendTo(all []*node) []*node {
	for _, c := range n.sorted() {
		all = c.appendTo(append(all, c))
	}
	return all
}

// list appends the calls that have samples left; number is that of their caller.
func (n *node) list(calls []*pb.ProfileCall, number uint32) []*pb.ProfileCall {
	for _, c := range n.sorted() {
		if c.call.GetSamples() == 0 {
			continue
		}
		c.call.Caller = number
		calls = append(calls, c.call)
		calls = c.list(calls, uint32(len(calls)))
	}
	return calls
}
