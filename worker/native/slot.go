package native

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

// slot executes runs one after the other, in a goroutine of its own.
type slot struct {
	n *Slots
	// wake signals a change of queue. It has room for one signal, so that Start can send without
	// waiting. Close closes it.
	wake chan struct{}

	mu sync.Mutex
	// queue, current, cancel and closed are guarded by mu. cancel ends the context of current.
	queue   []*Run
	current *Run
	cancel  context.CancelCauseFunc
	closed  bool

	// The fields below belong to the slot's goroutine.
	ctx     context.Context //nolint:containedctx // a new one per run would cost as much as a tiny op
	done    []*Run
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

func newSlot(n *Slots) *slot {
	s := &slot{n: n, wake: make(chan struct{}, 1), limit: spin.New(n.config.SpinTime)}
	s.cores = func() int { return n.cores.of(s.width) }
	return s
}

func (s *slot) run() {
	defer s.n.wait.Done()
	defer s.rest()
	for {
		r := s.next()
		switch {
		case r == nil && len(s.open) > 0:
			s.finishOne()
		case r == nil:
			s.flush(s.n.host.HandOver)
			if !s.sleep() {
				return
			}
		case !r.state.CompareAndSwap(runQueued, runBegun):
			r.Returned = true
			s.done = append(s.done, r)
		default:
			// Finished runs must not wait for a long run.
			if !r.Short || time.Since(s.flushed) > lifecycle.HandoverDelay {
				s.flush(s.n.host.Ended)
			}
			// Reset the flag: this run set it, and other goroutines that were started run on other
			// threads.
			s.n.takeStarted()
			s.execute(r)
		}
	}
}

// finishOne waits until the first of the open calls is finished, or returns early when there is
// another run to start behind it.
func (s *slot) finishOne() {
	s.flush(s.n.host.HandOver) // the slot has nothing else to do now
	s.idle()
	c := s.open[0]
	done := c.started.Done()
	for ; !done && time.Since(c.begin) < s.n.config.SpinTime; done = c.started.Done() {
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
func (s *slot) finishAll() {
	for _, c := range s.open {
		s.finish(c)
	}
	clear(s.open)
	s.open = s.open[:0]
}

func (s *slot) finish(c *calling) {
	s.ended(c, c.finish())
	s.spent = append(s.spent, c)
}

// ended records the outcome of a call.
func (s *slot) ended(c *calling, err error) {
	r := c.run
	now := time.Now()
	r.RunTime = now.Sub(c.begin)
	r.Times.Stored = now
	if len(s.open) > 1 && s.open[0] == c {
		// The next call occupies the device from now on.
		s.open[1].begin = now
		s.open[1].run.Times.Submitted = now
	}
	if err != nil {
		ctx := c.ctx
		if c.started != nil {
			// The slot's context may be cancelled because of another call.
			ctx = context.Background()
		}
		r.Failure = taskError(ctx, r, err)
		if s.n.lost() {
			return
		}
	}
	s.done = append(s.done, r)
}

// sleep waits for work: it polls for a limited time and then blocks. It returns false if the slot
// is closed.
func (s *slot) sleep() (open bool) {
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
		case !told && time.Since(begin) > lifecycle.ReportGrace, s.n.takeStarted():
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
func (s *slot) giveWay() {
	if s.n.config.SpinTime > 0 {
		runtime.Gosched()
	}
	s.idle()
}

// idle does the deferred work that nothing waits for: it sends the reports to the scheduler and
// releases the memory of finished calls.
func (s *slot) idle() {
	s.n.host.Idle()
	s.releaseSpent()
}

func (s *slot) releaseSpent() {
	for _, c := range s.spent {
		c.release()
	}
	clear(s.spent)
	s.spent = s.spent[:0]
}

// poll handles notifications from peers and says whether there were any. From now until rest, peers
// need not wake this worker.
func (s *slot) poll() bool {
	if !s.polling {
		s.polling = true
		s.n.host.SetPolling(true)
	}
	return s.n.host.Poll()
}

// overlapWork works ahead while the device executes a call, once per call: it publishes the
// arriving result in the shared object index, and allocates memory for the next call, which often
// has a result of the same size.
func (s *slot) overlapWork(c *calling) {
	if c.overlapped {
		return
	}
	c.overlapped = true
	c.announce()
	if s.spare.Reservation == 0 && c.needs > 0 && c.needs <= lifecycle.SpareBytes {
		s.spare = s.n.config.Store.Spare(c.needs)
	}
}

func (s *slot) dropSpare() {
	s.n.config.Store.Release(s.spare.Reservation)
	s.spare = store.Spare{}
}

// rest prepares the slot for a wait or a call that may be long: it drops the spare, releases the
// memory of finished calls, makes peers wake this worker again, and handles the notifications that
// arrived before.
func (s *slot) rest() {
	s.dropSpare()
	s.releaseSpent()
	if !s.polling {
		return
	}
	s.polling = false
	s.n.host.SetPolling(false)
	if s.n.host.Poll() {
		s.idle()
	}
}

func (s *slot) next() *Run {
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

func (s *slot) flush(to func([]*Run)) {
	if done := s.done; len(done) > 0 {
		s.done = nil
		to(done)
	}
	s.flushed = time.Now()
}

// execute executes a run that has begun. A short run that the device can start asynchronously is
// only started, behind the open calls.
func (s *slot) execute(r *Run) {
	if !r.Short {
		s.rest()
	}
	c := &calling{n: s.n, run: r, ctx: s.ctx, begin: time.Now()}
	if r.Timeout > 0 {
		limited, cancel := context.WithTimeoutCause(c.ctx, r.Timeout, errTimeout)
		defer cancel()
		c.ctx = limited
	}
	r.Times.Begun = c.begin
	s.width, r.Call.Cores = max(r.Width, 1), s.cores
	if s.spare.Reservation == 0 {
		s.releaseSpent() // there may be no memory beside theirs
	}
	p, err := c.prepare(&s.spare)
	if err == nil && r.NoRoom == nil {
		// Long calls and calls with a timeout are not started asynchronously: they must be waited
		// for in a way that can be interrupted.
		if starter, able := p.(device.Starter); able && r.Short && r.Timeout == 0 && len(s.open) < lifecycle.OpenCalls {
			if c.started, err = guarded(func() (device.Started, error) { return starter.Start(c.ctx, c.allocNow) }); c.started != nil {
				s.open = append(s.open, c)
				r.Times.Submitted = time.Now()
				return
			}
			if errors.Is(err, errLater) {
				err = nil
			}
		}
		if err == nil {
			s.finishAll()
			if !r.Brief {
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
