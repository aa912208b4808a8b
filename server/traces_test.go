package server_test

import (
	"context"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	collectorpb "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/slim/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/slim/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/server"
	"github.com/millrace/millrace/server/otlp"
)

// collector is a server that speaks OTLP.
type collector struct {
	t        *testing.T
	requests chan *collectorpb.ExportTraceServiceRequest
	// answer answers a request; nil: all spans are taken.
	answer func(n int) (*collectorpb.ExportTraceServiceResponse, error)
	calls  int
	// seen has what has arrived.
	resource []*commonpb.KeyValue
	seen     []*tracepb.Span
}

func (c *collector) take(headers func(string) string, request *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	if headers("api-key") != "s3cret, too" {
		return nil, status.Error(codes.Unauthenticated, "no key")
	}
	c.calls++
	if c.answer != nil {
		if answer, err := c.answer(c.calls); answer != nil || err != nil {
			return answer, err
		}
	}
	c.requests <- request
	return new(collectorpb.ExportTraceServiceResponse), nil
}

// byGRPC serves the TraceService, and returns its URL.
func (c *collector) byGRPC() string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	s := grpc.NewServer()
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "opentelemetry.proto.collector.trace.v1.TraceService",
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Export", Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			request := new(collectorpb.ExportTraceServiceRequest)
			if err := decode(request); err != nil {
				return nil, err
			}
			return c.take(func(name string) string { return strings.Join(metadata.ValueFromIncomingContext(ctx, name), "") }, request)
		}}},
	}, c)
	go func() { _ = s.Serve(listener) }()
	c.t.Cleanup(s.Stop)
	return "http://" + listener.Addr().String()
}

// byHTTP serves OTLP by HTTP, and returns its URL.
func (c *collector) byHTTP() string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		request := new(collectorpb.ExportTraceServiceRequest)
		if err := proto.Unmarshal(body, request); err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" {
			http.Error(w, "not OTLP", http.StatusBadRequest)
			return
		}
		answer, err := c.take(r.Header.Get, request)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		text, _ := proto.Marshal(answer)
		_, _ = w.Write(text)
	}))
	c.t.Cleanup(s.Close)
	return s.URL
}

func newCollector(t *testing.T) *collector {
	t.Helper()
	return &collector{t: t, requests: make(chan *collectorpb.ExportTraceServiceRequest, 100)}
}

// config is that of an exporter to a URL.
func (c *collector) config(address string, protocol otlp.Protocol, sample float64) *otlp.Config {
	c.t.Helper()
	endpoint, protocol, err := otlp.ParseEndpoint(address, protocol, false)
	if err != nil {
		c.t.Fatal(err)
	}
	headers, err := otlp.ParsePairs("api-key=s3cret%2C%20too")
	if err != nil {
		c.t.Fatal(err)
	}
	return &otlp.Config{Endpoint: endpoint, Protocol: protocol, Headers: headers, Sample: sample, Interval: 10 * time.Millisecond,
		Resource: map[string]string{"service.name": "millrace"}}
}

// until waits for a span, among all that have arrived.
func (c *collector) until(ctx context.Context, wanted func(*tracepb.Span) bool) *tracepb.Span {
	c.t.Helper()
	for {
		for _, s := range c.seen {
			if wanted(s) {
				return s
			}
		}
		select {
		case request := <-c.requests:
			for _, r := range request.GetResourceSpans() {
				c.resource = r.GetResource().GetAttributes()
				for _, scope := range r.GetScopeSpans() {
					c.seen = append(c.seen, scope.GetSpans()...)
				}
			}
		case <-ctx.Done():
			c.t.Fatalf("the span has not arrived, but %v", c.seen)
		}
	}
}

// called is true for spans with a name.
func called(name string) func(*tracepb.Span) bool {
	return func(s *tracepb.Span) bool { return s.GetName() == name }
}

func attribute(list []*commonpb.KeyValue, name string) any {
	for _, a := range list {
		if a.GetKey() == name {
			switch v := a.GetValue().GetValue().(type) {
			case *commonpb.AnyValue_StringValue:
				return v.StringValue
			case *commonpb.AnyValue_IntValue:
				return v.IntValue
			case *commonpb.AnyValue_DoubleValue:
				return v.DoubleValue
			}
		}
	}
	return nil
}

const (
	clientTrace, clientSpan = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	sampledParent           = "00-" + clientTrace + "-" + clientSpan + "-01"
	unsampledParent         = "00-" + clientTrace + "-" + clientSpan + "-00"
)

