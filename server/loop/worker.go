package loop

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

const (
	// lostKept bounds the catalogue rows of lost workers.
	lostKept = 256
	// runningKeysKept bounds the task keys that a death lists.
	runningKeysKept = 16
)

// worker is one incarnation of a worker, kept until it is lost.
type worker struct {
	id           ids.WorkerID
	name         string
	incarnation  string
	registration schedapi.Registration
	registeredAt time.Time
	lastSeen     time.Time
	stats        schedapi.WorkerStats
	// session is nil while the worker is disconnected, since disconnectedAt.
	session        *session
	disconnectedAt time.Time
	// dropped lists functions that the worker was ordered to forget, oldest first. The orders are
	// repeated when it reconnects.
	dropped []ids.FunctionHash
	// queued and stale say that the row waits for a commit (see the type dirty).
	queued, stale bool
}

func (w *worker) peer() schedapi.Peer {
	return schedapi.Peer{Worker: w.id, Address: w.registration.DataAddress, Name: w.name, Device: w.registration.Device}
}

// peerOf is peer, with SameHost as seen from another worker.
func (w *worker) peerOf(other *worker) schedapi.Peer {
	p := w.peer()
	p.SameHost = w.sharesHost(other)
	return p
}

// sharesHost reports whether two different workers, both with GPUs and data addresses, are on the
// same host.
func (w *worker) sharesHost(other *worker) bool {
	a, b := &w.registration, &other.registration
	return w != other && a.Worker.PipelinedReads && b.Worker.PipelinedReads && a.Worker.Host == b.Worker.Host && a.DataAddress != "" && b.DataAddress != ""
}

// workers holds the workers that are not lost.
type workers struct {
	// all is in the order of the workers' numbers. last is the last number that was given out.
	all           []*worker
	last          ids.WorkerID
	byName        map[string]*worker
	deaths        deaths
	lost          []ids.WorkerID
	dirtySessions []*session
	tombstones    map[ids.WorkerID]*tombstone
}

func newWorkers() workers {
	return workers{byName: map[string]*worker{}, deaths: newDeaths(), tombstones: map[ids.WorkerID]*tombstone{}}
}

// add gives a worker the next number. remove takes it out of the table.
func (ws *workers) add(w *worker) {
	ws.last++
	w.id = ws.last
	ws.all = append(ws.all, w)
	ws.byName[w.name] = w
}

func (ws *workers) remove(w *worker) {
	if i, found := ws.find(w.id); found {
		ws.all = slices.Delete(ws.all, i, i+1)
	}
	if ws.byName[w.name] == w {
		delete(ws.byName, w.name)
	}
}

func (ws *workers) find(id ids.WorkerID) (int, bool) {
	return slices.BinarySearchFunc(ws.all, id, func(w *worker, id ids.WorkerID) int { return cmp.Compare(w.id, id) })
}

// get returns a worker that is not lost, or nil.
func (ws *workers) get(id ids.WorkerID) *worker {
	if i, found := ws.find(id); found {
		return ws.all[i]
	}
	return nil
}

// sessions returns the open sessions, in the order of their workers' numbers.
func (ws *workers) sessions() []*session {
	var open []*session
	for _, w := range ws.all {
		if w.session != nil {
			open = append(open, w.session)
		}
	}
	return open
}

// Register opens the session of a worker incarnation, new or reconnected.
func (l *Loop) Register(ctx context.Context, r schedapi.Registration) (schedapi.Session, error) {
	var s *session
	var refused error
	err := l.call(ctx, func() {
		if refused = l.refuseIfDraining(); refused == nil {
			s, refused = l.register(r)
		}
		if refused == nil {
			// Readers of LastSnapshot must find the address of each worker that holds an object.
			l.commit()
		}
	})
	if err = cmp.Or(err, refused); err != nil {
		return nil, err
	}
	return s, nil
}

