package sim

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/copies"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
	"github.com/millrace/millrace/test/model"
)

// maxEvents bounds a run. A longer run is taken for an endless loop.
const maxEvents = 5_000_000

// world is the state of one run.
type world struct {
	options options
	plan    plan
	rng     *rand.Rand

	epoch, now time.Time
	queue      agenda
	lastAt     uint64
	events     uint64
	trace      *trace

	server       *server
	hosts        []*host
	clients      []*client
	oracle       *oracle
	coordination *coordination
	// faultsOver means that no more faults are made.
	faultsOver bool
	// suspect is the name of a host; a failure report has its trace lines. "": none.
	suspect string
	// done ends the run.
	done bool

	// processes are all that ever were, and lastProcess is the number of the last one.
	processes   []*process
	lastProcess int
	background  background
	// lastDeath is the time at which the last worker ended.
	lastDeath time.Time
	// mayLoseAny: a worker has lost what was on its disk.
	mayLoseAny bool
	// evening is the rebalance of evenOut that is in progress, and rounds counts those.
	evening schedapi.Rebalance
	rounds  int
	counts  counts
}

// counts are numbers for the summary. items counts fetched items of lists, pipelined fetches of
// objects that were arriving at their upstream, and notArrived those of them whose object did not
// arrive in time.
type counts struct {
	messages, broken, duplicates, crashes, stops, leaves, executorDeaths, blocks, clientCrashes, rescued, subscriptions, notifications int
	writes, refused, restarts, undecided                                                                                               int
	runs, tasks, items, pipelined, notArrived, copies, drained, ended                                                                  int
	loans, brokenLoans, inPlace, prompt, spilled, loaded, slow                                                                         int
}

// Result is the result of a successful run.
type Result struct {
	Hash    uint64
	Lines   uint64
	Summary string
	// Calls is the number of calls that were compared with the model. Undecided means that some of
	// them could not be.
	Calls     int
	Undecided bool
}

// failure is the value of a panic that ends a failed run.
type failure struct {
	message string
	tasks   []ids.TaskID
}

// options say which run is simulated.
type options struct {
	seed uint64
	// restarts: the scheduler may be killed. shared: clients share locks, queues and variables,
	// without workers and tasks, and the scheduler is killed in any case.
	restarts, shared bool
	// checkEvery is the number of steps between two checks of a machine; builds with invariants
	// check in every step.
	checkEvery int
	// smaller are the names of the reductions of the plan; see shrink.
	smaller []string
	// whole receives the whole trace, if it is not nil.
	whole io.Writer
}

// simulate runs one seed.
func simulate(t *testing.T, o options) (result Result, err error) {
	t.Helper()
	synctest.Test(t, func(*testing.T) { result, err = run(o) })
	return result, err
}

func run(o options) (result Result, err error) {
	w := &world{options: o, epoch: time.Now(), now: time.Now(), trace: newTrace(o.whole)}
	if w.plan, w.rng, err = planOf(o); err != nil {
		return Result{}, err
	}
	w.oracle, w.coordination = newOracle(w), newCoordination(w)
	w.server = newServer(w, o.checkEvery)
	defer w.finish()
	defer func() {
		if r := recover(); r != nil {
			err = w.explain(r)
		}
	}()
	w.begin()
	for !w.done {
		if len(w.queue) == 0 {
			w.fail(nil, "no event is left although the run is not over")
		}
		e := heap.Pop(&w.queue).(entry)
		if e.at.After(w.now) {
			time.Sleep(e.at.Sub(w.now))
			w.now = e.at
			if w.server.disk != nil {
				synctest.Wait() // for the goroutine of the journal
				if w.server.up && w.server.loop.Waiting() {
					w.server.settle() // A call of the next event would wait behind what that goroutine posted.
				}
			}
		}
		if w.events++; w.events > maxEvents {
			w.fail(nil, "%d events: the run does not end", w.events)
		}
		e.run()
		w.settle()
	}
	c := w.counts
	return Result{
		Hash: w.trace.hash.Sum64(), Lines: w.trace.lines, Calls: w.coordination.history.Len(), Undecided: c.undecided > 0,
		Summary: fmt.Sprintf("virtual %.1fs, events %d, tasks %d, runs %d, messages %d, broken streams %d, duplicates %d, crashes %d, stops %d, leaves %d, executor deaths %d, waits %d, client crashes %d, restarts %d, rescued %d, subscriptions %d, notifications %d, writes %d, refused %d, pipelined %d, not arrived %d, copies %d, drained %d, ended %d, moved %d, items %d, loans %d, broken %d, in place %d, prompt %d, spilled %d, loaded %d, slow %d",
			w.elapsed().Seconds(), w.events, c.tasks, c.runs, c.messages, c.broken, c.duplicates, c.crashes, c.stops, c.leaves, c.executorDeaths, c.blocks, c.clientCrashes, c.restarts, c.rescued, c.subscriptions, c.notifications, c.writes, c.refused, c.pipelined, c.notArrived, c.copies, c.drained, c.ended, w.server.m.Totals().Moved, c.items, c.loans, c.brokenLoans, c.inPlace, c.prompt, c.spilled, c.loaded, c.slow),
	}, nil
}

