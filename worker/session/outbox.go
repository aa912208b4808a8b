package session

import (
	"context"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/worker/lifecycle"
)

// Limits of one message; the rest follows in the next message. A message has at least one report,
// and each report was cut to its limits when it was queued, so no message comes near
// MaxMessageBytes.
const (
	maxReports     = 4096
	maxReportBytes = 8 << 20
	maxObjects     = 1 << 16
	maxFunctions   = 1 << 16
	// maxFailed is the largest number of objects that one report on a rescue names.
	maxFailed = 1 << 17
)

// Outbox queues the messages for the scheduler. The owner fills it, and the session empties it.
type Outbox struct {
	// ready signals that there is something to send. It has room for one signal.
	ready chan struct{}
	// closed is closed by Close.
	closed chan struct{}

	mu sync.Mutex
	// The fields below are guarded by mu.
	tasks     []*workerv1.TaskReport
	objects   []*workerv1.ObjectReport
	functions [][]byte
	rescues   []*workerv1.RescueReport
	beat      *workerv1.WorkerStats
	leaving   bool
	draining  bool
	pending   bool
	// mute: new entries belong to an earlier life of the scheduler and are dropped.
	mute bool
	// inFlight are the task reports in the message that is being sent.
	inFlight []*workerv1.TaskReport
}

// NewOutbox returns an empty outbox.
func NewOutbox() *Outbox {
	return &Outbox{ready: make(chan struct{}, 1), closed: make(chan struct{})}
}

// add changes the queues, unless the outbox is mute.
func (o *Outbox) add(enter func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.mute {
		enter()
		o.pending = true
	}
}

// Task queues a report on an attempt, cut to its limits.
func (o *Outbox) Task(r *workerv1.TaskReport) {
	fitReport(r)
	o.add(func() { o.tasks = append(o.tasks, r) })
}

// Object queues a report on an object.
func (o *Outbox) Object(r *workerv1.ObjectReport) {
	o.add(func() { o.objects = append(o.objects, r) })
}

// Rescue queues a report on a rescue, in parts if it is long.
func (o *Outbox) Rescue(r *workerv1.RescueReport) {
	fitTexts(r.ProtoReflect())
	for failed := r.GetFailed(); len(failed) > maxFailed; failed = r.GetFailed() {
		part := &workerv1.RescueReport{WorkerId: r.GetWorkerId(), Reason: r.GetReason(), Failed: failed[:maxFailed]}
		o.add(func() { o.rescues = append(o.rescues, part) })
		r.Failed = failed[maxFailed:]
	}
	o.add(func() { o.rescues = append(o.rescues, r) })
}

// Missing queues a request for a function.
func (o *Outbox) Missing(function []byte) {
	o.add(func() { o.functions = append(o.functions, function) })
}

// Stats replaces the state of the worker that is to be sent.
func (o *Outbox) Stats(s *workerv1.WorkerStats) {
	fitTexts(s.ProtoReflect())
	o.add(func() {
		if o.beat != nil && len(s.GetRoutes()) == 0 {
			s.Routes = o.beat.GetRoutes() // routes are reported once per change
		}
		o.beat = s
	})
}

// Drain asks the scheduler for permission to leave. The caller must call Signal.
func (o *Outbox) Drain() {
	o.mu.Lock()
	o.draining = true
	o.pending = true
	o.mu.Unlock()
}

// Leave queues the last message, after all others.
func (o *Outbox) Leave() {
	o.mu.Lock()
	o.leaving = true
	o.pending = true
	o.mu.Unlock()
	o.Signal()
}

// Close ends each Wait.
func (o *Outbox) Close() { close(o.closed) }

// Forget drops all queued entries. With mute set, further entries are dropped too, until the next
// forget.
func (o *Outbox) Forget(mute bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tasks, o.objects, o.functions, o.rescues, o.beat, o.inFlight = nil, nil, nil, nil, nil, nil
	o.mute, o.pending = mute, o.leaving || o.draining
}

