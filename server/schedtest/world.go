// Package schedtest is Test support: verbs for golden scripts about the scheduler machine, and a
// random world of clients, workers and unreliable messages that compares the machine with a naive
// model of each task's possible outcomes.
package schedtest

import (
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
)

// Source makes choices: a property test's generator or a fuzzer's bytes.
type Source interface {
	// Intn returns a number that is at least 0 and less than n.
	Intn(n int) int
}

// World drives one machine with random events.
type World struct {
	M      *sched.Machine
	source Source
	now    time.Time
	out    []sched.Effect

	workers map[ids.WorkerID]*fakeWorker
	// absent are workers that are lost and will come back with a new id.
	absent []*fakeWorker
	// lostObjects are the objects of lost workers. A survivor that has the worker's memory mapped
	// can copy them.
	lostObjects map[ids.WorkerID]map[ids.TaskID]sched.Replica
	nextWorker  ids.WorkerID
	clients     []ids.ClientID
	nextClient  ids.ClientID
	datasets    []uint64
	graphs      []ids.GraphID
	nextKey     int
	// tasks is the model, by id: each submitted task and the faults and orders that affected it.
	tasks map[ids.TaskID]*modelTask
	keys  []string
	byKey map[string]ids.TaskID
	// moved is Totals.Moved as of the last step.
	moved uint64
	// calm means that no new faults happen; the world drains.
	calm bool
	err  error
	// Trace lists all events and effects, for failure reports.
	Trace []string
}

// modelTask is the model's record of a task.
type modelTask struct {
	key     string
	spec    sched.TaskSpec
	op      sched.OpSpec
	inputs  []ids.TaskID
	fails   bool // every attempt fails
	cancels bool // it was the target of a cancel
	died    int  // deaths that may be blamed on it
	data    bool
	copies  bool // the machine made it, to copy its input
	attempt ids.Attempt
}

// fakeWorker is a worker that follows its orders as well as the faulty world allows.
type fakeWorker struct {
	id        ids.WorkerID
	name      string
	connected bool
	draining  bool
	notifies  bool
	slots     uint32
	objects   map[ids.TaskID]sched.Replica
	queue     []attempt
	inbox     []sched.Effect
	assigned  []sched.Assignment // the assignment for each effect in inbox; zero if it is not an EffectAssign
	outbox    []sched.Event
	// copies are the objects that it fetched and was not told to keep. dropped are those that it
	// lost by itself.
	copies, dropped map[sched.Replica]bool
	// maps are the dead workers whose memory it has mapped.
	maps map[ids.WorkerID]bool
}

type attempt struct {
	a       sched.Assignment
	started bool
	// blocked: it waits for other tasks, as far as its worker has reported.
	blocked bool
}

// NewWorld makes an empty world.
func NewWorld(source Source) *World {
	return &World{
		M: sched.New(sched.Config{InlineResultBytes: 8, InlineBudgetBytes: 64, MaxWorkerDeaths: 3, ChainBytes: 1}), source: source,
		now: time.Unix(1_700_000_000, 0), workers: make(map[ids.WorkerID]*fakeWorker), lostObjects: make(map[ids.WorkerID]map[ids.TaskID]sched.Replica), nextWorker: 1, nextClient: 1,
		tasks: make(map[ids.TaskID]*modelTask), byKey: make(map[string]ids.TaskID),
	}
}

func (w *World) chance(percent int) bool { return w.source.Intn(100) < percent }

func (w *World) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

func (w *World) note(format string, args ...any) {
	w.Trace = append(w.Trace, fmt.Sprintf(format, args...))
}

// Run makes n random steps, then lets all work end and all clients leave.
func (w *World) Run(n int) error {
	w.addWorker()
	w.openClient()
	for i := 0; i < n && w.err == nil; i++ {
		w.step()
	}
	if w.err == nil {
		w.drain()
	}
	if w.err == nil {
		w.leave()
	}
	return w.err
}

