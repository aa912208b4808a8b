package loop

import (
	"context"
	"sync"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/worker/lifecycle"
)

// maxReports and maxReportBytes bound one message, the latter but for its last
// report; the rest follows in the next.
const (
	maxReports     = 4096
	maxReportBytes = 8 << 20
)

// outbox is what the scheduler is to be told. The owner fills it, the session
// empties it.
type outbox struct {
	// ready has room for one: something is to be sent.
	ready chan struct{}
	// closed is closed by close.
	closed chan struct{}

	mu sync.Mutex
	// All below is guarded by mu.
	tasks     []*millracev1.TaskReport
	objects   []*millracev1.ObjectReport
	told      []chan struct{}
	functions [][]byte
	rescues   []*millracev1.RescueReport
	beat      *millracev1.WorkerStats
	leaving   bool
	pending   bool
	inFlight  []*millracev1.TaskReport
}

func newOutbox() *outbox {
	return &outbox{ready: make(chan struct{}, 1), closed: make(chan struct{})}
}

func (o *outbox) task(r *millracev1.TaskReport) {
	o.mu.Lock()
	o.tasks = append(o.tasks, r)
	o.pending = true
	o.mu.Unlock()
}

// object queues a report; told, if not nil, is closed when it has been sent.
func (o *outbox) object(r *millracev1.ObjectReport, told chan struct{}) {
	o.mu.Lock()
	o.objects = append(o.objects, r)
	if told != nil {
		o.told = append(o.told, told)
	}
	o.pending = true
	o.mu.Unlock()
}

func (o *outbox) rescue(r *millracev1.RescueReport) {
	o.mu.Lock()
	o.rescues = append(o.rescues, r)
	o.pending = true
	o.mu.Unlock()
}

func (o *outbox) missing(function []byte) {
	o.mu.Lock()
	o.functions = append(o.functions, function)
	o.pending = true
	o.mu.Unlock()
}

func (o *outbox) stats(s *millracev1.WorkerStats) {
	o.mu.Lock()
	if o.beat != nil && len(s.GetLanes()) == 0 {
		s.Lanes = o.beat.GetLanes() // they are told once
	}
	o.beat = s
	o.pending = true
	o.mu.Unlock()
}

func (o *outbox) leave() {
	o.mu.Lock()
	o.leaving = true
	o.pending = true
	o.mu.Unlock()
	o.signal()
}

func (o *outbox) close() { close(o.closed) }

// signal wakes the session. The owner calls it once per batch of its own.
func (o *outbox) signal() {
	o.mu.Lock()
	pending := o.pending
	o.mu.Unlock()
	if !pending {
		return
	}
	select {
	case o.ready <- struct{}{}:
	default:
	}
}

// reopen prepares for a new session: what was being sent when the last one broke
// is to be sent again. It returns the attempts whose final reports are queued.
// What was queued of objects is in the inventory, but for the copies that small
// scattered objects carry: it is said again, which does no harm.
func (o *outbox) reopen() []lifecycle.Ref {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tasks = append(o.inFlight, o.tasks...)
	o.inFlight = nil
	o.functions = nil
	var refs []lifecycle.Ref
	for _, r := range o.tasks {
		if r.GetOutcome() != millracev1.TaskOutcome_TASK_OUTCOME_STARTED && r.GetOutcome() != millracev1.TaskOutcome_TASK_OUTCOME_RETRACT_REFUSED {
			refs = append(refs, lifecycle.Ref{Task: ids.TaskID(r.GetTaskId()), Attempt: ids.Attempt(r.GetAttempt())})
		}
	}
	return refs
}

// take returns the next message and whom to tell when it has been sent; nil if
// there is nothing.
func (o *outbox) take() (m *millracev1.SessionRequest, told []chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.pending {
		return nil, nil
	}
	m = &millracev1.SessionRequest{Stats: o.beat, MissingFunctions: o.functions, Objects: o.objects, Rescues: o.rescues}
	told = o.told
	o.beat, o.functions, o.objects, o.rescues, o.told = nil, nil, nil, nil, nil
	n, bytes := 0, 0
	for ; n < len(o.tasks) && n < maxReports && bytes < maxReportBytes; n++ {
		r := o.tasks[n]
		bytes += len(r.GetInlineResult()) + len(r.GetLogTail())
		if e := r.GetError(); e != nil {
			bytes += len(e.GetMessage()) + len(e.GetTraceback()) + len(e.GetException().GetData()) + len(e.GetLogTail())
		}
	}
	if n < len(o.tasks) {
		m.Tasks, o.tasks = o.tasks[:n:n], o.tasks[n:]
	} else {
		m.Tasks, o.tasks = o.tasks, nil
		m.Leaving = o.leaving
		o.pending = false
	}
	o.inFlight = m.Tasks
	return m, told
}

// sent says that the message from take was handed to the stream.
func (o *outbox) sent(told []chan struct{}) {
	o.mu.Lock()
	o.inFlight = nil
	o.mu.Unlock()
	for _, c := range told {
		close(c)
	}
}

// unsent puts back what could not be sent, except for the task reports: reopen
// does that.
func (o *outbox) unsent(m *millracev1.SessionRequest, told []chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.objects = append(m.GetObjects(), o.objects...)
	o.rescues = append(m.GetRescues(), o.rescues...)
	o.told = append(told, o.told...)
	o.pending = true
}

// wait waits for something to send; false when there will be nothing any more.
func (o *outbox) wait(ctx context.Context) bool {
	select {
	case <-o.ready:
		return true
	case <-ctx.Done():
		return false
	case <-o.closed:
		return false
	}
}
