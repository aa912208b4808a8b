package sched

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/millrace/millrace/internal/ids"
)

// checker counts the machine's state again from the task records, to compare with the counters that
// the machine keeps.
type checker struct {
	m        *Machine
	problems []error

	totals    Totals
	live      []uint64 // by graph slot
	active    []uint64
	counts    []Counts
	summaries [][]Counts
	ops       []uint64
	options   []uint64
	classes   []uint64
	ready     []int
	held      []int // by holder slot
	keys      map[*namespace]int
	workers   []worker // by slot; only the sums are used
	queued    map[ids.TaskID]bool
	sent      map[TaskRef]bool
	retries   map[ids.TaskID]bool
	objects   []int
	inline    uint64
	troubles  int
	older     int
	// flows counts the graphs of each flow that have tasks which have not ended, and namespaces has
	// the counts of namespaces.
	flows      map[*flow]int
	namespaces map[*namespace]*namespace
	errored    int
	linalg     int
	rescuing   int
}

func (k *checker) fail(format string, args ...any) {
	if len(k.problems) < 10 {
		k.problems = append(k.problems, fmt.Errorf("sched: "+format, args...))
	}
}

// Check tests all invariants between steps. Its time is proportional to everything that the machine
// knows.
func (m *Machine) Check() error {
	k := &checker{
		m: m, live: make([]uint64, len(m.graphs)), active: make([]uint64, len(m.graphs)), counts: make([]Counts, len(m.graphs)),
		summaries: make([][]Counts, len(m.graphs)), ops: make([]uint64, len(m.ops)), options: make([]uint64, len(m.options)),
		classes: make([]uint64, len(m.classes)), ready: make([]int, len(m.classes)), held: make([]int, len(m.holders)),
		keys: make(map[*namespace]int), workers: make([]worker, len(m.workers)), queued: make(map[ids.TaskID]bool),
		sent: make(map[TaskRef]bool), retries: make(map[ids.TaskID]bool), objects: make([]int, len(m.workers)),
		flows: make(map[*flow]int), namespaces: make(map[*namespace]*namespace),
	}
	if len(m.endings)+len(m.reruns)+len(m.settling)+len(m.stranded)+len(m.makers)+len(m.copied) > 0 {
		k.fail("work is left over after the step: %d to end, %d to run again, %d to settle, %d stranded, %d to pre-assign", len(m.endings), len(m.reruns),
			len(m.settling), len(m.stranded), len(m.makers))
	}
	k.index()
	blocks := 0
	m.tasks.each(0, func(b *block) bool {
		blocks++
		k.block(b)
		return true
	})
	k.compare()
	return errors.Join(k.problems...)
}

// index collects the entries of all queues and the retry timers, so that task checks can look them
// up.
func (k *checker) index() {
	m := k.m
	for _, c := range m.classes {
		if c == nil {
			continue
		}
		for _, r := range c.queue.run[c.queue.head:] {
			k.queued[r.task] = true
		}
		for _, r := range c.queue.heap {
			k.queued[r.task] = true
		}
		for _, r := range c.parked {
			k.queued[r.task] = true
		}
	}
	for _, w := range m.order {
		for _, r := range w.queue {
			if _, t := m.lookup(r.Task); t != nil && t.current(w, r.Attempt) {
				if k.sent[r] {
					k.fail("attempt %v is twice in the queue of %s", r, w.id)
				}
				k.sent[r] = true
			}
		}
	}
	for i := range m.timers {
		if t := &m.timers[i]; t.kind == timerRetry {
			k.retries[ids.TaskID(t.id)] = true
		}
	}
}

func (k *checker) block(b *block) {
	live := 0
	for i := range b.tasks {
		if t := &b.tasks[i]; t.state != 0 {
			live++
			k.task(ids.TaskID(b.number<<blockBits|uint64(i)), b, t)
		}
	}
	if live != b.live {
		k.fail("block %d has %d tasks, not %d", b.number, live, b.live)
	}
	if live == 0 && b != k.m.current {
		k.fail("block %d is empty and was not freed", b.number)
	}
}

