package sched

import (
	"fmt"
	"slices"
	"strings"
)

// rankScratch is reused between submissions. Its slices are indexed by the position in the
// submission unless stated otherwise.
type rankScratch struct {
	// position is indexed by id minus the submission's first id.
	position []uint32
	depth    []float32
	colour   []uint8
	stack    []uint32
	children []uint32
	topology []uint32
	sinks    []uint32
	// ranked lists positions by rank, lowest first.
	ranked []uint32
}

const (
	white = iota
	grey
	black
	// consumed is a bit of a colour. It marks tasks that another task of the submission needs.
	consumed = 1 << 7
	// post is a bit of a stack entry: the inputs of this task have been visited.
	post = 1 << 31
)

// rank sets the ranks of the new tasks, and finds cycles. The depth of a task is the longest path
// to it, in expected run time. Ranks follow a depth-first walk from the sinks, deepest sink first,
// and from each task into its deepest input first. So the critical path gets the lowest ranks, the
// inputs of a task are made right before it and can be released right after it, and siblings have
// neighbouring ranks.
func (s *submission) rank() *Error {
	m := s.m
	sc := &m.scratch.submit
	n := len(sc.ids)
	if !s.deep {
		for i, id := range sc.ids {
			if id >= s.first {
				_, t := m.at(id)
				t.rank = m.options[t.options].rank | (m.nextRank + uint64(i))
			}
		}
		return nil
	}
	o := &sc.order
	o.position = slices.Grow(o.position[:0], int(m.nextID-s.first))[:m.nextID-s.first]
	o.depth = slices.Grow(o.depth[:0], n)[:n]
	o.colour = slices.Grow(o.colour[:0], n)[:n]
	clear(o.colour)
	o.topology, o.sinks, o.ranked, o.stack = o.topology[:0], o.sinks[:0], o.ranked[:0], o.stack[:0]
	for i, id := range sc.ids {
		if id >= s.first {
			o.position[id-s.first] = uint32(i)
		}
	}
	if s.sorted {
		for i := range n {
			s.measure(uint32(i))
		}
	} else {
		for i := range n {
			if err := s.visit(uint32(i)); err != nil {
				return err
			}
		}
		for _, i := range o.topology {
			s.measure(i)
		}
	}
	for i := range n {
		if o.colour[i]&consumed == 0 {
			o.sinks = append(o.sinks, uint32(i))
		}
		o.colour[i] = white
	}
	slices.SortStableFunc(o.sinks, func(x, y uint32) int { return compareDepth(o.depth[y], o.depth[x]) })
	for _, sink := range o.sinks {
		s.descend(sink)
	}
	for at, i := range o.ranked {
		if id := sc.ids[i]; id >= s.first {
			_, t := m.at(id)
			t.rank = m.options[t.options].rank | (m.nextRank + uint64(at))
		}
	}
	return nil
}

func compareDepth(x, y float32) int {
	switch {
	case x < y:
		return -1
	case x > y:
		return 1
	}
	return 0
}

// measure sets the depth of a task, and marks its inputs as consumed. REQUIRES: the depths of its
// inputs are set.
func (s *submission) measure(i uint32) {
	m := s.m
	o := &m.scratch.submit.order
	id := m.scratch.submit.ids[i]
	if id < s.first {
		o.depth[i] = 0
		return
	}
	b, t := m.at(id)
	var depth float32
	edges := b.edgesOf(t)
	for k := range edges {
		if in := edges[k].input; in >= s.first {
			p := o.position[in-s.first]
			o.colour[p] |= consumed
			depth = max(depth, o.depth[p])
		}
	}
	o.depth[i] = depth + float32(m.ops[t.op].estimate())
}

// visit appends a task to the topological order, after its inputs.
func (s *submission) visit(root uint32) *Error {
	m := s.m
	sc := &m.scratch.submit
	o := &sc.order
	o.stack = append(o.stack[:0], root)
	for len(o.stack) > 0 {
		top := o.stack[len(o.stack)-1]
		i := top &^ post
		if top&post != 0 {
			o.stack = o.stack[:len(o.stack)-1]
			o.colour[i] = black
			o.topology = append(o.topology, i)
			continue
		}
		if o.colour[i] != white {
			o.stack = o.stack[:len(o.stack)-1]
			continue
		}
		o.colour[i] = grey
		o.stack[len(o.stack)-1] = i | post
		id := sc.ids[i]
		if id < s.first {
			continue
		}
		b, t := m.at(id)
		edges := b.edgesOf(t)
		for k := range edges {
			in := edges[k].input
			if in < s.first {
				continue
			}
			p := o.position[in-s.first]
			if o.colour[p] == grey {
				return s.cycle(p)
			}
			if o.colour[p] == white {
				o.stack = append(o.stack, p)
			}
		}
	}
	return nil
}

// cycle makes the error for a cycle: the tasks on the stack from a grey task back to itself.
func (s *submission) cycle(from uint32) *Error {
	m := s.m
	var keys []string
	on := false
	for _, e := range m.scratch.submit.order.stack {
		if e&post == 0 {
			continue
		}
		if e&^post == from {
			on = true
		}
		if on {
			keys = append(keys, s.ev.Tasks[e&^post].Key)
		}
	}
	shown := keys
	if len(shown) > 8 {
		shown = append(slices.Clone(keys[:8]), "...")
	}
	if len(keys) == 1 {
		return &Error{Kind: ErrGraphHasCycle, Object: keys[0], Keys: keys,
			Message: fmt.Sprintf("task %s names itself as an input; remove it from its inputs", keys[0])}
	}
	return &Error{Kind: ErrGraphHasCycle, Object: keys[0], Keys: keys,
		Message: fmt.Sprintf("%d tasks need each other in a circle: %s needs %s again; break the circle", len(keys), strings.Join(shown, " needs "), keys[0])}
}

// descend appends a sink and the tasks that it needs to the ranking.
func (s *submission) descend(root uint32) {
	m := s.m
	sc := &m.scratch.submit
	o := &sc.order
	o.stack = append(o.stack[:0], root)
	for len(o.stack) > 0 {
		top := o.stack[len(o.stack)-1]
		i := top &^ post
		if top&post != 0 {
			o.stack = o.stack[:len(o.stack)-1]
			o.ranked = append(o.ranked, i)
			continue
		}
		if o.colour[i] != white {
			o.stack = o.stack[:len(o.stack)-1]
			continue
		}
		o.colour[i] = black
		o.stack[len(o.stack)-1] = i | post
		id := sc.ids[i]
		if id < s.first {
			continue
		}
		b, t := m.at(id)
		edges := b.edgesOf(t)
		children := o.children[:0]
		level := true
		for k := range edges {
			if in := edges[k].input; in >= s.first {
				if p := o.position[in-s.first]; o.colour[p] == white {
					level = level && (len(children) == 0 || o.depth[children[0]] == o.depth[p])
					children = append(children, p)
				}
			}
		}
		if !level {
			slices.SortStableFunc(children, func(x, y uint32) int { return compareDepth(o.depth[y], o.depth[x]) })
		}
		for k := len(children) - 1; k >= 0; k-- {
			o.stack = append(o.stack, children[k])
		}
		o.children = children
	}
}
