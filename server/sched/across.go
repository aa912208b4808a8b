package sched

import (
	"slices"

	"github.com/millrace/millrace/internal/ids"
)

// In a stencil, or wherever neighbours exchange what they made, a task's inputs are made at several workers. Were it assigned
// when the last of them is known here, each step would cost a message here and one back. So a short task goes to its worker
// ahead of inputs that are made elsewhere, too: there it waits for the word of their makers, which goes from worker to worker
// and carries what is small (Law 5: the consumer has asked for it). This machine hears of the results like of any other.
//
// What the makers tell each other is success. Whatever else becomes of an attempt, it is known here first: then those that
// were sent elsewhere ahead of it are recalled.

const (
	// maxAcross bounds the inputs that are still to be made.
	maxAcross = 8
	// maxBehind bounds the attempts that are looked at for a task's inputs.
	maxBehind = 16
	// acrossMicros is how long a task may take for the way of a message to count.
	acrossMicros = 2000
	// wordMicros is the way of a word from worker to worker of one host, and farMicros that to another host, in round figures:
	// 15 and 50 were measured (ADRs 11, 14). No object comes sooner.
	wordMicros, farMicros = 20, 50
	// tellMicros is from where on latencies count. Smaller ones differ more by how a few small fetches went than by the way, and
	// would put neighbours together at whoever seems to be 10 µs nearer.
	tellMicros = 100
)

func (m *Machine) countAwaiting() {
	m.awaiting = 0
	for _, w := range m.order {
		if w.awaits {
			m.awaiting++
		}
	}
}

// spread looks for tasks that may follow what was just assigned, lowest rank first: a choice among neighbours is the right one
// only if those before it are made. While tasks are ready and wait for workers, nobody waits for messages.
func (m *Machine) spread() {
	makers, next := m.scratch.makers[:0], m.scratch.followers[:0]
	for !m.crowded() {
		for _, r := range m.across {
			if _, t := m.lookup(r.Task); t != nil && t.state.assigned() && t.attempt == uint32(r.Attempt) {
				m.followersOf(t, len(makers), &next)
				makers = append(makers, maker{TaskRef: r})
			}
		}
		if m.across = m.across[:0]; len(next) == 0 {
			break
		}
		f := next.pop()
		m.spreadTo(f.task, &makers[f.maker])
	}
	m.across = m.across[:0]
	m.scratch.makers, m.scratch.followers = makers, next
	if cap(makers) > keptWork {
		m.across, m.scratch.makers, m.scratch.followers = nil, nil, nil
	}
}

// crowded says whether tasks are ready and wait for room at a worker. Those that no worker may run, or whose memory fits none, do not
// count: one of them would otherwise have all others wait for messages for as long as it is there.
func (m *Machine) crowded() bool {
	if m.ready == 0 {
		return false
	}
	for _, classes := range [][]*class{m.line.waiting, m.line.passed} {
		for i, c := range classes {
			if i == maxClasses || c.ready > len(c.parked) && len(m.feasible(c)) > 0 {
				return true
			}
		}
	}
	return false
}

// maker is an attempt whose dependents are looked at. noted: one of them has found no room.
type maker struct {
	TaskRef
	noted bool
}

// followersOf adds a task's dependents that may go out ahead of it.
func (m *Machine) followersOf(t *task, maker int, to *heap[follower]) {
	n := 0
	for e := t.dependents; e != 0 && n < maxSkipped; n++ {
		id, b, ct, link := m.consumerOf(e)
		e = link.next
		if ct.state != TaskWaiting || ct.missing > maxAcross || !m.maySpread(b, ct) {
			continue // should another input be what it lacks, it is found again with that
		}
		if t.unfinished == 1 && m.mayFollow(b, ct, m.workers[t.worker-1]) {
			continue // it does so by itself, or waits in tails
		}
		to.push(follower{ct.rank, id, maker})
	}
}

// spreadTo sends a task that waits to a worker, or notes where there was no room.
func (m *Machine) spreadTo(id ids.TaskID, from *maker) {
	b, t := m.at(id)
	if t.state != TaskWaiting {
		return // it was there twice
	}
	w := m.chooseAcross(b, t)
	switch {
	case w == nil:
	case m.roomAhead(w):
		m.send(id, b, t, w)
	case !from.noted:
		// Once is enough: it is looked at with all its dependents. So an attempt is in one list at most.
		w.full = append(w.full, from.TaskRef)
		from.noted = true
	}
}

// spreadAgain goes on where spread found no room, once there is a good deal of it: neither workers nor their peers should hear of
// one task at a time. Whoever has some room goes on as well: where neighbours are placed one after the other, each takes
// what is the next one's.
func (m *Machine) spreadAgain(w *worker) {
	slots := uint64(w.slots)
	if len(w.full) == 0 || uint64(w.ahead) >= slots+minAhead && (w.queuedMicros >= aheadMicros*slots/2 || w.ahead >= maxAhead/2) {
		return
	}
	for _, w := range m.order {
		if len(w.full) > 0 && m.roomAhead(w) {
			m.across = append(m.across, w.full...)
			w.full = w.full[:0]
		}
	}
}

// follower is a task that may follow a maker, which is named by its index.
type follower struct {
	rank  uint64
	task  ids.TaskID
	maker int
}

func (f follower) Before(g follower) bool {
	return f.rank < g.rank || f.rank == g.rank && f.task < g.task
}

