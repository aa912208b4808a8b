package native

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/store"
	"github.com/millrace/millrace/worker/value"
)

// calling is one call of the device for a run.
type calling struct {
	n   *Slots
	run *Run
	ctx context.Context //nolint:containedctx // its slot's, or one that ends with its timeout
	// begin is the time when the call began. For a call that was started while another was open, it
	// is the time when that one ended.
	begin time.Time
	// reservation is the memory of the call, 0 if it has none yet. own: the call made the
	// reservation and must release it; otherwise the host does.
	reservation ledger.ReservationID
	own         bool
	// needs is the size of the result in bytes, 0 if there is not exactly one frame or the size is
	// unknown. overlapped: slot.overlapWork was done for this call.
	needs      uint64
	overlapped bool
	// frame is the frame of the spare that the call took over for its result, until alloc returns
	// it; zero if there is none.
	frame   memory.Frame
	started device.Started
	// took is the time that it took to make the result, for results with frames; 0 otherwise and on
	// failure.
	took time.Duration
	// scratch are the reservations of working memory; release releases them.
	scratch []ledger.ReservationID
}

func (c *calling) object() ledger.ObjectID {
	return ledger.ObjectID{Task: c.run.Ref.Task, Generation: c.run.Ref.Attempt}
}

// prepare parses the call and reserves memory for its result if the size is known. If there is no
// room it sets noRoom. It takes the spare if that has the right size, and releases it otherwise.
func (c *calling) prepare(spare *store.Spare) (device.Prepared, error) {
	n, r := c.n, c.run
	r.Call.Scratch = c
	p, err := guarded(func() (device.Prepared, error) { return n.config.Device.Prepare(r.Call) })
	if err != nil {
		return nil, err
	}
	if r.Roomy {
		c.reservation = r.Reservation
	}
	sizes := p.OutputBytes()
	if len(sizes) == 1 {
		c.needs = sizes[0]
	}
	if s := *spare; s.Reservation != 0 {
		*spare = store.Spare{}
		if c.reservation == 0 && c.needs == s.Frame.Bytes && n.config.Store.Adopt(s, c.object(), store.TaskHolder(r.Ref.Task)) == nil {
			c.reservation, c.own, c.frame = s.Reservation, true, s.Frame
			return p, nil
		}
		n.config.Store.Release(s.Reservation)
	}
	if len(sizes) > 0 && c.reservation == 0 {
		// It does not wait for memory: a run that waits for memory must not occupy a slot.
		reservation, granted, err := n.config.Store.Reserve(store.TaskHolder(r.Ref.Task), sizes, time.Time{}, nil)
		if err != nil {
			if errors.Is(err, ledger.ErrNoRoom) {
				r.NoRoom = sizes
				return nil, nil
			}
			return nil, fmt.Errorf("%w: %w", device.ErrNoRoom, err)
		}
		if !granted {
			panic("native: a reservation that may not wait was neither granted nor refused")
		}
		c.reservation, c.own = reservation, true
	}
	return p, nil
}

// errLater says that memory is not available at once: asynchronous starts do not wait for memory.
var errLater = fmt.Errorf("%w at once", device.ErrNoRoom)

// allocNow is alloc without waiting. The memory may be held by results of open calls, which would
// end only after the wait.
func (c *calling) allocNow(bytes uint64) (memory.Frame, error) {
	if c.reservation == 0 {
		return memory.Frame{}, errLater
	}
	return c.alloc(bytes)
}

// alloc is a device.Allocator. It may wait for memory.
func (c *calling) alloc(bytes uint64) (memory.Frame, error) {
	n, task := c.n, store.TaskHolder(c.run.Ref.Task)
	if c.reservation == 0 {
		reservation, err := n.config.Store.ReserveMore(c.ctx, task, []uint64{bytes}, n.config.MemoryWait)
		if err != nil {
			return memory.Frame{}, fmt.Errorf("%w: %w", device.ErrNoRoom, err)
		}
		c.reservation, c.own = reservation, true
	}
	if f := c.frame; f.Bytes > 0 {
		if c.frame = (memory.Frame{}); f.Bytes == bytes {
			return f, nil
		}
		// The spare does not match: the result has several frames.
		n.config.Store.Rebuild(c.reservation, c.object())
	}
	frames, err := n.config.Store.Allocate(c.reservation, c.object(), bytes)
	if errors.Is(err, ledger.ErrOutgrown) {
		if err = n.config.Store.Grow(c.ctx, c.reservation, task, []uint64{bytes}, n.config.MemoryWait); err == nil {
			frames, err = n.config.Store.Allocate(c.reservation, c.object(), bytes)
		}
	}
	if err != nil {
		return memory.Frame{}, fmt.Errorf("%w: %w", device.ErrNoRoom, err)
	}
	return frames[0], nil
}

