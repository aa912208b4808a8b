package copies

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// A rebalance evens out the bytes of objects that workers hold, in proportion to their memory. A
// client orders it, and there is one at a time: two would undo each other's moves.
//
// The moves are planned first (moveplan.go). Each move has three steps: the receiver copies the
// object (copy.go), it confirms that it keeps the object, and then the source is told to drop its
// own. So the object always has a replica that its worker will not drop. If a worker dies in the
// middle, or a task begins to need the object, the move fails and the object stays where it is.
// When all moves have ended, and workers were lost or joined meanwhile, the rest is planned again.

const (
	// maxMoves bounds the moves under way of one worker, as a source or as a receiver, and
	// maxMovesInAll those of all workers.
	maxMoves      = 16
	maxMovesInAll = 256
	// moveAhead is the number of waiting moves of one source that are looked at when the first of
	// them cannot begin.
	moveAhead = 16
	// moveEvery is the time between two looks at moves that wait for something without an event of
	// its own.
	moveEvery = 50 * time.Millisecond
	// moveWait is how long a move waits for room at its receiver, or for the tasks that use the
	// object at its source.
	moveWait = 10 * time.Second
	// maxPlans bounds the plans of one rebalance.
	maxPlans = 20
	// failuresKept bounds the failed moves that a RebalanceInfo lists.
	failuresKept = 20
)

// rebalance is the rebalance in progress.
type rebalance struct {
	// names are the workers that take part; empty: all.
	names []string
	// workers have the figures of RebalanceInfo.Workers, by id of the worker.
	workers map[ids.WorkerID]RebalancedWorker
	// sources are the waiting moves, by source.
	sources []moveSource
	// moving are the moves under way, by object.
	moving map[ids.TaskID]*moving
	// plans counts the plans. again means that another plan follows when all moves have ended.
	plans int
	again bool
	// stuck is the time since which no move could begin; zero: some are under way, or none is left.
	stuck time.Time
	info  RebalanceInfo
}

// moveSource has the moves from one worker that wait.
type moveSource struct {
	worker ids.WorkerID
	moves  []move
}

// drop forgets one of the first moves.
func (s *moveSource) drop(i int) {
	copy(s.moves[1:i+1], s.moves[:i])
	s.moves = s.moves[1:]
}

// moving is a move under way.
type moving struct {
	move
	copy copying
	// again is when a failed copy may be tried again.
	again time.Time
	// asked means that the receiver has the object and was told to keep it. kept means that it has
	// confirmed, and since is when it did.
	asked, kept bool
	since       time.Time
}

// RebalanceInfo is a snapshot of a rebalance.
type RebalanceInfo struct {
	// Number identifies the rebalance; 0: it was only planned.
	Number uint64
	Since  time.Time
	// Planned are all moves so far, Moved and Failed those that have ended.
	PlannedObjects, PlannedBytes uint64
	MovedObjects, MovedBytes     uint64
	FailedObjects, FailedBytes   uint64
	// Failures are the first 20 that failed.
	Failures []FailedMove
	// Workers are those that take or took part, by id.
	Workers []RebalancedWorker
	// Done means that nothing will change any more.
	Done bool
}

// FailedMove is an object that could not move, with the reason.
type FailedMove struct {
	Task           ids.TaskID
	Key, Namespace string // empty if the task is forgotten
	Bytes          uint64
	From, To       ids.WorkerID
	Reason         string
}

// RebalancedWorker is a worker that takes part in a rebalance.
type RebalancedWorker struct {
	Worker ids.WorkerID
	Name   string
	// InitialBytes, HeldBytes and PlannedBytes are the bytes of its objects at the beginning, now,
	// and after the planned moves.
	InitialBytes, HeldBytes, PlannedBytes uint64
	// StayingBytes are those of the held bytes that could not move when the moves were planned;
	// known for workers above the mean only.
	StayingBytes uint64
	MemoryBytes  uint64
}

