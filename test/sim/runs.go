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

type laneKey struct {
	runner string
	index  int
}

// lane is an execution slot: it runs its jobs one after the other.
type lane struct{ jobs []*job }

// enter hands an attempt to its lane.
func (p *process) enter(e lifecycle.StartRun) {
	j := p.jobs[e.Ref]
	if j == nil || j.lane != nil {
		p.w.fail([]ids.TaskID{e.Ref.Task}, "worker %s: %s is started and is unknown or running", p.host.name, e.Ref)
	}
	key := laneKey{e.Runner, e.Lane}
	l := p.lanes[key]
	if l == nil {
		l = &lane{}
		p.lanes[key] = l
	}
	j.lane, j.memory, j.begun = l, e.Reservation, false
	j.runs++
	l.jobs = append(l.jobs, j)
	p.next(l)
}

func (p *process) leaveLane(j *job) {
	l := j.lane
	j.lane, j.begun = nil, false
	j.runs++
	l.jobs = slices.DeleteFunc(l.jobs, func(o *job) bool { return o == j })
	p.next(l)
}

// next starts the lane's first attempt, unless it has started.
func (p *process) next(l *lane) {
	if len(l.jobs) == 0 || l.jobs[0].begun {
		return
	}
	w, j := p.w, l.jobs[0]
	j.begun, j.began = true, w.now
	w.counts.runs++
	if !p.makeRoom(j) {
		p.leaveLane(j)
		p.push(lifecycle.NoRoom{Ref: j.ref, Bytes: []uint64{j.spec.bytes}})
		p.pump()
		return
	}
	p.readInputs(j)
	run := j.runs
	if j.spec.kind == hangs {
		p.after(j.timeout, func() {
			if j.runs == run {
				p.ended(j, lifecycle.Failed, "TASK_TIMEOUT")
			}
		})
		return
	}
	p.after(j.spec.run, func() {
		if j.runs == run {
			p.finish(j)
		}
	})
}

// makeRoom allocates memory for the result before the run. It returns false if there is no room.
func (p *process) makeRoom(j *job) bool {
	s := j.spec
	if s.bytes == 0 {
		return true
	}
	o := objectOf(j.ref)
	if j.memory != 0 {
		id, ok := p.reserved[j.memory]
		if !ok {
			p.w.fail([]ids.TaskID{j.ref.Task}, "worker %s: %s runs with a reservation that is not there", p.host.name, j.ref)
		}
		_, err := p.books.Allocate(id, o, s.bytes)
		j.double = errors.Is(err, ledger.ErrDuplicate)
		return err == nil || j.double
	}
	if p.w.trouble(p.w.plan.noRoom) {
		return false
	}
	p.lastReservation++
	id := p.lastReservation
	_, effects, err := p.books.Reserve(p.w.now, ledger.Request{ID: id, Holder: taskHolder(j.ref.Task), Bytes: []uint64{s.bytes}})
	p.ledgerDid(effects)
	if err != nil {
		return false
	}
	if _, err := p.books.Allocate(id, o, s.bytes); err != nil {
		p.release(id)
		j.double = errors.Is(err, ledger.ErrDuplicate)
		return j.double
	}
	j.own = id
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
			view, ok := p.books.Lookup(in.object)
			if !ok || view.State == ledger.Building {
				w.fail([]ids.TaskID{j.ref.Task, in.object.Task}, "worker %s runs %s and its input %s is not there: %v", p.host.name, j.ref, in.object, p.life.Story(j.ref))
			}
			v = p.values[in.object]
		}
		if want := w.book.byTask[in.object.Task]; want == nil || want != j.spec.inputs[i] || v != want.value {
			w.fail([]ids.TaskID{j.ref.Task, in.object.Task}, "worker %s runs %s (%s) with a wrong input %d: %s", p.host.name, j.ref, j.spec.key, i, in.object)
		}
		values[i] = v
	}
	if result(j.spec.arguments(), values) != j.spec.value {
		w.fail([]ids.TaskID{j.ref.Task}, "%s computed a wrong value", j.ref)
	}
}

// finish is the end of the function itself.
func (p *process) finish(j *job) {
	w, s := p.w, j.spec
	if s.kind == kills || w.trouble(w.plan.executorDies) && runnerOf(s.op) != "native" {
		p.executorDies(j)
		return
	}
	p.readInputs(j)
	switch {
	case s.kind == fails:
		p.ended(j, lifecycle.Failed, "FUNCTION_RAISED")
	case s.kind == flaky && s.failed < s.failures:
		s.failed++
		p.ended(j, lifecycle.Failed, "FUNCTION_RAISED")
	default:
		p.succeeded(j)
	}
}

