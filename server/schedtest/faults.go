package schedtest

import (
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/copies"
	"github.com/millrace/millrace/server/sched"
)

func (w *World) addWorker() {
	if len(w.workers) >= 5 {
		return
	}
	f := w.newWorker(fmt.Sprint("n", w.nextWorker))
	f.notifies, f.slots = w.chance(70), uint32(2+w.source.Intn(2))
	w.register(f)
}

// newWorker makes a worker that is connected and not registered.
func (w *World) newWorker(name string) *fakeWorker {
	f := &fakeWorker{
		id: w.nextWorker, name: name, connected: true, objects: make(map[ids.TaskID]sched.Replica), copies: make(map[sched.Replica]bool),
		dropped: make(map[sched.Replica]bool), maps: make(map[ids.WorkerID]bool),
	}
	w.nextWorker++
	w.workers[f.id] = f
	return f
}

func (w *World) register(f *fakeWorker) {
	ev := sched.WorkerRegistered{Worker: f.id, Name: f.name, Supervised: f.id%4 > 0, Host: fmt.Sprint("h", f.id%2), Slots: f.slots, MemoryBytes: 20_000 * uint64(1+f.id%3),
		Resources: map[string]float64{"gpu": 1}, Executors: []string{"native", "python"}, Notifies: f.notifies, PipelinedReads: f.id%3 > 0}
	var held []ids.TaskID
	for id := range f.objects {
		held = append(held, id)
	}
	slices.Sort(held)
	for _, id := range held {
		ev.Inventory = append(ev.Inventory, f.objects[id])
	}
	for _, q := range f.queue {
		ev.Running = append(ev.Running, sched.TaskRef{Task: q.a.Task, Attempt: q.a.Attempt})
	}
	w.feed(ev)
}

func (w *World) loseWorker() {
	if len(w.workers) < 2 {
		return
	}
	f := w.anyWorker()
	w.blame(f)
	delete(w.workers, f.id)
	ev := sched.WorkerLost{Worker: f.id, Cause: "killed by SIGKILL", Outside: w.chance(50), Gone: w.chance(70)}
	if !ev.Gone && w.chance(50) {
		// The worker was only cut off. It will come back with its objects.
		w.feed(ev)
		f.id, f.inbox, f.assigned, f.outbox = w.nextWorker, nil, nil, nil
		w.nextWorker++
		w.absent = append(w.absent, f)
		return
	}
	if w.chance(60) {
		for _, o := range w.sorted() {
			if w.chance(30) {
				continue
			}
			ev.Survivors = append(ev.Survivors, o.id)
			if w.chance(80) {
				o.maps[f.id] = true
			}
		}
		w.lostObjects[f.id] = f.objects
	}
	w.feed(ev)
}

// blame notes that any task that was assigned to a worker which is lost may be blamed for that.
func (w *World) blame(f *fakeWorker) {
	blamed := make(map[ids.TaskID]bool)
	for _, q := range f.queue {
		blamed[q.a.Task] = true
	}
	tasks, _ := w.M.Tasks(sched.TaskFilter{Worker: f.id}, 0, 1<<30)
	for _, t := range tasks {
		blamed[t.Task] = true
	}
	for id := range blamed {
		w.tasks[id].died++
	}
}

// ends ends the process of a worker as an operator ordered. For a restart, the next one of the same
// name begins.
func (w *World) ends(f *fakeWorker, again bool) {
	w.blame(f)
	delete(w.workers, f.id)
	w.feed(sched.WorkerLost{Worker: f.id, Cause: "left the cluster", Outside: true, Gone: true, Left: true})
	if !again {
		return
	}
	next := w.newWorker(f.name)
	next.notifies, next.slots = f.notifies, f.slots
	w.register(next)
	if info, _ := w.M.Worker(next.id); info.State != sched.WorkerStateActive {
		w.fail("%s was restarted, and is %s", next.name, info.State)
	}
}

// orderDrain orders the drain of one or two workers.
func (w *World) orderDrain() {
	ev := sched.DrainOrdered{Purpose: copies.DrainKeep + copies.DrainPurpose(w.source.Intn(3)), Reason: "test"}
	for range 1 + w.source.Intn(2) {
		if f := w.anyWorker(); f != nil && !slices.Contains(ev.Workers, f.id) {
			ev.Workers = append(ev.Workers, f.id)
		}
	}
	if w.chance(40) {
		ev.Timeout = time.Duration(1+w.source.Intn(100)) * time.Millisecond
	}
	if len(ev.Workers) == 0 || len(ev.Workers) == len(w.workers) {
		return
	}
	w.note("order %+v", ev)
	effects, err := w.M.OrderDrain(w.now, ev, w.out[:0])
	if err != nil {
		w.note("refused: %s", err.Message)
	}
	w.after(effects)
}