// rebalanceOrdered plans a rebalance, and begins it unless it is a dry run.
func (m *Machine) rebalanceOrdered(ev RebalanceOrdered) (RebalanceInfo, *Error) {
	r := &rebalance{workers: make(map[ids.WorkerID]RebalancedWorker), moving: make(map[ids.TaskID]*moving)}
	r.info.Since = m.now
	for _, id := range ev.Workers {
		w, known := m.tables.Worker(id)
		switch {
		case !known:
			return r.info, &Error{Kind: ErrUnknownWorker, Object: id.String(), Message: fmt.Sprintf("there is no worker %s, or it is lost: see the list of workers", id)}
		case w.State != WorkerStateActive:
			return r.info, &Error{Kind: ErrWorkerNotActive, Object: w.Name, Message: fmt.Sprintf(
				"worker %s (%s) is %s, and only active workers take part: name others, or put it back into use", w.Name, w.ID, w.State)}
		case !slices.Contains(r.names, w.Name):
			r.names = append(r.names, w.Name)
		}
	}
	if len(r.names) == 1 {
		return r.info, &Error{Kind: ErrOneWorker, Object: "workers", Message: fmt.Sprintf(
			"worker %s alone cannot be evened out: name at least two workers, or none for all", r.names[0])}
	}
	if m.rebalance != nil {
		info := &m.rebalance.info
		return r.info, &Error{Kind: ErrRebalanceRunning, Object: "rebalance", Message: fmt.Sprintf(
			"another rebalance began %s ago and has moved %d of %d results: wait for its end, or end the call that ordered it",
			m.now.Sub(info.Since).Round(time.Second), info.MovedObjects, info.PlannedObjects)}
	}
	if ev.DryRun {
		m.plan(r)
		r.info.Done = true
		return m.rebalanceInfo(r), nil
	}
	m.rebalances++
	r.info.Number = m.rebalances
	m.rebalance = r
	m.plan(r)
	m.recheckMoves = true
	return m.rebalanceInfo(r), nil
}

// rebalanceStopped ends a rebalance at the order of the client that had ordered it. Nothing more is
// copied.
func (m *Machine) rebalanceStopped(ev RebalanceStopped) {
	r := m.rebalance
	if r == nil || r.info.Number != ev.Rebalance {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(r.moving)) {
		m.abortMove(r.moving[id])
	}
	r.sources, r.again = nil, false
	m.conclude()
}

// endRebalance forgets a rebalance, except for its last figures. REQUIRES: no move is under way.
func (m *Machine) endRebalance(r *rebalance) {
	r.info.Done = true
	m.rebalanced = m.rebalanceInfo(r)
	m.rebalance = nil
	m.emit(Effect{Kind: EffectRebalanceEnded})
}

// Rebalance returns the rebalance in progress, or the last one. Its number is 0 if there was none.
func (m *Machine) Rebalance() RebalanceInfo {
	if m.rebalance == nil {
		return m.rebalanced
	}
	return m.rebalanceInfo(m.rebalance)
}

// rebalanceInfo copies the figures of a rebalance.
func (m *Machine) rebalanceInfo(r *rebalance) RebalanceInfo {
	info := r.info
	info.Failures = slices.Clone(info.Failures)
	for _, id := range slices.Sorted(maps.Keys(r.workers)) {
		x := r.workers[id]
		if w, known := m.tables.Worker(id); known {
			x.HeldBytes = w.HeldBytes
		} else {
			x.PlannedBytes, x.StayingBytes = 0, 0
		}
		info.Workers = append(info.Workers, x)
	}
	return info
}