func (p *process) succeeded(j *job) {
	o := objectOf(j.ref)
	j.bytes = smallBytes
	if j.spec.bytes == 0 {
		p.small[o] = j.spec.value
	} else {
		j.bytes = j.spec.bytes
		if !j.double {
			if err := p.books.Seal(o, nil); err != nil {
				p.w.fail([]ids.TaskID{o.Task}, "worker %s: %v", p.host.name, err)
			}
			p.values[o] = j.spec.value
		} else if _, ok := p.find(o); !ok {
			p.ended(j, lifecycle.Dropped, "")
			return
		}
	}
	p.quit(j)
	p.push(lifecycle.RunEnded{Ref: j.ref, Succeeded: true})
	p.pump()
}

// quit removes an attempt from its lane and frees its own reservation.
func (p *process) quit(j *job) {
	p.leaveLane(j)
	if j.own != 0 {
		p.release(j.own)
		j.own = 0
	}
}

func (p *process) ended(j *job, outcome lifecycle.Outcome, reason string) {
	p.quit(j)
	if reason != "" {
		j.ended = &sched.TaskError{Reason: reason, Message: fmt.Sprintf("%s on %s", reason, p.host.name), Worker: p.host.name, Attempt: j.ref.Attempt}
	}
	p.push(lifecycle.RunEnded{Ref: j.ref, Outcome: outcome})
	p.pump()
}

// executorDies ends the current attempt and returns those behind it, which have not begun.
func (p *process) executorDies(j *job) {
	w := p.w
	w.counts.executorDeaths++
	w.log("%s: the executor of %s dies", p.host.name, j.ref)
	behind := slices.Clone(j.lane.jobs[1:])
	for _, o := range behind {
		o.lane.jobs = o.lane.jobs[:1]
		o.lane, o.begun = nil, false
		o.runs++
		p.push(lifecycle.RunReturned{Ref: o.ref})
	}
	p.ended(j, lifecycle.ExecutorDied, "EXECUTOR_DIED")
}

// stopRun makes an attempt end soon. The attempt may still succeed.
func (p *process) stopRun(ref lifecycle.Ref) {
	w, j := p.w, p.jobs[ref]
	if j == nil || j.lane == nil {
		w.fail([]ids.TaskID{ref.Task}, "worker %s: %s is to be stopped and does not run", p.host.name, ref)
	}
	run := j.runs
	p.after(w.between(0, 20*time.Millisecond), func() {
		switch {
		case j.runs != run:
		case !j.begun:
			p.leaveLane(j)
			p.push(lifecycle.RunReturned{Ref: ref})
			p.pump()
		case j.spec.kind == works && w.chance(0.3):
			p.succeeded(j)
		default:
			p.ended(j, lifecycle.Dropped, "")
		}
	})
}

// reach returns the process that answers at the address of a worker; nil if there is none.
func (p *process) reach(at *process) *process {
	if at == nil {
		return nil
	}
	if p.w.plan.fixedPorts {
		at = at.host.proc
	}
	if at == nil || at.dead {
		return nil
	}
	return at
}

// part is one object of a fetch.
type part struct {
	want  lifecycle.FetchObject
	value uint64
	bytes uint64
	lease ledger.LeaseID
	// missing means that the peer does not have it. torn means that the lease ended while it was
	// read.
	missing, torn bool
}

