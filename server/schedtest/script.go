// Package schedtest is Test support: verbs for golden scripts about the scheduler machine.
package schedtest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/copies"
	"github.com/millrace/millrace/server/sched"
)

// Script executes the verbs of golden scripts on one machine. Each verb prints its effects; after
// each verb all invariants are checked. A key means the task that was submitted last with it, in
// any namespace. Only hold looks keys up in the namespace of its client, and publish in that of the
// last client verb.
//
//	client id=1 ttl=30s [ns=x of=WORKER] | renew client=1 | close client=1
//	worker id=1 [slots=1 mem=0 gpu=0 name=n1 host=h1 executors=(native,python)
//	    incarnation=x notifies pipelined alone library=x linalg=(op,...)]
//	    with lines "holds KEY BYTES [GEN]", "written KEY BYTES", "runs KEY [ATTEMPT]"
//	disconnect|drain worker=1
//	order workers=(1,2) to=keep|retire|restart [reason=x timeout=1s] | undo names=(n1,n2)
//	rebalance [workers=(1,2)] [dry] | stop-rebalance number=1 | rebalance-info
//	lose worker=1 [cause=... survivors=(2,3) outside killed gone left fault called=(KEY,...)]
//	ended incarnation=x [cause=... killed called=(KEY,...)]
//	measured worker=1 bytes=9 [evictable=5] | rate from=1 to=2 mb=100 [latency=1ms]
//	submit [client=1 graph=0 request=r retention=1m ns=x name=x] with a line for each task:
//	    KEY [op=f] [kind=native|python|data|exec|pickle] [hold] [args=x] [priority=1] [retries=1]
//	    [gpu=1] [slots=2] [bytes=9] [workers=a+b] [others] [nowait] [timeout=1s]
//	    [backoff=1s] [< INPUT...], an INPUT being KEY, or KEY[ITEM/COUNT] for one item of a list
//	report worker=1 with lines
//	    "started|ok|failed|unreachable|retracted|cancelled|refused|died KEY
//	    [attempt=1] [bytes=8] [run=1ms] [inline=x] [reason=R] [missing=INPUT@1]
//	    [failing=INPUT@1,INPUT@2] [fault=1]"
//	objects worker=1 with lines "gained|kept|lost KEY [GEN] [BYTES] [written=1] [inline=x]"
//	rescue-failed worker=2 dead=1 with lines "KEY [GEN]"
//	hold|release|cancel|retry [client=1] keys=(a,b) [graph=1] [force] [reason=x]
//	publish dataset=1 keys=(a) | unpublish dataset=1
//	release-graph graph=1 [cancel] | time 5s | deadline | states | totals | task KEY |
//	explain KEY | history KEY | graph 1 | assignment KEY | worker-info 1 |
//	list [state=5 limit=2 after=0 graph=0 op=f keys=a worker=1 client=1] | update KEY |
//	held client=1
type Script struct {
	M         *sched.Machine
	now       time.Time
	namespace string
	ids       map[string]ids.TaskID
}

// NewScript makes a script with a new machine.
func NewScript(c sched.Config) *Script {
	return &Script{M: sched.New(c), now: time.Unix(1_700_000_000, 0).UTC(), ids: make(map[string]ids.TaskID)}
}

// Run executes one verb.
func (s *Script) Run(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	out := s.run(t, d)
	if err := s.M.Check(); err != nil {
		t.Fatalf("%s: %v", d.Pos, err)
	}
	if out == "" {
		return "ok\n"
	}
	return out
}

