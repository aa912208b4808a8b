package loop

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/coord"
	"github.com/millrace/millrace/server/copies"
	"github.com/millrace/millrace/server/journal"
	"github.com/millrace/millrace/server/members"
	"github.com/millrace/millrace/server/plugins"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
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
	// replaying means that records are applied: nobody is told of anything.
	replaying bool
	// missing are the workers that were known before the restart and are not back yet. waiting
	// means that the machine waits for them.
	missing map[ids.WorkerID]struct{}
	waiting bool
	// lastWorker is the last recorded number of a worker.
	lastWorker ids.WorkerID
	// awaits are the leases of Await from before the restart. They go on for a while, so that a
	// client that knows of a result can hold it.
	awaits []ids.ClientID
	// numbers are those of the tasks of the next recorded submission, if they have a record.
	numbers []ids.TaskID
	// recorded is the number of the last record. awaited is that of the last one which must be
	// durable before the call in progress is answered, wished of the last one for which it waits
	// unless the disk fails; 0: none.
	recorded, awaited, wished uint64
	// newer are the latest submissions, older those before, which are recorded as far as is known.
	newer, older submitted
}

// Restore brings the state back from a journal, which then gets all that is accepted. Call it
// before Run. It ends with an error if the context ends, or if the journal cannot be read.
func (l *Loop) Restore(ctx context.Context, config journal.Config) error {
	l.owning.Lock()
	defer l.owning.Unlock()
	began := l.config.Clock()
	r := &l.restarting
	r.replaying, r.missing = true, map[ids.WorkerID]struct{}{}
	l.coordination.machine = coord.New(coord.Config{Durable: true})
	l.step(sched.RestartBegan{})
	records := 0
	opened, err := journal.Open(config, func(at time.Time, record journal.Record) error {
		records++
		if err := ctx.Err(); err != nil {
			return err
		}
		l.now = l.start.Add(at.Sub(l.start))
		return l.replay(record)
	})
	if err != nil {
		return err
	}
	r.journal, r.replaying = opened, false
	r.starts++
	if err := l.begun(ctx); err != nil {
		return err
	}
	l.now = l.config.Clock()
	if r.starts > 1 {
		l.catalog.Begin((r.starts - 1) * restartRevisions)
	}
	l.step(sched.RecordsReplayed{Restarts: r.starts - 1})
	l.restoreCoordination((r.starts - 1) * restartRevisions)
	l.restoreMembers()
	for _, id := range slices.Sorted(maps.Keys(l.clients.byID)) {
		c := l.clients.byID[id]
		c.lastSeen = l.now
		first := (r.starts - 1) * restartRevisions
		c.changes = changeLog{revision: first, floor: first}
		l.dirty.client(c, l.now)
	}
	if r.starts > 1 {
		l.log.Info("the scheduler goes on from its journal", "records", records, "tasks", l.machine.Totals().Tasks,
			"workers", len(r.missing), "clients", len(l.clients.byID), "after", l.now.Sub(began).Round(time.Millisecond))
		l.happened(schedapi.EventRestarted, schedapi.SeverityWarning, "", "the scheduler was restarted and goes on from its journal with %d tasks", l.machine.Totals().Tasks)
	}
	r.waiting = true
	l.timers.at(l.now.Add(defaultTTL), func(time.Time) { l.endAwaits() })
	l.endRestart()
	l.commit()
	return nil
}

