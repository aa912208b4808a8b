package executor

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	executorv1 "github.com/millrace/millrace/gen/go/millrace/executor/v1"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/worker/lifecycle"
)

const (
	// firstBackoff and longestBackoff bound the time between two starts of a process that dies,
	// which doubles: one death costs little, and a process that always dies costs no processor.
	firstBackoff   = 100 * time.Millisecond
	longestBackoff = 10 * time.Second
	// maxFailedStarts is the number of consecutive failed starts after which all runs that wait for
	// the process fail.
	maxFailedStarts = 3
	// maxDeaths is the number of process deaths at which a run is blamed that was in the process
	// each time: the run may kill its process from another thread.
	maxDeaths = 3
	// maxKills is the number of kills from outside, before the function of a run was called, or
	// before the process was ready, at which the run fails. They are no fault of the run; but
	// something ends each process.
	maxKills = 100
)

// queued is a run in the queue of a slot.
type queued struct {
	run *Run
	// ordinal is the run's number in the current process, 0 if it was not sent to that process.
	ordinal uint64
	// begun is the time at which the run was first seen running, zero before.
	begun time.Time
	// called: the worker was told that the function is running.
	called bool
	// stopping is the reason why the run must stop. stopAt is the time at which the process was
	// interrupted for that, zero before.
	stopping stopReason
	stopAt   time.Time
	// killed: the process was killed to stop the run.
	killed bool
	// deaths and kills count the processes that died when the run was, as far as is known, the next
	// to begin, or had begun and not called its function; kills are those by SIGKILL from outside.
	deaths, kills int
	// blocked: the worker was told that the run waits for other tasks.
	blocked bool
	// why is the reason for stopRefused.
	why string
	// temporary are the objects that hold the memory that the run allocated.
	// They are dropped after the run has ended, when the process does not write to them any more.
	temporary []ledger.ObjectID
	// segments are the memory outside of the slab that the run reads in the current process.
	segments []*segment
}

type stopReason uint8

const (
	notStopped stopReason = iota
	stopCancelled
	stopTimeout
	// stopRefused: the worker cannot let it wait for other tasks.
	stopRefused
)

// slot is one worker slot of an executor kind. It keeps at most one process alive, and holds the
// queue of runs for this process.
type slot struct {
	pools   *Pools
	kind    string
	command []string
	index   int
	// need has capacity 1. An entry means that there may be work for the slot's goroutine.
	need chan struct{}

	mu sync.Mutex
	// The fields below are guarded by mu.
	//
	// queue are the runs that have no result yet, in order.
	queue []*queued
	// process is the process that is ready, nil if there is none.
	process *process
	// eager: start a process although no run waits for it (Config.StartAtOnce).
	eager bool
	// started says that some process of this slot became ready; segments, whether the last such
	// process can read memory outside of the slab.
	started, segments bool
	// awaiting are the channels of those that wait for a process, each with room for one answer.
	awaiting []chan<- started
}

func (s *slot) wake() {
	select {
	case s.need <- struct{}{}:
	default:
	}
}

func (s *slot) start(r *Run) {
	q := &queued{run: r}
	s.mu.Lock()
	p := s.process
	if p != nil {
		if refused := p.refuses(r); refused != nil {
			s.mu.Unlock()
			s.pools.config.Done([]Result{*refused})
			return
		}
	}
	// Runs that were held back begin before this one.
	held := p != nil && (s.pools.guard.holds() || s.unsent())
	s.queue = append(s.queue, q)
	if p != nil && !held {
		p.send(q)
	}
	s.mu.Unlock()
	s.pools.guard.note()
	if p == nil {
		s.wake()
	}
}

// unsent reports whether a run waits to be sent. REQUIRES: mu is held.
func (s *slot) unsent() bool {
	return slices.ContainsFunc(s.queue, func(q *queued) bool { return q.ordinal == 0 })
}

// resume sends the runs that were held back because functions used too much memory.
func (s *slot) resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil || s.pools.guard.holds() {
		return
	}
	for _, q := range s.queue {
		if q.ordinal == 0 {
			s.process.send(q)
		}
	}
}

// ready sends the queued runs to a process that has just become ready, or holds them back while
// functions use too much memory.
func (s *slot) ready(p *process) {
	var refused []Result
	s.mu.Lock()
	s.process, s.started, s.segments = p, true, p.supportsSegments
	p.idleSince = time.Now()
	s.settleAwaiting(started{process: p})
	queue := s.queue
	s.queue = nil
	for _, q := range queue {
		if no := p.refuses(q.run); no != nil {
			refused = append(refused, *no)
			continue
		}
		s.queue = append(s.queue, q)
		if !s.pools.guard.holds() {
			p.send(q)
		}
	}
	s.mu.Unlock()
	if len(refused) > 0 {
		s.pools.config.Done(refused)
	}
}