func (w *World) step() {
	w.now = w.now.Add(time.Duration(w.source.Intn(30)) * time.Millisecond)
	switch k := w.source.Intn(100); {
	case k < 14:
		w.submit()
	case k < 47:
		w.deliverOne()
	case k < 50:
		switch w.source.Intn(6) {
		case 0:
			w.stopRebalance()
		case 1, 2:
			w.measure(w.anyWorker())
		default:
			w.orderRebalance()
		}
	case k < 72:
		w.workOne()
	case k < 76:
		w.releaseSome()
	case k < 78:
		w.holdSome()
	case k < 80:
		w.cancelSome()
	case k < 82:
		w.retrySome()
	case k < 84:
		w.addWorker()
	case k < 86:
		w.loseWorker()
	case k < 89:
		w.disconnect()
	case k < 92:
		w.reconnect()
	case k < 93:
		switch w.source.Intn(4) {
		case 0:
			w.drainWorker()
		case 1:
			w.undoDrain()
		default:
			w.orderDrain()
		}
	case k < 94:
		w.openClient()
	case k < 95:
		w.closeClient()
	case k < 96:
		w.publish()
	case k < 97:
		w.dropObject()
	case k < 98:
		w.releaseGraph()
	default:
		w.timePasses()
	}
}

// feed steps the machine and hands on the effects.
func (w *World) feed(ev sched.Event) {
	w.note("%T %+v", ev, ev)
	w.after(w.M.Step(w.now, ev, w.out[:0]))
}

func (w *World) after(effects []sched.Effect) {
	w.out = effects
	if err := w.M.Check(); err != nil {
		w.fail("%w", err)
		return
	}
	if moved := w.M.Totals().Moved; moved != w.moved {
		w.moved = moved
		w.checkMoved(effects)
	}
	graphs := make(map[ids.GraphID]bool)
	for _, e := range effects {
		w.note("  %s", FormatEffect(w.M, e))
		if e.Kind == sched.EffectGraphChanged {
			if graphs[e.Graph] {
				w.fail("graph %s changed twice in a step", e.Graph)
			}
			graphs[e.Graph] = true
		}
		if e.Kind == sched.EffectTaskForgotten {
			if t := w.tasks[e.Task]; t != nil && w.byKey[t.key] == e.Task {
				delete(w.byKey, t.key)
			}
		}
		if e.Worker == 0 {
			continue
		}
		f := w.workers[e.Worker]
		switch e.Kind {
		case sched.EffectWorkerChanged, sched.EffectRetire, sched.EffectRestart:
			if info, _ := w.M.Worker(e.Worker); info.State == sched.WorkerStateDrained {
				w.checkDrained(f)
			} else if d := info.Drain; e.Kind != sched.EffectWorkerChanged && (d.Until.IsZero() || d.Until.After(w.now)) {
				w.fail("%s is to end, and is neither drained nor out of time", e.Worker)
			}
			if e.Kind == sched.EffectWorkerChanged {
				continue
			}
		case sched.EffectAssign, sched.EffectRetract, sched.EffectCancel, sched.EffectRelease, sched.EffectNotify, sched.EffectClientExpired,
			sched.EffectGraphChanged, sched.EffectGraphRemoved, sched.EffectFunctionUnused, sched.EffectRescue, sched.EffectUnmap,
			sched.EffectAccept, sched.EffectKeep, sched.EffectDrained, sched.EffectRebalanceEnded, sched.EffectTaskForgotten,
			sched.EffectFreeSlot, sched.EffectTaskEnded, sched.EffectGraphExpired, sched.EffectOrdersChanged:
		}
		if f == nil {
			w.fail("effect %s goes to a worker that is lost", FormatEffect(w.M, e))
			return
		}
		var a sched.Assignment
		if e.Kind == sched.EffectAssign {
			if !w.M.AssignmentOf(e.Task, &a) {
				continue // the task ended within the same step
			}
			w.checkAssignment(f, &a)
		}
		f.inbox = append(f.inbox, e)
		f.assigned = append(f.assigned, a)
	}
}

