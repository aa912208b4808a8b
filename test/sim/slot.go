package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/worker/lifecycle"
)

// dataGeneration is the generation of scattered data.
const dataGeneration ids.Attempt = 1

func encode(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }

func decode(b []byte) (uint64, bool) {
	if len(b) != 8 {
		return 0, false
	}
	return binary.LittleEndian.Uint64(b), true
}

type slotKey struct {
	runner string
	index  int
}

// slot is an execution slot of a worker: it runs its jobs one after the other.
type slot struct{ jobs []*job }

// startRun puts an attempt into its slot.
func (p *process) startRun(e lifecycle.StartRun) {
	j := p.jobs[e.Ref]
	if j == nil || j.slot != nil {
		p.w.fail([]ids.TaskID{e.Ref.Task}, "worker %s: %s is started and is unknown or running", p.host.name, e.Ref)
	}
	if j.inputs == nil { // all came with the assignment
		j.inputs = p.inlineInputs(j.assignment)
	}
	key := slotKey{e.Runner, e.Slot}
	l := p.slots[key]
	if l == nil {
		l = &slot{}
		p.slots[key] = l
	}
	j.slot, j.memory, j.begun = l, e.Reservation, false
	j.runs++
	l.jobs = append(l.jobs, j)
	p.runNext(l)
}

func (p *process) leaveSlot(j *job) {
	l := j.slot
	j.slot, j.begun = nil, false
	j.runs++
	l.jobs = slices.DeleteFunc(l.jobs, func(o *job) bool { return o == j })
	p.runNext(l)
}

// runNext starts the first attempt of a slot, unless it has started.
func (p *process) runNext(l *slot) {
	if len(l.jobs) == 0 || l.jobs[0].begun {
		return
	}
	w, j := p.w, l.jobs[0]
	j.begun, j.began = true, w.now
	w.counts.runs++
	if !p.allocateResult(j) {
		p.leaveSlot(j)
		p.push(lifecycle.NoRoom{Ref: j.ref, Bytes: []uint64{j.spec.bytes}})
		p.stepAll()
		return
	}
	p.readInputs(j)
	run := j.runs
	if j.spec.kind == hangs {
		p.after(j.timeout, func() {
			if j.runs == run {
				p.runEnded(j, lifecycle.Failed, "TASK_TIMEOUT")
			}
		})
		return
	}
	if runnerOf(j.spec.op) != "native" && w.fault(w.plan.blocks) {
		j.rest = j.spec.run / 2
		p.after(j.spec.run-j.rest, func() {
			if j.runs == run {
				p.waitForTasks(j)
			}
		})
		return
	}
	p.after(j.spec.run, func() {
		if j.runs == run {
			p.endRun(j)
		}
	})
}

// waitForTasks lets a function wait for other tasks. It goes on after that, or ends in the middle
// of its wait.
func (p *process) waitForTasks(j *job) {
	w, run := p.w, j.runs
	w.counts.blocks++
	secedes := w.chance(0.1)
	p.push(lifecycle.Blocked{Ref: j.ref})
	p.stepAll()
	p.after(w.between(0, 50*time.Millisecond), func() {
		switch {
		case j.runs != run:
		case secedes:
			p.endRun(j)
		default:
			p.push(lifecycle.Unblocked{Ref: j.ref})
			p.stepAll()
		}
	})
}

// resume lets a function go on that has waited.
func (p *process) resume(ref lifecycle.Ref) {
	j := p.jobs[ref]
	if j == nil || !j.begun {
		p.w.fail([]ids.TaskID{ref.Task}, "worker %s: %s is to go on and does not run", p.host.name, ref)
	}
	run := j.runs
	p.after(j.rest, func() {
		if j.runs == run {
			p.endRun(j)
		}
	})
}

// allocateResult allocates memory for the result before the run. It returns false if there is no
// room.
func (p *process) allocateResult(j *job) bool {
	s := j.spec
	if s.bytes == 0 {
		return true
	}
	o := objectOf(j.ref)
	if j.memory != 0 {
		id, ok := p.reservations[j.memory]
		if !ok {
			p.w.fail([]ids.TaskID{j.ref.Task}, "worker %s: %s runs with a reservation that is not there", p.host.name, j.ref)
		}
		_, err := p.ledger.Allocate(id, o, s.bytes)
		j.reassigned = errors.Is(err, ledger.ErrDuplicate)
		return err == nil || j.reassigned
	}
	if p.w.fault(p.w.plan.noRoom) {
		return false
	}
	p.lastReservation++
	id := p.lastReservation
	_, effects, err := p.ledger.Reserve(p.w.now, ledger.Request{ID: id, Holder: taskHolder(j.ref.Task), Bytes: []uint64{s.bytes}})
	p.carryOutLedger(effects)
	if err != nil {
		return false
	}
	if _, err := p.ledger.Allocate(id, o, s.bytes); err != nil {
		p.release(id)
		j.reassigned = errors.Is(err, ledger.ErrDuplicate)
		return j.reassigned
	}
	j.ownReservation = id
	return true
}

