package loop

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/spin"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/store"
)

// nativeSlot executes native runs one after the other, in a goroutine of its own. The
// machine hands runs to it, some of them in advance.
type nativeSlot struct {
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

	// The fields below belong to the slot's goroutine.
	ctx     context.Context //nolint:containedctx // a new one per run would cost as much as a tiny op
	done    []*nativeRun
	flushed time.Time
	// open are the calls that were started on the device and not finished, in order. spent are
	// finished calls whose remaining memory is released later, after their results were published.
	open, spent []*calling
	// spare is memory for the result of the next call. The slot keeps it only while it executes
	// short calls or polls for some.
	spare store.Spare
	limit spin.Limit
	// width is the number of slots that the task of the run takes. cores is the function that tells
	// its call how many processors it may use.
	width int
	cores func() int
	// polling: the slot polls for notifications, so peers need not wake this worker through the
	// socket. This is so while the slot waits, and after it has executed a brief run or submitted a
	// short one.
	polling bool
}

func newNativeSlot(n *native) *nativeSlot {
	s := &nativeSlot{n: n, wake: make(chan struct{}, 1), limit: spin.New(n.spinTime)}
	s.cores = func() int { return n.cores.of(s.width) }
	return s
}

func (s *nativeSlot) run() {
	defer s.n.wait.Done()
	defer s.rest()
	for {
		r := s.next()
		switch {
		case r == nil && len(s.open) > 0:
			s.finishOne()
		case r == nil:
			s.flush(s.n.hand)
			if !s.sleep() {
				return
			}
		case !r.state.CompareAndSwap(runQueued, runBegun):
			r.returned = true
			s.done = append(s.done, r)
		default:
			// Finished runs must not wait for a long run.
			if !r.short || time.Since(s.flushed) > lifecycle.HandoverDelay {
				s.flush(s.n.post)
			}
			// Reset the flag: this run set it, and other goroutines that were started run on other
			// threads.
			s.n.poller.started()
			s.execute(r)
		}
	}
}

// finishOne waits until the first of the open calls is finished, or returns early when there is
// another run to start behind it.
func (s *nativeSlot) finishOne() {
	s.flush(s.n.hand) // the slot has nothing else to do now
	s.idle()
	c := s.open[0]
	done := c.started.Done()
	for ; !done && time.Since(c.begin) < s.n.spinTime; done = c.started.Done() {
		s.overlapWork(c)
		polled := s.poll()
		if len(s.open) < lifecycle.OpenCalls {
			select {
			case _, open := <-s.wake:
				if open {
					return
				}
			default:
			}
		}
		if polled {
			s.idle()
		}
	}
	if !done {
		s.rest() // the remaining time is unknown
	}
	s.finish(c)
	s.open = append(s.open[:0], s.open[1:]...)
}

// finishAll waits for all open calls.
func (s *nativeSlot) finishAll() {
	for _, c := range s.open {
		s.finish(c)
	}
	clear(s.open)
	s.open = s.open[:0]
}

func (s *nativeSlot) finish(c *calling) {
	s.ended(c, c.finish())
	s.spent = append(s.spent, c)
}

// ended records the outcome of a call.
func (s *nativeSlot) ended(c *calling, err error) {
	r := c.run
	now := time.Now()
	r.runTime = now.Sub(c.begin)
	r.times.stored = now
	if len(s.open) > 1 && s.open[0] == c {
		// The next call occupies the device from now on.
		s.open[1].begin = now
		s.open[1].run.times.submitted = now
	}
	if err != nil {
		ctx := c.ctx
		if c.started != nil {
			// The slot's context may be cancelled because of another call.
			ctx = context.Background()
		}
		r.failure = taskError(ctx, r, err)
		if r.orphaned = s.n.lost(); r.orphaned {
			return
		}
	}
	s.done = append(s.done, r)
}

// sleep waits for work: it polls for a limited time and then blocks. It returns false if the slot
// is closed.
func (s *nativeSlot) sleep() (open bool) {
	select {
	case _, open = <-s.wake:
		return open // the handover just before has produced new work for this slot
	default:
	}
	begin := time.Now()
	defer func() { s.limit.Waited(time.Since(begin)) }()
	// It does not yield between two polls: that would make the Go runtime wake other threads to
	// look for work.
	for told := false; s.n.busy.Load() && time.Since(begin) < s.limit.Now(); {
		polled := s.poll()
		select {
		case _, open = <-s.wake:
			return open
		default:
		}
		switch {
		case !told && time.Since(begin) > lifecycle.ReportGrace, s.n.poller.started():
			told = true
			s.giveWay()
		case polled && told:
			s.idle()
		}
	}
	s.giveWay()
	s.rest()
	_, open = <-s.wake
	return open
}

