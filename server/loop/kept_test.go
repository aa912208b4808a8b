package loop_test

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"hash/crc32"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/coord"
	"github.com/millrace/millrace/server/copies"
	"github.com/millrace/millrace/server/functions"
	"github.com/millrace/millrace/server/journal"
	"github.com/millrace/millrace/server/loop"
	"github.com/millrace/millrace/server/plugins"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
	"github.com/millrace/millrace/server/templates"
)

var keep = flag.Bool("keep", false, "write the kept journal of the format that this program writes")

// keptJournals has a directory of each format, packed as format-N.zip, and what a scheduler said of
// its state when it wrote that, as format-N.txt. Its README says more.
const keptJournals = "../journal/testdata"

// formatOf returns the number of the format of a directory, and the files that have it.
func formatOf(t *testing.T, d *directory) (format uint32, files []string) {
	t.Helper()
	names, err := d.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, ".log") || strings.HasSuffix(name, ".snapshot") {
			data, err := d.Read(name)
			if err != nil || len(data) < 24 {
				t.Fatalf("%s has %d bytes: %v", name, len(data), err)
			}
			format, files = binary.LittleEndian.Uint32(data[8:]), append(files, name)
		}
	}
	if len(files) < 2 || !d.has(t, ".snapshot") {
		t.Fatalf("there is no snapshot with a log: %v", names)
	}
	return format, files
}

// has reports whether the directory has a file whose name ends so.
func (d *directory) has(t *testing.T, suffix string) bool {
	t.Helper()
	names, err := d.List()
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(names, func(name string) bool { return strings.HasSuffix(name, suffix) })
}

// keptConfig is that of a scheduler for which no time is over: its clock hardly advances after the
// day on which the first journal was kept.
func keptConfig() loop.Config {
	var ticks atomic.Int64
	began := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	return loop.Config{RestartGrace: time.Hour, Clock: func() time.Time { return began.Add(time.Duration(ticks.Add(1)) * time.Microsecond) }}
}

// A directory that an earlier version wrote, or this one, is opened, and all in it is as it was.
func TestKeptJournalsAreOpened(t *testing.T) {
	written := writeKept(t)
	before := written.describe()
	d := written.directory.copied(t)
	written.end()
	format, _ := formatOf(t, d)
	name := filepath.Join(keptJournals, fmt.Sprintf("format-%d", format))
	if *keep {
		pack(t, d, name+".zip")
		if err := os.WriteFile(name+".txt", []byte(before), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(name + ".zip"); err != nil {
		t.Errorf("no journal of the format that this program writes is kept: %v: write one, as the README in %s says", err, keptJournals)
	}
	t.Run("of now", func(t *testing.T) { checkKept(t, d, before) })
	kept, _ := filepath.Glob(filepath.Join(keptJournals, "format-*.zip"))
	for _, file := range kept {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(strings.TrimSuffix(file, ".zip") + ".txt")
			if err != nil {
				t.Fatal(err)
			}
			checkKept(t, unpack(t, file), string(text))
		})
	}
}

// A directory of a later format is refused, whichever file has it. The error names the file, both
// formats and the remedy, and nothing is changed.
func TestAJournalOfALaterFormatIsRefused(t *testing.T) {
	s := writeKept(t)
	format, files := formatOf(t, s.directory)
	for _, file := range files {
		d := s.directory.copied(t)
		path := filepath.Join(d.Path(), file)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		binary.LittleEndian.PutUint32(data[8:], format+1)
		binary.LittleEndian.PutUint32(data[20:], crc32.Checksum(data[:20], crc32.MakeTable(crc32.Castagnoli)))
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		err = loop.New(loop.Config{Cluster: schedapi.Cluster{Life: 1}}).Restore(t.Context(), journal.Config{Files: d})
		for _, want := range []string{file, fmt.Sprintf("has format %d", format+1), fmt.Sprintf("reads format %d", format), "start the version of the program that wrote it, or a later one"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s of format %d does not say %q: %v", file, format+1, want, err)
			}
		}
		if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, data) {
			t.Errorf("%s was changed: %v", file, err)
		}
	}
}

