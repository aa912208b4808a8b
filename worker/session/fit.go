package session

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/text"
	"github.com/millrace/millrace/worker/tasklog"
)

// Limits in bytes for texts in a report that were written by tasks, libraries or clients. A message
// that cannot be sent ends the session, and its reports would be sent again in the next session. So
// each report is cut to these limits before it enters the outbox.
const (
	messageBytes   = 4 << 10
	tracebackBytes = 64 << 10
	// detailBytes limits each short text: a reason, a name, a detail.
	detailBytes = 1 << 10
	// keyBytes limits the key of a task.
	keyBytes = 8 << 10
	// exceptionBytes limits the pickled exception; a larger one is left out.
	exceptionBytes = 2 << 20
	maxDetails     = 32
	// maxUnreachable limits the inputs that a report names, and maxTried the workers per input. The
	// other inputs are found when the task runs again.
	maxUnreachable = 1 << 17
	maxTried       = 64
	// textBytes limits every other text of a message.
	textBytes = 8 << 10
)

// fitReport cuts a report to the limits.
func fitReport(r *workerv1.TaskReport) {
	if r.LogTail != "" {
		r.LogTail = text.Tail(r.LogTail, tasklog.TailBytes)
	}
	if r.Error != nil {
		fitError(r.Error)
	}
	if len(r.Unreachable) > 0 {
		r.Unreachable = r.Unreachable[:min(len(r.Unreachable), maxUnreachable)]
		for _, u := range r.Unreachable {
			u.FailedAt, u.MissingAt = u.FailedAt[:min(len(u.FailedAt), maxTried)], u.MissingAt[:min(len(u.MissingAt), maxTried)]
		}
	}
}

func fitError(e *millracev1.TaskError) {
	e.Reason, e.Worker = text.Cut(e.Reason, detailBytes), text.Cut(e.Worker, detailBytes)
	e.Message = text.Cut(e.Message, messageBytes)
	e.OriginKey = text.Cut(e.OriginKey, keyBytes)
	e.Traceback = text.Cut(e.Traceback, tracebackBytes)
	if e.LogTail != "" {
		e.LogTail = text.Tail(e.LogTail, tasklog.TailBytes)
	}
	if x := e.Exception; x != nil {
		fitTexts(x.ProtoReflect())
		if proto.Size(x) > exceptionBytes {
			e.Exception = nil // the message and the traceback describe it
		}
	}
	if len(e.Metadata) > 0 {
		fitted := make(map[string]string, min(len(e.Metadata), maxDetails))
		for name, detail := range e.Metadata {
			if len(fitted) < maxDetails {
				fitted[text.Cut(name, detailBytes)] = text.Cut(detail, detailBytes)
			}
		}
		e.Metadata = fitted
	}
}

// fitTexts makes all texts of a message, including nested messages, valid UTF-8 and short.
func fitTexts(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
			fitted := m.NewField(f)
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				if f.MapKey().Kind() == protoreflect.StringKind {
					k = protoreflect.ValueOfString(text.Cut(k.String(), textBytes)).MapKey()
				}
				fitted.Map().Set(k, fitValue(f.MapValue(), v))
				return true
			})
			m.Set(f, fitted)
		case f.IsList():
			for i := range v.List().Len() {
				if x := fitValue(f, v.List().Get(i)); f.Kind() == protoreflect.StringKind {
					v.List().Set(i, x)
				}
			}
		case f.Kind() == protoreflect.StringKind:
			if s := v.String(); text.Cut(s, textBytes) != s {
				m.Set(f, fitValue(f, v))
			}
		default:
			fitValue(f, v)
		}
		return true
	})
}

func fitValue(f protoreflect.FieldDescriptor, v protoreflect.Value) protoreflect.Value {
	switch {
	case f.Kind() == protoreflect.StringKind:
		return protoreflect.ValueOfString(text.Cut(v.String(), textBytes))
	case f.Message() != nil:
		fitTexts(v.Message())
	}
	return v
}

// unsendable returns the reason why a message cannot be sent by itself, nil if it can.
func unsendable(m *workerv1.SessionRequest) error {
	b, err := proto.Marshal(m)
	if err == nil && len(b) > MaxMessageBytes {
		err = fmt.Errorf("it has %d bytes, and %d are allowed", len(b), MaxMessageBytes)
	}
	return err
}

// sendable removes the unsendable parts from a message that the stream has refused, and returns
// their errors. The report of an attempt is replaced by a minimal report, which states the reason
// if the attempt has failed. Other parts are reduced to their identifiers or left out. So nothing
// that was refused is sent again.
func sendable(m *workerv1.SessionRequest) (wrong []string) {
	for i, r := range m.GetTasks() {
		err := unsendable(&workerv1.SessionRequest{Tasks: []*workerv1.TaskReport{r}})
		if err == nil {
			continue
		}
		wrong = append(wrong, fmt.Sprintf("the report on t%d/a%d: %v", r.GetTaskId(), r.GetAttempt(), err))
		bare := &workerv1.TaskReport{
			TaskId: r.GetTaskId(), Attempt: r.GetAttempt(), Outcome: r.GetOutcome(), OutputBytes: r.GetOutputBytes(),
			RunNanos: r.GetRunNanos(), FetchedBytes: r.GetFetchedBytes(),
		}
		if r.GetError() != nil || r.GetOutcome() == workerv1.TaskOutcome_TASK_OUTCOME_INPUT_UNREACHABLE {
			bare.Outcome = workerv1.TaskOutcome_TASK_OUTCOME_FAILED
			bare.Error = &millracev1.TaskError{
				Reason:  "REPORT_NOT_SENDABLE",
				Message: text.Cut(fmt.Sprintf("the task ended with %s, but the report on it could not be sent: %v", r.GetOutcome(), err), messageBytes),
				Attempt: r.GetAttempt(),
			}
		}
		m.Tasks[i] = bare
	}
	objects := m.Objects[:0]
	for _, o := range m.GetObjects() {
		if err := unsendable(&workerv1.SessionRequest{Objects: []*workerv1.ObjectReport{o}}); err != nil {
			wrong = append(wrong, fmt.Sprintf("what is known of the result of t%d: %v", o.GetReplica().GetTaskId(), err))
			o = &workerv1.ObjectReport{Replica: o.GetReplica(), Event: o.GetEvent()}
		}
		objects = append(objects, o)
	}
	m.Objects = objects
	rescues := m.Rescues[:0]
	for _, r := range m.GetRescues() {
		if err := unsendable(&workerv1.SessionRequest{Rescues: []*workerv1.RescueReport{r}}); err != nil {
			wrong = append(wrong, fmt.Sprintf("what became of a rescue: %v", err))
			r = &workerv1.RescueReport{WorkerId: r.GetWorkerId(), Unmapped: r.GetUnmapped()}
		}
		rescues = append(rescues, r)
	}
	m.Rescues = rescues
	if err := unsendable(&workerv1.SessionRequest{Stats: m.GetStats()}); err != nil {
		wrong = append(wrong, fmt.Sprintf("the state of the worker: %v", err))
		m.Stats = nil
	}
	return wrong
}