func (s *Script) run(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	a := args{t, d}
	switch d.Cmd {
	case "client":
		s.namespace = a.text("ns", "")
		return s.step(sched.ClientOpened{Client: a.client(), Namespace: s.namespace, Worker: a.text("of", ""), TTL: a.duration("ttl", 30*time.Second)})
	case "renew":
		return s.step(sched.ClientRenewed{Client: a.client()})
	case "close":
		return s.step(sched.ClientClosed{Client: a.client()})
	case "worker":
		return s.step(s.worker(a))
	case "disconnect":
		return s.step(sched.WorkerDisconnected{Worker: a.worker()})
	case "drain":
		return s.step(sched.WorkerDraining{Worker: a.worker()})
	case "order":
		purposes := map[string]copies.DrainPurpose{"keep": copies.DrainKeep, "retire": copies.DrainRetire, "restart": copies.DrainRestart}
		effects, err := s.M.OrderDrain(s.now, sched.DrainOrdered{Workers: a.workers("workers"), Purpose: purposes[a.text("to", "keep")],
			Reason: a.text("reason", ""), Timeout: a.duration("timeout", 0)}, nil)
		return s.refused(err, effects)
	case "undo":
		effects, err := s.M.UndoDrain(s.now, sched.DrainUndone{Names: a.list("names")}, nil)
		return s.refused(err, effects)
	case "rebalance":
		info, effects, err := s.M.OrderRebalance(s.now, sched.RebalanceOrdered{Workers: a.workers("workers"), DryRun: a.d.HasArg("dry")}, nil)
		if err != nil {
			return s.refused(err, effects)
		}
		return formatRebalance(&info) + s.effects(effects)
	case "stop-rebalance":
		return s.step(sched.RebalanceStopped{Rebalance: a.number("number", 1)})
	case "lose":
		return s.step(sched.WorkerLost{Worker: a.worker(), Cause: a.text("cause", ""), Outside: a.d.HasArg("outside") || a.d.HasArg("killed"), Killed: a.d.HasArg("killed"), Gone: a.d.HasArg("gone"), Left: a.d.HasArg("left"), DeviceFault: a.d.HasArg("fault"), Survivors: a.workers("survivors"), Calls: s.calls(a)})
	case "ended":
		return s.step(sched.WorkerEnded{Incarnation: a.text("incarnation", ""), Cause: a.text("cause", ""), Killed: a.d.HasArg("killed"), Calls: s.calls(a)})
	case "measured":
		return s.step(sched.WorkerMeasured{Worker: a.worker(), MemoryUsedBytes: a.number("bytes", 0), MemoryEvictableBytes: a.number("evictable", 0)})
	case "rate":
		return s.step(sched.RatesMeasured{{From: ids.WorkerID(a.number("from", 0)), To: ids.WorkerID(a.number("to", 0)),
			BytesPerSecond: float64(a.number("mb", 1)) * 1e6, Latency: a.duration("latency", 0)}})
	case "submit":
		ev := s.submission(a)
		result, effects, err := s.M.Submit(s.now, ev, nil)
		if err != nil {
			return s.refused(err, effects)
		}
		for i, id := range result.Tasks {
			if i < len(ev.Tasks) {
				s.ids[ev.Tasks[i].Key] = id
			}
		}
		failed := ""
		for _, id := range result.Failed {
			failed += " failed " + s.nameOf(id)
		}
		return fmt.Sprintf("%s joined %d%s\n", result.Graph, result.Joined, failed) + s.effects(effects)
	case "report":
		return s.step(s.reports(a))
	case "objects":
		return s.step(s.objects(a))
	case "rescue-failed":
		ev := sched.RescueFailed{Worker: a.worker(), Dead: ids.WorkerID(a.number("dead", 1))}
		for _, l := range lines(d.Input) {
			info, _ := s.M.Task(s.task(l.word(0)))
			r := sched.Replica{Task: s.task(l.word(0)), Generation: info.Attempt}
			if l.word(1) != "" {
				r.Generation = ids.Attempt(number(t, d, l.word(1)))
			}
			ev.Objects = append(ev.Objects, r)
		}
		return s.step(ev)
	case "hold":
		_, effects, err := s.M.Hold(s.now, sched.TasksHeld{Client: a.client(), Keys: a.list("keys")}, nil)
		return s.refused(err, effects)
	case "release":
		return s.step(sched.TasksReleased{Client: a.client(), Tasks: s.tasks(a.list("keys"))})
	case "cancel":
		ev := sched.TasksCancelled{Tasks: s.tasks(a.list("keys")), Reason: a.text("reason", ""), Force: d.HasArg("force")}
		if d.HasArg("client") {
			ev.Client = a.client()
		}
		if g := a.number("graph", 0); g != 0 {
			ev.Graphs = []ids.GraphID{ids.GraphID(g)}
		}
		done, effects, err := s.M.Cancel(s.now, ev, nil)
		what := ""
		for _, id := range done.Unknown {
			what += "unknown " + s.nameOf(id) + "\n"
		}
		return what + s.counted("cancelled", done.Tasks, err, effects)
	case "retry":
		n, effects, err := s.M.Retry(s.now, sched.TasksRetried{Tasks: s.tasks(a.list("keys"))}, nil)
		return s.counted("retried", n, err, effects)
	case "publish":
		_, effects, err := s.M.Publish(s.now, sched.DatasetPublished{Dataset: a.number("dataset", 1), Namespace: s.namespace, Keys: a.list("keys")}, nil)
		return s.refused(err, effects)
	case "unpublish":
		return s.step(sched.DatasetUnpublished{Dataset: a.number("dataset", 1)})
	case "release-graph":
		effects, err := s.M.ReleaseGraph(s.now, sched.GraphReleased{Graph: ids.GraphID(a.number("graph", 1)), Cancel: d.HasArg("cancel")}, nil)
		return s.refused(err, effects)
	case "time":
		passed, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		s.now = s.now.Add(passed)
		return s.step(sched.TimePassed{})
	}
	return s.show(a)
}

