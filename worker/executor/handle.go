package executor

import (
	"context"
	"errors"
	"fmt"
	"time"

	executorv1 "github.com/millrace/millrace/gen/go/millrace/executor/v1"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/store"
	"github.com/millrace/millrace/worker/tasklog"
	"github.com/millrace/millrace/worker/value"
)

// handle handles a message of the process. An error ends the process.
func (p *process) handle(m *executorv1.FromExecutor) error {
	logs := p.pools.config.Logs
	for _, l := range m.GetLogs() {
		if l.GetTaskId() != 0 {
			logs.Write(p.sourceOf(ids.TaskID(l.GetTaskId())), l.GetStderr(), []byte(l.GetText()))
		}
	}
	for _, a := range m.GetAllocationRequests() {
		p.allocate(a)
	}
	if m.GetNeeded() {
		p.slot.mu.Lock()
		p.needed = true
		p.slot.mu.Unlock()
	}
	p.pools.recordLoaded(p.kind, m.GetLoadedModules())
	for _, r := range m.GetReturns() {
		p.calls.answer(r)
	}
	if len(m.GetFinished())+len(m.GetBlocked())+len(m.GetResumed()) == 0 {
		p.release(m.GetReleases())
		return nil
	}
	results := make([]Result, 0, len(m.GetFinished()))
	now := time.Now()
	for _, f := range m.GetFinished() {
		p.slot.mu.Lock()
		q := p.slot.find(lifecycle.Ref{Task: ids.TaskID(f.GetTaskId()), Attempt: ids.Attempt(f.GetAttempt())})
		if q != nil && q.ordinal == 0 {
			q = nil // it belongs to another process by now
		}
		if q != nil {
			p.slot.remove(q)
			p.endUse(q)
			if f.GetError().GetReason() != "DROPPED" {
				p.last = q.run.source()
				p.ended, p.idleSince = p.ended+1, now
			}
		}
		p.slot.mu.Unlock()
		if q != nil {
			results = append(results, p.finish(q, f, m.GetReleases()))
		}
	}
	results = p.waits(results, m)
	// Releases come last, because the results above may have adopted memory that is released here.
	p.release(m.GetReleases())
	p.pools.config.Done(results)
	return nil
}

// waits appends what a message says about runs that wait for other tasks.
func (p *process) waits(results []Result, m *executorv1.FromExecutor) []Result {
	for _, r := range m.GetBlocked() {
		ref := lifecycle.Ref{Task: ids.TaskID(r.GetTaskId()), Attempt: ids.Attempt(r.GetAttempt())}
		p.slot.mu.Lock()
		q := p.slot.find(ref)
		known := q != nil && q.ordinal != 0
		if known {
			q.blocked = true
		}
		p.slot.mu.Unlock()
		if known {
			if q.run.Reservation != 0 {
				// The tasks that it waits for may need the memory that was set aside for its
				// result.
				p.pools.config.Store.Forgo(q.run.Reservation)
			}
			results = append(results, Result{Ref: ref, Blocked: true})
		}
	}
	for _, r := range m.GetResumed() {
		results = append(results, Result{Ref: lifecycle.Ref{Task: ids.TaskID(r.GetTaskId()), Attempt: ids.Attempt(r.GetAttempt())}, Unblocked: true})
	}
	return results
}

// sourceOf returns the attempt of a task that the process runs or ran last; without an attempt if
// there is none.
func (p *process) sourceOf(task ids.TaskID) tasklog.Source {
	p.slot.mu.Lock()
	defer p.slot.mu.Unlock()
	for _, q := range p.slot.queue {
		if q.run.Ref.Task == task && q.ordinal != 0 {
			return q.run.source()
		}
	}
	if p.last.Task == task {
		return p.last
	}
	return tasklog.Source{Task: task}
}

