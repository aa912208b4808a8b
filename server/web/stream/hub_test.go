package stream

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/internal/leaktest"
	"github.com/millrace/millrace/server/loop"
	"github.com/millrace/millrace/server/rpc"
	"github.com/millrace/millrace/server/sched"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Patient{M: m}) }

// newHub returns a hub of an empty scheduler that runs until the test ends.
func newHub(t *testing.T) *Hub {
	t.Helper()
	l := loop.New(loop.Config{})
	h := New(Config{Scheduler: l, Rows: rpc.Rows{}})
	ctx, cancel := context.WithCancel(context.Background())
	looped, served := make(chan struct{}), make(chan struct{})
	go func() { defer close(looped); l.Run(ctx) }()
	go func() { defer close(served); h.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-served
		<-looped
	})
	return h
}

// pipes is a listener whose connections have no buffers.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{} }

// serve serves the streams of a hub and returns a function that opens one.
func serve(t *testing.T, h *Hub) (open func(query string) net.Conn) {
	t.Helper()
	p := &pipes{make(chan net.Conn), make(chan struct{})}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := h.Serve(w, r); err != nil {
			t.Errorf("serve: %v", err)
		}
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(p) }()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	return func(query string) net.Conn {
		ours, theirs := net.Pipe()
		p.conns <- theirs
		if _, err := ours.Write([]byte("GET /?" + query + " HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ours.Close() })
		return ours
	}
}

// A viewer that takes nothing is dropped; one that reads stays.
func TestAViewerThatStopsReadingIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		open := serve(t, h)
		conn := open("topics=summary")
		lines := make(chan string)
		go func() {
			defer close(lines)
			for reader := bufio.NewReader(conn); ; {
				line, err := reader.ReadString('\n')
				if err != nil {
					return
				}
				if strings.HasPrefix(line, "data:") {
					lines <- line
				}
			}
		}()
		<-lines
		open("topics=summary,runs") // It never reads.
		synctest.Wait()
		if n := h.Viewers(); n != 2 {
			t.Fatalf("%d viewers, want 2", n)
		}
		began := time.Now()
		for h.Viewers() == 2 {
			<-lines // In virtual time.
		}
		if passed := time.Since(began); passed > patience+2*quiet {
			t.Errorf("the viewer was dropped after %v", passed)
		}
		if line := <-lines; !strings.Contains(line, "tasks_per_second") {
			t.Errorf("the other one gets %q", line)
		}
		_ = conn.Close()
		for range lines {
		}
	})
}

// As many pages as are served are open, and one of them stops reading. It is dropped, the queues
// stay bounded, the others get all that comes, and its place is free.
func TestAHundredViewersOutliveOneThatStopsReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		open := serve(t, h)
		var got atomic.Int64
		var conns []net.Conn
		for range maxViewers - 1 {
			conn := open("topics=summary,workers,graphs,events,alarms")
			conns = append(conns, conn)
			go func() {
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					if strings.HasPrefix(lines.Text(), "event: summary") {
						got.Add(1)
					}
				}
			}()
		}
		open("topics=summary,runs") // It never reads.
		synctest.Wait()
		if n := h.Viewers(); n != maxViewers {
			t.Fatalf("%d viewers, want %d", n, maxViewers)
		}
		began := time.Now()
		for h.Viewers() == maxViewers && time.Since(began) < time.Minute {
			time.Sleep(tick) // In virtual time.
			h.mu.Lock()
			for v := range h.viewers {
				v.mu.Lock()
				if v.bytes > queueBytes {
					t.Errorf("%d bytes wait for one viewer", v.bytes)
				}
				v.mu.Unlock()
			}
			h.mu.Unlock()
		}
		if passed := time.Since(began); passed > patience+2*quiet {
			t.Errorf("the viewer was dropped after %v", passed)
		}
		before := got.Load()
		time.Sleep(2 * quiet) // In virtual time.
		if n := h.Viewers(); n != maxViewers-1 {
			t.Errorf("%d viewers are left, want %d", n, maxViewers-1)
		}
		if more := got.Load() - before; more < maxViewers-1 {
			t.Errorf("%d summaries came after that, fewer than one for each viewer", more)
		}
		for _, conn := range conns {
			_ = conn.Close()
		}
	})
}

