package otlp

import (
	"cmp"
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	commonpb "go.opentelemetry.io/proto/slim/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/slim/otlp/trace/v1"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/text"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

const (
	// shortestPhase is the length from which on a phase of an attempt has a span of its own.
	shortestPhase = time.Millisecond
	// messageBytes bounds the message of a failure, and textBytes other texts.
	messageBytes, textBytes = 1 << 10, 256
)

// flags of spans: the trace is sampled, and it is known whether the parent is of another process.
const (
	sampledFlag = 1
	knownFlag   = uint32(tracepb.SpanFlags_SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK)
	remoteFlag  = uint32(tracepb.SpanFlags_SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK)
)

func newTraceID() (id [16]byte) {
	binary.BigEndian.PutUint64(id[:8], rand.Uint64())
	binary.BigEndian.PutUint64(id[8:], rand.Uint64()|1) // 0 is no id.
	return id
}

func newSpanID() (id [8]byte) {
	binary.BigEndian.PutUint64(id[:], rand.Uint64()|1)
	return id
}

// attributes collects those of a span. Zero values are left out.
type attributes []*commonpb.KeyValue

func (a *attributes) text(name, value string) {
	if value != "" {
		*a = append(*a, &commonpb.KeyValue{Key: name, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: text.Valid(text.Cut(value, textBytes))}}})
	}
}

func (a *attributes) number(name string, value uint64) {
	if value != 0 {
		*a = append(*a, &commonpb.KeyValue{Key: name, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: int64(value)}}})
	}
}

func (a *attributes) seconds(name string, value time.Duration) {
	if value > 0 {
		*a = append(*a, &commonpb.KeyValue{Key: name, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_DoubleValue{DoubleValue: value.Seconds()}}})
	}
}

func failed(message string) *tracepb.Status {
	return &tracepb.Status{Code: tracepb.Status_STATUS_CODE_ERROR, Message: text.Valid(text.Cut(message, messageBytes))}
}

func nanos(t time.Time) uint64 { return uint64(t.UnixNano()) }

// graphSpan returns the span of a graph that has ended.
func graphSpan(id ids.GraphID, g *graph) *tracepb.Span {
	s := &tracepb.Span{
		TraceId: g.trace[:], SpanId: g.span[:], Name: "graph", Kind: tracepb.Span_SPAN_KIND_CONSUMER, Flags: sampledFlag | knownFlag,
		StartTimeUnixNano: nanos(g.begin), EndTimeUnixNano: max(nanos(g.end), nanos(g.begin)),
	}
	if p := g.parent; p != nil {
		s.ParentSpanId, s.TraceState, s.Flags = p.span[:], p.state, s.Flags|remoteFlag
	}
	for i := range g.links {
		l := &g.links[i]
		s.Links = append(s.Links, &tracepb.Span_Link{TraceId: l.trace[:], SpanId: l.span[:], TraceState: l.state, Flags: sampledFlag | knownFlag | remoteFlag})
	}
	if g.name != "" {
		s.Name = "graph " + text.Valid(text.Cut(g.name, textBytes))
	}
	var a attributes
	a.number("millrace.graph.id", uint64(id))
	a.text("millrace.namespace", g.namespace)
	a.text("millrace.graph.name", g.name)
	a.number("millrace.graph.attempts", g.attempts)
	row := g.row
	switch {
	case g.gone && (row == nil || row.EndedAt.IsZero()):
		// It was released as soon as it had ended. Its attempts say how.
		row = &schedapi.Graph{FirstError: g.failure}
		if len(g.failed) > 0 {
			row.State = schedapi.GraphFailed
			row.Counts[sched.TaskFailed] = uint64(len(g.failed))
		}
	case row == nil: // The scheduler stops.
		row = &schedapi.Graph{State: schedapi.GraphRunning}
	}
	a.text("millrace.graph.state", stateName(row.State))
	tasks := uint64(0)
	for _, n := range row.Counts {
		tasks += n
	}
	a.number("millrace.graph.tasks", tasks)
	a.number("millrace.graph.failed_tasks", row.Counts[sched.TaskFailed])
	a.number("millrace.graph.cancelled_tasks", row.Counts[sched.TaskCancelled])
	if row.State == schedapi.GraphFailed {
		a.text("error.type", "TASK_FAILED")
		s.Status = failed(row.FirstError)
	}
	s.Attributes = a
	return s
}

