package loop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	hostmemory "github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/store"
	"github.com/millrace/millrace/worker/workertest"
)

// stream is a device on which calls can be started. It records the calls in diary.
type stream struct {
	device.Device
	mu    sync.Mutex
	diary []string
	// noted gets a value for each line of the diary, and has room for all lines of a test.
	noted chan struct{}
	// gate: each call takes one value when it finishes.
	gate chan struct{}
}

func (s *stream) note(format string, args ...any) {
	s.mu.Lock()
	s.diary = append(s.diary, fmt.Sprintf(format, args...))
	s.mu.Unlock()
	s.noted <- struct{}{}
}

func newStream() *stream {
	return &stream{noted: make(chan struct{}, 1000), gate: make(chan struct{}, 100)}
}

// until waits for the given number of further lines of the diary.
func (s *stream) until(t *testing.T, lines int) {
	t.Helper()
	late := time.After(workertest.EventTimeout)
	for range lines {
		select {
		case <-s.noted:
		case <-late:
			t.Fatalf("not within %v: %d further lines after %v", workertest.EventTimeout, lines, s.happened())
		}
	}
}

func (s *stream) happened() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.diary)
}

func (s *stream) Prepare(call device.Call) (device.Prepared, error) {
	return &onStream{s, call.Op, call.Cores}, nil
}

type onStream struct {
	s     *stream
	name  string
	cores func() int
}

func (c *onStream) OutputBytes() []uint64 { return nil }

func (c *onStream) Run(context.Context, device.Allocator) (device.Result, error) {
	if c.name == "cores" {
		c.s.note("run with %d processors", c.cores())
	} else {
		c.s.note("run %s", c.name)
	}
	return device.Result{Header: []byte(c.name)}, nil
}

func (c *onStream) Start(_ context.Context, alloc device.Allocator) (device.Started, error) {
	switch c.name {
	case "wrong":
		return nil, errors.New("wrong")
	case "unable":
		return nil, nil
	case "large":
		if _, err := alloc(1 << 10); err != nil {
			return nil, err
		}
	}
	c.s.note("start %s", c.name)
	return c, nil
}

func (c *onStream) Header() []byte { return nil }

func (c *onStream) Done() bool { return len(c.s.gate) > 0 }

func (c *onStream) Finish() (device.Result, error) {
	<-c.s.gate
	c.s.note("finish %s", c.name)
	if c.name == "fails" {
		return device.Result{}, errors.New("it failed")
	}
	return device.Result{Header: []byte(c.name)}, nil
}

// slotOf starts one slot of a device and returns the channel of its ended runs.
func slotOf(t *testing.T, s *stream, spinTime time.Duration) (n *native, ended chan *nativeRun) {
	t.Helper()
	return slotWith(t, s, spinTime, (&Worker{}).poller())
}

// slotWith is slotOf with a poller.
func slotWith(t *testing.T, s *stream, spinTime time.Duration, out poller) (n *native, ended chan *nativeRun) {
	t.Helper()
	objects := storeOf(t, 1<<20)
	ended = make(chan *nativeRun, 1000)
	take := func(runs []*nativeRun) {
		for _, r := range runs {
			ended <- r
		}
	}
	busy, inline := new(atomic.Bool), new(atomic.Uint32)
	busy.Store(true)
	inline.Store(1 << 10)
	n = newNative(nativeConfig{
		cores:  &cores{share: 1, slots: 1},
		device: s, store: objects, memoryWait: time.Minute, inlineBytes: inline, lost: func() bool { return false },
		post: take, hand: take, idle: func() {}, spinTime: spinTime, busy: busy, poller: out,
	}, 1)
	t.Cleanup(n.close)
	return n, ended
}

// storeOf returns a store with a slab of the given size in host memory.
func storeOf(t *testing.T, bytes uint64) *store.Store {
	t.Helper()
	slab, err := hostmemory.NewSlab(bytes, memory.Identity{})
	if err != nil {
		t.Fatal(err)
	}
	objects, err := store.New(slab, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		objects.Close()
		if err := slab.Close(); err != nil {
			t.Error(err)
		}
	})
	return objects
}

func queue(n *native, names ...string) {
	s := n.slots[0]
	s.mu.Lock()
	for i, name := range names {
		s.queue = append(s.queue, &nativeRun{ref: lifecycle.Ref{Task: ids.TaskID(i + 1), Attempt: 1}, call: device.Call{Op: name}, short: true})
	}
	s.mu.Unlock()
	s.wake <- struct{}{}
}