func pack(t *testing.T, d *directory, to string) {
	t.Helper()
	var packed bytes.Buffer
	w := zip.NewWriter(&packed)
	if err := w.AddFS(os.DirFS(d.Path())); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, packed.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func unpack(t *testing.T, from string) *directory {
	t.Helper()
	r, err := zip.OpenReader(from)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }() // It was only read.
	d := newDirectory(t)
	if err := os.CopyFS(d.Path(), r); err != nil {
		t.Fatal(err)
	}
	return d
}

// writeKept returns a scheduler whose journal has all kinds of things twice: in a snapshot, and in
// the log behind it.
func writeKept(t *testing.T) *start {
	t.Helper()
	d := newDirectory(t)
	d.snapshotBytes = 4 << 20 // A stop in good order takes a snapshot, if that is quick.
	s := begin(t, d, keptConfig())
	w := s.fill("1")
	for s.end(); !s.directory.has(t, ".snapshot"); s.end() {
		s = s.stop()
	}
	s = s.restart()
	s.join("w1", w)
	s.fill("2")
	return s
}

func keptFunction(n string) functions.Function {
	return functions.Function{Hash: ids.FunctionHash{n[0]}, Payload: []byte("function " + n), Language: "python"}
}

// keptLong is a value that is kept apart from the records.
func keptLong(n string) []byte { return bytes.Repeat([]byte(n), 80<<10) }

// send submits tasks of a client, or without one.
func (s *start) send(ev sched.GraphSubmitted, needed ...functions.Function) schedapi.Accepted {
	s.t.Helper()
	ev.Namespace = "n"
	submission := schedapi.Submission{Graph: ev, Functions: needed}
	for _, f := range needed {
		submission.Needed = append(submission.Needed, f.Hash)
	}
	accepted, err := s.Submit(s.t.Context(), submission)
	s.must(err)
	return accepted
}

