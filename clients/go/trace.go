package millrace

import (
	"context"

	"google.golang.org/grpc/metadata"
)

// traceHeader names the span of the caller, as W3C Trace Context has it.
const traceHeader = "traceparent"

// WithTraceparent sets the function that returns the span of a context, in the form of the header
// traceparent of W3C Trace Context; empty: there is none. If the scheduler sends traces (millrace
// scheduler --otlp), it makes the span the parent of the graph that is submitted with the context.
// Calls of Submit in different spans are in graphs of their own. With OpenTelemetry:
//
//	millrace.WithTraceparent(func(ctx context.Context) string {
//		headers := propagation.MapCarrier{}
//		propagation.TraceContext{}.Inject(ctx, headers)
//		return headers["traceparent"]
//	})
//
// Without this option, the span is that of the outgoing metadata of the context.
func WithTraceparent(of func(ctx context.Context) string) Option {
	return func(c *config) { c.traceparent = of }
}

// traceparent returns the span of a context; empty: there is none.
func (c *Client) traceparent(ctx context.Context) string {
	if c.config.traceparent != nil {
		return c.config.traceparent(ctx)
	}
	headers, _ := metadata.FromOutgoingContext(ctx)
	if values := headers.Get(traceHeader); len(values) > 0 {
		return values[0]
	}
	return ""
}

// withSpan returns a context whose calls name a span; empty: none.
func withSpan(ctx context.Context, traceparent string) context.Context {
	if traceparent == "" {
		return ctx
	}
	headers, _ := metadata.FromOutgoingContext(ctx) // It is a copy.
	if headers == nil {
		headers = metadata.MD{}
	}
	headers.Set(traceHeader, traceparent)
	return metadata.NewOutgoingContext(ctx, headers)
}

// valuesOf is a context with the values of another one, which interceptors may look for.
type valuesOf struct {
	context.Context                 //nolint:containedctx // it is a context itself
	values          context.Context //nolint:containedctx // it is a context itself
}

// Value is part of context.Context.
func (v valuesOf) Value(key any) any {
	if value := v.values.Value(key); value != nil {
		return value
	}
	return v.Context.Value(key)
}