// A graph that is submitted within a sampled span of a client has a span below that one, and each
// attempt one below the graph's, with spans of its longer phases and the reason of a failure.
func TestGraphsAreTracedBelowTheSpansOfClients(t *testing.T) {
	for _, protocol := range []otlp.Protocol{otlp.GRPC, otlp.HTTP} {
		t.Run(string(protocol), func(t *testing.T) {
			to := newCollector(t)
			address := map[otlp.Protocol]func() string{otlp.GRPC: to.byGRPC, otlp.HTTP: to.byHTTP}[protocol]()
			c := start(t, server.Config{Traces: to.config(address, protocol, 0)})
			c.serving()
			c.join(c.conn, registration("w-0"), func(a *workerv1.Assignment) *workerv1.TaskReport {
				report := succeed(a)
				report.RunNanos, report.FetchNanos, report.FetchedBytes = 20e6, 2e6, 1000
				if strings.HasPrefix(a.GetKey(), "bad") {
					report.Outcome, report.InlineResult = workerv1.TaskOutcome_TASK_OUTCOME_FAILED, nil
					report.Error = &pb.TaskError{Reason: "TASK_RAISED", Message: "ValueError: no"}
				}
				return report
			})
			ctx := timeout(t)
			id := c.open(ctx)
			submit := func(parent, name, prefix string) {
				t.Helper()
				within := metadata.AppendToOutgoingContext(ctx, "traceparent", parent, "tracestate", "vendor=1")
				if parent == "" {
					within = ctx
				}
				if _, err := c.client.SubmitBatch(within, &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id, Name: name}, Tasks: noops(prefix, 2)}); err != nil {
					t.Fatal(err)
				}
			}
			submit(unsampledParent, "unsampled", "u")
			submit("", "alone", "a")
			submit(sampledParent, "first", "good")
			submit(sampledParent, "second", "bad")

			first, second := to.until(ctx, called("graph first")), to.until(ctx, called("graph second"))
			for _, graph := range []*tracepb.Span{first, second} {
				if hex.EncodeToString(graph.GetTraceId()) != clientTrace || hex.EncodeToString(graph.GetParentSpanId()) != clientSpan || graph.GetTraceState() != "vendor=1" || graph.GetFlags() != 0x301 {
					t.Errorf("the graph's span is not below the client's: %v", graph)
				}
				if graph.GetEndTimeUnixNano() <= graph.GetStartTimeUnixNano() || attribute(graph.GetAttributes(), "millrace.graph.tasks") != int64(2) {
					t.Errorf("the graph's span: %v", graph)
				}
			}
			if first.GetStatus() != nil || attribute(first.GetAttributes(), "millrace.graph.state") != "SUCCEEDED" {
				t.Errorf("the graph that succeeded: %v", first)
			}
			if second.GetStatus().GetCode() != tracepb.Status_STATUS_CODE_ERROR || !strings.Contains(second.GetStatus().GetMessage(), "ValueError: no") {
				t.Errorf("the graph that failed: %v", second.GetStatus())
			}
			below := func(s *tracepb.Span, name string) (found []*tracepb.Span) {
				for _, x := range to.seen {
					if string(x.GetParentSpanId()) == string(s.GetSpanId()) && x.GetName() == name {
						found = append(found, x)
					}
				}
				return found
			}
			to.until(ctx, func(*tracepb.Span) bool {
				return len(below(first, "bench.noop")) >= 2 && len(below(second, "bench.noop")) >= 2
			})
			good, bad := below(first, "bench.noop"), below(second, "bench.noop")
			if len(good) != 2 || len(bad) != 2 {
				t.Fatalf("%d and %d attempts among %v", len(good), len(bad), to.seen)
			}
			x := good[0].GetAttributes()
			for name, want := range map[string]any{
				"code.function.name": "bench.noop", "millrace.worker.name": "w-0", "millrace.task.attempt": int64(1), "millrace.task.fetch.size": int64(1000),
				"millrace.task.run.duration": 0.02, "millrace.task.fetch.duration": 0.002, "error.type": nil,
			} {
				if got := attribute(x, name); got != want {
					t.Errorf("%s is %v, want %v", name, got, want)
				}
			}
			if key, _ := attribute(x, "millrace.task.key").(string); !strings.HasPrefix(key, "good") {
				t.Errorf("the key is %q", key)
			}
			if len(below(good[0], "run")) != 1 || len(below(good[0], "fetch")) != 1 || len(below(good[0], "publish")) != 0 {
				t.Errorf("the phases are not those of the attempt: %v", to.seen)
			}
			if s := bad[0].GetStatus(); s.GetCode() != tracepb.Status_STATUS_CODE_ERROR || !strings.Contains(s.GetMessage(), "ValueError: no") || attribute(bad[0].GetAttributes(), "error.type") == nil {
				t.Errorf("the attempt that failed: %v", bad[0])
			}
			for _, s := range to.seen {
				if n := s.GetName(); n == "graph unsampled" || n == "graph alone" {
					t.Errorf("%s was traced", n)
				}
			}
			if attribute(to.resource, "service.name") != "millrace" || attribute(to.resource, "service.instance.id") != c.server.ID() {
				t.Errorf("the resource is %v", to.resource)
			}
		})
	}
}

