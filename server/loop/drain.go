package loop

import (
	"context"
	"slices"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// DrainWorkers orders the drain of workers.
func (l *Loop) DrainWorkers(ctx context.Context, event sched.DrainOrdered) error {
	return l.do(ctx, func() error {
		if err := l.refuseNew(); err != nil {
			return err
		}
		effects, refused := l.machine.OrderDrain(l.now, event, l.effects[:0])
		if refused == nil {
			l.log.Info("an operator drains workers", "workers", event.Workers, "purpose", event.Purpose, "timeout", event.Timeout, "reason", event.Reason)
			for _, id := range event.Workers {
				if w := l.workers.get(id); w != nil {
					l.happened(schedapi.EventDrain, schedapi.SeverityInfo, w.name, "an operator drains worker %q: %s", w.name, orNoReason(event.Reason))
				}
			}
		}
		err := l.ordered(effects, refused)
		l.awaitFacts()
		return err
	})
}

// UndoDrains puts workers back into use.
func (l *Loop) UndoDrains(ctx context.Context, names []string) error {
	return l.do(ctx, func() error {
		effects, refused := l.machine.UndoDrain(l.now, sched.DrainUndone{Names: names}, l.effects[:0])
		if refused == nil {
			l.log.Info("an operator puts workers back into use", "workers", names)
			for _, name := range names {
				l.happened(schedapi.EventUndrain, schedapi.SeverityInfo, name, "an operator puts worker %q back into use", name)
			}
			for _, w := range l.workers.all {
				if w.session == nil && slices.Contains(names, w.name) {
					l.acknowledge()
					l.dirty.worker(w, l.now)
				}
			}
		}
		err := l.ordered(effects, refused)
		l.restarting.wished = l.restarting.recorded
		return err
	})
}

func (l *Loop) ordered(effects []sched.Effect, refused *sched.Error) error {
	l.effects = effects
	if refused != nil {
		return refused
	}
	l.carryOut()
	return nil
}

// orderLeave tells a worker to end its process.
func (l *Loop) orderLeave(id ids.WorkerID, restart bool) {
	s := l.sessionOf(id)
	if s == nil {
		return
	}
	info, _ := l.machine.Worker(id)
	order := &schedapi.Leave{Restart: restart, Reason: "retired by an operator"}
	if restart {
		order.Reason = "restarted by an operator"
	}
	if d := info.Drain; d != nil && d.Reason != "" {
		order.Reason += ": " + d.Reason
	}
	l.log.Info("a worker is to end", "worker", s.worker.name, "id", id, "state", info.State, "why", order.Reason)
	l.happened(schedapi.EventEnding, schedapi.SeverityInfo, s.worker.name, "worker %q is to end: %s", s.worker.name, order.Reason)
	s.building.Leave = order
}
