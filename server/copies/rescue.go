package copies

import (
	"fmt"
	"maps"
	"math"
	"slices"
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
	// left counts the objects in Machine.rescuing that belong to this rescue.
	left int
}

// survivor is a worker that may have the dead worker's memory mapped.
type survivor struct {
	worker        ids.WorkerID
	bytesPerMicro float64
	// bytes are ordered and not yet answered, overhead included.
	bytes uint64
}

// rescuing is one object that survivors are to copy.
type rescuing struct {
	dead  ids.WorkerID
	bytes uint64
	// by is the index in rescue.survivors of the worker that is to copy the object. tried has a bit
	// for each survivor that was asked.
	by    int
	tried uint64
}

// rescueObjects orders the rescue of a lost worker's objects that are wanted and have no other
// replica or inline copy.
func (m *Machine) rescueObjects(ev WorkerLost) {
	r := m.newRescue(ev)
	if r == nil {
		return
	}
	m.rescues[r.dead] = r
	if m.config.RescueTimeout < 0 {
		return
	}
	for _, id := range m.tables.Objects(ev.Worker) {
		o, _ := m.tables.Object(id)
		if m.holders = m.tables.Holders(id, m.holders[:0]); !o.Wanted || o.Inline || len(m.holders) > 1 {
			continue
		}
		if s := (rescuing{dead: r.dead, bytes: o.Bytes}); m.ask(id, r, &s) {
			m.rescuing[id] = s
			r.left++
		}
	}
}

// newRescue prepares the rescue of a lost worker's objects. It returns nil if no registered worker
// survives.
func (m *Machine) newRescue(ev WorkerLost) *rescue {
	dead, _ := m.tables.Worker(ev.Worker)
	r := &rescue{dead: dead.ID, name: dead.Name}
	for _, id := range ev.Survivors {
		if _, known := m.tables.Worker(id); known && id != dead.ID && len(r.survivors) < maxSurvivors {
			r.survivors = append(r.survivors, survivor{worker: id, bytesPerMicro: m.tables.BytesPerMicro(dead.ID, id)})
		}
	}
	if len(r.survivors) == 0 {
		return nil
	}
	return r
}

// ask orders the object from the survivor that would finish the copy first, among those that were
// not asked yet: by rate, by the rescue work already ordered, and by free memory. It returns false
// if there is none.
func (m *Machine) ask(id ids.TaskID, r *rescue, s *rescuing) bool {
	best, soonest := -1, math.Inf(1)
	for i := range r.survivors {
		c := &r.survivors[i]
		w, known := m.tables.Worker(c.worker)
		if s.tried&(1<<i) != 0 || !known || w.State != WorkerStateActive || w.MemoryBytes > 0 && s.bytes > w.MemoryBytes {
			continue
		}
		micros := float64(c.bytes+s.bytes+rescueOverhead) / c.bytesPerMicro
		if used := w.ClaimedBytes + c.bytes + s.bytes; w.MemoryBytes > 0 && used > w.MemoryBytes {
			micros += float64(used-w.MemoryBytes) / (m.config.BytesPerSecond / 1e6)
		}
		if micros < soonest {
			best, soonest = i, micros
		}
	}
	if best < 0 {
		return false
	}
	s.by, s.tried = best, s.tried|1<<best
	r.survivors[best].bytes += s.bytes + rescueOverhead
	m.orderRescue(id, r, best)
	return true
}

func (m *Machine) orderRescue(id ids.TaskID, r *rescue, by int) {
	m.emit(Effect{Kind: EffectRescue, Worker: r.survivors[by].worker, Dead: r.dead, Object: id})
}

// passOn gives the orders that a lost worker had as a survivor to the next survivors.
func (m *Machine) passOn(lost ids.WorkerID) {
	for _, id := range m.orderedFrom(lost) {
		m.askNext(id)
	}
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
	m.wake(r.until, Wake{Kind: WakeRescue, Worker: r.dead})
}

// endRescue lets the survivors unmap the memory. REQUIRES: no object is left to copy.
func (m *Machine) endRescue(r *rescue) {
	delete(m.rescues, r.dead)
	for _, s := range r.survivors {
		if w, known := m.tables.Worker(s.worker); known && w.Reachable() {
			m.emit(Effect{Kind: EffectUnmap, Worker: s.worker, Dead: r.dead})
		}
	}
}

// endObjectRescue removes an object from its rescue. The rescue ends with its last object.
func (m *Machine) endObjectRescue(id ids.TaskID) {
	s := m.rescuing[id]
	delete(m.rescuing, id)
	r := m.rescues[s.dead]
	r.answered(s)
	if r.left--; r.left == 0 {
		m.endRescue(r)
	}
}

// answered ends the order to the survivor that was asked last.
func (r *rescue) answered(s rescuing) { r.survivors[s.by].bytes -= s.bytes + rescueOverhead }

// askNext asks the next survivor for an object. If there is none, it gives the object up.
func (m *Machine) askNext(id ids.TaskID) {
	s := m.rescuing[id]
	r, before := m.rescues[s.dead], s
	if !m.ask(id, r, &s) {
		m.giveUpRescue(id)
		return
	}
	r.answered(before)
	m.rescuing[id] = s
}

func (m *Machine) giveUpRescue(id ids.TaskID) {
	m.endObjectRescue(id)
	m.emit(Effect{Kind: EffectGiveUp, Object: id})
}

// rescueFailed handles a survivor's report that it could not copy an object. A report from a worker
// that is not the one asked last is late and dropped.
func (m *Machine) rescueFailed(ev RescueFailed) {
	s, ordered := m.rescuing[ev.Object]
	o, _ := m.tables.Object(ev.Object)
	if !ordered || s.dead != ev.Dead || m.rescues[s.dead].survivors[s.by].worker != ev.Worker || o.Generation != ev.Generation {
		m.totals.Stale++
		return
	}
	m.askNext(ev.Object)
}

// repeatOrders repeats the orders to a worker that is back after its connection broke, because it
// may have missed them.
func (m *Machine) repeatOrders(worker ids.WorkerID) {
	for _, id := range m.orderedFrom(worker) {
		s := m.rescuing[id]
		m.orderRescue(id, m.rescues[s.dead], s.by)
	}
}

// orderedFrom lists the objects that a worker is asked to copy.
func (m *Machine) orderedFrom(worker ids.WorkerID) (objects []ids.TaskID) {
	for _, id := range slices.Sorted(maps.Keys(m.rescuing)) {
		if s := m.rescuing[id]; m.rescues[s.dead].survivors[s.by].worker == worker {
			objects = append(objects, id)
		}
	}
	return objects
}

// rescueDue gives up the objects that were not copied before the deadline.
func (m *Machine) rescueDue(dead ids.WorkerID) {
	r := m.rescues[dead]
	if r == nil || r.until.After(m.now) {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(m.rescuing)) {
		if m.rescuing[id].dead == dead {
			m.giveUpRescue(id)
		}
	}
}

// ExplainRescue says for people which worker is to copy an object that is rescued.
func (m *Machine) ExplainRescue(id ids.TaskID, now time.Time) string {
	s := m.rescuing[id]
	r := m.rescues[s.dead]
	by := r.survivors[s.by].worker
	name := by.String()
	if w, known := m.tables.Worker(by); known {
		name = w.Name
	}
	return fmt.Sprintf("worker %s (%s) died and alone had it; %s (%s) copies it out of its memory; if nobody has within %s it is computed again",
		r.name, r.dead, name, by, max(r.until.Sub(now), 0).Round(time.Millisecond))
}