// giveWay yields the thread to goroutines that the slot has made ready, so that no other thread,
// which may be asleep, has to take them over. It also sends the reports to the scheduler.
func (s *nativeSlot) giveWay() {
	if s.n.spinTime > 0 {
		runtime.Gosched()
	}
	s.idle()
}

// idle does the deferred work that nothing waits for: it sends the reports to the scheduler and
// releases the memory of finished calls.
func (s *nativeSlot) idle() {
	s.n.idle()
	s.releaseSpent()
}

func (s *nativeSlot) releaseSpent() {
	for _, c := range s.spent {
		c.release()
	}
	clear(s.spent)
	s.spent = s.spent[:0]
}

// poll handles notifications from peers and says whether there were any. From now until rest, peers
// need not wake this worker.
func (s *nativeSlot) poll() bool {
	if !s.polling {
		s.polling = true
		s.n.poller.setPolling(true)
	}
	return s.n.poller.poll()
}

// overlapWork works ahead while the device executes a call, once per call: it publishes the
// arriving result in the shared object index, and allocates memory for the next call, which often
// has a result of the same size.
func (s *nativeSlot) overlapWork(c *calling) {
	if c.overlapped {
		return
	}
	c.overlapped = true
	c.announce()
	if s.spare.Reservation == 0 && c.needs > 0 && c.needs <= lifecycle.SpareBytes {
		s.spare = s.n.store.Spare(c.needs)
	}
}

func (s *nativeSlot) dropSpare() {
	s.n.store.Release(s.spare.Reservation)
	s.spare = store.Spare{}
}

// rest prepares the slot for a wait or a call that may be long: it drops the spare, releases the
// memory of finished calls, makes peers wake this worker again, and handles the notifications that
// arrived before.
func (s *nativeSlot) rest() {
	s.dropSpare()
	s.releaseSpent()
	if !s.polling {
		return
	}
	s.polling = false
	s.n.poller.setPolling(false)
	if s.n.poller.poll() {
		s.idle()
	}
}

func (s *nativeSlot) next() *nativeRun {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = nil
	if s.closed || len(s.queue) == 0 {
		return nil
	}
	r := s.queue[0]
	s.queue[0] = nil
	if s.queue = s.queue[1:]; len(s.queue) == 0 {
		s.queue = nil
	}
	// One context serves all runs until a run is cancelled.
	if s.ctx == nil || s.ctx.Err() != nil {
		s.ctx, s.cancel = context.WithCancelCause(context.Background())
	}
	s.current = r
	return r
}

func (s *nativeSlot) flush(to func([]*nativeRun)) {
	if done := s.done; len(done) > 0 {
		s.done = nil
		to(done)
	}
	s.flushed = time.Now()
}

// execute executes a run that has begun. A short run that the device can start asynchronously is
// only started, behind the open calls.
func (s *nativeSlot) execute(r *nativeRun) {
	if !r.short {
		s.rest()
	}
	c := &calling{n: s.n, run: r, ctx: s.ctx, begin: time.Now()}
	if r.timeout > 0 {
		limited, cancel := context.WithTimeoutCause(c.ctx, r.timeout, errTimeout)
		defer cancel()
		c.ctx = limited
	}
	r.times.begun = c.begin
	s.width, r.call.Cores = max(r.slots, 1), s.cores
	if s.spare.Reservation == 0 {
		s.releaseSpent() // there may be no memory beside theirs
	}
	p, err := c.prepare(&s.spare)
	if err == nil && r.noRoom == nil {
		// Long calls and calls with a timeout are not started asynchronously: they must be waited
		// for in a way that can be interrupted.
		if starter, able := p.(device.Starter); able && r.short && r.timeout == 0 && len(s.open) < lifecycle.OpenCalls {
			if c.started, err = guarded(func() (device.Started, error) { return starter.Start(c.ctx, c.allocNow) }); c.started != nil {
				s.open = append(s.open, c)
				r.times.submitted = time.Now()
				return
			}
			if errors.Is(err, errLater) {
				err = nil
			}
		}
		if err == nil {
			s.finishAll()
			if !r.brief {
				s.rest()
			}
			s.idle()
			c.begin = time.Now()
			s.n.cores.running.Add(1)
			err = c.call(p)
			s.n.cores.running.Add(-1)
		}
	}
	c.release()
	s.ended(c, err)
}