// undoDrain ends the order about one worker.
func (w *World) undoDrain() {
	if f := w.anyWorker(); f != nil {
		w.undo(f.name)
	}
}

func (w *World) undo(name string) {
	w.note("undo %s", name)
	effects, err := w.M.UndoDrain(w.now, sched.DrainUndone{Names: []string{name}}, w.out[:0])
	if err != nil {
		w.note("refused: %s", err.Message)
	}
	w.after(effects)
}

// measure lets a worker report its use of memory.
func (w *World) measure(f *fakeWorker) {
	if f == nil || !f.connected {
		return
	}
	ev := sched.WorkerMeasured{Worker: f.id}
	for _, r := range f.objects {
		ev.MemoryUsedBytes += r.Bytes
	}
	w.feed(ev)
}

// orderRebalance orders a rebalance of all workers or of some of them.
func (w *World) orderRebalance() {
	ev := sched.RebalanceOrdered{DryRun: w.chance(10)}
	if w.chance(30) {
		for range 2 + w.source.Intn(2) {
			if f := w.anyWorker(); f != nil {
				ev.Workers = append(ev.Workers, f.id)
			}
		}
	}
	w.rebalance(ev)
}

func (w *World) rebalance(ev sched.RebalanceOrdered) copies.RebalanceInfo {
	w.note("rebalance %+v", ev)
	info, effects, err := w.M.OrderRebalance(w.now, ev, w.out[:0])
	if err != nil {
		w.note("refused: %s", err.Message)
	}
	w.after(effects)
	return info
}

func (w *World) stopRebalance() {
	w.feed(sched.RebalanceStopped{Rebalance: w.M.Rebalance().Number})
}

// checkMoved checks that no object was dropped at its source before another worker kept it.
func (w *World) checkMoved(effects []sched.Effect) {
	for _, e := range effects {
		info, ok := w.M.Task(e.Task)
		if e.Kind != sched.EffectRelease || !ok || info.State != sched.TaskSucceeded || info.Attempt != e.Attempt {
			continue
		}
		if !slices.ContainsFunc(info.Replicas, func(id ids.WorkerID) bool {
			f, at := w.workers[id], sched.Replica{Task: e.Task, Generation: e.Attempt}
			return id != e.Worker && f.connected && (f.objects[e.Task].Generation == e.Attempt && !f.copies[at] || f.dropped[at])
		}) {
			w.fail("%s was moved away from %s, and no other worker keeps it: %v", info.Key, e.Worker, info.Replicas)
		}
	}
}

// evenOut rebalances until there is nothing to move.
func (w *World) evenOut() {
	for round := 0; w.err == nil; round++ {
		if round > 20 {
			w.fail("a rebalance still finds objects to move: %+v", w.M.Rebalance())
			return
		}
		for _, f := range w.sorted() {
			w.measure(f)
		}
		if w.rebalance(sched.RebalanceOrdered{DryRun: true}).PlannedObjects == 0 {
			return
		}
		w.rebalance(sched.RebalanceOrdered{})
		w.settle()
		if info := w.M.Rebalance(); !info.Done || info.MovedObjects == 0 || info.FailedObjects > 0 {
			w.fail("a rebalance without faults ended with %+v", info)
		}
	}
}

// checkDrained checks that a drained worker could end without a loss.
func (w *World) checkDrained(f *fakeWorker) {
	tasks, _ := w.M.Tasks(sched.TaskFilter{}, 0, 1<<30)
	for i := range tasks {
		t := &tasks[i]
		if t.Worker == f.id {
			w.fail("%s is drained, and has the task %s", f.name, t.Key)
		}
		if t.State != sched.TaskSucceeded || t.Inline || !slices.Contains(t.Replicas, f.id) {
			continue
		}
		if !slices.ContainsFunc(t.Replicas, func(id ids.WorkerID) bool {
			info, _ := w.M.Worker(id)
			return w.workers[id].connected && info.State == sched.WorkerStateActive
		}) {
			w.fail("%s is drained, and has the only copy of %s that is safe", f.name, t.Key)
		}
	}
}

