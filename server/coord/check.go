package coord

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
)

// Check tests all invariants between calls. Its time is proportional to everything that the machine
// knows.
func (m *Machine) Check() error {
	k := &checker{m: m, used: map[string]uint64{}, places: map[*stored]int{}, lines: map[*request]int{}, locks: map[*grant]int{}, openers: map[*queue]int{}, unleased: map[*space]int{}, rows: map[key]Row{}}
	// order-free: the order changes only the order of the problems.
	for id, c := range m.clients {
		k.client(c)
		if id != c.id {
			k.fail("client %d is recorded as %d", uint64(c.id), uint64(id))
		}
	}
	// order-free: the order changes only the order of the problems.
	for ticket, r := range m.listening {
		if r.ticket != ticket || r.gone || r.met {
			k.fail("%s has ticket %d, and is recorded under %d", r.ask, r.ticket, ticket)
		}
		k.request(r)
	}
	// order-free: the order changes only the order of the problems.
	for name, s := range m.spaces {
		k.space(s)
		if name != s.name {
			k.fail("namespace %q is recorded as %q", s.name, name)
		}
	}
	for i, r := range m.timers {
		if r.timer != i+1 || r.gone {
			k.fail("%s is at %d of the deadlines, and thinks %d", r.ask, i+1, r.timer)
		}
	}
	k.totals()
	k.durable()
	return errors.Join(k.problems...)
}

// checker counts again what the machine counts.
type checker struct {
	m        *Machine
	problems []error
	used     map[string]uint64 // by namespace
	places   map[*stored]int
	// lines counts the lines in which a request stands; locks the locks that list a grant.
	lines   map[*request]int
	locks   map[*grant]int
	openers map[*queue]int
	// unleased are the calls without a client that wait, by namespace.
	unleased map[*space]int
	seen     []*request
	// rows are those of the state.
	rows map[key]Row
}

// row counts a row of the state.
func (k *checker) row(r Row) {
	if k.m.config.Durable {
		k.rows[r.key()] = r
	}
}

// durable compares the rows of the state with those of the table.
func (k *checker) durable() {
	if !k.m.config.Durable {
		return
	}
	// order-free: each value is looked at alone.
	for v := range k.places {
		if v.durable {
			k.row(ValueRow{Number: v.number, Namespace: v.namespace, Value: v.Value})
		}
	}
	for _, e := range k.m.table.entries {
		if e.row == nil {
			continue
		}
		if r := k.rows[e.row.key()]; !reflect.DeepEqual(r, e.row) {
			k.fail("the row %+v is %+v in the state", e.row, r)
		}
		if k.m.table.at[e.row.key()] != e.number {
			k.fail("the row %+v is at %d", e.row, e.number)
		}
	}
	// order-free: the order changes only the order of the problems.
	for key, r := range k.rows {
		if k.m.table.at[key] == 0 {
			k.fail("%+v has no row", r)
		}
	}
}

func (k *checker) fail(format string, args ...any) {
	if len(k.problems) < 10 {
		k.problems = append(k.problems, fmt.Errorf("coord: "+format, args...))
	}
}

func (k *checker) client(c *client) {
	if len(c.requests)+len(c.anonymous)+len(c.answered)+len(c.released)+len(c.grants)+len(c.queues)+len(c.reads) == 0 {
		k.fail("client %d has nothing", uint64(c.id))
	}
	waiting, kept := 0, uint64(0)
	// order-free: the order changes only the order of the problems.
	for id, r := range c.requests {
		if r.id != id || id == "" {
			k.fail("%s has id %q, and is recorded under %q", r.ask, r.id, id)
		}
		if !r.met {
			waiting++
		}
		k.request(r)
	}
	for _, r := range c.anonymous {
		if r.met || r.id != "" {
			k.fail("%s waits without an id, and is met %t, id %q", r.ask, r.met, r.id)
		}
		waiting++
		k.request(r)
	}
	for _, r := range c.answered {
		if !r.kept || c.requests[r.id] != r {
			k.fail("%s is answered and not known", r.ask)
		}
		kept += r.bytes()
	}
	if waiting != c.waiting || kept != c.keptBytes || len(c.answered) > answersKept {
		k.fail("client %d has %d waiting calls and %d bytes of answers, and counts %d and %d", uint64(c.id), waiting, kept, c.waiting, c.keptBytes)
	}
	for _, r := range c.released {
		if _, is := r.ask.(released); !is || c.requests[r.id] != r {
			k.fail("%s is no release, or not known", r.ask)
		}
	}
	for _, g := range c.grants {
		if len(g.names) == 0 || g.client != c {
			k.fail("client %d has a grant of %d locks, of client %d", uint64(c.id), len(g.names), uint64(g.client.id))
		}
		k.used[g.space.name] += requestBytes + 64*uint64(len(g.names))
		k.row(g.row())
	}
	for _, q := range c.queues {
		k.openers[q]++
		k.row(OpenerRow{c.id, q.space.name, q.name})
		if q.gone {
			k.fail("client %d has opened queue %q, which is gone", uint64(c.id), q.name)
		}
	}
}

