package loop

import (
	"context"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/journal"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

const (
	// snapshotGap is the least time between two pieces of a snapshot, in which the loop does its
	// other work. After a piece that took longer the gap is as long, so a snapshot takes half of
	// the loop's time at most.
	snapshotGap = time.Millisecond
	// snapshotRows is the number of the loop's own rows in a piece.
	snapshotRows = 256
	// stopSnapshotTime bounds the snapshot of a stop in good order: without one the next start
	// takes longer, but the operator waits for the stop now.
	stopSnapshotTime = time.Second
)

// sources are the tables of facts.
func (l *Loop) sources() []journal.Source {
	return []journal.Source{
		l.clientRows(), l.functionRows(), l.workerRows(), l.datasetRows(),
		func(cursor uint64, put func(any)) (uint64, bool) {
			return l.machine.Rows(cursor, func(row sched.Row) { put(row) })
		},
		l.coordination.machine.Rows, l.machine.Orders, l.plugins.Rows, l.templateRows(),
	}
}

// listed returns a source of the rows of a list, which is made when the first ones are asked for:
// the log has all that changes later.
func listed[T any](list func() []T, row func(t T, put func(any))) journal.Source {
	var all []T
	return func(cursor uint64, put func(any)) (next uint64, more bool) {
		if cursor == 0 {
			all = list()
		}
		for n := 0; n < snapshotRows && len(all) > 0; n++ {
			row(all[0], put)
			all = all[1:]
		}
		return cursor + 1, len(all) > 0
	}
}

func (l *Loop) clientRows() journal.Source {
	return listed(func() []ids.ClientID { return slices.Sorted(maps.Keys(l.clients.byID)) }, func(id ids.ClientID, put func(any)) {
		c := l.clients.byID[id]
		switch {
		case c == nil: // It has gone meanwhile.
		case c.await != nil:
			put(&journal.ClientAwaits{Client: id, Namespace: c.spec.Namespace})
		default:
			put(&journal.ClientOpened{Client: id, Spec: c.spec})
			if c.spec.Owner != "" {
				put(&journal.ClientOwned{Client: id, Owner: c.spec.Owner})
			}
		}
	})
}

func (l *Loop) functionRows() journal.Source {
	return listed(l.functions.Hashes, func(hash ids.FunctionHash, put func(any)) {
		if f, known := l.functions.Get(hash); known {
			put(&journal.FunctionPut{Function: f})
		}
	})
}

// workerRows has the last number of a worker first, which is not given again.
func (l *Loop) workerRows() journal.Source {
	return listed(func() []*worker {
		return append([]*worker{nil}, l.workers.all...)
	}, func(w *worker, put func(any)) {
		switch {
		case w == nil && l.restarting.lastWorker != 0:
			put(&journal.WorkerGone{Worker: l.restarting.lastWorker})
		case w != nil && l.workers.get(w.id) == w:
			put(&journal.WorkerNumbered{Worker: w.id, Name: w.name, Incarnation: w.incarnation})
		}
	})
}

// datasetRows has the last number of a dataset first, which is not given again.
func (l *Loop) datasetRows() journal.Source {
	return listed(func() []*schedapi.Dataset {
		l.commit() // The catalogue has all of them then.
		all, _ := l.catalog.Snapshot().Datasets("", "", "", math.MaxInt)
		return append([]*schedapi.Dataset{nil}, all...)
	}, func(d *schedapi.Dataset, put func(any)) {
		switch {
		case d != nil:
			put(&journal.DatasetPublished{Number: d.Number, Name: d.Name, Namespace: d.Namespace, Keys: d.Keys, Value: d.Value})
		case l.datasets != 0:
			put(&journal.DatasetUnpublished{Number: l.datasets})
		}
	})
}

// beginSnapshot begins a snapshot of the journal if it is time for one.
func (l *Loop) beginSnapshot() {
	j := l.restarting.journal
	if j == nil || !j.SnapshotDue() {
		return
	}
	if s := j.Snapshot(l.now, l.sources()...); s != nil {
		l.recordWrittenAgain()
		l.timers.at(l.now.Add(snapshotGap), func(time.Time) { l.snapshotPiece(s) })
	}
}

// snapshotPiece takes one piece, and comes back for the next one.
func (l *Loop) snapshotPiece(s *journal.Snapshot) {
	began := l.config.Clock()
	if !s.Piece(l.now) {
		return
	}
	ended := l.config.Clock()
	l.timers.at(ended.Add(max(snapshotGap, ended.Sub(began))), func(time.Time) { l.snapshotPiece(s) })
}

// lastSnapshot takes a snapshot after the loop has stopped, if it is quick: the next start then has
// nothing else to read.
func (l *Loop) lastSnapshot() {
	j := l.restarting.journal
	ctx, cancel := context.WithTimeout(context.Background(), stopSnapshotTime)
	defer cancel()
	// A loop whose start was ended has only a part of what the journal says.
	if l.restarting.loading || !j.SnapshotAtStop() {
		return
	}
	s := j.Snapshot(l.now, l.sources()...)
	if s == nil {
		return
	}
	for s.Piece(l.now) {
		if ctx.Err() != nil {
			return // The end of the journal gives it up.
		}
		s.Room(ctx)
	}
	_ = s.Wait(ctx) // The end of the journal gives it up if it takes too long.
}
