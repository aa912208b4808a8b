package sim

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/copies"
	"github.com/millrace/millrace/server/loop"
	"github.com/millrace/millrace/server/members"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// server is the scheduler: the real loop, which runs in virtual time, and the streams between it
// and the workers and clients.
type server struct {
	w    *world
	loop *loop.Loop
	// m is the machine of the loop, for the checks of the simulation. Only the loop changes it.
	m *sched.Machine
	// alarm is the time of the loop's next pass in the agenda; zero: there is none.
	alarm time.Time

	// up: it runs. starts counts its starts, and random the numbers that it has drawn. disk has its
	// journal; nil: it has none, and is never killed.
	up     bool
	starts int
	random uint64
	disk   *disk
	// skew is how far its clock is ahead. It changes while the scheduler is down.
	skew time.Duration
	// acknowledged are graphs that the next start must know, and before results that workers held
	// at the last kill.
	acknowledged []ids.GraphID
	before       map[ids.TaskID]held

	streams  []*stream
	watches  []*watch
	lastLink uint64
	// workers has all workers that ever registered, and ids the last number of each name.
	workers map[ids.WorkerID]*process
	ids     map[string]ids.WorkerID

	// answered are the accepted submissions, by request id, with their graphs. detached are the
	// graphs of no client that may still end, with the time of the end that was checked last.
	answered map[string]ids.GraphID
	detached []*detached
	// draining are the workers whose drains have not come to their end. moved is the number of
	// objects that rebalances have moved, and moving says that the last pass has moved some.
	draining []ids.WorkerID
	moved    uint64
	moving   bool
	// assigned has every attempt that was ever sent, with its worker.
	assigned map[sched.TaskRef]ids.WorkerID

	checkEvery, stepsSinceCheck int
}

// detached is a graph that no client holds.
type detached struct {
	graph   ids.GraphID
	checked time.Time
}

func newServer(w *world, checkEvery int) *server {
	s := &server{
		w: w, workers: map[ids.WorkerID]*process{}, ids: map[string]ids.WorkerID{},
		answered: map[string]ids.GraphID{}, assigned: map[sched.TaskRef]ids.WorkerID{}, checkEvery: checkEvery,
	}
	if w.plan.restartEvery > 0 {
		s.disk = &disk{files: map[string]*content{}}
	}
	s.boot()
	return s
}

// settle follows each call to the loop: it lets the loop do the work that waits, and sends what the
// loop has put into its outboxes.
func (s *server) settle() {
	if !s.up {
		return
	}
	next := s.loop.Pass().Add(-s.skew)
	if s.alarm.IsZero() || next.Before(s.alarm) {
		s.alarm = next
		s.w.at(next, func() {
			if s.alarm.Equal(next) {
				s.alarm = time.Time{}
				s.settle()
			}
		})
	}
	s.check()
	s.checkDetached()
	s.checkDrained()
	moved := s.m.Totals().Moved
	s.moving, s.moved = moved != s.moved, moved
	for _, x := range slices.Clone(s.streams) {
		x.empty()
	}
	for _, v := range slices.Clone(s.watches) {
		v.empty()
	}
	s.forgetReturned()
}

// check tests the machine's invariants once in checkEvery calls.
func (s *server) check() {
	if s.stepsSinceCheck++; s.stepsSinceCheck >= s.checkEvery {
		s.deepCheck()
	}
}

func (s *server) deepCheck() {
	s.stepsSinceCheck = 0
	if err := s.m.Check(); err != nil {
		s.w.fail(nil, "the scheduler's invariant is broken: %v", err)
	}
}

// process returns the process of a worker that is not lost.
func (s *server) process(id ids.WorkerID) *process {
	if p := s.workers[id]; p != nil && !p.dead && s.knows(id) {
		return p
	}
	return nil
}

func (s *server) knows(id ids.WorkerID) bool {
	_, known := s.m.Worker(id)
	return known
}

// maxWorkerDeaths is the number of deaths from which on a task is to blame.
const maxWorkerDeaths = 4

// blame counts the death of a process for the tasks that it had, also as far as the scheduler
// knows.
func (s *server) blame(p *process) {
	had, _ := s.m.Tasks(sched.TaskFilter{Worker: s.ids[p.host.name]}, 0, math.MaxInt)
	blamed := map[ids.TaskID]bool{}
	for i := range had {
		blamed[had[i].Task] = true
	}
	// order-free: each is counted once.
	for _, l := range p.slots.all {
		for _, j := range l.jobs {
			blamed[j.ref.Task] = true
		}
	}
	// order-free: counters.
	for id := range blamed {
		if x := s.w.oracle.byTask[id]; x != nil { // nil: a copy that was not sent yet
			x.deaths++
		}
	}
}

// died handles a supervisor's report that an incarnation has ended.
func (s *server) died(name, incarnation string) {
	death := members.Death{Incarnation: incarnation, Cause: "killed by SIGKILL", Signal: "SIGKILL"}
	s.whenUp(func() { s.must(s.loop.ReportDeath(context.Background(), members.Died{Name: name, Death: death})) })
}

// must follows a call that cannot fail.
func (s *server) must(err error) {
	if err != nil && !unwritten(err) {
		s.w.fail(nil, "the scheduler refuses: %v", err)
	}
	s.settle()
}

