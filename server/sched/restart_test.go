package sched_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedtest"
)

// restartWorld is a machine with simple workers, and the facts that a journal would have.
type restartWorld struct {
	t       *rapid.T
	machine *sched.Machine
	now     time.Time
	records []recorded
	// request means that the next steps are requests, whose facts are durable before the answer.
	requested bool
	shot      *shot
	clients   []ids.ClientID
	workers   []*restartWorker
	graphs    []ids.GraphID
	keys      int
	datasets  []uint64
	published uint64
	restarts  uint64
	runs      map[ids.TaskID]int // successful runs of each task
}

// recorded are the facts of a step. durable means that they are those of a request.
type recorded struct {
	rows    []sched.Row
	durable bool
}

// shot is a table that is taken in parts, between steps.
type shot struct {
	rows   []sched.Row
	cursor uint64
	// from is the number of records when it began.
	from int
}

// load compares the machine sometimes with one that is loaded from all facts, or from a table that
// was taken in parts and the facts since the first of them.
func (w *restartWorld) load() {
	since := func(from int) (rows []sched.Row) {
		for _, r := range w.records[from:] {
			rows = append(rows, r.rows...)
		}
		return rows
	}
	compare := func(what string, rows []sched.Row) {
		if err := schedtest.CompareLoaded(w.machine, w.config(), w.now, rows); err != nil {
			w.t.Fatalf("loaded from %s: %v", what, err)
		}
	}
	switch choice := rapid.IntRange(0, 9).Draw(w.t, "load"); {
	case choice == 0:
		compare("all facts", since(0))
	case choice < 5 && w.shot == nil:
		w.shot = &shot{from: len(w.records)}
		for _, id := range w.clients {
			w.shot.rows = append(w.shot.rows, &sched.ClientOpened{Client: id, Namespace: "default", TTL: time.Hour})
		}
	case choice < 5:
		next, more := w.machine.Rows(w.shot.cursor, func(r sched.Row) { w.shot.rows = append(w.shot.rows, r) })
		if w.shot.cursor = next; !more {
			compare("a table and the facts since then", append(w.shot.rows, since(w.shot.from)...))
			w.shot = nil
		}
	}
}

type restartWorker struct {
	id      ids.WorkerID
	objects map[ids.TaskID]ids.Attempt
	running map[sched.TaskRef]bool
}

func (w *restartWorld) config() sched.Config { return sched.Config{Facts: true, DataGrace: -1} }

// step gives the machine an event and lets the workers obey.
func (w *restartWorld) step(event sched.Event) {
	w.now = w.now.Add(time.Millisecond)
	w.obey(w.machine.Step(w.now, event, nil))
}

// asked makes the facts of a request durable.
func (w *restartWorld) asked(request func()) {
	w.requested = true
	request()
	w.requested = false
}

func (w *restartWorld) record(rows ...sched.Row) {
	if len(rows) > 0 {
		w.records = append(w.records, recorded{slices.Clone(rows), w.requested})
	}
}

func (w *restartWorld) worker(id ids.WorkerID) *restartWorker {
	for _, x := range w.workers {
		if x.id == id {
			return x
		}
	}
	return nil
}

func (w *restartWorld) obey(effects []sched.Effect) {
	var keeps []sched.Effect
	w.record(w.machine.Facts()...)
	for _, e := range effects {
		x := w.worker(e.Worker)
		switch e.Kind {
		case sched.EffectAssign:
			x.running[sched.TaskRef{Task: e.Task, Attempt: e.Attempt}] = true
		case sched.EffectCancel, sched.EffectRetract:
			ref := sched.TaskRef{Task: e.Task, Attempt: e.Attempt}
			if e.Kind == sched.EffectRetract && x.running[ref] {
				keeps = append(keeps, e)
			}
			delete(x.running, ref)
		case sched.EffectRelease:
			if x != nil && x.objects[e.Task] == e.Attempt {
				delete(x.objects, e.Task)
			}
		case sched.EffectKeep:
			keeps = append(keeps, e)
		default:
		}
	}
	for _, e := range keeps {
		if e.Kind == sched.EffectRetract {
			w.step(sched.TasksReported{Worker: e.Worker, Reports: []sched.Report{{Task: e.Task, Attempt: e.Attempt, Outcome: sched.OutcomeRetracted}}})
		} else if x := w.worker(e.Worker); x != nil && x.objects[e.Task] == e.Attempt {
			w.step(sched.ObjectsReported{Worker: e.Worker, Gained: []sched.Stored{{Replica: sched.Replica{Task: e.Task, Generation: e.Attempt, Bytes: 8}, Kept: true}}})
		}
	}
}