func TestViewersAreBounded(t *testing.T) {
	h := New(Config{Scheduler: loop.New(loop.Config{}), Rows: rpc.Rows{}})
	viewers := make([]*viewer, maxViewers)
	for i := range viewers {
		viewers[i] = &viewer{}
		if err := h.join(viewers[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.join(&viewer{}); status.Code(err) != codes.Unavailable {
		t.Errorf("one more: %v", err)
	}
	h.leave(viewers[0])
	if err := h.join(&viewer{}); err != nil {
		t.Errorf("in the place of another one: %v", err)
	}
}

// The queue of a viewer is bounded. A snapshot makes up for the events that it misses, as soon as
// it has taken the others.
func TestAViewerThatFallsBehindGetsASnapshot(t *testing.T) {
	v := &viewer{topics: 3, ready: make(chan struct{}, 1)}
	large := &event{data: make([]byte, queueBytes*3/4)}
	v.offer(large, 1)
	v.offer(large, 1) // There is no room.
	v.offer(&event{data: []byte("small")}, 2)
	if v.missing.Load() != 1 || v.bytes > queueBytes || len(v.queue) != 2 {
		t.Fatalf("missing %b, %d bytes in %d events", v.missing.Load(), v.bytes, len(v.queue))
	}
	whole := &alarms{whole: &event{data: []byte("whole")}}
	v.offerSnapshot(whole, 1)
	if v.missing.Load() != 1 || len(v.queue) != 2 {
		t.Error("a snapshot came while the queue was full")
	}
	if taken := v.take(nil); len(taken) != 2 || v.bytes != 0 {
		t.Errorf("%d events were taken, %d bytes are left", len(taken), v.bytes)
	}
	v.offerSnapshot(whole, 1)
	if taken := v.take(nil); v.missing.Load() != 0 || len(taken) != 1 || string(taken[0].data) != "whole" {
		t.Errorf("after the snapshot: missing %b, %v", v.missing.Load(), taken)
	}
	// An event that is longer than the queue still goes to a viewer without others.
	v.offer(&event{data: make([]byte, 2*queueBytes)}, 1)
	if v.missing.Load() != 0 || len(v.queue) != 1 {
		t.Error("a very long event was not sent")
	}
}

func TestRunsAsJSON(t *testing.T) {
	start := time.Unix(1000, 0)
	found := []sched.Run{
		{Number: 7, Task: 1 << 60, Key: `a"b`, Op: "inc", Worker: "w-0", WorkerID: 3, Succeeded: true, OutputBytes: 8, End: start.Add(2 * time.Second), RunTime: 1500 * time.Microsecond,
			Phases: sched.Phases{Fetch: time.Millisecond, Load: 30 * time.Microsecond, Wait: 20 * time.Microsecond, Deserialize: time.Microsecond, Publish: 500 * time.Microsecond, FetchedBytes: 9, Slot: 2}},
		{Number: 8, Task: 2, Key: "é", Op: "inc", Worker: "w-0", WorkerID: 3, End: start},
	}
	got := string(new(runEncoder).appendTo(nil, found, start, true))
	want := `"rows":[[7,"1152921504606846976",0,3,2,1998,1.500,1,0.020,0.001,0.500,8,9,5,"a\"b",0.030],[8,"2",0,3,0,0,0,0,0,0,0,0,0,6,"é",0]],"op":["inc"],"columns":` + runColumns + `,"workers":{"3":"w-0"}`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Older samples are further apart.
func TestSamplesAreBounded(t *testing.T) {
	s := newSamples(newSummary(Config{}))
	begin := time.Unix(1_000_000, 0)
	const total = 10_000
	for i := range total {
		s.keep(begin.Add(time.Duration(i)*time.Second), &figures{}, &rates{})
	}
	if len(s.fine.ring) != fineKept || len(s.older.ring) != total/10 {
		t.Fatalf("%d fine and %d older samples", len(s.fine.ring), len(s.older.ring))
	}
	last, rows := 0.0, 0
	s.older.each(func(row *sample) {
		if rows++; row[0] <= last {
			t.Fatalf("%v after %v", row[0], last)
		}
		last = row[0]
	})
	text := string(s.encode(float64(begin.Unix()+total-610), 1e18))
	if n := strings.Count(text, "],[") + 1; n != fineKept+1 {
		t.Errorf("%d rows of the last 610 seconds, want %d fine ones and one older", n, fineKept)
	}
}
