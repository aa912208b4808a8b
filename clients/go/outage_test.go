package millrace

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/leader"
)

// The retry timeout is shorter than the lease, so the results are still held after it.
func TestReleasesAreRepeatedAfterAnOutage(t *testing.T) {
	fake := newFake(t)
	fake.refuseReleases, fake.releases = 3, make(chan []uint64, 1)
	c := fake.dial(t, WithRetryTimeout(time.Millisecond))
	f, err := c.Submit(soon(t), Native("echo"), Args(1))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Wait(soon(t)); err != nil {
		t.Fatal(err)
	}
	id := f.TaskID()
	f.Release()
	select {
	case ids := <-fake.releases:
		if !slices.Equal(ids, []uint64{id}) {
			t.Errorf("released %v, want %d", ids, id)
		}
	case <-soon(t).Done():
		t.Error("the task was never released")
	}
}

func TestAFetchGoesToAnotherHolderIfOneCannotBeReached(t *testing.T) {
	fake := newFake(t)
	fake.unreachable = true
	c := fake.dial(t, WithoutSharedMemory())
	f, err := c.Submit(soon(t), Native("far"), Args())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Get[[]float64](soon(t), f); err != nil || !slices.Equal(got, []float64{1, 2, 3}) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestLocationsOfManyObjectsAreAskedForInSeveralCalls(t *testing.T) {
	fake := newFake(t)
	c := fake.dial(t)
	located, err := c.locate(soon(t), make([]uint64, 2*maxLocate+1))
	if err != nil || len(located.GetObjects()) != 2*maxLocate+1 {
		t.Fatalf("%d locations, %v", len(located.GetObjects()), err)
	}
	if !slices.Equal(fake.locates, []int{maxLocate, maxLocate, 1}) {
		t.Errorf("calls for %v tasks", fake.locates)
	}
}

// quietScheduler breaks its first Watch after quiet, during which it sends nothing.
type quietScheduler struct {
	millracev1.UnimplementedSchedulerServiceServer
	quiet   time.Duration
	watches int
}

func (s *quietScheduler) Watch(_ *millracev1.WatchRequest, stream grpc.ServerStreamingServer[millracev1.WatchResponse]) error {
	s.watches++ // the client opens one stream after the other
	if err := stream.Send(&millracev1.WatchResponse{CatalogRevision: uint64(s.watches), Snapshot: s.watches == 1}); err != nil {
		return err
	}
	if s.watches == 1 {
		time.Sleep(s.quiet) // of the test's own clock: a stream without messages for this long
		return status.Error(codes.Unavailable, "broken")
	}
	return nil
}

// dialScheduler returns a client of a fake scheduler, without a lease.
func dialScheduler(t *testing.T, scheduler millracev1.SchedulerServiceServer, options ...Option) *Client {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	millracev1.RegisterSchedulerServiceServer(server, scheduler)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	dialer := grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) })
	c, err := Dial(t.Context(), append([]Option{WithAddress("fake:1"), WithoutLease(), WithDialOptions(dialer)}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return c
}

// The retry timeout limits an outage, not the time without changes before it.
func TestAQuietWatchIsResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dialScheduler(t, &quietScheduler{quiet: 400 * time.Millisecond}, WithRetryTimeout(200*time.Millisecond))
		var revisions []uint64
		for batch, err := range c.Watch(t.Context(), WatchOptions{Workers: true}) {
			if err != nil {
				t.Fatal(err)
			}
			revisions = append(revisions, batch.GetCatalogRevision())
		}
		if !slices.Equal(revisions, []uint64{1, 2}) {
			t.Errorf("revisions %v", revisions)
		}
	})
}

// restartedScheduler is another life at the second Watch. Its catalogue has come to the revision of
// the first one.
type restartedScheduler struct {
	millracev1.UnimplementedSchedulerServiceServer
	lives int
}

func (s *restartedScheduler) Watch(r *millracev1.WatchRequest, stream grpc.ServerStreamingServer[millracev1.WatchResponse]) error {
	s.lives = max(s.lives, 1)
	if life := r.GetLife(); life != 0 && life != uint64(s.lives) {
		return refuseAs(codes.NotFound, "UNKNOWN_CLIENT", "another life")
	}
	out := &millracev1.WatchResponse{CatalogRevision: 5, Life: uint64(s.lives), Snapshot: r.GetAfterRevision() == 0}
	if out.GetSnapshot() && s.lives == 1 {
		out.Workers = []*millracev1.Worker{drainingWorker()}
	}
	if err := stream.Send(out); err != nil {
		return err
	}
	if s.lives == 1 {
		s.lives = 2
		return status.Error(codes.Unavailable, "killed")
	}
	<-stream.Context().Done()
	return nil
}

