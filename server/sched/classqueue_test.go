package sched

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// crowd is a machine with simulated workers; the test ends their tasks one by one.
type crowd struct {
	t    *testing.T
	m    *Machine
	now  time.Time
	runs map[ids.TaskID]ids.WorkerID // attempts under way, with their workers
	sent []ids.TaskID
	// retracted counts the retract requests.
	retracted int
	most      struct{ classes, inputs uint64 }
	// steps counts the steps.
	steps int
}

func newCrowd(t *testing.T, workers ...WorkerRegistered) *crowd {
	t.Helper()
	c := &crowd{t: t, m: New(Config{}), now: time.Unix(1, 0), runs: map[ids.TaskID]ids.WorkerID{}}
	c.step(ClientOpened{Client: 1, TTL: 24 * time.Hour})
	for i, w := range workers {
		w.Worker, w.Name, w.Executors = ids.WorkerID(i+1), fmt.Sprint("w", i), []string{"native"}
		c.step(w)
	}
	return c
}

func (c *crowd) step(ev Event) {
	before := c.m.reads
	c.took(c.m.Step(c.now, ev, nil), before)
}

func (c *crowd) took(effects []Effect, before struct{ classes, inputs uint64 }) {
	c.steps++
	c.most.classes = max(c.most.classes, c.m.reads.classes-before.classes)
	c.most.inputs = max(c.most.inputs, c.m.reads.inputs-before.inputs)
	for _, e := range effects {
		if e.Kind == EffectAssign {
			c.runs[e.Task] = e.Worker
			c.sent = append(c.sent, e.Task)
		}
		if e.Kind == EffectRetract {
			c.retracted++
		}
	}
}