// find returns a queued run, nil if there is none. REQUIRES: mu is held.
func (s *slot) find(ref lifecycle.Ref) *queued {
	for _, q := range s.queue {
		if q.run.Ref == ref {
			return q
		}
	}
	return nil
}

// remove takes a run out of the queue. REQUIRES: mu is held.
func (s *slot) remove(q *queued) {
	for i, x := range s.queue {
		if x == q {
			if i == 0 {
				s.queue[0] = nil
				s.queue = s.queue[1:]
			} else {
				s.queue = append(s.queue[:i:i], s.queue[i+1:]...)
			}
			break
		}
	}
	if len(s.queue) == 0 {
		s.queue = nil
	}
}

func (s *slot) stop(ref lifecycle.Ref) {
	s.mu.Lock()
	q := s.find(ref)
	if q == nil {
		s.mu.Unlock()
		return
	}
	if q.stopping == notStopped {
		q.stopping = stopCancelled
	}
	// If the run has begun, the watcher sees it running and interrupts it.
	s.drop(q)
}

// refuse ends a run that has begun and must fail, because the worker cannot let it wait for other
// tasks.
func (s *slot) refuse(ref lifecycle.Ref, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.find(ref); q != nil && q.stopping == notStopped {
		q.stopping, q.why = stopRefused, why
	}
}

// goOn lets a run go on that waited for other tasks.
func (s *slot) goOn(ref lifecycle.Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.find(ref)
	if q == nil || q.ordinal == 0 || s.process == nil {
		return // it is over, or starts again
	}
	q.blocked = false
	m := s.process.queue()
	m.Resumptions = append(m.Resumptions, &executorv1.AttemptRef{TaskId: uint64(ref.Task), Attempt: uint32(ref.Attempt)})
}

func (s *slot) takeBack(ref lifecycle.Ref) {
	s.mu.Lock()
	q := s.find(ref)
	if q == nil {
		s.mu.Unlock()
		return
	}
	s.drop(q)
}

// drop returns a run that was not sent to a process. If it was sent, drop asks the process to drop
// it, unless it has begun. If it was sent and the process is gone, settle is about to settle the
// run. REQUIRES: mu is held; drop releases it.
func (s *slot) drop(q *queued) {
	unsent := q.ordinal == 0
	switch {
	case unsent:
		s.remove(q)
	case s.process != nil:
		s.process.cancel(q)
	}
	s.mu.Unlock()
	if unsent {
		s.pools.config.Done([]Result{{Ref: q.run.Ref, Returned: true}})
	}
}

// run is the slot's goroutine. It starts a process when one is needed, and a new one when that
// process has died.
func (s *slot) run() {
	failures, kills := 0, 0
	for {
		s.mu.Lock()
		needed := len(s.queue) > 0 || len(s.awaiting) > 0 || s.eager
		s.mu.Unlock()
		if !needed {
			select {
			case <-s.need:
				continue
			case <-s.pools.closing:
				return
			}
		}
		select {
		case <-s.pools.closing:
			return
		default:
		}
		if d := s.pools.config.Device; d != nil && d.Refused != nil {
			s.fail(fmt.Sprintf("the executor %q cannot use the memory of this worker: %v", s.kind, d.Refused))
			continue
		}
		ready, killed, cause := s.runProcess()
		if ready {
			failures, kills = 0, 0
			continue
		}
		select {
		case <-s.pools.closing:
			return
		default:
		}
		if killed {
			kills++
		} else {
			failures++
		}
		s.pools.config.Log.Error("executor did not get ready", "kind", s.kind, "slot", s.index, "attempt", failures+kills, "cause", cause)
		if failures >= maxFailedStarts || kills >= maxKills {
			s.fail(fmt.Sprintf("the executor %q did not get ready, %d times in a row; the last one %s", s.kind, failures+kills, cause))
		}
		if !s.pools.pause(min(firstBackoff<<min(max(failures-1, 0), 10), longestBackoff)) {
			return
		}
	}
}

// fail ends all runs of a slot that has no process.
func (s *slot) fail(message string) {
	s.mu.Lock()
	queue := s.queue
	s.queue = nil
	s.eager = false
	s.settleAwaiting(started{err: errors.New(message)})
	s.mu.Unlock()
	var results []Result
	for _, q := range queue {
		if q.stopping == stopCancelled {
			results = append(results, Result{Ref: q.run.Ref, Returned: true})
			continue
		}
		results = append(results, failed(q.run, lifecycle.ExecutorDied, &millracev1.TaskError{Reason: "EXECUTOR_DIED", Message: message}))
	}
	if len(results) > 0 {
		s.pools.config.Done(results)
	}
}

