package loop

import (
	"cmp"
	"context"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/coord"
	"github.com/millrace/millrace/server/journal"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// coordination is the machine of locks, queues and the like, with the calls that wait for it.
type coordination struct {
	machine *coord.Machine
	effects []coord.Effect
	tickets uint64 // last number given out
	asking  map[uint64]*asking
	// held are results that clients hold from now on. unheld are values that were dropped: their
	// results are not kept any more. settleHolds works both lists off between steps of the
	// scheduler machine.
	held   []sched.TasksHeld
	unheld []uint64
}

// asking is a call that waits.
type asking struct {
	call     coord.Call
	client   *client // nil: a call without a lease
	answered chan coord.Effect
}

func newCoordination() coordination {
	return coordination{machine: coord.New(coord.Config{}), asking: map[uint64]*asking{}}
}

// coordinated carries out the effects of the coordination machine.
func (l *Loop) coordinated(effects []coord.Effect) {
	for i := range effects {
		effect := &effects[i]
		switch effect.Kind {
		case coord.EffectAnswered:
			l.answer(effect)
		case coord.EffectUnheld:
			l.coordination.unheld = append(l.coordination.unheld, effect.Hold)
		}
	}
	clear(effects) // They refer to values.
	l.coordination.effects = effects[:0]
}

// answer ends a call. The client of a call without an id cannot acknowledge the answer, so it holds
// the results in it at once.
func (l *Loop) answer(effect *coord.Effect) {
	a := l.coordination.asking[effect.Ticket]
	if a == nil {
		return // Its caller has gone.
	}
	delete(l.coordination.asking, effect.Ticket)
	if a.client != nil {
		a.client.asking--
		if a.call.ID == "" {
			for i := range effect.Answer.Values {
				if keys := effect.Answer.Values[i].Keys; len(keys) > 0 {
					l.coordination.held = append(l.coordination.held, sched.TasksHeld{Client: a.client.id, Keys: keys})
				}
			}
		}
	}
	a.answered <- *effect
}

// settleHolds tells the scheduler machine who holds results now. It must not be called while the
// effects of that machine are carried out.
func (l *Loop) settleHolds() {
	for len(l.coordination.held) > 0 {
		held := l.coordination.held[0]
		l.coordination.held = l.coordination.held[1:]
		_, _ = l.hold(held, l.record) // It fails only if the client has gone.
	}
	for len(l.coordination.unheld) > 0 {
		hold := l.coordination.unheld[0]
		l.coordination.unheld = l.coordination.unheld[1:]
		l.note(&journal.DatasetUnpublished{Number: hold})
		l.effects = l.machine.Step(l.now, sched.DatasetUnpublished{Dataset: hold}, l.effects[:0])
		l.carryOut()
	}
}

// place returns the namespace of a call, and its client; nil: it has none. It renews the lease.
func (l *Loop) place(p schedapi.Place) (string, *client, error) {
	if p.Client == 0 {
		return cmp.Or(p.Namespace, "default"), nil, nil
	}
	c, err := l.renewLease(p.Client)
	if err != nil {
		return "", nil, err
	}
	return c.spec.Namespace, c, nil
}

// holdValue keeps the results to which a value refers, and sets its Hold.
func (l *Loop) holdValue(namespace string, value *coord.Value) error {
	if len(value.Keys) == 0 {
		return nil
	}
	_, effects, refused := l.machine.Publish(l.now, sched.DatasetPublished{Dataset: l.datasets + 1, Namespace: namespace, Keys: value.Keys}, l.effects[:0])
	l.effects = effects
	if refused != nil {
		return refused
	}
	l.datasets++
	value.Hold = l.datasets
	l.note(&journal.DatasetPublished{Number: value.Hold, Namespace: namespace, Keys: value.Keys})
	l.carryOut()
	return nil
}

// dropValues ends the holds of values that were not accepted.
func (l *Loop) dropValues(values ...coord.Value) {
	for i := range values {
		if values[i].Hold != 0 {
			l.coordination.unheld = append(l.coordination.unheld, values[i].Hold)
		}
	}
	l.settleHolds()
}

// coordinate runs a call that does not wait.
func (l *Loop) coordinate(ctx context.Context, p schedapi.Place, run func(m *coord.Machine, namespace string) error) error {
	return l.do(ctx, func() error {
		if err := l.refuseIfDraining(); err != nil {
			return err
		}
		namespace, _, err := l.place(p)
		if err != nil {
			return err
		}
		err = run(l.coordination.machine, namespace)
		l.settleHolds()
		return err
	})
}

// Ask makes a call that may have to wait. Its client's lease does not end meanwhile.
func (l *Loop) Ask(ctx context.Context, p schedapi.Place, call coord.Call) (coord.Answer, error) {
	a := &asking{answered: make(chan coord.Effect, 1)}
	if err := l.do(ctx, func() error { return l.ask(p, call, a) }); err != nil {
		return coord.Answer{}, err
	}
	select {
	case effect := <-a.answered:
		if effect.Err != nil {
			return coord.Answer{}, effect.Err
		}
		return effect.Answer, nil
	case <-ctx.Done():
	case <-l.draining:
	}
	_ = l.call(context.WithoutCancel(ctx), func() { l.hangUp(a) }) // It fails only if the loop has stopped.
	if err := ctx.Err(); err != nil {
		return coord.Answer{}, err
	}
	return coord.Answer{}, l.refuseIfDraining()
}

func (l *Loop) ask(p schedapi.Place, call coord.Call, a *asking) error {
	if err := l.refuseIfDraining(); err != nil {
		return err
	}
	namespace, c, err := l.place(p)
	if err != nil {
		return err
	}
	put, puts := call.Ask.(coord.PutInQueue)
	if puts {
		if err := l.holdValue(namespace, &put.Value); err != nil {
			return err
		}
		call.Ask = put
	}
	l.coordination.tickets++
	call.Ticket, call.Client, call.Namespace = l.coordination.tickets, p.Client, namespace
	a.call, a.client = call, c
	l.coordination.asking[call.Ticket] = a
	if c != nil {
		c.asking++
	}
	effects, refused := l.coordination.machine.Ask(l.now, call, l.coordination.effects[:0])
	if refused != nil {
		l.forgetAsking(a)
		l.dropValues(put.Value)
		return refused
	}
	l.coordinated(effects)
	l.settleHolds()
	if c != nil && c.asking > 0 {
		l.keep(c)
	}
	return nil
}

// hangUp tells the machine that the caller of a call has gone.
func (l *Loop) hangUp(a *asking) {
	if l.coordination.asking[a.call.Ticket] != a {
		return
	}
	l.forgetAsking(a)
	l.coordinated(l.coordination.machine.HungUp(l.now, a.call.Ticket, l.coordination.effects[:0]))
	l.settleHolds()
}

func (l *Loop) forgetAsking(a *asking) {
	delete(l.coordination.asking, a.call.Ticket)
	if a.client != nil {
		a.client.asking--
	}
}

// Withdraw gives up a call that waits, or undoes one that was granted.
func (l *Loop) Withdraw(ctx context.Context, id ids.ClientID, request string) error {
	return l.coordinate(ctx, schedapi.Place{Client: id}, func(m *coord.Machine, _ string) error {
		l.coordinated(m.Withdraw(l.now, id, request, l.coordination.effects[:0]))
		return nil
	})
}

// Acknowledge forgets the answer to a call.
func (l *Loop) Acknowledge(ctx context.Context, id ids.ClientID, request string) error {
	return l.coordinate(ctx, schedapi.Place{Client: id}, func(m *coord.Machine, _ string) error {
		l.coordinated(m.Acknowledge(l.now, id, request, l.coordination.effects[:0]))
		return nil
	})
}

// ReleaseLocks gives locks back.
func (l *Loop) ReleaseLocks(ctx context.Context, id ids.ClientID, request string, names []string) error {
	return l.coordinate(ctx, schedapi.Place{Client: id}, func(m *coord.Machine, _ string) error {
		effects, refused := m.Release(l.now, id, request, names, l.coordination.effects[:0])
		return l.changed(effects, refused)
	})
}

// changed carries out the effects of a change that may have been refused.
func (l *Loop) changed(effects []coord.Effect, refused *coord.Error) error {
	l.coordinated(effects)
	if refused != nil {
		return refused
	}
	return nil
}

// Semaphore describes a semaphore.
func (l *Loop) Semaphore(ctx context.Context, p schedapi.Place, name string) (info coord.SemaphoreInfo, err error) {
	err = l.coordinate(ctx, p, func(m *coord.Machine, namespace string) error {
		info = m.Semaphore(namespace, name)
		return nil
	})
	return info, err
}

// CloseSemaphore takes a semaphore from its holders.
func (l *Loop) CloseSemaphore(ctx context.Context, p schedapi.Place, name string) (holders int, err error) {
	err = l.coordinate(ctx, p, func(m *coord.Machine, namespace string) error {
		n, effects := m.CloseSemaphore(l.now, namespace, name, l.coordination.effects[:0])
		holders = n
		return l.changed(effects, nil)
	})
	return holders, err
}

// SetVariable gives a variable a value.
func (l *Loop) SetVariable(ctx context.Context, p schedapi.Place, name string, value coord.Value) error {
	return l.coordinate(ctx, p, func(m *coord.Machine, namespace string) error {
		if err := l.holdValue(namespace, &value); err != nil {
			return err
		}
		effects, refused := m.SetVariable(l.now, namespace, name, value, l.coordination.effects[:0])
		if refused != nil {
			l.dropValues(value)
		}
		return l.changed(effects, refused)
	})
}

// DeleteVariable forgets a variable.
func (l *Loop) DeleteVariable(ctx context.Context, p schedapi.Place, name string) error {
	return l.coordinate(ctx, p, func(m *coord.Machine, namespace string) error {
		return l.changed(m.DeleteVariable(l.now, namespace, name, l.coordination.effects[:0]), nil)
	})
}

// SetEvent sets or clears an event.
func (l *Loop) SetEvent(ctx context.Context, p schedapi.Place, name string, set bool) error {
	return l.coordinate(ctx, p, func(m *coord.Machine, namespace string) error {
		if !set {
			return l.changed(m.ClearEvent(l.now, namespace, name, l.coordination.effects[:0]), nil)
		}
		effects, refused := m.SetEvent(l.now, namespace, name, l.coordination.effects[:0])
		return l.changed(effects, refused)
	})
}

// OpenQueue creates a queue, or joins it.
func (l *Loop) OpenQueue(ctx context.Context, p schedapi.Place, name string, maxSize uint32) error {
	return l.coordinate(ctx, p, func(m *coord.Machine, namespace string) error {
		effects, refused := m.OpenQueue(l.now, p.Client, namespace, name, maxSize, l.coordination.effects[:0])
		return l.changed(effects, refused)
	})
}

// Queue describes a queue.
func (l *Loop) Queue(ctx context.Context, p schedapi.Place, name string) (info coord.QueueInfo, err error) {
	err = l.coordinate(ctx, p, func(m *coord.Machine, namespace string) error {
		info = m.Queue(namespace, name)
		return nil
	})
	return info, err
}

// CloseQueue drops a queue with its values. With leave, only the client leaves it.
func (l *Loop) CloseQueue(ctx context.Context, p schedapi.Place, name string, leave bool) (dropped int, err error) {
	err = l.coordinate(ctx, p, func(m *coord.Machine, namespace string) error {
		var n int
		var effects []coord.Effect
		if leave {
			n, effects = m.LeaveQueue(l.now, p.Client, namespace, name, l.coordination.effects[:0])
		} else {
			n, effects = m.CloseQueue(l.now, namespace, name, l.coordination.effects[:0])
		}
		dropped = n
		return l.changed(effects, nil)
	})
	return dropped, err
}

// PublishToTopic appends messages to a topic.
func (l *Loop) PublishToTopic(ctx context.Context, p schedapi.Place, name string, values []coord.Value) (number uint64, err error) {
	err = l.coordinate(ctx, p, func(m *coord.Machine, namespace string) error {
		for i := range values {
			if err := l.holdValue(namespace, &values[i]); err != nil {
				l.dropValues(values...)
				return err
			}
		}
		last, effects, refused := m.Publish(l.now, namespace, name, values, l.coordination.effects[:0])
		if refused != nil {
			l.dropValues(values...)
		}
		number = last
		return l.changed(effects, refused)
	})
	return number, err
}

// Topics describes the topics of a namespace.
func (l *Loop) Topics(ctx context.Context, p schedapi.Place) (infos []coord.TopicInfo, err error) {
	err = l.coordinate(ctx, p, func(m *coord.Machine, namespace string) error {
		infos = m.Topics(namespace)
		return nil
	})
	return infos, err
}

// SetMetadata puts a tree into the metadata.
func (l *Loop) SetMetadata(ctx context.Context, p schedapi.Place, path []string, tree *coord.Tree) error {
	return l.coordinate(ctx, p, func(m *coord.Machine, namespace string) error {
		effects, refused := m.SetMetadata(l.now, namespace, path, tree, l.coordination.effects[:0])
		return l.changed(effects, refused)
	})
}

// Metadata returns a part of the metadata.
func (l *Loop) Metadata(ctx context.Context, p schedapi.Place, path []string) (tree coord.Tree, found bool, err error) {
	err = l.coordinate(ctx, p, func(m *coord.Machine, namespace string) error {
		tree, found = m.Metadata(namespace, path)
		return nil
	})
	return tree, found, err
}
