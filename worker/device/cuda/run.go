package cuda

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	gpu "github.com/millrace/millrace/memory/cuda"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/device/wire"
	"github.com/millrace/millrace/worker/ops"
)

// errHost: the processor has to compute this.
var errHost = errors.New("cuda: not for kernels")

// Prepare is part of device.Device.
func (d *Device) Prepare(call device.Call) (device.Prepared, error) {
	op, err := d.ops.Lookup(call.Op)
	if err != nil {
		return nil, wire.Failure(err)
	}
	args, err := wire.Arguments(call, d.slab, view)
	if err != nil {
		return nil, err
	}
	return &prepared{device: d, op: op, args: args, attempt: call.Attempt}, nil
}

type prepared struct {
	device  *Device
	op      *ops.Op
	args    ops.Args
	attempt int
	// planned or wrong is set by plan.
	planned *ops.Planned
	wrong   error
}

// plan checks the arguments, once.
func (p *prepared) plan() (*ops.Planned, error) {
	if p.planned == nil && p.wrong == nil {
		p.planned, p.wrong = p.op.Plan(p.args)
	}
	return p.planned, p.wrong
}

// OutputBytes is part of device.Prepared.
func (p *prepared) OutputBytes() []uint64 {
	planned, err := p.plan()
	if err != nil {
		return nil
	}
	total, ok := planned.OutputBytes()
	if !ok || total <= wire.InlineBytes {
		return nil
	}
	return []uint64{uint64(total)}
}

// Run is part of device.Prepared. Kernels cannot be interrupted: once they were
// submitted, it waits for them and then says that the context ended.
func (p *prepared) Run(ctx context.Context, alloc device.Allocator) (device.Result, error) {
	planned, err := p.plan()
	if err != nil {
		return device.Result{}, wire.Failure(err)
	}
	if err := ctx.Err(); err != nil {
		return device.Result{}, fmt.Errorf("%s: %w", p.op.Name, err)
	}
	if planned.Work == nil {
		result, err := p.unplanned(ctx, alloc)
		if err != nil {
			return device.Result{}, wire.Failure(err)
		}
		return result, nil
	}
	r, err := p.device.begin(ctx, p.op.Name)
	if err != nil {
		return device.Result{}, wire.Failure(err)
	}
	u, err := p.carry(ctx, r, alloc)
	if err != nil {
		return device.Result{}, wire.Failure(err)
	}
	return u.Finish()
}

// Start is part of device.Starter.
func (p *prepared) Start(ctx context.Context, alloc device.Allocator) (device.Started, error) {
	planned, err := p.plan()
	if err != nil {
		return nil, wire.Failure(err)
	}
	switch planned.Work.(type) {
	case nil, *ops.FactoringQR, *ops.FactoringSVD:
		return nil, nil // the processor looks at what comes out in between
	}
	// Whoever starts may be who has to finish before there is a slot again.
	r, err := p.device.tryBegin(p.op.Name)
	if r == nil || err != nil {
		return nil, err
	}
	r.ahead = true
	u, err := p.carry(ctx, r, alloc)
	if err != nil {
		return nil, wire.Failure(err)
	}
	return u, nil
}

// unplanned runs what is not for kernels.
func (p *prepared) unplanned(ctx context.Context, alloc device.Allocator) (device.Result, error) {
	result, err := p.byProcessor(ctx, p.planned)
	if err != nil {
		return device.Result{}, err
	}
	return p.encoder(alloc).Result(result)
}

func (p *prepared) encoder(alloc device.Allocator) *wire.Encoder {
	d := p.device
	return wire.NewEncoder(d.slab, alloc, view, func(f memory.Frame, b []byte) error { return d.slab.WriteFrom(f.Offset, b) })
}

// underway is a call whose work was submitted, or done.
type underway struct {
	*run
	planned *ops.Planned
	outs    []*ops.Tensor
	out     *wire.Encoder
}