func drainingWorker() *millracev1.Worker {
	return &millracev1.Worker{WorkerId: 1, Name: "host-0", State: millracev1.WorkerState_WORKER_STATE_DRAINING, Drain: &millracev1.WorkerDrain{Purpose: millracev1.DrainPurpose_DRAIN_PURPOSE_KEEP}}
}

func TestAWatchBeginsAnewWithAnotherScheduler(t *testing.T) {
	c := dialScheduler(t, &restartedScheduler{})
	workers := 0
	for batch, err := range c.Watch(soon(t), WatchOptions{Workers: true}) {
		if err != nil {
			t.Fatal(err)
		}
		if batch.GetSnapshot() {
			workers = 0
		}
		workers += len(batch.GetWorkers())
		if batch.GetLife() == 2 {
			break
		}
	}
	if workers != 0 {
		t.Errorf("%d workers of the earlier scheduler are left", workers)
	}
}

func TestAWaitForADrainFailsWithAnotherScheduler(t *testing.T) {
	c := dialScheduler(t, &restartedScheduler{})
	if err := c.WaitDrained(soon(t), drainingWorker()); err == nil || !strings.Contains(err.Error(), "started anew") || !strings.Contains(err.Error(), "host-0") {
		t.Errorf("the drain of a worker that the scheduler does not know: %v", err)
	}
}

// TestFlushSendsReleases: what another client does after a Flush must not meet tasks that this
// client has given up.
func TestFlushSendsReleases(t *testing.T) {
	ctx := soon(t)
	fake := newFake(t)
	fake.releases = make(chan []uint64)
	c := fake.dial(t)
	f, err := c.Submit(ctx, Native("x"), Args())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	f.Release()
	flushed := make(chan error, 1)
	go func() { flushed <- c.Flush(ctx) }()
	select {
	case err := <-flushed:
		t.Fatalf("Flush returned %v before the release was answered", err)
	case <-fake.releases:
	}
	if err := <-flushed; err != nil {
		t.Fatal(err)
	}
}

// TestFlushSaysThatReleasesAreQueued: its error is that of its own attempt, not of an earlier one.
func TestFlushSaysThatReleasesAreQueued(t *testing.T) {
	ctx := soon(t)
	fake := newFake(t)
	c := fake.dial(t, WithRetryTimeout(time.Millisecond))
	f, err := c.Submit(ctx, Native("x"), Args())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	fake.mu.Lock()
	fake.refuseReleases = 1 << 30
	fake.mu.Unlock()
	f.Release()
	if err := c.Flush(ctx); !errors.Is(err, ErrUnavailable) {
		t.Errorf("while the scheduler cannot be reached: %v", err)
	}
	ended, end := context.WithCancel(ctx)
	end()
	if err := c.Flush(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of its context: %v", err)
	}
	fake.mu.Lock()
	fake.refuseReleases = 0
	fake.mu.Unlock()
	if err := c.Flush(ctx); err != nil {
		t.Errorf("once the scheduler is back: %v", err)
	}
}

// network dials a fake cluster, and can cut all connections.
type network struct {
	fake  *fakeCluster
	mu    sync.Mutex
	conns []net.Conn
	down  bool
}

func (n *network) dial(ctx context.Context, _ string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down {
		return nil, errors.New("connection refused")
	}
	conn, err := n.fake.listener.DialContext(ctx)
	if err == nil {
		n.conns = append(n.conns, conn)
	}
	return conn, err
}

// set cuts all connections and refuses others, or admits them again.
func (n *network) set(down bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = down
	for _, conn := range n.conns {
		_ = conn.Close() // the other end sees it
	}
	n.conns = nil
}

// testOutage runs a test with a client whose scheduler is away for this long, on a clock of the
// test. The functions are called before the outage, at its beginning, and at once after its end.
func testOutage(t *testing.T, long time.Duration, before, begin, end func(*testing.T, *Client), options ...Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cut := &network{fake: newFake(t)}
		c := cut.fake.dial(t, append(options, WithoutSharedMemory(), WithDialOptions(grpc.WithContextDialer(cut.dial)))...)
		before(t, c)
		cut.set(true)
		begin(t, c)
		time.Sleep(long) // of the test's own clock: this is the outage
		cut.set(false)
		end(t, c)
	})
}

