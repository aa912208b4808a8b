package loop

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/patience"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/store"
	"github.com/millrace/millrace/worker/value"
)

// nativeRun is one attempt for a native lane. Its lane owns it from Start to the
// moment that it posts it back.
type nativeRun struct {
	ref     lifecycle.Ref
	call    device.Call
	timeout time.Duration
	// short: nothing waits while it runs. brief: so short that words of peers can wait for its end.
	short, brief bool
	// reservation is memory set aside by the loop, which gives it back; 0: none.
	// roomy: the result fits in it; otherwise it is for the inputs alone.
	reservation ledger.ReservationID
	roomy       bool

	// state is where the run is, see the constants: it settles who was first,
	// the lane that begins it or the loop that takes it back.
	state atomic.Uint32

	// The outcome, set by the lane.
	returned bool
	noRoom   []uint64
	failure  *millracev1.TaskError
	inline   []byte
	bytes    uint64
	framed   uint64 // bytes without the header, 0 if that has all
	runTime  time.Duration
	times    runTimes
	// orphaned: the device was lost. Whoever repeats the attempt elsewhere is told by
	// the worker's end, and nobody that the attempt has failed.
	orphaned bool
}

const (
	runQueued uint32 = iota
	runBegun
	runTaken
)

var (
	errTimeout   = errors.New("out of time")
	errCancelled = errors.New("cancelled")
)

// native is the lanes that run built-in operations, a goroutine each.
type native struct {
	device device.Device
	store  *store.Store
	// memoryWait is how long a run waits for more memory.
	memoryWait time.Duration
	// inlineBytes is the largest result to send inline.
	inlineBytes *atomic.Uint32
	// lost says that the device is lost, and tells the owner; see Config.Health.
	lost func() bool
	// post takes runs that ended or are returned. hand is for a lane that has nothing
	// to do until they are taken. Whoever is told of what follows from that is told when
	// the lane calls idle: before it waits.
	post, hand func([]*nativeRun)
	idle       func()
	// linger is for how long a lane without work looks for more at most before it sleeps,
	// while busy says that the worker has attempts: see Config.Linger.
	linger  time.Duration
	busy    *atomic.Bool
	lookout lookout
	lanes   []*nativeLane
	wait    sync.WaitGroup
}

type nativeLane struct {
	n *native
	// wake has room for one; Start sends without waiting. Closed by close.
	wake chan struct{}

	mu sync.Mutex
	// queue, current, cancel and closed are guarded by mu. cancel ends current.
	queue   []*nativeRun
	current *nativeRun
	cancel  context.CancelCauseFunc
	closed  bool

	// Below belongs to the lane's goroutine.
	ctx     context.Context //nolint:containedctx // a new one per run would cost as much as a tiny op
	done    []*nativeRun
	flushed time.Time
	// open are the calls that were started and not finished, in order.
	open     []*calling
	patience patience.Patience
	// watching: peers need not call, the lane will look. It does while it waits for something, and when it has run something
	// brief or submitted something short.
	watching bool
}

// maxOpen bounds them: enough for the device never to wait for the next of many small
// calls.
const maxOpen = 8

func newNative(d device.Device, s *store.Store, memoryWait time.Duration, slots int, inlineBytes *atomic.Uint32, linger time.Duration, busy *atomic.Bool, out lookout, lost func() bool, post, hand func([]*nativeRun), idle func()) *native {
	n := &native{
		device: d, store: s, memoryWait: memoryWait, inlineBytes: inlineBytes, linger: linger, busy: busy, lookout: out, lost: lost, post: post, hand: hand, idle: idle,
	}
	for range slots {
		l := &nativeLane{n: n, wake: make(chan struct{}, 1), patience: patience.New(linger)}
		n.lanes = append(n.lanes, l)
		n.wait.Add(1)
		go l.run()
	}
	return n
}

// close stops what runs and waits for it. Its results are not posted.
func (n *native) close() {
	for _, l := range n.lanes {
		l.mu.Lock()
		l.closed = true
		if l.cancel != nil {
			l.cancel(errCancelled)
		}
		close(l.wake)
		l.mu.Unlock()
	}
	n.wait.Wait()
}