// plan plans the moves that are needed now.
func (m *Machine) plan(r *rebalance) {
	var workers []Worker
	for _, w := range m.tables.Workers() {
		if w.State == WorkerStateActive && (len(r.names) == 0 || slices.Contains(r.names, w.Name)) {
			workers = append(workers, w)
		}
	}
	p := m.planMoves(workers)
	for i := range p.shares {
		s := &p.shares[i]
		x, known := r.workers[s.worker.ID]
		if !known {
			x = RebalancedWorker{Worker: s.worker.ID, Name: s.worker.Name, InitialBytes: s.worker.HeldBytes}
		}
		x.MemoryBytes, x.PlannedBytes, x.StayingBytes = s.worker.MemoryBytes, uint64(s.held), s.staying
		r.workers[s.worker.ID] = x
	}
	r.sources = nil
	at := make(map[ids.WorkerID]int)
	for _, o := range p.moves {
		i, known := at[o.from]
		if !known {
			i = len(r.sources)
			at[o.from] = i
			r.sources = append(r.sources, moveSource{worker: o.from})
		}
		r.sources[i].moves = append(r.sources[i].moves, o)
		r.info.PlannedObjects++
		r.info.PlannedBytes += o.bytes
	}
	r.plans++
	r.again, r.stuck = p.cut, time.Time{}
}

// moveChanged makes the step end with a look at the moves if the object is being moved.
func (m *Machine) moveChanged(id ids.TaskID) {
	if m.rebalance != nil && m.rebalance.moving[id] != nil {
		m.recheckMoves = true
	}
}

// checkMoves takes the moves under way one step further, begins others, and goes on after the last
// one.
func (m *Machine) checkMoves() {
	m.recheckMoves = false
	r := m.rebalance
	if r == nil {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(r.moving)) {
		m.stepMove(r, r.moving[id])
	}
	if m.beginMoves(r); len(r.moving) > 0 || len(r.sources) > 0 {
		m.lookAgain()
	} else {
		m.conclude()
	}
}

// conclude makes the rebalance end or be planned again when the effects are carried out, because
// both count the objects that were dropped.
func (m *Machine) conclude() {
	m.concluding = true
	m.emit(Effect{Kind: EffectContinue})
}

// concluded ends a rebalance without moves, or plans the next ones.
func (m *Machine) concluded() {
	m.concluding = false
	r := m.rebalance
	switch {
	case !r.again || r.plans >= maxPlans:
		m.endRebalance(r)
		return
	case len(m.rescuing) > 0:
		// The rescued objects belong to the next plan.
	default:
		if m.plan(r); len(r.sources) == 0 {
			m.endRebalance(r)
			return
		}
		m.beginMoves(r)
	}
	m.lookAgain()
}

// lookAgain makes the moves be looked at again before long.
func (m *Machine) lookAgain() {
	if !m.movesArmed {
		m.movesArmed = true
		m.wake(m.now.Add(moveEvery), Wake{Kind: WakeMoves})
	}
}

// beginMoves begins waiting moves, in turn from each source.
func (m *Machine) beginMoves(r *rebalance) {
	defer clear(m.taken)
	under := make(map[ids.WorkerID]int)
	// order-free: the moves are only counted.
	for _, o := range r.moving {
		under[o.from]++
		under[o.to]++
	}
	for begun := true; begun; {
		begun = false
		for i := range r.sources {
			if len(r.moving) < maxMovesInAll && m.beginMove(r, &r.sources[i], under) {
				begun = true
			}
		}
	}
	r.sources = slices.DeleteFunc(r.sources, func(s moveSource) bool { return len(s.moves) == 0 })
	switch {
	case len(r.moving) > 0 || len(r.sources) == 0:
		r.stuck = time.Time{}
	case r.stuck.IsZero():
		r.stuck = m.now
	case m.now.Sub(r.stuck) >= moveWait:
		for _, s := range r.sources {
			for _, o := range s.moves {
				m.moveFailed(r, o, fmt.Sprintf("%s had no room for it for %s", m.nameOf(o.to), moveWait))
			}
		}
		r.sources, r.stuck = nil, time.Time{}
	}
}