// finish makes the result of a run that was removed from the queue. released are the releases of
// the same message.
func (p *process) finish(q *queued, f *executorv1.ExecutorFinished, released []*executorv1.ExecutorRelease) Result {
	r := q.run
	defer p.dropTemporary(q)
	if len(f.GetRetainedInputs()) > 0 {
		p.retainInputs(r, f.GetRetainedInputs())
	}
	out := Result{Ref: r.Ref, Outcome: lifecycle.Succeeded, RunTime: time.Duration(f.GetRunNanos()),
		DeserializeTime: time.Duration(f.GetDeserializeNanos()), PublishTime: time.Duration(f.GetPublishNanos())}
	e := f.GetError()
	switch {
	case e.GetReason() == "DROPPED":
		return Result{Ref: r.Ref, Returned: true}
	case q.stopping != notStopped:
		e = stopError(q, "an interrupt", p.pools.config.StopGrace)
		e.Traceback = f.GetError().GetTraceback()
	case e == nil:
		e = p.storeResult(r, q, f, released, &out)
	}
	if e != nil {
		out.Outcome, out.Error = lifecycle.Failed, e
		if e.GetReason() == "RESCHEDULE" {
			out.Outcome = lifecycle.GivenBack
		}
		return out
	}
	p.pools.config.Store.Cost(ledger.ObjectID{Task: r.Ref.Task, Generation: r.Ref.Attempt}, out.RunTime)
	return out
}

// retainInputs keeps inputs that the process still reads after the run, under one lease of the
// process for each. REQUIRES: Done was not called, so that the run still holds its inputs.
func (p *process) retainInputs(r *Run, kept []*executorv1.ExecutorRetainedInput) {
	for _, k := range kept {
		if err := p.retainInput(r, k); err != nil {
			p.pools.config.Log.Error("an input that the executor still uses could not be kept: its bytes will change",
				"task", r.Ref, "input", k.GetInputIndex(), "pid", p.pid(), "error", err)
		}
	}
}

func (p *process) retainInput(r *Run, k *executorv1.ExecutorRetainedInput) error {
	i := int(k.GetInputIndex())
	if i >= len(r.Inputs) {
		return fmt.Errorf("executor: input %d of a run with %d", i, len(r.Inputs))
	}
	if len(r.Spaces) > 0 && r.Spaces[i] != nil {
		return fmt.Errorf("executor: input %d lies in the memory of another worker, and is only leased", i)
	}
	objects := p.pools.config.Store
	reservation, _, err := objects.Reserve(p.holder(), nil, time.Time{}, nil)
	if err != nil {
		return err
	}
	defer objects.Release(reservation)
	id := objects.Temporary()
	for _, l := range r.Inputs[i].GetFrames() {
		if err := p.adoptFrame(reservation, id, memory.Frame{Offset: l.GetOffset(), Bytes: l.GetSizeBytes()}, r.InputObjects); err != nil {
			objects.Drop(id)
			return err
		}
	}
	if err := objects.SealTemporary(id, ledger.Holder{Kind: ledger.HolderExecutor, ID: uint64(p.pid())}); err != nil {
		objects.Drop(id)
		return err
	}
	p.slot.mu.Lock()
	_, taken := p.leases[k.GetRequestId()]
	if !taken {
		p.leases[k.GetRequestId()] = id
	}
	p.slot.mu.Unlock()
	if taken {
		objects.Drop(id)
		return fmt.Errorf("executor: it has something by number %d already", k.GetRequestId())
	}
	return nil
}

func (p *process) dropTemporary(q *queued) {
	p.slot.mu.Lock()
	temporary := q.temporary
	q.temporary = nil
	p.slot.mu.Unlock()
	for _, id := range temporary {
		p.pools.config.Store.Drop(id)
	}
}

