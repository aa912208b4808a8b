package sched_test

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
)

// stencilWorld simulates stencils of short tasks on workers that notify each other, in its own
// time. Each worker runs one task at a time. Notifications and reports take as long as measured on
// machines with GPUs. It shows at which workers the machine places the points, and how long a step
// takes.
type stencilWorld struct {
	m       *sched.Machine
	random  *rand.Rand
	now     float64 // µs
	events  happenings
	n       int // number of events so far
	workers []*stencilWorker
	effects []sched.Effect
	run     float64 // µs
	ran     map[string]ids.WorkerID
}

// All times are in µs: the shortest, and the largest random addition (More).
const (
	stencilTask         = 25 // overhead beside the kernel
	stencilTaskMore     = 10
	stencilWord         = 12
	stencilWordMore     = 10
	stencilReport       = 60
	stencilReportMore   = 150
	stencilAssignment   = 80
	stencilResultBytes  = 1 << 20
	stencilBytesASecond = 100e9
)

type stencilWorker struct {
	id      ids.WorkerID
	todo    []sched.Assignment
	busy    bool
	has     map[ids.TaskID]bool
	reports []sched.Report
	sending bool
}

// happening is an event in simulated time. Events of the same time keep their order.
type happening struct {
	at float64
	n  int
	do func()
}

type happenings []happening

func (h happenings) Len() int { return len(h) }
func (h happenings) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].n < h[j].n
}
func (h happenings) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *happenings) Push(x any)   { *h = append(*h, x.(happening)) }
func (h *happenings) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// newStencilWorld makes the given number of workers. The latencies between them, as the machine
// knows them, differ by up to spread µs.
func newStencilWorld(workers int, slots uint32, run, spread float64) *stencilWorld {
	s := &stencilWorld{m: sched.New(sched.Config{}), random: rand.New(rand.NewPCG(1, 2)), run: run, ran: make(map[string]ids.WorkerID)}
	var rates sched.RatesMeasured
	for i := range workers {
		w := &stencilWorker{id: ids.WorkerID(i + 1), has: make(map[ids.TaskID]bool)}
		s.workers = append(s.workers, w)
		s.step(sched.WorkerRegistered{Worker: w.id, Name: fmt.Sprint("w", i), Host: "h", Slots: slots, MemoryBytes: 100 << 30, Executors: []string{"native"}, Notifies: true})
		for k := range workers {
			if k != i {
				rates = append(rates, sched.RateMeasured{From: ids.WorkerID(k + 1), To: w.id, BytesPerSecond: stencilBytesASecond, Latency: micros(8 + spread*s.random.Float64())})
			}
		}
	}
	s.step(rates)
	s.step(sched.ClientOpened{Client: 1, TTL: time.Hour})
	return s
}

func micros(n float64) time.Duration { return time.Duration(n * 1e3) }

func (s *stencilWorld) time() time.Time { return time.Unix(1_700_000_000, 0).Add(micros(s.now)) }

func (s *stencilWorld) after(least, more float64, do func()) {
	s.n++
	heap.Push(&s.events, happening{s.now + least + more*s.random.Float64(), s.n, do})
}

func (s *stencilWorld) step(ev sched.Event) { s.applyEnding(s.m.Step(s.time(), ev, s.effects[:0])) }

func (s *stencilWorld) applyEnding(effects []sched.Effect) {
	s.effects = effects
	for _, e := range effects {
		if e.Kind != sched.EffectAssign {
			continue
		}
		var a sched.Assignment
		s.m.AssignmentOf(e.Task, &a)
		a.Inputs = slices.Clone(a.Inputs)
		w := s.workers[e.Worker-1]
		s.after(stencilAssignment, 0, func() {
			w.todo = append(w.todo, a)
			s.begin(w)
		})
	}
}

