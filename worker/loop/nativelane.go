package loop

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/patience"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/store"
)

// nativeLane runs what is handed to it, one after the other.
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
	// open are the calls that were started and not finished, in order; spent have ended, and their memory is to be
	// released: when what they made was told.
	open, spent []*calling
	// spare is memory for the result of the next call, while the lane is at short ones or looks for some.
	spare    store.Spare
	patience patience.Patience
	// watching: peers need not call, the lane will look. It does while it waits for something, and when it has run something
	// brief or submitted something short.
	watching bool
}

// maxOpen bounds them: enough for the device never to wait for the next of many small
// calls.
const maxOpen = 8

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
			l.n.lookout.going() // this run, and whatever else is for other threads to fetch
			l.execute(r)
		}
	}
}

// finishOne waits for the first of the open calls, or until there is another one to
// start behind them.
func (l *nativeLane) finishOne() {
	l.flush(l.n.hand) // nothing else is to be done now
	l.idle()
	c := l.open[0]
	done := c.started.Done()
	for ; !done && time.Since(c.begin) < l.n.linger; done = c.started.Done() {
		l.meanwhile(c)
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
			l.idle()
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
	l.spent = append(l.spent, c)
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
			l.idle()
		}
	}
	l.giveWay()
	l.rest()
	_, open = <-l.wake
	return open
}

// grace is how long the scheduler's report waits for what the lane is to do next: to send it wakes a thread, and
// behind a call on the device that costs nothing.
const grace = 50 * time.Microsecond

// giveWay lets what the lane has set going go on in this thread, so that it need not be fetched by another one, which may be
// asleep; and the scheduler hear.
func (l *nativeLane) giveWay() {
	if l.n.linger > 0 {
		runtime.Gosched()
	}
	l.idle()
}

// idle does what nobody waits for: the scheduler hears, and memory of calls that have ended is released.
func (l *nativeLane) idle() {
	l.n.idle()
	l.releaseSpent()
}

func (l *nativeLane) releaseSpent() {
	for _, c := range l.spent {
		c.release()
	}
	clear(l.spent)
	l.spent = l.spent[:0]
}

// look handles what peers say, and says whether they said anything. They need not call from now on, until rest.
func (l *nativeLane) look() bool {
	if !l.watching {
		l.watching = true
		l.n.lookout.looking(true)
	}
	return l.n.lookout.look()
}

// spareBytes is the largest spare.
const spareBytes = 4 << 20

// meanwhile does what follows from a call while the device is at it, once: it puts the result on the board, and has memory for the
// next call, which is often like this one.
func (l *nativeLane) meanwhile(c *calling) {
	if c.foreseen {
		return
	}
	c.foreseen = true
	c.announce()
	if l.spare.Reservation == 0 && c.needs > 0 && c.needs <= spareBytes {
		l.spare = l.n.store.Spare(c.needs)
	}
}

func (l *nativeLane) dropSpare() {
	l.n.store.Release(l.spare.Reservation)
	l.spare = store.Spare{}
}

// rest makes peers call, and is for what may take long: nothing is kept for calls that may follow. What peers said before is handled.
func (l *nativeLane) rest() {
	l.dropSpare()
	l.releaseSpent()
	if !l.watching {
		return
	}
	l.watching = false
	l.n.lookout.looking(false)
	if l.n.lookout.look() {
		l.idle()
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
	if l.spare.Reservation == 0 {
		l.releaseSpent() // there may be no more than that
	}
	p, err := c.prepare(&l.spare)
	if err == nil && r.noRoom == nil {
		// Nobody waits for calls that are long, or that may be interrupted.
		if s, able := p.(device.Starter); able && r.short && r.timeout == 0 && len(l.open) < maxOpen {
			if c.started, err = guarded(func() (device.Started, error) { return s.Start(c.ctx, c.allocNow) }); c.started != nil {
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
			l.idle()
			c.begin = time.Now()
			err = c.call(p)
		}
	}
	c.release()
	l.ended(c, err)
}