func (n *native) start(lane int, r *nativeRun) {
	l := n.lanes[lane]
	l.mu.Lock()
	l.queue = append(l.queue, r)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// stop ends a run that is at work, or keeps it from beginning.
func (n *native) stop(lane int, r *nativeRun) {
	if r.state.CompareAndSwap(runQueued, runTaken) {
		return // the lane finds out when it gets there
	}
	l := n.lanes[lane]
	l.mu.Lock()
	if l.current == r {
		l.cancel(errCancelled)
	}
	l.mu.Unlock()
}

// takeBack makes the lane return a run that it has not begun. The lane is at work
// on something else, so the run is returned here.
func (n *native) takeBack(lane int, r *nativeRun) {
	if !r.state.CompareAndSwap(runQueued, runTaken) {
		return
	}
	l := n.lanes[lane]
	l.mu.Lock()
	found := false
	for i, q := range l.queue {
		if q == r {
			l.queue = append(l.queue[:i], l.queue[i+1:]...)
			found = true
			break
		}
	}
	l.mu.Unlock()
	if found {
		r.returned = true
		n.post([]*nativeRun{r})
	}
	// Otherwise the lane holds it already, and returns it when it gets there.
}

func (l *nativeLane) run() {
	defer l.n.wait.Done()
	defer l.rest()
	for {
		r := l.next()
		switch {
		case r == nil && len(l.open) > 0:
			l.finishOne()
		case r == nil:
			l.flush(l.n.hand)
			if !l.sleep() {
				return
			}
		case !r.state.CompareAndSwap(runQueued, runBegun):
			r.returned = true
			l.done = append(l.done, r)
		default:
			// What is done must not wait for what is long.
			if !r.short || time.Since(l.flushed) > 200*time.Microsecond {
				l.flush(l.n.post)
			}
			l.execute(r)
		}
	}
}

// finishOne waits for the first of the open calls, or until there is another one to
// start behind them.
func (l *nativeLane) finishOne() {
	l.flush(l.n.hand) // nothing else is to be done now
	l.n.idle()
	c := l.open[0]
	done := c.started.Done()
	for ; !done && time.Since(c.begin) < l.n.linger; done = c.started.Done() {
		looked := l.look()
		if len(l.open) < maxOpen {
			select {
			case _, open := <-l.wake:
				if open {
					return
				}
			default:
			}
		}
		if looked {
			l.n.idle()
		}
	}
	if !done {
		l.rest() // nobody knows for how long
	}
	l.finish(c)
	l.open = append(l.open[:0], l.open[1:]...)
}

// finishAll waits for all of them.
func (l *nativeLane) finishAll() {
	for _, c := range l.open {
		l.finish(c)
	}
	clear(l.open)
	l.open = l.open[:0]
}

func (l *nativeLane) finish(c *calling) {
	l.ended(c, c.finish())
}

// ended notes what became of a call.
func (l *nativeLane) ended(c *calling, err error) {
	r := c.run
	now := time.Now()
	r.runTime = now.Sub(c.begin)
	r.times.stored = now
	if len(l.open) > 1 && l.open[0] == c {
		// The next one runs since now.
		l.open[1].begin = now
		l.open[1].run.times.submitted = now
	}
	if err != nil {
		ctx := c.ctx
		if c.started != nil {
			ctx = context.Background() // that another one was cancelled is not its business
		}
		r.failure = taskError(ctx, r, err)
		if r.orphaned = l.n.lost(); r.orphaned {
			return
		}
	}
	l.done = append(l.done, r)
}

// sleep waits for work, at first by looking for it; false when the lane is closed.
func (l *nativeLane) sleep() (open bool) {
	select {
	case _, open = <-l.wake:
		return open // what it has just handed over has set more going here
	default:
	}
	begin := time.Now()
	defer func() { l.patience.Waited(time.Since(begin)) }()
	// Without yielding between two looks, which would wake others to look for work.
	for told := false; l.n.busy.Load() && time.Since(begin) < l.patience.Now(); {
		looked := l.look()
		select {
		case _, open = <-l.wake:
			return open
		default:
		}
		switch {
		case !told && time.Since(begin) > grace, l.n.lookout.going():
			told = true
			l.giveWay()
		case looked && told:
			l.n.idle()
		}
	}
	l.giveWay()
	l.rest()
	_, open = <-l.wake
	return open
}

// grace is how long the scheduler's report waits for what the lane is to do next: to send it wakes a thread, and
// behind a call on the device that costs nothing.
const grace = 20 * time.Microsecond

// giveWay lets what the lane has set going go on in this thread, so that it need not be fetched by another one, which may be
// asleep; and the scheduler hear.
func (l *nativeLane) giveWay() {
	if l.n.linger > 0 {
		runtime.Gosched()
	}
	l.n.idle()
}

// look handles what peers say, and says whether they said anything. They need not call from now on, until rest.
func (l *nativeLane) look() bool {
	if !l.watching {
		l.watching = true
		l.n.lookout.looking(true)
	}
	return l.n.lookout.look()
}

// rest makes peers call, and is for what may take long. What they said before is handled.
func (l *nativeLane) rest() {
	if !l.watching {
		return
	}
	l.watching = false
	l.n.lookout.looking(false)
	if l.n.lookout.look() {
		l.n.idle()
	}
}

func (l *nativeLane) next() *nativeRun {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current = nil
	if l.closed || len(l.queue) == 0 {
		return nil
	}
	r := l.queue[0]
	l.queue[0] = nil
	if l.queue = l.queue[1:]; len(l.queue) == 0 {
		l.queue = nil
	}
	// One context serves all runs until one is cancelled.
	if l.ctx == nil || l.ctx.Err() != nil {
		l.ctx, l.cancel = context.WithCancelCause(context.Background())
	}
	l.current = r
	return r
}

func (l *nativeLane) flush(to func([]*nativeRun)) {
	if done := l.done; len(done) > 0 {
		l.done = nil
		to(done)
	}
	l.flushed = time.Now()
}

// execute runs what was begun, or starts it behind the calls that are open.
func (l *nativeLane) execute(r *nativeRun) {
	if !r.short {
		l.rest()
	}
	c := &calling{n: l.n, run: r, ctx: l.ctx, begin: time.Now()}
	if r.timeout > 0 {
		limited, cancel := context.WithTimeoutCause(c.ctx, r.timeout, errTimeout)
		defer cancel()
		c.ctx = limited
	}
	r.times.begun = c.begin
	p, err := c.prepare()
	if err == nil && r.noRoom == nil {
		// Nobody waits for calls that are long, or that may be interrupted.
		if s, able := p.(device.Starter); able && r.short && r.timeout == 0 && len(l.open) < maxOpen {
			if c.started, err = s.Start(c.ctx, c.allocNow); c.started != nil {
				l.open = append(l.open, c)
				r.times.submitted = time.Now()
				return
			}
			if errors.Is(err, errLater) {
				err = nil
			}
		}
		if err == nil {
			l.finishAll()
			if !r.brief {
				l.rest()
			}
			l.n.idle()
			c.begin = time.Now()
			err = c.call(p)
		}
	}
	c.release()
	l.ended(c, err)
}

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
	started     device.Started
}

