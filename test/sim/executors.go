package sim

import (
	"fmt"
	"slices"
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/executor"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/native"
	"github.com/millrace/millrace/worker/store"
)

// inlineBytes is the size of the largest result that travels inline.
const inlineBytes = 4 << 10

// dataGeneration is the generation of scattered data.
const dataGeneration ids.Attempt = 1

const (
	nativeRunner = "native"
	// mixOp is the native operation of tasks, copyOp that by which the scheduler copies objects.
	mixOp  = "sim.mix"
	copyOp = "core.replicate"
)

func runnerOf(op sched.OpSpec) string {
	switch op.Kind {
	case sched.OpNative:
		return nativeRunner
	case sched.OpPythonImport, sched.OpPythonPickle:
		return "python"
	case sched.OpExec, sched.OpData:
	}
	return "simexec"
}

// slots are the slots of a process, those of native operations and of executors.
type slots struct {
	p   *process
	all map[slotKey]*slot
	// deaths counts the executors that died.
	deaths uint64
}

type slotKey struct {
	runner string
	index  int
}

// slot runs its jobs one after the other.
type slot struct{ jobs []*job }

// job is one run of an attempt in a slot: either native or executor is set.
type job struct {
	ref      lifecycle.Ref
	spec     *spec
	slot     *slot
	native   *native.Run
	executor *executor.Run
	inputs   []device.Input
	// begun: its slot runs it. ended: its function has. over: the worker has it back.
	begun, ended, over bool
	began              time.Time
	// frames is the memory of the result.
	frames []memory.Frame
	// own is memory that the run has reserved itself, 0 if none.
	own ledger.ReservationID
	// waits: the function waits for other tasks. rest is the run time that is left then.
	waits bool
	rest  time.Duration
}

func newSlots(p *process) *slots { return &slots{p: p, all: map[slotKey]*slot{}} }

// jobs is the number of runs that the worker has not got back.
func (s *slots) jobs() (n int) {
	// order-free: a sum.
	for _, l := range s.all {
		n += len(l.jobs)
	}
	return n
}

// start puts a run into its slot.
func (s *slots) start(key slotKey, j *job) {
	w := s.p.w
	if j.spec = w.oracle.byTask[j.ref.Task]; j.spec == nil || runnerOf(j.spec.op) != key.runner {
		w.fail([]ids.TaskID{j.ref.Task}, "worker %s: %s is started and is unknown, or by the wrong runner %s", s.p.host.name, j.ref, key.runner)
	}
	l := s.all[key]
	if l == nil {
		l = &slot{}
		s.all[key] = l
	}
	if slices.ContainsFunc(l.jobs, func(o *job) bool { return o.ref == j.ref }) {
		w.fail([]ids.TaskID{j.ref.Task}, "worker %s: %s is started and runs", s.p.host.name, j.ref)
	}
	j.slot = l
	l.jobs = append(l.jobs, j)
	s.next(l)
}

// find returns a run in a slot.
func (s *slots) find(key slotKey, ref lifecycle.Ref) *job {
	l := s.all[key]
	if l == nil {
		return nil
	}
	i := slices.IndexFunc(l.jobs, func(j *job) bool { return j.ref == ref })
	if i < 0 {
		return nil
	}
	return l.jobs[i]
}

// after does something later, unless the run is over by then.
func (s *slots) after(j *job, d time.Duration, do func()) {
	s.p.after(d, func() {
		if !j.over {
			do()
		}
	})
}

// next starts the first run of a slot, unless it has begun. It begins a moment later: the loop is
// in the middle of a step.
func (s *slots) next(l *slot) {
	if len(l.jobs) == 0 || l.jobs[0].begun {
		return
	}
	j := l.jobs[0]
	s.p.after(s.p.w.between(0, 5*time.Microsecond), func() {
		if !j.over && !j.begun && l.jobs[0] == j {
			s.run(j)
		}
	})
}

