package loop_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/coord"
	"github.com/millrace/millrace/server/loop"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
	"github.com/millrace/millrace/server/templates"
)

// history is a random history of a scheduler with clients and workers.
type history struct {
	*start
	random  *rand.Rand
	clients []ids.ClientID
	graphs  []ids.GraphID
	// owners are the clients of the graphs.
	owners  map[ids.GraphID]ids.ClientID
	workers []*worker
	joined  int
	// log says what was done.
	log []string
}

// One key always names the same task: of a computed one, inputs are keys with lower numbers.
const (
	historyKeys = 14
	historyData = 3
	// historyTemplates is the number of templates, of which keptTemplates are kept.
	historyTemplates, keptTemplates = 6, 3
)

func historyTask(i int) (spec sched.TaskSpec) {
	spec.Key = fmt.Sprint("k", i)
	switch {
	case i < historyData:
		spec.Op = 1
	case i%3 > 0:
		spec.Inputs = []string{fmt.Sprint("k", i-1)}
		if i%3 == 2 {
			spec.Inputs = append(spec.Inputs, fmt.Sprint("k", i/2-1))
		}
	}
	return spec
}

// did notes a request. It may be refused, but only for a reason of the request.
func (h *history) did(what string, err error) {
	h.t.Helper()
	h.log = append(h.log, fmt.Sprintf("%s: %v", what, err))
	var refused *sched.Error
	var other *coord.Error
	var api *schedapi.Error
	if err != nil && !errors.As(err, &refused) && !errors.As(err, &other) && !errors.As(err, &api) {
		h.t.Fatalf("%s: %v", what, err)
	}
}

func pick[T any](h *history, from []T) (one T) {
	if len(from) > 0 {
		one = from[h.random.IntN(len(from))]
	}
	return one
}

func (h *history) coin() bool { return h.random.IntN(2) == 0 }

func (h *history) key() string { return fmt.Sprint("k", h.random.IntN(historyKeys)) }

// known lists the numbers of the known tasks.
func (h *history) known() (all []ids.TaskID) {
	h.must(h.Read(h.t.Context(), func(r schedapi.Reader) {
		some, _ := r.Tasks(sched.TaskFilter{}, 0, 1000)
		for i := range some {
			all = append(all, some[i].Task)
		}
	}))
	return all
}

func (h *history) some() (tasks []ids.TaskID) {
	known := h.known()
	for range min(h.random.IntN(3)+1, len(known)) {
		tasks = append(tasks, pick(h, known))
	}
	return tasks
}

func (h *history) submitSome() {
	ev := sched.GraphSubmitted{Namespace: "n", Retention: time.Hour, Ops: []sched.OpSpec{{Kind: sched.OpNative, Name: "op"}, {Kind: sched.OpData, Name: "data"}}}
	if h.random.IntN(4) > 0 {
		ev.Client = pick(h, h.clients)
	}
	if graph := pick(h, h.graphs); h.random.IntN(4) == 0 && graph != 0 {
		ev.Graph, ev.Client = graph, h.owners[graph]
	}
	first := h.random.IntN(historyKeys)
	for i := first; i < min(first+h.random.IntN(4)+1, historyKeys); i++ {
		if spec := historyTask(i); h.random.IntN(4) > 0 {
			spec.Hold = h.coin()
			ev.Tasks = append(ev.Tasks, spec)
		}
	}
	if h.random.IntN(4) == 0 {
		ev.RequestID = fmt.Sprint("r", h.random.IntN(3))
	}
	accepted, err := h.Submit(h.t.Context(), schedapi.Submission{Graph: ev})
	if err == nil {
		h.graphs = append(h.graphs, accepted.Graph)
		h.owners[accepted.Graph] = ev.Client
	}
	h.did(fmt.Sprintf("submit %v of %d to %d, request %q, is %v of %d", ev.Tasks, ev.Client, ev.Graph, ev.RequestID, accepted.Tasks, accepted.Graph), err)
}

