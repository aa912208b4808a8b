package loop

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/coord"
	"github.com/millrace/millrace/server/copies"
	"github.com/millrace/millrace/server/functions"
	"github.com/millrace/millrace/server/journal"
	"github.com/millrace/millrace/server/members"
	"github.com/millrace/millrace/server/plugins"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
	"github.com/millrace/millrace/server/templates"
)

const (
	// restartWorkers is the gap in the numbers of workers after a restart: the number of a worker
	// whose record was lost is not given to another one.
	restartWorkers = 1024
	// restartRevisions is the distance between the first revisions of two starts, and between the
	// first numbers of messages of a topic: one of an earlier start is not mistaken for one of this
	// start.
	restartRevisions = 1 << 36
)

// restarting is the state of the journal, and of a restart from it.
type restarting struct {
	journal *journal.Journal
	// starts counts the starts of the scheduler with this journal; 0: there is no journal.
	starts uint64
	// loading means that records are loaded: nobody is told of anything.
	loading bool
	// missing are the workers that were known before the restart and are not back yet. waiting
	// means that the machine waits for them.
	missing map[ids.WorkerID]struct{}
	waiting bool
	// lastWorker is the last recorded number of a worker.
	lastWorker ids.WorkerID
	// awaits are the leases of Await from before the restart. They go on for a while, so that a
	// client that knows of a result can hold it.
	awaits []ids.ClientID
	// datasets are those with names that were recorded.
	datasets map[uint64]*schedapi.Dataset
	// values are the datasets of values of coordination.
	values map[uint64]struct{}
	// recorded is the number of the last record. awaited is that of the last one which must be
	// durable before the call in progress is answered, wished of the last one for which it waits
	// unless the disk fails; 0: none.
	recorded, awaited, wished uint64
	// newer are the latest submissions, older those before, which are recorded as far as is known.
	newer, older submitted
	// written are the scattered objects that wait for the disk, in the order of their records.
	// accepting means that a goroutine waits for some of them.
	written   []written
	accepting bool
}

// Restore brings the state back from a journal, which then gets all that is accepted. Call it
// before Run. It ends with an error if the context ends, or if the journal cannot be read.
func (l *Loop) Restore(ctx context.Context, config journal.Config) error {
	l.owning.Lock()
	defer l.owning.Unlock()
	began := l.config.Clock()
	r := &l.restarting
	r.loading, r.missing, r.datasets = true, map[ids.WorkerID]struct{}{}, map[uint64]*schedapi.Dataset{}
	r.values = map[uint64]struct{}{}
	l.coordination.machine = coord.New(coord.Config{Durable: true})
	l.machine.SetTime(began)
	records := 0
	opened, err := journal.Open(config, func(at time.Time, record journal.Record) error {
		records++
		if err := ctx.Err(); err != nil {
			return err
		}
		l.now = l.timeOf(at)
		return l.load(record)
	})
	if err != nil {
		return err
	}
	r.journal = opened
	r.starts++
	if err := l.begun(ctx); err != nil {
		return err
	}
	l.now = l.config.Clock()
	first := (r.starts - 1) * restartRevisions
	if r.starts > 1 {
		l.catalog.Begin(first)
	}
	l.step(sched.Loaded{Restarts: r.starts - 1, Functions: l.functions.Hashes()})
	if err := persisted(ctx, r.journal, r.recorded); err != nil { // It has the first number of a new task.
		return err
	}
	r.loading = false
	if tasks, why := l.machine.Unusable(); tasks > 0 {
		l.log.Error("recorded tasks cannot be used, and fail", "tasks", tasks, "first", why)
		l.happened(schedapi.EventUnrestored, schedapi.SeverityError, "", "%s cannot be brought back, and fail; the first: %s", counted(tasks, "task", "tasks"), why)
	}
	l.restoreOwners()
	l.restoreCoordination(first)
	l.restoreMembers()
	for _, id := range slices.Sorted(maps.Keys(l.clients.byID)) {
		c := l.clients.byID[id]
		c.lastSeen = l.now
		c.changes = changeLog{revision: first, floor: first}
		l.dirty.client(c, l.now)
	}
	if r.starts > 1 {
		l.log.Info("the scheduler goes on from its journal", "records", records, "tasks", l.machine.Totals().Tasks,
			"workers", len(r.missing), "clients", len(l.clients.byID), "after", l.now.Sub(began).Round(time.Millisecond))
		l.happened(schedapi.EventRestarted, schedapi.SeverityWarning, "", "the scheduler was restarted and goes on from its journal with %s", counted(l.machine.Totals().Tasks, "task", "tasks"))
	}
	r.waiting = true
	l.timers.at(l.now.Add(defaultTTL), func(time.Time) { l.endAwaits() })
	l.endRestart()
	l.commit()
	return nil
}

