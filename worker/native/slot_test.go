package native

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/workertest"
)

// slabBytes is the size of the slab of most tests.
const slabBytes = 1 << 20

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

func (c *onStream) OutputBytes() []uint64 {
	if c.name == "half" {
		return []uint64{slabBytes / 2}
	}
	return nil
}

func (c *onStream) Run(ctx context.Context, _ device.Allocator) (device.Result, error) {
	switch c.name {
	case "cores":
		c.s.note("run with %d processors", c.cores())
		return device.Result{Header: []byte(c.name)}, nil
	case "hangs":
		c.s.note("run %s", c.name)
		<-ctx.Done()
		return device.Result{}, ctx.Err()
	case "breaks":
		return device.Result{}, errors.New("it broke")
	}
	c.s.note("run %s", c.name)
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

// owner is a Host that passes on ended runs, and has no peers.
type owner struct {
	ended chan *Run
	// polls, if set, is called by Poll; sets by SetPolling.
	polls func() bool
	sets  func(yes bool)
	// lost is the reason that the slots gave for the loss of the device.
	lost chan error
}

func newOwner() *owner { return &owner{ended: make(chan *Run, 1000), lost: make(chan error, 10)} }

func (o *owner) Ended(runs []*Run) {
	for _, r := range runs {
		o.ended <- r
	}
}

func (o *owner) HandOver(runs []*Run) { o.Ended(runs) }

func (o *owner) Idle() {}

func (o *owner) DeviceLost(why error) { o.lost <- why }

func (o *owner) SetPolling(yes bool) {
	if o.sets != nil {
		o.sets(yes)
	}
}

func (o *owner) Poll() bool { return o.polls != nil && o.polls() }

// slotOf starts one slot of a device and returns the channel of its ended runs.
func slotOf(t *testing.T, s *stream, spinTime time.Duration) (n *Slots, ended chan *Run) {
	t.Helper()
	o := newOwner()
	n = slotsOf(t, Config{Slots: 1, Cores: 1, Device: s, SpinTime: spinTime})
	n.Open(o)
	return n, o.ended
}

// slotsOf returns slots, not open yet, of a worker that has attempts.
func slotsOf(t *testing.T, c Config) *Slots {
	t.Helper()
	if c.Store == nil {
		c.Store = workertest.NewStore(t, slabBytes)
	}
	n := New(c)
	t.Cleanup(n.Close)
	n.Load(true, 0)
	n.Registered(1 << 10)
	return n
}

// runOf returns a run of the first attempt of a task.
func runOf(task int, op string) *Run {
	return &Run{Ref: lifecycle.Ref{Task: ids.TaskID(task), Attempt: 1}, Call: device.Call{Op: op}, Short: true}
}

// queue starts runs together: the slot is woken once.
func queue(n *Slots, names ...string) {
	s := n.slots[0]
	s.mu.Lock()
	for i, name := range names {
		s.queue = append(s.queue, runOf(i+1, name))
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
			if r := <-ended; r.Call.Op != names[i] || r.Failure != nil || string(r.Inline) != names[i] {
				t.Fatalf("%d: %s ended with %v", i, r.Call.Op, r.Failure)
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
		if r := <-ended; r.Failure != nil {
			failures = append(failures, r.Call.Op+": "+r.Failure.GetReason())
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
	n.Close()
	if got, want := s.happened(), []string{"start a", "start b", "finish a", "finish b"}; !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

// A slot that waits, for work or for the device, polls for notifications from peers, and starts the
// runs that follow. Before a long wait or call, and at its end, it makes peers wake the worker
// again.
func TestAWaitingSlotPollsForNotifications(t *testing.T) {
	s := newStream()
	said := make(chan string, 10)
	var mu sync.Mutex
	looking, wrong := 0, ""
	check := func(ok bool, what string) {
		if !ok {
			wrong = what
		}
	}
	o, n := newOwner(), slotsOf(t, Config{Slots: 1, Cores: 1, Device: s, SpinTime: time.Hour})
	o.sets = func(yes bool) {
		mu.Lock()
		defer mu.Unlock()
		if yes {
			looking++
		} else {
			looking--
		}
		check(looking == 0 || looking == 1, "it says twice what it does")
	}
	o.polls = func() bool {
		select {
		case name := <-said:
			// A notification leads to a run of that name.
			r := runOf(1, name)
			r.Short = name != "long"
			n.Start(0, r)
			return true
		default:
			return false
		}
	}
	n.Open(o)
	said <- "a"
	s.until(t, 1)
	said <- "b"
	s.until(t, 1)
	s.gate <- struct{}{}
	s.gate <- struct{}{}
	<-o.ended
	<-o.ended
	// It looks again soon after the end of a run.
	for limit := time.Now().Add(5 * time.Minute); ; time.Sleep(time.Millisecond) {
		mu.Lock()
		looks := looking == 1
		check(looks || time.Now().Before(limit), "it waits, and peers are to call")
		mu.Unlock()
		if looks || time.Now().After(limit) {
			break
		}
	}
	said <- "long"
	<-o.ended
	n.Close()
	if got, want := s.happened(), []string{"start a", "start b", "finish a", "finish b"}; !slices.Equal(got[:4], want) {
		t.Errorf("%v", got)
	}
	check(looking == 0, "it has ended, and peers need not call")
	if wrong != "" {
		t.Error(wrong)
	}
}
