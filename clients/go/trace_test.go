package millrace

import (
	"context"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

type spanKey struct{}

// Submissions name the span of their context, calls in different spans get graphs of their own, and
// interceptors find the values of the context.
func TestSubmissionsNameTheSpanOfTheirContext(t *testing.T) {
	var seen []any
	interceptor := func(ctx context.Context, method string, request, answer any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
		if method == "/millrace.v1.SchedulerService/SubmitBatch" {
			seen = append(seen, ctx.Value(spanKey{}))
		}
		return invoke(ctx, method, request, answer, conn, options...)
	}
	in := func(ctx context.Context, span string) context.Context { return context.WithValue(ctx, spanKey{}, span) }
	for name, options := range map[string][]Option{
		"option": {WithTraceparent(func(ctx context.Context) string { span, _ := ctx.Value(spanKey{}).(string); return span })},
		"header": nil,
	} {
		t.Run(name, func(t *testing.T) {
			seen = nil
			fake := newFake(t)
			c := fake.dial(t, append(options, WithDialOptions(grpc.WithUnaryInterceptor(interceptor)))...)
			ctx := soon(t)
			a, b := in(ctx, "a"), in(ctx, "b")
			if name == "header" {
				a, b = metadata.AppendToOutgoingContext(a, traceHeader, "a"), metadata.AppendToOutgoingContext(b, traceHeader, "b")
			}
			fake.gate = make(chan struct{}, 10)
			var futures []*Future
			for _, ctx := range []context.Context{ctx, a, a, b, ctx} {
				ended, end := context.WithCancel(ctx)
				some, err := c.Map(ended, Native("bench.noop"), slices.Values([]Arguments{Args(), Args()}))
				end() // The context of the call ends before the submission.
				if err != nil {
					t.Fatal(err)
				}
				futures = append(futures, some...)
			}
			for range cap(fake.gate) {
				fake.gate <- struct{}{}
			}
			for _, f := range futures {
				if err := f.Wait(ctx); err != nil {
					t.Fatal(err)
				}
			}
			g := c.NewGraph("g")
			g.Add("", Native("bench.noop"), Args(), Hold())
			if _, err := g.Submit(b); err != nil {
				t.Fatal(err)
			}
			fake.mu.Lock()
			defer fake.mu.Unlock()
			graphs := slices.DeleteFunc(fake.spans, func(s string) bool { return s[0] != '0' })
			if want := []string{"0 []", "0 [a]", "0 [b]", "0 []", "0 [b]"}; !slices.Equal(graphs, want) {
				t.Errorf("the new graphs were %q, want %q", graphs, want)
			}
			if want := []any{nil, "a", "b", nil, "b"}; !slices.Equal(slices.Compact(seen), want) {
				t.Errorf("interceptors saw %v, want %v", seen, want)
			}
		})
	}
}