// fill puts things into the journal whose names end in n, and returns the worker that it used.
func (s *start) fill(n string) *worker {
	ctx, native := s.t.Context(), []sched.OpSpec{{Kind: sched.OpNative, Name: "op"}}
	owned, err := s.OpenClient(ctx, schedapi.ClientSpec{Name: "a" + n, Namespace: "n", Origin: "test", TTL: time.Hour, Owner: "token" + n})
	s.must(err)
	a, b := owned.ID, s.open("b"+n)
	w := s.join("w"+n, nil)

	// Tasks in all states.
	there := []sched.Options{{Workers: []sched.WorkerSelector{{Name: w.name}}}}
	on := func(key string, inputs ...string) ids.TaskID {
		return s.send(sched.GraphSubmitted{Client: a, Ops: native, Options: there,
			Tasks: []sched.TaskSpec{{Key: key + n, Options: 1, Inputs: inputs, Hold: true}}}).Tasks[0]
	}
	w.succeed(on("done"))
	runs := on("runs")
	s.until("the task runs", func(schedapi.Reader) bool {
		w.take()
		return w.running[runs] != 0
	})
	on("waits", "runs"+n, "done"+n)
	free := s.join("free"+n, nil)
	end := func(key string, options sched.Options, reports ...sched.Report) {
		task := s.send(sched.GraphSubmitted{Client: a, Ops: native, Options: []sched.Options{options}, Tasks: []sched.TaskSpec{{Key: key + n, Options: 1, Hold: true}}}).Tasks[0]
		for _, r := range reports {
			s.until("the task is assigned", func(schedapi.Reader) bool {
				w.take()
				free.take()
				return free.running[task] != 0
			})
			r.Task, r.Attempt = task, free.running[task]
			delete(free.running, task)
			s.must(free.Report(ctx, schedapi.Inbound{Reports: []sched.Report{r}}))
		}
	}
	here := []sched.WorkerSelector{{Name: "free" + n}}
	failure := &sched.TaskError{Reason: "PYTHON_EXCEPTION", Message: "the reason " + n, LogTail: "last line", Detail: &pb.TaskError{Message: "the detail " + n}}
	end("failed", sched.Options{Workers: here}, sched.Report{Outcome: sched.OutcomeFailed, Err: failure})
	end("troubled", sched.Options{Workers: here, MaxRetries: 5, RetryBackoff: time.Microsecond}, sched.Report{Outcome: sched.OutcomeFailed, Err: failure},
		sched.Report{Outcome: sched.OutcomeExecutorDied, Err: &sched.TaskError{Reason: "R", Message: "killed " + n}})
	end("cancelled", sched.Options{Resources: map[string]float64{"none": 1}})
	_, err = s.Cancel(ctx, sched.TasksCancelled{Client: a, Reason: "not wanted"}, schedapi.TaskSet{Keys: []string{"cancelled" + n}})
	s.must(err)
	f := keptFunction(n)
	python := sched.GraphSubmitted{
		Client: a, Name: "graph" + n, RequestID: "request" + n, Ops: []sched.OpSpec{{Kind: sched.OpPythonPickle, Name: "f", Function: f.Hash}},
		Options: []sched.Options{{
			Priority: 3, MaxRetries: 2, RetryBackoff: time.Second, Timeout: time.Minute, Resources: map[string]float64{"rare": 0.5}, Workers: []sched.WorkerSelector{{Name: "python"}},
			AllowOtherWorkers: true, ExpectedOutputBytes: 1 << 20, Slots: 2,
		}},
		Tasks: []sched.TaskSpec{
			{Key: "python" + n, Options: 1, Arguments: []byte("short" + n), Hold: true},
			{Key: "long" + n, Options: 1, Arguments: keptLong(n), Hold: true},
			{Key: "item" + n, Options: 1, Inputs: []string{"done" + n}, Items: []sched.ItemInput{{Item: 7, Count: 9}}, Hold: true},
		},
	}
	s.send(python, f)

	// Data that a client brought, small and large.
	small, large := s.data(a, "small"+n), s.data(a, "large"+n)
	w.has[small], w.has[large] = 1, 1
	s.must(w.Report(ctx, schedapi.Inbound{Gained: []sched.Stored{
		{Replica: sched.Replica{Task: small, Generation: 1, Bytes: 5}, Inline: []byte("data" + n), Written: true},
		{Replica: sched.Replica{Task: large, Generation: 1, Bytes: 1 << 20}, Written: true},
	}}))
	s.is(small, sched.TaskSucceeded)
	s.is(large, sched.TaskSucceeded)

	// Holders that come and go, and graphs without a client.
	_, err = s.Hold(ctx, b, schedapi.TaskSet{Keys: []string{"done" + n, "failed" + n}})
	s.must(err)
	s.must(s.Release(ctx, b, schedapi.TaskSet{Keys: []string{"failed" + n}}))
	gone := s.open("gone" + n)
	_, err = s.Hold(ctx, gone, schedapi.TaskSet{Keys: []string{"done" + n}})
	s.must(err)
	g := keptFunction("x" + n)
	passing := s.send(sched.GraphSubmitted{Client: gone, Ops: []sched.OpSpec{{Kind: sched.OpPythonPickle, Name: "g", Function: g.Hash}},
		Options: []sched.Options{{Resources: map[string]float64{"none": 1}}}, Tasks: []sched.TaskSpec{{Key: "passing" + n, Options: 1, Hold: true}}}, g)
	s.must(s.Release(ctx, gone, schedapi.TaskSet{Tasks: passing.Tasks}))
	s.must(s.CloseClient(ctx, gone))
	for _, key := range []string{"detached", "dropped"} {
		s.send(sched.GraphSubmitted{Name: key + n, Retention: time.Hour, Ops: native, Options: []sched.Options{{Workers: here}}, Tasks: []sched.TaskSpec{{Key: key + n, Options: 1, Hold: true}}})
	}
	free.succeed(s.find("detached" + n).Task)
	dropped := s.find("dropped" + n)
	free.succeed(dropped.Task)
	_, err = s.Hold(ctx, b, schedapi.TaskSet{Tasks: []ids.TaskID{dropped.Task}})
	s.must(err)
	s.must(s.ReleaseGraph(ctx, sched.GraphReleased{Graph: dropped.Graph}))
	s.send(sched.GraphSubmitted{Client: b, Ops: native, Options: there, Tasks: []sched.TaskSpec{{Key: "waits" + n, Options: 1, Inputs: []string{"runs" + n, "done" + n}}}})
	awaits, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	s.t.Cleanup(func() { cancel(); group.Wait() })
	group.Go(func() { _, _ = s.Await(awaits, "n", "waits"+n) })
	s.until("somebody waits for the task", func(r schedapi.Reader) bool {
		task, _ := r.Lookup("n", "waits"+n)
		info, _ := r.Task(task)
		return info.Holders == 2
	})
	for _, name := range []string{"data", "data", "passing"} {
		_, err = s.Publish(ctx, schedapi.DatasetSpec{Client: a, Name: name + n, Keys: []string{"done" + n}, Value: []byte("value" + n), Replace: true})
		s.must(err)
	}
	s.must(s.Unpublish(ctx, "n", "passing"+n))

	// Shared state.
	at := schedapi.Place{Client: a}
	s.ask(at, acquire("lock"+n, "lock"+n))
	s.ask(at, coord.Call{ID: "semaphore" + n, Ask: coord.Acquire{Names: []string{"semaphore" + n}, Limit: 3, Needed: 1}})
	for i := range 3 {
		s.ask(at, coord.Call{ID: fmt.Sprint("put", i, n), Ask: coord.PutInQueue{Name: "queue" + n, MaxSize: 5, Value: coord.Value{Data: fmt.Append(nil, i, n), Keys: []string{"done" + n}}}})
	}
	s.ask(at, coord.Call{ID: "take" + n, Ask: coord.TakeFromQueue{Name: "queue" + n, Most: 1}})
	s.must(s.SetVariable(ctx, at, "variable"+n, coord.Value{Data: keptLong(n + "v"), Keys: []string{"done" + n}}))
	s.must(s.SetEvent(ctx, at, "event"+n, true))
	s.must(s.SetMetadata(ctx, at, []string{"metadata" + n}, &coord.Tree{Names: []string{"x"}, Trees: []coord.Tree{{Leaf: []byte("leaf" + n)}}}))
	_, err = s.PublishToTopic(ctx, at, "topic"+n, []coord.Value{{Data: []byte("message" + n)}})
	s.must(err)

	// Workers, plugins and templates.
	s.must(s.DrainWorkers(ctx, sched.DrainOrdered{Workers: []ids.WorkerID{s.join("undone"+n, nil).Worker(), s.join("drained"+n, nil).Worker()}, Purpose: copies.DrainKeep, Reason: "loud " + n}))
	s.must(s.UndoDrains(ctx, []string{"undone" + n}))
	s.must(s.join("left"+n, nil).Report(ctx, schedapi.Inbound{Leaving: true}))
	s.change(func(m *plugins.Machine) []plugins.Effect { return m.Register(1, "plugin"+n, []byte("body"+n)) })
	s.change(func(m *plugins.Machine) []plugins.Effect { return m.Register(2, "other"+n, nil) })
	s.change(func(m *plugins.Machine) []plugins.Effect { return m.Unregister(3, "other"+n) })
	s.define("n", n[0])
	s.must(s.Recorded(ctx))
	return w
}