// report sends reports of a worker, and waits until they are handled.
func (h *history) report(w *worker, in schedapi.Inbound) {
	h.must(w.Report(h.t.Context(), in))
	h.settle()
}

// settle lets the workers carry out all orders, and answer those that need an answer.
func (h *history) settle() {
	for again := true; again; {
		again = false
		h.must(h.Read(h.t.Context(), func(schedapi.Reader) {}))
		for _, w := range h.workers {
			var out schedapi.Outbound
			for w.Take(&out) {
				again = true
				var in schedapi.Inbound
				for i := range out.Assignments {
					w.running[out.Assignments[i].Task] = out.Assignments[i].Attempt
				}
				for _, r := range out.Retractions {
					if w.running[r.Task] == r.Attempt {
						in.Reports = append(in.Reports, sched.Report{Task: r.Task, Attempt: r.Attempt, Outcome: sched.OutcomeRetracted})
						delete(w.running, r.Task)
					}
				}
				for _, r := range out.Cancellations {
					if w.running[r.Task] == r.Attempt {
						delete(w.running, r.Task)
					}
				}
				for _, r := range out.Releases {
					if w.has[r.Task] == r.Generation {
						delete(w.has, r.Task)
					}
				}
				for _, r := range out.Keeps {
					if w.has[r.Task] == r.Generation {
						in.Gained = append(in.Gained, sched.Stored{Replica: sched.Replica{Task: r.Task, Generation: r.Generation, Bytes: 8}, Kept: true})
					}
				}
				h.must(w.Report(h.t.Context(), in))
			}
		}
	}
}

// work lets a worker do something.
func (h *history) work() {
	w := pick(h, h.workers)
	switch h.random.IntN(12) {
	case 0: // It loses an object.
		for _, task := range slices.Sorted(maps.Keys(w.has)) {
			lost := sched.Replica{Task: task, Generation: w.has[task]}
			delete(w.has, task)
			h.report(w, schedapi.Inbound{Lost: []sched.Replica{lost}})
			h.did(fmt.Sprintf("worker %s loses %s", w.name, task), nil)
			return
		}
	case 1: // It leaves, and another one comes.
		h.must(w.Report(h.t.Context(), schedapi.Inbound{Leaving: true}))
		h.workers = slices.DeleteFunc(h.workers, func(other *worker) bool { return other == w })
		h.settle()
		h.joined++
		h.workers = append(h.workers, h.join(fmt.Sprint("w", h.joined), nil))
		h.settle()
		h.did(fmt.Sprintf("worker %s leaves", w.name), nil)
	case 2, 3: // A client writes the bytes of scattered data.
		var data []ids.TaskID
		h.must(h.Read(h.t.Context(), func(r schedapi.Reader) {
			for i := range historyData {
				if task, known := r.Lookup("n", fmt.Sprint("k", i)); known {
					if info, _ := r.Task(task); info.State == sched.TaskWaiting && info.Attempt == 0 {
						data = append(data, task)
					}
				}
			}
		}))
		if task := pick(h, data); task != 0 {
			w.has[task] = 1
			h.report(w, schedapi.Inbound{Gained: []sched.Stored{{Replica: sched.Replica{Task: task, Generation: 1, Bytes: 8}, Written: true}}})
			h.until("the bytes are accepted", func(r schedapi.Reader) bool {
				info, known := r.Task(task)
				return !known || info.State != sched.TaskWaiting
			})
			h.did(fmt.Sprintf("%s is written to %s", task, w.name), nil)
		}
	default: // A task ends whose inputs exist.
		for _, task := range slices.Sorted(maps.Keys(w.running)) {
			missing, inputEnded := false, false
			h.must(h.Read(h.t.Context(), func(r schedapi.Reader) {
				info, _ := r.Task(task)
				missing = info.MissingInputs > 0
				for _, input := range info.InputTasks {
					other, _ := r.Task(input)
					inputEnded = inputEnded || other.State > sched.TaskSucceeded
				}
			}))
			if missing && !inputEnded {
				continue
			}
			report := sched.Report{Task: task, Attempt: w.running[task], Outcome: sched.OutcomeSucceeded, OutputBytes: 8}
			delete(w.running, task)
			switch {
			case inputEnded:
				report.Outcome = sched.OutcomeCancelled
			case h.random.IntN(6) == 0:
				report.Outcome, report.Err = sched.OutcomeFailed, &sched.TaskError{Reason: "R", Message: "m"}
			default:
				w.has[task] = report.Attempt
			}
			h.report(w, schedapi.Inbound{Reports: []sched.Report{report}})
			h.did(fmt.Sprintf("%s ends at %s: %d", task, w.name, report.Outcome), nil)
			return
		}
	}
}