func (k *checker) task(id ids.TaskID, b *block, t *task) {
	m := k.m
	g := m.graphs[t.graph]
	if g == nil {
		k.fail("%s is in a graph that is gone", id)
		return
	}
	k.live[t.graph]++
	if t.state.unended() {
		k.active[t.graph]++
	}
	k.counts[t.graph][t.state]++
	for len(k.summaries[t.graph]) <= int(t.summary) {
		k.summaries[t.graph] = append(k.summaries[t.graph], Counts{})
	}
	k.summaries[t.graph][t.summary][t.state]++
	k.totals.Counts[t.state]++
	k.totals.Tasks++
	k.totals.HeldBytes += t.heldBytes()
	k.namespaceOf(m.graphs[t.graph].ns).add(t)
	k.totals.TailBytes += uint64(len(m.tails[id].text))
	if err := m.errors[id]; err != nil {
		k.totals.DetailBytes += err.DetailBytes
	}
	k.ops[t.op]++
	k.options[t.options]++
	k.classes[t.class]++
	k.keys[g.ns]++
	if found := g.ns.keys.find(m, string(b.keyOf(t)), hashKeyBytes(b.keyOf(t))); found != id {
		k.fail("%s: its key %q finds %s", id, b.keyOf(t), found)
	}
	if !t.wanted() && (t.state.active() || t.state == TaskSucceeded || t.state == TaskRescuing || t.dependents == 0) {
		k.fail("%s is %s although nobody wants it", id, t.state)
	}
	if t.wanted() && t.state == TaskReleased {
		k.fail("%s is wanted and RELEASED", id)
	}
	if t.flags&flagRunHold != 0 && (g.client == 0 || g.dropped || !t.state.active()) {
		k.fail("%s is %s and runs for its own sake in %s, which nobody may drop", id, t.state, g.id)
	}
	if t.state == TaskRescuing {
		k.rescuing++
	}
	if t.flags&flagSettling != 0 {
		k.fail("%s waits to be settled between steps", id)
	}
	k.edges(id, b, t)
	k.place(id, b, t)
	for i := t.holders; i != 0; i = b.links[i].next {
		h := b.links[i].value
		k.held[h]++
		if !m.holders[h].held.has(id) {
			k.fail("%s has holder %d, which does not hold it", id, h)
		}
	}
	if (m.errors[id] != nil) != (t.state == TaskFailed || t.state == TaskCancelled) {
		k.fail("%s is %s, its error is %v", id, t.state, m.errors[id])
	}
	if m.linalg[id] != "" {
		k.linalg++
	}
	if m.errors[id] != nil {
		k.errored++
	}
	if (m.trouble[id] != nil) != (t.flags&flagTrouble != 0) {
		k.fail("%s: its trouble record and flag differ", id)
	}
	if m.trouble[id] != nil {
		k.troubles++
	}
	if latest, older := m.latest[id]; older {
		k.older++
		if latest <= t.attempt {
			k.fail("%s: attempt %d is current, and is recorded as older than %d", id, t.attempt, latest)
		}
	}
}

// edges checks a task's links to its inputs and dependents.
func (k *checker) edges(id ids.TaskID, b *block, t *task) {
	m := k.m
	missing := uint32(0)
	for i := range b.edgesOf(t) {
		e := &b.edges[t.edge+uint32(i)]
		_, p := m.lookup(e.input)
		if p == nil {
			k.fail("%s needs %s, which is forgotten", id, e.input)
			continue
		}
		if e.flags&edgeLinked == 0 || e.consumer != uint16(id&blockMask) {
			k.fail("%s: input %d is not linked", id, i)
		}
		if e.flags&edgeFetching != 0 {
			if e.item == 0 || t.worker == 0 {
				k.fail("%s: input %d is marked as an item that its worker fetches, and is no item, or has no worker", id, i)
			} else {
				k.workers[t.worker-1].fetchingItems++
			}
		}
		if p.state == TaskSucceeded {
			continue
		}
		missing++
		if t.state.active() && !p.state.active() && p.state != TaskRescuing && !t.state.assigned() && !m.restart.running {
			k.fail("%s is %s, but its input %s is %s and will never come", id, t.state, e.input, p.state)
		}
	}
	if (t.state == TaskWaiting || t.state.assigned() && t.missing > 0) && t.missing != missing {
		k.fail("%s misses %d inputs, not %d", id, missing, t.missing)
	}
	if t.state == TaskReady && missing > 0 {
		k.fail("%s is READY and misses %d inputs", id, missing)
	}
	if t.state == TaskWaiting && missing == 0 && m.ops[t.op].spec.Kind != OpData && !m.standsBy(id) {
		k.fail("%s is WAITING for nothing", id)
	}
	unfinished := uint32(0)
	previous := edgeRef(0)
	for r := t.dependents; r != 0; {
		_, _, ct, e := m.consumerOf(r)
		if e.input != id || e.prev != previous || ct.state == 0 {
			k.fail("%s: its list of dependents is broken", id)
			return
		}
		if ct.undone() {
			unfinished++
		}
		previous, r = r, e.next
	}
	if unfinished != t.unfinished {
		k.fail("%s is needed %d times, not %d", id, unfinished, t.unfinished)
	}
}

