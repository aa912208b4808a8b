package sched

import (
	"fmt"
	"math"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// The memory of a killed process keeps its content as long as other processes have it mapped. So a
// wanted object that only a dead worker had is first RESCUING. The scheduler asks one of the
// survivors, which may have the memory mapped, to copy the object and to report it as gained, in
// the same generation. If that survivor cannot do it, it says so, and the next one is asked. An
// object that has not been copied in time is lost, and computed again.
//
// Each survivor checks by itself that the process has ended. A worker that is alive and only cut
// off goes on writing to its memory, so nothing is copied from it.

const (
	// maxSurvivors bounds the survivors that are asked for the objects of one worker.
	maxSurvivors = 64
	// rescueOverhead is the cost of one order, in bytes, beside the bytes of the object.
	rescueOverhead = 4 << 10
	// rescueFactor bounds the time of a rescue, as a multiple of RescueTimeout, for any number of
	// bytes.
	rescueFactor = 5
)

// rescue is the state while survivors copy the objects of one dead worker.
type rescue struct {
	dead ids.WorkerID
	name string
	// until is the deadline. Objects that have not been copied by then are lost.
	until     time.Time
	survivors []survivor
	// left counts the tasks in Machine.rescuing that belong to this rescue.
	left int
}

// survivor is a worker that may have the dead worker's memory mapped.
type survivor struct {
	worker        ids.WorkerID
	bytesPerMicro float64
	// bytes are ordered and not yet answered, overhead included.
	bytes uint64
}

// rescuing is one object in RESCUING.
type rescuing struct {
	dead ids.WorkerID
	// by is the index in rescue.survivors of the worker that is to copy the object. tried has a bit
	// for each survivor that was asked.
	by    int
	tried uint64
}

// newRescue prepares the rescue of a lost worker's objects. It returns nil if no registered worker
// survives.
func (m *Machine) newRescue(dead *worker, survivors []ids.WorkerID) *rescue {
	r := &rescue{dead: dead.id, name: dead.name}
	for _, id := range survivors {
		if id != dead.id && m.workerOf(id) != nil && len(r.survivors) < maxSurvivors {
			r.survivors = append(r.survivors, survivor{worker: id, bytesPerMicro: m.rate(dead.id, id).bytesPerMicro})
		}
	}
	if len(r.survivors) == 0 {
		return nil
	}
	return r
}

// rescueObject starts the rescue of an object of the dead worker, if the object is wanted and has
// no other replica or inline copy. It returns false if no survivor may copy it.
func (m *Machine) rescueObject(id ids.TaskID, dead *worker, r *rescue) bool {
	b, t := m.at(id)
	if m.config.RescueTimeout < 0 || !t.wanted() || b.length(t.replicas) > 1 || b.inlineOf(uint64(id&blockMask)) != nil {
		return false
	}
	s := rescuing{dead: r.dead}
	if !m.ask(id, t, r, &s) {
		return false
	}
	dead.part(id, t)
	m.moveChanged(id)
	b.drop(&t.replicas, dead.slot)
	m.rescuing[id] = s
	r.left++
	m.withdraw(id, t, TaskRescuing)
	m.notify(id, b, t)
	return true
}

// ask orders the object from the survivor that would finish the copy first, among those that were
// not asked yet: by rate, by the rescue work already ordered, and by free memory. It returns false
// if there is none.
func (m *Machine) ask(id ids.TaskID, t *task, r *rescue, s *rescuing) bool {
	best, soonest := -1, math.Inf(1)
	for i := range r.survivors {
		c := &r.survivors[i]
		w := m.workerOf(c.worker)
		if s.tried&(1<<i) != 0 || w == nil || w.state != WorkerStateActive || w.memory > 0 && t.output > w.memory {
			continue
		}
		micros := float64(c.bytes+t.output+rescueOverhead) / c.bytesPerMicro
		if used := w.memoryUsed + w.fetchingBytes + c.bytes + t.output; w.memory > 0 && used > w.memory {
			micros += float64(used-w.memory) / (m.config.DefaultBytesPerSecond / 1e6)
		}
		if micros < soonest {
			best, soonest = i, micros
		}
	}
	if best < 0 {
		return false
	}
	s.by, s.tried = best, s.tried|1<<best
	r.survivors[best].bytes += t.output + rescueOverhead
	m.orderRescue(id, t, r, best)
	return true
}

func (m *Machine) orderRescue(id ids.TaskID, t *task, r *rescue, by int) {
	m.emit(Effect{Kind: EffectRescue, Worker: r.survivors[by].worker, Dead: r.dead, Task: id, Attempt: ids.Attempt(t.attempt)})
}

// startRescue sets the deadline for the ordered objects.
func (m *Machine) startRescue(r *rescue) {
	if r.left == 0 {
		m.endRescue(r)
		return
	}
	longest := 0.0
	for _, s := range r.survivors {
		longest = max(longest, float64(s.bytes)/s.bytesPerMicro)
	}
	limit := rescueFactor * m.config.RescueTimeout
	estimate := min(longest, float64(limit/time.Microsecond))
	r.until = m.now.Add(min(m.config.RescueTimeout+2*time.Duration(estimate)*time.Microsecond, limit))
	m.rescues[r.dead] = r
	m.arm(timer{at: r.until, kind: timerRescue, id: uint64(r.dead)})
}

// endRescue lets the survivors unmap the memory. REQUIRES: no object is left to copy.
func (m *Machine) endRescue(r *rescue) {
	delete(m.rescues, r.dead)
	for _, s := range r.survivors {
		if w := m.workerOf(s.worker); w != nil && w.reachable() {
			m.emit(Effect{Kind: EffectUnmap, Worker: s.worker, Dead: r.dead})
		}
	}
}

// endObjectRescue removes a task from the rescue. The rescue ends with its last task.
func (m *Machine) endObjectRescue(id ids.TaskID) {
	s := m.rescuing[id]
	delete(m.rescuing, id)
	r := m.rescues[s.dead]
	m.answered(id, r, &s)
	if r.left--; r.left == 0 {
		m.endRescue(r)
	}
}

// answered ends the order to the survivor that was asked last.
func (m *Machine) answered(id ids.TaskID, r *rescue, s *rescuing) {
	_, t := m.at(id)
	r.survivors[s.by].bytes -= t.output + rescueOverhead
}

// rescued records the copy of an object, by any worker that made one.
func (m *Machine) rescued(id ids.TaskID, b *block, t *task, w *worker) {
	m.endObjectRescue(id)
	m.forgetLostData(id)
	w.gain(id, t)
	b.push(&t.replicas, w.slot)
	m.totals.Rescued++
	m.setState(id, t, TaskSucceeded)
	m.notify(id, b, t)
	m.arrived(t)
	m.checkDrainsOf(id, b, t)
	m.askToKeep(id, b, t) // it may have had a copy already
}

// askNext asks the next survivor for an object. If there is none, it returns false: the task is
// then RELEASED, and the caller must call recover.
func (m *Machine) askNext(id ids.TaskID) bool {
	_, t := m.at(id)
	s := m.rescuing[id]
	r := m.rescues[s.dead]
	before := s
	if m.ask(id, t, r, &s) {
		m.answered(id, r, &before)
		m.rescuing[id] = s
		return true
	}
	m.endObjectRescue(id)
	m.setState(id, t, TaskReleased)
	return false
}

// rescueFailed handles a survivor's report that it could not copy objects. A report from a worker
// that is not the one asked last is late and dropped.
func (m *Machine) rescueFailed(ev RescueFailed) {
	var lost []ids.TaskID
	for _, o := range ev.Objects {
		s, ok := m.rescuing[o.Task]
		_, t := m.lookup(o.Task)
		if !ok || s.dead != ev.Dead || m.rescues[s.dead].survivors[s.by].worker != ev.Worker || t.attempt != uint32(o.Generation) {
			m.totals.Stale++
			continue
		}
		if !m.askNext(o.Task) {
			lost = append(lost, o.Task)
		}
	}
	m.recover(lost)
}

// survivorLost passes on the orders of a survivor that is itself lost. It returns the objects that
// are lost with it.
func (m *Machine) survivorLost(w *worker) (lost []ids.TaskID) {
	for _, id := range m.orderedFrom(w) {
		if !m.askNext(id) {
			lost = append(lost, id)
		}
	}
	return lost
}

// repeatOrders repeats the orders to a worker that is back after its connection broke, because it
// may have missed them.
func (m *Machine) repeatOrders(w *worker) {
	for _, id := range m.orderedFrom(w) {
		_, t := m.at(id)
		s := m.rescuing[id]
		m.orderRescue(id, t, m.rescues[s.dead], s.by)
	}
}

// orderedFrom lists the objects that a worker is asked to copy.
func (m *Machine) orderedFrom(w *worker) (tasks []ids.TaskID) {
	for _, id := range sortedKeys(m.rescuing) {
		if s := m.rescuing[id]; m.rescues[s.dead].survivors[s.by].worker == w.id {
			tasks = append(tasks, id)
		}
	}
	return tasks
}

// rescueDue gives up the objects that were not copied before the deadline.
func (m *Machine) rescueDue(dead ids.WorkerID) {
	r := m.rescues[dead]
	if r == nil || r.until.After(m.now) {
		return
	}
	var lost []ids.TaskID
	for _, id := range sortedKeys(m.rescuing) {
		if m.rescuing[id].dead != dead {
			continue
		}
		_, t := m.at(id)
		m.endObjectRescue(id)
		m.setState(id, t, TaskReleased)
		lost = append(lost, id)
	}
	m.recover(lost)
}

func (m *Machine) explainRescue(id ids.TaskID, now time.Time) string {
	s := m.rescuing[id]
	r := m.rescues[s.dead]
	by := r.survivors[s.by].worker
	name := by.String()
	if w := m.workerOf(by); w != nil {
		name = w.name
	}
	return fmt.Sprintf("worker %s (%s) died and alone had it; %s (%s) copies it out of its memory; if nobody has within %s it is computed again",
		r.name, r.dead, name, by, max(r.until.Sub(now), 0).Round(time.Millisecond))
}

// rescues checks the state of rescues. found is the number of tasks in RESCUING.
func (k *checker) rescues(found int) {
	m := k.m
	left := make(map[ids.WorkerID]int)
	bytes := make(map[ids.WorkerID][]uint64)
	if found != len(m.rescuing) {
		k.fail("%d tasks are RESCUING, %d are recorded", found, len(m.rescuing))
	}
	for _, id := range sortedKeys(m.rescuing) {
		s := m.rescuing[id]
		_, t := m.lookup(id)
		r := m.rescues[s.dead]
		if t == nil || t.state != TaskRescuing || r == nil || s.tried&(1<<s.by) == 0 {
			k.fail("%s is rescued from %s and is not RESCUING", id, s.dead)
			continue
		}
		left[s.dead]++
		if bytes[s.dead] == nil {
			bytes[s.dead] = make([]uint64, len(r.survivors))
		}
		bytes[s.dead][s.by] += t.output + rescueOverhead
	}
	for _, dead := range sortedKeys(m.rescues) {
		r := m.rescues[dead]
		if r.left == 0 || r.left != left[dead] || m.workerOf(dead) != nil {
			k.fail("%d objects of %s are to be rescued, not %d", left[dead], dead, r.left)
			continue
		}
		for i, s := range r.survivors {
			if s.bytes != bytes[dead][i] {
				k.fail("%s is to copy %d bytes of %s, not %d", s.worker, bytes[dead][i], dead, s.bytes)
			}
		}
	}
}
