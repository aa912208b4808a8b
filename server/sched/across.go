package sched

import (
	"cmp"
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
	// wordMicros is the way of a word from worker to worker.
	wordMicros = 50
)

func (m *Machine) countAwaiting() {
	m.awaiting = 0
	for _, w := range m.order {
		if w.awaits {
			m.awaiting++
		}
	}
}

// spread looks for tasks that may follow what was just assigned. While tasks are ready and wait for workers, nobody waits
// for messages.
func (m *Machine) spread() {
	for i := 0; i < len(m.across) && m.ready == 0; i++ {
		r := m.across[i]
		if _, t := m.lookup(r.Task); t != nil && t.state.assigned() && t.attempt == uint32(r.Attempt) {
			m.spreadFrom(r, t)
		}
	}
	if m.across = m.across[:0]; cap(m.across) > keptWork {
		m.across = nil
	}
}

// spreadFrom sends a task's dependents, lowest rank first, or notes where there was no room.
func (m *Machine) spreadFrom(r TaskRef, t *task) {
	next := m.scratch.dependents[:0]
	n := 0
	for e := t.dependents; e != 0 && n < maxSkipped; n++ {
		id, _, ct, link := m.consumerOf(e)
		if ct.state == TaskWaiting && ct.missing <= maxAcross {
			next = append(next, readyTask{ct.rank, id})
		}
		e = link.next
	}
	slices.SortFunc(next, func(x, y readyTask) int { return cmp.Or(cmp.Compare(x.rank, y.rank), cmp.Compare(x.task, y.task)) })
	m.scratch.dependents = next
	noted := false
	for _, c := range next {
		b, ct := m.at(c.task)
		if ct.state != TaskWaiting || !m.maySpread(b, ct) {
			continue // it may be there twice
		}
		if t.unfinished == 1 && m.mayFollow(b, ct, m.workers[t.worker-1]) {
			continue // it does so by itself, or waits in tails
		}
		w := m.chooseAcross(b, ct)
		switch {
		case w == nil:
		case m.roomAhead(w):
			m.send(c.task, b, ct, w)
		case !noted:
			// Once is enough: it is looked at with all its dependents. So an attempt is in one list at most.
			w.full = append(w.full, r)
			noted = true
		}
	}
}

// spreadAgain goes on where spreadFrom found no room, once there is a good deal of it: neither workers nor their peers should
// hear of one task at a time.
func (m *Machine) spreadAgain(w *worker) {
	slots := uint64(w.slots)
	if len(w.full) == 0 || uint64(w.ahead) >= slots+minAhead && (w.queuedMicros >= aheadMicros*slots/2 || w.ahead >= maxAhead/2) {
		return
	}
	m.across = append(m.across, w.full...)
	w.full = w.full[:0]
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

// chooseAcross picks the worker that could have the task done first, among those that make its inputs and the least loaded.
// A worker that has enough to run gets nothing: its tasks cover the way of a message.
func (m *Machine) chooseAcross(b *block, t *task) *worker {
	c := m.classes[t.class]
	from := m.feasible(c)
	edges := b.edgesOf(t)
	var best *worker
	var soonest float64
	m.stamp++
	look := func(w *worker) {
		if w.mark == m.stamp {
			return
		}
		w.mark = m.stamp
		if !w.awaits || w.usedSlots >= uint64(w.slots)+minAhead || !slices.Contains(from, w) || !m.memoryFits(w, b, t) {
			return
		}
		if f := m.behind(w, edges) + m.expectMicros(w, edges); best == nil || f < soonest {
			best, soonest = w, f
		}
	}
	for i := range edges {
		if _, p := m.at(edges[i].input); p.worker != 0 {
			look(m.workers[p.worker-1])
		}
	}
	if idle, _ := m.leastLoaded(from, c, 0, nil); idle != nil {
		look(idle)
	}
	return best
}

// behind is how long a task would wait at a worker when all its inputs are made, in microseconds: for what the worker was given
// behind the last of those that it makes itself. What lies before that is no reason to prefer another worker, since the task
// waits for it wherever it is; and how much of it there is says who has reported last, not who is ahead. Where the worker
// makes none of them, or has been given much since, it is the whole queue.
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
		if m.ops[p.op].outputBytes <= float64(m.config.InlineResultBytes) {
			latency = max(latency, wordMicros) // it comes with the word
			continue
		}
		r := m.rate(m.workers[p.worker-1].id, w.id)
		latency = max(latency, r.latencyMicros)
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
