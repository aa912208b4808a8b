package loop

import (
	"context"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/catalog"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

const (
	// commitGap is the shortest time between two commits, so that changes share one. commitDelay is
	// the longest time that a change waits for a commit while the loop is busy. countersGap is the
	// shortest time between two commits of counters, which change all the time. Only readers that
	// follow the catalogue see these delays: Snapshot commits what was acknowledged.
	commitGap   = 5 * time.Millisecond
	commitDelay = 50 * time.Millisecond
	countersGap = 250 * time.Millisecond
)

// dirty lists the rows that differ from the catalogue.
type dirty struct {
	graphs map[ids.GraphID]struct{}
	// workers and clients wait for the next commit. staleWorkers and staleClients have only changed
	// counters and may wait longer. The row's fields queued and stale say which lists it is in, so
	// that each list has it once.
	workers, staleWorkers []*worker
	clients, staleClients []*client
	lost                  []*schedapi.Worker
	datasets, unpublished []*schedapi.Dataset

	// since is the time of the oldest change that waits for the next commit; zero: none waits.
	since time.Time
	// committed is the time of the last commit, counted of the last commit with counters.
	committed, counted time.Time
}

func (d *dirty) soon(now time.Time) {
	if d.since.IsZero() {
		d.since = now
	}
}

func (d *dirty) graph(id ids.GraphID, now time.Time) {
	d.graphs[id] = struct{}{}
	d.soon(now)
}

func (d *dirty) worker(w *worker, now time.Time) {
	if !w.queued {
		w.queued = true
		d.workers = append(d.workers, w)
		d.soon(now)
	}
}

// counters marks a worker of which only counters changed.
func (d *dirty) counters(w *worker) {
	if !w.stale {
		w.stale = true
		d.staleWorkers = append(d.staleWorkers, w)
	}
}

func (d *dirty) client(c *client, now time.Time) {
	if !c.queued {
		c.queued = true
		d.clients = append(d.clients, c)
		d.soon(now)
	}
}

func (d *dirty) clientCounters(c *client) {
	if !c.stale {
		c.stale = true
		d.staleClients = append(d.staleClients, c)
	}
}

// any reports whether a row differs from the catalogue.
func (d *dirty) any() bool { return !d.since.IsZero() || d.stale() }

func (d *dirty) stale() bool { return len(d.staleWorkers)+len(d.staleClients) > 0 }

// nextCommit is the time from which a commit is due if no message arrives; false if no change
// waits.
func (l *Loop) nextCommit() (time.Time, bool) {
	d := &l.dirty
	switch {
	case !d.since.IsZero():
		return d.committed.Add(commitGap), true
	case d.stale():
		return d.counted.Add(countersGap), true
	default:
		return time.Time{}, false
	}
}

func (l *Loop) commitDue() bool {
	d := &l.dirty
	if d.stale() && l.now.Sub(d.counted) >= countersGap {
		return true
	}
	if d.since.IsZero() {
		return false
	}
	busy := len(l.mailbox) > 0
	return l.now.Sub(d.since) >= commitDelay || !busy && l.now.Sub(d.committed) >= commitGap
}

// acknowledge makes readers wait for the next commit. It must be called before anybody is told of a
// change that readers must see.
func (l *Loop) acknowledge() {
	if !l.acknowledged.Load() {
		l.acknowledged.Store(true)
	}
}

// Snapshot returns the catalogue with every change that was acknowledged before the call. If all of
// them are committed, it neither locks nor waits. Else it commits; readers that wait at the same
// time share one commit.
func (l *Loop) Snapshot(ctx context.Context) (schedapi.Snapshot, error) {
	if l.acknowledged.Load() {
		err := l.inspect(ctx, func() {
			if l.acknowledged.Load() {
				l.dirty.counted = time.Time{}
				l.commit()
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return l.catalog.Snapshot(), nil
}

// LastSnapshot returns the catalogue as of its last commit.
func (l *Loop) LastSnapshot() schedapi.Snapshot { return l.catalog.Snapshot() }

// commit writes all dirty rows to the catalogue, as one revision.
func (l *Loop) commit() {
	d := &l.dirty
	l.catalog.Update(func(b *catalog.Batch) {
		// order-free: all rows of a batch have the same revision.
		for id := range d.graphs {
			if info, ok := l.machine.Graph(id); ok {
				b.PutGraph(graphRow(&info))
			} else {
				b.RemoveGraph(id)
			}
		}
		clear(d.graphs)
		if l.now.Sub(d.counted) >= countersGap {
			d.counted = l.now
			for _, w := range d.staleWorkers {
				w.stale = false
				d.worker(w, l.now)
			}
			for _, c := range d.staleClients {
				c.stale = false
				d.client(c, l.now)
			}
			clear(d.staleWorkers)
			clear(d.staleClients)
			d.staleWorkers, d.staleClients = d.staleWorkers[:0], d.staleClients[:0]
		}
		for _, row := range d.lost {
			b.PutWorker(row)
		}
		for _, w := range d.workers {
			w.queued = false
			if l.workers.get(w.id) == w {
				b.PutWorker(l.workerRow(w))
			}
		}
		for ; len(l.workers.lost) > lostKept; l.workers.lost = l.workers.lost[1:] {
			b.RemoveWorker(l.workers.lost[0])
		}
		for _, c := range d.clients {
			c.queued = false
			switch {
			case l.clients.byID[c.id] != c:
				b.RemoveClient(c.id)
			case c.await == nil:
				b.PutClient(l.clientRow(c))
			}
		}
		for _, row := range d.datasets {
			b.PutDataset(row)
		}
		for _, row := range d.unpublished {
			b.RemoveDataset(row.Namespace, row.Name)
		}
	})
	clear(d.workers)
	clear(d.clients)
	d.lost, d.datasets, d.unpublished = nil, nil, nil
	d.workers, d.clients = d.workers[:0], d.clients[:0]
	d.since, d.committed = time.Time{}, l.now
	if !d.stale() {
		// Else counters are missing that a caller may have been told of.
		l.acknowledged.Store(false)
	}
}

func graphRow(info *sched.GraphInfo) *schedapi.Graph {
	row := &schedapi.Graph{
		ID: info.Graph, Name: info.Name, Namespace: info.Namespace, Client: info.Client,
		State: graphState(info.Counts), Counts: info.Counts,
		CreatedAt: info.CreatedAt, EndedAt: info.EndedAt, ExpiresAt: info.ExpiresAt,
		Ops: info.Ops,
	}
	if info.FirstError != nil {
		row.FirstError = info.FirstError.Message
	}
	return row
}

func graphState(counts sched.Counts) schedapi.GraphState {
	switch {
	case counts[sched.TaskWaiting]+counts[sched.TaskReady]+counts[sched.TaskAssigned]+counts[sched.TaskRunning]+counts[sched.TaskRescuing] > 0:
		return schedapi.GraphRunning
	case counts[sched.TaskFailed] > 0:
		return schedapi.GraphFailed
	case counts[sched.TaskCancelled] > 0:
		return schedapi.GraphCancelled
	default:
		return schedapi.GraphSucceeded
	}
}

func (l *Loop) workerRow(w *worker) *schedapi.Worker {
	r := &w.registration
	row := &schedapi.Worker{
		ID: w.id, Name: w.name, Incarnation: w.incarnation, State: schedapi.WorkerDisconnected,
		Host: r.Worker.Host, PID: r.PID, DataAddress: r.DataAddress, Device: r.Device, GPU: r.GPU, GPUHealth: w.stats.GPU,
		Slots: r.Worker.Slots, Resources: r.Worker.Resources,
		MemoryLimitBytes: r.Worker.MemoryBytes, MemoryUsedBytes: w.stats.MemoryUsedBytes, RSSBytes: w.stats.RSSBytes,
		RegisteredAt: w.registeredAt, LastSeenAt: w.lastSeen, Deaths: l.workers.machine.Deaths(w.name),
		Version: r.Version, Executors: r.Worker.Executors, Supervised: r.Worker.Supervised, Linalg: r.Worker.Linalg,
		ExecutorDeaths: w.stats.ExecutorDeaths, LastExecutorDeath: w.stats.LastExecutorDeath,
		ReceivedBytes: w.stats.ReceivedBytes, SentBytes: w.stats.SentBytes, Routes: w.stats.Routes,
		SpilledBytes: w.stats.SpilledBytes, SpillWrittenBytes: w.stats.SpillWrittenBytes,
		SpillReadBytes: w.stats.SpillReadBytes, SpillFailure: w.stats.SpillFailure,
		MemoryEvictableBytes: w.stats.MemoryEvictableBytes, Tiers: w.stats.Tiers, Network: w.stats.Network,
	}
	if w.session != nil {
		row.State = schedapi.WorkerActive
		row.LastSeenAt = w.session.seen()
	}
	if info, ok := l.machine.Worker(w.id); ok {
		row.State, row.Drain = schedapi.WorkerState(info.State), info.Drain
		row.AssignedTasks, row.Objects, row.FinishedTasks = info.Assigned, info.Objects, info.Finished
	} else if drain, ordered := l.machine.Ordered(w.id, w.name); ordered { // It has not come back since a restart.
		row.Drain = &drain
	}
	return row
}

func (l *Loop) clientRow(c *client) *schedapi.Client {
	return &schedapi.Client{
		ID: c.id, Name: c.spec.Name, Namespace: c.spec.Namespace, Origin: c.spec.Origin, TTL: c.spec.TTL,
		OpenedAt: c.openedAt, LastSeenAt: c.lastSeen, HeldTasks: l.machine.HeldCount(c.id),
	}
}