// run runs a function.
func (s *slots) run(j *job) {
	w := s.p.w
	j.begun, j.began = true, w.now
	w.counts.runs++
	switch {
	case j.native != nil && !s.allocateNative(j):
		return
	case j.executor != nil && !s.prepare(j):
		return
	}
	s.value(j)
	switch {
	case j.spec.kind == hangs:
		s.after(j, j.timeout(), func() { s.fail(j, "TASK_TIMEOUT") })
	case j.executor != nil && w.fault(w.plan.blocks):
		j.rest = j.spec.run / 2
		s.after(j, j.spec.run-j.rest, func() { s.wait(j) })
	default:
		s.after(j, j.spec.run, func() { s.end(j) })
	}
}

func (j *job) timeout() time.Duration {
	if j.native != nil {
		return j.native.Timeout
	}
	return j.executor.Timeout
}

// prepare checks the run of an executor, and reports that its function is called. It returns false
// if the process cannot map the inputs.
func (s *slots) prepare(j *job) bool {
	r := j.executor
	if op := j.spec.op; op.Kind == sched.OpPythonPickle && (r.Function == nil || [32]byte(r.Function.GetHash()) != op.Function) {
		s.p.w.fail([]ids.TaskID{j.ref.Task}, "%s runs on %s, which has not got its function", j.ref, s.p.host.name)
	}
	if len(r.Spaces) > 0 && !canMap(j.spec) {
		s.over(j)
		s.post(executor.Result{Ref: j.ref, NoSegments: true})
		return false
	}
	s.after(j, s.p.w.between(0, 2*time.Millisecond), func() { s.post(executor.Result{Ref: j.ref, Called: true}) })
	return true
}

// canMap says whether the executors of a task can map the memory of peers.
func canMap(s *spec) bool { return runnerOf(s.op) == "python" }

// value reads the inputs as the function does, and computes the result. The loans of inputs may be
// broken: then the result is wrong, and must not be used.
func (s *slots) value(j *job) uint64 {
	p, w := s.p, s.p.w
	values, broken := make([]uint64, len(j.inputs)), false
	for i := range j.inputs {
		in := &j.inputs[i]
		space := words(p.slab)
		if in.Space != nil {
			space = in.Space.(words)
		}
		v, ok := valueOf(in.Header, func(n uint32) (uint64, bool) { return space.word(in.Frames[n]) })
		lent, is := space.(lentSpace)
		if broken = broken || is && lent.loan.garbled; is && lent.loan.garbled {
			values[i] = garbage
			continue
		}
		want := j.spec.inputs[i]
		if !ok || v != want.value {
			w.fail([]ids.TaskID{j.ref.Task}, "worker %s runs %s (%s) with a wrong input %d (%s)", p.host.name, j.ref, j.spec.key, i, want.key)
		}
		values[i] = v
	}
	v := result(j.spec.arguments(), values)
	if v != j.spec.value && !broken {
		w.fail([]ids.TaskID{j.ref.Task}, "%s computed a wrong value", j.ref)
	}
	return v
}

// allocateNative allocates memory for the result before the run. It returns false if there is no
// room.
func (s *slots) allocateNative(j *job) bool {
	p, w, r := s.p, s.p.w, j.native
	sizes := framesOf(j.spec.bytes)
	if sizes == nil {
		return true
	}
	from := r.Reservation
	if from == 0 || !r.Roomy {
		refused := w.fault(w.plan.noRoom)
		if !refused {
			id, err := p.store.ReserveIdle(store.TaskHolder(j.ref.Task), sizes)
			refused, j.own, from = err != nil, id, id
		}
		if refused {
			r.NoRoom = sizes
			s.back(j)
			return false
		}
	}
	var err error
	if j.frames, err = p.store.Allocate(from, objectOf(j.ref), sizes...); err != nil {
		w.fail([]ids.TaskID{j.ref.Task}, "worker %s: %s has no memory for its result: %v", p.host.name, j.ref, err)
	}
	return true
}

// over removes a run from its slot, and frees its own memory.
func (s *slots) over(j *job) {
	j.over = true
	j.slot.jobs = slices.DeleteFunc(j.slot.jobs, func(o *job) bool { return o == j })
	s.p.store.Release(j.own)
	j.own = 0
	s.next(j.slot)
}

func (s *slots) post(r executor.Result) { s.p.worker.PostResults([]executor.Result{r}) }