// orderDrain is an operator's order to drain workers.
func (s *server) orderDrain(names []string, purpose copies.DrainPurpose, timeout time.Duration) {
	var workers []ids.WorkerID
	for _, name := range names {
		if id := s.ids[name]; s.knows(id) && !slices.Contains(workers, id) {
			workers = append(workers, id)
		}
	}
	if len(workers) == 0 || !s.up {
		return
	}
	s.w.log("%v (%v) are to be drained, purpose %d, timeout %s", names, workers, purpose, timeout)
	s.w.counts.drained++
	s.draining = append(s.draining, workers...)
	s.ordered(s.loop.DrainWorkers(context.Background(), sched.DrainOrdered{Workers: workers, Purpose: purpose, Reason: "simulated", Timeout: timeout}))
}

// checkDrained checks that workers that have just become DRAINED could end without a loss.
func (s *server) checkDrained() {
	s.draining = slices.DeleteFunc(s.draining, func(id ids.WorkerID) bool {
		info, known := s.m.Worker(id)
		if !known || info.State != sched.WorkerStateDrained {
			return !known
		}
		tasks, _ := s.m.Tasks(sched.TaskFilter{}, 0, math.MaxInt)
		for i := range tasks {
			t := &tasks[i]
			if t.Worker == id {
				s.w.fail([]ids.TaskID{t.Task}, "%s (%s) is drained, and has the task %s", info.Name, id, t.Key)
			}
			safe := func(at ids.WorkerID) bool {
				other, _ := s.m.Worker(at)
				return other.State == sched.WorkerStateActive
			}
			if t.State == sched.TaskSucceeded && !t.Inline && slices.Contains(t.Replicas, id) && !slices.ContainsFunc(t.Replicas, safe) {
				s.w.fail([]ids.TaskID{t.Task}, "%s (%s) is drained, and has the only copy of %s that is safe", info.Name, id, t.Key)
			}
		}
		return true
	})
}

// undoDrain is an operator's order to use a worker again.
func (s *server) undoDrain(name string) {
	s.whenUp(func() {
		s.w.log("the drain of %s is undone", name)
		s.ordered(s.loop.UndoDrains(context.Background(), []string{name}))
	})
}

// orderRebalance is an operator's order to even out the bytes that workers hold. It has no number
// if it is refused, or is only planned.
func (s *server) orderRebalance(order sched.RebalanceOrdered) (schedapi.Rebalance, copies.RebalanceInfo) {
	r, info, err := s.loop.Rebalance(context.Background(), order)
	s.w.log("rebalance %d moves %d objects", info.Number, info.PlannedObjects)
	s.ordered(err)
	return r, info
}

func (s *server) stopRebalance(r schedapi.Rebalance) {
	if s.up {
		s.w.log("a rebalance is stopped")
		r.Stop(context.Background()) // It may be one of a scheduler that was killed.
		s.settle()
	}
}

// ordered follows an operator's order, which may be refused.
func (s *server) ordered(err error) {
	refused := (*sched.Error)(nil)
	if errors.As(err, &refused) {
		s.w.log("  refused: %s", refused.Message)
		err = nil
	}
	s.must(err)
}

// checkDetached checks the outcomes of detached graphs that have ended.
func (s *server) checkDetached() {
	s.detached = slices.DeleteFunc(s.detached, func(d *detached) bool {
		info, known := s.m.Graph(d.graph)
		if known && !info.EndedAt.IsZero() && !info.EndedAt.Equal(d.checked) {
			d.checked = info.EndedAt
			s.checkEnded(d.graph)
		}
		return !known
	})
}

// runsDetached says whether a graph of no client has not ended.
func (s *server) runsDetached() bool {
	return slices.ContainsFunc(s.detached, func(d *detached) bool {
		info, known := s.m.Graph(d.graph)
		return known && info.EndedAt.IsZero()
	})
}

func (s *server) checkEnded(graph ids.GraphID) {
	for _, spec := range s.w.oracle.graphs[graph] {
		task, ok := s.m.Lookup(spec.namespace, spec.key)
		if !ok {
			continue
		}
		t, _ := s.m.Task(task)
		if t.State == sched.TaskReleased || t.Graph != graph {
			continue
		}
		if err := s.w.oracle.check(spec, t.State, t.Err); err != nil {
			s.w.fail([]ids.TaskID{task}, "detached graph %s: %v", graph, err)
		}
	}
}

// logHandler puts the log of a loop into the trace.
type logHandler struct {
	w       *world
	process string
	least   slog.Level
}

// Enabled is part of slog.Handler.
func (h *logHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.least
}

// Handle is part of slog.Handler.
func (h *logHandler) Handle(_ context.Context, r slog.Record) error {
	line := []byte(h.process + ": " + r.Message)
	r.Attrs(func(a slog.Attr) bool {
		line = append(line, ' ')
		line = append(line, a.String()...)
		return true
	})
	h.w.log("%s", line)
	return nil
}

// WithAttrs is part of slog.Handler.
func (h *logHandler) WithAttrs([]slog.Attr) slog.Handler { return h }

// WithGroup is part of slog.Handler.
func (h *logHandler) WithGroup(string) slog.Handler { return h }