func (s *Script) step(ev sched.Event) string { return s.effects(s.M.Step(s.now, ev, nil)) }

func (s *Script) refused(err *sched.Error, effects []sched.Effect) string {
	if err == nil {
		return s.effects(effects)
	}
	out := "error: " + err.Message + "\n"
	if err.Keys != nil {
		out += fmt.Sprintf("keys: %v\n", err.Keys)
	}
	return out + s.effects(effects)
}

func (s *Script) counted(what string, n uint64, err *sched.Error, effects []sched.Effect) string {
	if err != nil {
		return s.refused(err, effects)
	}
	return fmt.Sprintf("%s %d\n", what, n) + s.effects(effects)
}

func (s *Script) effects(effects []sched.Effect) string {
	var b strings.Builder
	for _, e := range effects {
		b.WriteString(formatEffect(s.M, e, s.nameOf) + "\n")
	}
	for _, r := range s.M.Facts() {
		b.WriteString(formatRow(r, s.nameOf) + "\n")
	}
	return b.String()
}

// nameOf returns a task's key, even if the machine has forgotten the task.
func (s *Script) nameOf(id ids.TaskID) string {
	for _, key := range sortedNames(s.ids) {
		if s.ids[key] == id {
			return key
		}
	}
	return id.String()
}

func sortedNames[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

func (s *Script) task(key string) ids.TaskID {
	if id, ok := s.ids[key]; ok {
		return id
	}
	n, _ := strconv.ParseUint(key, 10, 64)
	return ids.TaskID(n)
}

func (s *Script) tasks(keys []string) []ids.TaskID {
	var out []ids.TaskID
	for _, key := range keys {
		out = append(out, s.task(key))
	}
	return out
}

// calls reads the functions that a dead worker was running by the keys of their current attempts.
func (s *Script) calls(a args) sched.Calls {
	c := sched.Calls{Known: a.d.HasArg("called")}
	for _, id := range s.tasks(a.list("called")) {
		info, _ := s.M.Task(id)
		c.Attempts = append(c.Attempts, sched.TaskRef{Task: id, Attempt: info.Attempt})
	}
	return c
}

// args reads a verb's arguments.
type args struct {
	t *testing.T
	d *datadriven.TestData
}

func (a args) text(name, otherwise string) string {
	for _, arg := range a.d.CmdArgs {
		if arg.Key == name && len(arg.Vals) > 0 {
			return strings.ReplaceAll(arg.Vals[0], "_", " ")
		}
	}
	return otherwise
}

func (a args) list(name string) []string {
	for _, arg := range a.d.CmdArgs {
		if arg.Key == name {
			return arg.Vals
		}
	}
	return nil
}

func (a args) number(name string, otherwise uint64) uint64 {
	text := a.text(name, "")
	if text == "" {
		return otherwise
	}
	return number(a.t, a.d, text)
}

func number(t *testing.T, d *datadriven.TestData, text string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return n
}

func (a args) duration(name string, otherwise time.Duration) time.Duration {
	text := a.text(name, "")
	if text == "" {
		return otherwise
	}
	n, err := time.ParseDuration(text)
	if err != nil {
		a.d.Fatalf(a.t, "%v", err)
	}
	return n
}

func (a args) client() ids.ClientID {
	return ids.ClientID(a.number("id", a.number("client", 1)))
}

func (a args) worker() ids.WorkerID {
	return ids.WorkerID(a.number("id", a.number("worker", 1)))
}

func (a args) workers(name string) (out []ids.WorkerID) {
	for _, text := range a.list(name) {
		out = append(out, ids.WorkerID(number(a.t, a.d, text)))
	}
	return out
}

// first returns the first bare argument.
func (a args) first() string {
	if len(a.d.CmdArgs) == 0 {
		return ""
	}
	return a.d.CmdArgs[0].Key
}

// line is one line of a verb's input: words, name=value pairs, and the inputs after "<".
type line struct {
	words  []string
	values map[string]string
	inputs []string
	items  []sched.ItemInput
}

func lines(input string) []line {
	var out []line
	for _, text := range strings.Split(strings.TrimSpace(input), "\n") {
		if text == "" {
			continue
		}
		l := line{values: make(map[string]string)}
		text, inputs, _ := strings.Cut(text, "<")
		for i, input := range strings.Fields(inputs) {
			key, item, isItem := strings.Cut(strings.TrimSuffix(input, "]"), "[")
			l.inputs = append(l.inputs, key)
			if isItem {
				index, count, _ := strings.Cut(item, "/")
				n, _ := strconv.ParseUint(index, 10, 32)
				of, _ := strconv.ParseUint(count, 10, 32)
				l.items = append(l.items, sched.ItemInput{Input: uint32(i), Item: ids.Item(n) + 1, Count: uint32(of)})
			}
		}
		for _, word := range strings.Fields(text) {
			if name, value, ok := strings.Cut(word, "="); ok {
				l.values[name] = value
			} else {
				l.words = append(l.words, word)
			}
		}
		out = append(out, l)
	}
	return out
}

func (l line) has(word string) bool { return slices.Contains(l.words, word) }

func (l line) number(name string) uint64 {
	n, _ := strconv.ParseUint(l.values[name], 10, 64)
	return n
}

func (l line) duration(name string) time.Duration {
	n, _ := time.ParseDuration(l.values[name])
	return n
}

func (l line) word(i int) string {
	if i < len(l.words) {
		return l.words[i]
	}
	return ""
}

func (s *Script) worker(a args) sched.WorkerRegistered {
	id := a.worker()
	ev := sched.WorkerRegistered{Worker: id, Name: a.text("name", fmt.Sprint("n", uint32(id))), Incarnation: a.text("incarnation", ""), Host: a.text("host", "h1"),
		Slots: uint32(a.number("slots", 1)), MemoryBytes: a.number("mem", 0), Executors: a.list("executors")}
	ev.Notifies, ev.Supervised = a.d.HasArg("notifies"), !a.d.HasArg("alone")
	ev.PipelinedReads = a.d.HasArg("pipelined")
	ev.Linalg = sched.Linalg{Library: a.text("library", ""), Ops: a.list("linalg")}
	if ev.Executors == nil {
		ev.Executors = []string{"native", "python"}
	}
	if gpu := a.number("gpu", 0); gpu > 0 {
		ev.Resources = map[string]float64{"gpu": float64(gpu)}
	}
	for _, l := range lines(a.d.Input) {
		id := s.task(l.word(1))
		attempt := func(i int) ids.Attempt {
			if text := l.word(i); text != "" {
				return ids.Attempt(number(a.t, a.d, text))
			}
			info, _ := s.M.Task(id)
			return info.Attempt
		}
		if l.word(0) == "holds" {
			ev.Inventory = append(ev.Inventory, sched.Replica{Task: id, Bytes: number(a.t, a.d, l.word(2)), Generation: attempt(3)})
		} else if l.word(0) == "written" {
			ev.Written = append(ev.Written, sched.Replica{Task: id, Bytes: number(a.t, a.d, l.word(2)), Generation: 1})
		} else {
			ev.Running = append(ev.Running, sched.TaskRef{Task: id, Attempt: attempt(2)})
		}
	}
	return ev
}

func (s *Script) submission(a args) sched.GraphSubmitted {
	ev := sched.GraphSubmitted{Client: ids.ClientID(a.number("client", 1)), Graph: ids.GraphID(a.number("graph", 0)),
		RequestID: a.text("request", ""), Namespace: a.text("ns", ""), Retention: a.duration("retention", 0), Name: a.text("name", "")}
	kinds := map[string]sched.OpKind{"native": sched.OpNative, "python": sched.OpPythonImport, "data": sched.OpData, "exec": sched.OpExec, "pickle": sched.OpPythonPickle}
	for _, l := range lines(a.d.Input) {
		op := sched.OpSpec{Kind: sched.OpNative, Name: "f"}
		if k := l.values["kind"]; k != "" {
			op.Kind = kinds[k]
		}
		if op.Kind == sched.OpPythonPickle {
			op.Function = ids.FunctionHash{0xab}
		}
		if n := l.values["op"]; n != "" {
			op.Name = n
		}
		o := sched.Options{MaxRetries: uint32(l.number("retries")), Slots: uint32(l.number("slots")), ExpectedOutputBytes: l.number("bytes"),
			AllowOtherWorkers: l.has("others"), NoWait: l.has("nowait"), Timeout: l.duration("timeout"), RetryBackoff: l.duration("backoff")}
		if p := l.values["priority"]; p != "" {
			n, _ := strconv.ParseInt(p, 10, 32)
			o.Priority = int32(n)
		}
		if g := l.number("gpu"); g > 0 {
			o.Resources = map[string]float64{"gpu": float64(g)}
		}
		if w := l.values["workers"]; w != "" {
			o.Workers = anyOf(strings.Split(w, "+")...)
		}
		ev.Ops = append(ev.Ops, op)
		ev.Options = append(ev.Options, o)
		n := uint32(len(ev.Ops))
		ev.Tasks = append(ev.Tasks, sched.TaskSpec{Key: l.word(0), Op: n - 1, Options: n, Inputs: l.inputs, Items: l.items, Hold: l.has("hold"), Arguments: []byte(l.values["args"])})
	}
	return ev
}

func (s *Script) reports(a args) sched.TasksReported {
	outcomes := map[string]sched.Outcome{"started": sched.OutcomeStarted, "ok": sched.OutcomeSucceeded, "failed": sched.OutcomeFailed,
		"unreachable": sched.OutcomeInputUnreachable, "retracted": sched.OutcomeRetracted, "cancelled": sched.OutcomeCancelled,
		"refused": sched.OutcomeRetractRefused, "died": sched.OutcomeExecutorDied, "blocked": sched.OutcomeBlocked, "goes-on": sched.OutcomeGoesOn}
	ev := sched.TasksReported{Worker: a.worker()}
	for _, l := range lines(a.d.Input) {
		id := s.task(l.word(1))
		info, _ := s.M.Task(id)
		r := sched.Report{Task: id, Attempt: info.Attempt, Outcome: outcomes[l.word(0)], RunTime: l.duration("run"), OutputBytes: l.number("bytes")}
		if r.Outcome == 0 {
			a.d.Fatalf(a.t, "unknown outcome %s", l.word(0))
		}
		if n := l.number("attempt"); n > 0 {
			r.Attempt = ids.Attempt(n)
		}
		if v := l.values["inline"]; v != "" {
			r.Inline = []byte(v)
		}
		if reason := l.values["reason"]; reason != "" {
			r.Err = &sched.TaskError{Reason: reason, Message: "it says " + reason}
			r.AtFault = uint32(l.number("fault"))
		}
		for _, name := range []string{"missing", "failing"} {
			for _, input := range strings.Split(l.values[name], ",") {
				key, at, ok := strings.Cut(input, "@")
				if !ok {
					continue
				}
				in, _ := s.M.Task(s.task(key))
				u := sched.Unreachable{Task: in.Task, Generation: in.Attempt}
				worker := []ids.WorkerID{ids.WorkerID(number(a.t, a.d, at))}
				if name == "missing" {
					u.MissingAt = worker
				} else {
					u.FailedAt = worker
				}
				r.Unreachable = append(r.Unreachable, u)
			}
		}
		ev.Reports = append(ev.Reports, r)
	}
	return ev
}

func (s *Script) objects(a args) sched.ObjectsReported {
	ev := sched.ObjectsReported{Worker: a.worker()}
	for _, l := range lines(a.d.Input) {
		r := sched.Replica{Task: s.task(l.word(1)), Generation: 1, Bytes: 8}
		if l.word(2) != "" {
			r.Generation = ids.Attempt(number(a.t, a.d, l.word(2)))
		}
		if l.word(3) != "" {
			r.Bytes = number(a.t, a.d, l.word(3))
		}
		if l.word(0) != "lost" {
			stored := sched.Stored{Replica: r, Written: l.values["written"] != "", Kept: l.word(0) == "kept"}
			if v := l.values["inline"]; v != "" {
				stored.Inline = []byte(v)
			}
			ev.Gained = append(ev.Gained, stored)
		} else {
			ev.Lost = append(ev.Lost, r)
		}
	}
	return ev
}

// anyOf returns the selectors for workers as people name them: each text is a name or a host.
func anyOf(texts ...string) []sched.WorkerSelector {
	var selectors []sched.WorkerSelector
	for _, text := range texts {
		selectors = append(selectors, sched.WorkerSelector{Name: text}, sched.WorkerSelector{Host: text})
	}
	return selectors
}
