package loop

import (
	"cmp"
	"context"
	"slices"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/coord"
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
	// changes are those of durable rows that are not recorded yet, answers those that were not
	// given yet. settleHolds works them off, too.
	changes []coord.Change
	answers []answered
	// recorded is the last record of changes, published the last one of messages of topics.
	recorded, published uint64
}

// answered is the answer to a call.
type answered struct {
	coord.Effect
	asking *asking
	// record must be durable before the caller is told. If optional, a disk that fails does not
	// matter: nothing has changed.
	record   uint64
	optional bool
}

// asking is a call that waits.
type asking struct {
	call     coord.Call
	client   *client // nil: a call without a lease
	answered chan answered
}

// newCoordination returns a machine that numbers grants after the given number, which is above
// those of an earlier scheduler.
func newCoordination(grants uint64) coordination {
	return coordination{machine: coord.New(coord.Config{Grants: grants}), asking: map[uint64]*asking{}}
}

// loadCoordinated loads recorded changes. The holds of values are rows of their own.
func (l *Loop) loadCoordinated(r *coord.Coordinated) {
	for _, c := range r.Changes {
		l.coordination.machine.Load(c)
		row, is := c.Row.(coord.ValueRow)
		if !is {
			continue
		}
		l.datasets = max(l.datasets, row.Value.Hold)
		if c.Gone {
			delete(l.restarting.values, row.Value.Hold)
		} else {
			l.restarting.values[row.Value.Hold] = struct{}{}
		}
	}
}

// restoreCoordination builds the state of the changes that were replayed.
func (l *Loop) restoreCoordination(first uint64) {
	m := l.coordination.machine
	l.coordinated(m.Loaded(l.now, first, first, nil))
	for _, id := range m.Clients() {
		if l.clients.get(id) == nil { // Its end was recorded, and not what followed from it.
			l.coordinated(m.ClientGone(l.now, id, nil))
		}
	}
	l.settleHolds()
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
		case coord.EffectChanged:
			l.coordination.changes = append(l.coordination.changes, effect.Changes...)
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
	l.coordination.answers = append(l.coordination.answers, answered{Effect: *effect, asking: a})
}

