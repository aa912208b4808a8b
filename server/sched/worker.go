package sched

import (
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/copies"
)

// worker is a worker incarnation that is registered and not lost.
type worker struct {
	id          ids.WorkerID
	slot        uint32
	name        string
	incarnation string
	host        string
	state       WorkerState
	// disconnectedAt is the time at which its session broke, while it is disconnected.
	disconnectedAt time.Time
	slots          uint32
	resources      map[string]float64
	memory         uint64
	// memoryUsed and memoryEvictable are as last reported: see WorkerMeasured.
	memoryUsed      uint64
	memoryEvictable uint64
	// added are the bytes of the objects that it got since then.
	added     uint64
	executors []string
	pipelined bool // see WorkerRegistered.PipelinedReads
	linalg    Linalg

	// queue has the attempts in the order in which they were sent. An entry is stale if its attempt
	// is not under way here any more.
	queue []TaskRef
	// assigned counts the attempts under way here; running counts those of them in RUNNING.
	assigned, running int
	// usedSlots, usedResources and queuedMicros are sums over the attempts under way; queuedMicros
	// uses the run times estimated at assignment. Attempts that wait for pre-assigned inputs count
	// in preassigned instead of usedSlots, because they cannot run yet.
	usedSlots     uint64
	preassigned   int
	usedResources map[string]float64
	queuedMicros  uint64
	// blocked are the tasks whose attempts here wait for other tasks. They run, and count in
	// neither usedSlots nor queuedMicros.
	blocked taskSet
	// deferred are attempts here whose only dependent can be pre-assigned here once there is room.
	deferred []TaskRef
	// notifies: see WorkerRegistered.Notifies. deferredCross are attempts at any worker with a
	// dependent that can be pre-assigned here once there is room. Each attempt is in the list of
	// one worker at most.
	notifies      bool
	deferredCross []TaskRef
	// retracting counts the attempts that the worker was asked to give back and has not answered
	// for.
	retracting int
	// reportedAt is the time of the last report or registration.
	reportedAt time.Time
	// supervised: see WorkerRegistered.Supervised.
	supervised bool

	// objects are exactly the tasks whose replicas have a link to this worker. heldBytes is their
	// total size.
	objects   taskSet
	heldBytes uint64
	// fetching are inputs that attempts here will fetch. It is only an estimate, but always a
	// subset of the inputs of those attempts.
	fetching taskSet
	// fetchingItems counts the items of lists that attempts here will fetch: the edges with
	// edgeFetching.
	fetchingItems int
	// fetchingBytes is the total size of fetching and of these items, which a further fetch to this
	// worker has to share the link with. Exactly 0 when there are none.
	fetchingBytes uint64
	finished      uint64

	// mark and present are scratch values of one placement.
	mark    uint64
	present uint64
}

// gain records an object that the worker got. It returns false if the worker had it already.
func (w *worker) gain(id ids.TaskID, t *task) bool {
	if !w.objects.add(id) {
		return false
	}
	w.heldBytes += t.output
	w.added += t.output
	return true
}

// part records that the worker has an object no more.
func (w *worker) part(id ids.TaskID, t *task) {
	if w.objects.remove(id) {
		w.heldBytes -= t.output
	}
}

func (w *worker) reachable() bool { return w.state != WorkerStateDisconnected }

// WorkerState is the state of a worker incarnation.
type WorkerState = copies.WorkerState

// Worker states.
const (
	WorkerStateActive       = copies.WorkerStateActive
	WorkerStateDisconnected = copies.WorkerStateDisconnected
	WorkerStateDraining     = copies.WorkerStateDraining
	WorkerStateDrained      = copies.WorkerStateDrained
	WorkerStateLost         = copies.WorkerStateLost
)

// current reports whether this attempt of the task is under way on the worker.
func (t *task) current(w *worker, a ids.Attempt) bool {
	return t.state.assigned() && t.worker == w.slot+1 && t.attempt == uint32(a)
}

// hasFree reports whether the class's resources are free now. Tasks with resources are not assigned
// in advance.
func (w *worker) hasFree(c *class) bool {
	// order-free: all must hold.
	for name, need := range c.options.Resources {
		if w.usedResources[name]+need > w.resources[name]+1e-9 {
			return false
		}
	}
	return true
}

// load is the estimated time until the worker's queue is done, in microseconds.
func (w *worker) load() float64 { return float64(w.queuedMicros) / float64(w.slots) }

// fetched takes an object or an item, which is expected no more, out of fetchingBytes.
func (w *worker) fetched(bytes uint64) {
	w.fetchingBytes -= min(bytes, w.fetchingBytes)
	if w.fetching.count == 0 && w.fetchingItems == 0 {
		w.fetchingBytes = 0
	}
}