// storeResult stores a result.
func (p *process) storeResult(r *Run, q *queued, f *executorv1.ExecutorFinished, released []*executorv1.ExecutorRelease, out *Result) *millracev1.TaskError {
	objects := p.pools.config.Store
	id := ledger.ObjectID{Task: r.Ref.Task, Generation: r.Ref.Attempt}
	header := f.GetHeader()
	if len(header) == 0 {
		header = value.Null()
	}
	limit := p.pools.inlineLimit()
	out.Bytes = uint64(len(header))
	if e := headerTooLarge(len(header)); e != nil {
		return e
	}
	var views [][]byte
	switch fault := value.Check(header, sizes(f)); {
	case len(f.GetFrames()) > 0 && len(f.GetInlineFrames()) > 0:
		return invalid("its result has frames in the slab and inline ones")
	case fault != nil:
		return invalid("its result does not fit its frames: " + fault.Error())
	case len(f.GetFrames()) == 0:
		for _, b := range f.GetInlineFrames() {
			out.Bytes += uint64(len(b))
		}
		if whole, ok := value.Inline(header, f.GetInlineFrames()); ok {
			if e := headerTooLarge(len(whole)); e != nil {
				return e
			}
			if err := objects.PutSmall(id, whole); err != nil {
				return memoryError(err)
			}
			out.Header, out.Bytes = whole, uint64(len(whole))
			if out.Bytes <= limit {
				out.Inline = whole
			}
			return nil
		}
		if err := p.storeInline(id, header, f.GetInlineFrames()); err != nil {
			return memoryError(err)
		}
		views = f.GetInlineFrames()
	default:
		frames := make([]memory.Frame, len(f.GetFrames()))
		for i, l := range f.GetFrames() {
			if l.GetSegmentId() != 0 {
				return invalid(fmt.Sprintf("frame %d of its result lies in segment %d, which is another worker's memory and only leased", i, l.GetSegmentId()))
			}
			frames[i] = memory.Frame{Offset: l.GetOffset(), Bytes: l.GetSizeBytes()}
			out.Bytes += l.GetSizeBytes()
		}
		if err := p.adopt(id, header, frames, q, r, released); err != nil {
			return invalid(err.Error())
		}
		if p.pools.config.Device == nil {
			views = objects.Views(frames)
		}
	}
	out.Header = header
	if out.Bytes <= limit && len(views) > 0 {
		if whole, ok := value.Inline(header, views); ok {
			out.Inline = whole
		}
	}
	return nil
}

// sizes returns the sizes of the frames of a result.
func sizes(f *executorv1.ExecutorFinished) []uint64 {
	var out []uint64
	for _, l := range f.GetFrames() {
		out = append(out, l.GetSizeBytes())
	}
	for _, b := range f.GetInlineFrames() {
		out = append(out, uint64(len(b)))
	}
	return out
}

// headerTooLarge refuses a result whose header is too large to be sent to any reader.
func headerTooLarge(header int) *millracev1.TaskError {
	if header <= store.MaxHeader {
		return nil
	}
	return &millracev1.TaskError{Reason: "RESULT_TOO_LARGE", Message: fmt.Sprintf(
		"the result has %d bytes outside of arrays and other bulk, and %d are allowed: return arrays, bytes or a pickle in place of nested lists and texts", header, store.MaxHeader)}
}

func invalid(message string) *millracev1.TaskError {
	return &millracev1.TaskError{Reason: "EXECUTOR_ERROR", Message: "the executor broke its protocol: " + message}
}

func memoryError(err error) *millracev1.TaskError {
	return &millracev1.TaskError{Reason: "OUT_OF_MEMORY", Message: err.Error()}
}

// storeInline copies frames that came over the link into the slab.
func (p *process) storeInline(id ledger.ObjectID, header []byte, frames [][]byte) error {
	objects := p.pools.config.Store
	sizes := make([]uint64, len(frames))
	for i, f := range frames {
		sizes[i] = uint64(len(f))
	}
	reservation, err := objects.ReserveWait(context.Background(), p.holder(), sizes, shutdownTimeout)
	if err != nil {
		return err
	}
	defer objects.Release(reservation)
	placed, err := objects.Allocate(reservation, id, sizes...)
	if err != nil {
		return err
	}
	for i, f := range placed {
		if err := p.pools.writeFrame(f, frames[i]); err != nil {
			return err
		}
	}
	return objects.Seal(id, header)
}

