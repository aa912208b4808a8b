package loop

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/patience"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/store"
)

// nativeRun is one attempt for a native lane. Its lane owns it from Start to the
// moment that it posts it back.
type nativeRun struct {
	ref     lifecycle.Ref
	call    device.Call
	timeout time.Duration
	// short: nothing waits while it runs. brief: so short that words of peers can wait for its end.
	short, brief bool
	// reservation is memory set aside by the loop, which gives it back; 0: none.
	// roomy: the result fits in it; otherwise it is for the inputs alone.
	reservation ledger.ReservationID
	roomy       bool

	// state is where the run is, see the constants: it settles who was first,
	// the lane that begins it or the loop that takes it back.
	state atomic.Uint32

	// The outcome, set by the lane.
	returned bool
	noRoom   []uint64
	failure  *millracev1.TaskError
	inline   []byte
	bytes    uint64
	framed   uint64 // bytes without the header, 0 if that has all
	runTime  time.Duration
	times    runTimes
	// orphaned: the device was lost. Whoever repeats the attempt elsewhere is told by
	// the worker's end, and nobody that the attempt has failed.
	orphaned bool

	// What is left to do when peers have their word, set by the owner; see Worker.settleEnded. The report is
	// nil if there was none. pinned are the inputs that were pinned for the attempt.
	attempt *attempt
	loans   []transfer.Loan
	pinned  []ledger.ObjectID
	told    time.Time
	report  *millracev1.TaskReport
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

// native is the lanes that run built-in operations, a goroutine each.
type native struct {
	nativeConfig
	lanes []*nativeLane
	wait  sync.WaitGroup
}

// nativeConfig is what the lanes have of their worker.
type nativeConfig struct {
	device device.Device
	store  *store.Store
	// memoryWait is how long a run waits for more memory.
	memoryWait time.Duration
	// inlineBytes is the largest result to send inline.
	inlineBytes *atomic.Uint32
	// lost says that the device is lost, and tells the owner; see Config.Health.
	lost func() bool
	// post takes runs that ended or are returned. hand is for a lane that has nothing
	// to do until they are taken. Whoever is told of what follows from that is told when
	// the lane calls idle: before it waits.
	post, hand func([]*nativeRun)
	idle       func()
	// linger is for how long a lane without work looks for more at most before it sleeps,
	// while busy says that the worker has attempts: see Config.Linger.
	linger  time.Duration
	busy    *atomic.Bool
	lookout lookout
}

// newNative starts a lane for each slot.
func newNative(c nativeConfig, slots int) *native {
	n := &native{nativeConfig: c}
	for range slots {
		l := &nativeLane{n: n, wake: make(chan struct{}, 1), patience: patience.New(c.linger)}
		n.lanes = append(n.lanes, l)
		n.wait.Add(1)
		go l.run()
	}
	return n
}

// close stops what runs and waits for it. Its results are not posted.
func (n *native) close() {
	for _, l := range n.lanes {
		l.mu.Lock()
		l.closed = true
		if l.cancel != nil {
			l.cancel(errCancelled)
		}
		close(l.wake)
		l.mu.Unlock()
	}
	n.wait.Wait()
}

func (n *native) start(lane int, r *nativeRun) {
	l := n.lanes[lane]
	l.mu.Lock()
	l.queue = append(l.queue, r)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// stop ends a run that is at work, or keeps it from beginning.
func (n *native) stop(lane int, r *nativeRun) {
	if r.state.CompareAndSwap(runQueued, runTaken) {
		return // the lane finds out when it gets there
	}
	l := n.lanes[lane]
	l.mu.Lock()
	if l.current == r {
		l.cancel(errCancelled)
	}
	l.mu.Unlock()
}

// takeBack makes the lane return a run that it has not begun. The lane is at work
// on something else, so the run is returned here.
func (n *native) takeBack(lane int, r *nativeRun) {
	if !r.state.CompareAndSwap(runQueued, runTaken) {
		return
	}
	l := n.lanes[lane]
	l.mu.Lock()
	found := false
	for i, q := range l.queue {
		if q == r {
			l.queue = append(l.queue[:i], l.queue[i+1:]...)
			found = true
			break
		}
	}
	l.mu.Unlock()
	if found {
		r.returned = true
		n.post([]*nativeRun{r})
	}
	// Otherwise the lane holds it already, and returns it when it gets there.
}

func holder(task ids.TaskID) ledger.Holder {
	return ledger.Holder{Kind: ledger.HolderTask, ID: uint64(task)}
}

// taskError puts a failure into the terms of the API.
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