// beginMove begins one of the first waiting moves of a source, and forgets those that cannot happen
// any more. It returns false if none can begin now.
func (m *Machine) beginMove(r *rebalance, s *moveSource, under map[ids.WorkerID]int) bool {
	for i := 0; i < min(len(s.moves), moveAhead) && under[s.worker] < maxMoves; {
		o := s.moves[i]
		if under[o.to] >= maxMoves {
			i++
			continue
		}
		if why := m.cannotMove(r, o); why != "" {
			s.drop(i)
			m.moveFailed(r, o, why)
			continue
		}
		from, _ := m.tables.Worker(o.from)
		to, _ := m.tables.Worker(o.to)
		if !from.Reachable() || !to.Reachable() || to.Room-float64(m.taken[o.to]) < float64(o.bytes) {
			i++
			continue
		}
		s.drop(i)
		x := &moving{move: o, copy: copying{object: o.object}}
		r.moving[o.object] = x
		under[o.from]++
		under[o.to]++
		m.copyMove(x)
		return true
	}
	return false
}

// cannotMove returns the reason why a planned move cannot begin any more; empty: it can. If the
// reason is a worker, another plan follows.
func (m *Machine) cannotMove(r *rebalance, o move) string {
	for _, id := range []ids.WorkerID{o.from, o.to} {
		if m.leftMove(id) {
			r.again = true
			return m.whyLeft(id)
		}
	}
	x, _ := m.tables.Object(o.object)
	switch {
	case x.State != ObjectStored || x.Generation != o.generation:
		return "it was released, or is made again"
	case !m.tables.Holds(o.from, o.object):
		return fmt.Sprintf("%s has lost it", m.nameOf(o.from))
	case len(m.tables.Holders(o.object, nil)) > 1:
		return "several workers have it meanwhile"
	case !m.mayMove(o.object, &x):
		return "tasks need it where it is"
	}
	return ""
}

// leftMove reports whether a worker can neither give nor take objects any more. One whose
// connection broke may be back soon, or is lost soon.
func (m *Machine) leftMove(id ids.WorkerID) bool {
	w, known := m.tables.Worker(id)
	return !known || w.State != WorkerStateActive && w.State != WorkerStateDisconnected
}

// whyLeft says why a worker has left.
func (m *Machine) whyLeft(id ids.WorkerID) string {
	if w, known := m.tables.Worker(id); known {
		return fmt.Sprintf("worker %s is %s", w.Name, w.State)
	}
	if x := m.rebalance.workers[id]; x.Name != "" {
		return fmt.Sprintf("worker %s is lost", x.Name)
	}
	return fmt.Sprintf("worker %s is lost", id)
}

// copyMove orders the copy of a move.
func (m *Machine) copyMove(x *moving) {
	m.copyTo(x.to, &x.copy, "copies for a rebalance")
	m.taken[x.to] += x.bytes
	x.again = m.now.Add(moveEvery)
}

// stepMove takes a move one step further.
func (m *Machine) stepMove(r *rebalance, x *moving) {
	o, _ := m.tables.Object(x.object)
	from, known := m.tables.Worker(x.from)
	to, _ := m.tables.Worker(x.to)
	switch {
	case o.State != ObjectStored || o.Generation != x.generation:
		why := "it was released, or is made again"
		if !known {
			r.again, why = true, m.whyLeft(x.from)
		}
		m.giveUp(r, x, why)
	case o.neededByOneTask() && m.underCopy(&x.copy):
		m.giveUp(r, x, "it was released") // only the copy itself still needs it
	case m.leftMove(x.to):
		r.again = true
		m.giveUp(r, x, m.whyLeft(x.to))
	case !to.Reachable():
	case !m.tables.Holds(x.to, x.object):
		m.awaitCopy(r, x, from)
	case !x.asked:
		x.asked = true
		m.emit(Effect{Kind: EffectKeep, Worker: x.to, Object: x.object})
	case x.kept:
		m.finishMove(r, x, from)
	}
}