func (k *checker) request(r *request) {
	if slices.Contains(k.seen, r) {
		return
	}
	k.seen = append(k.seen, r)
	k.used[r.space.name] += requestBytes
	for _, v := range r.got {
		k.places[v]++
	}
	if r.isAnswer() {
		k.row(r.row())
	}
	switch {
	case r.gone:
		k.fail("%s is gone and known", r.ask)
	case r.timer == 0:
		k.fail("%s has no deadline", r.ask)
	case r.met && !r.given && r.ticket != 0:
		k.fail("%s has an answer and a caller", r.ask)
	}
	if !r.met {
		k.lines[r] = 1
		if r.client == nil {
			k.unleased[r.space]++
		}
		if ask, ok := r.ask.(Acquire); ok {
			k.lines[r] = len(ask.Names)
			k.used[r.space.name] += 64 * uint64(len(ask.Names))
		}
		if r.value != nil {
			k.places[r.value]++
		}
	}
}

func (k *checker) space(s *space) {
	names := 0
	count := func(name string) {
		names++
		k.used[s.name] += nameBytes + uint64(len(name))
	}
	// order-free: the order changes only the order of the problems.
	for name, sem := range s.semaphores {
		count(name)
		k.semaphore(s, sem)
	}
	// order-free: the order changes only the order of the problems.
	for name, v := range s.variables {
		count(name)
		k.line("variable "+name, v.waiting)
		if (v.value == nil) == (len(v.waiting) == 0) {
			k.fail("variable %q has a value: %t, and %d calls wait", name, v.value != nil, len(v.waiting))
		}
		if v.value != nil {
			k.places[v.value]++
			k.row(VariableRow{s.name, name, v.value.number})
		}
	}
	// order-free: the order changes only the order of the problems.
	for name, e := range s.events {
		count(name)
		k.line("event "+name, e.waiting)
		if e.set == (len(e.waiting) > 0) {
			k.fail("event %q is set: %t, and %d calls wait", name, e.set, len(e.waiting))
		}
		if e.set {
			k.row(EventRow{s.name, name})
		}
	}
	// order-free: the order changes only the order of the problems.
	for name, q := range s.queues {
		count(name)
		k.queue(q)
	}
	// order-free: the order changes only the order of the problems.
	for name, t := range s.topics {
		count(name)
		k.topic(s, t)
	}
	if s.metadata != nil {
		k.node(s, s.metadata, count)
	}
	if names != s.names || names == 0 {
		k.fail("namespace %q has %d names, and counts %d", s.name, names, s.names)
	}
}

// line checks a line, which has the order in which the calls came.
func (k *checker) line(what string, line []*request) {
	for i, r := range line {
		k.lines[r]--
		if r.gone || r.met || i > 0 && line[i-1].sequence >= r.sequence {
			k.fail("the line of %s has %s at %d out of order, or it does not wait", what, r.ask, i)
		}
	}
}

func (k *checker) semaphore(s *space, sem *semaphore) {
	k.line("semaphore "+sem.name, sem.waiting)
	if len(sem.holders) > int(sem.limit) || len(sem.holders)+len(sem.waiting) == 0 {
		k.fail("semaphore %q has %d holders of %d, and %d calls wait", sem.name, len(sem.holders), sem.limit, len(sem.waiting))
	}
	for _, g := range sem.holders {
		k.locks[g]++
		if !slices.Contains(g.names, sem.name) || !slices.Contains(g.client.grants, g) {
			k.fail("semaphore %q has a holder that does not know", sem.name)
		}
	}
	for _, r := range sem.waiting {
		if s.turns(r) != nil {
			k.fail("%s waits for semaphore %q although it is at its turn", r.ask, sem.name)
		}
	}
}