// readInputs checks every input as the function would read it, and that they give the right result.
func (p *process) readInputs(j *job) {
	w := p.w
	values := make([]uint64, len(j.inputs))
	for i := range j.inputs {
		in := &j.inputs[i]
		v := in.value
		if !in.known {
			view, ok := p.ledger.Lookup(in.object)
			if !ok || view.State == ledger.Building {
				w.fail([]ids.TaskID{j.ref.Task, in.object.Task}, "worker %s runs %s and its input %s is not there: %v", p.host.name, j.ref, in.object, p.life.History(j.ref))
			}
			v = p.values[in.object]
		}
		if want := w.oracle.byTask[in.object.Task]; want == nil || want != j.spec.inputs[i] || v != want.value {
			w.fail([]ids.TaskID{j.ref.Task, in.object.Task}, "worker %s runs %s (%s) with a wrong input %d: %s", p.host.name, j.ref, j.spec.key, i, in.object)
		}
		values[i] = v
	}
	if result(j.spec.arguments(), values) != j.spec.value {
		w.fail([]ids.TaskID{j.ref.Task}, "%s computed a wrong value", j.ref)
	}
}

// endRun handles the end of the function.
func (p *process) endRun(j *job) {
	w, s := p.w, j.spec
	if s.kind == kills || w.fault(w.plan.executorDies) && runnerOf(s.op) != "native" {
		p.executorDies(j)
		return
	}
	p.readInputs(j)
	switch {
	case s.kind == fails:
		p.runEnded(j, lifecycle.Failed, "FUNCTION_RAISED")
	case s.kind == flaky && s.failed < s.failures:
		s.failed++
		p.runEnded(j, lifecycle.Failed, "FUNCTION_RAISED")
	default:
		p.runSucceeded(j)
	}
}

func (p *process) runSucceeded(j *job) {
	o := objectOf(j.ref)
	j.bytes = smallBytes
	if j.spec.bytes == 0 {
		p.small[o] = j.spec.value
	} else {
		j.bytes = j.spec.bytes
		if !j.reassigned {
			if err := p.ledger.Seal(o, nil); err != nil {
				p.w.fail([]ids.TaskID{o.Task}, "worker %s: %v", p.host.name, err)
			}
			p.values[o] = j.spec.value
		} else if _, ok := p.find(o); !ok {
			p.runEnded(j, lifecycle.Dropped, "")
			return
		}
	}
	p.leaveAndRelease(j)
	p.push(lifecycle.RunEnded{Ref: j.ref, Succeeded: true})
	p.stepAll()
}

// leaveAndRelease removes an attempt from its slot and frees its own reservation.
func (p *process) leaveAndRelease(j *job) {
	p.leaveSlot(j)
	if j.ownReservation != 0 {
		p.release(j.ownReservation)
		j.ownReservation = 0
	}
}

func (p *process) runEnded(j *job, outcome lifecycle.Outcome, reason string) {
	p.leaveAndRelease(j)
	if reason != "" {
		j.ended = &sched.TaskError{Reason: reason, Message: fmt.Sprintf("%s on %s", reason, p.host.name), Worker: p.host.name, Attempt: j.ref.Attempt}
	}
	p.push(lifecycle.RunEnded{Ref: j.ref, Outcome: outcome})
	p.stepAll()
}

// executorDies ends the current attempt, and returns those behind it in the slot, which have not
// begun.
func (p *process) executorDies(j *job) {
	w := p.w
	w.counts.executorDeaths++
	w.log("%s: the executor of %s dies", p.host.name, j.ref)
	behind := slices.Clone(j.slot.jobs[1:])
	for _, o := range behind {
		o.slot.jobs = o.slot.jobs[:1]
		o.slot, o.begun = nil, false
		o.runs++
		p.push(lifecycle.RunReturned{Ref: o.ref})
	}
	p.runEnded(j, lifecycle.ExecutorDied, "EXECUTOR_DIED")
}

// stopRun makes an attempt end soon. The attempt may still succeed.
func (p *process) stopRun(ref lifecycle.Ref) {
	w, j := p.w, p.jobs[ref]
	if j == nil || j.slot == nil {
		w.fail([]ids.TaskID{ref.Task}, "worker %s: %s is to be stopped and does not run", p.host.name, ref)
	}
	run := j.runs
	p.after(w.between(0, 20*time.Millisecond), func() {
		switch {
		case j.runs != run:
		case !j.begun:
			p.leaveSlot(j)
			p.push(lifecycle.RunReturned{Ref: ref})
			p.stepAll()
		case j.spec.kind == works && w.chance(0.3):
			p.runSucceeded(j)
		default:
			p.runEnded(j, lifecycle.Dropped, "")
		}
	})
}

// objectOf is the object that an attempt makes.
func objectOf(r lifecycle.Ref) object { return object{Task: r.Task, Generation: r.Attempt} }