func (w *restartWorld) submit() {
	t := w.t
	ev := sched.GraphSubmitted{Namespace: "default", Ops: []sched.OpSpec{{Kind: sched.OpNative, Name: "op"}, {Kind: sched.OpData, Name: "data"}}, Retention: time.Hour}
	if len(w.clients) > 0 && rapid.Bool().Draw(t, "of a client") {
		ev.Client = rapid.SampledFrom(w.clients).Draw(t, "client")
	}
	if rapid.Bool().Draw(t, "repeatable") {
		ev.RequestID = fmt.Sprint("r", w.keys)
	}
	first := w.keys
	for range rapid.IntRange(1, 8).Draw(t, "tasks") {
		spec := sched.TaskSpec{Key: fmt.Sprint("k", w.keys), Hold: rapid.Bool().Draw(t, "hold")}
		needs := func(key string) {
			if rapid.IntRange(0, 3).Draw(t, "item") == 0 {
				spec.Items = append(spec.Items, sched.ItemInput{Input: uint32(len(spec.Inputs)), Item: ids.Item(rapid.IntRange(1, 3).Draw(t, "number")), Count: 3})
			}
			spec.Inputs = append(spec.Inputs, key)
		}
		if rapid.IntRange(0, 3).Draw(t, "data") == 0 {
			spec.Op = 1
		} else {
			for k := first; k < w.keys; k++ {
				if rapid.IntRange(0, 3).Draw(t, "input") == 0 {
					needs(fmt.Sprint("k", k))
				}
			}
			if first > 0 && rapid.IntRange(0, 3).Draw(t, "older") == 0 {
				key := fmt.Sprint("k", rapid.IntRange(0, first-1).Draw(t, "input"))
				if _, ok := w.machine.Lookup("default", key); ok {
					needs(key)
				}
			}
		}
		ev.Tasks = append(ev.Tasks, spec)
		w.keys++
	}
	w.now = w.now.Add(time.Millisecond)
	result, effects, err := w.machine.Submit(w.now, ev, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.graphs = append(w.graphs, result.Graph)
	w.obey(effects)
}

// known lists the tasks that the machine knows, with their keys.
func known(m *sched.Machine) map[ids.TaskID]string {
	found := map[ids.TaskID]string{}
	for after, more := ids.TaskID(0), true; more; more = after != 0 {
		var some []sched.TaskInfo
		some, after = m.Tasks(sched.TaskFilter{}, after, 100)
		for _, task := range some {
			found[task.Task] = fmt.Sprint(task.Key, " of ", task.Graph, " holders ", task.Holders)
		}
	}
	return found
}

// unwritten lists the scattered data whose bytes nobody has written.
func (w *restartWorld) unwritten() (data []ids.TaskID) {
	for _, id := range slices.Sorted(maps.Keys(known(w.machine))) {
		if info, _ := w.machine.Task(id); info.Op.Kind == sched.OpData && info.State == sched.TaskWaiting {
			data = append(data, id)
		}
	}
	return data
}

// write lets a client write scattered data to a worker.
func (w *restartWorld) write(x *restartWorker, task ids.TaskID) {
	stored := sched.Stored{Replica: sched.Replica{Task: task, Generation: 1, Bytes: 8}, Written: true}
	if rapid.Bool().Draw(w.t, "inline") {
		stored.Inline = []byte("12345678")
	}
	x.objects[task] = 1
	w.step(sched.ObjectsReported{Worker: x.id, Gained: []sched.Stored{stored}})
}

// publish publishes a task as a dataset, or ends one.
func (w *restartWorld) publish() {
	tasks := known(w.machine)
	if n := len(w.datasets); n > 0 && rapid.Bool().Draw(w.t, "unpublish") {
		w.step(sched.DatasetUnpublished{Dataset: w.datasets[n-1]})
		w.datasets = w.datasets[:n-1]
		return
	}
	if len(tasks) == 0 {
		return
	}
	info, _ := w.machine.Task(rapid.SampledFrom(slices.Sorted(maps.Keys(tasks))).Draw(w.t, "task"))
	w.published++
	_, effects, err := w.machine.Publish(w.now, sched.DatasetPublished{Dataset: w.published, Namespace: "default", Keys: []string{info.Key}}, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	w.datasets = append(w.datasets, w.published)
	w.obey(effects)
}

// inputEnded reports whether an input of a task has ended without an object.
func (w *restartWorld) inputEnded(info *sched.TaskInfo) bool {
	return slices.ContainsFunc(info.InputTasks, func(id ids.TaskID) bool {
		input, ok := w.machine.Task(id)
		return !ok || input.State > sched.TaskSucceeded
	})
}

// end ends one attempt whose inputs exist, if there is one.
func (w *restartWorld) end(x *restartWorker) {
	var refs []sched.TaskRef
	for ref := range x.running {
		info, ok := w.machine.Task(ref.Task)
		if ok && (info.MissingInputs == 0 || w.inputEnded(&info)) {
			refs = append(refs, ref)
		}
	}
	slices.SortFunc(refs, func(a, b sched.TaskRef) int { return int(int64(a.Task) - int64(b.Task)) })
	if len(refs) == 0 {
		return
	}
	ref := refs[rapid.IntRange(0, len(refs)-1).Draw(w.t, "attempt")]
	delete(x.running, ref)
	report := sched.Report{Task: ref.Task, Attempt: ref.Attempt, Outcome: sched.OutcomeSucceeded, OutputBytes: 8}
	if info, _ := w.machine.Task(ref.Task); w.inputEnded(&info) {
		report.Outcome = sched.OutcomeCancelled // The worker drops an attempt whose input will not come.
	} else if rapid.IntRange(0, 9).Draw(w.t, "fails") == 0 {
		report.Outcome, report.Err = sched.OutcomeFailed, &sched.TaskError{Reason: "R", Message: "m"}
	} else {
		x.objects[ref.Task] = ref.Attempt
		w.runs[ref.Task]++
	}
	w.step(sched.TasksReported{Worker: x.id, Reports: []sched.Report{report}})
}

func (w *restartWorld) register(x *restartWorker) {
	ev := sched.WorkerRegistered{Worker: x.id, Name: x.id.String(), Incarnation: x.id.String(), Host: "h", Slots: 2, Executors: []string{"native"}}
	for _, task := range slices.Sorted(maps.Keys(x.objects)) {
		ev.Inventory = append(ev.Inventory, sched.Replica{Task: task, Generation: x.objects[task], Bytes: 8})
	}
	for ref := range x.running {
		ev.Running = append(ev.Running, ref)
	}
	slices.SortFunc(ev.Running, func(a, b sched.TaskRef) int { return int(int64(a.Task) - int64(b.Task)) })
	w.step(ev)
}

// restart loads the facts into a new machine, except for the last ones that no request made, which
// are lost. All
// workers come back to it.
func (w *restartWorld) restart() {
	t := w.t
	before := known(w.machine)
	lost := 0
	if rapid.Bool().Draw(t, "lose ends") {
		for n := len(w.records); lost < n; lost++ {
			if w.records[n-1-lost].durable {
				break
			}
		}
	}
	w.records = w.records[:len(w.records)-lost]
	held := map[ids.TaskID]bool{}
	for _, x := range w.workers {
		for task, generation := range x.objects {
			if info, ok := w.machine.Task(task); ok && info.State == sched.TaskSucceeded && info.Attempt == generation {
				held[task] = true
			}
		}
	}
	w.machine = sched.New(w.config())
	w.machine.SetTime(w.now)
	for _, r := range w.records {
		for _, row := range r.rows {
			w.machine.Load(row)
		}
	}
	w.shot = nil
	w.restarts++
	w.asked(func() { w.step(sched.Loaded{Restarts: w.restarts}) })
	if after := known(w.machine); lost == 0 && !maps.Equal(before, after) {
		t.Fatalf("before the restart the machine knew\n%v\nand after it\n%v", before, after)
	}
	for _, x := range w.workers {
		w.register(x)
		if rapid.Bool().Draw(t, "early end") {
			w.end(x)
		}
	}
	w.step(sched.RestartEnded{})
	for task := range held {
		if info, ok := w.machine.Task(task); ok && info.State != sched.TaskSucceeded && info.State != sched.TaskReleased {
			t.Fatalf("%s was held by a worker, and is %s after a restart", task, info.State)
		}
	}
}

// A machine that is brought back from facts knows the same tasks with the same holders as before,
// finds all objects that workers hold, and ends all tasks. Some of them are scattered data, some
// need items of their inputs, and some are held by datasets.
func TestAMachineComesBackFromItsFacts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &restartWorld{t: t, now: time.Unix(1000, 0), runs: map[ids.TaskID]int{}}
		w.machine = sched.New(w.config())
		for i := range 2 {
			x := &restartWorker{id: ids.WorkerID(i + 1), objects: map[ids.TaskID]ids.Attempt{}, running: map[sched.TaskRef]bool{}}
			w.workers = append(w.workers, x)
			w.register(x)
		}
		opened := 0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			w.load()
			switch rapid.SampledFrom([]string{"open", "submit", "submit", "end", "end", "end", "end", "release", "hold", "cancel", "retry", "graph", "close", "lose", "restart", "write", "write", "publish"}).Draw(t, "step") {
			case "write":
				if data := w.unwritten(); len(data) > 0 {
					w.write(rapid.SampledFrom(w.workers).Draw(t, "worker"), rapid.SampledFrom(data).Draw(t, "data"))
				}
			case "publish":
				w.asked(w.publish)
			case "open":
				ev := sched.ClientOpened{Client: ids.ClientID(opened + 1), Namespace: "default", TTL: time.Hour}
				w.asked(func() {
					w.record(&ev)
					w.step(ev)
				})
				w.clients = append(w.clients, ev.Client)
				opened++
			case "submit":
				w.asked(w.submit)
			case "end":
				w.end(rapid.SampledFrom(w.workers).Draw(t, "worker"))
			case "release", "hold", "retry", "cancel":
				w.asked(w.request)
			case "graph":
				if len(w.graphs) > 0 {
					ev := sched.GraphReleased{Graph: rapid.SampledFrom(w.graphs).Draw(t, "graph"), Cancel: rapid.Bool().Draw(t, "cancel")}
					effects, _ := w.machine.ReleaseGraph(w.now, ev, nil) // A graph that runs is not released without cancel.
					w.asked(func() { w.obey(effects) })
				}
			case "close":
				if n := len(w.clients); n > 0 {
					ev := sched.ClientClosed{Client: w.clients[n-1]}
					w.clients = w.clients[:n-1]
					w.asked(func() {
						w.record(&ev)
						w.step(ev)
					})
				}
			case "lose":
				x := rapid.SampledFrom(w.workers).Draw(t, "worker")
				clear(x.objects)
				clear(x.running)
				w.step(sched.WorkerLost{Worker: x.id, Cause: "c", Outside: true})
				w.register(x)
			case "restart":
				w.restart()
			}
		}
		w.restart()
		for {
			before := w.now
			for _, x := range w.workers {
				w.end(x)
			}
			for _, task := range w.unwritten() {
				w.write(w.workers[0], task)
			}
			if w.now.Equal(before) {
				break
			}
		}
		for id, what := range known(w.machine) {
			if info, _ := w.machine.Task(id); info.State < sched.TaskSucceeded {
				var inputs []string
				for _, in := range info.InputTasks {
					other, _ := w.machine.Task(in)
					inputs = append(inputs, fmt.Sprintf("%s %s in attempt %d", in, other.State, other.Attempt))
				}
				t.Fatalf("%s (%s) does not end: it is %s in attempt %d at %s, and misses %d of %v\n%v",
					id, what, info.State, info.Attempt, info.Worker, info.MissingInputs, inputs, w.machine.History(id))
			}
		}
	})
}

