package sim

import (
	"context"
	"errors"
	"log/slog"
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
	random := uint64(0)
	s := &server{
		w: w, workers: map[ids.WorkerID]*process{}, ids: map[string]ids.WorkerID{},
		answered: map[string]ids.GraphID{}, assigned: map[sched.TaskRef]ids.WorkerID{}, checkEvery: checkEvery,
	}
	s.loop = loop.New(loop.Config{
		Machine:        sched.Config{FirstTask: 1, InlineResultBytes: inlineBytes, InlineBudgetBytes: 1 << 10, MaxWorkerDeaths: 8, ChainBytes: 8 << 10},
		Cluster:        schedapi.Cluster{Life: life, WorkerLease: workerLease, InlineResultBytes: inlineBytes},
		ReconnectGrace: reconnectGrace,
		Log:            slog.New(&logHandler{w: w, process: "scheduler", least: slog.LevelInfo}),
		Clock:          func() time.Time { return w.now },
		// Clients get numbers that a person can read.
		Random: func() uint64 { random += 2; return random },
	})
	err := s.loop.Read(context.Background(), func(r schedapi.Reader) { s.m = r.(*sched.Machine) })
	if err != nil {
		w.fail(nil, "the scheduler does not start: %v", err)
	}
	return s
}

// settle follows each call to the loop: it lets the loop do the work that waits, and sends what the
// loop has put into its outboxes.
func (s *server) settle() {
	next := s.loop.Pass()
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
	for _, x := range slices.Clone(s.streams) {
		x.empty()
	}
	for _, v := range slices.Clone(s.watches) {
		v.empty()
	}
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

// lost is the number of workers that were ever lost.
func (s *server) lost() int { return len(s.workers) - int(s.m.Totals().Workers) }

// died handles a supervisor's report that an incarnation has ended.
func (s *server) died(name, incarnation string) {
	death := members.Death{Incarnation: incarnation, Cause: "killed by SIGKILL", Signal: "SIGKILL"}
	s.must(s.loop.ReportDeath(context.Background(), members.Died{Name: name, Death: death}))
}

// must follows a call that cannot fail.
func (s *server) must(err error) {
	if err != nil {
		s.w.fail(nil, "the scheduler refuses: %v", err)
	}
	s.settle()
}

// orderDrain is an operator's order to drain a worker.
func (s *server) orderDrain(name string, purpose copies.DrainPurpose, timeout time.Duration) {
	id := s.ids[name]
	if !s.knows(id) {
		return
	}
	s.w.log("%s (%s) is to be drained, purpose %d, timeout %s", name, id, purpose, timeout)
	s.w.counts.drained++
	s.ordered(s.loop.DrainWorkers(context.Background(), sched.DrainOrdered{Workers: []ids.WorkerID{id}, Purpose: purpose, Reason: "simulated", Timeout: timeout}))
}

// undoDrain is an operator's order to use a worker again.
func (s *server) undoDrain(name string) {
	s.w.log("the drain of %s is undone", name)
	s.ordered(s.loop.UndoDrains(context.Background(), []string{name}))
}

// orderRebalance is an operator's order to even out the bytes that workers hold.
func (s *server) orderRebalance() schedapi.Rebalance {
	r, info, err := s.loop.Rebalance(context.Background(), sched.RebalanceOrdered{})
	s.w.log("rebalance %d moves %d objects", info.Number, info.PlannedObjects)
	s.ordered(err)
	return r
}

func (s *server) stopRebalance(r schedapi.Rebalance) {
	s.w.log("a rebalance is stopped")
	r.Stop(context.Background())
	s.settle()
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