// begun records the start, and waits until that is durable: the numbers that this start gives out
// must not be given out by the next one.
func (l *Loop) begun(ctx context.Context) error {
	l.now = l.config.Clock()
	l.record(&journal.Begun{Cluster: l.config.Cluster.ID, Life: l.config.Cluster.Life, Starts: l.restarting.starts})
	return persisted(ctx, l.restarting.journal, l.restarting.recorded)
}

// persisted waits until a record is durable, also while the disk refuses it. An error says that the
// context has ended, or that the journal is given up.
func persisted(ctx context.Context, j *journal.Journal, record uint64) error {
	for {
		err := j.Wait(ctx, record)
		if err == nil || ctx.Err() != nil || j.Stats().Lost {
			return err
		}
	}
}

// endAwaits ends the leases of Await from before the restart.
func (l *Loop) endAwaits() {
	for _, id := range l.restarting.awaits {
		if l.clients.get(id) != nil {
			l.step(sched.ClientClosed{Client: id})
			l.forgetClient(id, false)
		}
	}
	l.restarting.awaits = nil
	l.settleHolds()
}

// restoreMembers lets the workers come back that were members before the restart.
func (l *Loop) restoreMembers() {
	r := &l.restarting
	if r.lastWorker == 0 {
		return
	}
	event := members.Restored{Last: r.lastWorker + restartWorkers, Grace: l.config.RestartGrace}
	for _, w := range l.workers.all {
		event.Members = append(event.Members, members.Member{Worker: w.id, Name: w.name, Incarnation: w.incarnation})
		r.missing[w.id] = struct{}{}
		w.lastSeen = l.now
		l.dirty.worker(w, l.now)
	}
	l.member(event)
}

// load puts or deletes what one record says. Nothing follows from it yet.
func (l *Loop) load(record journal.Record) error {
	r := &l.restarting
	switch row := record.(type) {
	case *journal.Begun:
		r.starts = row.Starts
		if row.Life != l.config.Cluster.Life {
			return fmt.Errorf("it is of the cluster %s, and another one was begun", row.Cluster)
		}
	case *journal.ClientOpened:
		l.loadClient(row.Client, row.Spec)
	case *journal.ClientAwaits:
		l.loadClient(row.Client, awaitSpec(row.Namespace)).await = make(chan sched.Update, 1)
		r.awaits = append(r.awaits, row.Client)
	case *journal.ClientOwned:
		if c := l.clients.get(row.Client); c != nil {
			c.spec.Owner = row.Owner
			l.clients.owners.Store(row.Client, row.Owner)
		}
	case *sched.ClientClosed:
		l.machine.Load(row)
		l.forgetClient(row.Client, false)
	case *journal.FunctionPut:
		l.functions.Take([]functions.Function{row.Function}, []ids.FunctionHash{row.Hash})
	case *journal.FunctionDeleted:
		l.functions.Drop(row.Hash)
	case *journal.DatasetPublished:
		l.datasets = max(l.datasets, row.Number)
		delete(r.datasets, row.Replaced)
		r.datasets[row.Number] = &schedapi.Dataset{Number: row.Number, Name: row.Name, Namespace: row.Namespace,
			Keys: row.Keys, Value: row.Value, CreatedAt: l.now}
	case *journal.DatasetUnpublished:
		l.datasets = max(l.datasets, row.Number)
		delete(r.datasets, row.Number)
	case *copies.DrainOrderChanged:
		order := *row
		order.Since, order.Until, order.Lost = l.timeOf(row.Since), l.timeOf(row.Until), l.timeOf(row.Lost)
		l.machine.LoadOrder(l.config.Clock(), order)
	case *plugins.PluginChanged:
		l.plugins.Load(*row)
	case *templates.TemplateChanged:
		l.templates.load(row)
	case *coord.Coordinated:
		l.loadCoordinated(row)
	case *journal.WorkerNumbered:
		if l.workers.get(row.Worker) == nil {
			l.workers.all = append(l.workers.all, &worker{id: row.Worker, name: row.Name, incarnation: row.Incarnation, registeredAt: l.now})
			slices.SortFunc(l.workers.all, func(a, b *worker) int { return cmp.Compare(a.id, b.id) })
		}
		r.lastWorker = max(r.lastWorker, row.Worker)
	case *journal.WorkerGone:
		r.lastWorker = max(r.lastWorker, row.Worker)
		if w := l.workers.get(row.Worker); w != nil {
			l.workers.remove(w)
		}
	default:
		l.machine.Load(row)
	}
	return nil
}

// timeOf returns a recorded time with a reading of the monotonic clock, unless it is zero.
func (l *Loop) timeOf(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return l.start.Add(t.Sub(l.start))
}

// loadClient puts a client.
func (l *Loop) loadClient(id ids.ClientID, spec schedapi.ClientSpec) *client {
	c := l.clients.get(id)
	if c == nil {
		c = &client{id: id, openedAt: l.now}
		l.clients.byID[id] = c
	}
	c.spec = spec
	l.clients.owners.Store(id, spec.Owner)
	l.machine.Load(&sched.ClientOpened{Client: id, Namespace: spec.Namespace, Worker: spec.Worker, TTL: spec.TTL})
	return c
}