// carry submits the work of a call, and ends its run if that fails.
func (p *prepared) carry(ctx context.Context, r *run, alloc device.Allocator) (_ *underway, err error) {
	defer func() {
		if err != nil {
			r.end()
		}
	}()
	u := &underway{run: r, planned: p.planned, outs: make([]*ops.Tensor, len(p.planned.Outputs)), out: p.encoder(alloc)}
	for i, want := range u.planned.Outputs {
		if u.outs[i], err = r.output(u.out, want); err != nil {
			return nil, fmt.Errorf("%s: output of %v, shape %v: %w", p.op.Name, want.DType, want.Shape, err)
		}
	}
	err = r.carryOut(ctx, u.planned.Work, u.outs)
	if errors.Is(err, errHost) {
		err = p.onHost(ctx, u.planned, u.outs)
	}
	if err != nil {
		return nil, err
	}
	return u, nil
}

// Done is part of device.Started.
func (u *underway) Done() bool {
	if !u.open {
		return true
	}
	done, err := u.event.Query()
	return done || err != nil // Finish says why
}

// Finish is part of device.Started.
func (u *underway) Finish() (device.Result, error) {
	defer u.end()
	if u.open {
		err := u.wait()
		if err == nil && u.check != nil {
			err = u.check()
		}
		if err != nil {
			return device.Result{}, wire.Failure(u.explain(err))
		}
	}
	u.takeSmall(u.outs)
	result, err := u.out.Result(u.planned.Result(u.outs))
	if err != nil {
		return device.Result{}, wire.Failure(err)
	}
	return result, nil
}

// byProcessor is the result of an operation without kernels.
func (p *prepared) byProcessor(ctx context.Context, planned *ops.Planned) (any, error) {
	ctx = ops.WithAttempt(ctx, p.attempt)
	if p.op.Blind {
		return planned.Run(ctx, ops.NewTensor)
	}
	args, err := argsOnHost(p.args)
	if err != nil {
		return nil, err
	}
	return p.op.Run(ctx, args, ops.NewTensor)
}

// onHost computes the outputs on the processor and copies them to the device.
func (p *prepared) onHost(ctx context.Context, planned *ops.Planned, outs []*ops.Tensor) error {
	args, err := argsOnHost(p.args)
	if err != nil {
		return err
	}
	var made []*ops.Tensor
	if _, err := p.op.Run(ops.WithAttempt(ctx, p.attempt), args, func(dtype ops.DType, shape []int64) (*ops.Tensor, error) {
		t, err := ops.NewTensor(dtype, shape)
		made = append(made, t)
		return t, err
	}); err != nil {
		return err
	}
	for i, t := range made {
		switch to := outs[i].Far.(type) {
		case *far:
			if err := p.device.slab.WriteFrom(to.frame.Offset, t.Data); err != nil {
				return err
			}
		case *small:
			copy(to.bytes, t.Data)
		}
	}
	return nil
}

// run is one call under way.
type run struct {
	device *Device
	op     string
	slot   int
	used   uint64 // bytes of the slot taken by inputs
	// sent is how many of them were submitted: small inputs go together, in front of
	// the first kernel that may read them.
	sent  uint64
	kept  uint64 // bytes at its end taken by results
	event *gpu.Event
	// ahead: what is submitted is not waited for. open: so it was. Then check is what is to
	// be looked at afterwards, unless it is nil, and about what errors are said to be of.
	ahead, open bool
	check       func() error
	about       string
}

// then looks at what a submission has left, when it is over.
func (r *run) then(check func() error) error {
	if r.open {
		r.check = check
		return nil
	}
	return check()
}

func (r *run) explain(err error) error {
	if r.about == "" {
		return err
	}
	return fmt.Errorf("%s: %w", r.about, err)
}

// small is a result in a slot.
type small struct {
	at    uint64
	bytes []byte
}

// Address is part of ops.Memory.
func (s *small) Address() uint64 { return s.at }

// Size is part of ops.Memory.
func (s *small) Size() int64 { return int64(len(s.bytes)) }

