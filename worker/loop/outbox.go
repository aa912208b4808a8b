package loop

import (
	"context"
	"sync"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/worker/lifecycle"
)

// These bound one message; the rest follows in the next. A message has one report at least, and each was made to fit by the time it
// was queued, so that no message comes near to MaxMessageBytes.
const (
	maxReports     = 4096
	maxReportBytes = 8 << 20
	maxObjects     = 1 << 16
	maxFunctions   = 1 << 16
	// maxFailed objects are named by one report on a rescue.
	maxFailed = 1 << 17
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
	objects   []queuedObject
	functions [][]byte
	rescues   []*millracev1.RescueReport
	beat      *millracev1.WorkerStats
	leaving   bool
	draining  bool
	pending   bool
	// inFlight and inFlightObjects are in the message that is being sent.
	inFlight        []*millracev1.TaskReport
	inFlightObjects []queuedObject
}

// queuedObject is a report on an object; told, if not nil, is closed when it has been sent.
type queuedObject struct {
	report *millracev1.ObjectReport
	told   chan struct{}
}

func newOutbox() *outbox {
	return &outbox{ready: make(chan struct{}, 1), closed: make(chan struct{})}
}

func (o *outbox) task(r *millracev1.TaskReport) {
	fitReport(r)
	o.mu.Lock()
	o.tasks = append(o.tasks, r)
	o.pending = true
	o.mu.Unlock()
}

// object queues a report; told, if not nil, is closed when it has been sent.
func (o *outbox) object(r *millracev1.ObjectReport, told chan struct{}) {
	o.mu.Lock()
	o.objects = append(o.objects, queuedObject{r, told})
	o.pending = true
	o.mu.Unlock()
}

func (o *outbox) rescue(r *millracev1.RescueReport) {
	fitTexts(r.ProtoReflect())
	o.mu.Lock()
	for failed := r.GetFailed(); len(failed) > maxFailed; failed = r.GetFailed() {
		o.rescues = append(o.rescues, &millracev1.RescueReport{WorkerId: r.GetWorkerId(), Reason: r.GetReason(), Failed: failed[:maxFailed]})
		r.Failed = failed[maxFailed:]
	}
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
	fitTexts(s.ProtoReflect())
	o.mu.Lock()
	if o.beat != nil && len(s.GetLanes()) == 0 {
		s.Lanes = o.beat.GetLanes() // they are told once
	}
	o.beat = s
	o.pending = true
	o.mu.Unlock()
}

// drain asks for leave. The caller signals.
func (o *outbox) drain() {
	o.mu.Lock()
	o.draining = true
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

// take returns the next message, nil if there is nothing.
func (o *outbox) take() *millracev1.SessionRequest {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.pending {
		return nil
	}
	m := &millracev1.SessionRequest{Stats: o.beat, Draining: o.draining}
	o.beat, o.draining = nil, false
	bytes, n := 0, 0
	for ; n < len(o.objects) && n < maxObjects && bytes < maxReportBytes; n++ {
		m.Objects = append(m.Objects, o.objects[n].report)
		bytes += len(o.objects[n].report.GetInlineResult())
	}
	o.inFlightObjects, o.objects = split(o.objects, n)
	m.MissingFunctions, o.functions = split(o.functions, maxFunctions)
	// A rescue that failed altogether is as large as many reports.
	n = 0
	for failed := 0; n < len(o.rescues) && failed < maxFailed; n++ {
		failed += 1 + len(o.rescues[n].GetFailed())
	}
	m.Rescues, o.rescues = split(o.rescues, n)
	for n = 0; n < len(o.tasks) && n < maxReports && bytes < maxReportBytes; n++ {
		r := o.tasks[n]
		bytes += len(r.GetInlineResult()) + len(r.GetLogTail()) + 16*len(r.GetUnreachable())
		if r.GetError() != nil {
			bytes += proto.Size(r.GetError())
		}
	}
	m.Tasks, o.tasks = split(o.tasks, n)
	if len(o.tasks)+len(o.objects)+len(o.functions)+len(o.rescues) == 0 {
		m.Leaving = o.leaving
		o.pending = false
	}
	o.inFlight = m.Tasks
	return m
}

// split returns the first n, and the others.
func split[T any](list []T, n int) (first, rest []T) {
	if n >= len(list) {
		return list, nil
	}
	return list[:n:n], list[n:]
}

// sent says that the message from take was handed to the stream.
func (o *outbox) sent() {
	o.mu.Lock()
	objects := o.inFlightObjects
	o.inFlight, o.inFlightObjects = nil, nil
	o.mu.Unlock()
	for _, x := range objects {
		if x.told != nil {
			close(x.told)
		}
	}
}

// unsent puts back what could not be sent, except for the task reports: reopen
// does that. REQUIRES: m is from take; reports in it may have been replaced.
func (o *outbox) unsent(m *millracev1.SessionRequest) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, r := range m.GetObjects() {
		o.inFlightObjects[i].report = r
	}
	o.objects = append(o.inFlightObjects, o.objects...)
	o.inFlightObjects = nil
	o.rescues = append(m.GetRescues(), o.rescues...)
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