func (w *World) checkAssignment(f *fakeWorker, a *sched.Assignment) {
	t := w.tasks[a.Task]
	if t == nil && w.M.Op(a.Op).Name == "core.replicate" {
		info, _ := w.M.Task(a.Task)
		t = &modelTask{key: a.Key, op: info.Op, inputs: info.InputTasks, copies: true}
		w.tasks[a.Task] = t
	}
	if t == nil {
		w.fail("task %s was assigned and never submitted", a.Task)
		return
	}
	if a.Attempt <= t.attempt {
		w.fail("task %s: attempt %d after attempt %d", a.Task, a.Attempt, t.attempt)
	}
	t.attempt = a.Attempt
	if info, _ := w.M.Worker(f.id); f.draining || !f.connected || info.State != sched.WorkerStateActive {
		w.fail("task %s was assigned to %s, which is draining or disconnected", a.Task, f.id)
	}
	if len(a.Inputs) != len(t.inputs) {
		w.fail("task %s: assigned with %d inputs of %d", a.Task, len(a.Inputs), len(t.inputs))
		return
	}
	items := t.spec.Items
	for i, in := range a.Inputs {
		if in.Task != t.inputs[i] {
			w.fail("task %s: input %d is %s, not %s", a.Task, i, in.Task, t.inputs[i])
		}
		var want sched.ItemInput
		if len(items) > 0 && items[0].Input == uint32(i) {
			want, items = items[0], items[1:]
		}
		if in.Item != want.Item || in.Count != want.Count {
			w.fail("task %s: input %d is item %d of %d, not %d of %d", a.Task, i, in.Item, in.Count, want.Item, want.Count)
		}
		_, state, at := w.M.ReplicasOf(in.Task, nil)
		if in.Pending {
			// The attempt that makes this input must have been sent earlier, to this worker or to
			// the one in Holders.
			from := f.id
			if len(in.Holders) > 0 {
				if from = in.Holders[0]; !f.notifies || w.workers[from] == nil || !w.workers[from].notifies {
					w.fail("task %s was assigned to %s before an input exists at %s, and one of them does not notify", a.Task, f.id, from)
				}
			}
			if p, ok := w.M.Task(in.Task); !ok || p.Worker != from || p.Attempt != in.Generation || w.tasks[in.Task].attempt != in.Generation {
				w.fail("task %s was assigned to %s before its input %s exists, which is %s there", a.Task, f.id, in.Task, state)
			}
			continue
		}
		if state != sched.TaskSucceeded {
			w.fail("task %s was assigned although its input %s is %s", a.Task, in.Task, state)
		} else if len(in.Holders) == 0 && in.Inline == nil && !slices.Contains(at, f.id) {
			w.fail("task %s: nobody holds its input %s", a.Task, in.Task)
		}
		if upstream := w.workers[in.Upstream]; in.Upstream != 0 && (upstream == nil || upstream == f || len(in.Holders) == 0 || upstream.id%2 != f.id%2) {
			w.fail("task %s is to read %s at %s, with the upstream %s", a.Task, in.Task, f.id, in.Upstream)
		}
	}
}

// someItems makes every second input of every third task one item of a list. It draws no random
// number, so that the other choices of a seed stay.
func someItems(key, inputs int) (items []sched.ItemInput) {
	for i := key % 2; i < inputs && key%3 == 0; i += 2 {
		items = append(items, sched.ItemInput{Input: uint32(i), Item: ids.Item(1 + key%5), Count: uint32(key % 2 * 7)})
	}
	return items
}