func (w *World) disconnect() {
	f := w.anyWorker()
	if f == nil || !f.connected {
		return
	}
	f.connected = false
	// Messages under way are lost in both directions. The worker collects new ones until it is
	// back.
	f.inbox, f.assigned = nil, nil
	f.outbox = nil
	w.feed(sched.WorkerDisconnected{Worker: f.id})
}

func (w *World) reconnect() {
	if n := len(w.absent); n > 0 && w.chance(50) {
		f := w.absent[n-1]
		w.absent = w.absent[:n-1]
		w.workers[f.id] = f
		w.bringBack(f)
		return
	}
	for _, f := range w.sorted() {
		if !f.connected {
			w.bringBack(f)
			return
		}
	}
	// A new session may also replace an old one without a disconnect before.
	if f := w.anyWorker(); f != nil && w.chance(20) {
		f.inbox, f.assigned = nil, nil
		w.bringBack(f)
	}
}

func (w *World) bringBack(f *fakeWorker) {
	f.connected, f.draining = true, false
	if w.chance(50) {
		f.outbox = nil
	}
	w.register(f)
}

func (w *World) drainWorker() {
	if f := w.anyWorker(); f != nil && f.connected && len(w.workers) > 1 {
		f.draining = true
		w.feed(sched.WorkerDraining{Worker: f.id})
	}
}

func (w *World) openClient() {
	if len(w.clients) >= 4 {
		return
	}
	w.clients = append(w.clients, w.nextClient)
	w.feed(sched.ClientOpened{Client: w.nextClient, TTL: time.Hour})
	w.nextClient++
}

func (w *World) closeClient() {
	if len(w.clients) < 2 {
		return
	}
	i := w.source.Intn(len(w.clients))
	c := w.clients[i]
	w.clients = slices.Delete(w.clients, i, i+1)
	w.feed(sched.ClientClosed{Client: c})
}

// someTasks picks up to four tasks that are not forgotten.
func (w *World) someTasks() []ids.TaskID {
	var out []ids.TaskID
	for n := 1 + w.source.Intn(4); n > 0 && len(w.keys) > 0; n-- {
		if id := w.byKey[w.keys[w.source.Intn(len(w.keys))]]; id != 0 {
			out = append(out, id)
		}
	}
	return out
}

func (w *World) client() ids.ClientID { return w.clients[w.source.Intn(len(w.clients))] }

func (w *World) releaseSome() {
	w.feed(sched.TasksReleased{Client: w.client(), Tasks: w.someTasks()})
}

func (w *World) holdSome() {
	var keys []string
	for _, id := range w.someTasks() {
		keys = append(keys, w.tasks[id].key)
	}
	w.note("hold %v", keys)
	_, effects, _ := w.M.Hold(w.now, sched.TasksHeld{Client: w.client(), Keys: keys}, w.out[:0])
	w.after(effects)
}

func (w *World) cancelSome() {
	ev := sched.TasksCancelled{Tasks: w.someTasks(), Reason: "test"}
	if w.chance(70) {
		ev.Client = w.client()
		ev.Force = w.chance(20)
	}
	if w.chance(10) && len(w.graphs) > 0 {
		ev.Graphs = append(ev.Graphs, w.graphs[w.source.Intn(len(w.graphs))])
	}
	for _, id := range ev.Tasks {
		w.tasks[id].cancels = true
	}
	w.cancelsGraphs(ev.Graphs)
	w.note("cancel %+v", ev)
	_, effects, _ := w.M.Cancel(w.now, ev, w.out[:0])
	w.after(effects)
}

func (w *World) cancelsGraphs(graphs []ids.GraphID) {
	for _, g := range graphs {
		tasks, _ := w.M.Tasks(sched.TaskFilter{Graph: g}, 0, 1<<30)
		for _, t := range tasks {
			w.tasks[t.Task].cancels = true
		}
	}
}

func (w *World) retrySome() {
	ev := sched.TasksRetried{Tasks: w.someTasks()}
	w.note("retry %+v", ev)
	_, effects, _ := w.M.Retry(w.now, ev, w.out[:0])
	w.after(effects)
}

func (w *World) publish() {
	if len(w.datasets) > 2 {
		d := w.datasets[0]
		w.datasets = w.datasets[1:]
		w.feed(sched.DatasetUnpublished{Dataset: d})
		return
	}
	var keys []string
	for _, id := range w.someTasks() {
		keys = append(keys, w.tasks[id].key)
	}
	d := uint64(1 + w.source.Intn(5))
	w.note("publish %d %v", d, keys)
	_, effects, err := w.M.Publish(w.now, sched.DatasetPublished{Dataset: d, Keys: keys}, w.out[:0])
	w.after(effects)
	if err == nil && !slices.Contains(w.datasets, d) {
		w.datasets = append(w.datasets, d)
	}
}

