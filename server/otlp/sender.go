package otlp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	collectorpb "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/slim/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/slim/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/slim/otlp/trace/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/internal/pause"
)

const (
	// queuedSpans bounds the spans that wait for the collector, about 8 MB, and batchSpans those of
	// one request.
	queuedSpans, batchSpans = 8192, 512
	defaultTimeout          = 10 * time.Second
	// patience bounds the time in which a batch is sent again and again, with pauses from
	// firstPause to longestPause.
	patience                 = time.Minute
	firstPause, longestPause = 100 * time.Millisecond, 5 * time.Second
	// answerBytes bounds the answer of a collector.
	answerBytes = 1 << 20
	// exportMethod is the call of gRPC that takes spans.
	exportMethod = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
)

// The results of spans, as the label of their counter has them: the collector has taken them; it
// has refused them; it could not be reached; there were too many.
const (
	taken, refused, unsent, dropped = "sent", "refused", "failed", "dropped"
)

var results = []string{taken, refused, unsent, dropped}

// sender has the queue of spans, and sends them.
type sender struct {
	config   *Config
	queue    chan *tracepb.Span // closed by close
	spans    *prometheus.CounterVec
	resource *resourcepb.Resource
	scope    *commonpb.InstrumentationScope
	// export makes one request.
	export func(context.Context, *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error)
	// release gives back what export uses.
	release func()
	failing bool // the last batch could not be sent
}

func newSender(config *Config, spans *prometheus.CounterVec) (*sender, error) {
	if config.Timeout == 0 {
		config.Timeout = defaultTimeout
	}
	s := &sender{
		config: config, queue: make(chan *tracepb.Span, queuedSpans), spans: spans,
		resource: &resourcepb.Resource{Attributes: resource(config)},
		scope:    &commonpb.InstrumentationScope{Name: "millrace", Version: config.Version},
	}
	if config.Protocol == HTTP {
		s.exportByHTTP()
		return s, nil
	}
	return s, s.exportByGRPC()
}

func (s *sender) exportByGRPC() error {
	secure, port := insecure.NewCredentials(), "80"
	if s.config.Endpoint.Scheme == "https" {
		secure, port = credentials.NewTLS(s.config.TLS), "443"
	}
	if p := s.config.Endpoint.Port(); p != "" {
		port = p
	}
	conn, err := grpc.NewClient("dns:///"+net.JoinHostPort(s.config.Endpoint.Hostname(), port), grpc.WithTransportCredentials(secure))
	if err != nil {
		return fmt.Errorf("the collector of traces at %s: %w", s.config.Endpoint.Redacted(), err)
	}
	headers := metadata.New(s.config.Headers)
	s.release = func() { _ = conn.Close() } // It fails only if it is closed already.
	s.export = func(ctx context.Context, request *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
		answer := new(collectorpb.ExportTraceServiceResponse)
		return answer, conn.Invoke(metadata.NewOutgoingContext(ctx, headers), exportMethod, request, answer)
	}
	return nil
}

func (s *sender) exportByHTTP() {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: s.config.TLS, ForceAttemptHTTP2: true}
	client := &http.Client{Transport: transport}
	s.release = transport.CloseIdleConnections
	s.export = func(ctx context.Context, message *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
		body, err := proto.Marshal(message)
		if err != nil {
			return nil, err
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.config.Endpoint.String(), bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		for name, value := range s.config.Headers { // order-free: they are a set
			request.Header.Set(name, value)
		}
		request.Header.Set("Content-Type", "application/x-protobuf")
		response, err := client.Do(request)
		if err != nil {
			return nil, status.Error(codes.Unavailable, err.Error())
		}
		defer func() { _ = response.Body.Close() }() // It was read.
		text, err := io.ReadAll(io.LimitReader(response.Body, answerBytes))
		switch response.StatusCode {
		case http.StatusOK, http.StatusAccepted:
			answer := new(collectorpb.ExportTraceServiceResponse)
			if err == nil {
				_ = proto.Unmarshal(text, answer) // The collector has taken the spans in any case.
			}
			return answer, nil
		case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			return nil, status.Error(codes.Unavailable, response.Status)
		default:
			return nil, errors.New(response.Status)
		}
	}
}

// offer queues a span, or drops it if too many wait.
func (s *sender) offer(span *tracepb.Span) {
	select {
	case s.queue <- span:
	default:
		s.spans.WithLabelValues(dropped).Inc()
	}
}

// close lets run end when the queue is empty.
func (s *sender) close() { close(s.queue) }

// run sends until the queue is closed and empty, or ctx ends.
func (s *sender) run(ctx context.Context) {
	defer s.release()
	for first := range s.queue {
		batch := append(make([]*tracepb.Span, 0, batchSpans), first)
		for len(batch) < batchSpans && len(s.queue) > 0 {
			batch = append(batch, <-s.queue)
		}
		s.send(ctx, batch)
	}
}

// send sends one batch, again if that may help.
func (s *sender) send(ctx context.Context, batch []*tracepb.Span) {
	request := &collectorpb.ExportTraceServiceRequest{ResourceSpans: []*tracepb.ResourceSpans{{
		Resource: s.resource, ScopeSpans: []*tracepb.ScopeSpans{{Scope: s.scope, Spans: batch}},
	}}}
	until := time.Now().Add(patience)
	for length := firstPause; ; length = min(2*length, longestPause) {
		limited, cancel := context.WithTimeout(ctx, s.config.Timeout)
		answer, err := s.export(limited, request)
		cancel()
		if err == nil {
			s.sent(len(batch), answer.GetPartialSuccess())
			return
		}
		length = max(length, delay(err))
		if !mayPass(err) || time.Now().Add(length).After(until) || pause.For(ctx, length) != nil {
			s.lost(len(batch), err)
			return
		}
	}
}

func (s *sender) sent(n int, partly *collectorpb.ExportTracePartialSuccess) {
	bad := min(max(partly.GetRejectedSpans(), 0), int64(n))
	s.spans.WithLabelValues(taken).Add(float64(int64(n) - bad))
	s.spans.WithLabelValues(refused).Add(float64(bad))
	if bad > 0 {
		s.config.Log.Warn("the collector of traces has refused spans", "endpoint", s.config.Endpoint.Redacted(), "spans", bad, "reason", partly.GetErrorMessage())
	}
	if s.failing {
		s.failing = false
		s.config.Log.Info("the collector of traces takes spans again", "endpoint", s.config.Endpoint.Redacted())
	}
}

func (s *sender) lost(n int, err error) {
	s.spans.WithLabelValues(unsent).Add(float64(n))
	if !s.failing {
		s.failing = true
		s.config.Log.Warn("the collector of traces cannot be reached, or refuses the requests: spans are lost", "endpoint", s.config.Endpoint.Redacted(), "error", err)
	}
}

// mayPass reports whether the next attempt may succeed, by the rules of OTLP.
func mayPass(err error) bool {
	switch status.Code(err) {
	case codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.OutOfRange, codes.Unavailable, codes.DataLoss:
		return true
	case codes.ResourceExhausted:
		return delay(err) > 0
	default:
		return false
	}
}

// delay returns the pause that the collector asks for.
func delay(err error) time.Duration {
	for _, detail := range status.Convert(err).Details() {
		if retry, ok := detail.(*errdetails.RetryInfo); ok {
			return retry.GetRetryDelay().AsDuration()
		}
	}
	return 0
}
