package millrace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// DrainWorkers takes workers out of use: they get no new tasks and finish those that run, and other
// workers copy the results that they alone have. Then they are DRAINED; their processes stay. The
// order also holds for later processes of these workers, until UndrainWorkers. It returns the
// workers as they are now; WaitDrained waits for the end. Only operators may call it.
func (c *Client) DrainWorkers(ctx context.Context, reason string, names ...string) ([]*millracev1.Worker, error) {
	out, err := c.service.DrainWorkers(ctx, &millracev1.DrainWorkersRequest{Workers: workersNamed(names), Reason: reason})
	return out.GetWorkers(), callError(ctx, "DrainWorkers", err)
}

// UndrainWorkers puts workers back into use.
func (c *Client) UndrainWorkers(ctx context.Context, names ...string) error {
	_, err := c.service.DrainWorkers(ctx, &millracev1.DrainWorkersRequest{Workers: workersNamed(names), Undo: true})
	return callError(ctx, "DrainWorkers", err)
}

// RetireOptions are the options of RetireWorkers and RestartWorkers.
type RetireOptions struct {
	// Reason is a text for people.
	Reason string
	// Timeout limits the drain. After that time the process ends even if results that only this
	// worker has are lost. 0: no limit.
	Timeout time.Duration
}

func (o RetireOptions) timeout() *durationpb.Duration {
	if o.Timeout == 0 {
		return nil
	}
	return durationpb.New(o.Timeout)
}

// RetireWorkers drains workers, and then ends their processes for good: their supervisors do not
// start them again. It returns the workers as they are now; WaitDrained waits for the end.
func (c *Client) RetireWorkers(ctx context.Context, o RetireOptions, names ...string) ([]*millracev1.Worker, error) {
	out, err := c.service.RetireWorkers(ctx, &millracev1.RetireWorkersRequest{Workers: workersNamed(names), Reason: o.Reason, Timeout: o.timeout()})
	return out.GetWorkers(), callError(ctx, "RetireWorkers", err)
}

// RestartWorkers drains workers, one after the other, then ends the process of each, and waits
// until its supervisor has started the next one. It fails, and restarts none, if one of them is
// unknown or has no supervisor.
func (c *Client) RestartWorkers(ctx context.Context, o RetireOptions, names ...string) error {
	if len(names) == 0 {
		return errors.New("millrace: RestartWorkers: no worker is named: name at least one")
	}
	listed, err := c.Workers(ctx)
	if err != nil {
		return err
	}
	// An order that the scheduler will refuse comes first.
	refused := func(name string) bool {
		return !slices.ContainsFunc(listed, func(w *millracev1.Worker) bool { return w.GetName() == name && w.GetSupervised() })
	}
	if i := slices.IndexFunc(names, refused); i > 0 {
		names = slices.Concat(names[i:i+1], names[:i], names[i+1:])
	}
	for _, name := range names {
		out, err := c.service.RestartWorkers(ctx, &millracev1.RestartWorkersRequest{Workers: workersNamed([]string{name}), Reason: o.Reason, Timeout: o.timeout()})
		if err != nil {
			return callError(ctx, "RestartWorkers", err)
		}
		if err := c.WaitDrained(ctx, out.GetWorkers()...); err != nil {
			return err
		}
	}
	return nil
}

func workersNamed(names []string) []*millracev1.WorkerRef {
	refs := make([]*millracev1.WorkerRef, len(names))
	for i, name := range names {
		refs[i] = workerNamed(name)
	}
	return refs
}

// WaitDrained waits for the end of drains that were just ordered: until a drained worker is
// DRAINED, the process of a retired worker has ended, and the next process of a restarted worker is
// active. It fails if a drain is undone, if a worker dies before it is drained, or if the scheduler
// is started anew without a journal, which ends its orders. workers are those that the orders
// returned.
func (c *Client) WaitDrained(ctx context.Context, workers ...*millracev1.Worker) error {
	return c.FollowDrains(ctx, func([]*millracev1.Worker) {}, workers...)
}

