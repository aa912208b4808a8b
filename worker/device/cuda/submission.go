package cuda

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	gpu "github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/ops"
)

// submission is the work that one call submits, in order and without work of other calls in
// between. Its methods keep the first error.
type submission struct {
	*run
	err     error
	scratch uint64 // bytes taken
}

// submit runs build under the lock, submits the work that build collected, and waits for the end of
// all of it. If the run is ahead, Finish waits instead. need is the amount of scratch memory that
// build will take.
func (r *run) submit(ctx context.Context, need uint64, build func(s *submission)) error {
	d := r.device
	d.submitting.Lock()
	d.batch.Reset()
	r.submission = submission{run: r}
	s := &r.submission
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
	// This also holds after an error: the submitted work must have ended before memory is used
	// again.
	if waitErr := r.wait(); waitErr != nil {
		return errors.Join(err, waitErr)
	}
	if err == nil {
		err = ctx.Err()
	}
	return err
}

const (
	// spinFor is how long wait polls without sleeping. Even the shortest sleep takes 11 us on an
	// H200's host.
	spinFor = 100 * time.Microsecond
	// napFirst and napLast bound the sleeps between two polls: a call is noticed later by at most
	// one sleep.
	napFirst = 5 * time.Microsecond
	napLast  = 100 * time.Microsecond
	// slack is the timer slack: how late the kernel may end a sleep. The kernel's default is 50 us.
	slack = 1000 // ns
)