func (l *Loop) register(r schedapi.Registration) (*session, error) {
	name, incarnation := r.Worker.Name, r.Worker.Incarnation
	w := l.workers.byName[name]
	known := w != nil && w.incarnation == incarnation
	for _, death := range l.workers.deaths.of(name) {
		known = known || death.Incarnation == incarnation
		if death.Incarnation == incarnation && death.Reaped {
			return nil, &schedapi.Error{Kind: schedapi.ErrDead, Object: name, Message: fmt.Sprintf(
				"worker %s: incarnation %s was declared dead (%s): stop, and start a new one", name, incarnation, death.Cause)}
		}
	}
	if w != nil && w.incarnation != incarnation {
		if w.session != nil {
			return nil, nameTaken(w, &r)
		}
		l.loseWorker(w, "a new incarnation registered under its name", nil,
			fmt.Sprintf("another incarnation (%s) registered as %s", incarnation, name))
		w = nil
	}
	if w == nil {
		w = &worker{name: name, incarnation: incarnation, registeredAt: l.now}
		l.workers.add(w)
		l.log.Info("a worker registered", "worker", name, "id", w.id, "host", r.Worker.Host, "slots", r.Worker.Slots, "address", r.DataAddress)
	} else {
		l.log.Info("a worker came back", "worker", name, "id", w.id)
		if w.session != nil {
			w.session.end()
		}
	}
	moved := w.registration.DataAddress != r.DataAddress && w.registration.DataAddress != ""
	w.lastSeen = l.now
	w.session = newSession(l, w)
	if l.fromOtherLife(&r, known) {
		l.log.Warn("a worker comes from another life of the scheduler: its objects and running tasks are given up", "worker", name, "id", w.id,
			"objects", len(r.Worker.Inventory), "running", len(r.Worker.Running))
		out := &l.touchSession(w.session).building
		out.Releases, out.Cancellations = dropOtherLife(&r)
	}
	l.dropAgain(w.session)
	event := r.Worker
	event.Worker = w.id
	r.Worker.Inventory, r.Worker.Running = nil, nil // The machine has them now, and they are long.
	w.registration = r
	l.learnOps(r.NativeOps)
	if moved {
		l.broadcastPeer(w.peer(), nil)
	}
	l.step(event)
	l.sendHostPeers(w)
	l.watchLease(w.session, l.now.Add(l.config.Cluster.WorkerLease))
	l.dirty.worker(w, l.now)
	return w.session, nil
}

// nameTaken is the error of a registration under the name of a worker that seems alive: its session
// is open and its lease has not ended. If that worker is dead, the scheduler learns it soon: its
// stream breaks, its supervisor reports the death, or its lease ends.
func nameTaken(holder *worker, r *schedapi.Registration) error {
	return &schedapi.Error{Kind: schedapi.ErrNameTaken, Object: holder.name, Message: fmt.Sprintf(
		"worker %s: the name is taken by a worker that lives, on host %s with pid %d (incarnation %s): give this one, on host %s with pid %d, another name (--name), or stop that one first",
		holder.name, holder.registration.Worker.Host, holder.registration.PID, holder.incarnation, r.Worker.Host, r.PID),
		Metadata: map[string]string{"host": holder.registration.Worker.Host, "pid": fmt.Sprint(holder.registration.PID), "incarnation": holder.incarnation}}
}

// watchLease declares a session's worker lost once it has been silent for the lease time.
func (l *Loop) watchLease(s *session, at time.Time) {
	l.timers.at(at, func(time.Time) {
		w := s.worker
		if s.ended || w.session != s {
			return
		}
		w.lastSeen = s.seen()
		if end := w.lastSeen.Add(l.config.Cluster.WorkerLease); end.After(l.now) {
			l.watchLease(s, end)
			return
		}
		l.loseWorker(w, fmt.Sprintf("no message for %v", l.config.Cluster.WorkerLease), &schedapi.Death{}, "")
	})
}

// workerChanged puts a worker whose state changed into the next commit. Readers wait for it.
func (l *Loop) workerChanged(w *worker) {
	l.acknowledge()
	l.dirty.worker(w, l.now)
}

// disconnected keeps a worker whose connection broke for the grace period.
func (l *Loop) disconnected(s *session) {
	w := s.worker
	if s.ended || w.session != s {
		return
	}
	s.end()
	w.session, w.disconnectedAt = nil, l.now
	w.lastSeen = s.seen()
	l.log.Warn("the connection of a worker broke", "worker", w.name, "id", w.id, "grace", l.config.ReconnectGrace)
	l.step(sched.WorkerDisconnected{Worker: w.id})
	l.workerChanged(w)
	l.awaitReturn(w)
}

// awaitReturn declares a disconnected worker lost unless it reconnects within the grace period.
func (l *Loop) awaitReturn(w *worker) {
	since := w.disconnectedAt
	l.timers.at(since.Add(l.config.ReconnectGrace), func(time.Time) {
		if l.workers.get(w.id) == w && w.session == nil && w.disconnectedAt.Equal(since) {
			l.loseWorker(w, "connection lost", &schedapi.Death{}, "")
		}
	})
}