func (w *World) submit() {
	if len(w.clients) == 0 {
		return
	}
	ev := sched.GraphSubmitted{
		Client:  w.clients[w.source.Intn(len(w.clients))],
		Ops:     []sched.OpSpec{{Kind: sched.OpNative, Name: "a"}, {Kind: sched.OpPythonPickle, Name: "f", Function: ids.FunctionHash{1}}, {Kind: sched.OpData}},
		Options: []sched.Options{{MaxRetries: 1, RetryBackoff: 5 * time.Millisecond}, {Priority: 3}, {Slots: 2}, {Resources: map[string]float64{"gpu": 1}}},
	}
	if w.chance(20) {
		ev.Client, ev.Retention = 0, 50*time.Millisecond
	} else if w.chance(30) && len(w.graphs) > 0 {
		ev.Graph = w.graphs[w.source.Intn(len(w.graphs))]
		if g, ok := w.M.Graph(ev.Graph); !ok || g.Client == 0 || !slices.Contains(w.clients, g.Client) {
			ev.Graph = 0
		} else {
			ev.Client = g.Client
		}
	}
	if w.chance(20) {
		ev.RequestID = fmt.Sprint("r", w.source.Intn(5))
	}
	n := 1 + w.source.Intn(8)
	var fresh []string
	for range n {
		w.nextKey++
		spec := sched.TaskSpec{Key: fmt.Sprint("k", w.nextKey), Hold: w.chance(50)}
		if w.chance(8) && len(w.keys) > 0 {
			old := w.tasks[w.byKey[w.keys[w.source.Intn(len(w.keys))]]]
			if old != nil {
				hold := spec.Hold
				spec, spec.Hold = old.spec, hold
				ev.Tasks = append(ev.Tasks, spec)
				continue
			}
		}
		for w.chance(55) && len(spec.Inputs) < 4 {
			if w.chance(70) && len(fresh) > 0 {
				spec.Inputs = append(spec.Inputs, fresh[w.source.Intn(len(fresh))])
			} else if len(w.keys) > 0 {
				key := w.keys[w.source.Intn(len(w.keys))]
				if w.byKey[key] != 0 || w.chance(3) {
					spec.Inputs = append(spec.Inputs, key)
				}
			} else {
				break
			}
		}
		spec.Items = someItems(w.nextKey, len(spec.Inputs))
		spec.Op = uint32(w.source.Intn(2))
		if len(spec.Inputs) == 0 && w.chance(10) {
			spec.Op = 2
		}
		if w.chance(25) {
			spec.Options = uint32(1 + w.source.Intn(4))
		}
		fresh = append(fresh, spec.Key)
		ev.Tasks = append(ev.Tasks, spec)
	}
	if w.chance(20) {
		slices.Reverse(ev.Tasks)
	}
	if w.chance(3) {
		ev.Tasks[0].Inputs = append(ev.Tasks[0].Inputs, ev.Tasks[len(ev.Tasks)-1].Key)
	}
	w.note("submit %+v", ev)
	before := w.M.Totals()
	result, effects, err := w.M.Submit(w.now, ev, w.out[:0])
	if err != nil {
		w.note("refused: %s", err.Message)
		if t := w.M.Totals(); t != before || len(effects) > 0 {
			w.fail("a refused submission changed something: %+v, then %+v, effects %v", before, t, effects)
		}
		w.after(effects)
		return
	}
	w.learn(&ev, &result)
	w.after(effects)
	for _, spec := range ev.Tasks {
		id, ok := w.M.Lookup("", spec.Key)
		if t := w.tasks[id]; ok && t != nil && t.data {
			w.scatter(id)
		}
	}
}

// learn adds a submission to the model.
func (w *World) learn(ev *sched.GraphSubmitted, result *sched.SubmitResult) {
	if !slices.Contains(w.graphs, result.Graph) {
		w.graphs = append(w.graphs, result.Graph)
	}
	if len(result.Tasks) != len(ev.Tasks) {
		return // a repeated request
	}
	fresh := make(map[ids.TaskID]bool)
	for i, spec := range ev.Tasks {
		id := result.Tasks[i]
		if w.tasks[id] != nil {
			continue
		}
		fresh[id] = true
		op := ev.Ops[spec.Op]
		w.tasks[id] = &modelTask{key: spec.Key, spec: spec, op: op, fails: op.Kind != sched.OpData && w.chance(6), data: op.Kind == sched.OpData}
		w.keys = append(w.keys, spec.Key)
		w.byKey[spec.Key] = id
	}
	for i, spec := range ev.Tasks {
		if t := w.tasks[result.Tasks[i]]; fresh[result.Tasks[i]] {
			for _, key := range spec.Inputs {
				t.inputs = append(t.inputs, w.byKey[key])
			}
		}
	}
}