// find describes the task of a key; it is zero if there is none.
func (s *start) find(key string) (info sched.TaskInfo) {
	s.t.Helper()
	s.must(s.Read(s.t.Context(), func(r schedapi.Reader) {
		task, _ := r.Lookup("n", key)
		info, _ = r.Task(task)
	}))
	return info
}

// worker returns the number of a worker.
func (s *start) worker(name string) ids.WorkerID {
	s.t.Helper()
	snapshot, err := s.Snapshot(s.t.Context())
	s.must(err)
	return snapshot.WorkerByName(name).ID
}

// describe says all that must be the same after a restart, a line for each thing. Only what it can
// see without a change is here; checkKept uses the rest.
func (s *start) describe() string {
	s.t.Helper()
	var lines []string
	say := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	var tasks []sched.TaskInfo
	s.must(s.Read(s.t.Context(), func(r schedapi.Reader) {
		tasks, _ = r.Tasks(sched.TaskFilter{}, 0, 1000)
		for i := range tasks {
			info := &tasks[i]
			state, attempt := info.State.String(), fmt.Sprint(info.Attempt)
			if info.State < sched.TaskSucceeded || info.State == sched.TaskSucceeded && !info.Inline {
				state, attempt = "as its worker says", "-"
			}
			say("task %s of graph %s: %s, submitted %s, attempt %s, %s, inputs %v %v, holders %d, retries %d, deaths %d, inline %t, options %+v", info.Task, info.Graph, info.Key,
				info.SubmittedAt.UTC().Format(time.StampMilli), attempt, state, info.InputTasks, info.Items, info.Holders, info.RetriesUsed, info.WorkerDeaths, info.Inline, info.Options)
			if e := info.Err; e != nil {
				detail, _ := e.Detail.(*pb.TaskError)
				say("error of %s: %s, %s, %s, of %q, %q", info.Key, e.Reason, e.Message, detail.GetMessage(), e.OriginKey, e.LogTail)
			}
		}
	}))
	snapshot, err := s.Snapshot(s.t.Context())
	s.must(err)
	graphs, _ := snapshot.Graphs(schedapi.GraphFilter{}, 0, 1000)
	for _, g := range graphs {
		say("graph %s: %q in %s, of client %s, created %s", g.ID, g.Name, g.Namespace, g.Client, g.CreatedAt.UTC().Format(time.StampMilli))
		for _, op := range g.Ops {
			tasks := 0
			for _, n := range op.Counts {
				tasks += int(n)
			}
			say("op of graph %s: %s, %d tasks", g.ID, op.Name, tasks)
		}
	}
	clients, _ := snapshot.Clients(0, 1000)
	for _, c := range clients {
		owner, _ := s.OwnerOf(c.ID)
		say("client %s: %s in %s, from %q, for %v, of %q", c.ID, c.Name, c.Namespace, c.Origin, c.TTL, owner)
	}
	datasets, _ := snapshot.Datasets("", "", "", math.MaxInt)
	for _, d := range datasets {
		say("dataset %d: %s in %s, keys %v, %s", d.Number, d.Name, d.Namespace, d.Keys, d.Value)
	}
	at := schedapi.Place{Namespace: "n"}
	for _, n := range []string{"1", "2"} {
		lock, err := s.Semaphore(s.t.Context(), at, "lock"+n)
		s.must(err)
		semaphore, err := s.Semaphore(s.t.Context(), at, "semaphore"+n)
		s.must(err)
		queue, err := s.Queue(s.t.Context(), at, "queue"+n)
		s.must(err)
		metadata, _, err := s.Metadata(s.t.Context(), at, nil)
		s.must(err)
		say("shared %s: lock %+v, semaphore %+v, queue %+v, metadata %s", n, lock, semaphore, queue, metadata)
		for _, name := range []string{"drained", "undone", "w"} {
			row := snapshot.WorkerByName(name + n)
			say("worker %s: %s, incarnation %s", row.ID, row.Name, row.Incarnation)
		}
		template := s.Template("n", templates.Hash{n[0]})
		say("template %s: %d bytes, task %s", n, template.Bytes, template.Tasks[0].Key)
	}
	topics, err := s.Topics(s.t.Context(), at)
	s.must(err)
	say("topics: %+v", topics)
	s.must(s.Plugins(s.t.Context(), false, func(m *plugins.Machine) []plugins.Effect {
		for cursor, more := uint64(0), true; more; {
			cursor, more = m.Rows(cursor, func(row any) {
				p := row.(*plugins.PluginChanged)
				say("plugin %s: version %d, %s", p.Name, p.Version, p.Body)
			})
		}
		return nil
	}))
	return strings.Join(lines, "\n") + "\n"
}