// FollowDrains is WaitDrained that calls tell with the workers whose drains have not ended, as they
// are now and whenever something has changed.
func (c *Client) FollowDrains(ctx context.Context, tell func(pending []*millracev1.Worker), workers ...*millracev1.Worker) error {
	pending := slices.Clone(workers)
	rows := make(map[uint32]*millracev1.Worker)
	var life uint64 // of the scheduler
	for batch, err := range c.Watch(ctx, WatchOptions{Workers: true, WorkerView: millracev1.WorkerView_WORKER_VIEW_FULL}) {
		if err != nil {
			return drainError(err, pending, rows)
		}
		if life = cmp.Or(life, batch.GetLife()); batch.GetLife() != 0 && batch.GetLife() != life {
			return drainError(errors.New("the scheduler was started anew, which ends its orders: order the drain again"), pending, rows)
		}
		if batch.GetSnapshot() {
			clear(rows)
		}
		for _, w := range batch.GetWorkers() {
			rows[w.GetWorkerId()] = w
		}
		for _, id := range batch.GetRemovedWorkerIds() {
			delete(rows, id)
		}
		var failed error
		pending = slices.DeleteFunc(pending, func(w *millracev1.Worker) bool {
			done, err := drainEnded(w, rows)
			failed = errors.Join(failed, err)
			return done
		})
		if failed != nil || len(pending) == 0 {
			return failed
		}
		tell(newest(pending, rows))
	}
	return drainError(errors.New("the scheduler ended the stream"), pending, rows)
}

// drainEnded reports whether the drain of a worker has ended as it should.
func drainEnded(ordered *millracev1.Worker, rows map[uint32]*millracev1.Worker) (bool, error) {
	w, purpose := rows[ordered.GetWorkerId()], ordered.GetDrain().GetPurpose()
	switch w.GetState() {
	case millracev1.WorkerState_WORKER_STATE_DRAINED:
		return purpose == millracev1.DrainPurpose_DRAIN_PURPOSE_KEEP, nil
	case millracev1.WorkerState_WORKER_STATE_ACTIVE:
		return false, fmt.Errorf("millrace: worker %s: its drain was undone", w.GetName())
	case millracev1.WorkerState_WORKER_STATE_LOST, millracev1.WorkerState_WORKER_STATE_UNSPECIFIED:
		for _, death := range w.GetDeaths() {
			if death.GetIncarnation() == w.GetIncarnation() {
				return false, fmt.Errorf("millrace: worker %s died during its drain: %s; results that it alone had are computed again, or lost if they were scattered", w.GetName(), death.GetCause())
			}
		}
		if purpose != millracev1.DrainPurpose_DRAIN_PURPOSE_RESTART {
			return true, nil
		}
		for _, next := range rows {
			if next.GetName() == ordered.GetName() && next.GetWorkerId() > ordered.GetWorkerId() && next.GetState() == millracev1.WorkerState_WORKER_STATE_ACTIVE {
				return true, nil
			}
		}
	case millracev1.WorkerState_WORKER_STATE_DRAINING, millracev1.WorkerState_WORKER_STATE_DISCONNECTED:
	}
	return false, nil
}

// newest returns the rows of workers, as far as there are any.
func newest(workers []*millracev1.Worker, rows map[uint32]*millracev1.Worker) []*millracev1.Worker {
	now := slices.Clone(workers)
	for i, w := range now {
		now[i] = cmp.Or(rows[w.GetWorkerId()], w)
	}
	return now
}

// drainError adds the state of the drains that have not ended to an error.
func drainError(err error, pending []*millracev1.Worker, rows map[uint32]*millracev1.Worker) error {
	text := ""
	for _, w := range newest(pending, rows) {
		d := w.GetDrain()
		text += fmt.Sprintf("; %s has %d tasks and %d results that no other worker has", w.GetName(), w.GetAssignedTasks(), d.GetRemainingObjects())
		if len(d.GetStaying()) > 0 {
			o := d.GetStaying()[0]
			text += fmt.Sprintf(", %d of them stay (%s: %s)", d.GetStayingObjects(), o.GetKey(), o.GetReason())
		}
	}
	return fmt.Errorf("millrace: wait for the drain of workers: %w%s", err, text)
}
