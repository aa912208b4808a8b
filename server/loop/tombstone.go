package loop

import (
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// tombstoneTime is the longest time that the scheduler remembers the memory of a dead worker.
// Survivors unmap it by themselves before that.
const tombstoneTime = time.Minute

// tombstone is the record of a lost worker whose memory other workers may have mapped.
type tombstone struct {
	peer        schedapi.Peer
	incarnation string
	since       time.Time
	// mapped lists the survivors that have not yet reported that they unmapped the memory.
	mapped []ids.WorkerID
}

// retire makes a tombstone for a lost worker and returns the survivors that may have its memory
// mapped: workers of the same host that have fetched from it by a path that maps memory. If none
// has reported such a path yet, it returns the workers of the host that know its address. Each
// survivor checks for itself.
func (l *Loop) retire(dead *worker) []ids.WorkerID {
	var sure, possible []ids.WorkerID
	for _, s := range l.workers.sessions() {
		w := s.worker
		if w == dead || w.registration.Worker.Host != dead.registration.Worker.Host || dead.registration.DataAddress == "" {
			continue
		}
		if slices.ContainsFunc(w.stats.Routes, func(route schedapi.Route) bool { return route.Peer == dead.id && mapped(route) }) {
			sure = append(sure, w.id)
		} else if s.peers.has(uint64(dead.id)) {
			possible = append(possible, w.id)
		}
	}
	survivors := sure
	if len(sure) == 0 {
		survivors = possible
	}
	if len(survivors) == 0 {
		return nil
	}
	l.workers.tombstones[dead.id] = &tombstone{peer: dead.peer(), incarnation: dead.incarnation, since: l.now, mapped: slices.Clone(survivors)}
	l.timers.at(l.now.Add(tombstoneTime), func(time.Time) { delete(l.workers.tombstones, dead.id) })
	return survivors
}

// mapped reports whether the worker that uses this route has the peer's slab mapped. The path
// pinned maps only the tier below a slab, from which nothing is rescued.
func mapped(route schedapi.Route) bool {
	return route.State == schedapi.RouteOpen && (route.Path == schedapi.PathBorrow || route.Path == schedapi.PathIPC)
}

// rescue orders a survivor to copy an object out of a dead worker's memory.
func (l *Loop) rescue(effect *sched.Effect) {
	s, t := l.sessionOf(effect.Worker), l.workers.tombstones[effect.Dead]
	if s == nil || t == nil {
		return
	}
	object, _, _ := l.machine.ReplicasOf(effect.Task, nil)
	object.Generation = effect.Attempt
	if n := len(s.building.Rescues); n == 0 || s.building.Rescues[n-1].Dead.Worker != effect.Dead {
		s.building.Rescues = append(s.building.Rescues, schedapi.Rescue{Dead: t.peer, Incarnation: t.incarnation})
	}
	last := &s.building.Rescues[len(s.building.Rescues)-1]
	last.Objects = append(last.Objects, object)
}

// unmap tells a worker that no more objects of a dead worker are needed, so that it can unmap the
// memory: the peer is sent without an address.
func (l *Loop) unmap(effect *sched.Effect) {
	if s, t := l.sessionOf(effect.Worker), l.workers.tombstones[effect.Dead]; s != nil && t != nil {
		s.building.Peers = append(s.building.Peers, schedapi.Peer{Worker: effect.Dead, Name: t.peer.Name})
	}
}

// rescueReported handles a survivor's report: objects that it could not copy, or that it has
// unmapped the memory.
func (l *Loop) rescueReported(w *worker, report schedapi.RescueReport) {
	t := l.workers.tombstones[report.Dead]
	if len(report.Failed) > 0 {
		name := report.Dead.String()
		if t != nil {
			name = t.peer.Name
		}
		l.log.Warn("objects of a dead worker could not be copied", "dead", name, "by", w.name, "objects", len(report.Failed), "reason", report.Reason)
		l.step(sched.RescueFailed{Worker: w.id, Dead: report.Dead, Objects: report.Failed})
	}
	if !report.Unmapped || t == nil {
		return
	}
	if i := slices.Index(t.mapped, w.id); i >= 0 {
		if t.mapped = slices.Delete(t.mapped, i, i+1); len(t.mapped) == 0 {
			l.log.Info("the memory of a dead worker is unmapped everywhere", "dead", t.peer.Name, "id", report.Dead, "after", l.now.Sub(t.since))
		}
	}
}