// request makes a request of a client about a task.
func (w *restartWorld) request() {
	tasks := slices.Sorted(maps.Keys(known(w.machine)))
	if len(tasks) == 0 || len(w.clients) == 0 {
		return
	}
	client := rapid.SampledFrom(w.clients).Draw(w.t, "client")
	some := []ids.TaskID{rapid.SampledFrom(tasks).Draw(w.t, "task")}
	var effects []sched.Effect
	switch rapid.IntRange(0, 3).Draw(w.t, "request") {
	case 0:
		effects = w.machine.Step(w.now, sched.TasksReleased{Client: client, Tasks: some}, nil)
	case 1:
		effects = w.machine.Step(w.now, sched.TasksHeld{Client: client, Tasks: some}, nil)
	case 2:
		effects = w.machine.Step(w.now, sched.TasksCancelled{Client: client, Tasks: some, Force: true}, nil)
	default:
		effects = w.machine.Step(w.now, sched.TasksRetried{Tasks: some}, nil)
	}
	w.obey(effects)
}

// Scattered bytes are here after a restart, and the task that needed them has ended: they are
// released, and that task, which still waits for its worker, misses them.
func TestAnInputIsReleasedBeforeItsDependentIsBack(t *testing.T) {
	now := time.Now()
	m := sched.New(sched.Config{Facts: true})
	m.SetTime(now)
	for _, row := range []sched.Row{
		&sched.ClientOpened{Client: 1, Namespace: "default", TTL: time.Hour},
		&sched.GraphPut{Graph: 1, Client: 1, Namespace: "default", CreatedAt: now},
		&sched.TasksPut{
			Graph: 1, Ops: []sched.OpSpec{{Kind: sched.OpData, Name: "data"}, {Kind: sched.OpNative, Name: "op"}},
			Tasks:  []sched.TaskRow{{Task: 1, Key: "a", Position: 1}, {Task: 2, Key: "b", Op: 1, Inputs: 1, Position: 2}},
			Inputs: []sched.InputRow{{Task: 1}},
		},
		&sched.HoldsPut{Holder: sched.Holder{Kind: sched.HolderClient, Number: 1}, Tasks: []ids.TaskID{2}},
		&sched.DataPut{Task: 1, Bytes: 1, Inline: []byte("x")},
		&sched.TasksEnded{State: sched.TaskSucceeded, Tasks: []sched.TaskRef{{Task: 1, Attempt: 1}, {Task: 2, Attempt: 1}}},
	} {
		m.Load(row)
	}
	m.Step(now, sched.Loaded{Restarts: 1}, nil)
	if err := m.Check(); err != nil {
		t.Error(err)
	}
	m.Step(now, sched.RestartEnded{}, nil)
	if err := m.Check(); err != nil {
		t.Error(err)
	}
}