// request makes a random request.
func (h *history) request() {
	ctx := h.t.Context()
	client := pick(h, h.clients)
	set := schedapi.TaskSet{Tasks: h.some()}
	place := schedapi.Place{Namespace: "n"}
	switch kind := h.random.IntN(14); kind {
	case 0:
		if len(h.clients) < 4 {
			h.clients = append(h.clients, h.open("c"))
			h.did("open", nil)
		}
	case 1:
		if n := len(h.clients); n > 2 {
			i := h.random.IntN(n)
			h.did(fmt.Sprintf("close %d", h.clients[i]), h.CloseClient(ctx, h.clients[i]))
			h.clients = slices.Delete(h.clients, i, i+1)
		}
	case 2:
		_, err := h.Hold(ctx, client, set)
		h.did(fmt.Sprintf("%d holds %v", client, set), err)
	case 3, 4, 5:
		h.did(fmt.Sprintf("%d releases %v", client, set), h.Release(ctx, client, set))
	case 6:
		event := sched.TasksCancelled{Client: client, Force: h.random.IntN(4) == 0}
		if graph := pick(h, h.graphs); h.coin() && graph != 0 {
			event.Graphs, set = []ids.GraphID{graph}, schedapi.TaskSet{}
		}
		_, err := h.Cancel(ctx, event, set)
		h.did(fmt.Sprintf("%d cancels %v, %v, force %v", client, set, event.Graphs, event.Force), err)
	case 7:
		_, err := h.Retry(ctx, client, set, nil)
		h.did(fmt.Sprintf("retry %v", set), err)
	case 8:
		graph := pick(h, h.graphs)
		event := sched.GraphReleased{Graph: graph, Cancel: h.coin()}
		h.did(fmt.Sprintf("release %+v", event), h.ReleaseGraph(ctx, event))
	case 9:
		name := fmt.Sprint("d", h.random.IntN(2))
		spec := schedapi.DatasetSpec{Namespace: "n", Name: name, Keys: []string{h.key()}, Replace: h.coin()}
		_, err := h.Publish(ctx, spec)
		h.did(fmt.Sprintf("publish %+v", spec), err)
	case 10:
		name := fmt.Sprint("d", h.random.IntN(2))
		h.did("unpublish "+name, h.Unpublish(ctx, "n", name))
	case 11:
		name := fmt.Sprint("v", h.random.IntN(2))
		key := h.key()
		h.did("set "+name+" to "+key, h.SetVariable(ctx, place, name, coord.Value{Keys: []string{key}}))
	case 12:
		name := fmt.Sprint("v", h.random.IntN(2))
		if h.coin() {
			h.did("delete "+name, h.DeleteVariable(ctx, place, name))
			break
		}
		answer, err := h.Ask(ctx, schedapi.Place{Client: client}, coord.Call{Ask: coord.ReadVariable{Name: name}})
		h.did(fmt.Sprintf("%d reads %s: %v", client, name, answer), err)
	case 13:
		hash := byte(h.random.IntN(historyTemplates))
		h.define("n", hash)
		h.did(fmt.Sprint("define ", hash), nil)
	}
	h.settle()
}

