package millrace

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

func TestLocksExcludeClients(t *testing.T) {
	c, other := dialCluster(t), dialCluster(t)
	ctx := soon(t)
	ours, theirs := c.Lock("go"), other.Lock("go")
	if err := ours.Acquire(ctx); err != nil {
		t.Fatal(err)
	}
	if got, err := theirs.TryAcquire(ctx); got || err != nil {
		t.Fatalf("acquired by both: %t, %v", got, err)
	}
	got := make(chan error, 1)
	go func() { got <- theirs.Acquire(ctx) }()
	waitInLine(ctx, t, c, "go", 1)
	gaveUp, cancel := context.WithCancel(ctx)
	third := make(chan error, 1)
	go func() { third <- other.Lock("go").Acquire(gaveUp) }()
	waitInLine(ctx, t, c, "go", 2)
	cancel()
	if err := <-third; !errors.Is(err, context.Canceled) {
		t.Errorf("a wait whose context has ended: %v", err)
	}
	waitInLine(ctx, t, c, "go", 1)
	if err := ours.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	if err := ours.Release(ctx); !errors.Is(err, ErrNotHeld) || !strings.Contains(err.Error(), "Acquire it first") {
		t.Errorf("released twice: %v", err)
	}
	if got, err := c.MultiLock("go", "go 2").TryAcquire(ctx); got || err != nil {
		t.Errorf("one of two locks is taken: %t, %v", got, err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	both := c.MultiLock("go", "go 2")
	if err := both.Acquire(ctx); err != nil {
		t.Fatal(err)
	}
	if err := both.Release(ctx); err != nil {
		t.Fatal(err)
	}
	sem := c.Semaphore("go 3", 2)
	for i, want := range []bool{true, true, false} {
		if got, err := sem.TryAcquire(ctx); got != want || err != nil {
			t.Errorf("lease %d of a semaphore: %t, %v", i, got, err)
		}
	}
	if _, err := c.Lock("go 3").TryAcquire(ctx); !errors.Is(err, ErrInvalidField) {
		t.Errorf("another limit: %v", err)
	}
}

// waitInLine waits until a number of calls wait for a lock.
func waitInLine(ctx context.Context, t *testing.T, c *Client, name string, n uint32) {
	t.Helper()
	for {
		out, err := c.shared().GetSemaphore(ctx, &millracev1.GetSemaphoreRequest{ClientId: c.ID(), Name: name})
		if err != nil {
			t.Fatal(err)
		}
		if out.GetWaiting() == n {
			return
		}
	}
}

func TestVariablesQueuesAndEvents(t *testing.T) {
	c, other := dialCluster(t), dialCluster(t)
	ctx := soon(t)
	future := submitTo(t, c, "core.identity", Args(7))
	if err := c.SetVariable(ctx, "v", map[string]any{"n": 1, "f": future}); err != nil {
		t.Fatal(err)
	}
	c.Release(future)
	got, err := other.Variable(ctx, "v")
	fields, ok := got.(map[string]any)
	if err != nil || !ok || fields["n"] != int64(1) {
		t.Fatalf("%#v, %v", got, err)
	}
	if err := c.DeleteVariable(ctx, "v"); err != nil {
		t.Fatal(err)
	}
	f, ok := fields["f"].(*Future)
	if !ok {
		t.Fatalf("%#v", fields)
	}
	if n, err := Get[int](ctx, f); err != nil || n != 7 {
		t.Errorf("%d, %v", n, err)
	}

	q, theirs := c.Queue("q", 1), other.Queue("q", 0)
	if err := q.Put(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- q.Put(ctx, "b") }()
	for _, want := range []string{"a", "b"} {
		if got, err := theirs.Take(ctx); got != want || err != nil {
			t.Errorf("took %v, %v; want %s", got, err, want)
		}
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n, err := q.Len(ctx); n != 0 || err != nil {
		t.Errorf("%d values are left, %v", n, err)
	}
	closed := make(chan error, 1)
	go func() {
		_, err := theirs.Take(ctx)
		closed <- err
	}()
	for waiting := uint32(0); waiting == 0; {
		out, err := c.shared().GetQueue(ctx, &millracev1.GetQueueRequest{ClientId: c.ID(), Name: "q"})
		if err != nil {
			t.Fatal(err)
		}
		waiting = out.GetWaitingTakes()
	}
	if err := q.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-closed; !errors.Is(err, ErrSharedClosed) {
		t.Errorf("a wait for a queue that was closed: %v", err)
	}

	go func() { done <- other.WaitEvent(ctx, "e") }()
	if err := c.SetEvent(ctx, "e", true); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := c.SetEvent(ctx, "e", false); err != nil {
		t.Fatal(err)
	}
}

func TestTopicsAndMetadata(t *testing.T) {
	c, other := dialCluster(t), dialCluster(t)
	ctx := soon(t)
	read := make(chan []Message, 1)
	go func() {
		messages, err := other.ReadTopic(ctx, "t", 0)
		if err != nil {
			t.Error(err)
		}
		read <- messages
	}()
	if err := c.PublishTo(ctx, "t", []any{1, "x"}); err != nil {
		t.Fatal(err)
	}
	if m := <-read; len(m) != 1 || m[0].Number != 1 || m[0].Time.IsZero() || !reflect.DeepEqual(m[0].Value, []any{int64(1), "x"}) {
		t.Errorf("%#v", m)
	}

	if err := c.SetMetadata(ctx, map[string]any{"x": 1, "y": nil}, "a", "b"); err != nil {
		t.Fatal(err)
	}
	got, found, err := other.Metadata(ctx, "a")
	if err != nil || !found || !reflect.DeepEqual(got, map[string]any{"b": map[string]any{"x": int64(1), "y": nil}}) {
		t.Errorf("%#v, %t, %v", got, found, err)
	}
	if _, found, err := other.Metadata(ctx, "a", "none"); found || err != nil {
		t.Errorf("%t, %v", found, err)
	}
	if err := c.SetMetadata(ctx, Key("k"), "a"); err == nil || !strings.Contains(err.Error(), "SetVariable") {
		t.Errorf("a future as metadata: %v", err)
	}
}

// broken is a connection on which the first call of a method fails: it does not arrive, or its
// answer is lost.
func broken(method string, arrives bool) Option {
	calls := 0
	return WithDialOptions(grpc.WithChainUnaryInterceptor(
		func(ctx context.Context, name string, in, out any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
			if !strings.HasSuffix(name, "/"+method) {
				return invoke(ctx, name, in, out, cc, options...)
			}
			calls++
			if calls > 1 || arrives {
				if err := invoke(ctx, name, in, out, cc, options...); err != nil || calls > 1 {
					return err
				}
			}
			return status.Error(codes.Unavailable, "the connection broke")
		}))
}

// A lock that was lost while its holder could not reach the scheduler is told to be lost.
func TestASecondTryToReleaseTellsThatTheLockWasLost(t *testing.T) {
	c, other := dialCluster(t, broken("Release", false)), dialCluster(t)
	lock := c.Lock("lost while away")
	if err := lock.Acquire(soon(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := other.shared().CloseSemaphore(soon(t), &millracev1.CloseSemaphoreRequest{ClientId: other.lease.Load(), Name: "lost while away"}); err != nil {
		t.Fatal(err)
	}
	if err := lock.Release(soon(t)); !errors.Is(err, ErrNotHeld) {
		t.Errorf("a lock that was closed is released with %v", err)
	}
}

// A call whose answer was lost is repeated, and does what it did.
func TestCallsAboutLocksAreRepeated(t *testing.T) {
	c, other := dialCluster(t, broken("Release", true)), dialCluster(t, broken("Acquire", true))
	lock := c.Lock("repeated")
	if err := lock.Acquire(soon(t)); err != nil {
		t.Fatal(err)
	}
	if err := lock.Release(soon(t)); err != nil {
		t.Errorf("a lock that was held is released with %v", err)
	}
	theirs := other.Lock("repeated")
	if got, err := theirs.TryAcquire(soon(t)); !got || err != nil {
		t.Errorf("a free lock is acquired: %t, %v", got, err)
	}
	if got, err := lock.TryAcquire(soon(t)); got || err != nil {
		t.Errorf("a lock of another client is acquired: %t, %v", got, err)
	}
	if err := theirs.Release(soon(t)); err != nil {
		t.Error(err)
	}
}