// awaitCopy handles a move whose object has not arrived at the receiver.
func (m *Machine) awaitCopy(r *rebalance, x *moving, from Worker) {
	x.asked, x.kept = false, false
	switch {
	case m.leftMove(x.from):
		r.again = true
		m.giveUp(r, x, m.whyLeft(x.from))
	case !m.tables.Holds(x.from, x.object):
		m.giveUp(r, x, fmt.Sprintf("%s has lost it", from.Name))
	case m.underCopy(&x.copy) || x.again.After(m.now):
	case x.copy.tries >= maxCopyTries:
		m.giveUp(r, x, fmt.Sprintf("%d copies failed, %s", x.copy.tries, x.copy.why))
	default:
		m.copyMove(x)
	}
}

// finishMove drops the object at its source, because the receiver has confirmed that it keeps it.
func (m *Machine) finishMove(r *rebalance, x *moving, from Worker) {
	switch {
	case !m.tables.Holds(x.from, x.object):
		// The source is lost, or has lost the object: it has moved all the same.
	case m.underCopy(&x.copy) || !from.Reachable():
		return
	case m.tables.Used(x.object, 0, false):
		if m.now.Sub(x.since) >= moveWait {
			m.giveUp(r, x, fmt.Sprintf("tasks have used it at %s for %s; both workers have it now", from.Name, moveWait))
		}
		return
	default:
		m.dropAt(x.from, x.object)
		m.recheckMoves = true
	}
	delete(r.moving, x.object)
	m.stopCopy(&x.copy)
	r.info.MovedObjects++
	r.info.MovedBytes += x.bytes
	m.totals.Moved++
}

// giveUp ends a move that did not happen.
func (m *Machine) giveUp(r *rebalance, x *moving, why string) {
	m.moveFailed(r, x.move, why)
	m.abortMove(x)
}

// abortMove ends a move that has not happened. If the source still keeps the object, the receiver
// drops its copy, unless a task needs it.
func (m *Machine) abortMove(x *moving) {
	delete(m.rebalance.moving, x.object)
	m.stopCopy(&x.copy)
	o, _ := m.tables.Object(x.object)
	if o.State != ObjectStored || o.Generation != x.generation || m.tables.Used(x.object, x.copy.task, false) {
		return
	}
	if m.activeHolder(x.from, x.object) && m.activeHolder(x.to, x.object) {
		m.dropAt(x.to, x.object)
	}
}

// moveFailed counts a planned move that did not happen.
func (m *Machine) moveFailed(r *rebalance, o move, why string) {
	r.info.FailedObjects++
	r.info.FailedBytes += o.bytes
	for _, change := range []struct {
		worker ids.WorkerID
		bytes  uint64
	}{{o.from, o.bytes}, {o.to, -o.bytes}} {
		if x, known := r.workers[change.worker]; known {
			x.PlannedBytes += change.bytes
			r.workers[change.worker] = x
		}
	}
	if len(r.info.Failures) == failuresKept {
		return
	}
	failure := FailedMove{Task: o.object, Bytes: o.bytes, From: o.from, To: o.to, Reason: why}
	failure.Key, failure.Namespace = m.tables.Key(o.object)
	r.info.Failures = append(r.info.Failures, failure)
}

// moveKept handles the report that a worker keeps an object which it got by a move.
func (m *Machine) moveKept(id ids.TaskID, at ids.WorkerID) {
	if m.rebalance == nil {
		return
	}
	if x := m.rebalance.moving[id]; x != nil && x.to == at && x.asked && !x.kept {
		x.kept, x.since = true, m.now
		m.recheckMoves = true
	}
}

// askMovesAgain forgets what a worker has confirmed, when it opens a session: the request may have
// been lost. It is asked again.
func (m *Machine) askMovesAgain(at ids.WorkerID) {
	if m.rebalance == nil {
		return
	}
	// order-free: each move is changed alone.
	for _, x := range m.rebalance.moving {
		if x.to == at {
			x.asked, x.kept = false, false
		}
	}
}