// back hands a native run back to the worker: as a slot that has nothing else to do, or has.
func (s *slots) back(j *job) {
	s.over(j)
	host := s.p.host.w
	if host.chance(0.5) {
		s.p.native.HandOver([]*native.Run{j.native})
		s.p.native.Idle()
		return
	}
	s.p.native.Ended([]*native.Run{j.native})
}

// wait lets a function wait for other tasks. It goes on after that, or ends in the middle of its
// wait.
func (s *slots) wait(j *job) {
	w := s.p.w
	w.counts.blocks++
	secedes := w.chance(0.1)
	j.waits = true
	s.post(executor.Result{Ref: j.ref, Blocked: true})
	s.after(j, w.between(0, 50*time.Millisecond), func() {
		if secedes {
			s.end(j)
			return
		}
		s.post(executor.Result{Ref: j.ref, Unblocked: true})
	})
}

// end handles the end of the function. One that is stopped may end before its time: then its result
// may still wait for memory at that time.
func (s *slots) end(j *job) {
	w, x := s.p.w, j.spec
	if j.ended {
		return
	}
	j.ended = true
	switch {
	case x.kind == slays:
		s.p.host.crash("killed by " + x.key)
	case x.kind == kills || w.fault(w.plan.executorDies) && j.executor != nil:
		s.die(j)
	case x.kind == fails:
		s.fail(j, "FUNCTION_RAISED")
	case x.kind == flaky && x.failed < x.failures:
		x.failed++
		s.fail(j, "FUNCTION_RAISED")
	case j.native != nil:
		s.endNative(j)
	default:
		s.store(j)
	}
}

// fail ends a run without a result.
func (s *slots) fail(j *job, reason string) {
	fault := &millracev1.TaskError{Reason: reason, Message: reason + " on " + s.p.host.name}
	if j.native != nil {
		j.native.Failure = fault
		s.p.store.Rebuild(j.reservation(), objectOf(j.ref))
		s.back(j)
		return
	}
	s.over(j)
	s.post(executor.Result{Ref: j.ref, Outcome: lifecycle.Failed, Error: fault, RunTime: s.p.w.now.Sub(j.began)})
}

func (j *job) reservation() ledger.ReservationID {
	switch {
	case j.own != 0:
		return j.own
	case j.native != nil:
		return j.native.Reservation
	}
	return j.executor.Reservation
}

// die ends the current run, and returns those behind it in the slot, which have not begun.
func (s *slots) die(j *job) {
	w := s.p.w
	w.counts.executorDeaths++
	s.deaths++
	j.spec.deaths++
	w.log("%s: the executor of %s dies", s.p.host.name, j.ref)
	for _, o := range slices.Clone(j.slot.jobs[1:]) {
		s.over(o)
		s.post(executor.Result{Ref: o.ref, Returned: true})
	}
	s.over(j)
	s.post(executor.Result{Ref: j.ref, Outcome: lifecycle.ExecutorDied, Error: &millracev1.TaskError{Reason: "EXECUTOR_DIED", Message: "it died"}})
}

func (s *slots) endNative(j *job) {
	r, o := j.native, objectOf(j.ref)
	v, sizes := s.value(j), framesOf(j.spec.bytes)
	header := headerOf(v, sizes)
	r.RunTime = j.spec.run
	r.Bytes = uint64(len(header)) + j.spec.bytes
	if sizes == nil {
		if err := s.p.store.PutSmall(o, header); err != nil {
			s.p.w.fail([]ids.TaskID{o.Task}, "worker %s: %v", s.p.host.name, err)
		}
	} else {
		r.Framed = j.spec.bytes
		s.seal(j, header, v)
	}
	if r.Bytes <= inlineBytes {
		r.Inline = headerOf(v, nil)
	}
	s.back(j)
}

// seal writes the result into the memory that was allocated for it.
func (s *slots) seal(j *job, header []byte, v uint64) {
	o := objectOf(j.ref)
	s.p.kept[o] = true
	for _, f := range j.frames {
		s.p.slab.write(f, v)
	}
	if err := s.p.store.Seal(o, header); err != nil {
		s.p.w.fail([]ids.TaskID{o.Task}, "worker %s: %v", s.p.host.name, err)
	}
}