// begin starts the task of lowest rank among a worker's tasks whose inputs exist.
func (s *stencilWorld) begin(w *stencilWorker) {
	first := -1
	for i, a := range w.todo {
		missing := slices.ContainsFunc(a.Inputs, func(in sched.AssignedInput) bool { return !w.has[in.Task] })
		if !missing && (first < 0 || a.Rank < w.todo[first].Rank) {
			first = i
		}
	}
	if w.busy || first < 0 {
		return
	}
	a := w.todo[first]
	w.todo = slices.Delete(w.todo, first, first+1)
	w.busy = true
	began := s.now
	s.after(s.run+stencilTask, stencilTaskMore, func() {
		w.busy = false
		s.ran[a.Key] = w.id
		for _, other := range s.workers {
			hear := func() {
				other.has[a.Task] = true
				s.begin(other)
			}
			if other == w {
				hear()
			} else {
				s.after(stencilWord, stencilWordMore, hear)
			}
		}
		w.reports = append(w.reports, sched.Report{Task: a.Task, Attempt: a.Attempt, Outcome: sched.OutcomeSucceeded, OutputBytes: stencilResultBytes, RunTime: micros(s.now - began)})
		if !w.sending {
			w.sending = true
			s.after(stencilReport, stencilReportMore, func() {
				reports := w.reports
				w.reports, w.sending = nil, false
				s.step(sched.TasksReported{Worker: w.id, Reports: reports})
			})
		}
	})
}

// stencil runs a stencil of the given number of steps, with one point per worker. It returns the
// mean time of a step in µs, and the number of steps in which two points were at one worker.
func (s *stencilWorld) stencil(t *testing.T, name string, steps int) (took float64, together int) {
	t.Helper()
	width := len(s.workers)
	key := func(step, point int) string { return fmt.Sprint(name, "-", step, "-", point) }
	var specs []sched.TaskSpec
	for step := range steps {
		for point := range width {
			spec := sched.TaskSpec{Key: key(step, point), Hold: step == steps-1}
			for near := max(point-1, 0); step > 0 && near <= min(point+1, width-1); near++ {
				spec.Inputs = append(spec.Inputs, key(step-1, near))
			}
			specs = append(specs, spec)
		}
	}
	began := s.now
	_, effects, err := s.m.Submit(s.time(), sched.GraphSubmitted{Client: 1, Ops: []sched.OpSpec{{Kind: sched.OpNative, Name: "bench.busy"}}, Tasks: specs}, s.effects[:0])
	if err != nil {
		t.Fatal(err)
	}
	s.applyEnding(effects)
	for len(s.events) > 0 {
		h := heap.Pop(&s.events).(happening)
		s.now = h.at
		h.do()
	}
	for step := range steps {
		at := make(map[ids.WorkerID]bool)
		for point := range width {
			if s.ran[key(step, point)] == 0 {
				t.Fatalf("%s has not run", key(step, point))
			}
			at[s.ran[key(step, point)]] = true
		}
		if len(at) < width {
			together++
		}
	}
	return (s.now - began) / float64(steps), together
}

// A stencil with one point per worker puts one point on each worker, for any task length, any order
// of reports, and any small differences between the latencies.
func TestPointsOfAStencilPartEvenly(t *testing.T) {
	const steps, rounds, spread = 60, 2, 20
	all, allTogether := 0, 0
	for _, workers := range []int{4, 8} {
		for _, slots := range []uint32{1, 4} {
			for _, run := range []float64{100, 400, 800} {
				s := newStencilWorld(workers, slots, run, spread)
				for round := range rounds {
					took, together := s.stencil(t, fmt.Sprint(round), steps)
					if round == 0 {
						continue // in the first round the run time is not known yet
					}
					// The slowest task of a step, and one notification.
					ideal := run + stencilTask + stencilTaskMore + stencilWord + stencilWordMore
					t.Logf("%d workers of %d slots, %4.0f µs: %6.1f µs a step, %.2f of ideal, %d of %d together", workers, slots, run, took, took/ideal, together, steps)
					all, allTogether = all+steps, allTogether+together
					if took > 1.05*ideal {
						t.Errorf("%d workers of %d slots, tasks of %.0f µs: a step took %.1f µs and could take %.1f", workers, slots, run, took, ideal)
					}
				}
			}
		}
	}
	if allTogether > all/100 {
		t.Errorf("two points of %d of %d steps were at one worker", allTogether, all)
	}
}
