package sched

import (
	"fmt"
	"slices"
	"strings"
)

// positionMask selects the position of a rank, without the priority.
const positionMask = 1<<48 - 1

// firstRank is the rank, without a priority, of the first task that a program submits. Those that
// tasks submit have lower ones.
const firstRank = 1 << 47

// nested reports whether a task has submitted the task of a rank.
func nested(rank uint64) bool { return rank&firstRank == 0 }

// nestedRank returns the lowest rank, without a priority, of n tasks that a task has submitted.
// They come before all tasks that programs have submitted: a task that waits for them can end then,
// and gives its memory back. The last ones come first, so that recursion goes into the depth, and
// few tasks wait at a time.
func (m *Machine) nestedRank(n int) uint64 {
	m.lowestNested -= uint64(n)
	return m.lowestNested
}

// rankScratch is the memory of rank, reused between submissions. A position is the index of a task
// in the submission.
type rankScratch struct {
	// position has the position of each new task, indexed by its id minus the first new id.
	position []uint32
	// depth and colour are indexed by position.
	depth  []float32
	colour []uint8
	// stack has positions, some with the bit post.
	stack []uint32
	// children has the positions of one task's inputs that are not visited yet.
	children []uint32
	// topology has positions, each after those of the task's inputs.
	topology []uint32
	// sinks has the positions of tasks that no task of the submission needs.
	sinks []uint32
	// ranked lists positions by rank, lowest first.
	ranked []uint32
}

// Colours of a depth-first walk: white before a task is visited, grey while its inputs are, black
// after that. descend uses no grey: there black means visited.
const (
	white = iota
	grey
	black
	// consumed is a bit of a colour. It marks tasks that another task of the submission needs.
	consumed = 1 << 7
	// post is a bit of a stack entry: the inputs of this task are above it on the stack. When the
	// entry is on top again, they have been visited.
	post = 1 << 31
)

// rank sets the ranks of the new tasks, and finds cycles. The top 16 bits of a rank are the
// priority. The next bit is 0 for tasks that a task has submitted: they come first, see
// nestedRank. The others are the place of the task, see flow.go. Tasks get their places as they
// were submitted, if none needs another one of the submission, and otherwise by a depth-first
// walk. The depth of a task is the expected run time of the longest path that ends with it. The
// walk begins at the sinks, deepest first, goes from a task into its deepest input first, and
// ranks a task after its inputs. So the critical path gets the lowest ranks, and the inputs of a
// task are made shortly before it and can be released soon after.
func (s *submission) rank() *Error {
	m := s.m
	sc := &m.scratch.submit
	n := len(sc.ids)
	step := s.ns.step
	if s.nested {
		s.start, step = m.nestedRank(n)<<placeBits, onePlace
	} else {
		s.start = m.nextPlace(s.flow)
	}
	next := s.start
	if !s.deep {
		for _, id := range sc.ids {
			if id >= s.first {
				_, t := m.at(id)
				t.rank = m.options[t.options].rank | next>>placeBits
				next += step
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
	for _, i := range o.ranked {
		if id := sc.ids[i]; id >= s.first {
			_, t := m.at(id)
			t.rank = m.options[t.options].rank | next>>placeBits
			next += step
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

// visit appends a task to the topological order, after its inputs. It fails if it finds a cycle.
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

// cycle returns the error for a cycle. Its tasks are those on the stack with the bit post, from the
// task that was found grey to the top; each needs the next, and the last needs the first.
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

// descend appends the tasks that a sink needs, and then the sink, to ranked. It leaves out those
// that are there already.
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
