package executor

import (
	"fmt"
	"sync"
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/worker/lifecycle"
)

const (
	firstBackoff   = 100 * time.Millisecond
	longestBackoff = 10 * time.Second
	// maxFailedStarts is the number of consecutive failed starts after which all runs that wait for
	// the process fail.
	maxFailedStarts = 3
	// maxDeaths is the number of process deaths that a run survives without being blamed.
	// After that many deaths it is blamed, since the run may kill its process from another thread.
	maxDeaths = 3
)

// queued is a run in the queue of a lane.
type queued struct {
	run *Run
	// ordinal is the run's number in the current process, 0 if it was not sent to that process.
	ordinal uint64
	// begun is the time at which the run was first seen running, zero before.
	begun time.Time
	// stopping is the reason why the run must stop. stopAt is the time at which the process was
	// interrupted for that, zero before.
	stopping stopReason
	stopAt   time.Time
	// killed: the process was killed to stop the run.
	killed bool
	deaths int
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
)

// lane is one worker slot of an executor kind. It keeps at most one process alive, and holds the
// queue of runs for this process.
type lane struct {
	pools   *Pools
	kind    string
	command []string
	index   int
	// need has capacity 1. An entry means that there may be work for the lane's goroutine.
	need chan struct{}

	mu sync.Mutex
	// The fields below are guarded by mu.
	//
	// queue are the runs that have no result yet, in order.
	queue []*queued
	// process is the process that is ready, nil if there is none.
	process *process
	eager   bool
	// started says that some process of this lane became ready; segments, whether the last such
	// process understands memory outside of the slab.
	started, segments bool
}

func (l *lane) wake() {
	select {
	case l.need <- struct{}{}:
	default:
	}
}

func (l *lane) start(r *Run) {
	q := &queued{run: r}
	l.mu.Lock()
	p := l.process
	if p != nil {
		if refused := p.refuses(r); refused != nil {
			l.mu.Unlock()
			l.pools.config.Done([]Result{*refused})
			return
		}
	}
	l.queue = append(l.queue, q)
	if p != nil {
		p.send(q)
	}
	l.mu.Unlock()
	if p == nil {
		l.wake()
	}
}

// ready sends the queued runs to a process that has just become ready.
func (l *lane) ready(p *process) {
	var refused []Result
	l.mu.Lock()
	l.process, l.started, l.segments = p, true, p.understands
	queue := l.queue
	l.queue = nil
	for _, q := range queue {
		if no := p.refuses(q.run); no != nil {
			refused = append(refused, *no)
			continue
		}
		l.queue = append(l.queue, q)
		p.send(q)
	}
	l.mu.Unlock()
	if len(refused) > 0 {
		l.pools.config.Done(refused)
	}
}

// find returns a queued run, nil if there is none. REQUIRES: mu is held.
func (l *lane) find(ref lifecycle.Ref) *queued {
	for _, q := range l.queue {
		if q.run.Ref == ref {
			return q
		}
	}
	return nil
}

// remove takes a run out of the queue. REQUIRES: mu is held.
func (l *lane) remove(q *queued) {
	for i, x := range l.queue {
		if x == q {
			if i == 0 {
				l.queue[0] = nil
				l.queue = l.queue[1:]
			} else {
				l.queue = append(l.queue[:i:i], l.queue[i+1:]...)
			}
			break
		}
	}
	if len(l.queue) == 0 {
		l.queue = nil
	}
}

func (l *lane) stop(ref lifecycle.Ref) {
	l.mu.Lock()
	q := l.find(ref)
	if q == nil {
		l.mu.Unlock()
		return
	}
	if q.stopping == notStopped {
		q.stopping = stopCancelled
	}
	// If the run has begun, the watcher sees it running and interrupts it.
	l.drop(q)
}

func (l *lane) takeBack(ref lifecycle.Ref) {
	l.mu.Lock()
	q := l.find(ref)
	if q == nil {
		l.mu.Unlock()
		return
	}
	l.drop(q)
}

// drop returns a run that was not sent to a process. If it was sent, drop asks the process to drop
// it, unless it has begun. If it was sent and the process is gone, bury is about to settle the run.
// REQUIRES: mu is held; drop releases it.
func (l *lane) drop(q *queued) {
	unsent := q.ordinal == 0
	switch {
	case unsent:
		l.remove(q)
	case l.process != nil:
		l.process.cancel(q)
	}
	l.mu.Unlock()
	if unsent {
		l.pools.config.Done([]Result{{Ref: q.run.Ref, Returned: true}})
	}
}

// keep is the lane's goroutine. It starts a process when one is needed, and a new one when that
// process has died.
func (l *lane) keep() {
	failures := 0
	for {
		l.mu.Lock()
		needed := len(l.queue) > 0 || l.eager
		l.mu.Unlock()
		if !needed {
			select {
			case <-l.need:
				continue
			case <-l.pools.closing:
				return
			}
		}
		select {
		case <-l.pools.closing:
			return
		default:
		}
		if d := l.pools.config.Device; d != nil && d.Refused != nil {
			l.fail(fmt.Sprintf("the executor %q cannot use the memory of this worker: %v", l.kind, d.Refused))
			continue
		}
		ready, cause := l.once()
		if ready {
			failures = 0
			continue
		}
		select {
		case <-l.pools.closing:
			return
		default:
		}
		failures++
		l.pools.config.Log.Error("executor did not get ready", "kind", l.kind, "lane", l.index, "attempt", failures, "cause", cause)
		if failures >= maxFailedStarts {
			l.fail(fmt.Sprintf("the executor %q did not get ready, %d times in a row; the last one %s", l.kind, failures, cause))
		}
		if !l.pools.pause(min(firstBackoff<<min(failures-1, 10), longestBackoff)) {
			return
		}
	}
}

