package loop

import (
	"cmp"
	"context"
	"fmt"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/journal"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// Submit adds a submission; on an error nothing is added.
func (l *Loop) Submit(ctx context.Context, submission schedapi.Submission) (schedapi.Accepted, error) {
	var accepted schedapi.Accepted
	err := l.do(ctx, func() (err error) {
		if err = cmp.Or(l.refuseNew(), l.refuseIfBehind()); err == nil {
			accepted, err = l.submit(&submission)
		}
		return err
	})
	return accepted, err
}

func (l *Loop) submit(s *schedapi.Submission) (schedapi.Accepted, error) {
	var c *client
	if id := s.Graph.Client; id != 0 {
		var err error
		if c, err = l.renewLease(id); err != nil {
			return schedapi.Accepted{}, err
		}
	}
	added, missing := l.functions.Take(s.Functions, s.Needed)
	if len(missing) > 0 {
		return schedapi.Accepted{MissingFunctions: missing}, nil
	}
	s.Graph.CallerBytes = l.functions.Bytes() + l.templates.bytes()
	result, effects, refused := l.machine.Submit(l.now, s.Graph, l.effects[:0])
	l.effects = effects
	if refused != nil {
		l.functions.Forget(added)
		return schedapi.Accepted{}, refused
	}
	for _, hash := range added {
		if f, known := l.functions.Get(hash); known && l.restarting.journal != nil {
			l.note(&journal.FunctionPut{Function: f})
		}
	}
	l.carryOut()
	l.awaitFacts() // The rows of a repeated submission may not be durable yet.
	l.restarting.newer.record = l.restarting.recorded
	l.restarting.newer.tasks += len(result.Tasks) - int(result.Joined)
	accepted := schedapi.Accepted{SubmitResult: result}
	if c != nil {
		accepted.Revision = c.changes.revision
		l.dirty.clientCounters(c)
	}
	return accepted, nil
}

// Hold makes a client hold tasks.
func (l *Loop) Hold(ctx context.Context, id ids.ClientID, set schedapi.TaskSet) ([]ids.TaskID, error) {
	var tasks []ids.TaskID
	err := l.do(ctx, func() error {
		if _, err := l.renewLease(id); err != nil {
			return err
		}
		if _, err := l.namespaceOf(id, set); err != nil {
			return err
		}
		var err error
		tasks, err = l.hold(sched.TasksHeld{Client: id, Tasks: set.Tasks, Keys: set.Keys})
		l.awaitFacts()
		return err
	})
	return tasks, err
}

// hold makes a client hold tasks.
func (l *Loop) hold(event sched.TasksHeld) ([]ids.TaskID, error) {
	tasks, effects, refused := l.machine.Hold(l.now, event, l.effects[:0])
	l.effects = effects
	if refused != nil {
		return nil, refused
	}
	l.carryOut()
	return tasks, nil
}

// Release ends holds of a client.
func (l *Loop) Release(ctx context.Context, id ids.ClientID, set schedapi.TaskSet) error {
	return l.do(ctx, func() error {
		if _, err := l.renewLease(id); err != nil {
			return err
		}
		namespace, err := l.namespaceOf(id, set)
		if err != nil {
			return err
		}
		event := sched.TasksReleased{Client: id, Tasks: set.Tasks}
		for _, key := range set.Keys {
			if task, ok := l.machine.Lookup(namespace, key); ok {
				event.Tasks = append(event.Tasks, task)
			}
		}
		l.step(event)
		l.awaitFacts()
		return nil
	})
}

// Cancel cancels tasks.
func (l *Loop) Cancel(ctx context.Context, event sched.TasksCancelled, set schedapi.TaskSet) (done sched.Cancelled, err error) {
	err = l.do(ctx, func() error {
		tasks, err := l.named(event.Client, set)
		if err != nil {
			return err
		}
		event.Tasks = tasks
		cancelled, effects, refused := l.machine.Cancel(l.now, event, l.effects[:0])
		l.effects = effects
		if refused != nil {
			return refused
		}
		done = cancelled
		l.carryOut()
		l.awaitFacts()
		return nil
	})
	return done, err
}

// Retry runs failed or cancelled tasks again.
func (l *Loop) Retry(ctx context.Context, id ids.ClientID, set schedapi.TaskSet, graphs []ids.GraphID) (retried uint64, err error) {
	err = l.do(ctx, func() error {
		l.awaitFacts() // An earlier call may have made the tasks run.
		tasks, err := l.named(id, set)
		if err != nil {
			return err
		}
		for _, graph := range graphs {
			ended, err := l.endedBadly(graph)
			if err != nil {
				return err
			}
			tasks = append(tasks, ended...)
		}
		if len(tasks) == 0 {
			return nil
		}
		event := sched.TasksRetried{Tasks: tasks}
		count, effects, refused := l.machine.Retry(l.now, event, l.effects[:0])
		l.effects = effects
		if refused != nil {
			return refused
		}
		retried = count
		l.carryOut()
		l.awaitFacts()
		return nil
	})
	return retried, err
}

// endedBadly lists the failed and the cancelled tasks of a graph.
func (l *Loop) endedBadly(graph ids.GraphID) ([]ids.TaskID, error) {
	if _, ok := l.machine.Graph(graph); !ok {
		return nil, &sched.Error{Kind: sched.ErrUnknownGraph, Object: graph.String(), Message: fmt.Sprintf(
			"there is no graph %d: it was released, or is of another scheduler's life; see ListGraphs", uint64(graph))}
	}
	var tasks []ids.TaskID
	for _, state := range []sched.TaskState{sched.TaskFailed, sched.TaskCancelled} {
		filter := sched.TaskFilter{Graph: graph, State: state}
		for after, more := ids.TaskID(0), true; more; more = after != 0 {
			var some []sched.TaskInfo
			some, after = l.machine.Tasks(filter, after, retriedAtOnce)
			for i := range some {
				tasks = append(tasks, some[i].Task)
			}
		}
	}
	return tasks, nil
}

// retriedAtOnce bounds the tasks that endedBadly describes at once.
const retriedAtOnce = 1000

// named returns the numbers of the tasks of a set.
func (l *Loop) named(id ids.ClientID, set schedapi.TaskSet) ([]ids.TaskID, error) {
	if id != 0 {
		if _, err := l.renewLease(id); err != nil {
			return nil, err
		}
	}
	namespace, err := l.namespaceOf(id, set)
	if err != nil {
		return nil, err
	}
	tasks := set.Tasks
	for _, key := range set.Keys {
		task, ok := l.machine.Lookup(namespace, key)
		if !ok {
			return nil, &sched.Error{Kind: sched.ErrUnknownTask, Object: key, Message: fmt.Sprintf(
				"there is no task with the key %q in namespace %q: check the key, or whether its result was released", key, namespace)}
		}
		tasks = append(tasks, task)
	}
	return tasks, nil
}

// namespaceOf returns the namespace of the keys of a set. A client can name its own only.
func (l *Loop) namespaceOf(id ids.ClientID, set schedapi.TaskSet) (string, error) {
	if id == 0 {
		return cmp.Or(set.Namespace, "default"), nil
	}
	own := l.clients.get(id).spec.Namespace
	if set.Namespace != "" && set.Namespace != own {
		return "", &schedapi.Error{Kind: schedapi.ErrInvalidField, Object: "tasks.namespace", Message: fmt.Sprintf(
			"tasks.namespace: the client is in namespace %q and cannot name tasks of %q: leave it empty, or open a client there", own, set.Namespace)}
	}
	return own, nil
}

// ReleaseGraph releases all tasks of a graph.
func (l *Loop) ReleaseGraph(ctx context.Context, event sched.GraphReleased) error {
	return l.do(ctx, func() error {
		l.awaitFacts() // If the graph is gone, an earlier call may have ended it.
		effects, refused := l.machine.ReleaseGraph(l.now, event, l.effects[:0])
		l.effects = effects
		if refused != nil {
			return refused
		}
		l.carryOut()
		l.awaitFacts()
		return nil
	})
}

// Publish gives a set of results a name. The dataset holds them until it is unpublished.
func (l *Loop) Publish(ctx context.Context, spec schedapi.DatasetSpec) (*schedapi.Dataset, error) {
	var row *schedapi.Dataset
	err := l.do(ctx, func() error {
		if spec.Client != 0 {
			c, err := l.renewLease(spec.Client)
			if err != nil {
				return err
			}
			spec.Namespace = c.spec.Namespace
		}
		old := l.catalog.Snapshot().Dataset(spec.Namespace, spec.Name)
		if old != nil && !spec.Replace {
			return &schedapi.Error{Kind: schedapi.ErrDatasetExists, Object: spec.Name, Message: fmt.Sprintf(
				"dataset %q exists already in namespace %q: unpublish it, or ask to replace it", spec.Name, spec.Namespace)}
		}
		_, effects, refused := l.machine.Publish(l.now, sched.DatasetPublished{
			Dataset: l.datasets + 1, Namespace: spec.Namespace, Keys: spec.Keys,
		}, l.effects[:0])
		l.effects = effects
		if refused != nil {
			return refused
		}
		l.datasets++
		record := &journal.DatasetPublished{Number: l.datasets, Name: spec.Name, Namespace: spec.Namespace, Keys: spec.Keys, Value: spec.Value}
		if old != nil {
			record.Replaced = old.Number
		}
		l.carryOut()
		l.record(record)
		if old != nil {
			l.step(sched.DatasetUnpublished{Dataset: old.Number})
		}
		row = &schedapi.Dataset{Number: l.datasets, Name: spec.Name, Namespace: spec.Namespace, Keys: spec.Keys,
			Value: spec.Value, CreatedAt: l.now}
		l.dirty.datasets = append(l.dirty.datasets, row)
		l.commit()
		return nil
	})
	return row, err
}

// Unpublish removes a dataset and its hold on the results.
func (l *Loop) Unpublish(ctx context.Context, namespace, name string) error {
	return l.do(ctx, func() error {
		l.awaitFacts() // If the dataset is gone, an earlier call may have ended it.
		row := l.catalog.Snapshot().Dataset(namespace, name)
		if row == nil {
			return &sched.Error{Kind: sched.ErrUnknownDataset, Object: name, Message: fmt.Sprintf(
				"there is no dataset %q in namespace %q: see ListDatasets", name, namespace)}
		}
		l.record(&journal.DatasetUnpublished{Number: row.Number, Name: name, Namespace: namespace})
		l.step(sched.DatasetUnpublished{Dataset: row.Number})
		l.dirty.unpublished = append(l.dirty.unpublished, row)
		l.commit()
		return nil
	})
}