// Read is part of ops.Memory.
func (s *small) Read(offset int64, p []byte) error { copy(p, s.bytes[offset:]); return nil }

func (d *Device) begin(ctx context.Context, op string) (*run, error) {
	select {
	case slot := <-d.slots.free:
		return d.beginIn(slot, op)
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: %w", op, ctx.Err())
	}
}

// tryBegin is begin that returns nil if it would wait.
func (d *Device) tryBegin(op string) (*run, error) {
	select {
	case slot := <-d.slots.free:
		return d.beginIn(slot, op)
	default:
		return nil, nil
	}
}

func (d *Device) beginIn(slot int, op string) (*run, error) {
	r := &run{device: d, op: op, slot: slot}
	d.mu.Lock()
	if n := len(d.idle); n > 0 {
		r.event, d.idle = d.idle[n-1], d.idle[:n-1]
	}
	d.mu.Unlock()
	if r.event == nil {
		var err error
		if r.event, err = d.gpu.NewPolledEvent(); err != nil {
			d.slots.free <- r.slot
			return nil, err
		}
	}
	return r, nil
}

// Computing says whether kernels of an operation run, or are about to.
func (d *Device) Computing() bool { return len(d.slots.free) < cap(d.slots.free) }

func (r *run) end() {
	d := r.device
	d.mu.Lock()
	d.idle = append(d.idle, r.event)
	d.mu.Unlock()
	d.slots.free <- r.slot
}

// pinned takes pinned memory at the end of the slot.
func (r *run) pinned(n uint64) (address uint64, bytes []byte) {
	r.kept += (n + 15) &^ 15
	if r.kept > resultBytes {
		panic(fmt.Sprintf("cuda: %s wants %d bytes of small results", r.op, r.kept))
	}
	at := uint64(r.slot+1)*slotBytes - r.kept
	return r.device.slots.pinned.Address(at, n), r.device.slots.host.Bytes(at, n)
}

// output takes memory for a result: what is small comes back inside the header.
func (r *run) output(e *wire.Encoder, want ops.Output) (*ops.Tensor, error) {
	n := want.Bytes()
	if !e.Inline(n) {
		return e.Frame(want.DType, want.Shape)
	}
	t := &ops.Tensor{DType: want.DType, Shape: want.Shape, Strides: ops.ContiguousStrides(want.DType, want.Shape)}
	at, bytes := r.pinned(uint64(n))
	t.Far = &small{at, bytes}
	return t, nil
}

// takeSmall makes the small results tensors of the heap.
func (r *run) takeSmall(outs []*ops.Tensor) {
	for _, t := range outs {
		if s, ok := t.Far.(*small); ok {
			t.Data, t.Far = append([]byte{}, s.bytes...), nil
		}
	}
}

// submission is what a call submits, in order and with nobody else in between. Its
// methods keep the first error.
type submission struct {
	*run
	err      error
	launches []gpu.Launch
	scratch  uint64 // bytes taken
}

// submit runs build under the lock, submits what it left, and waits for all of it, unless
// that is for Finish to do.
// need is the scratch memory that build will take.
func (r *run) submit(ctx context.Context, need uint64, build func(s *submission)) error {
	d := r.device
	d.submitting.Lock()
	s := &submission{run: r}
	s.err = d.growScratch(need)
	if s.err == nil {
		build(s)
	}
	err := s.finish()
	if err != nil {
		if recordErr := r.event.Record(d.stream); recordErr != nil {
			d.submitting.Unlock()
			return errors.Join(err, recordErr)
		}
	}
	d.submitting.Unlock()
	if err == nil && r.ahead {
		r.open = true
		return nil
	}
	// Also after an error: what was submitted must be over before memory is used again.
	if waitErr := r.wait(); waitErr != nil {
		return errors.Join(err, waitErr)
	}
	if err == nil {
		err = ctx.Err()
	}
	return err
}