// The clock was set back by an hour while the scheduler was down: a graph that has ended is kept
// for its time from the restart on, and not for an hour more.
func TestAGraphThatEndedInTheFutureIsKeptForItsTime(t *testing.T) {
	now := time.Now()
	m := sched.New(sched.Config{Facts: true})
	m.SetTime(now)
	for _, row := range []sched.Row{
		&sched.GraphPut{Graph: 1, Namespace: "default", Retention: time.Minute, CreatedAt: now.Add(time.Hour)},
		&sched.TasksPut{Graph: 1, Ops: []sched.OpSpec{{Kind: sched.OpData, Name: "data"}}, Tasks: []sched.TaskRow{{Task: 1, Key: "a", Position: 1}}},
		&sched.HoldsPut{Holder: sched.Holder{Kind: sched.HolderGraph, Number: 1}, Tasks: []ids.TaskID{1}},
		&sched.DataPut{Task: 1, Bytes: 1, Inline: []byte("x")},
		&sched.TasksEnded{State: sched.TaskSucceeded, Tasks: []sched.TaskRef{{Task: 1, Attempt: 1}}},
		&sched.GraphEnded{Graph: 1, At: now.Add(time.Hour)},
	} {
		m.Load(row)
	}
	m.Step(now, sched.Loaded{Restarts: 1}, nil)
	m.Step(now, sched.RestartEnded{}, nil)
	m.Step(now.Add(59*time.Second), sched.TimePassed{}, nil)
	if _, known := m.Graph(1); !known {
		t.Error("the graph is gone before its time is over")
	}
	m.Step(now.Add(61*time.Second), sched.TimePassed{}, nil)
	if _, known := m.Graph(1); known {
		t.Error("the graph is kept when its time is over")
	}
}