// dropObject makes a worker lose one object by itself.
func (w *World) dropObject() {
	f := w.anyWorker()
	if f == nil || !f.connected || len(f.objects) == 0 {
		return
	}
	var held []ids.TaskID
	for id := range f.objects {
		held = append(held, id)
	}
	slices.Sort(held)
	r := f.objects[held[w.source.Intn(len(held))]]
	delete(f.objects, r.Task)
	f.dropped[sched.Replica{Task: r.Task, Generation: r.Generation}] = true
	f.outbox = append(f.outbox, sched.ObjectsReported{Worker: f.id, Lost: []sched.Replica{r}})
}

func (w *World) releaseGraph() {
	if len(w.graphs) == 0 {
		return
	}
	ev := sched.GraphReleased{Graph: w.graphs[w.source.Intn(len(w.graphs))], Cancel: w.chance(50)}
	if ev.Cancel {
		w.cancelsGraphs([]ids.GraphID{ev.Graph})
	}
	w.note("release graph %+v", ev)
	effects, _ := w.M.ReleaseGraph(w.now, ev, w.out[:0])
	w.after(effects)
}

func (w *World) timePasses() {
	if at, ok := w.M.NextDeadline(); ok && at.Before(w.now.Add(time.Minute)) {
		if at.After(w.now) {
			w.now = at
		}
		w.feed(sched.TimePassed{})
	}
}

// drain lets every message arrive and every attempt end, without new faults, and compares the
// outcomes with the model.
func (w *World) drain() {
	w.calm = true
	w.note("calm")
	for _, f := range w.sorted() {
		if !f.connected || f.draining {
			w.bringBack(f)
		}
	}
	for id := ids.WorkerID(1); id < w.nextWorker; id++ {
		w.undo(fmt.Sprint("n", id))
	}
	w.settle()
	if len(w.workers) == 0 {
		// All were ordered to retire, one after the other.
		w.addWorker()
		w.settle()
	}
	if info := w.M.Rebalance(); info.Number > 0 && !info.Done {
		w.fail("the rebalance does not end: %+v", info)
	}
	w.evenOut()
	tasks, _ := w.M.Tasks(sched.TaskFilter{}, 0, 1<<30)
	for i := range tasks {
		w.checkOutcome(&tasks[i])
		w.checkKept(&tasks[i])
	}
	for _, f := range w.sorted() {
		for id, r := range f.objects {
			rep, _, at := w.M.ReplicasOf(id, nil)
			if !slices.Contains(at, f.id) || rep.Generation != r.Generation {
				w.fail("worker %s leaks the object of %s (%s)", f.id, id, w.tasks[id].key)
			}
		}
	}
}

// checkKept checks that a worker keeps a result: others may drop their copies to make room.
func (w *World) checkKept(t *sched.TaskInfo) {
	if t.State != sched.TaskSucceeded || t.Inline {
		return
	}
	if !slices.ContainsFunc(t.Replicas, func(id ids.WorkerID) bool {
		return !w.workers[id].copies[sched.Replica{Task: t.Task, Generation: t.Attempt}]
	}) {
		w.fail("all of %v may drop %s (%s)", t.Replicas, t.Task, t.Key)
	}
}

// settle runs the world until no message, attempt or timer is left.
func (w *World) settle() {
	for round := 0; w.err == nil; round++ {
		if round > 100_000 {
			w.fail("the world does not come to rest")
			return
		}
		moved := false
		for _, f := range w.sorted() {
			if len(f.inbox) > 0 {
				e, a := f.inbox[0], f.assigned[0]
				f.inbox, f.assigned = f.inbox[1:], f.assigned[1:]
				w.receive(f, e, a)
				moved = true
			}
			if len(f.outbox) > 0 {
				ev := f.outbox[0]
				f.outbox = f.outbox[1:]
				w.feed(ev)
				moved = true
			}
			if len(f.queue) > 0 {
				q := &f.queue[0]
				if q.started || w.fetch(f, q) {
					q.started = true
					w.finishOne(f)
				}
				moved = true
			}
		}
		if moved {
			continue
		}
		at, ok := w.M.NextDeadline()
		if !ok || at.After(w.now.Add(10*time.Minute)) {
			return
		}
		if at.After(w.now) {
			w.now = at
		}
		w.feed(sched.TimePassed{})
	}
}

