package sched

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// Explanation says why a task is not running, or how it ended.
type Explanation struct {
	Task TaskInfo
	// Status is one of Statuses().
	Status string
	// Text is a sentence with the same status and a remedy.
	Text string
	// Missing are inputs without an object, at most 20.
	Missing []TaskInfo
	// Workers are the verdicts of at most 100 workers.
	Workers []Verdict
}

// Verdict describes one worker as a place for one task.
type Verdict struct {
	Worker   ids.WorkerID
	Name     string
	Feasible bool
	// Reason says why the worker is not feasible; empty if it is.
	Reason       string
	QueueSeconds float64
	MissingBytes uint64
	// TransferSeconds is the estimated time to fetch the missing bytes.
	TransferSeconds float64
	// FinishSeconds is the estimated time from now until the task would end there.
	FinishSeconds float64
	// Sources are the workers from which the missing bytes would come, in the order of the inputs;
	// at most 8.
	Sources []Source
}

// Source is a worker from which inputs would be fetched.
type Source struct {
	Worker ids.WorkerID
	Bytes  uint64
}

const (
	explainedInputs  = 20
	explainedWorkers = 100
	explainedSources = 8
)

// Explain says why a task is not running, or how it ended.
func (m *Machine) Explain(now time.Time, id ids.TaskID) (Explanation, bool) {
	b, t := m.lookup(id)
	if t == nil {
		return Explanation{}, false
	}
	info, _ := m.Task(id)
	e := Explanation{Task: info}
	edges := b.edgesOf(t)
	var waits []string // descriptions of e.Missing
	items := 0
	for i := range edges {
		if !t.state.active() {
			break // A task that has ended needs no inputs, and they may have been released.
		}
		in := &edges[i]
		if in.item != 0 {
			items++
		}
		if _, p := m.at(in.input); p.state != TaskSucceeded && len(e.Missing) < explainedInputs {
			missing, _ := m.Task(in.input)
			e.Missing = append(e.Missing, missing)
			waits = append(waits, fmt.Sprintf("%s%s (%s)", in.itemText(), missing.Key, stateName(missing.State)))
		}
	}
	c := m.classes[t.class]
	m.verdicts(&e, c, b, t)
	switch t.state {
	case TaskWaiting:
		if info.Op.Kind == OpData {
			e.Status, e.Text = "WAITING_FOR_DATA", "a client scatters this object; no worker has reported its bytes yet"
			if s := m.lostData[id]; m.dataAwaited(id) {
				e.Text = fmt.Sprintf("worker %s, which alone had the bytes that a client scattered, is lost (%s); it may come back with them for another %s",
					s.name, s.cause, s.until.Sub(now).Round(time.Millisecond))
			}
			break
		}
		e.Status = "INPUTS_MISSING"
		if m.standsBy(id) {
			e.Text = "the scheduler was started again, and a worker that is not back yet may have the result, or may run the task"
			break
		}
		e.Text = fmt.Sprintf("%d of %d inputs do not exist yet: %s", info.MissingInputs, info.InputCount, textList(waits))
	case TaskReady:
		m.explainReady(&e, c, t, now)
		e.Text += m.explainNesting(b, t)
	case TaskAssigned:
		w := m.workers[t.worker-1]
		e.Status = "ASSIGNED"
		e.Text = fmt.Sprintf("attempt %d was sent to worker %s (%s), which fetches its inputs or has it behind %d other tasks", t.attempt, w.name, w.id, w.assigned-1)
		if t.missing > 0 {
			e.Status = "PREASSIGNED"
			e.Text = fmt.Sprintf("attempt %d was sent to worker %s (%s) before its inputs exist, and waits there for %s", t.attempt, w.name, w.id, textList(waits))
		}
		e.Text += m.explainNesting(b, t)
		if !w.reachable() {
			e.Text += "; the worker is disconnected, and the task goes elsewhere if it does not come back"
		}
	case TaskRunning:
		w := m.workers[t.worker-1]
		e.Status, e.Text = "RUNNING", fmt.Sprintf("attempt %d runs on worker %s (%s)", t.attempt, w.name, w.id)
		e.Text += fmt.Sprintf(" for %s", now.Sub(m.starts[id]).Round(time.Millisecond))
		if held, first := m.nestedWork(w); w.blocked.has(id) {
			e.Text += "; it waits for tasks, and other tasks run in its slot meanwhile"
			if held > 0 {
				e.Text += fmt.Sprintf("; %d tasks that tasks of this worker have submitted have not begun (%s)", held, first)
			}
		} else if held > 0 {
			e.Text += fmt.Sprintf("; tasks of this worker have submitted %d tasks that have not begun (%s): this one may be waiting for them; %s", held, first, nestedRemedy)
		}
	case TaskRescuing:
		e.Status, e.Text = "RESCUING", m.copier.ExplainRescue(id, now)
	case TaskSucceeded, TaskFailed, TaskCancelled, TaskReleased:
		e.Status = "ENDED"
		e.Text = "state " + stateName(t.state)
		if e.Task.Linalg != "" {
			e.Text += ", computed with " + e.Task.Linalg
		}
		if info.Err != nil {
			e.Text += ": " + info.Err.Reason + ": " + info.Err.Message
		}
	}
	if items > 0 {
		e.Text += fmt.Sprintf("; it needs one item only of %d of its %d inputs", items, len(edges))
	}
	return e, true
}