// Without a client's span, a graph is the root of a trace. A collector that is away for a moment
// gets the spans later; spans that it refuses are counted. The last ones leave when the scheduler
// stops.
func TestTracesOutliveAnAbsentCollectorAndTheScheduler(t *testing.T) {
	to := newCollector(t)
	to.answer = func(n int) (*collectorpb.ExportTraceServiceResponse, error) {
		switch n {
		case 1:
			return nil, status.Error(codes.Unavailable, "not now")
		case 2:
			return &collectorpb.ExportTraceServiceResponse{PartialSuccess: &collectorpb.ExportTracePartialSuccess{RejectedSpans: 1}}, nil
		}
		return nil, nil
	}
	config := to.config(to.byGRPC(), "", 1)
	c := start(t, server.Config{Traces: config, HTTPAddress: "127.0.0.1:0"})
	c.serving()
	c.join(c.conn, registration("w-0"), func(a *workerv1.Assignment) *workerv1.TaskReport {
		if strings.HasPrefix(a.GetKey(), "slow") {
			return nil
		}
		return succeed(a)
	})
	ctx := timeout(t)
	id := c.open(ctx)
	submit := func(name string) {
		t.Helper()
		if _, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id, Name: name}, Tasks: noops(name, 1)}); err != nil {
			t.Fatal(err)
		}
	}
	submit("refused")
	for !strings.Contains(scrape(ctx, t, c), `millrace_otlp_spans_total{result="refused"} 1`) && ctx.Err() == nil {
		runtime.Gosched()
	}
	submit("root")
	root := to.until(ctx, called("graph root"))
	if len(root.GetTraceId()) != 16 || root.GetParentSpanId() != nil || root.GetFlags() != 0x101 {
		t.Errorf("the root: %v", root)
	}
	submit("slow")
	c.stop()
	slow := to.until(ctx, called("graph slow"))
	if attribute(slow.GetAttributes(), "millrace.graph.state") != "RUNNING" {
		t.Errorf("the graph at the end of the scheduler: %v", slow)
	}
}

// A client often leaves as soon as its graph has ended, before the next look at the scheduler. The
// graph is traced all the same, with its failure.
func TestGraphsThatAreReleasedAtOnceAreTraced(t *testing.T) {
	to := newCollector(t)
	config := to.config(to.byGRPC(), "", 1)
	config.Interval = time.Hour // Only the end of the scheduler makes it look.
	c := start(t, server.Config{Traces: config})
	c.serving()
	c.join(c.conn, registration("w-0"), func(a *workerv1.Assignment) *workerv1.TaskReport {
		report := succeed(a)
		if strings.HasPrefix(a.GetKey(), "bad") {
			report.Outcome, report.InlineResult = workerv1.TaskOutcome_TASK_OUTCOME_FAILED, nil
			report.Error = &pb.TaskError{Reason: "TASK_RAISED", Message: "ValueError: no"}
		}
		return report
	})
	ctx := timeout(t)
	id := c.open(ctx)
	watch := c.watch(ctx, &pb.WatchRequest{ClientId: id})
	for _, name := range []string{"good", "bad"} {
		submitted, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id, Name: name}, Tasks: noops(name, 1)})
		if err != nil {
			t.Fatal(err)
		}
		c.final(watch, submitted.GetTaskIds())
	}
	if _, err := c.client.CloseClient(ctx, &pb.CloseClientRequest{ClientId: id}); err != nil {
		t.Fatal(err)
	}
	if graphs, err := c.client.ListGraphs(ctx, &pb.ListGraphsRequest{}); err != nil || len(graphs.GetGraphs()) != 0 {
		t.Fatalf("%v, %v", graphs, err)
	}
	c.stop()
	good, bad := to.until(ctx, called("graph good")), to.until(ctx, called("graph bad"))
	if good.GetStatus() != nil || attribute(good.GetAttributes(), "millrace.graph.attempts") != int64(1) {
		t.Errorf("the graph that succeeded: %v", good)
	}
	if bad.GetStatus().GetCode() != tracepb.Status_STATUS_CODE_ERROR || bad.GetStatus().GetMessage() != "ValueError: no" {
		t.Errorf("the graph that failed: %v", bad)
	}
	if s := to.until(ctx, func(s *tracepb.Span) bool { return string(s.GetParentSpanId()) == string(bad.GetSpanId()) }); s.GetStatus().GetMessage() != "ValueError: no" {
		t.Errorf("the attempt that failed: %v", s)
	}
}