func (w *World) finishOne(f *fakeWorker) {
	a := f.queue[0].a
	f.queue = f.queue[1:]
	r := sched.Report{Task: a.Task, Attempt: a.Attempt, Outcome: sched.OutcomeSucceeded, OutputBytes: 8, RunTime: time.Millisecond}
	if w.tasks[a.Task].fails {
		r.Outcome, r.OutputBytes = sched.OutcomeFailed, 0
	} else {
		f.objects[a.Task] = sched.Replica{Task: a.Task, Generation: a.Attempt, Bytes: 8}
	}
	f.report(r)
}

// checkOutcome checks that the model explains the state of a task.
func (w *World) checkOutcome(info *sched.TaskInfo) {
	if info.Op.Name == "core.replicate" {
		w.fail("%s is left after the drains: %s", info.Key, info.State)
		return
	}
	fails, cancels, lost := w.ancestry(info.Task, make(map[ids.TaskID]bool))
	switch info.State {
	case sched.TaskSucceeded:
		if t := w.tasks[info.Task]; t.fails {
			w.fail("%s succeeded although every attempt fails", info.Key)
		}
	case sched.TaskFailed:
		if !fails && !lost {
			w.fail("%s failed for no reason: %+v", info.Key, info.Err)
		}
	case sched.TaskCancelled:
		if !cancels {
			w.fail("%s was cancelled by nobody: %+v", info.Key, info.Err)
		}
	case sched.TaskReleased:
		if info.Holders > 0 {
			w.fail("%s is held and RELEASED", info.Key)
		}
	case sched.TaskWaiting:
		if t := w.tasks[info.Task]; t.data {
			return // its bytes were dropped on the way
		}
		if w.waitsForData(info.Task) {
			return
		}
		w.fail("%s hangs in %s: %v", info.Key, info.State, w.M.History(info.Task))
	case sched.TaskReady, sched.TaskAssigned, sched.TaskRunning, sched.TaskRescuing:
		e, _ := w.M.Explain(w.now, info.Task)
		w.fail("%s hangs in %s: %s %s", info.Key, info.State, e.Status, e.Text)
	}
}

func (w *World) waitsForData(id ids.TaskID) bool {
	for _, in := range w.tasks[id].inputs {
		info, _ := w.M.Task(in)
		if info.State == sched.TaskWaiting && (w.tasks[in].data || w.waitsForData(in)) {
			return true
		}
	}
	return false
}

// ancestry collects the faults that may have affected a task, directly or through its inputs.
func (w *World) ancestry(id ids.TaskID, seen map[ids.TaskID]bool) (fails, cancels, lost bool) {
	if seen[id] {
		return false, false, false
	}
	seen[id] = true
	t := w.tasks[id]
	fails, cancels, lost = t.fails || t.died >= 3, t.cancels, t.data
	for _, in := range t.inputs {
		f, c, l := w.ancestry(in, seen)
		fails, cancels, lost = fails || f, cancels || c, lost || l
	}
	return fails, cancels, lost
}

// leave closes all clients, datasets and detached graphs, and checks that nothing is left.
func (w *World) leave() {
	w.note("everybody leaves")
	for _, d := range w.datasets {
		w.feed(sched.DatasetUnpublished{Dataset: d})
	}
	for _, c := range w.clients {
		w.feed(sched.ClientClosed{Client: c})
	}
	for _, g := range w.graphs {
		if info, ok := w.M.Graph(g); ok && info.Client == 0 {
			w.note("release graph %s", g)
			effects, _ := w.M.ReleaseGraph(w.now, sched.GraphReleased{Graph: g, Cancel: true}, w.out[:0])
			w.after(effects)
		}
	}
	w.settle()
	t := w.M.Totals()
	if t.Tasks != 0 || t.Graphs != 0 || t.Clients != 0 || t.InlineBytes != 0 || t.ReadyQueued != 0 {
		tasks, _ := w.M.Tasks(sched.TaskFilter{}, 0, 10)
		for i := range tasks {
			w.note("left: %+v %v", tasks[i], w.M.History(tasks[i].Task))
		}
		w.fail("something is left after everybody left: %+v", t)
	}
	for _, f := range w.sorted() {
		if len(f.objects) > 0 {
			w.fail("worker %s still holds %d objects after everybody left: %v", f.id, len(f.objects), f.objects)
		}
	}
}