// runProcess runs one process from its start to its end. ready reports whether the process became
// ready; if not, cause is the reason, and killed says that SIGKILL from outside ended it.
func (s *slot) runProcess() (ready, killed bool, cause string) {
	p := s.pools.takeSpare(s.kind)
	spare := p != nil
	if !spare {
		var err error
		if p, err = s.pools.startProcess(s.kind, s.command, false, nil); err != nil {
			return false, false, err.Error()
		}
	}
	p.join(s)
	if !p.awaitReady() {
		killed = p.end()
		return false, killed, p.describe(nil)
	}
	if p.supportsSpare {
		s.pools.wantSpare(s.kind)
	}
	if err := p.plugIn(func() { s.ready(p) }); err != nil {
		killed = p.end()
		if p.renewed.Load() {
			return false, true, err.Error()
		}
		s.mu.Lock()
		s.settleAwaiting(started{err: err})
		s.mu.Unlock()
		return false, killed, err.Error()
	}
	s.pools.config.Log.Info("executor ready", "kind", s.kind, "slot", s.index, "pid", p.pid(), "language", p.language, "spare", spare)
	p.serve()
	// The process has ended, so nothing writes to the slab any more.
	s.mu.Lock()
	s.process = nil
	s.mu.Unlock()
	p.close()
	s.settle(p)
	close(p.settled)
	p.page.Close()
	return true, false, ""
}

// end ends a process that has had no run. killed: SIGKILL from outside has ended it before.
func (p *process) end() (killed bool) {
	before := false
	select {
	case <-p.exited:
		before = true
	default:
		p.kill()
		<-p.exited
	}
	p.close()
	p.page.Close()
	return before && p.killedFromOutside()
}

// settle settles the runs of a dead process: it decides which run is blamed for the death, and
// which runs are repeated in the next process.
func (s *slot) settle(p *process) {
	closing := false
	select {
	case <-s.pools.closing:
		closing = true
	default:
	}
	renewed := p.renewed.Load()
	s.mu.Lock()
	wanted := closing || renewed || p.retired || p.replaced.Load()
	blamed, first := s.blamed(p)
	innocent := p.writesCalled && p.killedFromOutside() && !p.called(cmp.Or(blamed, first))
	cause := p.describe(blamed)
	queue := s.queue
	s.queue = nil
	var results []Result
	var temporary []ledger.ObjectID
	for _, q := range queue {
		temporary = append(temporary, q.temporary...)
		q.temporary, q.segments = nil, nil
		switch {
		case renewed || q.ordinal == 0:
		case innocent && (q == blamed || blamed == nil && q == first):
			q.kills++
		case !innocent && blamed == nil && (first == nil || q == first):
			q.deaths++
		}
		interrupted := !q.stopAt.IsZero()
		q.ordinal, q.begun, q.stopAt, q.called = 0, time.Time{}, time.Time{}, false
		switch {
		case closing:
		case q == blamed && interrupted:
			wanted = true
			results = append(results, failed(q.run, lifecycle.Failed, stopError(q, "ending the executor process", s.pools.config.StopGrace)))
		case q == blamed && !renewed && !innocent || q.deaths >= maxDeaths || q.kills >= maxKills:
			did := "ran the task"
			if innocent {
				did = "prepared the task"
			}
			results = append(results, failed(q.run, lifecycle.ExecutorDied, p.deathError(did, cause)))
		case q.stopping == stopCancelled:
			results = append(results, Result{Ref: q.run.Ref, Returned: true})
		default:
			s.queue = append(s.queue, q)
			if q.blocked {
				q.blocked = false
				results = append(results, Result{Ref: q.run.Ref, Unblocked: true})
			}
		}
	}
	s.mu.Unlock()
	for _, id := range temporary {
		s.pools.config.Store.Drop(id)
	}
	if !wanted {
		s.pools.recordDeath(fmt.Sprintf("%s executor %d (pid %d) %s", s.kind, s.index, p.pid(), cause))
		s.pools.config.Log.Warn("executor died", "kind", s.kind, "slot", s.index, "pid", p.pid(), "cause", cause)
	}
	if len(results) > 0 {
		s.pools.config.Done(results)
	}
}

// stopError returns the error that says why and how a run was stopped.
func stopError(q *queued, how string, grace time.Duration) *millracev1.TaskError {
	e := &millracev1.TaskError{Reason: "CANCELLED", Message: "the running task was cancelled, and stopped by " + how}
	if q.stopping == stopTimeout {
		e.Reason = "TIMEOUT"
		e.Message = fmt.Sprintf("the task ran longer than its timeout of %v, and was stopped by %s", q.run.Timeout, how)
	}
	if q.stopping == stopRefused {
		e.Reason, e.Message = "TOO_MANY_WAITING", "the task was stopped by "+how+": "+q.why
	}
	e.Metadata = map[string]string{"stopped_by": "interrupt"}
	if q.killed {
		e.Message += fmt.Sprintf(" because it did not end within %v of being interrupted", grace)
		e.Metadata["stopped_by"] = "kill"
	}
	return e
}