// scatter puts the bytes of a DATA task on the first connected worker. Without one, the bytes never
// come.
func (w *World) scatter(id ids.TaskID) {
	for _, f := range w.sorted() {
		if f.connected {
			r := sched.Replica{Task: id, Generation: 1, Bytes: 10}
			f.objects[id] = r
			f.outbox = append(f.outbox, sched.ObjectsReported{Worker: f.id, Gained: []sched.Stored{{Replica: r}}})
			return
		}
	}
}

func (w *World) sorted() []*fakeWorker {
	var out []*fakeWorker
	for id := ids.WorkerID(1); id < w.nextWorker; id++ {
		if f := w.workers[id]; f != nil {
			out = append(out, f)
		}
	}
	return out
}

func (w *World) anyWorker() *fakeWorker {
	all := w.sorted()
	if len(all) == 0 {
		return nil
	}
	return all[w.source.Intn(len(all))]
}

// deliverOne delivers one message in either direction, perhaps twice, perhaps before an older one.
func (w *World) deliverOne() {
	f := w.anyWorker()
	if f == nil {
		return
	}
	if len(f.inbox) > 0 && f.connected && (len(f.outbox) == 0 || w.chance(50)) {
		e, a := f.inbox[0], f.assigned[0]
		f.inbox, f.assigned = f.inbox[1:], f.assigned[1:]
		w.receive(f, e, a)
		return
	}
	if len(f.outbox) == 0 || !f.connected {
		return
	}
	i := 0
	if !w.calm && w.chance(5) {
		// Reports about objects stay in order: scattered data always has the same generation, so
		// only the order tells new from old.
		if k := w.source.Intn(len(f.outbox)); isReport(f.outbox[k]) {
			i = k
		}
	}
	ev := f.outbox[i]
	if !w.calm && w.chance(5) {
		w.feed(clone(ev)) // delivered now and again later
		return
	}
	f.outbox = slices.Delete(f.outbox, i, i+1)
	w.feed(clone(ev))
}

func isReport(ev sched.Event) bool {
	_, ok := ev.(sched.TasksReported)
	return ok
}

// clone copies a message that may be delivered again, because the machine owns the slices of an
// event.
func clone(ev sched.Event) sched.Event {
	switch ev := ev.(type) {
	case sched.TasksReported:
		ev.Reports = slices.Clone(ev.Reports)
		return ev
	case sched.ObjectsReported:
		ev.Gained, ev.Lost = slices.Clone(ev.Gained), slices.Clone(ev.Lost)
		return ev
	case sched.RescueFailed:
		ev.Objects = slices.Clone(ev.Objects)
		return ev
	}
	return ev
}