// checkKept opens a directory of writeKept, whose scheduler has described its state, and checks
// that all is as it was.
func checkKept(t *testing.T, d *directory, before string) {
	t.Helper()
	s := begin(t, d, keptConfig())
	ctx := t.Context()
	after := s.describe()
	was, is := strings.Split(before, "\n"), strings.Split(after, "\n")
	for i := range max(len(was), len(is)) {
		if i >= len(was) || i >= len(is) || was[i] != is[i] {
			t.Fatalf("line %d of the state was\n%s\nand is\n%s", i+1, strings.Join(was[min(i, len(was)):min(i+1, len(was))], ""), strings.Join(is[min(i, len(is)):min(i+1, len(is))], ""))
		}
	}
	snapshot, err := s.Snapshot(ctx)
	s.must(err)
	clients, _ := snapshot.Clients(0, 1000)
	client := map[string]ids.ClientID{}
	for _, c := range clients {
		client[c.Name] = c.ID
	}
	known := map[ids.TaskID]bool{}
	var last ids.TaskID
	s.must(s.Read(ctx, func(r schedapi.Reader) {
		tasks, _ := r.Tasks(sched.TaskFilter{}, 0, 1000)
		for i := range tasks {
			known[tasks[i].Task], last = true, max(last, tasks[i].Task)
		}
	}))
	for _, n := range []string{"1", "2"} {
		at := schedapi.Place{Client: client["a"+n]}
		// The owner of a lock is told the same again, and the next one gets a higher number.
		again := s.ask(at, acquire("lock"+n, "lock"+n))
		if other := s.ask(schedapi.Place{Client: client["b"+n]}, acquire("other", "lock"+n)); other.Met || !again.Met || again.Fence == 0 {
			t.Errorf("the lock %s is held with %+v, and another client gets %+v", n, again, other)
		}
		s.must(s.ReleaseLocks(ctx, at.Client, "lock"+n, []string{"lock" + n}))
		if next := s.ask(schedapi.Place{Client: client["b"+n]}, acquire("next", "lock"+n)); !next.Met || next.Fence <= again.Fence {
			t.Errorf("the next holder of the lock %s is told %+v, the first one %+v", n, next, again)
		}
		// The value that was taken is told again, and the others are there in order.
		taken := s.ask(at, coord.Call{ID: "take" + n, Ask: coord.TakeFromQueue{Name: "queue" + n, Most: 1}})
		rest := s.ask(at, coord.Call{ID: "rest" + n, Ask: coord.TakeFromQueue{Name: "queue" + n, Most: 10}})
		for i, v := range append(taken.Values, rest.Values...) {
			if want := fmt.Append(nil, i, n); !bytes.Equal(v.Data, want) || !slices.Equal(v.Keys, []string{"done" + n}) {
				t.Errorf("value %d of queue %s is %s with %v", i, n, v.Data, v.Keys)
			}
		}
		if len(taken.Values) != 1 || len(rest.Values) != 2 {
			t.Errorf("of the queue %s was taken %v, and there is %v", n, taken.Values, rest.Values)
		}
		if v := s.ask(at, coord.Call{Ask: coord.ReadVariable{Name: "variable" + n}}); len(v.Values) != 1 || !bytes.Equal(v.Values[0].Data, keptLong(n+"v")) || v.Values[0].Keys[0] != "done"+n {
			t.Errorf("the variable %s has %d values", n, len(v.Values))
		}
		if event := s.ask(at, coord.Call{Ask: coord.AwaitEvent{Name: "event" + n}}); !event.Met {
			t.Errorf("the event %s is not set", n)
		}
		if m := s.ask(at, coord.Call{Ask: coord.ReadTopic{Name: "topic" + n, Most: 10}}); len(m.Messages) != 1 || string(m.Messages[0].Value.Data) != "message"+n {
			t.Errorf("the topic %s has %+v", n, m)
		}
		// The same submission is not carried out again.
		f := keptFunction(n)
		repeated := s.send(sched.GraphSubmitted{
			Client: at.Client, Name: "graph" + n, RequestID: "request" + n, Ops: []sched.OpSpec{{Kind: sched.OpPythonPickle, Name: "f", Function: f.Hash}},
			Options: []sched.Options{s.find("python" + n).Options},
			Tasks: []sched.TaskSpec{
				{Key: "python" + n, Options: 1, Arguments: []byte("short" + n), Hold: true},
				{Key: "long" + n, Options: 1, Arguments: keptLong(n), Hold: true},
				{Key: "item" + n, Options: 1, Inputs: []string{"done" + n}, Items: []sched.ItemInput{{Item: 7, Count: 9}}, Hold: true},
			},
		})
		if repeated.Tasks[0] != s.find("python"+n).Task || !slices.ContainsFunc(repeated.Tasks, func(t ids.TaskID) bool { return known[t] }) {
			t.Errorf("the repeated submission %s made the tasks %v", n, repeated.Tasks)
		}
	}
	if task := s.submit(client["a1"], "new"); task <= last {
		t.Errorf("a new task has the number %s, and there is %s", task, last)
	}
	// Workers come back, and go on with what they have. Another one gets all else.
	var numbers []ids.WorkerID
	for _, n := range []string{"1", "2"} {
		numbers = append(numbers, s.worker("w"+n))
		w := &worker{has: map[ids.TaskID]ids.Attempt{}, running: map[ids.TaskID]ids.Attempt{}}
		for _, key := range []string{"done", "large"} {
			info := s.find(key + n)
			w.has[info.Task] = info.Attempt
		}
		runs := s.find("runs" + n).Task
		w.running[runs] = 1
		w = s.join("w"+n, w)
		if w.Worker() != numbers[len(numbers)-1] {
			t.Errorf("the worker w%s is %s, and was %s", n, w.Worker(), numbers[len(numbers)-1])
		}
		attempt := w.running[runs]
		s.must(w.Report(ctx, schedapi.Inbound{Reports: []sched.Report{{Task: runs, Attempt: attempt, Outcome: sched.OutcomeSucceeded, OutputBytes: 8}}}))
		s.is(runs, sched.TaskSucceeded)
		for _, key := range []string{"done", "large", "small"} {
			if info := s.find(key + n); info.State != sched.TaskSucceeded {
				t.Errorf("%s is %s when its worker is back", info.Key, info.State)
			}
		}
	}
	snapshot, err = s.Snapshot(ctx)
	s.must(err)
	rows, _ := snapshot.Workers(nil, 0, 1000)
	for _, row := range rows {
		if slices.Contains(numbers, row.ID) {
			continue
		}
		w := s.join(row.Name, &worker{running: map[ids.TaskID]ids.Attempt{}, has: map[ids.TaskID]ids.Attempt{}})
		reason, drained := s.drained(w)
		if n, ordered := strings.CutPrefix(row.Name, "drained"); drained != ordered || drained && reason != "loud "+n {
			t.Errorf("the worker %s is drained: %t, because of %q", row.Name, drained, reason)
		}
	}
	session, err := s.Register(ctx, schedapi.Registration{Worker: sched.WorkerRegistered{
		Name: "python", Incarnation: "python", Slots: 100, MemoryBytes: 1 << 30, Executors: []string{"python"}, Resources: map[string]float64{"rare": 10},
	}})
	s.must(err)
	type given struct {
		schedapi.Assignment
		arguments []byte
		inputs    []sched.AssignedInput
	}
	assigned := map[string]given{}
	var sent []functions.Function
	s.until("all tasks in Python are assigned", func(schedapi.Reader) bool {
		var out schedapi.Outbound
		for session.Take(&out) {
			sent = append(sent, out.Functions...)
			for i := range out.Assignments {
				as := &out.Assignments[i]
				assigned[as.Key] = given{*as, bytes.Clone(out.Arguments(as)), slices.Clone(out.Inputs(as))}
			}
		}
		return len(assigned) == 6
	})
	for _, n := range []string{"1", "2"} {
		for key, want := range map[string][]byte{"python": []byte("short" + n), "long": keptLong(n), "item": nil} { // order-free: each is checked alone
			if as := assigned[key+n]; !bytes.Equal(as.arguments, want) || as.Slots != 2 || as.Timeout != time.Minute || as.Resources["rare"] != 0.5 || as.Priority != 3 {
				t.Errorf("%s is assigned with %d bytes: slots %d, timeout %v, resources %v, priority %d", key+n, len(as.arguments), as.Slots, as.Timeout, as.Resources, as.Priority)
			}
		}
		if in := assigned["item"+n].inputs; len(in) != 1 || in[0].Item != 7 || in[0].Task != s.find("done"+n).Task {
			t.Errorf("item%s has the inputs %+v", n, in)
		}
		f := keptFunction(n)
		if !slices.ContainsFunc(sent, func(g functions.Function) bool { return g.Hash == f.Hash && bytes.Equal(g.Payload, f.Payload) }) {
			t.Errorf("the function %s was not sent: %v", n, slices.Collect(maps.Keys(assigned)))
		}
	}
}