const (
	// spinFor is how long a kernel may run that is not napped for: even the shortest nap
	// takes 11 us on an H200's host.
	spinFor  = 100 * time.Microsecond
	napFirst = 5 * time.Microsecond
	napLast  = 100 * time.Microsecond
	// slack is how late the kernel may end a nap: 50 us if it is not told.
	slack = 1000 // ns
)

// wait polls: an event that is waited for by the driver costs its thread, and is
// noticed later.
func (r *run) wait() error {
	begin, nap := time.Now(), napFirst
	if r.device.spins {
		// In one call: to yield between two looks wakes other threads, which take what comes after to their processors.
		if waited, err := r.event.Await(0, spinFor); waited.Done || err != nil {
			return err
		}
	}
	for {
		done, err := r.event.Query()
		if done || err != nil {
			return err
		}
		if time.Since(begin) < spinFor {
			runtime.Gosched()
			continue
		}
		// Timers of Go wait for a millisecond where nothing else runs.
		if err := unix.Prctl(unix.PR_SET_TIMERSLACK, slack, 0, 0, 0); err != nil {
			return err
		}
		pause := unix.NsecToTimespec(int64(nap))
		if err := unix.Nanosleep(&pause, nil); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		nap = min(nap*5/4, napLast)
	}
}

// scratchGranule is what the scratch memory is a multiple of.
const scratchGranule = 2 << 20

// growScratch makes the scratch memory large enough. REQUIRES: submitting is held.
func (d *Device) growScratch(need uint64) error {
	// NB: of a size that is no multiple of the granule NewSlab takes less.
	need = (need + memory.HeaderBytes + scratchGranule - 1) / scratchGranule * scratchGranule
	if need <= d.scratch.Size() {
		return nil
	}
	began := time.Now()
	if err := d.stream.Sync(); err != nil {
		return err
	}
	old := d.scratch.Size()
	if err := d.scratch.Close(); err != nil {
		return err
	}
	grown, err := d.gpu.NewSlab(gpu.SlabConfig{Size: gpu.Size{Bytes: need}})
	if err == nil {
		d.scratch = grown
		d.logf("cuda: the memory between kernels grows from %d to %d MiB, which took %v", old>>20, need>>20, time.Since(began).Round(time.Microsecond))
		return nil
	}
	if errors.Is(err, gpu.ErrOutOfMemory) {
		err = fmt.Errorf("%w: %d bytes beside the slab for what lies between kernels: use smaller chunks, or a smaller --device-memory-limit: %w", device.ErrNoRoom, need, err)
	}
	again, backErr := d.gpu.NewSlab(gpu.SlabConfig{Size: gpu.Size{Bytes: old}})
	if backErr != nil {
		return errors.Join(err, backErr)
	}
	d.scratch = again
	return err
}

// take is scratch memory for the rest of the submission.
func (s *submission) take(n uint64) uint64 {
	at := memory.HeaderBytes + s.scratch
	s.scratch += aligned(n)
	if at+aligned(n) > s.device.scratch.Size() {
		s.fail(fmt.Errorf("cuda: %s takes more scratch memory than it said", s.op))
		return s.device.scratch.Pointer(memory.HeaderBytes, 0)
	}
	return s.device.scratch.Pointer(at, n)
}

// aligned rounds up to what take gives.
func aligned(n uint64) uint64 { return (n + 255) &^ 255 }

func (s *submission) fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

func (s *submission) flush() { s.flushThen(nil) }

// flushThen submits what was gathered, and an event behind it if there is one.
func (s *submission) flushThen(after *gpu.Event) {
	if s.err == nil && s.used > s.sent {
		base := uint64(s.slot) * slotBytes
		n := s.used - s.sent
		to := s.device.slots.device.Pointer(memory.HeaderBytes+base+s.sent, n)
		s.err = s.device.stream.Copy([]gpu.Copy{gpu.ToDevice(to, s.device.slots.pinned.Address(base+s.sent, n), n)}, nil)
		s.sent = s.used
	}
	if s.err == nil && (len(s.launches) > 0 || after != nil) {
		s.err = s.device.stream.Launch(s.launches, after)
	}
	s.launches = s.launches[:0]
}