// receive carries out an order at a worker.
func (w *World) receive(f *fakeWorker, e sched.Effect, a sched.Assignment) {
	switch e.Kind {
	case sched.EffectAssign:
		f.queue = append(f.queue, attempt{a: a})
	case sched.EffectRelease:
		if r, ok := f.objects[e.Task]; ok && r.Generation == e.Attempt {
			delete(f.objects, e.Task)
		}
	case sched.EffectCancel, sched.EffectRetract:
		i := slices.IndexFunc(f.queue, func(q attempt) bool { return q.a.Task == e.Task && q.a.Attempt == e.Attempt })
		outcome := sched.OutcomeCancelled
		switch {
		case e.Kind == sched.EffectRetract && (i < 0 || f.queue[i].started):
			outcome = sched.OutcomeRetractRefused
		case e.Kind == sched.EffectRetract:
			outcome = sched.OutcomeRetracted
		}
		if i >= 0 && outcome != sched.OutcomeRetractRefused {
			f.queue = slices.Delete(f.queue, i, i+1)
		}
		f.report(sched.Report{Task: e.Task, Attempt: e.Attempt, Outcome: outcome})
	case sched.EffectRescue:
		w.rescue(f, e)
	case sched.EffectUnmap:
		delete(f.maps, e.Dead)
	case sched.EffectKeep:
		r := sched.Replica{Task: e.Task, Generation: e.Attempt}
		delete(f.copies, r)
		if f.objects[e.Task].Generation == e.Attempt {
			f.outbox = append(f.outbox, sched.ObjectsReported{Worker: f.id, Gained: []sched.Stored{{Replica: f.objects[e.Task], Kept: true}}})
		} else {
			f.outbox = append(f.outbox, sched.ObjectsReported{Worker: f.id, Lost: []sched.Replica{r}})
		}
	case sched.EffectRetire, sched.EffectRestart:
		w.ends(f, e.Kind == sched.EffectRestart)
	case sched.EffectNotify, sched.EffectClientExpired, sched.EffectGraphChanged, sched.EffectGraphRemoved,
		sched.EffectFunctionUnused, sched.EffectAccept, sched.EffectDrained, sched.EffectRebalanceEnded,
		sched.EffectTaskForgotten, sched.EffectWorkerChanged, sched.EffectFreeSlot, sched.EffectTaskEnded, sched.EffectGraphExpired, sched.EffectOrdersChanged:
		// Most of these effects are for clients and the catalogue. A fake worker needs to do
		// nothing for EffectAccept, EffectDrained and EffectFreeSlot.
	}
}

// rescue copies an object of a dead worker if its memory is mapped and no fault happens.
func (w *World) rescue(f *fakeWorker, e sched.Effect) {
	r, held := w.lostObjects[e.Dead][e.Task]
	if own, ok := f.objects[e.Task]; ok && own.Generation == e.Attempt {
		r = own
	} else if !f.maps[e.Dead] || !held || r.Generation != e.Attempt || !w.calm && w.chance(20) {
		f.outbox = append(f.outbox, sched.RescueFailed{Worker: f.id, Dead: e.Dead, Objects: []sched.Replica{{Task: e.Task, Generation: e.Attempt}}})
		return
	}
	f.objects[e.Task] = r
	f.outbox = append(f.outbox, sched.ObjectsReported{Worker: f.id, Gained: []sched.Stored{{Replica: r}}})
}

// toCome reports whether a pending input may still be made, at this worker or at its maker.
func (w *World) toCome(f *fakeWorker, in *sched.AssignedInput) bool {
	if len(in.Holders) == 0 {
		return slices.ContainsFunc(f.queue, func(q attempt) bool { return q.a.Task == in.Task && q.a.Attempt == in.Generation })
	}
	h := w.workers[in.Holders[0]]
	switch {
	case !w.calm && w.chance(2):
		return false // the connection between the two broke
	case h == nil:
		// The scheduler recalls the attempt, unless the maker had ended the input before it was
		// lost. Then the worker sees that the connection broke.
		return w.chance(90)
	case h.objects[in.Task].Task != 0 && h.objects[in.Task].Generation == in.Generation:
		return false
	case slices.ContainsFunc(h.queue, func(q attempt) bool { return q.a.Task == in.Task && q.a.Attempt == in.Generation }):
		return true
	}
	// The maker does not know the attempt: it was not sent there yet, or it has ended. The maker
	// waits for some time.
	return w.chance(70)
}

func (f *fakeWorker) report(r sched.Report) {
	if n := len(f.outbox); n > 0 && n%3 != 0 {
		if last, ok := f.outbox[n-1].(sched.TasksReported); ok {
			last.Reports = append(slices.Clone(last.Reports), r)
			f.outbox[n-1] = last
			return
		}
	}
	f.outbox = append(f.outbox, sched.TasksReported{Worker: f.id, Reports: []sched.Report{r}})
}