func (c *crowd) submit(ev GraphSubmitted) []ids.TaskID {
	c.t.Helper()
	ev.Client, ev.Ops = 1, []OpSpec{{Kind: OpNative, Name: "f"}}
	before := c.m.reads
	r, effects, err := c.m.Submit(c.now, ev, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	c.took(effects, before)
	return r.Tasks
}

func (c *crowd) succeed(id ids.TaskID, bytes uint64) { c.succeedAfter(id, bytes, time.Second) }

func (c *crowd) succeedAfter(id ids.TaskID, bytes uint64, run time.Duration) {
	w := c.runs[id]
	delete(c.runs, id)
	c.now = c.now.Add(time.Microsecond)
	c.step(TasksReported{Worker: w, Reports: []Report{{Task: id, Attempt: 1, Outcome: OutcomeSucceeded, OutputBytes: bytes, RunTime: run}}})
}

// next returns the task under way with the lowest id; 0 if there is none.
func (c *crowd) next() ids.TaskID {
	least := ids.TaskID(0)
	for id := range c.runs {
		if least == 0 || id < least {
			least = id
		}
	}
	return least
}

// wake advances the time to the machine's next deadline. It returns false if there is none within a
// minute.
func (c *crowd) wake() bool {
	at, ok := c.m.NextDeadline()
	if !ok || at.Sub(c.now) > time.Minute {
		return false
	}
	c.now = at
	c.step(TimePassed{})
	return true
}

func TestTasksOfDistinctAmountsAreLookedAtInTurns(t *testing.T) {
	tasks := 5000
	if testing.Short() {
		tasks = 2000
	}
	c := newCrowd(t, WorkerRegistered{Host: "h", Slots: 1000, Resources: map[string]float64{"mem": float64(tasks)}})
	var graph GraphSubmitted
	for i := range tasks {
		graph.Options = append(graph.Options, Options{Resources: map[string]float64{"mem": float64(tasks - i)}})
		graph.Tasks = append(graph.Tasks, TaskSpec{Key: fmt.Sprint(i), Options: uint32(i + 1), Hold: true})
	}
	ids := c.submit(graph)
	if w := c.runs[ids[0]]; w == 0 || len(c.runs) != 1 {
		t.Fatalf("the first task takes all, and %d run", len(c.runs))
	}
	for c.wake() {
	}
	if len(c.runs) != 1 {
		t.Fatalf("the first task takes all, and %d run", len(c.runs))
	}
	looked := c.m.reads.classes
	if c.wake() || looked > uint64(3*tasks) {
		t.Errorf("%d classes were looked at while nothing happened", looked)
	}
	for ended := 0; ended < tasks; {
		if id := c.next(); id != 0 {
			c.succeed(id, 0)
			ended++
		} else if !c.wake() {
			t.Fatalf("%d of %d tasks have ended, and nothing goes on", ended, tasks)
		}
		if ended%500 == 0 {
			if err := c.m.Check(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if c.most.classes > maxClasses {
		t.Errorf("one step looked at %d classes; at most %d", c.most.classes, maxClasses)
	}
}

// A task that fits is found behind any number of tasks that do not fit.
func TestATaskThatFitsIsFoundBehindManyThatDoNot(t *testing.T) {
	c := newCrowd(t, WorkerRegistered{Host: "h", Slots: 8, Resources: map[string]float64{"mem": 10000}})
	hold := c.submit(GraphSubmitted{Options: []Options{{Resources: map[string]float64{"mem": 9999}}}, Tasks: []TaskSpec{{Key: "hold", Options: 1, Hold: true}}})
	var graph GraphSubmitted
	for i := range 3000 {
		graph.Options = append(graph.Options, Options{Resources: map[string]float64{"mem": float64(5000 - i)}})
		graph.Tasks = append(graph.Tasks, TaskSpec{Key: fmt.Sprint(i), Options: uint32(i + 1), Hold: true})
	}
	graph.Options = append(graph.Options, Options{Resources: map[string]float64{"mem": 1}})
	graph.Tasks = append(graph.Tasks, TaskSpec{Key: "small", Options: uint32(len(graph.Options)), Hold: true})
	all := c.submit(graph)
	for c.runs[all[3000]] == 0 && c.wake() {
	}
	if c.runs[all[3000]] == 0 || len(c.runs) != 2 || c.runs[hold[0]] == 0 {
		t.Errorf("the task that fits does not run; %d run", len(c.runs))
	}
}

func TestClassesGoInTheOrderOfTheirFirstTasks(t *testing.T) {
	c := newCrowd(t, WorkerRegistered{Host: "h", Slots: 1})
	type tid = ids.TaskID
	var ids []tid
	for i := range maxClasses / 2 {
		// Each class has two tasks, and later classes have higher priority.
		ids = append(ids, c.submit(GraphSubmitted{Options: []Options{{Priority: int32(i), Resources: map[string]float64{fmt.Sprint("r", i): 0}}},
			Tasks: []TaskSpec{{Key: fmt.Sprint(i, "a"), Options: 1, Hold: true}, {Key: fmt.Sprint(i, "b"), Options: 1, Hold: true}}})...)
	}
	first := len(c.sent)
	for range ids {
		if len(c.runs) == 0 {
			t.Fatalf("%d of %d tasks were sent, and nothing goes on", len(c.sent), len(ids))
		}
		c.succeed(c.next(), 0)
	}
	rest := c.sent[first:]
	if !slices.IsSortedFunc(rest, func(x, y tid) int { return slices.Index(ids, y)/2 - slices.Index(ids, x)/2 }) || len(rest) < len(ids)-10 {
		t.Errorf("after %v, the order was %v", c.sent[:first], rest)
	}
}

func TestInputsOfAWaitingTaskAreNotReadInEachStep(t *testing.T) {
	const inputs = 4_000
	c := newCrowd(t, WorkerRegistered{Host: "h", Slots: 1}, WorkerRegistered{Host: "h", Slots: 1})
	var graph GraphSubmitted
	reduce := TaskSpec{Key: "reduce", Hold: true}
	for i := range inputs {
		graph.Tasks = append(graph.Tasks, TaskSpec{Key: fmt.Sprint(i), Hold: true})
		reduce.Inputs = append(reduce.Inputs, fmt.Sprint(i))
	}
	graph.Options = []Options{{Priority: -100}}
	made := c.submit(graph)
	for range made {
		c.succeed(c.next(), 1<<20)
	}
	// When the task with many inputs becomes ready, both workers are full of urgent tasks, and stay
	// full.
	var urgent GraphSubmitted
	urgent.Options = []Options{{Priority: 100}}
	for i := range 1000 {
		urgent.Tasks = append(urgent.Tasks, TaskSpec{Key: fmt.Sprint("urgent", i), Options: 1, Hold: true, Inputs: []string{"0"}})
	}
	c.submit(urgent)
	c.submit(GraphSubmitted{Tasks: []TaskSpec{reduce}})
	for range 500 {
		c.most.inputs = 0
		c.succeed(c.next(), 0)
		if c.most.inputs > 1000 {
			t.Fatalf("a step read %d inputs", c.most.inputs)
		}
	}
	// After the urgent tasks only this task is left, and it runs.
	before := c.m.reads.inputs
	var wide ids.TaskID
	for wide == 0 {
		id := c.next()
		if id > made[len(made)-1]+1000 {
			wide = id
		}
		c.succeed(id, 0)
	}
	if read := c.m.reads.inputs - before; read > 3*inputs/2 {
		t.Errorf("%d inputs were read until a task of %d ran: it takes one look", read, inputs)
	}
	if err := c.m.Check(); err != nil {
		t.Error(err)
	}
}

// An idle worker does not cause the inputs of all tasks of another worker to be read in each step.
func TestIdleWorkersDoNotHaveTheInputsOfWideTasksReadInEachStep(t *testing.T) {
	const inputs = 4_000
	c := newCrowd(t, WorkerRegistered{Host: "h", Slots: 1})
	var graph GraphSubmitted
	var names []string
	for i := range inputs {
		graph.Tasks = append(graph.Tasks, TaskSpec{Key: fmt.Sprint(i), Hold: true})
		names = append(names, fmt.Sprint(i))
	}
	for range c.submit(graph) {
		// The op is known to be short, so its tasks are not worth moving.
		c.succeedAfter(c.next(), 8, time.Microsecond)
	}
	c.submit(GraphSubmitted{Tasks: []TaskSpec{
		{Key: "a", Inputs: names, Hold: true}, {Key: "b", Inputs: names, Hold: true}, {Key: "c", Inputs: names, Hold: true},
	}})
	c.step(WorkerRegistered{Worker: 2, Name: "idle", Host: "far", Slots: 4, Executors: []string{"native"}})
	before := c.m.reads.inputs
	if c.retracted > 0 || len(c.runs) != 3 {
		t.Fatalf("%d tasks are at the worker, and %d were asked back", len(c.runs), c.retracted)
	}
	for range 200 {
		c.now = c.now.Add(10 * time.Microsecond)
		c.step(TasksReported{Worker: 1})
	}
	if read := c.m.reads.inputs - before; read > 4*inputs {
		t.Errorf("%d inputs were read in 200 steps in 2 ms", read)
	}
	// The worker falls silent. Then its tasks are moved, although they are considered rarely.
	for c.retracted == 0 && c.wake() {
	}
	if c.retracted == 0 {
		t.Error("no task was asked back from a silent worker")
	}
}

// While all workers are full, nothing is searched, however many classes wait. The next report of a
// worker starts the search again.
func TestNobodyLooksForRoomWhileAllWorkersAreFull(t *testing.T) {
	c := newCrowd(t, WorkerRegistered{Host: "h", Slots: 1, Resources: map[string]float64{"mem": 10000}})
	fill := GraphSubmitted{Options: []Options{{Priority: 1}}}
	for i := range 1000 {
		fill.Tasks = append(fill.Tasks, TaskSpec{Key: fmt.Sprint("fill", i), Options: 1, Hold: true})
	}
	c.submit(fill)
	c.submit(distinct(4*maxClasses, 1))
	looked := c.m.reads.classes
	for c.wake() {
	}
	if more := c.m.reads.classes - looked; more > 0 || len(c.runs) == 0 {
		t.Errorf("%d classes were looked at while all workers were full of %d tasks", more, len(c.runs))
	}
}

// A search that continues later has one timer, however many steps end before it.
func TestALookThatGoesOnHasOneTimer(t *testing.T) {
	c := newCrowd(t, WorkerRegistered{Host: "h", Slots: 8, Resources: map[string]float64{"mem": 10000}})
	c.submit(GraphSubmitted{Options: []Options{{Resources: map[string]float64{"mem": 10000}}}, Tasks: []TaskSpec{{Key: "hold", Options: 1, Hold: true}}})
	c.submit(distinct(50*maxClasses, 1))
	for range 20 {
		c.step(TasksReported{Worker: 1})
	}
	timers := 0
	for _, x := range c.m.timers {
		if x.kind == timerDispatch {
			timers++
		}
	}
	if timers != 1 {
		t.Errorf("%d timers after 20 steps that each left classes for later", timers)
	}
}

// Tasks whose memory fits no worker are put aside. There may be very many classes of such tasks.
func TestTasksThatFitNoMemoryAreLookedAtInTurns(t *testing.T) {
	c := newCrowd(t, WorkerRegistered{Host: "h", Slots: 8, MemoryBytes: 1 << 20, Resources: map[string]float64{"mem": 10000}})
	graph := distinct(4*maxClasses, 1)
	for i := range graph.Options {
		graph.Options[i].ExpectedOutputBytes = 1 << 30
	}
	c.submit(graph)
	for range 20 {
		c.step(TasksReported{Worker: 1})
		c.wake()
	}
	if c.most.classes > maxClasses || len(c.runs) > 0 {
		t.Errorf("one step looked at %d classes; at most %d", c.most.classes, maxClasses)
	}
	if err := c.m.Check(); err != nil {
		t.Error(err)
	}
}

// A class that was passed for lack of room is considered again, even if each step adds more classes
// than one step considers.
func TestAClassThatWasPassedComesAgain(t *testing.T) {
	c := newCrowd(t, WorkerRegistered{Host: "h", Slots: 8, Resources: map[string]float64{"mem": 10000}})
	hold := c.submit(GraphSubmitted{
		Options: []Options{{Resources: map[string]float64{"mem": 5000}}, {Resources: map[string]float64{"mem": 100}}},
		Tasks:   []TaskSpec{{Key: "hold", Options: 1, Hold: true}, {Key: "stays", Options: 2, Hold: true}},
	})
	first := c.submit(GraphSubmitted{
		Options: []Options{{Priority: 9, Resources: map[string]float64{"mem": 5500}}}, Tasks: []TaskSpec{{Key: "first", Options: 1, Hold: true}},
	})
	others := 0
	more := func() {
		graph := distinct(maxClasses+50, 1)
		for i := range graph.Tasks {
			// These do not fit beside the task that stays.
			graph.Tasks[i].Key = fmt.Sprint("other", others)
			graph.Options[i].Resources = map[string]float64{"mem": 9950 + float64(others)/1e6}
			others++
		}
		c.submit(graph)
	}
	for range 10 {
		more()
	}
	c.succeed(hold[0], 0)
	for range 50 {
		if c.runs[first[0]] != 0 {
			return
		}
		more()
	}
	t.Errorf("the first task was not looked at again in 50 steps, while %d others came", others)
}

// A new worker starts a new round. So the first task does not wait until the current round has
// considered all other classes.
func TestANewWorkerBeginsWithTheFirstTask(t *testing.T) {
	c := newCrowd(t, WorkerRegistered{Host: "h", Slots: 8, Resources: map[string]float64{"mem": 10}})
	first := c.submit(GraphSubmitted{
		Options: []Options{{Priority: 9, Resources: map[string]float64{"mem": 50}}}, Tasks: []TaskSpec{{Key: "first", Options: 1, Hold: true}},
	})
	c.submit(distinct(4*maxClasses, 1000))
	c.step(WorkerRegistered{Worker: 2, Name: "new", Host: "h", Executors: []string{"native"}, Slots: 8, Resources: map[string]float64{"mem": 60}})
	if c.runs[first[0]] != 2 {
		t.Error("the first task was not given to the worker that came")
	}
}

// Tasks are sent in the order of their ranks, whatever their classes and the places of these in the
// heap.
func TestTasksOfManyClassesGoInTheOrderOfTheirRanks(t *testing.T) {
	const classes, tasks = 31, 1200
	for seed := range uint64(20) {
		c := newCrowd(t, WorkerRegistered{Host: "h", Slots: 20})
		random := rand.New(rand.NewPCG(seed, 0))
		var graph GraphSubmitted
		for i := range classes {
			graph.Options = append(graph.Options, Options{Resources: map[string]float64{fmt.Sprint("r", i): 0}})
		}
		for i := range tasks {
			graph.Tasks = append(graph.Tasks, TaskSpec{Key: fmt.Sprint(i), Options: uint32(random.IntN(classes) + 1), Hold: true})
		}
		all := c.submit(graph)
		gone := map[ids.TaskID]bool{}
		for len(c.runs) > 0 {
			// Cancelled tasks leave their classes with higher first ranks, anywhere in the heap.
			cancel := TasksCancelled{Force: true}
			for range 20 {
				if id := all[random.IntN(tasks)]; !slices.Contains(c.sent, id) && !gone[id] {
					gone[id] = true
					cancel.Tasks = append(cancel.Tasks, id)
				}
			}
			c.step(cancel)
			var ended []Report
			for id := range c.runs {
				ended = append(ended, Report{Task: id, Attempt: 1, Outcome: OutcomeSucceeded, RunTime: time.Second})
			}
			clear(c.runs)
			c.now = c.now.Add(time.Microsecond)
			c.step(TasksReported{Worker: 1, Reports: ended})
		}
		if len(c.sent)+len(gone) != tasks || !slices.IsSorted(c.sent) {
			t.Fatalf("seed %d: %d tasks were sent and %d cancelled, not by rank: %v", seed, len(c.sent), len(gone), c.sent)
		}
	}
}

// While no worker has room, the inputs of the first task of a class are read once, not in each
// step.
func TestInputsOfTheFirstTasksAreReadOnceWhileThereIsNoRoom(t *testing.T) {
	const classes = 100
	c := newCrowd(t, WorkerRegistered{Host: "h", Slots: 1})
	var inputs, urgent, graph GraphSubmitted
	var names []string
	for i := range maxCounted {
		names = append(names, fmt.Sprint("in", i))
		inputs.Tasks = append(inputs.Tasks, TaskSpec{Key: names[i], Hold: true})
	}
	for range c.submit(inputs) {
		c.succeed(c.next(), 1<<20)
	}
	urgent.Options = []Options{{Priority: 9}}
	for i := range 1000 {
		urgent.Tasks = append(urgent.Tasks, TaskSpec{Key: fmt.Sprint("urgent", i), Options: 1, Hold: true})
	}
	c.submit(urgent)
	for i := range classes {
		graph.Options = append(graph.Options, Options{Resources: map[string]float64{fmt.Sprint("r", i): 0}})
		graph.Tasks = append(graph.Tasks, TaskSpec{Key: fmt.Sprint("reduce", i), Options: uint32(i + 1), Inputs: names, Hold: true})
	}
	before := c.m.reads.inputs
	c.submit(graph)
	for range 100 {
		c.now = c.now.Add(time.Microsecond)
		c.step(TasksReported{Worker: 1})
	}
	if read := c.m.reads.inputs - before; read > 2*classes*maxCounted {
		t.Errorf("%d inputs were read, of %d tasks with %d", read, classes, maxCounted)
	}
}

// crowded counts tasks that wait for room, whether or not this round has considered them. Tasks
// that no worker may run do not count, unless there are too many classes to check.
func TestOnlyTasksThatWaitForRoomAreACrowd(t *testing.T) {
	c := newCrowd(t, WorkerRegistered{Host: "h", Slots: 1, Resources: map[string]float64{"mem": 10}})
	c.submit(distinct(1, 20))
	if c.m.crowded() {
		t.Error("a task that nobody may run is a crowd")
	}
	some := distinct(3, 5)
	for i := range some.Tasks {
		some.Tasks[i].Key = fmt.Sprint("some", i)
	}
	c.submit(some)
	if len(c.runs) != 1 || !c.m.crowded() {
		t.Error("two tasks wait for what another one has, and are no crowd")
	}
	for len(c.runs) > 0 {
		c.succeed(c.next(), 0)
	}
	if c.m.crowded() {
		t.Error("all that can run has, and there is a crowd")
	}
	many := distinct(4*maxClasses, 20)
	for i := range many.Tasks {
		many.Tasks[i].Key = fmt.Sprint("many", i)
	}
	c.submit(many)
	if !c.m.crowded() {
		t.Error("very many classes were all looked at")
	}
}

// Tasks of a silent worker are moved once the silence has lasted as long as the fetch of their
// inputs would take.
func TestTasksAreMovedFromASilentWorkerOnceThatIsWorthTheFetch(t *testing.T) {
	c := newCrowd(t, WorkerRegistered{Host: "near", Slots: 1})
	// The op is known to take almost no time, so only the silence is a reason to move its tasks.
	input := c.submit(GraphSubmitted{Tasks: []TaskSpec{{Key: "input", Hold: true}}})
	c.step(TasksReported{Worker: 1, Reports: []Report{{Task: input[0], Attempt: 1, Outcome: OutcomeSucceeded, OutputBytes: 10 << 30, RunTime: time.Microsecond}}})
	clear(c.runs)
	c.submit(GraphSubmitted{Tasks: []TaskSpec{
		{Key: "a", Inputs: []string{"input"}, Hold: true}, {Key: "b", Inputs: []string{"input"}, Hold: true}, {Key: "c", Inputs: []string{"input"}, Hold: true},
	}})
	c.step(WorkerRegistered{Worker: 2, Name: "idle", Host: "far", Slots: 1, Executors: []string{"native"}})
	began := c.now
	for c.retracted == 0 && c.wake() {
	}
	_, micros := c.m.fetchMicros(c.m.workerOf(2), []edge{{input: input[0]}})
	fetch := time.Duration(micros) * time.Microsecond
	if waited := c.now.Sub(began); c.retracted == 0 || fetch < time.Second || waited < fetch {
		t.Errorf("%d tasks were moved after %v of silence; to fetch the input takes %v", c.retracted, waited, fetch)
	}
}

// The heap order holds after removals at any place.
func TestTheClassQueueIsAHeap(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var l classQueue
	var all []*class
	for step := range 20_000 {
		if len(all) < 100 {
			all = append(all, new(class))
		}
		c := all[random.IntN(len(all))]
		switch random.IntN(5) {
		case 0, 1:
			if c.list == 0 {
				l.add(c, random.Uint64N(1000))
			}
		case 2:
			l.lower(c, random.Uint64N(1000))
		case 3:
			l.pass(c)
		case 4:
			l.remove(c)
		}
		for i, c := range l.waiting {
			if c.at != i || c.list != listWaiting || i > 0 && c.before(l.waiting[(i-1)/2]) {
				t.Fatalf("step %d: class %d is at %d, and before the one above it", step, i, c.at)
			}
		}
		for i, c := range l.passed {
			if c.at != i || c.list != listPassed {
				t.Fatalf("step %d: class %d of those passed is at %d", step, i, c.at)
			}
		}
	}
}

// When the workers change, a task that was put aside comes back with its rank, before the tasks of
// its class that have a higher rank.
func TestATaskThatWasPutAsideComesBackWithItsRank(t *testing.T) {
	c := newCrowd(t, WorkerRegistered{Host: "h", Slots: 1, MemoryBytes: 1 << 20, Resources: map[string]float64{"mem": 10}})
	urgent := GraphSubmitted{Options: []Options{{Priority: 9}}}
	for i := range 2000 {
		urgent.Tasks = append(urgent.Tasks, TaskSpec{Key: fmt.Sprint("urgent", i), Options: 1, Hold: true})
	}
	c.submit(urgent)
	mem := map[string]float64{"mem": 1}
	c.submit(GraphSubmitted{
		Options: []Options{{Resources: mem, ExpectedOutputBytes: 1 << 30}, {Resources: mem, ExpectedOutputBytes: 1}},
		Tasks:   []TaskSpec{{Key: "large", Options: 1, Hold: true}, {Key: "small", Options: 2, Hold: true}},
	})
	for range 3 {
		c.step(TasksReported{Worker: 1})
	}
	// The large task fits this worker, but urgent tasks fill the worker at once.
	c.step(WorkerRegistered{Worker: 2, Name: "large", Host: "h", Executors: []string{"native"}, Slots: 1, MemoryBytes: 1 << 40, Resources: map[string]float64{"mem": 10}})
	if err := c.m.Check(); err != nil {
		t.Error(err)
	}
}

// distinct makes a submission in which each task has its own class, because the amounts of its
// resource differ.
func distinct(tasks int, from float64) (graph GraphSubmitted) {
	for i := range tasks {
		graph.Options = append(graph.Options, Options{Resources: map[string]float64{"mem": from + float64(i)/float64(tasks)}})
		graph.Tasks = append(graph.Tasks, TaskSpec{Key: fmt.Sprint(i), Options: uint32(i + 1), Hold: true})
	}
	return graph
}

// A floating-point sum of a large and a small amount loses the small one. After the large amount is
// given back, in any order, the small one must count again.
func TestUsedResourcesDoNotDrift(t *testing.T) {
	const has = 1e17
	c := newCrowd(t, WorkerRegistered{Host: "h", Slots: 8, Resources: map[string]float64{"r": has}})
	amounts := []float64{1e16, 1, 0.1, 5e16, 0.3, 1e-9, 3, 0.7}
	var graph GraphSubmitted
	for i, amount := range amounts {
		graph.Options = append(graph.Options, Options{Resources: map[string]float64{"r": amount}})
		graph.Tasks = append(graph.Tasks, TaskSpec{Key: fmt.Sprint(i), Options: uint32(i + 1), Hold: true})
	}
	all := c.submit(graph)
	if len(c.runs) != len(all) {
		t.Fatalf("%d of %d tasks run", len(c.runs), len(all))
	}
	for _, i := range []int{3, 0, 6, 1, 7, 2, 4, 5} {
		c.succeed(all[i], 0)
		amounts[i] = 0
		want := 0.0
		for _, amount := range amounts {
			want += amount
		}
		if used := c.m.order[0].usedResources["r"]; math.Abs(used-want) > 1e-9*want {
			t.Errorf("after task %d, %g is used, and the machine takes it for %g", i, want, used)
		}
	}
	if left := c.m.order[0].usedResources; len(left) > 0 {
		t.Errorf("%v is left of what has ended", left)
	}
}