// finish submits the rest and the event that the call waits for. After an error the
// event was not recorded.
func (s *submission) finish() error {
	s.flushThen(s.event)
	return s.err
}

func (s *submission) launch(f *gpu.Function, blocks uint64, p *parameters) {
	s.launchGrid(f, gpu.Dim{uint32(blocks)}, threads, p)
	if blocks > maxBlocks {
		s.fail(fmt.Errorf("cuda: %s: %d blocks are more than a grid has", s.op, blocks))
	}
}

func (s *submission) launchGrid(f *gpu.Function, grid gpu.Dim, block uint32, p *parameters) {
	s.launches = append(s.launches, gpu.Launch{Function: f, Grid: grid, Block: gpu.Dim{block}, Parameters: p.bytes})
}

func (s *submission) copy(c gpu.Copy) {
	s.flush()
	if s.err == nil {
		s.err = s.device.stream.Copy([]gpu.Copy{c}, nil)
	}
}

func (s *submission) memset(at uint64, value byte, n uint64) {
	s.flush()
	if s.err == nil {
		s.err = s.device.stream.Memset(at, value, n)
	}
}

// uploadBytes is the scratch memory that tensors in the processor's memory need.
func uploadBytes(tensors ...*ops.Tensor) uint64 {
	var n uint64
	for _, t := range tensors {
		if t != nil && t.Far == nil && t.Len() > 0 {
			low, high := extent(t)
			n += aligned(uint64(high-low) + 16)
		}
	}
	return n
}

// nearBytes is up to which size near leaves a tensor where it is: a kernel reads it
// there before a copy of it would have been submitted.
const nearBytes = 256

// near is at for kernels that read each element once: what is small is read in the
// processor's memory.
func (s *submission) near(t *ops.Tensor) uint64 {
	if t.Len() == 0 || t.Far != nil {
		return s.at(t)
	}
	low, high := extent(t)
	n := uint64(high - low)
	shift := uint64(16-(t.Offset-low)%16) % 16
	if from := s.used + shift; n <= nearBytes && s.sent == s.used && from+n <= slotBytes-resultBytes {
		// NB: what is not sent lies behind what is.
		s.used = (from + n + 15) &^ 15
		s.sent = s.used
		at := uint64(s.slot)*slotBytes + from
		copy(s.device.slots.host.Bytes(at, n), t.Data[low:high])
		return s.device.slots.pinned.Address(at, n) + uint64(t.Offset-low)
	}
	return s.at(t)
}

// at is the device's address of a tensor's element with index zero. What lies in
// the processor's memory is copied first.
func (s *submission) at(t *ops.Tensor) uint64 {
	if t.Len() == 0 {
		return 0
	}
	if t.Far != nil {
		return t.Far.Address() + uint64(t.Offset)
	}
	low, high := extent(t)
	n := uint64(high - low)
	// Element zero comes to lie where all types are aligned.
	shift := uint64(16-(t.Offset-low)%16) % 16
	if from := s.used + shift; from+n <= slotBytes-resultBytes {
		s.used = (from + n + 15) &^ 15
		at := uint64(s.slot)*slotBytes + from
		copy(s.device.slots.host.Bytes(at, n), t.Data[low:high])
		return s.device.slots.device.Pointer(memory.HeaderBytes+at, n) + uint64(t.Offset-low)
	}
	to := s.take(n+16) + shift
	s.flush()
	if s.err == nil {
		// From memory that is not pinned the driver has copied the bytes when it returns.
		s.err = s.device.stream.Copy([]gpu.Copy{gpu.ToDevice(to, addressOfBytes(t.Data[low:high]), n)}, nil)
		runtime.KeepAlive(t.Data)
	}
	return to + uint64(t.Offset-low)
}