// workOne lets a worker take one attempt one step further.
func (w *World) workOne() {
	f := w.anyWorker()
	if f == nil || len(f.queue) == 0 {
		return
	}
	q := &f.queue[0]
	if !q.started {
		if !w.fetch(f, q) {
			return
		}
		q.started = true
		if w.chance(60) {
			f.report(sched.Report{Task: q.a.Task, Attempt: q.a.Attempt, Outcome: sched.OutcomeStarted})
		}
		return
	}
	if q.blocked || w.chance(15) {
		// It waits for other tasks, or goes on. Another attempt may have its turn meanwhile.
		q.blocked = !q.blocked
		r := sched.Report{Task: q.a.Task, Attempt: q.a.Attempt, Outcome: sched.OutcomeGoesOn}
		if q.blocked {
			r.Outcome = sched.OutcomeBlocked
		}
		f.report(r)
		if k := w.source.Intn(len(f.queue)); q.blocked && k > 0 {
			f.queue[0], f.queue[k] = f.queue[k], f.queue[0]
		}
		return
	}
	a := q.a
	f.queue = f.queue[1:]
	r := sched.Report{Task: a.Task, Attempt: a.Attempt, Outcome: sched.OutcomeSucceeded, RunTime: time.Duration(w.source.Intn(20)) * time.Millisecond}
	t := w.tasks[a.Task]
	if t.op.Kind == sched.OpNative {
		r.RunTime /= 1000 // short enough for cross-worker pre-assignment
	}
	switch {
	case t.fails:
		r.Outcome, r.Err = sched.OutcomeFailed, &sched.TaskError{Reason: "BOOM", Message: "it always does"}
	case !w.calm && w.chance(5):
		r.Outcome = sched.OutcomeExecutorDied
		t.died++
	default:
		r.OutputBytes = uint64(w.source.Intn(1000))
		if w.chance(20) {
			r.Inline = []byte("1234")
		}
		f.objects[a.Task] = sched.Replica{Task: a.Task, Generation: a.Attempt, Bytes: r.OutputBytes}
	}
	f.report(r)
}

// fetch copies the inputs that the worker lacks. If that fails, it ends the attempt and returns
// false.
func (w *World) fetch(f *fakeWorker, q *attempt) bool {
	var missing []sched.Unreachable
	for _, in := range q.a.Inputs {
		if r, ok := f.objects[in.Task]; ok && r.Generation == in.Generation {
			continue
		}
		if in.Inline != nil {
			continue
		}
		if in.Pending && w.toCome(f, &in) {
			f.queue = append(f.queue[1:], *q)
			return false
		}
		if in.Pending && len(in.Holders) == 0 {
			// The attempt that should make it has ended without an object.
			f.report(sched.Report{Task: q.a.Task, Attempt: q.a.Attempt, Outcome: sched.OutcomeCancelled})
			f.queue = f.queue[1:]
			return false
		}
		u := sched.Unreachable{Task: in.Task, Generation: in.Generation}
		found := false
		for _, id := range in.Holders {
			h := w.workers[id]
			switch {
			case h == nil || !w.calm && w.chance(3):
				u.FailedAt = append(u.FailedAt, id)
				continue
			case in.Pending && h.objects[in.Task].Generation != in.Generation:
				// It may still be made.
				u.FailedAt = append(u.FailedAt, id)
				continue
			case h.objects[in.Task].Generation != in.Generation || h.objects[in.Task].Task == 0:
				u.MissingAt = append(u.MissingAt, id)
				continue
			}
			found = true
			f.objects[in.Task] = in.Replica
			f.copies[sched.Replica{Task: in.Task, Generation: in.Generation}] = true
			f.outbox = append(f.outbox, sched.ObjectsReported{Worker: f.id, Gained: []sched.Stored{{Replica: in.Replica}}})
			break
		}
		if !found {
			if len(in.Holders) == 0 {
				// The assignment said that this worker holds it.
				u.MissingAt = append(u.MissingAt, f.id)
			}
			missing = append(missing, u)
		}
	}
	if len(missing) == 0 {
		return true
	}
	f.report(sched.Report{Task: q.a.Task, Attempt: q.a.Attempt, Outcome: sched.OutcomeInputUnreachable, Unreachable: missing})
	f.queue = f.queue[1:]
	return false
}
