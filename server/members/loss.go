package members

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
)

// loss is the reason why a worker is lost.
type loss struct {
	cause string
	// left: it has ended by itself, in an orderly way.
	left bool
	// death is recorded; nil: the worker may live on, or has left.
	death *Death
	// stop is the reason why it must end its process, if it still runs; empty: it may register
	// anew.
	stop string
	// calls says which functions were running.
	calls sched.Calls
}

// lose ends a membership.
func (m *Machine) lose(w *worker, why loss) {
	name := w.seen.Worker.Name
	m.emit(Effect{Kind: EffectLost, Worker: w.id, Cause: why.cause, Left: why.left, Died: why.death != nil})
	m.remove(w)
	if d := why.death; d != nil {
		d.Incarnation = cmp.Or(d.Incarnation, w.seen.Worker.Incarnation)
		d.Cause = cmp.Or(d.Cause, why.cause)
		d.MemoryUsedBytes = cmp.Or(d.MemoryUsedBytes, w.memoryUsedBytes)
		m.record(name, *d)
	}
	if w.session != 0 {
		m.emit(Effect{Kind: EffectEnded, Session: w.session, Stop: why.stop, Reregister: !why.left && why.stop == ""})
	}
	d := cmp.Or(why.death, &Death{Reaped: true})
	var survivors []ids.WorkerID
	// A worker that left in an orderly way lives a little longer. The memory of a failed device
	// must not be read.
	if !why.left && !d.DeviceFault {
		survivors = m.bury(w)
	}
	m.schedule(sched.WorkerLost{
		Worker: w.id, Cause: why.cause, Outside: fromOutside(d), Killed: d.Signal == "SIGKILL", Gone: d.Reaped, Left: why.left,
		DeviceFault: d.DeviceFault, Survivors: survivors, Calls: why.calls,
	})
	m.tellOf(w, Peer{Worker: w.id, Name: name}, survivors)
}

func (m *Machine) remove(w *worker) {
	if i, found := m.find(w.id); found {
		m.all = slices.Delete(m.all, i, i+1)
	}
	if name := w.seen.Worker.Name; m.byName[name] == w {
		delete(m.byName, name)
	}
	delete(m.bySession, w.session)
}

// fromOutside reports whether a worker's end is probably not caused by its tasks: an orderly exit,
// a broken connection, or SIGKILL without an out-of-memory kill.
func fromOutside(d *Death) bool {
	return !d.OutOfMemory && (d.Signal == "SIGKILL" || d.Signal == "" && d.ExitCode <= 0)
}

// died records how an incarnation ended, and ends its membership at once.
func (m *Machine) died(event Died) {
	death := event.Death
	death.Reaped = true
	death.Cause = cmp.Or(death.Cause, "its supervisor saw it end")
	if w := m.byName[event.Name]; w != nil && (death.Incarnation == "" || death.Incarnation == w.seen.Worker.Incarnation) {
		m.lose(w, loss{cause: death.Cause, death: &death, calls: event.Calls, stop: "this incarnation was declared dead: " + death.Cause})
		return
	}
	m.record(event.Name, death)
	if death.Incarnation != "" {
		m.schedule(sched.WorkerEnded{Incarnation: death.Incarnation, Cause: death.Cause, Killed: death.Signal == "SIGKILL" && !death.OutOfMemory, Calls: event.Calls})
	}
}

// silent ends the membership of a worker whose lease or grace is over.
func (m *Machine) silent(w *worker) {
	cause := "connection lost"
	if w.session != 0 {
		cause = fmt.Sprintf("no message for %v", m.config.Lease)
	}
	m.lose(w, loss{cause: cause, death: &Death{}})
}