func (w *world) elapsed() time.Duration { return w.now.Sub(w.epoch) }

// settle follows each step: it lets the goroutines that the step has started or woken come to a
// rest, and the workers handle what they were told.
func (w *world) settle() {
	for busy := true; busy; {
		synctest.Wait()
		busy = w.order()
		if w.server.up && w.server.loop.Waiting() {
			w.server.settle()
			busy = true
		}
		busy = w.coordination.settle() || busy
		for _, h := range w.hosts {
			if h.proc != nil && h.proc.settle() {
				busy = true
			}
		}
	}
}

// finish ends all goroutines.
func (w *world) finish() {
	w.background.failure, w.faultsOver = nil, true
	for _, p := range w.processes {
		p.dead = true
		p.cancel(errEnded)
		p.giveAll()
		go p.store.Close()
	}
	w.coordination.hangUp()
	if w.server.disk != nil && w.server.up {
		_ = w.server.loop.CloseJournal() // The run is over.
	}
	synctest.Wait()
	for w.order() || len(w.queue) > 0 {
		if len(w.queue) > 0 {
			if e := heap.Pop(&w.queue).(entry); e.wakes {
				e.run()
			}
		}
	}
}

func (w *world) log(format string, args ...any) { w.trace.add(w.elapsed(), format, args...) }

func (w *world) fail(tasks []ids.TaskID, format string, args ...any) {
	f := failure{fmt.Sprintf(format, args...), tasks}
	if b := &w.background; b.foreign {
		if b.failure == nil {
			b.failure = f
		}
		runtime.Goexit()
	}
	panic(f)
}

// taskNames finds the names of tasks in a text.
var taskNames = regexp.MustCompile(`\bt([0-9]+)\b`)

// explain makes the report of a failed run from the value of its panic.
func (w *world) explain(r any) error {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d at %v: ", w.options.seed, w.elapsed())
	f, ours := r.(failure)
	if ours {
		b.WriteString(f.message)
	} else {
		fmt.Fprintf(&b, "panic: %v\n%s", r, debug.Stack())
		for _, name := range taskNames.FindAllStringSubmatch(fmt.Sprint(r), 1) {
			if id, err := strconv.ParseUint(name[1], 10, 64); err == nil {
				f.tasks = append(f.tasks, ids.TaskID(id))
			}
		}
	}
	fmt.Fprintf(&b, "\nplan: %v\n", w.plan)
	for i, id := range f.tasks {
		if i == 6 {
			fmt.Fprintf(&b, "... and %d more tasks\n", len(f.tasks)-i)
			break
		}
		fmt.Fprintf(&b, "\ntask %s", id)
		if info, ok := w.server.m.Task(id); ok {
			fmt.Fprintf(&b, " %s: state %d attempt %d worker %s replicas %v inputs %v missing %d holders %d err %+v", info.Key, info.State,
				info.Attempt, info.Worker, info.Replicas, info.InputTasks, info.MissingInputs, info.Holders, info.Err)
			if why, ok := w.server.m.Explain(w.now, id); ok {
				fmt.Fprintf(&b, "\n  %s: %s", why.Status, why.Text)
			}
		}
		b.WriteString("\n")
		for _, line := range w.server.m.History(id) {
			b.WriteString("  " + line + "\n")
		}
		for _, h := range w.hosts {
			if h.proc != nil {
				h.proc.describe(&b, id)
			}
		}
		if i < 2 {
			fmt.Fprintf(&b, "  in the last %d lines of the trace:\n%s", traceLines, w.trace.tail(0, id.String()+"/"))
		}
	}
	if w.suspect != "" {
		fmt.Fprintf(&b, "\nabout %s:\n%s", w.suspect, w.trace.tail(0, w.suspect+" "))
	}
	fmt.Fprintf(&b, "\nlast of %d trace lines:\n%s", w.trace.lines, w.trace.tail(50, ""))
	o := &w.options
	if o.shared {
		fmt.Fprintf(&b, "\nrun it again: go test -tags invariants ./test/sim -run TestSharedState -sim.shared=1 -sim.first=%d", o.seed)
	} else {
		fmt.Fprintf(&b, "\nrun it again: make sim SEED=%d RESTARTS=%v", o.seed, o.restarts)
	}
	if len(o.smaller) > 0 && o.shared {
		fmt.Fprintf(&b, " -sim.smaller=%s", strings.Join(o.smaller, ","))
	} else if len(o.smaller) > 0 {
		fmt.Fprintf(&b, " SMALLER=%s", strings.Join(o.smaller, ","))
	}
	return fmt.Errorf("%s", b.String())
}

