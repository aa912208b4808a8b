package copies_test

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/copies"
)

// TestScripts runs testdata/scripts/*. Each verb prints the effects, which a small owner carries
// out; after each verb all invariants are checked. Copies run until "arrive" or "fail". Run with
// -rewrite to accept new output.
//
//	worker id=1 [memory=100 used=10 supervised tasks=2 name=n1] | restart
//	object id=1 bytes=10 at=(1,2) [inline]
//	use object=1 | disuse object=1 | unhold object=1 | release object=1 | lost object=1 at=1
//	disconnect worker=1 | return worker=1 | idle worker=1 | lose worker=1 [left survivors=(2,3)]
//	stop worker=1 | drain workers=(1,2) [to=keep timeout=10s] | undo names=(n1) | drains
//	arrive copy=1 | fail copy=1 why=text | keep object=1 at=2 | report object=1 at=2
//	rebalance [dry workers=(1,2)] | end number=1 | moves
//	rescued object=1 at=2 | unrescued object=1 by=2 dead=1 | pass d=3s
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		t.Helper()
		o := newOwner()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			t.Helper()
			o.out.Reset()
			(&script{o: o, t: t, d: d}).run()
			o.settle()
			if err := o.m.Check(); err != nil {
				d.Fatalf(t, "%v", err)
			}
			return o.out.String()
		})
	})
}

// owner has tables, and carries out the effects.
type owner struct {
	m       *copies.Machine
	now     time.Time
	out     strings.Builder
	workers map[ids.WorkerID]*copies.Worker
	objects map[ids.TaskID]*object
	// copying are the tasks of copies that are under way. stopped are those of them that were
	// dropped in this step.
	copying map[ids.TaskID]copies.Effect
	stopped []ids.TaskID
	wakes   []copies.Effect
	// orders are all changes of orders.
	orders []copies.DrainOrderChanged
}

type object struct {
	copies.Object
	holders []ids.WorkerID // the newest first, and those that have answered that they keep it last
	used    bool
}

// restart gives a new machine, without workers, the orders of the one before.
func (o *owner) restart() {
	next := copies.New(ownerConfig(), o)
	for cursor, more := uint64(0), true; more; {
		cursor, more = o.m.Orders(cursor, func(row any) { next.LoadOrder(o.now, *row.(*copies.DrainOrderChanged)) })
	}
	o.m, o.wakes = next, nil
	clear(o.workers)
	clear(o.objects)
	clear(o.copying)
}

func showOrder(c *copies.DrainOrderChanged) string {
	if c.Gone {
		return c.Name + ": gone"
	}
	text := fmt.Sprintf("%s: %s of %s since %d", c.Name, c.Purpose, c.Worker, c.Since.Unix())
	if !c.Until.IsZero() {
		text += fmt.Sprintf(" until %d", c.Until.Unix())
	}
	if !c.Lost.IsZero() {
		text += fmt.Sprintf(", lost at %d", c.Lost.Unix())
	}
	return text
}

func ownerConfig() copies.Config {
	return copies.Config{RescueTimeout: 2 * time.Second, BytesPerSecond: 1e9}
}

func newOwner() *owner {
	o := &owner{now: time.Unix(0, 0), workers: map[ids.WorkerID]*copies.Worker{}, objects: map[ids.TaskID]*object{}, copying: map[ids.TaskID]copies.Effect{}}
	o.m = copies.New(ownerConfig(), o)
	return o
}

func (o *owner) Object(id ids.TaskID) (copies.Object, bool) {
	x, known := o.objects[id]
	if !known {
		return copies.Object{}, false
	}
	out := x.Object
	for _, e := range o.copying {
		if e.Object == id {
			out.Uses++
		}
	}
	out.Wanted = out.Held || out.Uses > 0
	return out, true
}

func (o *owner) Holders(id ids.TaskID, out []ids.WorkerID) []ids.WorkerID {
	if x := o.objects[id]; x != nil {
		out = append(out, x.holders...)
	}
	return out
}

func (o *owner) Key(id ids.TaskID) (key, namespace string) { return "k" + id.String(), "ns" }

func (o *owner) Used(id, _ ids.TaskID, _ bool) bool { return o.objects[id].used }

func (o *owner) Attempt(task ids.TaskID) (active bool, at ids.WorkerID) {
	e, active := o.copying[task]
	return active, e.Worker
}

func (o *owner) Worker(id ids.WorkerID) (copies.Worker, bool) {
	w := o.workers[id]
	if w == nil {
		return copies.Worker{}, false
	}
	out := *w
	for _, object := range o.Objects(id) {
		out.HeldBytes += o.objects[object].Bytes
		out.Objects++
	}
	out.Room = math.Inf(1)
	if w.MemoryBytes > 0 {
		out.Room = float64(w.MemoryBytes) - float64(w.ClaimedBytes) - float64(out.HeldBytes)
	}
	return out, true
}