// maySpread says whether a waiting task may be assigned ahead of inputs that are made at other workers: it is short, and all
// of them are there or are being made by workers that tell.
func (m *Machine) maySpread(b *block, t *task) bool {
	o := &m.ops[t.op]
	if t.flags&flagTrouble != 0 || o.spec.Kind == OpData || o.samples == 0 || o.estimate() > acrossMicros {
		return false
	}
	if c := m.classes[t.class]; c.options.Slots > 1 || len(c.options.Resources) > 0 {
		return false
	}
	edges := b.edgesOf(t)
	for i := range edges {
		_, p := m.at(edges[i].input)
		switch {
		case p.state == TaskSucceeded:
		case !p.state.assigned() || p.flags&flagRetracting != 0:
			return false
		default:
			if at := m.workers[p.worker-1]; at.state != WorkerStateActive || !at.awaits {
				return false
			}
		}
	}
	return true
}

// chooseAcross picks the worker that could have the task done first, among those that make its inputs or hold them, and the least
// loaded. Among equals it is the maker or holder for whose object the fewest others wait: those can still go elsewhere. A worker
// that has enough to run gets nothing: its tasks cover the way of a message.
func (m *Machine) chooseAcross(b *block, t *task) *worker {
	c := m.classes[t.class]
	from := m.feasible(c)
	edges := b.edgesOf(t)
	var best *worker
	var input *task // what best has of the task
	var soonest float64
	m.stamp++
	look := func(w *worker, p *task, wait float64) {
		if !w.awaits || w.usedSlots >= uint64(w.slots)+minAhead || !slices.Contains(from, w) || !m.memoryFits(w, b, t) {
			return
		}
		f := wait + m.expectMicros(w, edges)
		if best == nil || f < soonest || f == soonest && m.waiters(p) < m.waiters(input) {
			best, input, soonest = w, p, f
		}
	}
	var made float64 // until the last input is, by the queues
	for i := range edges {
		_, p := m.at(edges[i].input)
		if p.worker == 0 {
			continue
		}
		if w := m.workers[p.worker-1]; w.mark != m.stamp {
			w.mark = m.stamp
			wait := m.behind(w, edges)
			made = max(made, w.load()-wait)
			look(w, p, wait)
		}
	}
	for i := range edges {
		pb, p := m.at(edges[i].input)
		if p.worker != 0 || p.replicas == 0 {
			continue
		}
		if w := m.workers[pb.links[p.replicas].value]; w.mark != m.stamp {
			w.mark = m.stamp
			look(w, p, max(w.load()-made, 0))
		}
	}
	if idle, _ := m.leastLoaded(from, c, 0, nil); idle != nil && idle.mark != m.stamp {
		look(idle, nil, max(idle.load()-made, 0))
	}
	return best
}

// waiters counts the dependents of a task that are at no worker yet; nil has more than any.
func (m *Machine) waiters(t *task) (waiting int) {
	if t == nil {
		return maxSkipped + 1
	}
	n := 0
	for e := t.dependents; e != 0 && n < maxSkipped; n++ {
		_, _, ct, link := m.consumerOf(e)
		if ct.state == TaskWaiting {
			waiting++
		}
		e = link.next
	}
	return waiting
}

// behind is how long a task would wait at a worker when all its inputs are made, in microseconds: for what the worker was given
// behind the last of those that it makes itself. What lies before that is no reason to prefer another worker, since the task
// waits for it wherever it is; and how much of it there is says who has reported last, not who is ahead. Where it
// has been given much since, it is the whole queue. REQUIRES: it makes one of them.
func (m *Machine) behind(w *worker, edges []edge) float64 {
	var micros uint64
	for i := range min(len(w.queue), maxBehind) {
		r := w.queue[len(w.queue)-1-i]
		_, t := m.lookup(r.Task)
		if t == nil || !t.current(w, r.Attempt) {
			continue
		}
		for k := range edges {
			if edges[k].input == r.Task {
				return float64(micros) / float64(w.slots)
			}
		}
		micros += uint64(t.runMicros)
	}
	return w.load()
}

// expectMicros is fetchMicros with inputs that are still to be made, which are as large as their op's were.
func (m *Machine) expectMicros(w *worker, edges []edge) float64 {
	_, micros := m.fetchMicros(w, edges)
	var latency float64
	for i := range edges {
		_, p := m.at(edges[i].input)
		if p.worker == 0 || p.worker == w.slot+1 {
			continue
		}
		maker, word := m.workers[p.worker-1], float64(wordMicros)
		if maker.host != w.host {
			word = farMicros
		}
		latency = max(latency, word)
		if m.ops[p.op].outputBytes <= float64(m.config.InlineResultBytes) {
			continue // it comes with the word
		}
		r := m.rate(maker.id, w.id)
		if r.latencyMicros >= tellMicros {
			latency = max(latency, r.latencyMicros)
		}
		micros += m.ops[p.op].outputBytes / r.bytesPerMicro
	}
	return micros + latency
}

// strand notes the attempts that wait elsewhere for an attempt that has ended without an object; they are recalled. Those at
// the same worker are dropped by that.
func (m *Machine) strand(t *task, at uint32) {
	if m.awaiting == 0 {
		return
	}
	for r := t.dependents; r != 0; {
		id, _, ct, e := m.consumerOf(r)
		if ct.state.assigned() && ct.missing > 0 && ct.worker != at {
			m.stranded = append(m.stranded, TaskRef{id, ids.Attempt(ct.attempt)})
		}
		r = e.next
	}
}

// recall takes an attempt back that waits in vain.
func (m *Machine) recall(r TaskRef) {
	b, t := m.lookup(r.Task)
	if t == nil || !t.state.assigned() || t.attempt != uint32(r.Attempt) || t.missing == 0 {
		return
	}
	w := m.workers[t.worker-1]
	m.leave(b, t)
	m.tell(EffectCancel, w, r.Task, t.attempt)
	m.requeue(r.Task, b, t)
}
