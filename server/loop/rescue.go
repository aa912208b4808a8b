package loop

import (
	"github.com/millrace/millrace/server/members"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// rescue orders a survivor to copy an object out of a dead worker's memory.
func (l *Loop) rescue(effect *sched.Effect) {
	s := l.sessionOf(effect.Worker)
	dead, incarnation, found := l.workers.machine.Tombstone(effect.Dead)
	if s == nil || !found {
		return
	}
	object, _, _ := l.machine.ReplicasOf(effect.Task, nil)
	object.Generation = effect.Attempt
	if n := len(s.building.Rescues); n == 0 || s.building.Rescues[n-1].Dead.Worker != effect.Dead {
		s.building.Rescues = append(s.building.Rescues, schedapi.Rescue{Dead: dead, Incarnation: incarnation})
	}
	last := &s.building.Rescues[len(s.building.Rescues)-1]
	last.Objects = append(last.Objects, object)
}

// unmap tells a worker that no more objects of a dead worker are needed, so that it can unmap the
// memory: the peer is sent without an address.
func (l *Loop) unmap(effect *sched.Effect) {
	dead, _, found := l.workers.machine.Tombstone(effect.Dead)
	if s := l.sessionOf(effect.Worker); s != nil && found {
		s.building.Peers = append(s.building.Peers, members.Peer{Worker: effect.Dead, Name: dead.Name})
	}
}

// rescueReported handles a survivor's report: objects that it could not copy, or that it has
// unmapped the memory.
func (l *Loop) rescueReported(s *session, report schedapi.RescueReport) {
	if len(report.Failed) > 0 {
		name := report.Dead.String()
		if dead, _, found := l.workers.machine.Tombstone(report.Dead); found {
			name = dead.Name
		}
		l.log.Warn("objects of a dead worker could not be copied", "dead", name, "by", s.worker.name, "objects", len(report.Failed), "reason", report.Reason)
		l.happened(schedapi.EventRescueFailed, schedapi.SeverityWarning, name, "%s of the dead worker %q could not be copied by %q: %s", counted(len(report.Failed), "object", "objects"), name, s.worker.name, orNoReason(report.Reason))
		l.step(sched.RescueFailed{Worker: s.worker.id, Dead: report.Dead, Objects: report.Failed})
	}
	if report.Unmapped {
		l.member(members.Unmapped{Session: s.number, Dead: report.Dead})
	}
}