func (o *owner) Workers() (all []copies.Worker) {
	for _, id := range slices.Sorted(maps.Keys(o.workers)) {
		w, _ := o.Worker(id)
		all = append(all, w)
	}
	return all
}

func (o *owner) Objects(id ids.WorkerID) (held []ids.TaskID) {
	for _, object := range slices.Sorted(maps.Keys(o.objects)) {
		if o.Holds(id, object) {
			held = append(held, object)
		}
	}
	return held
}

func (o *owner) Holds(worker ids.WorkerID, id ids.TaskID) bool {
	x := o.objects[id]
	return x != nil && slices.Contains(x.holders, worker)
}

func (o *owner) BytesPerMicro(_, to ids.WorkerID) float64 { return float64(to) * 1000 }

func (o *owner) tell(e copies.Event) { o.carryOut(o.m.Step(o.now, e, nil)) }

func (o *owner) settle() {
	for o.endCopies(); o.m.Pending(); o.endCopies() {
		o.tell(copies.Continued{})
	}
}

// endCopies ends the copies that were dropped. Until then they need their objects.
func (o *owner) endCopies() {
	for _, task := range o.stopped {
		delete(o.copying, task)
	}
	o.stopped = nil
}

func (o *owner) carryOut(effects []copies.Effect) {
	for _, e := range effects {
		switch e.Kind {
		case copies.EffectRescue:
			fmt.Fprintf(&o.out, "rescue %s of %s by %s\n", e.Object, e.Dead, e.Worker)
		case copies.EffectGiveUp:
			fmt.Fprintf(&o.out, "give up %s\n", e.Object)
			o.objects[e.Object].State = copies.ObjectAbsent
		case copies.EffectUnmap:
			fmt.Fprintf(&o.out, "%s unmaps %s\n", e.Worker, e.Dead)
		case copies.EffectCopy:
			task := ids.TaskID(1000 + e.Copy)
			fmt.Fprintf(&o.out, "copy %d: %s to %s (%s)\n", e.Copy, e.Object, e.Worker, e.Why)
			o.copying[task] = e
			o.tell(copies.CopyBegan{Copy: e.Copy, Task: task, Worker: e.Worker})
		case copies.EffectDropCopy:
			if c, active := o.copying[e.Object]; active {
				fmt.Fprintf(&o.out, "drop copy %d\n", c.Copy)
				o.stopped = append(o.stopped, e.Object)
			}
		case copies.EffectKeep:
			fmt.Fprintf(&o.out, "%s keeps %s\n", e.Worker, e.Object)
		case copies.EffectDrop:
			fmt.Fprintf(&o.out, "%s drops %s\n", e.Worker, e.Object)
			holders := o.objects[e.Object].holders
			keeper := holders[len(holders)-1]
			if o.part(e.Object, e.Worker); keeper == e.Worker {
				o.tell(copies.KeeperLost{Object: e.Object})
			}
		case copies.EffectState:
			fmt.Fprintf(&o.out, "%s is %s\n", e.Worker, e.State)
			o.workers[e.Worker].State = e.State
		case copies.EffectWorkerChanged:
			fmt.Fprintf(&o.out, "the drain of %s has changed\n", e.Worker)
		case copies.EffectRetract:
			fmt.Fprintf(&o.out, "%s gives tasks back\n", e.Worker)
		case copies.EffectLeave:
			fmt.Fprintf(&o.out, "%s may leave\n", e.Worker)
		case copies.EffectRetire:
			fmt.Fprintf(&o.out, "%s retires\n", e.Worker)
		case copies.EffectRestart:
			fmt.Fprintf(&o.out, "%s restarts\n", e.Worker)
		case copies.EffectOrder:
			fmt.Fprintf(&o.out, "order %s\n", showOrder(e.Order))
			o.orders = append(o.orders, *e.Order)
		case copies.EffectRebalanceEnded:
			fmt.Fprintf(&o.out, "the rebalance has ended\n")
		case copies.EffectContinue:
			o.tell(copies.Continued{})
		case copies.EffectWake:
			o.wakes = append(o.wakes, e)
		}
	}
}

// gain records that a worker holds an object, and reports whether that is new.
func (o *owner) gain(id ids.TaskID, worker ids.WorkerID) bool {
	if o.Holds(worker, id) {
		return false
	}
	o.objects[id].holders = slices.Insert(o.objects[id].holders, 0, worker)
	return true
}