// place checks the places of a task and of its object: queue, worker, replicas.
func (k *checker) place(id ids.TaskID, b *block, t *task) {
	m := k.m
	inline := b.inlineOf(uint64(id & blockMask))
	k.inline += uint64(len(inline))
	if (t.replicas != 0 || inline != nil) != (t.state == TaskSucceeded) {
		k.fail("%s is %s with replicas %d, inline %v", id, t.state, b.length(t.replicas), inline != nil)
	}
	for i := t.replicas; i != 0; i = b.links[i].next {
		slot := b.links[i].value
		if m.workers[slot] == nil || !m.workers[slot].objects.has(id) {
			k.fail("%s has a replica in slot %d, whose worker does not know", id, slot)
			continue
		}
		k.objects[slot]++
		k.workers[slot].heldBytes += t.output
	}
	queued, backoff := t.flags&flagQueued != 0, t.flags&flagBackoff != 0
	if (t.state == TaskReady) != (queued || backoff) || queued && backoff {
		k.fail("%s is %s, queued %v, in back-off %v", id, t.state, queued, backoff)
	}
	if queued {
		k.ready[t.class]++
		if !k.queued[id] {
			k.fail("%s is flagged as queued and is in no queue", id)
		}
	}
	if backoff && !k.retries[id] {
		k.fail("%s is in back-off without a timer", id)
	}
	if t.state.assigned() != (t.worker != 0) {
		k.fail("%s is %s with worker slot %d", id, t.state, t.worker)
		return
	}
	if t.worker == 0 {
		if t.flags&flagRetracting != 0 || t.flags&flagPinned != 0 && !(m.restart.running && t.state.active()) {
			k.fail("%s is %s and has flags of an attempt", id, t.state)
		}
		return
	}
	w := m.workers[t.worker-1]
	if w == nil || !k.sent[TaskRef{id, ids.Attempt(t.attempt)}] {
		k.fail("%s is with a worker that does not have it in its queue", id)
		return
	}
	sum := &k.workers[t.worker-1]
	sum.assigned++
	if t.state == TaskRunning {
		if sum.running++; m.starts[id].IsZero() {
			k.fail("%s runs, and nobody knows since when", id)
		}
	}
	if t.missing > 0 {
		sum.preassigned++
	} else if !w.blocked.has(id) {
		sum.usedSlots += uint64(max(m.options[t.options].Slots, 1))
	}
	sum.queuedMicros += uint64(t.runMicros)
	if w.blocked.has(id) {
		sum.blocked.count++
		if t.state != TaskRunning || t.runMicros != 0 {
			k.fail("%s waits for tasks, but is %s with %d µs to run", id, t.state, t.runMicros)
		}
	}
	if t.flags&flagRetracting != 0 {
		sum.retracting++
	}
}