func stateName(s schedapi.GraphState) string {
	switch s {
	case schedapi.GraphRunning:
		return "RUNNING"
	case schedapi.GraphSucceeded:
		return "SUCCEEDED"
	case schedapi.GraphFailed:
		return "FAILED"
	case schedapi.GraphCancelled:
		return "CANCELLED"
	}
	return ""
}

// attemptSpans returns the span of an attempt, and those of its longer phases. err is what its task
// failed with; nil: unknown.
func attemptSpans(g *graph, r *sched.Run, err *sched.TaskError) []*tracepb.Span {
	p := &r.Phases
	// The phases, in their order, end with the report. Queue contains those before the function.
	queue := max(r.Queue-p.Fetch-p.Load-p.Wait-p.Deserialize, 0)
	phases := []struct {
		name   string
		length time.Duration
	}{{"queue", queue}, {"fetch", p.Fetch}, {"read from lower tiers", p.Load}, {"wait for memory", p.Wait}, {"deserialize", p.Deserialize}, {"run", r.RunTime}, {"publish", p.Publish}}
	begin := r.End
	for _, phase := range phases {
		begin = begin.Add(-phase.length)
	}
	bounded := func(t time.Time) uint64 { return max(nanos(t), nanos(g.begin)) } // Clocks of workers differ.
	attempt := newSpanID()
	whole := &tracepb.Span{
		TraceId: g.trace[:], SpanId: attempt[:], ParentSpanId: g.span[:], Name: cmp.Or(text.Valid(text.Cut(r.Op, textBytes)), "task"),
		Kind: tracepb.Span_SPAN_KIND_INTERNAL, Flags: sampledFlag | knownFlag,
		StartTimeUnixNano: bounded(begin), EndTimeUnixNano: bounded(r.End),
	}
	var a attributes
	a.text("code.function.name", r.Op)
	a.number("millrace.graph.id", uint64(r.Graph))
	a.number("millrace.task.id", uint64(r.Task))
	a.text("millrace.task.key", r.Key)
	a.number("millrace.task.attempt", uint64(r.Attempt))
	a.text("millrace.worker.name", r.Worker)
	a.number("millrace.worker.slot", uint64(p.Slot))
	a.number("millrace.task.result.size", r.OutputBytes)
	a.number("millrace.task.fetch.size", p.FetchedBytes)
	a.seconds("millrace.task.queue.duration", queue)
	a.seconds("millrace.task.fetch.duration", p.Fetch)
	a.seconds("millrace.task.load.duration", p.Load)
	a.seconds("millrace.task.wait.duration", p.Wait)
	a.seconds("millrace.task.deserialize.duration", p.Deserialize)
	a.seconds("millrace.task.run.duration", r.RunTime)
	a.seconds("millrace.task.publish.duration", p.Publish)
	if !r.Succeeded {
		reason, message := "TASK_FAILED", ""
		if err != nil {
			reason, message = cmp.Or(err.Reason, reason), err.Message
		}
		a.text("error.type", reason)
		whole.Status = failed(message)
	}
	whole.Attributes = a
	spans := []*tracepb.Span{whole}
	for _, phase := range phases {
		end := begin.Add(phase.length)
		if phase.length >= shortestPhase {
			id := newSpanID()
			spans = append(spans, &tracepb.Span{
				TraceId: g.trace[:], SpanId: id[:], ParentSpanId: attempt[:], Name: phase.name, Kind: tracepb.Span_SPAN_KIND_INTERNAL,
				Flags: sampledFlag | knownFlag, StartTimeUnixNano: bounded(begin), EndTimeUnixNano: bounded(end),
			})
		}
		begin = end
	}
	return spans
}

// resource describes the scheduler.
func resource(config *Config) []*commonpb.KeyValue {
	var a attributes
	values := map[string]string{"service.version": config.Version, "service.instance.id": config.Instance}
	maps.Copy(values, config.Resource)
	for _, name := range slices.Sorted(maps.Keys(values)) {
		a.text(name, values[name])
	}
	return a
}