// wait polls for the end of the call: it first spins, then sleeps between the polls. A wait in the
// driver would block a thread and notice the end later.
func (r *run) wait() error {
	begin, nap := time.Now(), napFirst
	if r.device.spins {
		// Spin in one call: a yield between two polls would wake other threads, and the work that
		// follows would move to their CPUs.
		if done, err := r.event.Await(spinFor); done || err != nil {
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
		// Go's timers can be a millisecond late on an otherwise idle process, so sleep by a system
		// call.
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

// scratchGranule is the unit of the size of the scratch memory.
const scratchGranule = 2 << 20

// growScratch makes the scratch memory at least need bytes large. It keeps the old memory until the
// new one is allocated. If both do not fit together, it frees the old one first. If that does not
// help, and the memory of the old size is taken meanwhile, there is no scratch memory: the next
// call tries again.
// REQUIRES: submitting is held.
func (d *Device) growScratch(need uint64) error {
	need = (need + scratchGranule - 1) / scratchGranule * scratchGranule
	old := d.scratch.Size()
	if need <= old {
		return nil
	}
	began := time.Now()
	if err := d.stream.Sync(); err != nil {
		return err
	}
	grown, err := d.gpu.NewScratch(need, 0)
	before := d.scratch
	if before != nil && (err == nil || errors.Is(err, gpu.ErrOutOfMemory)) {
		d.scratch = nil
		if closed := before.Close(); closed != nil {
			return errors.Join(closed, grown.Close())
		}
		if err != nil {
			grown, err = d.gpu.NewScratch(need, 0)
		}
	}
	if err == nil {
		d.scratch = grown
		d.logf("cuda: the scratch memory grows from %d to %d MiB, which took %v", old>>20, need>>20, time.Since(began).Round(time.Microsecond))
		return nil
	}
	if errors.Is(err, gpu.ErrOutOfMemory) {
		err = fmt.Errorf("%w: %d bytes of scratch memory beside the slab: use smaller chunks, or a smaller --device-memory-limit: %w", device.ErrNoRoom, need, err)
	}
	if d.scratch == nil && old > 0 {
		if again, failed := d.gpu.NewScratch(old, 0); failed == nil {
			d.scratch = again
		} else {
			err = errors.Join(err, failed)
		}
	}
	return err
}

// take takes scratch memory for the rest of the submission and returns its address.
func (s *submission) take(n uint64) uint64 {
	at := s.scratch
	s.scratch += aligned(n)
	if at+aligned(n) > s.device.scratch.Size() {
		s.fail(fmt.Errorf("cuda: %s takes more scratch memory than it said", s.op))
		return 0
	}
	return s.device.scratch.Pointer(at, n)
}

// aligned rounds up to the granularity of take.
func aligned(n uint64) uint64 { return (n + 255) &^ 255 }

func (s *submission) fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

func (s *submission) flush() { s.flushThen(nil) }

// flushThen submits the collected work in one call, and records the event after behind it unless
// after is nil.
func (s *submission) flushThen(after *gpu.Event) {
	b := &s.device.batch
	if s.err == nil && s.used > s.sent {
		base := uint64(s.slot) * slotBytes
		n := s.used - s.sent
		to := s.device.slots.device.Pointer(base+s.sent, n)
		b.Copy(gpu.ToDevice(to, s.device.slots.pinned.Address(base+s.sent, n), n))
		s.sent = s.used
	}
	if s.err == nil && (b.Len() > 0 || after != nil) {
		s.err = s.device.stream.Submit(b, after)
	}
	b.Reset()
}

// finish submits the remaining work and the event that the call waits for. After an error the event
// was not recorded.
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
	s.device.batch.Launch(gpu.Launch{Function: f, Grid: grid, Block: gpu.Dim{block}, Parameters: p.bytes})
}

// parameters returns the parameters of the next launch, empty.
func (s *submission) parameters() *parameters {
	p := &s.device.parameters
	p.bytes = p.bytes[:0]
	return p
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

// uploadBytes is the scratch memory that the tensors in the CPU's memory need.
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

// nearBytes is the largest size of a tensor that near leaves in the CPU's memory: a kernel reads it
// there sooner than a copy of it could be submitted.
const nearBytes = 256

// near is like at, for kernels that read each element once: they read small tensors directly in the
// CPU's memory.
func (s *submission) near(t *ops.Tensor) uint64 {
	if t.Len() == 0 || t.Far != nil {
		return s.at(t)
	}
	low, high := extent(t)
	n := uint64(high - low)
	shift := uint64(16-(t.Offset-low)%16) % 16
	if from := s.used + shift; n <= nearBytes && s.sent == s.used && from+n <= slotBytes-resultBytes {
		// NB: bytes that are not submitted yet lie behind those that are. This case requires that
		// there are none, since it counts its own bytes as submitted.
		s.used = (from + n + 15) &^ 15
		s.sent = s.used
		at := uint64(s.slot)*slotBytes + from
		copy(s.device.slots.host.Bytes(at, n), t.Data[low:high])
		return s.device.slots.pinned.Address(at, n) + uint64(t.Offset-low)
	}
	return s.at(t)
}

// at returns the device address of the tensor's element with index zero. A tensor in the CPU's
// memory is copied to the device first.
func (s *submission) at(t *ops.Tensor) uint64 {
	if t.Len() == 0 {
		return 0
	}
	if t.Far != nil {
		return t.Far.Address() + uint64(t.Offset)
	}
	low, high := extent(t)
	n := uint64(high - low)
	// Element zero gets an address that is aligned for all types.
	shift := uint64(16-(t.Offset-low)%16) % 16
	if from := s.used + shift; from+n <= slotBytes-resultBytes {
		s.used = (from + n + 15) &^ 15
		at := uint64(s.slot)*slotBytes + from
		copy(s.device.slots.host.Bytes(at, n), t.Data[low:high])
		return s.device.slots.device.Pointer(at, n) + uint64(t.Offset-low)
	}
	to := s.take(n+16) + shift
	s.flush()
	if s.err == nil {
		// If the memory is not pinned, the driver has usually copied the bytes when it returns. But
		// a device that reads pageable memory itself may read them only when the copy runs.
		s.err = s.device.stream.Copy([]gpu.Copy{gpu.ToDevice(to, addressOfBytes(t.Data[low:high]), n)}, nil)
		if s.err == nil && s.device.gpu.Info().Attributes.Pageable {
			s.err = s.device.stream.Sync()
		}
		runtime.KeepAlive(t.Data)
	}
	return to + uint64(t.Offset-low)
}