// settleHolds tells the scheduler machine who holds results now, records what has changed, and
// gives the answers. It must not be called while the effects of that machine are carried out.
func (l *Loop) settleHolds() {
	for len(l.coordination.held) > 0 {
		held := l.coordination.held[0]
		l.coordination.held = l.coordination.held[1:]
		_, _ = l.hold(held) // It fails only if the client has gone.
		l.coordination.recorded = l.restarting.recorded
	}
	if len(l.coordination.changes) > 0 {
		l.note(&coord.Coordinated{Changes: l.coordination.changes})
		l.coordination.recorded = l.restarting.recorded
		if slices.ContainsFunc(l.coordination.changes, func(c coord.Change) bool { _, is := c.Row.(coord.MessageRow); return is && !c.Gone }) {
			l.coordination.published = l.restarting.recorded
		}
		l.coordination.changes = nil
	}
	for i := range l.coordination.answers {
		l.giveAnswer(&l.coordination.answers[i])
	}
	clear(l.coordination.answers) // They refer to values.
	l.coordination.answers = l.coordination.answers[:0]
	for len(l.coordination.unheld) > 0 {
		hold := l.coordination.unheld[0]
		l.coordination.unheld = l.coordination.unheld[1:]
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
	tasks, effects, refused := l.machine.Publish(l.now, sched.DatasetPublished{Dataset: l.datasets + 1, Namespace: namespace, Keys: value.Keys}, l.effects[:0])
	l.effects = effects
	if refused != nil {
		return refused
	}
	l.datasets++
	value.Hold, value.Tasks = l.datasets, tasks
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

// demand says what a call about coordination demands of the journal.
type demand uint8

const (
	// puts: the call is refused if its changes cannot be durable.
	puts demand = iota
	// ends: the call ends something, or reads what may not be durable. It waits for the disk, but
	// goes on without it.
	ends
)

// coordinate runs a call that does not wait.
func (l *Loop) coordinate(ctx context.Context, p schedapi.Place, demand demand, run func(m *coord.Machine, namespace string) error) error {
	return l.do(ctx, func() error {
		refused := l.refuseIfDraining()
		if demand == puts {
			refused = l.refuseNew()
		}
		if refused != nil {
			return refused
		}
		namespace, _, err := l.place(p)
		if err != nil {
			return err
		}
		err = run(l.coordination.machine, namespace)
		l.settleHolds()
		switch demand {
		case puts:
			l.restarting.awaited = l.coordination.recorded
		case ends:
			l.restarting.wished = l.coordination.recorded
		}
		return err
	})
}

// Ask makes a call that may have to wait. Its client's lease does not end meanwhile.
func (l *Loop) Ask(ctx context.Context, p schedapi.Place, call coord.Call) (coord.Answer, error) {
	a := &asking{answered: make(chan answered, 1)}
	if err := l.do(ctx, func() error { return l.ask(p, call, a) }); err != nil {
		return coord.Answer{}, err
	}
	select {
	case answer := <-a.answered:
		if answer.Err != nil {
			return coord.Answer{}, answer.Err
		}
		if err := l.durable(ctx, answer.record); err != nil && (!answer.optional || ctx.Err() != nil) {
			// The caller is told that it has nothing. A value that was put stays, and its answer,
			// too, so that a repeated call does not put it again.
			if _, put := call.Ask.(coord.PutInQueue); call.ID != "" && !put {
				l.settle(func() {
					l.coordinated(l.coordination.machine.Withdraw(l.now, p.Client, call.ID, l.coordination.effects[:0]))
					l.settleHolds()
				})
			}
			return coord.Answer{}, err
		}
		return answer.Answer, nil
	case <-ctx.Done():
	case <-l.draining:
	}
	l.settle(func() { l.hangUp(a) })
	if err := ctx.Err(); err != nil {
		return coord.Answer{}, err
	}
	return coord.Answer{}, l.refuseIfDraining()
}

// giveAnswer tells the caller the answer to a call. The changes of the call must be durable before
// he knows. A reader may be told what is not durable only if nothing can be: the numbers of
// messages that are lost are given to others.
func (l *Loop) giveAnswer(answer *answered) {
	switch answer.asking.call.Ask.(type) {
	case coord.Acquire, coord.PutInQueue, coord.TakeFromQueue:
		if answer.Answer.Met {
			answer.record = l.coordination.recorded
		}
	case coord.ReadTopic:
		answer.record = l.coordination.published
	case coord.ReadVariable, coord.AwaitEvent:
		answer.record, answer.optional = l.coordination.recorded, true
	}
	answer.asking.answered <- *answer
}

func (l *Loop) ask(p schedapi.Place, call coord.Call, a *asking) error {
	refused := l.refuseIfDraining()
	switch call.Ask.(type) {
	case coord.Acquire, coord.PutInQueue, coord.TakeFromQueue:
		refused = l.refuseNew()
	}
	if refused != nil {
		return refused
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
	effects, refusal := l.coordination.machine.Ask(l.now, call, l.coordination.effects[:0])
	if refusal != nil {
		l.forgetAsking(a)
		l.dropValues(put.Value)
		return refusal
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
	return l.coordinate(ctx, schedapi.Place{Client: id}, ends, func(m *coord.Machine, _ string) error {
		l.coordinated(m.Withdraw(l.now, id, request, l.coordination.effects[:0]))
		return nil
	})
}

// Acknowledge forgets the answer to a call.
func (l *Loop) Acknowledge(ctx context.Context, id ids.ClientID, request string) error {
	return l.coordinate(ctx, schedapi.Place{Client: id}, ends, func(m *coord.Machine, _ string) error {
		l.coordinated(m.Acknowledge(l.now, id, request, l.coordination.effects[:0]))
		return nil
	})
}

// ReleaseLocks gives locks back.
func (l *Loop) ReleaseLocks(ctx context.Context, id ids.ClientID, request string, names []string) error {
	return l.coordinate(ctx, schedapi.Place{Client: id}, ends, func(m *coord.Machine, _ string) error {
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
	err = l.coordinate(ctx, p, ends, func(m *coord.Machine, namespace string) error {
		info = m.Semaphore(namespace, name)
		return nil
	})
	return info, err
}

// CloseSemaphore takes a semaphore from its holders.
func (l *Loop) CloseSemaphore(ctx context.Context, p schedapi.Place, name string) (holders int, err error) {
	err = l.coordinate(ctx, p, ends, func(m *coord.Machine, namespace string) error {
		n, effects := m.CloseSemaphore(l.now, namespace, name, l.coordination.effects[:0])
		holders = n
		return l.changed(effects, nil)
	})
	return holders, err
}

// SetVariable gives a variable a value.
func (l *Loop) SetVariable(ctx context.Context, p schedapi.Place, name string, value coord.Value) error {
	return l.coordinate(ctx, p, puts, func(m *coord.Machine, namespace string) error {
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
	return l.coordinate(ctx, p, ends, func(m *coord.Machine, namespace string) error {
		return l.changed(m.DeleteVariable(l.now, namespace, name, l.coordination.effects[:0]), nil)
	})
}

// SetEvent sets or clears an event.
func (l *Loop) SetEvent(ctx context.Context, p schedapi.Place, name string, set bool) error {
	return l.coordinate(ctx, p, puts, func(m *coord.Machine, namespace string) error {
		if !set {
			return l.changed(m.ClearEvent(l.now, namespace, name, l.coordination.effects[:0]), nil)
		}
		effects, refused := m.SetEvent(l.now, namespace, name, l.coordination.effects[:0])
		return l.changed(effects, refused)
	})
}

// OpenQueue creates a queue, or joins it.
func (l *Loop) OpenQueue(ctx context.Context, p schedapi.Place, name string, maxSize uint32) error {
	return l.coordinate(ctx, p, puts, func(m *coord.Machine, namespace string) error {
		effects, refused := m.OpenQueue(l.now, p.Client, namespace, name, maxSize, l.coordination.effects[:0])
		return l.changed(effects, refused)
	})
}

// Queue describes a queue.
func (l *Loop) Queue(ctx context.Context, p schedapi.Place, name string) (info coord.QueueInfo, err error) {
	err = l.coordinate(ctx, p, ends, func(m *coord.Machine, namespace string) error {
		info = m.Queue(namespace, name)
		return nil
	})
	return info, err
}

// CloseQueue drops a queue with its values. With leave, only the client leaves it.
func (l *Loop) CloseQueue(ctx context.Context, p schedapi.Place, name string, leave bool) (dropped int, err error) {
	err = l.coordinate(ctx, p, ends, func(m *coord.Machine, namespace string) error {
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
	err = l.coordinate(ctx, p, puts, func(m *coord.Machine, namespace string) error {
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
	err = l.coordinate(ctx, p, ends, func(m *coord.Machine, namespace string) error {
		infos = m.Topics(namespace)
		return nil
	})
	return infos, err
}

// SetMetadata puts a tree into the metadata.
func (l *Loop) SetMetadata(ctx context.Context, p schedapi.Place, path []string, tree *coord.Tree) error {
	return l.coordinate(ctx, p, puts, func(m *coord.Machine, namespace string) error {
		effects, refused := m.SetMetadata(l.now, namespace, path, tree, l.coordination.effects[:0])
		return l.changed(effects, refused)
	})
}

// Metadata returns a part of the metadata.
func (l *Loop) Metadata(ctx context.Context, p schedapi.Place, path []string) (tree coord.Tree, found bool, err error) {
	err = l.coordinate(ctx, p, ends, func(m *coord.Machine, namespace string) error {
		tree, found = m.Metadata(namespace, path)
		return nil
	})
	return tree, found, err
}
