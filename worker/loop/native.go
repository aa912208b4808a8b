package loop

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/store"
)

// nativeRun is one attempt for a native slot. The slot owns it from start until the slot posts it
// back.
type nativeRun struct {
	ref     lifecycle.Ref
	call    device.Call
	timeout time.Duration
	// slots is the number of slots that the task takes; 0 means 1.
	slots int
	// short: the run is expected to be short, so the slot may start it asynchronously and stay in
	// its polling mode. brief: so short that notifications from peers can wait for its end.
	short, brief bool
	// reservation is memory reserved by the loop, which also releases it; 0: none. roomy: the
	// result fits in it; otherwise it is for the inputs only.
	reservation ledger.ReservationID
	roomy       bool

	// state is one of the constants below. A compare-and-swap decides a race between the slot that
	// begins the run and the loop that takes it back.
	state atomic.Uint32

	// The slot sets the outcome.
	returned bool
	noRoom   []uint64
	failure  *millracev1.TaskError
	inline   []byte
	bytes    uint64
	framed   uint64 // bytes of the frames, without the header; 0 if there are none
	runTime  time.Duration
	times    runTimes
	// orphaned: the run failed because the device was lost. It is not reported as failed: the
	// worker ends, and its end makes the scheduler run the attempt elsewhere.
	orphaned bool

	// The owner sets the fields below, for the work that is deferred until the peers are notified;
	// see Worker.settleEnded. report is nil if there is nothing to report. pinned are the inputs
	// that were pinned for the attempt.
	attempt *attempt
	loans   []transfer.Loan
	pinned  []ledger.ObjectID
	told    time.Time
	report  *workerv1.TaskReport
}

const (
	runQueued uint32 = iota
	runBegun
	runTaken
)

var (
	errTimeout   = errors.New("out of time")
	errCancelled = errors.New("cancelled")
)

// native is the set of slots for native operations, with one goroutine each.
type native struct {
	nativeConfig
	slots []*nativeSlot
	wait  sync.WaitGroup
}

// nativeConfig is the part of the worker that the slots use.
type nativeConfig struct {
	device device.Device
	store  *store.Store
	// memoryWait is the longest time that a run waits for more memory.
	memoryWait time.Duration
	// inlineBytes is the size of the largest result that is sent inline.
	inlineBytes *atomic.Uint32
	// lost says whether the device is lost; if it is, the worker ends. See Config.Health.
	lost func() bool
	// post takes runs that have ended or are returned. hand does the same for a slot that has
	// nothing else to do: the slot may step the machine itself. The reports that result are sent to
	// the scheduler only when the slot calls idle, at the latest before it blocks.
	post, hand func([]*nativeRun)
	idle       func()
	// spinTime is the spin limit of a slot without work. The slot only spins while busy says that
	// the worker has attempts. See Config.SpinTime.
	spinTime time.Duration
	busy     *atomic.Bool
	poller   poller
	cores    *cores
}

// newNative starts the slots of the worker.
func newNative(c nativeConfig, slots int) *native {
	n := &native{nativeConfig: c}
	for range slots {
		s := newNativeSlot(n)
		n.slots = append(n.slots, s)
		n.wait.Add(1)
		go s.run()
	}
	return n
}

// close cancels the runs, waits for the slots to end and discards the results.
func (n *native) close() {
	for _, s := range n.slots {
		s.mu.Lock()
		s.closed = true
		if s.cancel != nil {
			s.cancel(errCancelled)
		}
		close(s.wake)
		s.mu.Unlock()
	}
	n.wait.Wait()
}

func (n *native) start(slot int, r *nativeRun) {
	s := n.slots[slot]
	s.mu.Lock()
	s.queue = append(s.queue, r)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// stop cancels a running run, or prevents a queued one from beginning.
func (n *native) stop(slot int, r *nativeRun) {
	if r.state.CompareAndSwap(runQueued, runTaken) {
		return // the slot notices when it takes the run from its queue
	}
	s := n.slots[slot]
	s.mu.Lock()
	if s.current == r {
		s.cancel(errCancelled)
	}
	s.mu.Unlock()
}

// takeBack returns a run that its slot has not begun. The slot is busy with another run, so this
// goroutine removes the run from the queue and posts it as returned.
func (n *native) takeBack(slot int, r *nativeRun) {
	if !r.state.CompareAndSwap(runQueued, runTaken) {
		return
	}
	s := n.slots[slot]
	s.mu.Lock()
	found := false
	for i, q := range s.queue {
		if q == r {
			s.queue = append(s.queue[:i], s.queue[i+1:]...)
			found = true
			break
		}
	}
	s.mu.Unlock()
	if found {
		r.returned = true
		n.post([]*nativeRun{r})
	}
	// Otherwise the slot has dequeued the run already and returns it itself.
}

func holder(task ids.TaskID) ledger.Holder {
	return ledger.Holder{Kind: ledger.HolderTask, ID: uint64(task)}
}

// taskError converts a failure into the error of the API.
func taskError(ctx context.Context, r *nativeRun, err error) *millracev1.TaskError {
	var failed *device.Error
	switch {
	case errors.Is(context.Cause(ctx), errTimeout):
		return &millracev1.TaskError{
			Reason:   "TIMEOUT",
			Message:  fmt.Sprintf("%s ran longer than its timeout of %v and was interrupted; raise the timeout or use smaller chunks", r.call.Op, r.timeout),
			Metadata: map[string]string{"timeout": r.timeout.String(), "stopped_by": "interrupt"},
		}
	case ctx.Err() != nil:
		return &millracev1.TaskError{Reason: "CANCELLED", Message: r.call.Op + " was cancelled while it ran"}
	case errors.As(err, &failed):
		return &millracev1.TaskError{Reason: failed.Reason, Message: failed.Message}
	case errors.Is(err, device.ErrNoRoom):
		return &millracev1.TaskError{Reason: "OUT_OF_MEMORY", Message: fmt.Sprintf("%s: %v", r.call.Op, err)}
	}
	return &millracev1.TaskError{Reason: "OP_FAILED", Message: fmt.Sprintf("%s: %v", r.call.Op, err)}
}
