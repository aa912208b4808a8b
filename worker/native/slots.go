// Package native is an Adapter: it runs native operations on a worker's device, in slots with one
// goroutine each. The worker hands runs to the slots (Start), some of them in advance, and gets
// each back, ended or returned, through its Host. Package lifecycle decides which run goes to which
// slot, and has the limits of what a slot does on its own.
package native

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/store"
)

// Config is fixed for the life of the slots.
type Config struct {
	// Slots is the number of slots.
	Slots  int
	Device device.Device
	Store  *store.Store
	// Health returns the reason why the device is lost for good, nil while it works. It is called
	// after a run has failed. May be nil.
	Health func() error
	// MemoryWait is how long a run that has begun waits for more memory. Default
	// lifecycle.DefaultMemoryWait.
	MemoryWait time.Duration
	// SpinTime is the spin limit: the longest time that a slot without work polls for more before
	// it blocks, while the worker has attempts. See internal/spin. Default 0: it blocks at once.
	SpinTime time.Duration
	// Cores is the number of processors that the runs may use together. Default: those that this
	// process may use.
	Cores int
}

// Host is the worker as the slots know it. Slots call it from their goroutines.
type Host interface {
	// Ended takes runs that have ended or are returned. It does not wait.
	Ended(runs []*Run)
	// HandOver does the same for a slot that has nothing else to do: the caller may step the
	// worker's machine itself. The reports that result are sent to the scheduler only when the slot
	// calls Idle, at the latest before it blocks.
	HandOver(runs []*Run)
	// Idle does the deferred work of ended runs and sends the reports to the scheduler.
	Idle()
	// DeviceLost says that the device is lost for good: the worker must end. The run that has found
	// it is not handed back: the end of the worker makes the scheduler run the attempt elsewhere.
	DeviceLost(why error)
	// SetPolling declares that a slot polls often from now on, or no longer does.
	SetPolling(yes bool)
	// Poll handles the notifications from peers on this host that have arrived, and says whether
	// there were any. The slot's own thread handles them, and its next run often follows from them:
	// so no thread has to be woken between the end of a task at a peer and the start of the task
	// that waits for its result here. The caller must call Idle afterwards.
	Poll() bool
}

// Slots are the slots of a worker.
type Slots struct {
	config Config
	host   Host
	slots  []*slot
	wait   sync.WaitGroup
	// closing makes the slots end, once.
	closing sync.Once
	// inlineBytes is the size of the largest result that is sent inline.
	inlineBytes atomic.Uint32
	// busy: the worker has attempts, so a slot without work spins. startedWork: the worker has
	// started goroutines since a slot has looked; a spinning slot yields its thread to them.
	busy, startedWork atomic.Bool
	cores             cores
}

// New returns slots that are not open yet.
func New(c Config) *Slots {
	if c.MemoryWait <= 0 {
		c.MemoryWait = lifecycle.DefaultMemoryWait
	}
	if c.Cores <= 0 {
		c.Cores = runtime.GOMAXPROCS(0)
	}
	return &Slots{config: c, cores: cores{share: c.Cores, slots: max(c.Slots, 1)}}
}

// Open starts the slots. REQUIRES: it is called once, before Start.
func (n *Slots) Open(host Host) {
	n.host = host
	for range n.cores.slots {
		s := newSlot(n)
		n.slots = append(n.slots, s)
		n.wait.Add(1)
		go s.run()
	}
}

// Close cancels the runs, waits for the slots to end and discards the results. It may be called
// again.
func (n *Slots) Close() {
	n.closing.Do(n.cancelAll)
	n.wait.Wait()
}

func (n *Slots) cancelAll() {
	for _, s := range n.slots {
		s.mu.Lock()
		s.closed = true
		if s.cancel != nil {
			s.cancel(errCancelled)
		}
		close(s.wake)
		s.mu.Unlock()
	}
}

// Registered sets the size of the largest result that is sent inline.
func (n *Slots) Registered(inlineBytes uint32) { n.inlineBytes.Store(inlineBytes) }

// Load tells the slots whether the worker has attempts, and how many slots no task occupies.
func (n *Slots) Load(busy bool, free int) {
	n.busy.Store(busy)
	n.cores.free.Store(int32(free))
}

// GiveWay makes a slot that spins yield its thread: the worker has started a goroutine.
func (n *Slots) GiveWay() { n.startedWork.Store(true) }

// takeStarted says whether the worker has started other work since the last call.
func (n *Slots) takeStarted() bool { return n.startedWork.Load() && n.startedWork.Swap(false) }

// Start hands a run to a slot.
func (n *Slots) Start(index int, r *Run) {
	s := n.slots[index]
	s.mu.Lock()
	s.queue = append(s.queue, r)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
	n.GiveWay()
}

// Stop cancels a running run, or prevents a queued one from beginning. It comes back in its turn.
func (n *Slots) Stop(index int, r *Run) {
	if r.state.CompareAndSwap(runQueued, runTaken) {
		return // the slot notices when it takes the run from its queue
	}
	s := n.slots[index]
	s.mu.Lock()
	if s.current == r {
		s.cancel(errCancelled)
	}
	s.mu.Unlock()
}

// TakeBack returns a run that its slot has not begun. The slot is busy with another run, so this
// goroutine removes the run from the queue and hands it back as returned.
func (n *Slots) TakeBack(index int, r *Run) {
	if !r.state.CompareAndSwap(runQueued, runTaken) {
		return
	}
	s := n.slots[index]
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
		r.Returned = true
		n.host.Ended([]*Run{r})
	}
	// Otherwise the slot has dequeued the run already and returns it itself.
}

// InPlace says how operations read inputs at peers, nil if the device cannot do that.
func (n *Slots) InPlace() device.InPlace {
	reads, _ := n.config.Device.(device.InPlace)
	return reads
}

// OutputBytes are the sizes of a call's result, nil if the call is wrong or they are unknown.
func (n *Slots) OutputBytes(call device.Call) []uint64 {
	p, err := n.config.Device.Prepare(call)
	if err != nil {
		return nil
	}
	return p.OutputBytes()
}

// lost says whether the device is lost. If it is, the worker ends.
func (n *Slots) lost() bool {
	if n.config.Health == nil {
		return false
	}
	err := n.config.Health()
	if err != nil {
		n.host.DeviceLost(err)
	}
	return err != nil
}
