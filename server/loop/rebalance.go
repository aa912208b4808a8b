package loop

import (
	"context"

	"github.com/millrace/millrace/server/copies"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// rebalance is a rebalance that a caller has ordered. ended is closed after last was set, and never
// changes again.
type rebalance struct {
	loop   *Loop
	number uint64
	ended  chan struct{}
	last   copies.RebalanceInfo
}

// Rebalance plans a rebalance, and begins it unless it is a dry run.
func (l *Loop) Rebalance(ctx context.Context, event sched.RebalanceOrdered) (schedapi.Rebalance, copies.RebalanceInfo, error) {
	r := &rebalance{loop: l, ended: make(chan struct{})}
	var plan copies.RebalanceInfo
	err := l.do(ctx, func() error {
		if err := l.refuseIfDraining(); err != nil {
			return err
		}
		info, effects, refused := l.machine.OrderRebalance(l.now, event, l.effects[:0])
		if refused != nil {
			return l.ordered(effects, refused)
		}
		plan, r.number = info, info.Number
		if event.DryRun {
			r.last = info
			close(r.ended)
		} else {
			l.rebalance = r
			l.log.Info("a rebalance begins", "number", r.number, "workers", event.Workers, "objects", info.PlannedObjects, "bytes", info.PlannedBytes)
			l.happened(schedapi.EventRebalance, schedapi.SeverityInfo, "", "a rebalance of %s begins", counted(info.PlannedObjects, "object", "objects"))
		}
		return l.ordered(effects, nil)
	})
	return r, plan, err
}

// rebalanceEnded tells the caller that the rebalance in progress has ended.
func (l *Loop) rebalanceEnded() {
	r := l.rebalance
	l.rebalance = nil
	r.last = l.machine.Rebalance()
	l.log.Info("a rebalance has ended", "number", r.number, "planned", r.last.PlannedObjects, "moved", r.last.MovedObjects, "movedBytes", r.last.MovedBytes,
		"failed", r.last.FailedObjects)
	l.happened(schedapi.EventRebalance, schedapi.SeverityInfo, "", "the rebalance has ended: %d of %d objects were moved, %d could not be", r.last.MovedObjects, r.last.PlannedObjects, r.last.FailedObjects)
	close(r.ended)
}

// Info returns the figures as they are now, or the last ones.
func (r *rebalance) Info(ctx context.Context) (copies.RebalanceInfo, error) {
	var now copies.RebalanceInfo
	err := r.loop.inspect(ctx, func() {
		select {
		case <-r.ended:
			now = r.last
		default:
			now = r.loop.machine.Rebalance()
		}
	})
	return now, err
}

// Ended is closed when nothing will change any more.
func (r *rebalance) Ended() <-chan struct{} { return r.ended }

// Stop ends the rebalance, also if ctx has ended.
func (r *rebalance) Stop(ctx context.Context) {
	// An error means that the loop has stopped, and the machine with it.
	_ = r.loop.call(context.WithoutCancel(ctx), func() { r.loop.step(sched.RebalanceStopped{Rebalance: r.number}) })
}