func (o *owner) part(id ids.TaskID, worker ids.WorkerID) {
	x := o.objects[id]
	x.holders = slices.DeleteFunc(x.holders, func(w ids.WorkerID) bool { return w == worker })
	o.tell(copies.ObjectGone{Object: id, Worker: worker, Remains: len(x.holders) > 0 || x.Inline})
}

// pass lets time pass from one deadline to the next.
func (o *owner) pass(d time.Duration) {
	for end := o.now.Add(d); ; {
		due := -1
		for i, e := range o.wakes {
			if !e.At.After(end) && (due < 0 || e.At.Before(o.wakes[due].At)) {
				due = i
			}
		}
		if due < 0 {
			o.now = end
			return
		}
		e := o.wakes[due]
		o.wakes = slices.Delete(o.wakes, due, due+1)
		o.now = e.At
		o.tell(copies.TimePassed{Wake: e.Wake})
		o.settle()
	}
}

// lose removes a lost worker.
func (o *owner) lose(ev copies.WorkerLost) {
	effects := o.m.Step(o.now, ev, nil)
	rescued := map[ids.TaskID]bool{}
	for _, e := range effects {
		rescued[e.Object] = e.Kind == copies.EffectRescue
	}
	o.carryOut(effects)
	for _, id := range o.Objects(ev.Worker) {
		o.part(id, ev.Worker)
		switch x := o.objects[id]; {
		case rescued[id]:
			x.State = copies.ObjectRescuing
		case len(x.holders) > 0:
			o.tell(copies.KeeperLost{Object: id})
		default:
			x.State = copies.ObjectAbsent
		}
	}
	delete(o.workers, ev.Worker)
	o.tell(copies.WorkerRemoved{Worker: ev.Worker})
}

type script struct {
	o *owner
	t *testing.T
	d *datadriven.TestData
}

func (s *script) text(key string) (v string)   { s.d.MaybeScanArgs(s.t, key, &v); return v }
func (s *script) number(key string) (v uint64) { s.d.MaybeScanArgs(s.t, key, &v); return v }
func (s *script) worker() ids.WorkerID         { return ids.WorkerID(s.number("worker")) }
func (s *script) at() ids.WorkerID             { return ids.WorkerID(s.number("at")) }
func (s *script) object() ids.TaskID           { return ids.TaskID(s.number("object")) }

func (s *script) list(key string) []string {
	for _, arg := range s.d.CmdArgs {
		if arg.Key == key {
			return arg.Vals
		}
	}
	return nil
}

func (s *script) workers(key string) (list []ids.WorkerID) {
	for _, text := range s.list(key) {
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			s.d.Fatalf(s.t, "%v", err)
		}
		list = append(list, ids.WorkerID(n))
	}
	return list
}

func (s *script) duration(key string) time.Duration {
	text := s.text(key)
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		s.d.Fatalf(s.t, "%v", err)
	}
	return d
}

func (s *script) refused(err *copies.Error) {
	if err != nil {
		fmt.Fprintf(&s.o.out, "error %d of %s: %s\n", err.Kind, err.Object, err.Message)
	}
}

func (s *script) run() {
	o := s.o
	switch s.d.Cmd {
	case "worker":
		id := ids.WorkerID(s.number("id"))
		o.workers[id] = &copies.Worker{
			ID: id, Name: cmp.Or(s.text("name"), fmt.Sprintf("n%d", id)), State: copies.WorkerStateActive, Native: true, Supervised: s.d.HasArg("supervised"),
			MemoryBytes: s.number("memory"), ClaimedBytes: s.number("used"), Assigned: int(s.number("tasks")),
		}
		o.tell(copies.SessionOpened{Worker: id})
		o.tell(copies.InventoryRead{Worker: id})
		o.tell(copies.WorkerReturned{Worker: id})
	case "object":
		id := ids.TaskID(s.number("id"))
		x := &object{Object: copies.Object{State: copies.ObjectStored, Held: true, Inline: s.d.HasArg("inline"), Generation: 1, Bytes: s.number("bytes")}}
		o.objects[id] = x
		for _, at := range s.workers("at") {
			o.tell(copies.ObjectReported{Object: id, Worker: at, New: o.gain(id, at)})
		}
	case "use", "disuse":
		o.objects[s.object()].used = s.d.Cmd == "use"
	case "unhold": // a copy may still need it
		o.objects[s.object()].Held = false
	case "release":
		x := o.objects[s.object()]
		x.Held = false
		if x.State == copies.ObjectRescuing {
			o.tell(copies.RescueEnded{Object: s.object()})
		}
		x.State = copies.ObjectAbsent
		for _, at := range slices.Clone(x.holders) {
			o.part(s.object(), at)
		}
	case "lost":
		o.part(s.object(), s.at())
		o.tell(copies.KeeperLost{Object: s.object()})
	case "disconnect":
		o.workers[s.worker()].State = copies.WorkerStateDisconnected
		o.tell(copies.WorkersChanged{})
	case "return":
		o.workers[s.worker()].State = copies.WorkerStateActive
		o.tell(copies.SessionOpened{Worker: s.worker()})
		o.tell(copies.InventoryRead{Worker: s.worker()})
		o.tell(copies.WorkerReturned{Worker: s.worker()})
	case "restart":
		o.restart()
	case "idle":
		o.workers[s.worker()].Assigned = 0
		o.tell(copies.AttemptEnded{Worker: s.worker()})
	case "lose":
		o.lose(copies.WorkerLost{Worker: s.worker(), Left: s.d.HasArg("left"), Survivors: s.workers("survivors")})
	default:
		s.order()
	}
}