// state describes all that must be the same after a restart. A task on its way to a result may be
// anywhere there. It is open how a task ends that a worker has and whose input has failed: the
// worker may have fetched the input before that was lost.
func (h *history) state() (state []string, open bool) {
	h.must(h.Read(h.t.Context(), func(r schedapi.Reader) {
		some, _ := r.Tasks(sched.TaskFilter{}, 0, 1000)
		for i := range some {
			info := &some[i]
			text := info.State.String()
			switch {
			case info.State < sched.TaskSucceeded:
				text = "on its way"
			case info.Holders == 0 && info.State > sched.TaskSucceeded:
				text = "not wanted" // It runs again if it is.
			}
			for _, input := range info.InputTasks {
				other, _ := r.Task(input)
				open = open || info.State < sched.TaskSucceeded && (other.State == sched.TaskFailed || other.State == sched.TaskCancelled)
			}
			state = append(state, fmt.Sprintf("%s: %s of graph %s has %d holders and is %s", info.Task, info.Key, info.Graph, info.Holders, text))
		}
	}))
	snapshot, err := h.Snapshot(h.t.Context())
	h.must(err)
	for i := range 2 {
		if d := snapshot.Dataset("n", fmt.Sprint("d", i)); d != nil {
			state = append(state, fmt.Sprintf("%s is %d, of %v", d.Name, d.Number, d.Keys))
		}
	}
	for hash := range byte(historyTemplates) {
		if h.Template("n", templates.Hash{hash}) != nil {
			state = append(state, fmt.Sprintf("template %d is known", hash))
		}
	}
	return state, open
}

// kill kills the scheduler and starts the next one. All workers come back with what they have.
func (h *history) kill() {
	h.settle()
	exact := h.coin()
	if exact {
		h.must(h.CloseClient(h.t.Context(), h.open("sync"))) // All records are durable then.
	}
	before, open := h.state()
	exact = exact && !open
	h.log = append(h.log, fmt.Sprintf("kill, exact %v", exact))
	if h.random.IntN(4) == 0 {
		h.start = h.stop()
	} else {
		h.start = h.restart()
	}
	for i, w := range h.workers {
		h.workers[i] = h.join(w.name, w)
	}
	h.settle()
	if after, _ := h.state(); exact && !slices.Equal(before, after) {
		h.t.Fatalf("before the restart:\n%s\nafter it:\n%s\nhistory:\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"), strings.Join(h.log, "\n"))
	}
}

// A scheduler is killed at random points of a random history. The next one has the same tasks, with
// the same numbers, holders and ends, and the same datasets, as the one before.
func TestARestartedSchedulerIsAsTheOneBefore(t *testing.T) {
	const seeds, steps = 60, 80
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			h := &history{random: rand.New(rand.NewPCG(seed, 1)), owners: map[ids.GraphID]ids.ClientID{}}
			// The clock hardly advances, so no time is over.
			var ticks atomic.Int64
			began := time.Now()
			clock := func() time.Time { return began.Add(time.Duration(ticks.Add(1)) * time.Microsecond) }
			d := newDirectory(t)
			d.snapshotBytes = int(seed % 2) // With 1, each stop in good order takes a snapshot.
			h.start = begin(t, d, loop.Config{Clock: clock, RestartGrace: time.Hour, Random: h.random.Uint64,
				Templates: templates.Limits{Templates: keptTemplates, Bytes: 1 << 20, AllBytes: 1 << 20}})
			for range 2 {
				h.clients = append(h.clients, h.open("c"))
				h.joined++
				h.workers = append(h.workers, h.join(fmt.Sprint("w", h.joined), nil))
			}
			for range steps {
				switch n := h.random.IntN(20); {
				case n < 5:
					h.submitSome()
				case n < 12:
					h.work()
				case n < 19:
					h.request()
				default:
					h.kill()
				}
			}
			h.kill()
		})
	}
}