// itemText is "item 3 of " for an edge that needs one item; otherwise it is empty.
func (e *edge) itemText() string {
	if e.item == 0 {
		return ""
	}
	return fmt.Sprintf("item %d of ", e.item-1)
}

func (m *Machine) explainReady(e *Explanation, c *class, t *task, now time.Time) {
	fits := 0
	for i := range e.Workers {
		if e.Workers[i].Feasible {
			fits++
		}
	}
	switch {
	case t.flags&flagBackoff != 0:
		e.Status = "RETRY_BACKOFF"
		e.Text = fmt.Sprintf("attempt %d failed; the next one waits for its back-off", t.attempt)
		for i := range m.timers {
			if d := &m.timers[i]; d.kind == timerRetry && d.id == uint64(e.Task.Task) && d.attempt == t.attempt {
				e.Text = fmt.Sprintf("attempt %d failed; the next one starts in %s", t.attempt, d.at.Sub(now).Round(time.Millisecond))
			}
		}
	case len(m.order) == 0:
		e.Status, e.Text = "NO_WORKERS", "no worker is registered; start one"
	case fits == 0:
		e.Status = "NO_WORKER_FITS"
		if e.Text = m.whyUnfit(c); len(m.feasible(c)) > 0 {
			e.Text = unfitMemory
		}
	default:
		e.Status = "ALL_WORKERS_BUSY"
		e.Text = fmt.Sprintf("%d workers could run it, and all have full queues; %d tasks wait for a worker", fits, m.ready)
	}
}

// explainedHeld bounds the held tasks per client that nestedWork reads.
const explainedHeld = 10_000

const nestedRemedy = "a task whose executor does not report its waits keeps its slot meanwhile: if none of the slots comes free, give the workers more " +
	"(--slots), add workers, or return futures in place of waiting for them"

// nestedWork counts the tasks that a running task may be waiting for: those that have not begun and
// that are held by clients which tasks of the same worker opened. first is the key of one.
func (m *Machine) nestedWork(w *worker) (held int, first string) {
	for _, id := range slices.Sorted(maps.Keys(m.clients)) {
		c := m.clients[id]
		if c.worker != w.name {
			continue
		}
		tasks := m.holders[c.holder].held.members(nil)
		for _, id := range tasks[:min(len(tasks), explainedHeld)] {
			b, t := m.at(id)
			if t.state != TaskReady && t.state != TaskAssigned && t.state != TaskWaiting {
				continue
			}
			if held++; first == "" {
				first = string(b.keyOf(t))
			}
		}
	}
	return held, first
}

// explainNesting says that a running task may be waiting for this one, which has not begun. Empty
// if no such task is known.
func (m *Machine) explainNesting(b *block, t *task) string {
	for i := t.holders; i != 0; i = b.links[i].next {
		h := &m.holders[b.links[i].value]
		if h.kind != HolderClient || m.clients[h.client] == nil || m.clients[h.client].worker == "" {
			continue
		}
		return fmt.Sprintf("; a task of worker %s has submitted this one, and may be waiting for it: %s", m.clients[h.client].worker, nestedRemedy)
	}
	return ""
}

const unfitMemory = "inputs and result fit into no worker's memory; use smaller chunks, or add a worker with more memory"

// whyUnfit is a text that says why no worker may run the class.
func (m *Machine) whyUnfit(c *class) string {
	if len(m.order) == 0 {
		return "no worker is registered; start one"
	}
	text := fmt.Sprintf("none of %d workers can run it: ", len(m.order))
	for i, w := range m.order {
		if i == 3 {
			text += "; ..."
			break
		}
		if i > 0 {
			text += "; "
		}
		text += w.name + ": " + m.unfit(c, w)
	}
	return text + "; relax the task's constraints, or start a worker that meets them"
}

// unfit is a text that says why a worker may not run the class now; empty if it may.
func (m *Machine) unfit(c *class, w *worker) string {
	switch w.state {
	case WorkerStateDisconnected:
		return "disconnected"
	case WorkerStateDraining, WorkerStateDrained:
		text := strings.ToLower(w.state.String())
		if drain, _ := m.copier.Drain(w.id); drain.Reason != "" {
			text += ": " + drain.Reason
		}
		return text
	case WorkerStateActive, WorkerStateLost:
	}
	if ok, why := c.fits(w); !ok {
		return why
	}
	if len(c.options.Workers) > 0 && !c.named(w) {
		for _, f := range m.feasible(c) {
			if f == w {
				return ""
			}
		}
		return fmt.Sprintf("not in workers=%v", c.wanted())
	}
	return ""
}