// compare compares the recounted sums with those that the machine keeps.
func (k *checker) compare() {
	m := k.m
	if k.totals.Counts != m.totals.Counts || k.totals.Tasks != m.totals.Tasks || k.inline != m.totals.InlineBytes {
		k.fail("totals: %d tasks %v, inline %d; kept %d %v, %d", k.totals.Tasks, k.totals.Counts, k.inline, m.totals.Tasks, m.totals.Counts, m.totals.InlineBytes)
	}
	if k.totals.HeldBytes != m.totals.HeldBytes || k.totals.TailBytes != m.totals.TailBytes || k.totals.DetailBytes != m.totals.DetailBytes {
		k.fail("bytes: %d held, %d in tails, %d in details; kept %d, %d, %d", k.totals.HeldBytes, k.totals.TailBytes, k.totals.DetailBytes,
			m.totals.HeldBytes, m.totals.TailBytes, m.totals.DetailBytes)
	}
	if len(m.linalg) != k.linalg {
		k.fail("%d libraries of tasks that are gone", len(m.linalg)-k.linalg)
	}
	if len(m.latest) != k.older {
		k.fail("%d numbers of attempts of tasks that are gone", len(m.latest)-k.older)
	}
	if len(m.errors) != k.errored || len(m.trouble) != k.troubles {
		k.fail("%d errors and %d troubles of tasks that are gone", len(m.errors)-k.errored, len(m.trouble)-k.troubles)
	}
	if k.rescuing != m.copier.Rescuing() {
		k.fail("%d tasks are RESCUING, %d are recorded", k.rescuing, m.copier.Rescuing())
	}
	if err := m.copier.Check(); err != nil {
		k.problems = append(k.problems, err)
	}
	k.chains()
	for slot, g := range m.graphs {
		if g != nil {
			k.graph(slot, g)
		}
	}
	k.shares()
	ready := 0
	for slot, c := range m.classes {
		if c == nil {
			continue
		}
		ready += c.ready
		if c.ready != k.ready[slot] || c.tasks != k.classes[slot] || c.ready > 0 && c.list == 0 {
			k.fail("class %d: %d ready of %d, kept %d of %d, in list %d", slot, k.ready[slot], k.classes[slot], c.ready, c.tasks, c.list)
		}
	}
	k.classQueue()
	if ready != m.ready {
		k.fail("%d tasks are ready, not %d", ready, m.ready)
	}
	for i := range m.ops {
		if m.ops[i].tasks != k.ops[i] {
			k.fail("op %d (%s) has %d tasks, not %d", i, m.ops[i].spec.Name, k.ops[i], m.ops[i].tasks)
		}
	}
	for i := 1; i < len(m.options); i++ {
		if m.options[i].tasks != k.options[i] || k.options[i] == 0 && m.optionIndex[m.options[i].text] == uint32(i) {
			k.fail("options %d have %d tasks, kept %d", i, k.options[i], m.options[i].tasks)
		}
	}
	for i := range m.holders {
		if m.holders[i].held.count != k.held[i] {
			k.fail("holder %d holds %d tasks, %d know of it", i, m.holders[i].held.count, k.held[i])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.namespaces)) {
		if n := m.namespaces[name]; n.keys.count != k.keys[n] || n.refs <= 0 {
			k.fail("namespace %q has %d keys, not %d; %d refer to it", name, k.keys[n], n.keys.count, n.refs)
		}
	}
	notifiers := 0
	full := make(map[TaskRef]bool)
	for _, w := range m.order {
		if w.notifies {
			notifiers++
		}
		for _, r := range w.deferredCross {
			if full[r] {
				k.fail("attempt %v waits twice for room for its dependents, once at %s", r, w.id)
			}
			full[r] = true
		}
		s := &k.workers[w.slot]
		if s.assigned != w.assigned || s.running != w.running || s.usedSlots != w.usedSlots || s.preassigned != w.preassigned || s.queuedMicros != w.queuedMicros || s.retracting != w.retracting || s.blocked.count != w.blocked.count {
			k.fail("%s: assigned %d, running %d, slots %d, pre-assigned %d, queue %d µs, retracting %d, blocked %d; kept %d, %d, %d, %d, %d, %d, %d", w.id,
				s.assigned, s.running, s.usedSlots, s.preassigned, s.queuedMicros, s.retracting, s.blocked.count,
				w.assigned, w.running, w.usedSlots, w.preassigned, w.queuedMicros, w.retracting, w.blocked.count)
		}
		if w.objects.count != k.objects[w.slot] {
			k.fail("%s holds %d objects, %d know of it", w.id, w.objects.count, k.objects[w.slot])
		}
		if w.heldBytes != s.heldBytes {
			k.fail("%s holds %d bytes, not %d", w.id, s.heldBytes, w.heldBytes)
		}
		if s.fetchingItems != w.fetchingItems {
			k.fail("%s expects %d items, kept %d", w.id, s.fetchingItems, w.fetchingItems)
		}
		if w.fetching.count == 0 && w.fetchingItems == 0 && w.fetchingBytes != 0 {
			k.fail("%s expects no object and %d bytes", w.id, w.fetchingBytes)
		}
		if w.assigned == 0 && (w.fetching.count > 0 || len(w.usedResources) > 0) {
			k.fail("%s has nothing to do and fetches %d objects, uses %d resources", w.id, w.fetching.count, len(w.usedResources))
		}
		if m.workers[w.slot] != w || m.workerOf(w.id) != w {
			k.fail("%s is not found by its id or slot", w.id)
		}
	}
	if notifiers != m.notifiers {
		k.fail("%d workers notify, not %d", notifiers, m.notifiers)
	}
}

// namespaceOf returns the counts of a namespace so far.
func (k *checker) namespaceOf(ns *namespace) *namespace {
	if k.namespaces[ns] == nil {
		k.namespaces[ns] = new(namespace)
	}
	return k.namespaces[ns]
}

