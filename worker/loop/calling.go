package loop

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/text"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/store"
	"github.com/millrace/millrace/worker/value"
)

// calling is a call of the device for a run.
type calling struct {
	n   *native
	run *nativeRun
	ctx context.Context //nolint:containedctx // its lane's, or one that ends with its timeout
	// begin is when it began, or when the one before it ended if it was started earlier.
	begin time.Time
	// reservation has its memory, 0: none yet. own: it is not the loop's to give back.
	reservation ledger.ReservationID
	own         bool
	// needs is the size of its result, 0 if that is small or not known. foreseen: see nativeLane.meanwhile.
	needs    uint64
	foreseen bool
	// frame is the result's, if it was had beforehand and has not been asked for yet.
	frame   memory.Frame
	started device.Started
	// took is how long its result took to make, 0 of what is small, or failed.
	took time.Duration
	// scratch are reservations for working memory, given back with release.
	scratch []ledger.ReservationID
}

func (c *calling) object() ledger.ObjectID {
	return ledger.ObjectID{Task: c.run.ref.Task, Generation: c.run.ref.Attempt}
}

// prepare understands the call and has memory for what it is known to return, or sets
// noRoom. A spare is taken if it is what the result needs.
func (c *calling) prepare(spare *store.Spare) (device.Prepared, error) {
	n, r := c.n, c.run
	r.call.Scratch = c
	p, err := guarded(func() (device.Prepared, error) { return n.device.Prepare(r.call) })
	if err != nil {
		return nil, err
	}
	if r.roomy {
		c.reservation = r.reservation
	}
	sizes := p.OutputBytes()
	if len(sizes) == 1 {
		c.needs = sizes[0]
	}
	if s := *spare; s.Reservation != 0 {
		*spare = store.Spare{}
		if c.reservation == 0 && c.needs == s.Frame.Bytes && n.store.Adopt(s, c.object(), holder(r.ref.Task)) == nil {
			c.reservation, c.own, c.frame = s.Reservation, true, s.Frame
			return p, nil
		}
		n.store.Release(s.Reservation)
	}
	if len(sizes) > 0 && c.reservation == 0 {
		// No waiting here: whoever waits for memory must not occupy a lane.
		reservation, granted, err := n.store.Reserve(holder(r.ref.Task), sizes, time.Time{}, nil)
		if err != nil {
			if errors.Is(err, ledger.ErrNoRoom) {
				r.noRoom = sizes
				return nil, nil
			}
			return nil, fmt.Errorf("%w: %w", device.ErrNoRoom, err)
		}
		if !granted {
			panic("loop: a reservation that may not wait was neither granted nor refused")
		}
		c.reservation, c.own = reservation, true
	}
	return p, nil
}

// errLater: memory is not there at once, and who starts calls does not wait for it.
var errLater = fmt.Errorf("%w at once", device.ErrNoRoom)

// allocNow is alloc that does not wait: of what is open, results may have the memory.
func (c *calling) allocNow(bytes uint64) (memory.Frame, error) {
	if c.reservation == 0 {
		return memory.Frame{}, errLater
	}
	return c.alloc(bytes)
}

// alloc is a device.Allocator.
func (c *calling) alloc(bytes uint64) (memory.Frame, error) {
	n, task := c.n, holder(c.run.ref.Task)
	if c.reservation == 0 {
		reservation, err := n.store.ReserveMore(c.ctx, task, []uint64{bytes}, n.memoryWait)
		if err != nil {
			return memory.Frame{}, fmt.Errorf("%w: %w", device.ErrNoRoom, err)
		}
		c.reservation, c.own = reservation, true
	}
	if f := c.frame; f.Bytes > 0 {
		if c.frame = (memory.Frame{}); f.Bytes == bytes {
			return f, nil
		}
		n.store.Rebuild(c.reservation, c.object()) // it has several
	}
	frames, err := n.store.Allocate(c.reservation, c.object(), bytes)
	if errors.Is(err, ledger.ErrOutgrown) {
		if err = n.store.Grow(c.ctx, c.reservation, task, []uint64{bytes}, n.memoryWait); err == nil {
			frames, err = n.store.Allocate(c.reservation, c.object(), bytes)
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
	reservation, err := n.store.ReserveMore(c.ctx, holder(c.run.ref.Task), []uint64{bytes}, n.memoryWait)
	if err != nil {
		return memory.Frame{}, fmt.Errorf("%w: %w", device.ErrNoRoom, err)
	}
	c.scratch = append(c.scratch, reservation)
	frames, err := n.store.Allocate(reservation, n.store.Temporary(), bytes)
	if err != nil {
		return memory.Frame{}, fmt.Errorf("%w: %w", device.ErrNoRoom, err)
	}
	return frames[0], nil
}

// guarded turns a panic in a device's code into the failure of one task: input of a client must not end a worker. A
// panic of the ledger (a broken invariant of the worker's own records) still ends the worker.
func guarded[T any](do func() (T, error)) (result T, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			if broken, is := cause.(error); is && strings.HasPrefix(broken.Error(), "ledger: ") {
				panic(cause)
			}
			err = &device.Error{Reason: "INTERNAL_PANIC", Message: text.Cut(fmt.Sprintf("internal error, please report it: %v\n%s", cause, debug.Stack()), messageBytes)}
		}
	}()
	return do()
}

// call runs it.
func (c *calling) call(p device.Prepared) error {
	result, err := guarded(func() (device.Result, error) { return p.Run(c.ctx, c.alloc) })
	c.run.times.submitted = time.Now()
	c.run.times.worked = c.run.times.submitted
	if err != nil {
		return err
	}
	return c.keep(result)
}

// announce puts a result that is being made on the board, where it has memory of its own: readers do not find it before it is
// sealed, which is then less to do.
func (c *calling) announce() {
	if header := c.started.Header(); header != nil {
		c.n.store.ShowArriving(c.object(), header)
	}
}

// finish ends a call that was started. Its memory is for the lane to release.
func (c *calling) finish() error {
	result, err := guarded(c.started.Finish)
	c.run.times.worked = time.Now()
	if err != nil {
		return err
	}
	return c.keep(result)
}

// release gives back what is left of its memory, and says what the result cost.
func (c *calling) release() {
	for _, reservation := range c.scratch {
		c.n.store.Release(reservation)
	}
	c.scratch = nil
	if c.own {
		c.n.store.Release(c.reservation)
	}
	if c.took > 0 {
		c.n.store.Cost(c.object(), c.took)
	}
}

// keep stores a result.
func (c *calling) keep(result device.Result) error {
	n, r, id := c.n, c.run, c.object()
	r.bytes = uint64(len(result.Header))
	if len(result.Frames) == 0 {
		if err := n.store.PutWithin(c.reservation, id, result.Header); err != nil {
			return fmt.Errorf("%w: %w", device.ErrNoRoom, err)
		}
		if len(result.Header) <= int(n.inlineBytes.Load()) {
			r.inline = result.Header
		}
		return nil
	}
	for _, f := range result.Frames {
		r.framed += f.Bytes
	}
	r.bytes += r.framed
	if r.bytes <= uint64(n.inlineBytes.Load()) {
		frames, err := n.store.Copies(result.Frames)
		if err != nil {
			return err
		}
		if inline, ok := value.Inline(result.Header, frames); ok {
			r.inline = inline
		}
	}
	c.took = time.Since(c.begin)
	return n.store.Seal(id, result.Header)
}