// Scratch is part of device.Scratch.
func (c *calling) Scratch(bytes uint64) (memory.Frame, error) {
	n := c.n
	reservation, err := n.config.Store.ReserveMore(c.ctx, store.TaskHolder(c.run.Ref.Task), []uint64{bytes}, n.config.MemoryWait)
	if err != nil {
		return memory.Frame{}, fmt.Errorf("%w: %w", device.ErrNoRoom, err)
	}
	c.scratch = append(c.scratch, reservation)
	frames, err := n.config.Store.Allocate(reservation, n.config.Store.Temporary(), bytes)
	if err != nil {
		return memory.Frame{}, fmt.Errorf("%w: %w", device.ErrNoRoom, err)
	}
	return frames[0], nil
}

// guarded turns a panic in a device's code into the failure of one task: a client's input must not
// end the worker. A panic of the ledger (a broken invariant of the worker's own records) still ends
// the worker.
func guarded[T any](do func() (T, error)) (result T, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			if broken, is := cause.(error); is && strings.HasPrefix(broken.Error(), "ledger: ") {
				panic(cause)
			}
			err = &device.Error{Reason: "INTERNAL", Message: fmt.Sprintf("internal error, please report it: %v\n%s", cause, debug.Stack())}
		}
	}()
	return do()
}

// call executes the call and waits for its end.
func (c *calling) call(p device.Prepared) error {
	result, err := guarded(func() (device.Result, error) { return p.Run(c.ctx, c.alloc) })
	c.run.Times.Submitted = time.Now()
	c.run.Times.Worked = c.run.Times.Submitted
	if err != nil {
		return err
	}
	return c.keep(result)
}

// announce publishes the result in the shared object index while the device still computes it, if
// its header is known already. Readers cannot find the entry before the object is sealed; sealing
// then takes less time.
func (c *calling) announce() {
	if header := c.started.Header(); header != nil {
		c.n.config.Store.PublishArriving(c.object(), header)
	}
}

// finish waits for the end of a call that was started. The slot releases its memory later.
func (c *calling) finish() error {
	result, err := guarded(c.started.Finish)
	c.run.Times.Worked = time.Now()
	if err != nil {
		return err
	}
	return c.keep(result)
}

// release releases the remaining memory of the call, and records the cost of its result.
func (c *calling) release() {
	for _, reservation := range c.scratch {
		c.n.config.Store.Release(reservation)
	}
	c.scratch = nil
	if c.own {
		c.n.config.Store.Release(c.reservation)
	}
	if c.took > 0 {
		c.n.config.Store.Cost(c.object(), c.took)
	}
}

// keep stores a result, and its inline value if it is small.
func (c *calling) keep(result device.Result) error {
	n, r, id := c.n, c.run, c.object()
	r.Bytes = uint64(len(result.Header))
	if len(result.Frames) == 0 {
		if err := n.config.Store.PutWithin(c.reservation, id, result.Header); err != nil {
			return fmt.Errorf("%w: %w", device.ErrNoRoom, err)
		}
		if len(result.Header) <= int(n.inlineBytes.Load()) {
			r.Inline = result.Header
		}
		return nil
	}
	for _, f := range result.Frames {
		r.Framed += f.Bytes
	}
	r.Bytes += r.Framed
	if r.Bytes <= uint64(n.inlineBytes.Load()) {
		frames, err := n.config.Store.Copies(result.Frames)
		if err != nil {
			return err
		}
		if inline, ok := value.Inline(result.Header, frames); ok {
			r.Inline = inline
		}
	}
	c.took = time.Since(c.begin)
	return n.config.Store.Seal(id, result.Header)
}