func (k *checker) queue(q *queue) {
	k.line("queue "+q.name+" for puts", q.puts)
	k.line("queue "+q.name+" for takes", q.takes)
	k.row(q.row())
	for i, v := range q.values {
		k.places[v]++
		k.row(ItemRow{q.space.name, q.name, v.number})
		if i > 0 && v.number <= q.values[i-1].number {
			k.fail("queue %q has value %d out of order", q.name, v.number)
		}
	}
	room := q.maxSize == 0 || len(q.values) < int(q.maxSize)
	switch {
	case q.gone || len(q.values)+len(q.puts)+len(q.takes)+q.openers == 0:
		k.fail("queue %q has nothing", q.name)
	case len(q.puts) > 0 && room || len(q.takes) > 0 && len(q.values) > 0:
		k.fail("queue %q: %d puts, %d values and %d takes wait", q.name, len(q.puts), len(q.values), len(q.takes))
	case k.openers[q] != q.openers:
		k.fail("queue %q has %d openers, and counts %d", q.name, k.openers[q], q.openers)
	}
}

func (k *checker) topic(s *space, t *topic) {
	k.line("topic "+t.name, t.waiting)
	bytes := uint64(0)
	if t.number > t.base {
		k.row(TopicRow{s.name, t.name, t.base})
	}
	for i, msg := range t.messages {
		k.row(MessageRow{s.name, t.name, msg.number, msg.at, msg.value.number})
		k.places[msg.value]++
		bytes += msg.value.size()
		if msg.number != t.number-uint64(len(t.messages)-1-i) {
			k.fail("topic %q has message %d at %d, and the last is %d", t.name, msg.number, i, t.number)
		}
	}
	if bytes != t.bytes || len(t.messages) > k.m.config.TopicMessages || t.number == t.base && len(t.waiting) == 0 {
		k.fail("topic %q has %d messages with %d bytes, and counts %d", t.name, len(t.messages), bytes, t.bytes)
	}
}

func (k *checker) node(s *space, n *node, count func(string)) {
	k.used[s.name] += uint64(len(n.leaf))
	if len(n.names) != len(n.children) || n.leaf != nil && len(n.names) > 0 {
		k.fail("metadata: a node has %d names, %d children, and %d bytes", len(n.names), len(n.children), len(n.leaf))
	}
	for _, name := range n.names {
		count(name)
		k.row(n.children[name].row(s))
		k.node(s, n.children[name], count)
	}
}

// totals compares the counts.
func (k *checker) totals() {
	// order-free: sums.
	for v, places := range k.places {
		k.used[v.namespace] += v.size()
		if v.places != places {
			k.fail("a value with hold %d is in %d places, and counts %d", v.Hold, places, v.places)
		}
	}
	// order-free: the order changes only the order of the problems.
	for r, missing := range k.lines {
		if missing != 0 {
			k.fail("%s is missing in %d lines", r.ask, missing)
		}
	}
	// order-free: the order changes only the order of the problems.
	for g, locks := range k.locks {
		if locks != len(g.names) {
			k.fail("a grant of %s has %d locks, and %d list it", g.ask, len(g.names), locks)
		}
	}
	bytes := uint64(0)
	// order-free: the order changes only the order of the problems.
	for name, s := range k.m.spaces {
		bytes += s.unleasedBytes
		if n := k.unleased[s]; n != s.unleased || s.unleasedBytes < uint64(n)*requestBytes {
			k.fail("in namespace %q %d calls without a client wait, and counted are %d with %d bytes", name, n, s.unleased, s.unleasedBytes)
		}
	}
	if bytes != k.m.unleasedBytes {
		k.fail("calls without a client take %d bytes, and counted are %d", bytes, k.m.unleasedBytes)
	}
	used := uint64(0)
	// order-free: sums, and the order changes only the order of the problems.
	for name, bytes := range k.used {
		used += bytes
		if bytes != k.m.usedBy[name] {
			k.fail("in namespace %q %d bytes are in use, and counted are %d", name, bytes, k.m.usedBy[name])
		}
		if bytes == 0 {
			delete(k.used, name)
		}
	}
	if used != k.m.used || len(k.used) != len(k.m.usedBy) {
		k.fail("%d bytes are in use in %d namespaces, and counted are %d in %d", used, len(k.used), k.m.used, len(k.m.usedBy))
	}
	if n := len(k.seen); n != len(k.m.timers) {
		k.fail("%d calls are known, and %d have a deadline", n, len(k.m.timers))
	}
}
