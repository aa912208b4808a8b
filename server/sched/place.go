package sched

import (
	"math"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

const (
	// queueMicros is the work, by learned run times, that a worker gets in advance for each slot,
	// to cover the round trip to the scheduler.
	queueMicros = 5000
	// minQueued and maxQueued bound the number of tasks in advance.
	minQueued, maxQueued = 2, 1024
)

// room reports whether the worker should get another task of the class now. extra is the number of
// tasks that it may have beyond the usual number; see extraRoom.
func (m *Machine) room(w *worker, c *class, extra uint64) bool {
	return m.queueRoom(w, extra) && (len(c.options.Resources) == 0 || w.hasFree(c))
}

// queueRoom is room for tasks that need no resources.
func (m *Machine) queueRoom(w *worker, extra uint64) bool {
	slots := uint64(w.slots) + extra
	if a := m.config.QueueDepth; a > 0 {
		return w.usedSlots < slots+uint64(a)
	}
	return w.usedSlots < slots+minQueued || w.queuedMicros < queueMicros*slots && w.usedSlots < slots+maxQueued
}

func (m *Machine) anyRoom(c *class, among []*worker, extra uint64) bool {
	return slices.ContainsFunc(among, func(w *worker) bool { return m.room(w, c, extra) })
}

// holderRoom is room for a worker that holds inputs of the task: its queue may be somewhat longer.
func (m *Machine) holderRoom(w *worker, c *class) bool {
	slots := uint64(w.slots)
	if w.usedSlots >= 2*slots+8 && (w.queuedMicros >= 4*queueMicros*slots || w.usedSlots >= slots+2*maxQueued) {
		return false
	}
	return len(c.options.Resources) == 0 || w.hasFree(c)
}

// leastLoaded picks the worker with the shortest queue among those with room; equal ones take
// turns. avoid is picked only if no other worker has room. open counts the workers with room;
// extra is that of room.
func (m *Machine) leastLoaded(from []*worker, c *class, extra uint64, avoid ids.WorkerID, fits func(*worker) bool) (best *worker, open int) {
	n := len(from)
	m.rotate++
	if m.rotate >= n {
		m.rotate = 0
	}
	least := math.Inf(1)
	for i := range n {
		k := i + m.rotate
		if k >= n {
			k -= n
		}
		w := from[k]
		if !m.room(w, c, extra) || fits != nil && !fits(w) {
			continue
		}
		open++
		load := w.load()
		if w.id == avoid {
			load += 1e12
		}
		if load < least {
			best, least = w, load
		}
	}
	return best, open
}

// maxClasses bounds the classes that one dispatch considers without finding room. With at most that
// many classes, tasks are sent in the order of their ranks. With more, successive dispatches cover
// all classes in rounds. There may be one class per task, because each different amount of a
// resource makes a class.
const maxClasses = 256

// dispatchDelay is the delay after which a search through very many classes continues if no event
// comes before.
const dispatchDelay = time.Millisecond

// dispatch sends ready tasks to workers, lowest rank first, until all workers are full or no ready
// task is left.
func (m *Machine) dispatch() {
	if m.ready == 0 {
		return
	}
	l := &m.classQueue
	if l.version != m.workerVersion || len(l.waiting) == 0 || l.round <= 0 || len(l.waiting)+len(l.passed) <= maxClasses {
		m.newRound()
	}
	m.stamp++
	stamp := m.stamp
	for visits := 0; m.ready > 0 && len(l.waiting) > 0; {
		c := l.waiting[0]
		if c.ready == 0 {
			l.remove(c)
			continue
		}
		if visits == maxClasses {
			m.dispatchLater()
			return
		}
		r, _, t := m.head(c)
		if t != nil && r.rank > c.lowest {
			c.lowest = r.rank
			l.down(0)
			continue
		}
		if t != nil {
			m.fill(c, m.second(), stamp)
		}
		if t == nil || c.blocked == stamp {
			visits++
			m.reads.classes++
			l.round--
			l.pass(c)
		}
	}
	l.round = 0
}

// newRound starts a new round: all classes will be considered again.
func (m *Machine) newRound() {
	l := &m.classQueue
	if l.version != m.workerVersion {
		l.version = m.workerVersion
		for len(l.waiting) > 0 {
			l.pass(l.waiting[len(l.waiting)-1])
		}
		for _, c := range l.passed {
			m.feasible(c)
		}
	}
	for _, c := range l.passed {
		l.push(c)
	}
	clear(l.passed)
	l.passed = l.passed[:0]
	l.round = 2*len(l.waiting) + maxClasses
}

// dispatchLater sets a timer to continue the search through the classes. It sets none if all
// workers are full, because then the next report of a worker continues it.
func (m *Machine) dispatchLater() {
	open := func(w *worker) bool { return w.state == WorkerStateActive && m.queueRoom(w, 0) }
	if !m.dispatchArmed && slices.ContainsFunc(m.order, open) {
		m.dispatchArmed = true
		m.arm(timer{at: m.now.Add(dispatchDelay), kind: timerDispatch})
	}
}

// second returns the lowest rank among the first tasks of all classes but the first.
func (m *Machine) second() uint64 {
	l := &m.classQueue
	lowest := uint64(math.MaxUint64)
	for _, i := range [...]int{1, 2} {
		for i < len(l.waiting) {
			c := l.waiting[i]
			r, _, t := m.head(c)
			switch {
			case c.ready == 0:
				l.remove(c)
				continue
			case t == nil:
				l.pass(c)
				continue
			case r.rank > c.lowest:
				c.lowest = r.rank
				l.down(i)
				continue
			}
			lowest = min(lowest, r.rank)
			break
		}
	}
	return lowest
}

// fill assigns tasks of a class while their rank is at most limit. It marks the class as blocked if
// no worker has room.
func (m *Machine) fill(c *class, limit, stamp uint64) {
	from := m.feasible(c)
	if len(from) == 0 {
		c.blocked = stamp
		if c.options.NoWait {
			m.failUnfit(c)
		}
		return
	}
	var aside []readyTask
	share := 0
	for c.ready > 0 {
		r, b, t := m.head(c)
		if t == nil || r.rank > limit || len(aside) >= maxAside {
			break
		}
		extra := extraRoom(r.rank)
		if t.inputs == 0 && t.flags&flagTrouble == 0 && m.outputBytes(t) == 0 {
			w, open := m.leastLoaded(from, c, extra, 0, nil)
			if w == nil {
				c.blocked = stamp
				break
			}
			if share == 0 {
				share = max(1, c.ready/open)
			}
			m.batch(c, w, extra, limit, share)
			continue
		}
		if c.full == r.task && c.fullVersion == m.workerVersion && !m.anyRoom(c, from, extra) {
			c.blocked = stamp
			break
		}
		w, verdict := m.choose(c, from, extra, r.task, b, t)
		switch verdict {
		case placeHere:
			c.queue.pop()
			c.full = 0
			m.assign(r.task, b, t, w)
		case placeLater:
			c.queue.pop()
			aside = append(aside, r)
		case placeNowhere:
			c.queue.pop()
			if c.options.NoWait {
				m.dequeue(r.task, t)
				m.end(r.task, b, t, TaskFailed, m.unfitError(r.task, b, t))
			} else {
				c.parked = append(c.parked, r)
			}
		case placeUnreachable:
			c.queue.pop()
			m.dequeue(r.task, t)
			m.end(r.task, b, t, TaskFailed, m.unreachableError(r.task, b, t))
		case placeFull:
			c.blocked = stamp
			c.full, c.fullVersion = r.task, m.workerVersion
		}
		if verdict == placeFull {
			break
		}
	}
	if len(aside) > 0 {
		c.blocked = stamp
		if c.ready > 0 {
			for _, r := range aside {
				c.queue.push(r)
			}
		}
	}
}

// maxAside bounds the tasks that one call of fill passes over because their memory does not fit the
// workers with room.
const maxAside = 16

// batch gives one worker up to n consecutive ready tasks without inputs. Tasks with neighbouring
// ranks are likely to be needed together. extra is that of room.
func (m *Machine) batch(c *class, w *worker, extra, limit uint64, n int) {
	for ; n > 0 && m.room(w, c, extra); n-- {
		r, b, t := m.head(c)
		if t == nil || r.rank > limit || t.inputs != 0 || t.flags&flagTrouble != 0 || m.outputBytes(t) != 0 {
			return
		}
		c.queue.pop()
		m.assign(r.task, b, t, w)
	}
}

// outputBytes is the expected size of the object: declared, or learned if above 64 KiB; otherwise
// 0.
func (m *Machine) outputBytes(t *task) uint64 {
	if e := m.options[t.options].ExpectedOutputBytes; e > 0 {
		return e
	}
	if o := &m.ops[t.op]; o.samples > 0 && o.outputBytes > 64<<10 {
		return uint64(o.outputBytes)
	}
	return 0
}

// placement is the verdict of choose.
type placement uint8

const (
	placeHere placement = iota + 1
	// placeFull: no worker of the class has room.
	placeFull
	// placeLater: workers have room, but at none of them the task's memory fits and its inputs can
	// be fetched.
	placeLater
	// placeNowhere: the task's memory fits no worker of the class.
	placeNowhere
	// placeUnreachable: no worker of the class could fetch the inputs.
	placeUnreachable
)

const (
	// maxCandidates bounds the holders of inputs that are compared for one task.
	maxCandidates = 8
	// maxCounted bounds the inputs whose replicas are read.
	maxCounted = 64
)

// choose picks the worker with the earliest estimated finish among the holders of the task's inputs
// and the least loaded worker. The inputs and the declared size of the result must fit into its
// memory. The learned size of the result is only a mean, so it affects the estimate only. extra is
// that of room.
func (m *Machine) choose(c *class, from []*worker, extra uint64, id ids.TaskID, b *block, t *task) (*worker, placement) {
	m.stamp++
	stamp := m.stamp
	edges := b.edgesOf(t)
	total := m.inputBytes(id, edges)
	candidates := m.scratch.candidates[:0]
	for i := range edges[:min(len(edges), maxCounted)] {
		pb, p := m.at(edges[i].input)
		for l := p.replicas; l != 0; l = pb.links[l].next {
			w := m.workers[pb.links[l].value]
			if w.mark != stamp {
				w.mark, w.present = stamp, 0
				candidates = append(candidates, w)
			}
			w.present += edges[i].bytesOf(p)
		}
	}
	need := total + m.outputBytes(t)
	least := total + m.options[t.options].ExpectedOutputBytes
	fits := func(w *worker) bool { return w.memory == 0 || least <= w.memory }
	limited := false
	if least > 0 {
		some := false
		for _, w := range from {
			if fits(w) {
				some = true
			} else {
				limited = true
			}
		}
		if !some {
			m.scratch.candidates = candidates
			return nil, placeNowhere
		}
	}
	some := from
	if from = m.usable(c, some, id, b, t, fits); !slices.ContainsFunc(from, fits) {
		m.scratch.candidates = candidates
		return nil, placeUnreachable
	}
	var avoid ids.WorkerID
	if tr := m.troubleIf(id, t); tr != nil {
		avoid = tr.avoid
	}
	var check func(*worker) bool
	if limited {
		check = fits
	}
	idle, open := m.leastLoaded(from, c, extra, avoid, check)
	if idle == nil {
		m.scratch.candidates = candidates
		if len(from) != len(some) || from[0] != some[0] {
			return nil, placeLater
		}
		if limited && open == 0 {
			if any, _ := m.leastLoaded(from, c, extra, 0, nil); any != nil {
				return nil, placeLater
			}
		}
		return nil, placeFull
	}
	if len(candidates) > maxCandidates {
		slices.SortStableFunc(candidates, func(x, y *worker) int {
			switch {
			case x.present > y.present:
				return -1
			case x.present < y.present:
				return 1
			}
			return int(int64(x.id) - int64(y.id))
		})
		candidates = candidates[:maxCandidates]
	}
	m.scratch.candidates = candidates
	if idle.mark != stamp {
		idle.mark, idle.present = stamp, 0
	}
	best := idle
	soonest := m.finishMicros(idle, edges, need)
	if idle.id == avoid {
		soonest += 1e12
	}
	for _, w := range candidates {
		if w == idle || w.state != WorkerStateActive || w.id == avoid || !slices.Contains(from, w) || !fits(w) ||
			!m.room(w, c, extra) && !m.holderRoom(w, c) {
			continue
		}
		if f := m.finishMicros(w, edges, need); f < soonest || f == soonest && w.present > best.present {
			best, soonest = w, f
		}
	}
	return best, placeHere
}

// inputBytes is the total size of a ready task's inputs. For a task with many inputs the sum is
// cached while the task is ready.
func (m *Machine) inputBytes(id ids.TaskID, edges []edge) (total uint64) {
	if len(edges) > maxCounted {
		if known, ok := m.wide[id]; ok {
			return known
		}
	}
	m.reads.inputs += uint64(len(edges))
	for i := range edges {
		_, p := m.at(edges[i].input)
		total += edges[i].bytesOf(p)
	}
	if len(edges) > maxCounted {
		m.wide[id] = total
	}
	return total
}

// finishMicros estimates when the worker could finish a task, without the task's own run time: the
// end of the queue, the time to fetch the inputs that are neither there nor on their way, and the
// time to spill if the task does not fit into the free memory.
func (m *Machine) finishMicros(w *worker, edges []edge, need uint64) float64 {
	_, fetch := m.fetchMicros(w, edges)
	queue := w.load()
	f := max(queue, fetch) + min(queue, fetch)/4
	if w.memory > 0 && w.memoryUsed+need > w.memory {
		// Spilling costs about the same as the slowest transfer.
		f += float64(w.memoryUsed+need-w.memory) / (m.config.DefaultBytesPerSecond / 1e6)
	}
	return f
}

// fetchMicros estimates the input bytes that the worker lacks, and the time to fetch them after the
// fetches already under way. The load of the senders needs no extra term: the rates were measured
// on real fetches and include it.
func (m *Machine) fetchMicros(w *worker, edges []edge) (missing uint64, micros float64) {
	var latency, fastest float64
	for i := range edges {
		id := edges[i].input
		pb, p := m.at(id)
		if !m.lacks(w, id, pb, p) {
			continue
		}
		bytes := edges[i].bytesOf(p)
		missing += bytes
		if _, best := m.cheapest(w, pb, p); best.bytesPerMicro > 0 {
			micros += float64(bytes) / best.bytesPerMicro
			latency = max(latency, best.latencyMicros)
			fastest = max(fastest, best.bytesPerMicro)
		}
	}
	if fastest > 0 {
		micros += float64(w.fetchingBytes) / fastest
	}
	return missing, micros + latency
}

// lacks reports whether a worker would have to fetch an input that exists.
func (m *Machine) lacks(w *worker, id ids.TaskID, pb *block, p *task) bool {
	return !w.objects.has(id) && p.state == TaskSucceeded && !w.fetching.has(id) && pb.inlineOf(uint64(id&blockMask)) == nil
}

// cheapest returns the holder from which a worker would get an object fastest, and the rate between
// them; 0 if the object has no holder.
func (m *Machine) cheapest(w *worker, pb *block, p *task) (from ids.WorkerID, best rate) {
	for l := p.replicas; l != 0; l = pb.links[l].next {
		holder := m.workers[pb.links[l].value].id
		if r := m.rate(holder, w.id); from == 0 || r.bytesPerMicro > best.bytesPerMicro {
			from, best = holder, r
		}
		if len(m.rates) == 0 {
			break // without measurements all rates are equal
		}
	}
	return from, best
}

// assign sends a ready task to a worker as a new attempt, and pre-assigns its dependents where
// possible.
func (m *Machine) assign(id ids.TaskID, b *block, t *task, w *worker) {
	m.dequeue(id, t)
	m.send(id, b, t, w)
	m.preassign(id, t, w)
}