func (p *process) holder() ledger.Holder {
	return ledger.Holder{Kind: ledger.HolderExecutor, ID: uint64(p.slot.index)}
}

// adopt makes an object from ranges of memory that the run allocated, of its inputs, and of memory
// of the process that is released in the same message. A result must not be in memory that the
// process keeps: such memory is never spilled, and the process may write to it.
func (p *process) adopt(id ledger.ObjectID, header []byte, frames []memory.Frame, q *queued, r *Run, released []*executorv1.ExecutorRelease) error {
	objects := p.pools.config.Store
	reservation, _, err := objects.Reserve(p.holder(), nil, time.Time{}, nil)
	if err != nil {
		return err
	}
	defer objects.Release(reservation)
	p.slot.mu.Lock()
	sources := append(append([]ledger.ObjectID(nil), q.temporary...), r.InputObjects...)
	for _, x := range released {
		if id, known := p.leases[x.GetRequestId()]; known {
			sources = append(sources, id)
		}
	}
	p.slot.mu.Unlock()
	for _, f := range frames {
		if err := p.adoptFrame(reservation, id, f, sources); err != nil {
			return err
		}
	}
	return objects.Seal(id, header)
}

func (p *process) adoptFrame(reservation ledger.ReservationID, id ledger.ObjectID, f memory.Frame, sources []ledger.ObjectID) error {
	objects := p.pools.config.Store
	if f.Bytes == 0 {
		_, err := objects.Allocate(reservation, id, 0)
		return err
	}
	for _, source := range sources {
		err := objects.Alias(reservation, id, source, f)
		if err == nil {
			return nil
		}
		if !errors.Is(err, ledger.ErrRange) && !errors.Is(err, ledger.ErrUnknown) {
			return err
		}
	}
	return fmt.Errorf("frame [%d, +%d) of its result lies neither in memory that it allocated for the run, nor in an input, nor in "+
		"memory of the process that it releases in the same message; copy it into memory for the run", f.Offset, f.Bytes)
}

// allocate allocates memory for a run or for the process itself, immediately or as soon as there is
// room.
func (p *process) allocate(a *executorv1.ExecutorAllocationRequest) {
	q, refused := p.requester(a)
	if refused != "" {
		p.answer(a, nil, invalid(refused))
		return
	}
	objects := p.pools.config.Store
	id := objects.Temporary()
	if q != nil && q.run.Reservation != 0 {
		if frames, err := objects.Allocate(q.run.Reservation, id, a.GetFrameBytes()...); err == nil {
			if err := p.allocated(a, q, id, frames); err != nil {
				p.answer(a, nil, memoryError(err))
			}
			return
		}
	}
	var reservation ledger.ReservationID
	settle := func(err error) {
		if err == nil {
			err = p.take(a, q, reservation, id)
		}
		if err != nil {
			p.answer(a, nil, memoryError(err))
		}
	}
	if q == nil && a.GetNoWait() {
		// The request must not take memory that tasks wait for, or the reserve for tasks that
		// already hold memory.
		var err error
		if reservation, err = objects.ReserveIdle(p.holder(), a.GetFrameBytes()); err != nil {
			err = fmt.Errorf("executor: %d bytes of the slab are not free at once: %w", sum(a.GetFrameBytes()), err)
		}
		settle(err)
		return
	}
	decided := make(chan error, 1)
	reservation, granted, err := objects.Reserve(p.holder(), a.GetFrameBytes(), time.Now().Add(p.pools.config.MemoryWait), func(err error) { decided <- err })
	if granted || err != nil {
		settle(err)
		return
	}
	if a.GetNoWait() {
		objects.Release(reservation)
		settle(fmt.Errorf("executor: %d bytes of the slab are not free at once", sum(a.GetFrameBytes())))
		return
	}
	// The run at work cannot end before it, or its process, has this memory. So memory that was set
	// aside for results and is too small or cannot be used for this must not be in the way.
	idle := p.reserved()
	if q != nil {
		idle = []ledger.ReservationID{q.run.Reservation}
	}
	for _, r := range idle {
		objects.Forgo(r)
	}
	p.reading.Add(1)
	go func() {
		defer p.reading.Done()
		select {
		case err := <-decided:
			settle(err)
		case <-p.broken:
			objects.Release(reservation)
		}
	}()
}