// restoreOwners fills the catalogue with the datasets, and ends what nobody owns: its owner's
// record is the last one that is missing.
func (l *Loop) restoreOwners() {
	r := &l.restarting
	for _, number := range slices.Sorted(maps.Keys(r.datasets)) {
		l.dirty.datasets = append(l.dirty.datasets, r.datasets[number])
	}
	for _, number := range l.machine.Datasets() {
		if _, known := r.values[number]; !known && r.datasets[number] == nil {
			l.step(sched.DatasetUnpublished{Dataset: number})
		}
	}
	r.datasets, r.values = nil, nil
	for _, hash := range l.functions.Hashes() {
		if !l.machine.NeedsFunction(hash) {
			l.dropFunction(hash)
		}
	}
}

// record appends a record to the journal, if there is one. The call that makes it returns after the
// record is durable.
func (l *Loop) record(r journal.Record) {
	l.note(r)
	l.awaitFacts()
}

// note appends records for which no call waits.
func (l *Loop) note(r journal.Record) {
	if j := l.restarting.journal; j != nil {
		l.restarting.recorded = j.Append(l.now, r)
	}
}

// recordFacts appends the rows of the last step of the machine: either all of them are durable
// after a crash, or none.
func (l *Loop) recordFacts() {
	if rows := l.machine.Facts(); len(rows) > 0 && l.restarting.journal != nil {
		l.restarting.recorded = l.restarting.journal.AppendAll(l.now, rows)
	}
}

// awaitFacts lets the call in progress be answered after all that was recorded is durable.
func (l *Loop) awaitFacts() {
	l.restarting.awaited = l.restarting.recorded
}

// refuseIfBehind returns an error while the records of too many new tasks are not durable. The
// owner of the loop never waits for the disk.
func (l *Loop) refuseIfBehind() error {
	r := &l.restarting
	if r.journal == nil || r.newer.tasks < l.config.UnrecordedTasks/2 {
		return nil
	}
	if waiting := r.journal.Waiting(); r.older.record > r.recorded-waiting {
		return &sched.Error{Kind: sched.ErrFull, Object: "journal", Message: fmt.Sprintf(
			"%d records of accepted requests, with more than %d tasks, wait for the disk of the journal: submit again when it has taken them",
			waiting, l.config.UnrecordedTasks/2)}
	}
	r.older, r.newer = r.newer, submitted{}
	return nil
}

// submitted counts the tasks of a row of submissions. record is the last record of them.
type submitted struct {
	record uint64
	tasks  int
}

// Recorded waits until all that was recorded before is durable.
func (l *Loop) Recorded(ctx context.Context) error {
	var record uint64
	if err := l.inspect(ctx, func() { record = l.restarting.recorded }); err != nil {
		return err
	}
	return l.durable(ctx, record)
}

// durable waits until all that was recorded up to a record is durable.
func (l *Loop) durable(ctx context.Context, record uint64) error {
	j := l.restarting.journal
	if j == nil || record == 0 {
		return nil
	}
	if err := j.Wait(ctx, record); err != nil && ctx.Err() == nil {
		return l.errJournal(err)
	} else if err != nil {
		return err
	}
	return nil
}

// refuseNew returns an error for calls that need a record, while the scheduler is stopping or
// nothing can become durable. All other calls go on without the disk.
func (l *Loop) refuseNew() error {
	if err := l.refuseIfDraining(); err != nil {
		return err
	}
	if j := l.restarting.journal; j != nil {
		if err := j.Trouble(); err != nil {
			return l.errJournal(err)
		}
	}
	return nil
}

func (l *Loop) errJournal(err error) error {
	return &schedapi.Error{Kind: schedapi.ErrJournal, Object: "journal", Message: fmt.Sprintf(
		"the scheduler cannot write down what it accepts, so it accepts nothing new: %v", err)}
}

// workerReturned notes that a worker that was known before the restart is back, or is lost.
func (l *Loop) workerReturned(id ids.WorkerID) {
	if _, missing := l.restarting.missing[id]; missing {
		delete(l.restarting.missing, id)
		l.endRestart()
	}
}

// endRestart lets the machine assign tasks once no worker is awaited.
func (l *Loop) endRestart() {
	if r := &l.restarting; r.waiting && len(r.missing) == 0 {
		r.waiting = false
		l.step(sched.RestartEnded{})
	}
}

// CloseJournal makes all records durable. Call it after Run.
func (l *Loop) CloseJournal() error {
	if l.restarting.journal == nil {
		return nil
	}
	l.lastSnapshot()
	return l.restarting.journal.Close()
}

// Journal returns the state of the journal; nil if there is none.
func (l *Loop) Journal() *schedapi.Journal {
	j := l.restarting.journal
	if j == nil {
		return nil
	}
	stats := j.Stats()
	return &stats
}
