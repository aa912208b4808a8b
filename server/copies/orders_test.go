package copies_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/copies"
)

// ordersOf returns the orders of a machine, as text.
func ordersOf(m *copies.Machine) (list []string) {
	for cursor, more := uint64(0), true; more; {
		cursor, more = m.Orders(cursor, func(row any) { list = append(list, showOrder(row.(*copies.DrainOrderChanged))) })
	}
	return list
}

// Any orders: a machine that has loaded all changes, or a snapshot taken piece by piece and the
// changes since its beginning, has the orders of the machine that went on.
func TestOrdersAreLoadedAsTheyWere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := newOwner()
		pick := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "") }
		next := ids.WorkerID(0)
		step := func() {
			id := ids.WorkerID(1 + pick(int(next)+1))
			switch what := pick(6); {
			case what == 0 || next < 20:
				for range 1 + pick(20) {
					next++
					o.workers[next] = &copies.Worker{ID: next, Name: fmt.Sprintf("n%d", pick(400)), State: copies.WorkerStateActive, Native: true, Supervised: true}
					o.tell(copies.WorkerReturned{Worker: next})
				}
			case what <= 3:
				var all []ids.WorkerID
				for id := range next {
					if o.workers[id] != nil && pick(2) == 0 {
						all = append(all, id)
					}
				}
				effects, _ := o.m.OrderDrain(o.now, copies.DrainOrdered{Workers: all, Purpose: copies.DrainKeep + copies.DrainPurpose(pick(3))}, nil)
				o.carryOut(effects)
			case what == 4 && o.workers[id] != nil:
				effects, _ := o.m.UndoDrain(o.now, copies.DrainUndone{Names: []string{o.workers[id].Name}}, nil)
				o.carryOut(effects)
			case o.workers[id] != nil:
				o.lose(copies.WorkerLost{Worker: id, Left: pick(2) == 0})
			}
			o.settle()
			o.out.Reset()
		}
		for range 20 {
			step()
		}
		from := len(o.orders)
		snapshot := copies.New(ownerConfig(), o)
		for cursor, more := uint64(0), true; more; step() {
			cursor, more = o.m.Orders(cursor, func(row any) { snapshot.LoadOrder(o.now, *row.(*copies.DrainOrderChanged)) })
		}
		whole := copies.New(ownerConfig(), o)
		for i, c := range o.orders {
			whole.LoadOrder(o.now, c)
			if i >= from {
				snapshot.LoadOrder(o.now, c)
			}
		}
		// An absent worker of an order to retire is lost from the restart on.
		o.restart()
		want := map[string]bool{}
		for _, text := range ordersOf(o.m) {
			want[text] = true
		}
		for name, m := range map[string]*copies.Machine{"the log": whole, "the snapshot": snapshot} {
			got := ordersOf(m)
			for _, text := range got {
				if !want[text] {
					t.Fatalf("%s has %s, which is not so", name, text)
				}
			}
			if len(got) != len(want) {
				t.Fatalf("%s has %d orders of %d", name, len(got), len(want))
			}
		}
	})
}

// The clock was set back by an hour while the scheduler was down: an order keeps its time limit.
func TestAnOrderOfTheFutureKeepsItsTimeLimit(t *testing.T) {
	o := newOwner()
	given := o.now.Add(time.Hour)
	order := copies.DrainOrder{Name: "n1", Purpose: copies.DrainRetire, Worker: 1, Since: given, Until: given.Add(time.Minute), Lost: given.Add(time.Second)}
	o.m.LoadOrder(o.now, copies.DrainOrderChanged{DrainOrder: order})
	want := order
	want.Since, want.Until, want.Lost = o.now, o.now.Add(time.Minute), o.now
	o.m.Orders(0, func(row any) {
		if got := row.(*copies.DrainOrderChanged).DrainOrder; got != want {
			t.Errorf("the order is %+v, not %+v", got, want)
		}
	})
}