// entry is a future action. Entries with the same time run in the order in which they were made.
type entry struct {
	at  time.Time
	seq uint64
	run func()
	// wakes: a goroutine waits for it.
	wakes bool
}

type agenda []entry

// Len is part of heap.Interface.
func (a agenda) Len() int { return len(a) }

// Less is part of heap.Interface.
func (a agenda) Less(i, j int) bool {
	if c := a[i].at.Compare(a[j].at); c != 0 {
		return c < 0
	}
	return a[i].seq < a[j].seq
}

// Swap is part of heap.Interface.
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }

// Push is part of heap.Interface.
func (a *agenda) Push(x any) { *a = append(*a, x.(entry)) }

// Pop is part of heap.Interface.
func (a *agenda) Pop() any {
	old := *a
	last := old[len(old)-1]
	old[len(old)-1] = entry{}
	*a = old[:len(old)-1]
	return last
}

func (w *world) at(when time.Time, run func()) {
	if when.Before(w.now) {
		when = w.now
	}
	w.lastAt++
	heap.Push(&w.queue, entry{when, w.lastAt, run, false})
}

// wake is after for an action that wakes a goroutine.
func (w *world) wake(d time.Duration, run func()) {
	w.lastAt++
	heap.Push(&w.queue, entry{w.now.Add(max(d, 0)), w.lastAt, run, true})
}

func (w *world) after(d time.Duration, run func()) { w.at(w.now.Add(d), run) }

// chance is true with probability p. fault is the same for a fault: after the end of the faults it
// is always false.
func (w *world) chance(p float64) bool { return p > 0 && w.rng.Float64() < p }
func (w *world) fault(p float64) bool  { return !w.faultsOver && w.chance(p) }

func (w *world) between(low, high time.Duration) time.Duration {
	return low + time.Duration(w.rng.Float64()*float64(high-low))
}

// pick returns a random element.
func pick[T any](w *world, from []T) T { return from[w.rng.IntN(len(from))] }

func (w *world) begin() {
	for i := range w.plan.workers {
		h := &host{w: w, index: i, name: fmt.Sprintf("host-%d", i), slots: uint32(1 + w.rng.IntN(3))}
		if i%5 == 0 {
			h.resources = map[string]float64{"gpu": 1}
		}
		w.hosts = append(w.hosts, h)
		w.after(w.between(0, 200*time.Millisecond), h.start)
	}
	for i := range w.plan.clients {
		c := newClient(w, i)
		w.clients = append(w.clients, c)
		w.after(w.between(0, 300*time.Millisecond), c.open)
	}
	w.regularly(w.plan.crashEvery, func() { w.anyHost(func(h *host) { h.crash("killed by SIGKILL") }) })
	w.regularly(w.plan.stopEvery, func() {
		w.anyHost(func(h *host) { h.proc.stop(w.between(50*time.Millisecond, 8*time.Second)) })
	})
	w.regularly(w.plan.leaveEvery, func() { w.anyHost(w.makeLeave) })
	w.regularly(w.plan.drainEvery, func() { w.anyHost(w.drain) })
	w.regularly(w.plan.rebalanceEvery(), w.rebalance)
	w.regularly(w.plan.loseEvery, func() { w.anyHost(func(h *host) { h.proc.loseObject() }) })
	w.regularly(w.plan.restartEvery, w.server.kill)
	w.regularly(w.plan.fillEvery, w.server.fill)
	w.regularly(w.plan.clientCrashEvery, func() { pick(w, w.clients).crash() })
	w.after(w.plan.chaos, func() {
		w.faultsOver = true
		w.log("calm")
		w.after(w.plan.chaos/4, w.checkResults)
	})
	w.after(w.plan.chaos+hangAfter, func() { w.fail(w.unfinished(), "hang: the cluster has unfinished work: %s", w.outstanding()) })
}