func (c *calling) object() ledger.ObjectID {
	return ledger.ObjectID{Task: c.run.ref.Task, Generation: c.run.ref.Attempt}
}

// prepare understands the call and has memory for what it is known to return, or sets
// noRoom.
func (c *calling) prepare() (device.Prepared, error) {
	n, r := c.n, c.run
	p, err := n.device.Prepare(r.call)
	if err != nil {
		return nil, err
	}
	if r.roomy {
		c.reservation = r.reservation
	}
	if sizes := p.OutputBytes(); len(sizes) > 0 && c.reservation == 0 {
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

// call runs it.
func (c *calling) call(p device.Prepared) error {
	result, err := p.Run(c.ctx, c.alloc)
	c.run.times.submitted = time.Now()
	c.run.times.worked = c.run.times.submitted
	if err != nil {
		return err
	}
	return c.keep(result)
}

// finish ends a call that was started.
func (c *calling) finish() error {
	defer c.release()
	result, err := c.started.Finish()
	c.run.times.worked = time.Now()
	if err != nil {
		return err
	}
	return c.keep(result)
}

// release gives back what is left of its memory.
func (c *calling) release() {
	if c.own {
		c.n.store.Release(c.reservation)
	}
}

// keep stores a result.
func (c *calling) keep(result device.Result) error {
	n, r, id := c.n, c.run, c.object()
	r.bytes = uint64(len(result.Header))
	if len(result.Frames) == 0 {
		n.store.PutSmall(id, result.Header)
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
	n.store.Cost(id, time.Since(c.begin))
	return n.store.Seal(id, result.Header)
}

func holder(task ids.TaskID) ledger.Holder {
	return ledger.Holder{Kind: ledger.HolderTask, ID: uint64(task)}
}

// taskError puts a failure into the terms of the API.
func taskError(ctx context.Context, r *nativeRun, err error) *millracev1.TaskError {
	var failed *device.Error
	switch {
	case errors.Is(context.Cause(ctx), errTimeout):
		return &millracev1.TaskError{
			Reason:   "TIMEOUT",
			Message:  fmt.Sprintf("%s ran longer than its timeout of %v and was interrupted; raise the timeout or use smaller chunks", r.call.Op, r.timeout),
			Metadata: map[string]string{"timeout": r.timeout.String(), "stopped_by": "interrupt"},
		}
	case ctx.Err() != nil:
		return &millracev1.TaskError{Reason: "CANCELLED", Message: r.call.Op + " was cancelled while it ran"}
	case errors.As(err, &failed):
		return &millracev1.TaskError{Reason: failed.Reason, Message: failed.Message}
	case errors.Is(err, device.ErrNoRoom):
		return &millracev1.TaskError{Reason: "OUT_OF_MEMORY", Message: fmt.Sprintf("%s: %v", r.call.Op, err)}
	}
	return &millracev1.TaskError{Reason: "OP_FAILED", Message: fmt.Sprintf("%s: %v", r.call.Op, err)}
}
