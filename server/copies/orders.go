package copies

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// DrainOrder is the durable row of an operator's order about a worker's name. It exists until the
// order is undone or fulfilled.
type DrainOrder struct {
	Name    string
	Purpose DrainPurpose
	Reason  string
	// Worker is the incarnation that had the name at that time.
	Worker ids.WorkerID
	// Since is the time of the order. Until is the time at which the process ends even if it is not
	// drained; zero: never. Lost is set for an order to retire, while no worker has the name.
	Since, Until, Lost time.Time
}

// DrainOrderChanged is an order that was put, in place of an earlier one of the name, or one that
// is Gone: then only its name counts.
type DrainOrderChanged struct {
	DrainOrder
	Gone bool
}

// putOrder reports an order that has changed, dropOrder removes one.
func (m *Machine) putOrder(name string) {
	m.emit(Effect{Kind: EffectOrder, Order: &DrainOrderChanged{DrainOrder: m.orderRow(name)}})
}

func (m *Machine) dropOrder(name string) {
	if m.drainOrders[name] != nil {
		delete(m.drainOrders, name)
		m.emit(Effect{Kind: EffectOrder, Order: &DrainOrderChanged{DrainOrder: DrainOrder{Name: name}, Gone: true}})
	}
}

func (m *Machine) orderRow(name string) DrainOrder {
	o := m.drainOrders[name]
	row := DrainOrder{Name: name, Purpose: o.purpose, Reason: o.reason, Worker: o.worker, Since: o.since, Until: o.until}
	if o.purpose == DrainRetire {
		row.Lost = o.lost
	}
	return row
}

// orderRows is the number of orders in a piece of Orders.
const orderRows = 64

// Orders calls put, with a *DrainOrderChanged, for a piece of all orders: those from the cursor on.
// That is 0 for the first piece and then what the call before has returned. It returns false after
// the last piece. Between two pieces the machine may go on: orders that change meanwhile may be in
// a piece or not.
func (m *Machine) Orders(cursor uint64, put func(row any)) (next uint64, more bool) {
	names := slices.Sorted(maps.Keys(m.drainOrders))
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(m.drainOrders[a].number, m.drainOrders[b].number) })
	some := 0
	for _, name := range names {
		number := m.drainOrders[name].number
		if number < cursor {
			continue
		}
		if some++; some > orderRows {
			return cursor, true
		}
		put(&DrainOrderChanged{DrainOrder: m.orderRow(name)})
		cursor = number + 1
	}
	return cursor, false
}

// LoadOrder keeps an order of an earlier start of the scheduler, or removes it. It holds for the
// worker of its name when that comes back. REQUIRES: no worker is known.
func (m *Machine) LoadOrder(now time.Time, c DrainOrderChanged) {
	if c.Gone {
		delete(m.drainOrders, c.Name)
		return
	}
	m.orderNumber++
	o := &drainOrder{number: m.orderNumber, purpose: c.Purpose, reason: c.Reason, worker: c.Worker, since: c.Since, until: c.Until, lost: c.Lost}
	if known := m.drainOrders[c.Name]; known != nil {
		o.number = known.number
	}
	if late := o.since.Sub(now); late > 0 { // The clock was set back since then.
		o.since = now
		if !o.until.IsZero() {
			o.until = o.until.Add(-late)
		}
	}
	if o.lost.IsZero() || o.lost.After(now) {
		o.lost = now
	}
	m.drainOrders[c.Name] = o
}
