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
	// maxFailedStarts in a row fail what waits for the process.
	maxFailedStarts = 3
	// maxDeaths of processes that a run was queued in, and not blamed for, before
	// it is blamed all the same: something in it may kill from another thread.
	maxDeaths = 3
)

// queued is a run that a lane has.
type queued struct {
	run *Run
	// ordinal is its number in the current process, 0 if it was not sent there.
	ordinal uint64
	// begun is when it was first seen at work, zero before.
	begun time.Time
	// stopping says why it is to be stopped; stopAt is when the process was
	// interrupted for it, zero before.
	stopping stopReason
	stopAt   time.Time
	// killed: the process was killed to stop it.
	killed bool
	deaths int
	// temporary are the objects that hold what it allocated; they are dropped when
	// it has ended and nobody writes to them.
	temporary []ledger.ObjectID
	// segments are what it reads besides the slab, in the current process.
	segments []*segment
}

type stopReason uint8

const (
	notStopped stopReason = iota
	stopCancelled
	stopTimeout
)

// lane keeps at most one process alive, and the runs for it.
type lane struct {
	pools   *Pools
	kind    string
	command []string
	index   int
	// need has room for one: there may be work for the lane's goroutine.
	need chan struct{}

	mu sync.Mutex
	// All below is guarded by mu.
	// queue are the runs that have no result yet, in order.
	queue []*queued
	// process is the one that is ready, nil if there is none.
	process *process
	eager   bool
	// started: a process got ready, and segments says whether the last one that did
	// knows memory besides the slab.
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

// ready hands what is queued to a process that got ready.
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

// find returns a run. REQUIRES: mu is held.
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
	// If it has begun, the watcher sees it at work and stops it.
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

// drop returns a run that was not sent, and has the process drop it otherwise, if
// it has not begun; without a process it is being buried, which settles it.
// REQUIRES: mu is held; it is released.
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

// keep is the lane's goroutine: it starts a process when one is needed, and the
// next one when that has died.
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

// once runs one process from its start to its end. ready says whether it ever
// got ready; if not, cause says why.
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
	// The process is gone and nobody writes to the slab any more.
	l.mu.Lock()
	l.process = nil
	l.mu.Unlock()
	p.close()
	l.bury(p)
	p.page.close()
	return true, ""
}

// bury settles what a dead process leaves: who is to blame, and what is to be
// done again.
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

// atWork returns the run that a process is working on, or died in, nil if none.
// REQUIRES: mu is held.
func (l *lane) atWork(p *process) *queued {
	begun, ended := p.page.begun(), p.page.ended()
	for _, q := range l.queue {
		if q.ordinal == 0 {
			continue
		}
		// A process without the control page is judged by the order of its link.
		if begun == 0 && ended == 0 || q.ordinal == begun && ended < begun {
			return q
		}
	}
	return nil
}

// guilty returns the run that a dead process had begun and not ended, nil if there is none. If the control page names
// no begun run, first is the first run that was sent: the process does not write the page and may have died of that
// run, or it died before it began one. So that run is tried again, and blamed when maxDeaths processes have died like
// that. REQUIRES: mu is held.
func (l *lane) guilty(p *process) (blamed, first *queued) {
	q := l.atWork(p)
	if q != nil && p.page.begun() == 0 && q.stopAt.IsZero() {
		return nil, q
	}
	return q, nil
}

// stopError says why and how a run was stopped.
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