func (m *Machine) verdicts(e *Explanation, c *class, b *block, t *task) {
	edges := b.edgesOf(t)
	need := m.options[t.options].ExpectedOutputBytes
	for i := range edges {
		_, p := m.at(edges[i].input)
		need += edges[i].bytesOf(p)
	}
	for _, w := range m.order {
		if len(e.Workers) == explainedWorkers {
			return
		}
		v := Verdict{Worker: w.id, Name: w.name, Reason: m.unfit(c, w)}
		if v.Reason == "" && w.memory > 0 && need > w.memory {
			v.Reason = fmt.Sprintf("memory: inputs and result need %d bytes, has %d", need, w.memory)
		}
		v.Feasible = v.Reason == ""
		v.QueueSeconds = w.load() / 1e6
		wanted := edges
		if t.worker == w.slot+1 { // its items are on their way
			wanted = slices.DeleteFunc(slices.Clone(edges), func(e edge) bool { return e.flags&edgeFetching != 0 })
		}
		missing, micros := m.fetchMicros(w, wanted)
		v.MissingBytes, v.TransferSeconds = missing, micros/1e6
		v.FinishSeconds = max(v.QueueSeconds, v.TransferSeconds) + m.ops[t.op].estimate()/1e6
		if missing > 0 {
			v.Sources = m.fetchSources(w, wanted)
		}
		e.Workers = append(e.Workers, v)
	}
}

// fetchSources lists the holders that fetchMicros assumes: the fastest one for each input that the
// worker lacks.
func (m *Machine) fetchSources(w *worker, edges []edge) (out []Source) {
	for i := range edges {
		id := edges[i].input
		pb, p := m.at(id)
		if !m.lacks(w, id, pb, p) {
			continue
		}
		from, _ := m.cheapest(w, pb, p)
		if from == 0 {
			continue
		}
		at := slices.IndexFunc(out, func(s Source) bool { return s.Worker == from })
		if at < 0 && len(out) == explainedSources {
			continue
		}
		if at < 0 {
			at = len(out)
			out = append(out, Source{Worker: from})
		}
		out[at].Bytes += edges[i].bytesOf(p)
	}
	return out
}

// textList joins the first of some texts.
func textList(texts []string) string {
	const shown = 5
	if len(texts) > shown {
		texts = append(slices.Clone(texts[:shown]), "...")
	}
	return strings.Join(texts, ", ")
}

func (m *Machine) unfitError(id ids.TaskID, b *block, t *task) *TaskError {
	key := string(b.keyOf(t))
	e, _ := m.Explain(m.now, id)
	return &TaskError{Reason: "NO_WORKER_FITS", Message: fmt.Sprintf("task %s: %s", key, e.Text), OriginKey: key, Attempt: ids.Attempt(t.attempt)}
}

// failUnfit fails every ready task of a class that has NoWait set, because no worker fits.
func (m *Machine) failUnfit(c *class) {
	for {
		r, b, t := m.head(c)
		if t == nil {
			return
		}
		c.queue.pop()
		m.dequeue(r.task, t)
		m.end(r.task, b, t, TaskFailed, m.unfitError(r.task, b, t))
	}
}

// Unserved is a set of ready tasks with the same needs that no registered worker can run.
type Unserved struct {
	// Tasks is their number. Key and Op are those of the first one.
	Tasks   int
	Key, Op string
	// Why is the reason, with a remedy; for people.
	Why string
}

// unservedClasses bounds the classes that one call of Unserved reads.
const unservedClasses = 256

// Unserved returns sets of ready tasks that no registered worker can run, at most limit of them.
func (m *Machine) Unserved(limit int) (list []Unserved) {
	read := 0
	for _, c := range m.classes {
		if c == nil || c.ready == 0 {
			continue
		}
		if read++; read > unservedClasses || len(list) == limit {
			break
		}
		var u Unserved
		var first readyTask
		switch {
		case len(m.feasible(c)) == 0:
			u.Tasks, u.Why = c.ready, m.whyUnfit(c)
			if first, _, _ = m.head(c); first.task == 0 && len(c.parked) > 0 {
				first = c.parked[0]
			}
		case len(c.parked) > 0:
			u.Tasks, u.Why = min(len(c.parked), c.ready), unfitMemory
			first = c.parked[0]
		default:
			continue
		}
		if b, t := m.lookup(first.task); t != nil {
			u.Key, u.Op = string(b.keyOf(t)), m.ops[t.op].spec.Name
		}
		list = append(list, u)
	}
	return list
}