// reserved returns the reservations of the runs that were sent to the process and have no result.
func (p *process) reserved() (list []ledger.ReservationID) {
	p.slot.mu.Lock()
	defer p.slot.mu.Unlock()
	for _, q := range p.slot.queue {
		if q.ordinal != 0 && q.run.Reservation != 0 {
			list = append(list, q.run.Reservation)
		}
	}
	return list
}

func sum(sizes []uint64) (n uint64) {
	for _, s := range sizes {
		n += s
	}
	return n
}

// requester returns the run that requests memory, nil if the process requests it for itself.
// If the request is invalid, refused is the reason.
func (p *process) requester(a *executorv1.ExecutorAllocationRequest) (q *queued, refused string) {
	p.slot.mu.Lock()
	defer p.slot.mu.Unlock()
	if a.GetAttempt() == nil {
		if _, taken := p.leases[a.GetRequestId()]; taken {
			return nil, fmt.Sprintf("it asked for memory by number %d, by which it has some", a.GetRequestId())
		}
		return nil, ""
	}
	ref := lifecycle.Ref{Task: ids.TaskID(a.GetAttempt().GetTaskId()), Attempt: ids.Attempt(a.GetAttempt().GetAttempt())}
	if q = p.slot.find(ref); q == nil || q.ordinal == 0 {
		return nil, fmt.Sprintf("it asked for memory for %s, which it was not given or has finished", ref)
	}
	return q, ""
}

// take allocates the frames of a granted reservation.
func (p *process) take(a *executorv1.ExecutorAllocationRequest, q *queued, reservation ledger.ReservationID, id ledger.ObjectID) error {
	objects := p.pools.config.Store
	frames, err := objects.Allocate(reservation, id, a.GetFrameBytes()...)
	if err == nil {
		err = p.allocated(a, q, id, frames)
	}
	objects.Release(reservation)
	return err
}

// allocated sends frames to the executor. From here on they are an object of their own, which ends
// with the run or with the process.
func (p *process) allocated(a *executorv1.ExecutorAllocationRequest, q *queued, id ledger.ObjectID, frames []memory.Frame) error {
	objects := p.pools.config.Store
	if err := objects.SealTemporary(id, ledger.Holder{Kind: ledger.HolderExecutor, ID: uint64(p.pid())}); err != nil {
		return err
	}
	p.slot.mu.Lock()
	alive := true
	if q == nil {
		if _, taken := p.leases[a.GetRequestId()]; taken {
			alive = false
		} else {
			p.leases[a.GetRequestId()] = id
		}
	} else if alive = p.slot.find(q.run.Ref) == q && q.ordinal != 0; alive {
		q.temporary = append(q.temporary, id)
	}
	p.slot.mu.Unlock()
	if !alive {
		objects.Drop(id)
		frames = nil
	}
	p.answer(a, frames, nil)
	return nil
}

// release frees memory that was allocated for the process.
func (p *process) release(released []*executorv1.ExecutorRelease) {
	for _, r := range released {
		p.slot.mu.Lock()
		id, known := p.leases[r.GetRequestId()]
		delete(p.leases, r.GetRequestId())
		p.slot.mu.Unlock()
		if known {
			p.pools.config.Store.Drop(id)
		}
	}
}

func (p *process) answer(a *executorv1.ExecutorAllocationRequest, frames []memory.Frame, e *millracev1.TaskError) {
	out := &executorv1.ExecutorAllocation{RequestId: a.GetRequestId(), Error: e}
	for _, f := range frames {
		out.Frames = append(out.Frames, &executorv1.FrameLocation{Offset: f.Offset, SizeBytes: f.Bytes})
	}
	p.slot.mu.Lock()
	m := p.queue()
	m.Allocations = append(m.Allocations, out)
	p.slot.mu.Unlock()
}