// fetch reads objects from a peer under the peer's leases.
func (p *process) fetch(e lifecycle.StartFetch) {
	w := p.w
	over := false
	end := func(message string) {
		if over {
			return
		}
		over = true
		p.push(lifecycle.FetchEnded{Fetch: e.Fetch, Message: message})
		p.pump()
	}
	delay := func() time.Duration {
		if w.trouble(w.plan.slow) {
			return w.between(time.Millisecond, time.Second)
		}
		return w.between(100*time.Microsecond, time.Millisecond)
	}
	lost := w.trouble(w.plan.drop)
	p.after(3*time.Second, func() { end("no answer for 3 s") })
	w.after(delay(), func() {
		peer := p.reach(p.peers[e.Peer])
		if peer == nil {
			p.after(delay(), func() { end("connection refused") })
			return
		}
		lend := func() {
			parts := peer.lend(p.self, e.Objects)
			var bytes uint64
			for i := range parts {
				bytes += parts[i].bytes
			}
			peer.after(delay()+time.Duration(bytes), func() {
				peer.takeBack(parts)
				if lost {
					parts = parts[:w.rng.IntN(len(parts))]
				}
				p.after(delay(), func() {
					if over {
						return
					}
					p.mapped(e.Peer, peer)
					for i := range parts {
						p.arrived(e.Fetch, &parts[i])
						switch {
						case e.Follow && parts[i].missing:
							w.counts.missed++
						case e.Follow:
							w.counts.followed++
						}
					}
					if lost {
						end("stream broken")
					}
					end("")
				})
			})
		}
		peer.run(func() {
			if e.Follow && !peer.hasAll(e.Objects) {
				peer.after(upstreamWait, lend) // objects that have not arrived by then are fetched elsewhere
				return
			}
			lend()
		})
	})
}

// upstreamWait is how long a worker waits for an object that is arriving at its upstream.
const upstreamWait = 2 * time.Millisecond

func (p *process) hasAll(wants []lifecycle.FetchObject) bool {
	for _, want := range wants {
		if _, ok := p.find(object(want.Object)); !ok {
			return false
		}
	}
	return true
}

// lend takes leases on objects for a reader.
func (p *process) lend(reader ids.WorkerID, wants []lifecycle.FetchObject) []part {
	parts := make([]part, len(wants))
	for i, want := range wants {
		o := object(want.Object)
		parts[i] = part{want: want, bytes: p.size(o)}
		v, ok := p.find(o)
		switch {
		case !ok:
			parts[i].missing, parts[i].bytes = true, 0
		case p.isSmall(o):
			parts[i].value = v
		default:
			lease, err := p.books.Lease(p.w.now, o, ledger.Holder{Kind: ledger.HolderWorker, ID: uint64(reader)}, p.w.now.Add(2*time.Second))
			if err != nil {
				p.w.fail([]ids.TaskID{o.Task}, "worker %s: %v", p.host.name, err)
			}
			parts[i].lease = lease
		}
	}
	return parts
}

// takeBack ends the leases. The bytes count as read at this time.
func (p *process) takeBack(parts []part) {
	for i := range parts {
		x := &parts[i]
		if x.lease == 0 {
			continue
		}
		v, there := p.values[object(x.want.Object)]
		held, effects := p.books.EndLease(p.w.now, x.lease)
		if held && !there {
			p.w.fail([]ids.TaskID{x.want.Object.Task}, "worker %s: the bytes of %s were freed under a lease", p.host.name, x.want.Object)
		}
		x.value, x.torn = v, !held
		p.ledgerDid(effects)
	}
	p.pump()
}

// arrived stores one fetched object.
func (p *process) arrived(fetch lifecycle.FetchID, x *part) {
	w, o := p.w, object(x.want.Object)
	failed := lifecycle.FetchFailed{Fetch: fetch, Object: x.want.Object, Missing: x.missing}
	s := w.book.byTask[o.Task]
	switch {
	case x.missing:
		failed.Message = "not here"
	case x.torn:
		failed.Message = "the lease did not hold"
	case s == nil || x.value != s.value:
		w.fail([]ids.TaskID{o.Task}, "worker %s fetched a wrong value of %s", p.host.name, o)
	default:
		if _, here := p.find(o); here {
			p.push(lifecycle.InputFetched{Fetch: fetch, Object: x.want.Object, Bytes: x.bytes})
			p.pump()
			return
		}
		id, ok := p.reserved[x.want.Reservation]
		if !ok {
			w.fail([]ids.TaskID{o.Task}, "worker %s: %s arrives and its reservation %d is gone", p.host.name, o, x.want.Reservation)
		}
		if p.store(o, s, id) {
			p.push(lifecycle.InputFetched{Fetch: fetch, Object: x.want.Object, Bytes: x.bytes})
			p.pump()
			return
		}
		if before, there := p.books.Lookup(o); there && before.State == ledger.Dropped {
			// The object was not wanted here any more, but a run that is not wanted either still
			// uses it.
			failed.Message = "it was dropped while it arrived"
		} else {
			failed.NoRoom, failed.Message = true, "no room for a fetched object"
		}
	}
	p.push(failed)
	p.pump()
}

// objectOf is the object that an attempt makes.
func objectOf(r lifecycle.Ref) object { return object{Task: r.Task, Generation: r.Attempt} }
