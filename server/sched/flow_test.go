package sched_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
)

// shareWorld is a machine with one worker that ends one task at a time, in the order of ranks, as
// workers do. Its time is the number of tasks that have ended.
type shareWorld struct {
	t       interface{ Fatalf(string, ...any) }
	machine *sched.Machine
	now     time.Time
	queue   []queued
	keys    int
	// hold makes clients hold their tasks, which are forgotten at their end otherwise.
	hold bool
	// owner is the client of each task. submitted and ran count the tasks of a client, and those of
	// them that have ended.
	owner          map[ids.TaskID]ids.ClientID
	submitted, ran map[ids.ClientID]int
}

type queued struct {
	rank    uint64
	task    ids.TaskID
	attempt ids.Attempt
}

func newShareWorld(t interface{ Fatalf(string, ...any) }, config sched.Config) *shareWorld {
	w := &shareWorld{t: t, machine: sched.New(config), now: time.Unix(1000, 0), owner: map[ids.TaskID]ids.ClientID{},
		submitted: map[ids.ClientID]int{}, ran: map[ids.ClientID]int{}}
	w.step(sched.WorkerRegistered{Worker: 1, Name: "w", Incarnation: "i", Slots: 1, Executors: []string{"native"}})
	return w
}

func (w *shareWorld) step(event sched.Event) { w.obey(w.machine.Step(w.now, event, nil)) }

func (w *shareWorld) obey(effects []sched.Effect) {
	for _, e := range effects {
		switch e.Kind {
		case sched.EffectAssign:
			var a sched.Assignment
			w.machine.AssignmentOf(e.Task, &a)
			w.queue = append(w.queue, queued{a.Rank, e.Task, e.Attempt})
		case sched.EffectCancel, sched.EffectRetract:
			w.queue = slices.DeleteFunc(w.queue, func(q queued) bool { return q.task == e.Task && q.attempt == e.Attempt })
		default:
		}
	}
}

// open opens a client in a namespace.
func (w *shareWorld) open(client ids.ClientID, namespace string) {
	w.step(sched.ClientOpened{Client: client, Namespace: namespace, TTL: time.Hour})
}

// submit submits tasks of a client: chains of the given length.
func (w *shareWorld) submit(client ids.ClientID, tasks, length int) error {
	ev := sched.GraphSubmitted{Client: client, Ops: []sched.OpSpec{{Kind: sched.OpNative, Name: "op"}}}
	for i := range tasks {
		w.keys++
		spec := sched.TaskSpec{Key: fmt.Sprint("k", w.keys), Hold: w.hold}
		if i%length > 0 {
			spec.Inputs = []string{fmt.Sprint("k", w.keys-1)}
		}
		ev.Tasks = append(ev.Tasks, spec)
	}
	result, effects, err := w.machine.Submit(w.now, ev, nil)
	w.obey(effects)
	if err != nil {
		return err
	}
	w.submitted[client] += tasks
	for _, task := range result.Tasks {
		w.owner[task] = client
	}
	return nil
}

// run ends tasks, so many, or until done reports true.
func (w *shareWorld) run(most int, done func() bool) (ended int) {
	for ; ended < most && !done(); ended++ {
		if len(w.queue) == 0 {
			w.t.Fatalf("after %d tasks there is nothing to do", ended)
		}
		first := slices.MinFunc(w.queue, func(a, b queued) int {
			if a.rank != b.rank {
				return int(int64(a.rank) - int64(b.rank))
			}
			return int(int64(a.task) - int64(b.task))
		})
		w.queue = slices.DeleteFunc(w.queue, func(q queued) bool { return q == first })
		w.now = w.now.Add(time.Millisecond)
		w.ran[w.owner[first.task]]++
		w.step(sched.TasksReported{Worker: 1, Reports: []sched.Report{{Task: first.task, Attempt: first.attempt, Outcome: sched.OutcomeSucceeded, RunTime: time.Millisecond}}})
	}
	return ended
}

func never() bool { return false }

// A client with very many tasks makes ten tasks of another client take twice as long as alone, and
// what the worker has already, no more: in one namespace and in two, for chains and for single
// tasks, and also if the other one was idle before.
func TestManyTasksOfOneClientHardlyDelayAnother(t *testing.T) {
	const many, few = 2000, 10
	for _, namespace := range []string{"a", "b"} {
		for _, length := range []int{1, 100} {
			w := newShareWorld(t, sched.Config{})
			w.open(1, "a")
			w.open(2, namespace)
			for range 3 {
				if err := errors.Join(wrap(w.submit(1, many/4, length)), wrap(w.submit(2, few, 1))); err != nil {
					t.Fatal(err)
				}
				begun := w.ran[2]
				// The worker has a few tasks of the first client in advance.
				ahead := len(w.queue)
				took := w.run(many, func() bool { return w.ran[2] == begun+few })
				if took > 2*few+ahead+length {
					t.Errorf("namespace %s, chains of %d: %d tasks take the time of %d, with %d that the worker had already", namespace, length, few, took, ahead)
				}
				w.run(37, never)
			}
		}
	}
}