func TestShortCallsAreStartedWithoutWaiting(t *testing.T) {
	for _, spinTime := range []time.Duration{0, time.Hour} {
		s := newStream()
		n, ended := slotOf(t, s, spinTime)
		names := make([]string, lifecycle.OpenCalls+2)
		for i := range names {
			names[i] = fmt.Sprint(i)
		}
		queue(n, names...)
		for range names {
			s.gate <- struct{}{}
		}
		for i := range names {
			if r := <-ended; r.call.Op != names[i] || r.failure != nil || string(r.inline) != names[i] {
				t.Fatalf("%d: %s ended with %v", i, r.call.Op, r.failure)
			}
		}
		// Runs that were queued together were started together, however soon they ended.
		for i := range lifecycle.OpenCalls {
			if got := s.happened()[i]; got != "start "+names[i] {
				t.Errorf("%d: %s", i, got)
			}
		}
	}
}

func TestNewCallsAreStartedBehindOpenOnes(t *testing.T) {
	s := newStream()
	n, ended := slotOf(t, s, time.Hour)
	queue(n, "a")
	s.until(t, 1)
	queue(n, "b")
	s.until(t, 1)
	s.gate <- struct{}{}
	s.gate <- struct{}{}
	<-ended
	<-ended
	if got, want := s.happened(), []string{"start a", "start b", "finish a", "finish b"}; !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

func TestCallsThatCannotBeStartedRunInTheirTurn(t *testing.T) {
	s := newStream()
	n, ended := slotOf(t, s, 0)
	queue(n, "a", "unable", "b", "large", "wrong", "fails", "c")
	for range 4 {
		s.gate <- struct{}{}
	}
	var failures []string
	for range 7 {
		if r := <-ended; r.failure != nil {
			failures = append(failures, r.call.Op+": "+r.failure.GetReason())
		}
	}
	want := []string{"start a", "finish a", "run unable", "start b", "finish b", "run large", "start fails", "start c", "finish fails", "finish c"}
	if got := s.happened(); !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
	if want := []string{"wrong: OP_FAILED", "fails: OP_FAILED"}; !slices.Equal(failures, want) {
		t.Errorf("%v", failures)
	}
}

func TestOpenCallsEndBeforeTheSlotDoes(t *testing.T) {
	s := newStream()
	n, _ := slotOf(t, s, 0)
	queue(n, "a", "b")
	s.until(t, 2)
	closed := make(chan struct{})
	go func() {
		n.slots[0].mu.Lock()
		n.slots[0].closed = true
		n.slots[0].mu.Unlock()
		s.gate <- struct{}{}
		s.gate <- struct{}{}
		close(closed)
	}()
	<-closed
	n.close()
	if got, want := s.happened(), []string{"start a", "start b", "finish a", "finish b"}; !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
	n.slots = nil // closed
}

// A slot that waits, for work or for the device, polls for notifications from peers, and starts the
// runs that follow. Before a long wait or call, and at its end, it makes peers wake the worker
// again.
func TestAWaitingSlotPollsForNotifications(t *testing.T) {
	s := newStream()
	var n *native
	said := make(chan string, 10)
	var mu sync.Mutex
	looking, wrong := 0, ""
	check := func(ok bool, what string) {
		if !ok {
			wrong = what
		}
	}
	out := poller{
		started: func() bool { return false },
		setPolling: func(yes bool) {
			mu.Lock()
			defer mu.Unlock()
			if yes {
				looking++
			} else {
				looking--
			}
			check(looking == 0 || looking == 1, "it says twice what it does")
		},
		poll: func() bool {
			select {
			case name := <-said:
				// A notification leads to a run of that name.
				n.start(0, &nativeRun{ref: lifecycle.Ref{Task: 1, Attempt: 1}, call: device.Call{Op: name}, short: name != "long"})
				return true
			default:
				return false
			}
		},
	}
	made := make(chan struct{})
	gated := out
	gated.poll = func() bool {
		<-made // n is set after slotWith returns
		return out.poll()
	}
	n, ended := slotWith(t, s, time.Hour, gated)
	close(made)
	said <- "a"
	s.until(t, 1)
	said <- "b"
	s.until(t, 1)
	s.gate <- struct{}{}
	s.gate <- struct{}{}
	<-ended
	<-ended
	mu.Lock()
	check(looking == 1, "it waits, and peers are to call")
	mu.Unlock()
	said <- "long"
	<-ended
	n.close()
	n.slots = nil // closed
	if got, want := s.happened(), []string{"start a", "start b", "finish a", "finish b"}; !slices.Equal(got[:4], want) {
		t.Errorf("%v", got)
	}
	check(looking == 0, "it has ended, and peers need not call")
	if wrong != "" {
		t.Error(wrong)
	}
}