// shares checks what flows and namespaces count.
func (k *checker) shares() {
	// order-free: each is checked, and counted, on its own.
	for f, graphs := range k.flows {
		if f.graphs != graphs || f.served > f.finish {
			k.fail("a flow of namespace %q has %d graphs, not %d, and is at %d of %d", f.ns.name, graphs, f.graphs, f.served, f.finish)
		}
	}
	// order-free: each is checked on its own.
	for name, ns := range k.m.namespaces {
		if want := k.namespaceOf(ns); ns.tasks != want.tasks || ns.bytes != want.bytes {
			k.fail("namespace %q has %d tasks, %d bytes; kept %d, %d", name, want.tasks, want.bytes, ns.tasks, ns.bytes)
		}
	}
}

func (k *checker) graph(slot int, g *graph) {
	m := k.m
	if g.active > 0 {
		k.flows[g.flow]++
	}
	counts := k.counts[slot]
	// Forgotten tasks stay in the graph's counts as RELEASED.
	counts[TaskReleased] = g.counts[TaskReleased]
	if g.live != k.live[slot] || g.active != k.active[slot] || counts != g.counts || k.counts[slot][TaskReleased] > g.counts[TaskReleased] {
		k.fail("%s: %d tasks, %d active, %v; kept %d, %d, %v", g.id, k.live[slot], k.active[slot], k.counts[slot], g.live, g.active, g.counts)
	}
	for i, p := range k.summaries[slot] {
		p[TaskReleased] = g.summaries[i].Counts[TaskReleased]
		if p != g.summaries[i].Counts {
			k.fail("%s, op %s: %v, kept %v", g.id, g.summaries[i].Name, p, g.summaries[i].Counts)
		}
	}
	found := uint64(0)
	m.eachTask(g, func(ids.TaskID, *block, *task) bool {
		found++
		return true
	})
	if found != g.live {
		k.fail("%s: its ranges have %d tasks, not %d", g.id, found, g.live)
	}
	if g.live == 0 && g.dropped {
		k.fail("%s has no tasks, is dropped and still there", g.id)
	}
	if (g.active == 0) == g.endedAt.IsZero() {
		k.fail("%s: %d active tasks, ended at %v", g.id, g.active, g.endedAt)
	}
	if g.failing && (g.active == 0 || g.newError == nil) {
		k.fail("%s: the end with the failure %v was not told", g.id, g.newError)
	}
}

// classQueue checks the order of classes and the kept input sizes of tasks with many inputs.
func (k *checker) classQueue() {
	m := k.m
	// order-free: all are checked.
	for list, classes := range map[list][]*class{listWaiting: m.classQueue.waiting, listPassed: m.classQueue.passed} {
		for i, c := range classes {
			if c.list != list || c.at != i || m.classes[c.slot] != c {
				k.fail("class %d is at place %d of list %d, and takes itself to be at %d of %d", c.slot, i, list, c.at, c.list)
			}
			if list == listWaiting && i > 0 && c.before(classes[(i-1)/2]) {
				k.fail("class %d is behind one that it is before", c.slot)
			}
			if r, ok := c.queue.first(); ok && r.rank < c.lowest {
				k.fail("class %d: rank %d is below %d", c.slot, r.rank, c.lowest)
			}
		}
	}
	// order-free: all are checked.
	for id, total := range m.wide {
		b, t := m.lookup(id)
		if t == nil || t.flags&flagQueued == 0 {
			k.fail("task %s is known for its many inputs, and is not ready", id)
			continue
		}
		var sum uint64
		for _, e := range b.edgesOf(t) {
			_, p := m.at(e.input)
			sum += e.bytesOf(p)
		}
		if sum != total {
			k.fail("the inputs of task %s have %d bytes, not %d", id, sum, total)
		}
	}
}

// chains checks the broadcast chains.
func (k *checker) chains() {
	m := k.m
	for _, id := range slices.Sorted(maps.Keys(m.chains)) {
		list := m.chains[id]
		if len(list) == 0 {
			k.fail("%s has an empty chain", id)
		}
		for i, r := range list {
			w := m.workerOf(r.worker)
			if w == nil || !w.pipelined || !w.fetching.has(id) {
				k.fail("%s is not going to fetch %s, and in its chain", r.worker, id)
				continue
			}
			for _, other := range list[:i] {
				if other.worker == r.worker || r.upstream != 0 && other.upstream == r.upstream {
					k.fail("%s and %s are at one place of the chain of %s", other.worker, r.worker, id)
				}
			}
			if r.upstream != 0 && !slices.ContainsFunc(list[:i], func(before chainLink) bool { return before.worker == r.upstream }) {
				k.fail("%s reads %s from its upstream %s, which was not told before", r.worker, id, r.upstream)
			}
		}
	}
}
