package sched

import (
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/copies"
)

// This machine owns that of copies (server/copies): it tells it facts, carries out its effects, and
// lets it read its tables (copytables.go).

// tell steps the machine of copies.
func (m *Machine) tell(ev copies.Event) { m.carryOut(m.copier.Step(m.now, ev, nil)) }

// workerChanged makes the step end with one EffectWorkerChanged for the worker.
func (m *Machine) workerChanged(id ids.WorkerID) {
	if !slices.Contains(m.changedWorkers, id) {
		m.changedWorkers = append(m.changedWorkers, id)
	}
}

func (m *Machine) flushWorkers() {
	for _, id := range m.changedWorkers {
		if m.workerOf(id) != nil {
			m.emit(Effect{Kind: EffectWorkerChanged, Worker: id})
		}
	}
	m.changedWorkers = m.changedWorkers[:0]
}

// replicaGone tells that a worker holds an object no more, after the tables have changed.
func (m *Machine) replicaGone(id ids.TaskID, w *worker, remains bool) {
	if m.copier.Watching() {
		m.tell(copies.ObjectGone{Object: id, Worker: w.id, Remains: remains})
	}
}

// drainOrdered begins the drains that an operator orders, all or none.
func (m *Machine) drainOrdered(ev DrainOrdered) *Error {
	effects, err := m.copier.OrderDrain(m.now, copies.DrainOrdered(ev), nil)
	m.carryOut(effects)
	return refusal(err)
}

// drainUndone ends drains that operators ordered, all or none.
func (m *Machine) drainUndone(ev DrainUndone) *Error {
	effects, err := m.copier.UndoDrain(m.now, copies.DrainUndone(ev), nil)
	m.carryOut(effects)
	return refusal(err)
}

// ChangedOrders returns the orders of operators to drain workers that the last step has changed. It
// must not be changed.
func (m *Machine) ChangedOrders() []copies.DrainOrderChanged { return m.changedOrders }

// Orders and LoadOrder are those of the machine of copies.
func (m *Machine) Orders(cursor uint64, put func(row any)) (next uint64, more bool) {
	return m.copier.Orders(cursor, put)
}

// LoadOrder is that of the machine of copies.
func (m *Machine) LoadOrder(now time.Time, c copies.DrainOrderChanged) { m.copier.LoadOrder(now, c) }

// Ordered is that of the machine of copies.
func (m *Machine) Ordered(worker ids.WorkerID, name string) (copies.DrainInfo, bool) {
	return m.copier.Ordered(worker, name)
}

// rebalanceOrdered plans a rebalance, and begins it unless it is a dry run.
func (m *Machine) rebalanceOrdered(ev RebalanceOrdered) (copies.RebalanceInfo, *Error) {
	info, effects, err := m.copier.OrderRebalance(m.now, copies.RebalanceOrdered(ev), nil)
	m.carryOut(effects)
	return info, refusal(err)
}

// Rebalance returns the rebalance in progress, or the last one. Its number is 0 if there was none.
func (m *Machine) Rebalance() copies.RebalanceInfo { return m.copier.Rebalance() }

// refusal returns the error of a request that the machine of copies refuses, or nil.
func refusal(err *copies.Error) *Error {
	if err == nil {
		return nil
	}
	e := &Error{Object: err.Object, Message: err.Message}
	switch err.Kind {
	case copies.ErrUnknownWorker:
		e.Kind = ErrUnknownWorker
	case copies.ErrWorkerLeaving:
		e.Kind = ErrWorkerLeaving
	case copies.ErrNotSupervised:
		e.Kind = ErrNotSupervised
	case copies.ErrRebalanceRunning:
		e.Kind = ErrRebalanceRunning
	case copies.ErrWorkerNotActive:
		e.Kind = ErrWorkerNotActive
	case copies.ErrOneWorker:
		e.Kind = ErrInvalidField
	}
	return e
}