// renewLeases renews all leases after a standstill: the loop did not run for so long (its process
// or machine was stopped, or it got no processor) that messages of workers and clients may still be
// unread. Their silence is no evidence of a failure.
func (l *Loop) renewLeases(gap time.Duration) {
	l.log.Warn("the scheduler has stood still: all leases begin anew", "for", gap)
	for _, w := range l.workers.all {
		if w.session != nil {
			w.session.saw(l.now)
		} else {
			w.disconnectedAt = l.now
			l.awaitReturn(w)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(l.clients.byID)) {
		l.step(sched.ClientRenewed{Client: id})
	}
}

// ReportDeath records how an incarnation ended and declares its worker lost at once.
func (l *Loop) ReportDeath(ctx context.Context, name string, death schedapi.Death) error {
	death.Reaped = true
	death.Cause = cmp.Or(death.Cause, "its supervisor saw it end")
	return l.call(ctx, func() {
		w := l.workers.byName[name]
		if w != nil && (death.Incarnation == "" || death.Incarnation == w.incarnation) {
			l.loseWorker(w, death.Cause, &death, "this incarnation was declared dead: "+death.Cause)
			return
		}
		l.recordDeath(name, death)
		if death.Incarnation != "" {
			l.step(sched.WorkerEnded{Incarnation: death.Incarnation, Cause: death.Cause, Killed: death.Signal == "SIGKILL" && !death.OutOfMemory})
		}
	})
}

// loseWorker declares an incarnation lost and records its death, if death is not nil. A session
// that is still open is ended with an order: to stop, if stop is not empty, else to register anew.
// If death is nil and stop is empty, the worker has left by itself, and its session just ends.
func (l *Loop) loseWorker(w *worker, cause string, death *schedapi.Death, stop string) {
	left := death == nil && stop == ""
	if left {
		l.log.Info("a worker left", "worker", w.name, "id", w.id)
	} else {
		l.log.Warn("a worker is lost", "worker", w.name, "id", w.id, "cause", cause)
	}
	if death != nil {
		if death.Incarnation == "" {
			death.Incarnation = w.incarnation
		}
		if death.Cause == "" {
			death.Cause = cause
		}
		death.MemoryUsedBytes = cmp.Or(death.MemoryUsedBytes, w.stats.MemoryUsedBytes)
		death.RunningKeys = l.machine.KeysAt(w.id, runningKeysKept)
		l.recordDeath(w.name, *death)
	}
	l.acknowledge() // The end of its session tells the worker, and tasks that fail tell their clients.
	last := l.workerRow(w)
	l.workers.remove(w)
	if s := w.session; s != nil {
		w.session = nil
		s.building.Reregister, s.building.StopReason = !left && stop == "", stop
		s.end()
	}
	var survivors []ids.WorkerID
	fault := death != nil && death.DeviceFault
	// A worker that left in an orderly way lives a little longer. The memory of a failed device
	// must not be read.
	if !left && !fault {
		survivors = l.retire(w)
	}
	l.step(sched.WorkerLost{Worker: w.id, Cause: cause, Outside: fromOutside(death),
		Killed: death != nil && death.Signal == "SIGKILL", Gone: death == nil || death.Reaped, Left: left, DeviceFault: fault, Survivors: survivors})
	l.broadcastPeer(schedapi.Peer{Worker: w.id, Name: w.name}, survivors)
	last.State, last.AssignedTasks, last.Objects = schedapi.WorkerLost, 0, 0
	last.Deaths = l.workers.deaths.of(w.name)
	l.dirty.lost = append(l.dirty.lost, last)
	l.dirty.soon(l.now)
	l.workers.lost = append(l.workers.lost, w.id)
}

// fromOutside reports whether a worker's end is probably not caused by its tasks: an orderly exit,
// a broken connection, or SIGKILL without an out-of-memory kill.
func fromOutside(d *schedapi.Death) bool {
	return d == nil || !d.OutOfMemory && (d.Signal == "SIGKILL" || d.Signal == "" && d.ExitCode <= 0)
}

// broadcastPeer sends a worker's current address to every session that knows the worker, except
// those of the workers in except.
func (l *Loop) broadcastPeer(peer schedapi.Peer, except []ids.WorkerID) {
	for _, s := range l.workers.sessions() {
		if s.peers.has(uint64(peer.Worker)) && !slices.Contains(except, s.worker.id) {
			l.touchSession(s)
			s.building.Peers = append(s.building.Peers, peer)
		}
	}
}

// learnOps adds names to the known native ops.
func (l *Loop) learnOps(names []string) {
	known := map[string]struct{}{}
	for _, name := range l.NativeOps() {
		known[name] = struct{}{}
	}
	before := len(known)
	for _, name := range names {
		known[name] = struct{}{}
	}
	if len(known) > before {
		ops := slices.Sorted(maps.Keys(known))
		l.nativeOps.Store(&ops)
	}
}