// regularly runs an action at random times with the given mean interval, until the faults end. 0:
// never.
func (w *world) regularly(mean time.Duration, run func()) {
	if mean == 0 {
		return
	}
	w.after(time.Duration(w.rng.ExpFloat64()*float64(mean)), func() {
		if w.faultsOver {
			return
		}
		run()
		w.regularly(mean, run)
	})
}

// makeLeave makes a worker leave: at once, or by SIGTERM.
func (w *world) makeLeave(h *host) {
	if w.chance(0.4) {
		h.leave()
	} else {
		h.askToLeave()
	}
}

// drain makes an operator drain a worker or two for a while, and perhaps retire or restart it.
func (w *world) drain(h *host) {
	var timeout time.Duration
	if w.chance(0.5) {
		timeout = w.between(10*time.Millisecond, 3*time.Second)
	}
	purpose := pick(w, []copies.DrainPurpose{copies.DrainKeep, copies.DrainRetire, copies.DrainRestart})
	names := []string{h.name}
	if w.chance(0.3) {
		names = append(names, pick(w, w.hosts).name)
	}
	w.server.orderDrain(names, purpose, timeout)
	w.after(w.between(0, 4*time.Second), func() {
		for _, name := range names {
			w.server.undoDrain(name)
		}
	})
}

// rebalance makes an operator even out the bytes of all workers or some of them, and perhaps stop
// before the end.
func (w *world) rebalance() {
	if !w.server.up {
		return
	}
	order := sched.RebalanceOrdered{DryRun: w.chance(0.1)}
	for range w.rng.IntN(3) * w.rng.IntN(4) {
		if id := w.server.ids[pick(w, w.hosts).name]; w.server.knows(id) && !slices.Contains(order.Workers, id) {
			order.Workers = append(order.Workers, id)
		}
	}
	if r, info := w.server.orderRebalance(order); info.Number > 0 && w.chance(0.3) {
		w.after(w.between(0, 500*time.Millisecond), func() { w.server.stopRebalance(r) })
	}
}

// evenOut rebalances, after the faults have ended, until there is nothing to move. It returns false
// if it needs more time.
func (w *world) evenOut() bool {
	if w.plan.rebalanceEvery() == 0 {
		return true
	}
	if r := w.evening; r != nil {
		info, err := r.Info(context.Background())
		w.server.must(err)
		roomy := w.plan.diskBytes == 0 && !w.plan.tight
		switch {
		case !info.Done:
			return false
		case roomy && (info.MovedObjects == 0 || info.FailedObjects > 0):
			w.fail(nil, "a rebalance without faults ended with %+v", info)
		case w.rounds > 20 && roomy:
			w.fail(nil, "a rebalance still finds objects to move: %+v", info)
		case w.rounds > 20:
			return true
		}
	}
	w.rounds++
	if _, plan := w.server.orderRebalance(sched.RebalanceOrdered{DryRun: true}); plan.PlannedObjects == 0 {
		return true
	}
	w.evening = nil
	if r, info := w.server.orderRebalance(sched.RebalanceOrdered{}); info.Number > 0 {
		w.evening = r
	}
	return false
}

func (w *world) anyHost(run func(*host)) {
	if h := pick(w, w.hosts); h.proc != nil {
		run(h)
	}
}

func (w *world) outstanding() string {
	var waiting []string
	for _, c := range w.clients {
		waiting = append(waiting, fmt.Sprintf("client %s %s", c.id, c.outstanding()))
	}
	return fmt.Sprintf("%s; totals %+v", strings.Join(waiting, "; "), w.server.m.Totals())
}

// unfinished lists tasks for the report of a hang: those that a client waits for, those that have
// not ended, and those that still have an object.
func (w *world) unfinished() []ids.TaskID {
	var out []ids.TaskID
	for _, c := range w.clients {
		if list := c.unverified(); len(out) == 0 {
			out = list[:min(2, len(list))]
		}
	}
	for _, state := range []sched.TaskState{sched.TaskRunning, sched.TaskAssigned, sched.TaskReady, sched.TaskWaiting, sched.TaskRescuing, sched.TaskSucceeded} {
		tasks, _ := w.server.m.Tasks(sched.TaskFilter{State: state}, 0, 100)
		for _, t := range tasks {
			out = append(out, t.Task)
		}
	}
	return out
}

// quiet is how long nothing must have happened to the workers before both sides are compared.
const quiet = workerLease + reconnectGrace + 5*time.Second

