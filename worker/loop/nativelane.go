package loop

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/spin"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/store"
)

// nativeLane executes native runs one after the other, in a goroutine of its own. A lane is one
// execution slot of the worker: the machine hands runs to it, some of them in advance.
type nativeLane struct {
	n *native
	// wake signals a change of queue. It has room for one signal, so that start can send without
	// waiting. close closes it.
	wake chan struct{}

	mu sync.Mutex
	// queue, current, cancel and closed are guarded by mu. cancel ends the context of current.
	queue   []*nativeRun
	current *nativeRun
	cancel  context.CancelCauseFunc
	closed  bool

	// The fields below belong to the lane's goroutine.
	ctx     context.Context //nolint:containedctx // a new one per run would cost as much as a tiny op
	done    []*nativeRun
	flushed time.Time
	// open are the calls that were started on the device and not finished, in order. spent are
	// finished calls whose remaining memory is released later, after their results were published.
	open, spent []*calling
	// spare is memory for the result of the next call. The lane keeps it only while it executes
	// short calls or polls for some.
	spare store.Spare
	limit spin.Limit
	// polling: the lane polls for notifications, so peers need not wake this worker through the
	// socket. This is so while the lane waits, and after it has executed a brief run or submitted a
	// short one.
	polling bool
}

// maxOpen limits the open calls: enough that the device never waits for the next of many small
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
			// Finished runs must not wait for a long run.
			if !r.short || time.Since(l.flushed) > 200*time.Microsecond {
				l.flush(l.n.post)
			}
			// Reset the flag: this run set it, and other goroutines that were started run on other
			// threads.
			l.n.poller.started()
			l.execute(r)
		}
	}
}

// finishOne waits until the first of the open calls is finished, or returns early when there is
// another run to start behind it.
func (l *nativeLane) finishOne() {
	l.flush(l.n.hand) // the lane has nothing else to do now
	l.idle()
	c := l.open[0]
	done := c.started.Done()
	for ; !done && time.Since(c.begin) < l.n.linger; done = c.started.Done() {
		l.meanwhile(c)
		polled := l.poll()
		if len(l.open) < maxOpen {
			select {
			case _, open := <-l.wake:
				if open {
					return
				}
			default:
			}
		}
		if polled {
			l.idle()
		}
	}
	if !done {
		l.rest() // the remaining time is unknown
	}
	l.finish(c)
	l.open = append(l.open[:0], l.open[1:]...)
}

// finishAll waits for all open calls.
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

// ended records the outcome of a call.
func (l *nativeLane) ended(c *calling, err error) {
	r := c.run
	now := time.Now()
	r.runTime = now.Sub(c.begin)
	r.times.stored = now
	if len(l.open) > 1 && l.open[0] == c {
		// The next call occupies the device from now on.
		l.open[1].begin = now
		l.open[1].run.times.submitted = now
	}
	if err != nil {
		ctx := c.ctx
		if c.started != nil {
			// The lane's context may be cancelled because of another call.
			ctx = context.Background()
		}
		r.failure = taskError(ctx, r, err)
		if r.orphaned = l.n.lost(); r.orphaned {
			return
		}
	}
	l.done = append(l.done, r)
}

// sleep waits for work: it polls for a limited time and then blocks. It returns false if the lane
// is closed.
func (l *nativeLane) sleep() (open bool) {
	select {
	case _, open = <-l.wake:
		return open // the handover just before has produced new work for this lane
	default:
	}
	begin := time.Now()
	defer func() { l.limit.Waited(time.Since(begin)) }()
	// It does not yield between two polls: that would make the Go runtime wake other threads to
	// look for work.
	for told := false; l.n.busy.Load() && time.Since(begin) < l.limit.Now(); {
		polled := l.poll()
		select {
		case _, open = <-l.wake:
			return open
		default:
		}
		switch {
		case !told && time.Since(begin) > grace, l.n.poller.started():
			told = true
			l.giveWay()
		case polled && told:
			l.idle()
		}
	}
	l.giveWay()
	l.rest()
	_, open = <-l.wake
	return open
}

// grace is how long the reports to the scheduler wait for the lane's next run. Sending them wakes a
// thread; once a call is on the device, that costs nothing.
const grace = 50 * time.Microsecond

// giveWay yields the thread to goroutines that the lane has made ready, so that no other thread,
// which may be asleep, has to take them over. It also sends the reports to the scheduler.
func (l *nativeLane) giveWay() {
	if l.n.linger > 0 {
		runtime.Gosched()
	}
	l.idle()
}

// idle does the deferred work that nothing waits for: it sends the reports to the scheduler and
// releases the memory of finished calls.
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

// poll handles notifications from peers and says whether there were any. From now until rest, peers
// need not wake this worker.
func (l *nativeLane) poll() bool {
	if !l.polling {
		l.polling = true
		l.n.poller.setPolling(true)
	}
	return l.n.poller.poll()
}

// spareBytes is the largest spare.
const spareBytes = 4 << 20

// meanwhile does work ahead while the device executes a call, once per call: it publishes the
// arriving result in the shared object index, and allocates memory for the next call, which often
// has a result of the same size.
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

// rest prepares the lane for a wait or a call that may be long: it drops the spare, releases the
// memory of finished calls, makes peers wake this worker again, and handles the notifications that
// arrived before.
func (l *nativeLane) rest() {
	l.dropSpare()
	l.releaseSpent()
	if !l.polling {
		return
	}
	l.polling = false
	l.n.poller.setPolling(false)
	if l.n.poller.poll() {
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
	// One context serves all runs until a run is cancelled.
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

// execute executes a run that has begun. A short run that the device can start asynchronously is
// only started, behind the open calls.
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
		l.releaseSpent() // there may be no memory beside theirs
	}
	p, err := c.prepare(&l.spare)
	if err == nil && r.noRoom == nil {
		// Long calls and calls with a timeout are not started asynchronously: they must be waited
		// for in a way that can be interrupted.
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
