package sched

import (
	"fmt"
	"math"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// The memory of a process that was killed stays what it was as long as other processes have it mapped. So wanted objects
// that only a dead worker had are RESCUING at first: each is ordered from one of the survivors that may have the memory
// mapped, which copies it and reports it as gained, in the same generation. Who cannot says so, and the next one is asked.
// What nobody has copied in time is lost, and computed again.
//
// A survivor finds out by itself that the process has ended. One that lives and is only cut off goes on writing to its
// memory: of that one nothing is taken.

const (
	// maxSurvivors bounds those that are asked for the objects of one worker.
	maxSurvivors = 64
	// rescueOverhead stands for what an order costs beside its bytes.
	rescueOverhead = 4 << 10
	// rescueFactor bounds the time for a rescue, as a multiple of RescueTimeout, however much there is to be copied.
	rescueFactor = 5
)

// rescue is under way while objects of one dead worker are being copied by others.
type rescue struct {
	dead ids.WorkerID
	name string
	// until is when what was not copied is given up.
	until     time.Time
	survivors []survivor
	// left counts the tasks in Machine.saving that are ordered from the survivors.
	left int
}

// survivor is a worker that may have the memory mapped.
type survivor struct {
	worker        ids.WorkerID
	bytesPerMicro float64
	// bytes are those ordered and not answered, with the overhead.
	bytes uint64
}

// saving is one object in RESCUING.
type saving struct {
	dead ids.WorkerID
	// by and tried index rescue.survivors: who is to copy it, and as bits all who were asked.
	by    int
	tried uint64
}

// newRescue prepares for the loss of a worker. It is nil if nobody survives who could help.
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

// save has an object of the dead copied, if it is wanted and nobody else has it, and says whether somebody may do so.
func (m *Machine) save(id ids.TaskID, dead *worker, r *rescue) bool {
	b, t := m.at(id)
	if m.config.RescueTimeout < 0 || !t.wanted() || b.length(t.replicas) > 1 || b.inlineOf(uint64(id&blockMask)) != nil {
		return false
	}
	s := saving{dead: r.dead}
	if !m.ask(id, t, r, &s) {
		return false
	}
	dead.objects.remove(id)
	b.drop(&t.replicas, dead.slot)
	m.saving[id] = s
	r.left++
	m.withdraw(id, t, TaskRescuing)
	m.notify(id, b, t)
	return true
}

// ask orders the object from the survivor that will have copied it first, of those that were not asked yet: the
// fastest, the least busy with the rescue, the one with free memory.
func (m *Machine) ask(id ids.TaskID, t *task, r *rescue, s *saving) bool {
	best, soonest := -1, math.Inf(1)
	for i := range r.survivors {
		c := &r.survivors[i]
		w := m.workerOf(c.worker)
		if s.tried&(1<<i) != 0 || w == nil || w.state != WorkerStateActive || w.memory > 0 && t.output > w.memory {
			continue
		}
		micros := float64(c.bytes+t.output+rescueOverhead) / c.bytesPerMicro
		if used := w.memoryUsed + w.comingBytes + c.bytes + t.output; w.memory > 0 && used > w.memory {
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
	m.tellRescue(id, t, r, best)
	return true
}

func (m *Machine) tellRescue(id ids.TaskID, t *task, r *rescue, by int) {
	m.emit(Effect{Kind: EffectRescue, Worker: r.survivors[by].worker, Dead: r.dead, Task: id, Attempt: ids.Attempt(t.attempt)})
}

// startRescue sets the time for what was ordered.
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

// endRescue lets the survivors unmap the memory. REQUIRES: nothing is left.
func (m *Machine) endRescue(r *rescue) {
	delete(m.rescues, r.dead)
	for _, s := range r.survivors {
		if w := m.workerOf(s.worker); w != nil && w.reachable() {
			m.emit(Effect{Kind: EffectUnmap, Worker: s.worker, Dead: r.dead})
		}
	}
}

// saved takes a task out of the books of rescues.
func (m *Machine) saved(id ids.TaskID) {
	s := m.saving[id]
	delete(m.saving, id)
	r := m.rescues[s.dead]
	m.answered(id, r, &s)
	if r.left--; r.left == 0 {
		m.endRescue(r)
	}
}

// answered ends the order to the survivor that was asked last.
func (m *Machine) answered(id ids.TaskID, r *rescue, s *saving) {
	_, t := m.at(id)
	r.survivors[s.by].bytes -= t.output + rescueOverhead
}

// rescued enters the copy of an object, whoever made it.
func (m *Machine) rescued(id ids.TaskID, b *block, t *task, w *worker) {
	m.saved(id)
	m.found(id)
	w.objects.add(id)
	b.push(&t.replicas, w.slot)
	m.totals.Rescued++
	m.setState(id, t, TaskSucceeded)
	m.notify(id, b, t)
	m.arrived(t)
}

// passOn asks the next survivor for an object, and says whether there is one. If not, the task is RELEASED, and recover must
// be called.
func (m *Machine) passOn(id ids.TaskID) bool {
	_, t := m.at(id)
	s := m.saving[id]
	r := m.rescues[s.dead]
	before := s
	if m.ask(id, t, r, &s) {
		m.answered(id, r, &before)
		m.saving[id] = s
		return true
	}
	m.saved(id)
	m.setState(id, t, TaskReleased)
	return false
}

// rescueFailed takes in what a survivor could not copy. What it was not asked for, or not last, is late.
func (m *Machine) rescueFailed(ev RescueFailed) {
	var lost []ids.TaskID
	for _, o := range ev.Objects {
		s, ok := m.saving[o.Task]
		_, t := m.lookup(o.Task)
		if !ok || s.dead != ev.Dead || m.rescues[s.dead].survivors[s.by].worker != ev.Worker || t.attempt != uint32(o.Generation) {
			m.totals.Stale++
			continue
		}
		if !m.passOn(o.Task) {
			lost = append(lost, o.Task)
		}
	}
	m.recover(lost)
}

// deserted passes on what a worker that is lost was to copy.
func (m *Machine) deserted(w *worker) (lost []ids.TaskID) {
	for _, id := range m.orderedFrom(w) {
		if !m.passOn(id) {
			lost = append(lost, id)
		}
	}
	return lost
}

// remind repeats what a worker was asked for, that may not have heard it: its stream broke and it is back.
func (m *Machine) remind(w *worker) {
	for _, id := range m.orderedFrom(w) {
		_, t := m.at(id)
		s := m.saving[id]
		m.tellRescue(id, t, m.rescues[s.dead], s.by)
	}
}

// orderedFrom lists what a worker is to copy.
func (m *Machine) orderedFrom(w *worker) (tasks []ids.TaskID) {
	for _, id := range sortedKeys(m.saving) {
		if s := m.saving[id]; m.rescues[s.dead].survivors[s.by].worker == w.id {
			tasks = append(tasks, id)
		}
	}
	return tasks
}

// rescueDue gives up what was not copied in time.
func (m *Machine) rescueDue(dead ids.WorkerID) {
	r := m.rescues[dead]
	if r == nil || r.until.After(m.now) {
		return
	}
	var lost []ids.TaskID
	for _, id := range sortedKeys(m.saving) {
		if m.saving[id].dead != dead {
			continue
		}
		_, t := m.at(id)
		m.saved(id)
		m.setState(id, t, TaskReleased)
		lost = append(lost, id)
	}
	m.recover(lost)
}

func (m *Machine) explainRescue(id ids.TaskID, now time.Time) string {
	s := m.saving[id]
	r := m.rescues[s.dead]
	by := r.survivors[s.by].worker
	name := by.String()
	if w := m.workerOf(by); w != nil {
		name = w.name
	}
	return fmt.Sprintf("worker %s (%s) died and alone had it; %s (%s) copies it out of its memory; if nobody has within %s it is computed again",
		r.name, r.dead, name, by, max(r.until.Sub(now), 0).Round(time.Millisecond))
}

// rescues checks the books of rescues.
func (k *checker) rescues(found int) {
	m := k.m
	left := make(map[ids.WorkerID]int)
	bytes := make(map[ids.WorkerID][]uint64)
	if found != len(m.saving) {
		k.fail("%d tasks are RESCUING, %d are in the books", found, len(m.saving))
	}
	for _, id := range sortedKeys(m.saving) {
		s := m.saving[id]
		_, t := m.lookup(id)
		r := m.rescues[s.dead]
		if t == nil || t.state != TaskRescuing || r == nil || s.tried&(1<<s.by) == 0 {
			k.fail("%s is saved from %s and is not RESCUING", id, s.dead)
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