// checkResults checks, after the faults have ended, that all work comes to its end. First every
// client has its results. Then the scheduler and the workers agree. Then all clients leave, and
// nothing may be left.
func (w *world) checkResults() {
	if !w.server.up {
		w.after(100*time.Millisecond, w.checkResults)
		return
	}
	for _, c := range w.clients {
		if !c.complete() {
			w.after(100*time.Millisecond, w.checkResults)
			return
		}
	}
	if w.server.runsDetached() {
		w.after(100*time.Millisecond, w.checkResults)
		return
	}
	w.log("every client has its results")
	w.after(quiet, func() {
		if w.now.Sub(w.lastDeath) < quiet || !w.evenOut() {
			w.checkResults() // The scheduler may not know of a worker that has just ended.
			return
		}
		w.compareViews()
		for _, c := range w.clients {
			if !c.complete() {
				// Workers that were lost late had results, which are being computed again.
				w.after(100*time.Millisecond, w.checkResults)
				return
			}
		}
		if !w.coordination.checkQueues() {
			w.after(100*time.Millisecond, w.checkResults)
			return
		}
		for _, c := range w.clients {
			c.close(w.chance(0.3), func() {})
		}
		w.checkEmpty()
	})
}

// compareViews compares the scheduler's view of all objects with the workers' inventories.
func (w *world) compareViews() {
	m := w.server.m
	type place struct {
		task ids.TaskID
		host int
	}
	believed := map[place]bool{}
	after := ids.TaskID(0)
	for {
		tasks, next := m.Tasks(sched.TaskFilter{}, after, 500)
		for _, t := range tasks {
			for _, id := range t.Replicas {
				p := w.server.process(id)
				if p == nil {
					w.fail([]ids.TaskID{t.Task}, "the scheduler believes that %s is on %s, which is not there", t.Task, id)
				}
				if !p.has(object{Task: t.Task, Generation: t.Attempt}) && t.Op.Kind != sched.OpData {
					w.fail([]ids.TaskID{t.Task}, "the scheduler believes that %s/%s is on %s (%s), which has not got it", t.Task, t.Attempt, id, p.host.name)
				}
				believed[place{t.Task, p.host.index}] = true
			}
			if t.State == sched.TaskSucceeded && !t.Inline && !w.server.process(t.Replicas[0]).keeps(object{Task: t.Task, Generation: t.Attempt}) {
				w.fail([]ids.TaskID{t.Task}, "the first of %v is to keep %s and may drop it", t.Replicas, t.Task)
			}
		}
		if after = next; after == 0 {
			break
		}
	}
	for _, h := range w.hosts {
		if h.proc == nil {
			w.fail(nil, "%s is not running", h.name)
		}
		for _, x := range h.proc.store.Inventory() {
			o := x.ID
			// Ignore tasks that the scheduler has forgotten: a release may be on its way.
			// checkEmpty checks them later.
			if _, known := m.Task(o.Task); known && !believed[place{o.Task, h.index}] {
				w.suspect = h.name
				w.fail([]ids.TaskID{o.Task}, "worker %s holds %s/%s, which the scheduler does not know", h.name, o.Task, o.Generation)
			}
		}
	}
	for _, h := range w.hosts {
		if !w.server.knows(w.server.ids[h.name]) {
			w.suspect = h.name
			w.fail(nil, "the scheduler does not know worker %s", h.name)
		}
	}
	if n := m.Totals().Workers; n != uint64(w.plan.workers) {
		w.fail(nil, "the scheduler knows %d workers", n)
	}
	w.server.deepCheck()
	w.log("both sides agree")
}

// checkEmpty waits until nothing is left, and then ends the run.
func (w *world) checkEmpty() {
	left := w.leftovers()
	if len(left) == 0 {
		w.server.deepCheck()
		w.coordination.checkLocks()
		if err := w.coordination.history.Check(); errors.Is(err, model.ErrUndecided) {
			w.counts.undecided++
		} else if err != nil {
			w.fail(nil, "the model does not explain what the clients have seen: %v", err)
		}
		w.log("empty")
		w.done = true
		return
	}
	if w.elapsed() > w.plan.chaos+hangAfter-time.Second {
		w.fail(w.unfinished(), "left behind: %s", strings.Join(left[:min(len(left), 10)], "; "))
	}
	w.after(500*time.Millisecond, w.checkEmpty)
}

func (w *world) leftovers() (left []string) {
	if t := w.server.m.Totals(); t.Tasks+t.Clients+t.Graphs > 0 || t.InlineBytes > 0 || t.ReadyQueued > 0 {
		left = append(left, fmt.Sprintf("scheduler: %+v", t))
	}
	for _, h := range w.hosts {
		if s := h.proc.leftovers(); s != "" {
			left = append(left, h.name+": "+s)
		}
	}
	return left
}