// wrap makes an error of the machine a plain one: a nil one stays nil.
func wrap(err error) error {
	var refused *sched.Error
	if errors.As(err, &refused) && refused == nil {
		return nil
	}
	return err
}

// While all clients have tasks, each gets its share by the weight of its namespace, however it
// submits.
func TestClientsShareByTheWeightsOfNamespaces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := sched.Config{Namespaces: map[string]sched.NamespaceLimits{}}
		names := []string{"a", "b", "c"}
		weights, total := map[string]float64{}, 0.0
		for _, name := range names {
			weights[name] = rapid.SampledFrom([]float64{0.5, 1, 2, 3, 10}).Draw(t, "weight")
			config.Namespaces[name] = sched.NamespaceLimits{Weight: weights[name]}
		}
		w := newShareWorld(t, config)
		clients := map[string][]ids.ClientID{}
		next := ids.ClientID(1)
		for _, name := range names {
			for range rapid.IntRange(1, 3).Draw(t, "clients") {
				w.open(next, name)
				clients[name] = append(clients[name], next)
				total += weights[name]
				next++
			}
		}
		// Programs submit piece by piece, so that all always have some tasks.
		refill := func() {
			for id := range next - 1 {
				id++
				if w.submitted[id]-w.ran[id] < 30 {
					if err := wrap(w.submit(id, rapid.IntRange(20, 60).Draw(t, "tasks"), 1)); err != nil {
						t.Fatalf("%v", err)
					}
				}
			}
		}
		refill()
		w.run(10, never)
		before := map[ids.ClientID]int{}
		for id, n := range w.ran {
			before[id] = n
		}
		const ran = 1000
		for range ran / 10 {
			refill()
			w.run(10, never)
		}
		for _, name := range names {
			got := 0
			for _, id := range clients[name] {
				got += w.ran[id] - before[id]
			}
			want := ran * weights[name] * float64(len(clients[name])) / total
			if float64(got) < 0.95*want-10 || float64(got) > 1.05*want+10 {
				t.Fatalf("namespace %s with weight %v of %v and %d clients ran %d of %d tasks, not about %.0f", name, weights[name], total, len(clients[name]), got, ran, want)
			}
		}
	})
}

// Tasks that were cancelled cost their client nothing later, once no other task of it is left.
func TestCancelledTasksCostNoShare(t *testing.T) {
	w := newShareWorld(t, sched.Config{})
	w.open(1, "a")
	w.open(2, "a")
	if err := errors.Join(wrap(w.submit(1, 1000, 1)), wrap(w.submit(2, 500, 1))); err != nil {
		t.Fatal(err)
	}
	w.run(20, never)
	_, effects, err := w.machine.Cancel(w.now, sched.TasksCancelled{Client: 1, Graphs: []ids.GraphID{1}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.obey(effects)
	if err := wrap(w.submit(1, 10, 1)); err != nil {
		t.Fatal(err)
	}
	begun, ahead := w.ran[1], len(w.queue)
	if took := w.run(1000, func() bool { return w.ran[1] == begun+10 }); took > 20+ahead {
		t.Errorf("ten tasks after 1,000 that were cancelled take the time of %d", took)
	}
}

func TestANamespaceIsRefusedMoreThanItMayHold(t *testing.T) {
	w := newShareWorld(t, sched.Config{Namespaces: map[string]sched.NamespaceLimits{"a": {Tasks: 100}, "*": {Bytes: 20_000}}})
	w.hold = true
	w.open(1, "a")
	w.open(2, "other")
	refused := func(what string, err error, kind sched.ErrorKind, words ...string) {
		t.Helper()
		var e *sched.Error
		if !errors.As(err, &e) || e.Kind != kind {
			t.Errorf("%s: %v", what, err)
			return
		}
		for _, word := range words {
			if !strings.Contains(e.Message, word) {
				t.Errorf("%s: the message has no %q: %s", what, word, e.Message)
			}
		}
	}
	refused("101 tasks at once", w.submit(1, 101, 1), sched.ErrInvalidField, `"a"`, "100 tasks", "--namespace-tasks")
	for range 2 {
		if err := wrap(w.submit(1, 50, 1)); err != nil {
			t.Fatal(err)
		}
	}
	refused("101 tasks", w.submit(1, 1, 1), sched.ErrFull, `"a"`, "100 tasks", "released", "--namespace-tasks")
	for {
		err := wrap(w.submit(2, 10, 1))
		if err != nil {
			refused("20 kB", err, sched.ErrFull, `"other"`, "20000 bytes", "released", "--namespace-memory")
			break
		}
	}
	w.step(sched.ClientClosed{Client: 1})
	w.open(3, "a")
	if err := wrap(w.submit(3, 100, 1)); err != nil {
		t.Errorf("after all tasks were released: %v", err)
	}
}