// A snapshot is taken while scattered data is released, because only a task that has ended needs
// it. That task must run again, and the scheduler is killed: the next one knows that the bytes were
// there, and does not wait for ever for a client that brings them.
func TestReleasedDataIsKnownToHaveBeenThere(t *testing.T) {
	now := time.Now()
	restart := func(rows []sched.Row) *sched.Machine {
		m := sched.New(sched.Config{Facts: true})
		m.SetTime(now)
		for _, row := range rows {
			m.Load(row)
		}
		m.Step(now, sched.Loaded{Restarts: 1}, nil)
		return m
	}
	client := &sched.ClientOpened{Client: 1, Namespace: "default", TTL: time.Hour}
	m := restart([]sched.Row{
		client,
		&sched.GraphPut{Graph: 1, Client: 1, Namespace: "default", CreatedAt: now},
		&sched.TasksPut{
			Graph: 1, Ops: []sched.OpSpec{{Kind: sched.OpData, Name: "data"}, {Kind: sched.OpNative, Name: "op"}},
			Tasks:  []sched.TaskRow{{Task: 1, Key: "a", Position: 1}, {Task: 2, Key: "b", Op: 1, Inputs: 1, Position: 2}},
			Inputs: []sched.InputRow{{Task: 1}},
		},
		&sched.HoldsPut{Holder: sched.Holder{Kind: sched.HolderClient, Number: 1}, Tasks: []ids.TaskID{2}},
		&sched.TasksEnded{State: sched.TaskSucceeded, Tasks: []sched.TaskRef{{Task: 1, Attempt: 1}, {Task: 2, Attempt: 1}}},
	})
	rows := []sched.Row{client}
	for cursor, more := uint64(0), true; more; {
		cursor, more = m.Rows(cursor, func(r sched.Row) { rows = append(rows, r) })
	}
	m.Step(now, sched.RestartEnded{}, nil)
	m = restart(append(rows, m.Facts()...))
	m.Step(now, sched.RestartEnded{}, nil)
	m.Step(now.Add(10*time.Minute), sched.TimePassed{}, nil)
	if u, _ := m.UpdateOf(2); u.State != sched.TaskFailed || u.Err.OriginKey != "a" {
		t.Errorf("the task that needs the bytes is in state %d: %+v", u.State, u.Err)
	}
}

