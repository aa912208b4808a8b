package loop

import (
	"context"
	"fmt"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// Submit adds a submission; on an error nothing is added.
func (l *Loop) Submit(ctx context.Context, submission schedapi.Submission) (schedapi.Accepted, error) {
	var accepted schedapi.Accepted
	err := l.do(ctx, func() (err error) {
		if err = l.refuseIfDraining(); err == nil {
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
		if c, err = l.heardFrom(id); err != nil {
			return schedapi.Accepted{}, err
		}
	}
	added, missing := l.takeFunctions(s)
	if len(missing) > 0 {
		return schedapi.Accepted{MissingFunctions: missing}, nil
	}
	s.Graph.CallerBytes = l.functionBytes
	result, effects, refused := l.machine.Submit(l.now, s.Graph, l.effects[:0])
	l.effects = effects
	if refused != nil {
		for _, hash := range added {
			l.forgetFunction(hash)
		}
		return schedapi.Accepted{}, refused
	}
	l.carryOut()
	accepted := schedapi.Accepted{SubmitResult: result}
	if c != nil {
		accepted.Revision = c.changes.revision
		l.dirty.clientCounters(c)
	}
	return accepted, nil
}

// takeFunctions stores the functions that a submission needs and carries. If some are missing, it
// stores none and returns the missing ones.
func (l *Loop) takeFunctions(s *schedapi.Submission) (added, missing []ids.FunctionHash) {
	brought := map[ids.FunctionHash]schedapi.Function{}
	for _, f := range s.Functions {
		brought[f.Hash] = f
	}
	for _, hash := range s.Needed {
		if _, known := l.functions[hash]; known {
			continue
		}
		if _, comes := brought[hash]; !comes {
			missing = append(missing, hash)
			continue
		}
		added = append(added, hash)
	}
	if len(missing) > 0 {
		return nil, missing
	}
	for _, hash := range added {
		l.functions[hash] = &function{Function: brought[hash]}
		l.functionBytes += uint64(len(brought[hash].Payload))
	}
	return added, nil
}

// Hold makes a client hold tasks by key.
func (l *Loop) Hold(ctx context.Context, event sched.TasksHeld) ([]ids.TaskID, error) {
	var tasks []ids.TaskID
	err := l.do(ctx, func() error {
		if _, err := l.heardFrom(event.Client); err != nil {
			return err
		}
		var err error
		tasks, err = l.hold(event)
		return err
	})
	return tasks, err
}

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
func (l *Loop) Release(ctx context.Context, event sched.TasksReleased) error {
	return l.do(ctx, func() error {
		if _, err := l.heardFrom(event.Client); err != nil {
			return err
		}
		l.step(event)
		return nil
	})
}

// Cancel cancels tasks.
func (l *Loop) Cancel(ctx context.Context, event sched.TasksCancelled, namespace string, keys []string) (done sched.Cancelled, err error) {
	err = l.do(ctx, func() error {
		tasks, err := l.named(event.Client, event.Tasks, namespace, keys)
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
		return nil
	})
	return done, err
}

// Retry runs failed or cancelled tasks again.
func (l *Loop) Retry(ctx context.Context, id ids.ClientID, tasks []ids.TaskID, namespace string, keys []string) (retried uint64, err error) {
	err = l.do(ctx, func() error {
		tasks, err := l.named(id, tasks, namespace, keys)
		if err != nil {
			return err
		}
		count, effects, refused := l.machine.Retry(l.now, sched.TasksRetried{Tasks: tasks}, l.effects[:0])
		l.effects = effects
		if refused != nil {
			return refused
		}
		retried = count
		l.carryOut()
		return nil
	})
	return retried, err
}

// named appends the numbers of the tasks that are given by key to those given by number.
func (l *Loop) named(id ids.ClientID, tasks []ids.TaskID, namespace string, keys []string) ([]ids.TaskID, error) {
	if id != 0 {
		c, err := l.heardFrom(id)
		if err != nil {
			return nil, err
		}
		namespace = c.spec.Namespace
	}
	for _, key := range keys {
		task, ok := l.machine.Lookup(namespace, key)
		if !ok {
			return nil, &sched.Error{Kind: sched.ErrUnknownTask, Object: key, Message: fmt.Sprintf(
				"there is no task with the key %q in namespace %q: check the key, or whether its result was released", key, namespace)}
		}
		tasks = append(tasks, task)
	}
	return tasks, nil
}

// ReleaseGraph releases all tasks of a graph.
func (l *Loop) ReleaseGraph(ctx context.Context, event sched.GraphReleased) error {
	return l.do(ctx, func() error {
		effects, refused := l.machine.ReleaseGraph(l.now, event, l.effects[:0])
		l.effects = effects
		if refused != nil {
			return refused
		}
		l.carryOut()
		return nil
	})
}

// Publish gives a set of results a name. The dataset holds them until it is unpublished.
func (l *Loop) Publish(ctx context.Context, spec schedapi.DatasetSpec) (*schedapi.Dataset, error) {
	var row *schedapi.Dataset
	err := l.do(ctx, func() error {
		if spec.Client != 0 {
			c, err := l.heardFrom(spec.Client)
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
		l.carryOut()
		if old != nil {
			l.step(sched.DatasetUnpublished{Dataset: old.Number})
		}
		row = &schedapi.Dataset{Number: l.datasets, Name: spec.Name, Namespace: spec.Namespace, Keys: spec.Keys,
			Metadata: spec.Metadata, CreatedAt: l.now}
		l.dirty.datasets = append(l.dirty.datasets, row)
		l.commit()
		return nil
	})
	return row, err
}

// Unpublish removes a dataset and its hold on the results.
func (l *Loop) Unpublish(ctx context.Context, namespace, name string) error {
	return l.do(ctx, func() error {
		row := l.catalog.Snapshot().Dataset(namespace, name)
		if row == nil {
			return &sched.Error{Kind: sched.ErrUnknownDataset, Object: name, Message: fmt.Sprintf(
				"there is no dataset %q in namespace %q: see ListDatasets", name, namespace)}
		}
		l.step(sched.DatasetUnpublished{Dataset: row.Number})
		l.dirty.unpublished = append(l.dirty.unpublished, row)
		l.commit()
		return nil
	})
}