// begun records the start, and waits until that is durable: the numbers that this start gives out
// must not be given out by the next one. While the disk refuses the record, it waits.
func (l *Loop) begun(ctx context.Context) error {
	r := &l.restarting
	l.now = l.config.Clock()
	l.record(&journal.Begun{Cluster: l.config.Cluster.ID, Life: l.config.Cluster.Life, Starts: r.starts})
	for {
		err := r.journal.Wait(ctx, r.recorded)
		if err == nil || ctx.Err() != nil || r.journal.Stats().Lost {
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

// replay applies one record.
func (l *Loop) replay(record journal.Record) error {
	switch r := record.(type) {
	case *journal.Begun:
		l.restarting.starts = r.Starts
		if r.Life != l.config.Cluster.Life {
			return fmt.Errorf("it is of the cluster %s, and another one was begun", r.Cluster)
		}
	case *journal.ClientOpened:
		l.addClient(r.Client, r.Spec)
	case *journal.ClientAwaits:
		l.openAwaiting(r.Client, r.Namespace)
		l.restarting.awaits = append(l.restarting.awaits, r.Client)
	case *journal.ClientOwned:
		if c := l.clients.get(r.Client); c != nil {
			c.spec.Owner = r.Owner
			l.clients.owners.Store(r.Client, r.Owner)
		}
	case *sched.ClientClosed:
		l.step(*r)
		l.forgetClient(r.Client, false)
	case *journal.Numbered:
		l.restarting.numbers = r.Tasks
	case *journal.Submitted:
		l.replaySubmitted(r)
	case *sched.TasksHeld:
		if _, err := l.hold(*r, l.record); err != nil {
			l.log.Warn("a recorded hold cannot be repeated", "client", r.Client, "error", err)
		}
	case *sched.TasksReleased:
		l.step(*r)
	case *sched.TasksCancelled:
		l.step(*r)
	case *sched.TasksRetried:
		l.step(*r)
	case *sched.GraphReleased:
		l.step(*r)
	case *sched.TaskEnded:
		l.step(*r)
	case *journal.DatasetPublished:
		if r.Name == "" {
			return nil // A value of an earlier version's variable, queue or topic, which is not known.
		}
		l.step(sched.DatasetPublished{Dataset: r.Number, Namespace: r.Namespace, Keys: r.Keys})
		if r.Replaced != 0 {
			l.step(sched.DatasetUnpublished{Dataset: r.Replaced})
		}
		l.datasets = max(l.datasets, r.Number)
		l.dirty.datasets = append(l.dirty.datasets, &schedapi.Dataset{Number: r.Number, Name: r.Name, Namespace: r.Namespace,
			Keys: r.Keys, Value: r.Value, CreatedAt: l.now})
		l.commit()
	case *journal.DatasetUnpublished:
		l.step(sched.DatasetUnpublished{Dataset: r.Number})
		l.dirty.unpublished = append(l.dirty.unpublished, &schedapi.Dataset{Number: r.Number, Name: r.Name, Namespace: r.Namespace})
		l.commit()
	case *copies.DrainOrderChanged:
		order := *r
		order.Since, order.Until, order.Lost = l.timeOf(r.Since), l.timeOf(r.Until), l.timeOf(r.Lost)
		l.machine.LoadOrder(l.config.Clock(), order)
	case *plugins.PluginChanged:
		l.plugins.Load(*r)
	case *coord.Coordinated:
		l.replayCoordinated(r)
	case *journal.WorkerNumbered:
		l.workers.all = append(l.workers.all, &worker{id: r.Worker, name: r.Name, incarnation: r.Incarnation, registeredAt: l.now})
		l.restarting.lastWorker = r.Worker
	case *journal.WorkerGone:
		if w := l.workers.get(r.Worker); w != nil {
			l.workers.remove(w)
		}
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

// replaySubmitted repeats an accepted submission. If it is refused now, its tasks fail.
func (l *Loop) replaySubmitted(r *journal.Submitted) {
	s := r.Submission
	s.Graph.FirstTask, s.Graph.EndTask = r.First, r.End
	if s.Graph.Graph == 0 {
		s.Graph.NewGraph = r.ID
	}
	s.Graph.Recorded, l.restarting.numbers = l.restarting.numbers, nil
	if n := len(s.Graph.Tasks); s.Graph.Recorded == nil && r.End-r.First == ids.TaskID(n) {
		s.Graph.Recorded = make([]ids.TaskID, n)
		for i := range s.Graph.Recorded {
			s.Graph.Recorded[i] = r.First + ids.TaskID(i)
		}
	}
	var cause string
	if accepted, err := l.submit(&s); err != nil {
		cause = err.Error()
	} else if len(accepted.MissingFunctions) > 0 {
		cause = fmt.Sprintf("the function %s, which it needs, is not recorded", accepted.MissingFunctions[0])
	} else {
		return
	}
	l.log.Error("a recorded submission is refused: its tasks fail", "graph", r.ID, "client", s.Graph.Client, "first", r.First, "end", r.End, "cause", cause)
	l.happened(schedapi.EventUnrestored, schedapi.SeverityError, "", "the tasks from %s to %s of graph %s cannot be brought back, and fail: %s", r.First, r.End-1, r.ID, cause)
	l.step(sched.GraphUnrestored{GraphSubmitted: s.Graph, Cause: cause})
}

// record appends a record to the journal, if there is one. The call that makes it returns after the
// record is durable.
func (l *Loop) record(r journal.Record) {
	l.note(r)
	l.restarting.awaited = l.restarting.recorded
}

// note appends a record for which no call waits.
func (l *Loop) note(r journal.Record) {
	if j := l.restarting.journal; j != nil {
		l.restarting.recorded = j.Append(l.now, r)
	}
}

// recordSubmitted records an accepted submission. first is the number that the first new task got.
func (l *Loop) recordSubmitted(s *schedapi.Submission, first ids.TaskID, result *sched.SubmitResult) {
	r := &l.restarting
	if r.journal == nil {
		return
	}
	if result.Repeated {
		r.awaited = r.recorded // The record of the first time may not be durable yet.
		return
	}
	end := l.machine.NextTask()
	if n := len(result.Tasks); end-first != ids.TaskID(n) {
		l.note(&journal.Numbered{Tasks: result.Tasks})
	}
	l.record(&journal.Submitted{Submission: *s, ID: result.Graph, First: first, End: end})
	r.newer.record = r.recorded
	r.newer.tasks += len(s.Graph.Tasks)
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

// recordEnded records the end of a task.
func (l *Loop) recordEnded(effect *sched.Effect) {
	if l.restarting.journal == nil {
		return
	}
	ended := &sched.TaskEnded{Task: effect.Task, Attempt: effect.Attempt, State: effect.State}
	if effect.State == sched.TaskFailed {
		if update, ok := l.machine.UpdateOf(effect.Task); ok {
			ended.Err = update.Err
		}
	}
	l.note(ended)
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