// A client holds a copy that the machine had made, and its worker is not back: the copy is
// cancelled, because no other worker may run it.
func TestAHeldCopyEndsWithItsWorkerInARestart(t *testing.T) {
	now := time.Now()
	m := sched.New(sched.Config{Facts: true})
	m.SetTime(now)
	for _, row := range []sched.Row{
		&sched.ClientOpened{Client: 1, Namespace: "default", TTL: time.Hour},
		&sched.GraphPut{Graph: 1, Namespace: "default", CreatedAt: now, Dropped: true},
		&sched.TasksPut{
			Graph: 1, Ops: []sched.OpSpec{{Kind: sched.OpData, Name: "data"}, {Kind: sched.OpNative, Name: "core.replicate"}},
			Options: []sched.Options{{Workers: []sched.WorkerSelector{{Worker: 7}}}},
			Tasks:   []sched.TaskRow{{Task: 1, Key: "a", Position: 1}, {Task: 2, Key: "millrace.copy/1", Op: 1, Options: 1, Inputs: 1, Position: 2}},
			Inputs:  []sched.InputRow{{Task: 1}},
		},
		&sched.HoldsPut{Holder: sched.Holder{Kind: sched.HolderClient, Number: 1}, Tasks: []ids.TaskID{1, 2}},
		&sched.DataPut{Task: 1, Bytes: 1, Inline: []byte("x")},
		&sched.TasksEnded{State: sched.TaskSucceeded, Tasks: []sched.TaskRef{{Task: 1, Attempt: 1}, {Task: 2, Attempt: 1}}},
	} {
		m.Load(row)
	}
	m.Step(now, sched.Loaded{Restarts: 1}, nil)
	m.Step(now, sched.RestartEnded{}, nil)
	if u, _ := m.UpdateOf(2); u.State != sched.TaskCancelled {
		t.Errorf("the copy is in state %d", u.State)
	}
	if err := m.Check(); err != nil {
		t.Error(err)
	}
}