// store stores the result of an executor's run, as soon as there is memory for it.
func (s *slots) store(j *job) {
	p := s.p
	sizes := framesOf(j.spec.bytes)
	if sizes == nil {
		s.finish(j, nil)
		return
	}
	if j.executor.Reservation != 0 {
		if frames, err := p.store.Allocate(j.executor.Reservation, objectOf(j.ref), sizes...); err == nil {
			j.frames = frames
			s.finish(j, sizes)
			return
		}
	}
	id, progress, err := p.store.Acquire(store.Request{
		Holder: store.TaskHolder(j.ref.Task), Bytes: sizes, Urgent: true, Deadline: p.w.now.Add(memoryWait),
	}, func(r store.ReservationResult) {
		p.w.after(0, func() {
			p.run(func() {
				switch {
				case j.over:
				case r.Err != nil:
					s.fail(j, "OUT_OF_MEMORY")
				default:
					s.allocated(j, sizes)
				}
			})
		})
	})
	j.own = id
	switch {
	case err != nil:
		s.fail(j, "OUT_OF_MEMORY")
	case progress == ledger.Ready:
		s.allocated(j, sizes)
	}
}

func (s *slots) allocated(j *job, sizes []uint64) {
	var err error
	if j.frames, err = s.p.store.Allocate(j.own, objectOf(j.ref), sizes...); err != nil {
		s.p.w.fail([]ids.TaskID{j.ref.Task}, "worker %s: %s has no memory for its result: %v", s.p.host.name, j.ref, err)
	}
	s.finish(j, sizes)
}

// finish reports the result of an executor's run.
func (s *slots) finish(j *job, sizes []uint64) {
	o := objectOf(j.ref)
	v := s.value(j)
	header := headerOf(v, sizes)
	r := executor.Result{Ref: j.ref, Outcome: lifecycle.Succeeded, Header: header, Bytes: uint64(len(header)) + j.spec.bytes, RunTime: j.spec.run}
	if sizes == nil {
		if err := s.p.store.PutSmall(o, header); err != nil {
			s.p.w.fail([]ids.TaskID{o.Task}, "worker %s: %v", s.p.host.name, err)
		}
	} else {
		s.seal(j, header, v)
	}
	if r.Bytes <= inlineBytes {
		r.Inline = headerOf(v, nil)
	}
	s.over(j)
	s.post(r)
}

// stop makes a run end soon. It may still succeed.
func (s *slots) stop(key slotKey, ref lifecycle.Ref, reason string) {
	w, j := s.p.w, s.find(key, ref)
	if j == nil {
		return // its result is on its way
	}
	s.after(j, w.between(0, 20*time.Millisecond), func() {
		switch {
		case !j.begun:
			s.returned(j)
		case j.spec.kind == works && reason == cancelled && w.chance(0.3):
			s.end(j)
		default:
			j.spec.refused = j.spec.refused || reason == waitRefused
			s.fail(j, reason)
		}
	})
}

// The reasons of runs that are stopped: cancelled ones, and those that could not wait for other
// tasks.
const (
	cancelled   = "CANCELLED"
	waitRefused = "WAIT_REFUSED"
)

// returned hands a run back that has not begun.
func (s *slots) returned(j *job) {
	if j.native != nil {
		j.native.Returned = true
		s.back(j)
		return
	}
	s.over(j)
	s.post(executor.Result{Ref: j.ref, Returned: true})
}

// takeBack hands a run back if it has not begun.
func (s *slots) takeBack(key slotKey, ref lifecycle.Ref) {
	j := s.find(key, ref)
	if j == nil {
		return
	}
	s.after(j, s.p.w.between(0, 50*time.Microsecond), func() {
		if !j.begun {
			s.returned(j)
		}
	})
}

// executors is loop.Executors over the slots.
type executors struct {
	p *process
	// seen are the kinds whose processes have said whether they can map memory.
	seen map[string]bool
}

// Kinds is part of loop.Executors.
func (*executors) Kinds() []string { return []string{"python", "simexec"} }

