package loop

import (
	"context"
	"slices"
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

// outbox queues the messages for the scheduler. The owner fills it, the session
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
	functions [][]byte
	rescues   []*millracev1.RescueReport
	beat      *millracev1.WorkerStats
	leaving   bool
	draining  bool
	pending   bool
	// mute: all entries are of an earlier life of the scheduler, and are dropped.
	mute bool
	// inFlight are in the message that is being sent.
	inFlight []*millracev1.TaskReport
}

func newOutbox() *outbox {
	return &outbox{ready: make(chan struct{}, 1), closed: make(chan struct{})}
}

func (o *outbox) task(r *millracev1.TaskReport) {
	fitReport(r)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mute {
		return
	}
	o.tasks = append(o.tasks, r)
	o.pending = true
}

func (o *outbox) object(r *millracev1.ObjectReport) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mute {
		return
	}
	o.objects = append(o.objects, r)
	o.pending = true
}

func (o *outbox) rescue(r *millracev1.RescueReport) {
	fitTexts(r.ProtoReflect())
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mute {
		return
	}
	for failed := r.GetFailed(); len(failed) > maxFailed; failed = r.GetFailed() {
		o.rescues = append(o.rescues, &millracev1.RescueReport{WorkerId: r.GetWorkerId(), Reason: r.GetReason(), Failed: failed[:maxFailed]})
		r.Failed = failed[maxFailed:]
	}
	o.rescues = append(o.rescues, r)
	o.pending = true
}

func (o *outbox) missing(function []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mute {
		return
	}
	o.functions = append(o.functions, function)
	o.pending = true
}

func (o *outbox) stats(s *millracev1.WorkerStats) {
	fitTexts(s.ProtoReflect())
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mute {
		return
	}
	if o.beat != nil && len(s.GetLanes()) == 0 {
		s.Lanes = o.beat.GetLanes() // they are told once
	}
	o.beat = s
	o.pending = true
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

// forget drops everything that is queued, and while mute everything that would be.
func (o *outbox) forget(mute bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tasks, o.objects, o.functions, o.rescues, o.beat, o.inFlight = nil, nil, nil, nil, nil, nil
	o.mute, o.pending = mute, o.leaving || o.draining
}

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

// reopen prepares for a new session: it queues again the message that was being sent when the last one broke. It returns the
// attempts whose final reports are queued. Queued reports on objects are in the inventory, too: objects are reported
// twice, which does no harm. Those that clients wrote, and that are not accepted, are in no inventory; all of them are
// said again, and only once: written lists them.
func (o *outbox) reopen(written []*millracev1.ObjectReport) []lifecycle.Ref {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tasks = append(o.inFlight, o.tasks...)
	o.inFlight = nil
	o.functions = nil
	o.objects = append(slices.DeleteFunc(slices.Clone(o.objects), (*millracev1.ObjectReport).GetWritten), written...)
	o.pending = o.pending || len(written) > 0
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
		bytes += len(o.objects[n].GetInlineResult())
	}
	m.Objects, o.objects = split(o.objects, n)
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
	o.inFlight = nil
	o.mu.Unlock()
}

// unsent puts back what could not be sent, except for the task reports: reopen
// does that.
func (o *outbox) unsent(m *millracev1.SessionRequest) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mute {
		return
	}
	o.objects = append(m.GetObjects(), o.objects...)
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