// order handles the verbs of drains, rebalances and copies.
func (s *script) order() {
	o := s.o
	switch s.d.Cmd {
	case "stop":
		o.tell(copies.WorkerDraining{Worker: s.worker()})
	case "drain":
		purposes := map[string]copies.DrainPurpose{"": copies.DrainKeep, "keep": copies.DrainKeep, "retire": copies.DrainRetire, "restart": copies.DrainRestart}
		effects, err := o.m.OrderDrain(o.now, copies.DrainOrdered{Workers: s.workers("workers"), Purpose: purposes[s.text("to")], Reason: "test", Timeout: s.duration("timeout")}, nil)
		s.refused(err)
		o.carryOut(effects)
	case "undo":
		effects, err := o.m.UndoDrain(o.now, copies.DrainUndone{Names: s.list("names")}, nil)
		s.refused(err)
		o.carryOut(effects)
	case "drains":
		for _, w := range o.Workers() {
			if d, drained := o.m.Drain(w.ID); drained {
				fmt.Fprintf(&o.out, "%s %s to %s: copied %d, remaining %d, staying %d\n", w.Name, w.State, d.Purpose, d.CopiedObjects, d.RemainingObjects, d.StayingObjects)
				for _, x := range d.Staying {
					fmt.Fprintf(&o.out, "  %s: %s\n", x.Key, x.Reason)
				}
			}
		}
	case "arrive", "fail":
		task := ids.TaskID(1000 + s.number("copy"))
		e := o.copying[task]
		delete(o.copying, task)
		o.tell(copies.CopyEnded{Task: task, Error: s.text("why")})
		if s.d.Cmd == "arrive" {
			o.tell(copies.ObjectReported{Object: e.Object, Worker: e.Worker, New: o.gain(e.Object, e.Worker)})
		}
	case "keep", "report":
		if x := o.objects[s.object()]; s.d.Cmd == "keep" && o.Holds(s.at(), s.object()) {
			x.holders = append(slices.DeleteFunc(x.holders, func(w ids.WorkerID) bool { return w == s.at() }), s.at())
		}
		o.tell(copies.ObjectReported{Object: s.object(), Worker: s.at(), New: o.gain(s.object(), s.at()), Kept: s.d.Cmd == "keep"})
	case "rebalance":
		info, effects, err := o.m.OrderRebalance(o.now, copies.RebalanceOrdered{Workers: s.workers("workers"), DryRun: s.d.HasArg("dry")}, nil)
		s.refused(err)
		fmt.Fprintf(&o.out, "number %d: %d objects, %d bytes\n", info.Number, info.PlannedObjects, info.PlannedBytes)
		o.carryOut(effects)
	case "end":
		o.tell(copies.RebalanceStopped{Rebalance: s.number("number")})
	case "moves":
		i := o.m.Rebalance()
		fmt.Fprintf(&o.out, "planned %d, moved %d, failed %d, done %t\n", i.PlannedObjects, i.MovedObjects, i.FailedObjects, i.Done)
		for _, f := range i.Failures {
			fmt.Fprintf(&o.out, "  %s: %s\n", f.Key, f.Reason)
		}
		for _, w := range i.Workers {
			fmt.Fprintf(&o.out, "  %s: %d bytes, then %d, planned %d\n", w.Name, w.InitialBytes, w.HeldBytes, w.PlannedBytes)
		}
	case "rescued":
		o.tell(copies.RescueEnded{Object: s.object()})
		o.objects[s.object()].State = copies.ObjectStored
		o.gain(s.object(), s.at())
		o.tell(copies.KeeperLost{Object: s.object()})
	case "unrescued":
		o.tell(copies.RescueFailed{Worker: ids.WorkerID(s.number("by")), Dead: ids.WorkerID(s.number("dead")), Object: s.object(), Generation: 1})
	case "pass":
		o.pass(s.duration("d"))
	default:
		s.d.Fatalf(s.t, "unknown verb %q", s.d.Cmd)
	}
}