// Segments is part of loop.Executors.
func (x *executors) Segments(kind string) (known, can bool) { return x.seen[kind], kind == "python" }

// KindOf is part of loop.Executors.
func (*executors) KindOf(int) string { return "" }

// Start is part of loop.Executors.
func (x *executors) Start(kind string, at int, r *executor.Run) {
	if x.seen == nil {
		x.seen = map[string]bool{}
	}
	x.seen[kind] = true
	j := &job{ref: r.Ref, executor: r}
	for i, in := range r.Inputs {
		input := device.Input{Header: in.GetHeader()}
		for _, f := range in.GetFrames() {
			input.Frames = append(input.Frames, memory.Frame{Offset: f.GetOffset(), Bytes: f.GetSizeBytes()})
		}
		if len(r.Spaces) > 0 {
			input.Space = r.Spaces[i]
		}
		j.inputs = append(j.inputs, input)
	}
	x.p.slots.start(slotKey{kind, at}, j)
}

// Stop is part of loop.Executors.
func (x *executors) Stop(kind string, at int, ref lifecycle.Ref) {
	x.p.slots.stop(slotKey{kind, at}, ref, cancelled)
}

// Refuse is part of loop.Executors.
func (x *executors) Refuse(kind string, at int, ref lifecycle.Ref, _ string) {
	x.p.slots.stop(slotKey{kind, at}, ref, waitRefused)
}

// Resume is part of loop.Executors.
func (x *executors) Resume(kind string, at int, ref lifecycle.Ref) {
	s := x.p.slots
	j := s.find(slotKey{kind, at}, ref)
	if j == nil {
		return // it is over
	}
	if !j.waits {
		x.p.w.fail([]ids.TaskID{ref.Task}, "worker %s: %s is to go on and does not wait", x.p.host.name, ref)
	}
	j.waits = false
	s.after(j, j.rest, func() { s.end(j) })
}

// TakeBack is part of loop.Executors.
func (x *executors) TakeBack(kind string, at int, ref lifecycle.Ref) {
	x.p.slots.takeBack(slotKey{kind, at}, ref)
}

// Registered is part of loop.Executors.
func (*executors) Registered(ids.WorkerID, uint64) {}

// DropFunctions is part of loop.Executors.
func (*executors) DropFunctions([][]byte) {}

// Deaths is part of loop.Executors.
func (x *executors) Deaths() (uint64, string) {
	return x.p.slots.deaths, fmt.Sprint(x.p.slots.deaths)
}

// natives is loop.Native over the slots.
type natives struct{ p *process }

// Open is part of loop.Native.
func (x *natives) Open(host native.Host) { x.p.native = host }

// Close is part of loop.Native.
func (*natives) Close() {}

// Start is part of loop.Native.
func (x *natives) Start(at int, r *native.Run) {
	x.p.slots.start(slotKey{nativeRunner, at}, &job{ref: r.Ref, native: r, inputs: r.Call.Inputs})
}

// Stop is part of loop.Native.
func (x *natives) Stop(at int, r *native.Run) {
	x.p.slots.stop(slotKey{nativeRunner, at}, r.Ref, cancelled)
}

// TakeBack is part of loop.Native.
func (x *natives) TakeBack(at int, r *native.Run) {
	x.p.slots.takeBack(slotKey{nativeRunner, at}, r.Ref)
}

// Registered is part of loop.Native.
func (*natives) Registered(uint32) {}

// Load is part of loop.Native.
func (*natives) Load(bool, int) {}

// GiveWay is part of loop.Native.
func (*natives) GiveWay() {}

// InPlace is part of loop.Native.
func (x *natives) InPlace() device.InPlace {
	if !x.p.w.plan.mapped {
		return nil
	}
	return readsInPlace{}
}

// OutputBytes is part of loop.Native.
func (*natives) OutputBytes(device.Call) []uint64 { return nil }

// readsInPlace reads the inputs of tasks at peers.
type readsInPlace struct{}

// Reads is part of device.InPlace.
func (readsInPlace) Reads(op string) device.Reading {
	if op == mixOp {
		return device.ReadsOnce
	}
	return device.ReadsAgain
}
