package loop

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

const (
	// batchUpdates and batchBytes bound one batch. A batch may exceed batchBytes by its last inline
	// result, and a snapshot may have any number of updates. batchBytes is far below the largest
	// message (rpc.MaxMessageBytes).
	batchUpdates = 8192
	batchBytes   = 4 << 20
)

// watch is one stream of a client's updates. A single batch goes back and forth between the loop
// and the stream: the loop fills it when it has the batch and there are changes. So a slow stream
// costs no memory but the log.
type watch struct {
	loop   *Loop
	client *client
	ready  chan *schedapi.TaskBatch
	last   *schedapi.TaskBatch // owned by the stream: the batch that Next returned
	// The loop owns the remaining fields.
	cursor uint64
	// batch is nil while the stream has it.
	batch    *schedapi.TaskBatch
	snapshot bool // the next batch must be a snapshot
	first    bool // no batch was filled yet
	ended    bool
}

var _ schedapi.TaskWatch = (*watch)(nil)

// WatchTasks streams the changes of the tasks that a client holds. The lease does not end while the
// stream is open.
func (l *Loop) WatchTasks(ctx context.Context, id ids.ClientID, after uint64) (schedapi.TaskWatch, error) {
	var w *watch
	err := l.do(ctx, func() error {
		if err := l.refuseIfDraining(); err != nil {
			return err
		}
		c, err := l.renewLease(id)
		if err != nil {
			return err
		}
		w = l.openWatch(c, after)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

func (l *Loop) openWatch(c *client, after uint64) *watch {
	w := &watch{loop: l, client: c, ready: make(chan *schedapi.TaskBatch, 1), cursor: after, first: true, batch: &schedapi.TaskBatch{}}
	if after == 0 || !c.changes.canResume(after) {
		w.snapshot, w.cursor = true, c.changes.revision
	}
	c.watches = append(c.watches, w)
	l.keep(c)
	w.feed()
	return w
}

// keep lets a timer renew a client's lease.
func (l *Loop) keep(c *client) {
	if !c.kept {
		c.kept = true
		l.keepAlive(c)
	}
}

// keepAlive renews a client's lease while at least one of its watches is open, or a call waits.
func (l *Loop) keepAlive(c *client) {
	l.timers.at(l.now.Add(c.spec.TTL/3), func(time.Time) {
		if len(c.watches)+c.asking == 0 || l.clients.get(c.id) != c {
			c.kept = false
			return
		}
		if _, err := l.renewLease(c.id); err == nil {
			l.keepAlive(c)
		}
	})
}

func (w *watch) Ready() <-chan *schedapi.TaskBatch { return w.ready }

func (w *watch) Done(batch *schedapi.TaskBatch) {
	_ = w.loop.post(context.Background(), func() {
		w.batch = batch
		w.feed()
	})
}

func (w *watch) Next(ctx context.Context) (*schedapi.TaskBatch, error) {
	if w.last != nil {
		w.Done(w.last)
		w.last = nil
	}
	select {
	case batch, open := <-w.ready:
		if !open {
			return nil, &schedapi.Error{Kind: schedapi.ErrWatchEnded, Object: w.client.id.String(),
				Message: fmt.Sprintf("the lease of client %d ended while it was watched", uint64(w.client.id))}
		}
		w.last = batch
		return batch, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-w.loop.stopped:
		return nil, errStopped()
	}
}

func (w *watch) Close() {
	_ = w.loop.post(context.Background(), func() {
		w.ended = true
		c := w.client
		if i := slices.Index(c.watches, w); i >= 0 {
			c.watches = slices.Delete(c.watches, i, i+1)
		}
	})
}

// end closes the stream's channel: no more batches will come.
func (w *watch) end() {
	if !w.ended {
		w.ended = true
		close(w.ready)
	}
}

// feed fills the batch and gives it to the stream, if the loop has the batch and there are changes.
func (w *watch) feed() {
	if w.batch == nil || w.ended {
		return
	}
	batch := w.batch
	if cap(batch.Updates) > 2*batchUpdates {
		batch.Updates = nil // It was a snapshot's: the memory would be kept for no use.
	}
	clear(batch.Updates)
	batch.Updates, batch.Snapshot = batch.Updates[:0], w.snapshot
	if w.snapshot {
		w.fillSnapshot(batch)
	} else if !w.fillChanges(batch) {
		return
	}
	clear(batch.Topics)
	batch.Topics = w.loop.coordination.machine.NewMessages(w.client.id, w.first, batch.Topics[:0])
	w.batch, w.first = nil, false
	w.ready <- batch // Never blocks: there is one batch, and the loop had it.
}

// fillChanges adds the changes since the last batch. It skips a change if the task's state has
// changed again: a later entry reports that.
func (w *watch) fillChanges(batch *schedapi.TaskBatch) bool {
	bytes := 0
	for _, change := range w.client.changes.after(w.cursor) {
		if len(batch.Updates) == batchUpdates || bytes > batchBytes {
			break
		}
		w.cursor = change.revision()
		update, ok := w.loop.machine.UpdateOf(change.task)
		if !ok || update.State != change.state() {
			continue
		}
		bytes += len(update.Inline)
		batch.Updates = append(batch.Updates, update)
	}
	batch.Revision = w.cursor
	return len(batch.Updates) > 0
}

// fillSnapshot adds all tasks that the client holds. Inline results that would make the message too
// large are logged as new changes, and the tasks are RUNNING in the snapshot; the results follow in
// later batches.
func (w *watch) fillSnapshot(batch *schedapi.TaskBatch) {
	w.snapshot = false
	w.cursor = w.client.changes.revision
	batch.Revision = w.cursor
	bytes := 0
	w.loop.machine.HeldBy(w.client.id, func(task ids.TaskID) {
		update, ok := w.loop.machine.UpdateOf(task)
		if !ok {
			return
		}
		if bytes+len(update.Inline) > batchBytes {
			w.client.changes.add(task, update.State)
			update = sched.Update{Task: task, State: sched.TaskRunning, Generation: update.Generation}
		}
		bytes += len(update.Inline)
		batch.Updates = append(batch.Updates, update)
	})
}
