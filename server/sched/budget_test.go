package sched

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// budgeted makes a machine with the given bounds, one client and one worker.
func budgeted(c Config) (m *Machine, submit func(key string, argument int) (ids.TaskID, *Error)) {
	m = New(c)
	now := time.Unix(1, 0)
	m.Step(now, ClientOpened{Client: 1, TTL: time.Hour}, nil)
	m.Step(now, WorkerRegistered{Worker: 1, Name: "w", Slots: 1 << 20, Executors: []string{"native"}}, nil)
	return m, func(key string, argument int) (ids.TaskID, *Error) {
		r, _, err := m.Submit(now, GraphSubmitted{Client: 1, Ops: []OpSpec{{Kind: OpNative, Name: "f"}},
			Tasks: []TaskSpec{{Key: key, Hold: true, Arguments: make([]byte, argument)}}}, nil)
		if err != nil {
			return 0, err
		}
		return r.Tasks[0], nil
	}
}

func report(m *Machine, r Report) {
	r.Attempt = 1
	m.Step(time.Unix(1, 0), TasksReported{Worker: 1, Reports: []Report{r}}, nil)
	if err := m.Check(); err != nil {
		panic(err)
	}
}

func TestSubmissionsBeyondTheMemoryAreRefusedUntilThereIsSome(t *testing.T) {
	m, submit := budgeted(Config{MemoryBytes: 1 << 20})
	var tasks []ids.TaskID
	for i := range 100 {
		id, err := submit(fmt.Sprint(i), 64<<10)
		if err != nil {
			if err.Kind != ErrFull || i < 12 || i > 16 {
				t.Fatalf("submission %d of 64 KiB each: kind %d, %v", i, err.Kind, err)
			}
			break
		}
		tasks = append(tasks, id)
	}
	if len(tasks) == 100 {
		t.Fatal("6.4 MiB were accepted with a bound of 1 MiB")
	}
	if _, err := submit("far too large", 2<<20); err == nil || err.Kind != ErrInvalidField {
		t.Errorf("a submission that never fits: %v", err)
	}
	m.Step(time.Unix(1, 0), TasksReleased{Client: 1, Tasks: tasks}, nil)
	if held := m.Held(); held != 0 {
		t.Errorf("%d bytes are held for nothing", held)
	}
	if _, err := submit("again", 64<<10); err != nil {
		t.Errorf("after the release: %v", err)
	}
	if err := m.Check(); err != nil {
		t.Error(err)
	}
}

func TestLastOutputIsBounded(t *testing.T) {
	m, submit := budgeted(Config{TailBytes: 1 << 20})
	var tasks []ids.TaskID
	for i := range 1000 {
		id, err := submit(fmt.Sprint(i), 0)
		if err != nil {
			t.Fatal(err)
		}
		tasks = append(tasks, id)
		report(m, Report{Task: id, Outcome: OutcomeSucceeded, LogTail: strings.Repeat("x", 8<<10)})
		if m.totals.TailBytes > 1<<20 || len(m.trouble) > 0 {
			t.Fatalf("%d bytes after %d tasks, %d of them in trouble", m.totals.TailBytes, i+1, len(m.trouble))
		}
	}
	first, _ := m.Task(tasks[0])
	last, _ := m.Task(tasks[999])
	if first.LogTail != "" || len(last.LogTail) != 8<<10 {
		t.Errorf("the first task has %d bytes, the last one %d", len(first.LogTail), len(last.LogTail))
	}
}

func TestTracebacksAreBoundedAndTheOldestGoFirst(t *testing.T) {
	m, submit := budgeted(Config{DetailBytes: 1 << 20})
	var tasks []ids.TaskID
	for i := range 1000 {
		id, err := submit(fmt.Sprint(i), 0)
		if err != nil {
			t.Fatal(err)
		}
		tasks = append(tasks, id)
		detail := new([64 << 10]byte)
		report(m, Report{Task: id, Outcome: OutcomeFailed, Err: &TaskError{Reason: "BOOM", Message: "m", Detail: detail, DetailBytes: 64 << 10}})
		if m.totals.DetailBytes > 1<<20 {
			t.Fatalf("%d bytes after %d tasks", m.totals.DetailBytes, i+1)
		}
	}
	first, _ := m.UpdateOf(tasks[0])
	last, _ := m.UpdateOf(tasks[999])
	if first.Err.Reason != "BOOM" || first.Err.Detail != nil || last.Err.Detail == nil {
		t.Errorf("the first task failed with %+v, the last one with %+v", first.Err, last.Err)
	}
}