// fail ends all runs of a lane that has no process.
func (l *lane) fail(message string) {
	l.mu.Lock()
	queue := l.queue
	l.queue = nil
	l.eager = false
	l.mu.Unlock()
	var results []Result
	for _, q := range queue {
		if q.stopping == stopCancelled {
			results = append(results, Result{Ref: q.run.Ref, Returned: true})
			continue
		}
		results = append(results, failed(q.run, lifecycle.ExecutorDied, &millracev1.TaskError{Reason: "EXECUTOR_DIED", Message: message}))
	}
	if len(results) > 0 {
		l.pools.config.Done(results)
	}
}

// once runs one process from its start to its end. ready reports whether the process became ready;
// if not, cause is the reason.
func (l *lane) once() (ready bool, cause string) {
	p := l.pools.takeSpare(l.kind)
	spare := p != nil
	if !spare {
		var err error
		if p, err = l.pools.startProcess(l.kind, l.command, false, nil); err != nil {
			return false, err.Error()
		}
	}
	p.join(l)
	if !p.getReady() {
		p.kill()
		<-p.exited
		p.close()
		p.page.close()
		return false, p.describe(nil)
	}
	if p.knowsSpares {
		l.pools.wantSpare(l.kind)
	}
	l.ready(p)
	l.pools.config.Log.Info("executor ready", "kind", l.kind, "lane", l.index, "pid", p.pid(), "language", p.language, "spare", spare)
	p.serve()
	// The process has ended, so nothing writes to the slab any more.
	l.mu.Lock()
	l.process = nil
	l.mu.Unlock()
	p.close()
	l.bury(p)
	p.page.close()
	return true, ""
}

// bury settles the runs of a dead process: it decides which run is blamed for the death, and which
// runs are repeated in the next process.
func (l *lane) bury(p *process) {
	closing := false
	select {
	case <-l.pools.closing:
		closing = true
	default:
	}
	wanted := closing
	l.mu.Lock()
	blamed, first := l.guilty(p)
	cause := p.describe(blamed)
	queue := l.queue
	l.queue = nil
	var results []Result
	var temporary []ledger.ObjectID
	for _, q := range queue {
		temporary = append(temporary, q.temporary...)
		q.temporary, q.segments = nil, nil
		if blamed == nil && q.ordinal != 0 && (first == nil || q == first) {
			q.deaths++
		}
		interrupted := !q.stopAt.IsZero()
		q.ordinal, q.begun, q.stopAt = 0, time.Time{}, time.Time{}
		switch {
		case closing:
		case q == blamed && interrupted:
			wanted = true
			results = append(results, failed(q.run, lifecycle.Failed, stopError(q, "ending the executor process", l.pools.config.StopGrace)))
		case q == blamed || q.deaths >= maxDeaths:
			results = append(results, failed(q.run, lifecycle.ExecutorDied, p.deathError(cause)))
		case q.stopping == stopCancelled:
			results = append(results, Result{Ref: q.run.Ref, Returned: true})
		default:
			l.queue = append(l.queue, q)
		}
	}
	l.mu.Unlock()
	for _, id := range temporary {
		l.pools.config.Store.Drop(id)
	}
	if !wanted {
		l.pools.died(fmt.Sprintf("%s executor %d (pid %d) %s", l.kind, l.index, p.pid(), cause))
		l.pools.config.Log.Warn("executor died", "kind", l.kind, "lane", l.index, "pid", p.pid(), "cause", cause)
	}
	if len(results) > 0 {
		l.pools.config.Done(results)
	}
}

// atWork returns the run that a process is working on, or that it was working on when it died;
// nil if there is none. REQUIRES: mu is held.
func (l *lane) atWork(p *process) *queued {
	begun, ended := p.page.begun(), p.page.ended()
	for _, q := range l.queue {
		if q.ordinal == 0 {
			continue
		}
		// A process that does not use the control page handles its runs in the order in which they
		// were sent.
		if begun == 0 && ended == 0 || q.ordinal == begun && ended < begun {
			return q
		}
	}
	return nil
}

// guilty returns the run that a dead process had begun and not ended, nil if there is none.
// If the control page names no begun run, first is the first run that was sent.
// In that case there are two explanations: the process does not write the page and may have died of
// that run, or it died before it began any. So that run is repeated, and blamed only when maxDeaths
// processes have died like this. REQUIRES: mu is held.
func (l *lane) guilty(p *process) (blamed, first *queued) {
	q := l.atWork(p)
	if q != nil && p.page.begun() == 0 && q.stopAt.IsZero() {
		return nil, q
	}
	return q, nil
}

// stopError returns the error that says why and how a run was stopped.
func stopError(q *queued, how string, grace time.Duration) *millracev1.TaskError {
	e := &millracev1.TaskError{Reason: "CANCELLED", Message: "the running task was cancelled, and stopped by " + how}
	if q.stopping == stopTimeout {
		e.Reason = "TIMEOUT"
		e.Message = fmt.Sprintf("the task ran longer than its timeout of %v, and was stopped by %s", q.run.Timeout, how)
	}
	e.Metadata = map[string]string{"stopped_by": "interrupt"}
	if q.killed {
		e.Message += fmt.Sprintf(" because it did not end within %v of being interrupted", grace)
		e.Metadata["stopped_by"] = "kill"
	}
	return e
}