// Signal wakes the session if there is something to send. The owner calls it once per batch of its
// work.
func (o *Outbox) Signal() {
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

// Reopen prepares for a new session: it queues the message again that was being sent when the last
// session ended. It returns the attempts whose final reports are queued. It drops queued reports on
// objects, because the inventory of the registration, which the caller makes afterwards, replaces
// them. A report that was older than an order to release the object would make the scheduler count
// on an object that is gone. But the loss of an object remains if the attempt that made it is still
// to be reported, because that report is read after the inventory. Objects that clients wrote and
// that are not accepted yet appear in no inventory: written lists the reports on all of them.
func (o *Outbox) Reopen(written []*workerv1.ObjectReport) []lifecycle.Ref {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tasks = append(o.inFlight, o.tasks...)
	o.inFlight = nil
	o.functions = nil
	var refs []lifecycle.Ref
	ended := map[lifecycle.Ref]bool{}
	for _, r := range o.tasks {
		if isFinal(r.GetOutcome()) {
			ref := lifecycle.Ref{Task: ids.TaskID(r.GetTaskId()), Attempt: ids.Attempt(r.GetAttempt())}
			refs, ended[ref] = append(refs, ref), true
		}
	}
	o.objects = slices.DeleteFunc(o.objects, func(r *workerv1.ObjectReport) bool {
		made := lifecycle.Ref{Task: ids.TaskID(r.GetReplica().GetTaskId()), Attempt: ids.Attempt(r.GetReplica().GetGeneration())}
		return r.GetEvent() != workerv1.ObjectEvent_OBJECT_EVENT_LOST || !ended[made]
	})
	o.objects = append(o.objects, written...)
	o.pending = o.pending || len(written) > 0
	return refs
}

// isFinal reports whether an outcome is the end of an attempt.
func isFinal(o workerv1.TaskOutcome) bool {
	return o != workerv1.TaskOutcome_TASK_OUTCOME_STARTED && o != workerv1.TaskOutcome_TASK_OUTCOME_RETRACT_REFUSED &&
		o != workerv1.TaskOutcome_TASK_OUTCOME_BLOCKED && o != workerv1.TaskOutcome_TASK_OUTCOME_GOES_ON
}

// Take returns the next message, nil if there is nothing to send.
func (o *Outbox) Take() *workerv1.SessionRequest {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.pending {
		return nil
	}
	m := &workerv1.SessionRequest{Stats: o.beat, Draining: o.draining}
	o.beat, o.draining = nil, false
	bytes, n := 0, 0
	for ; n < len(o.objects) && n < maxObjects && bytes < maxReportBytes; n++ {
		bytes += len(o.objects[n].GetInlineResult())
	}
	m.Objects, o.objects = split(o.objects, n)
	m.MissingFunctions, o.functions = split(o.functions, maxFunctions)
	// A report on a rescue that failed completely is as large as many task reports.
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

// split returns the first n elements and the rest.
func split[T any](list []T, n int) (first, rest []T) {
	if n >= len(list) {
		return list, nil
	}
	return list[:n:n], list[n:]
}

// Sent records that the message from Take was passed to the stream.
func (o *Outbox) Sent() {
	o.mu.Lock()
	o.inFlight = nil
	o.mu.Unlock()
}

// unsent puts back the objects and rescues of a message that could not be sent. Reopen does so for
// the task reports.
func (o *Outbox) unsent(m *workerv1.SessionRequest) {
	o.add(func() {
		o.objects = append(m.GetObjects(), o.objects...)
		o.rescues = append(m.GetRescues(), o.rescues...)
	})
}

// Wait waits for something to send. It returns false if the context ended or the outbox was closed.
func (o *Outbox) Wait(ctx context.Context) bool {
	select {
	case <-o.ready:
		return true
	case <-ctx.Done():
		return false
	case <-o.closed:
		return false
	}
}