func submitted(t *testing.T, c *Client, op string) *Future {
	t.Helper()
	f, err := c.Submit(t.Context(), Native(op), Args(1))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// gRPC's own pauses between attempts to connect would have grown to two minutes.
func TestASubmissionArrivesSoonAfterALongOutage(t *testing.T) {
	var f *Future
	testOutage(t, 5*time.Minute, func(*testing.T, *Client) {}, func(t *testing.T, c *Client) {
		t.Helper()
		f = submitted(t, c, "echo")
	}, func(t *testing.T, _ *Client) {
		t.Helper()
		back := time.Now()
		if err := f.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(back); waited > 5*time.Second {
			t.Errorf("the task was accepted %v after the scheduler was back", waited)
		}
	})
}

func TestASubmissionFailsAfterTheReconnectTimeout(t *testing.T) {
	var f *Future
	testOutage(t, 5*time.Minute, func(*testing.T, *Client) {}, func(t *testing.T, c *Client) {
		t.Helper()
		f = submitted(t, c, "echo")
	}, func(t *testing.T, c *Client) {
		t.Helper()
		if err := f.Wait(t.Context()); !errors.Is(err, ErrUnavailable) {
			t.Errorf("after the longest outage: %v", err)
		}
		if err := submitted(t, c, "echo").Wait(t.Context()); err != nil {
			t.Errorf("once the scheduler is back: %v", err)
		}
	}, WithReconnectTimeout(time.Minute))
}

// The time in line before the outage is not part of it.
func TestAWaitInLineOutlivesAnOutage(t *testing.T) {
	for name, limit := range map[string]struct {
		option Option
		want   error
	}{
		"default": {WithReconnectTimeout(defaultReconnectTimeout), nil},
		"shorter": {WithReconnectTimeout(time.Minute), ErrUnavailable},
		"longer":  {WithReconnectTimeout(5*time.Minute + pollWait/4), nil},
	} {
		t.Run(name, func(t *testing.T) {
			var waited chan error // made in the bubble
			testOutage(t, 5*time.Minute, func(t *testing.T, c *Client) {
				t.Helper()
				waited = make(chan error, 1)
				go func() { waited <- c.WaitEvent(t.Context(), "set") }()
				time.Sleep(pollWait / 2) // of the test's own clock: the call waits
			}, func(*testing.T, *Client) {}, func(t *testing.T, _ *Client) {
				t.Helper()
				if err := <-waited; !errors.Is(err, limit.want) {
					t.Errorf("a wait in line ended with %v, want %v", err, limit.want)
				}
			}, limit.option)
		})
	}
}

// A result on a worker is read when the scheduler can be asked again where it is.
func TestAFetchOutlivesAnOutage(t *testing.T) {
	var f *Future
	var got []float64
	var fetched chan error // made in the bubble
	testOutage(t, 5*time.Minute, func(t *testing.T, c *Client) {
		t.Helper()
		if f = submitted(t, c, "far"); f.Wait(t.Context()) != nil {
			t.Fatal("the task has not succeeded")
		}
	}, func(t *testing.T, _ *Client) {
		t.Helper()
		fetched = make(chan error, 1)
		go func() {
			var err error
			got, err = Get[[]float64](t.Context(), f)
			fetched <- err
		}()
	}, func(t *testing.T, _ *Client) {
		t.Helper()
		if err := <-fetched; err != nil || !slices.Equal(got, []float64{1, 2, 3}) {
			t.Errorf("%v, %v", got, err)
		}
	})
}

// startingScheduler reads its journal for some calls.
type startingScheduler struct {
	millracev1.UnimplementedSchedulerServiceServer
	calls int
}

func (s *startingScheduler) OpenClient(context.Context, *millracev1.OpenClientRequest) (*millracev1.OpenClientResponse, error) {
	if s.calls++; s.calls < 20 {
		return nil, refuseAs(codes.Unavailable, reasonStarting, "the scheduler reads its journal: try again")
	}
	return &millracev1.OpenClientResponse{}, nil
}

// The time in which the scheduler reads its journal is not that of an outage.
func TestCallsWaitForASchedulerThatReadsItsJournal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		scheduler := new(startingScheduler)
		c := dialScheduler(t, scheduler, WithRetryTimeout(100*time.Millisecond))
		if err := c.openLease(t.Context()); err != nil || scheduler.calls != 20 {
			t.Errorf("%v after %d calls", err, scheduler.calls)
		}
		c.lease.Store(0)
	})
}

// While schedulers elect a leader there is none, as if the only one were away.
func TestSubmissionsWaitWhileNobodyLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dialScheduler(t, new(startingScheduler), WithRetryTimeout(100*time.Millisecond))
		calls := 0
		err := c.retryFor(t.Context(), "SubmitBatch", time.Hour, func(context.Context) error {
			if calls++; calls < 50 {
				return leader.Refusal("")
			}
			return nil
		})
		if err != nil || calls != 50 {
			t.Errorf("%v after %d calls", err, calls)
		}
	})
}
