package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/journal"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// syncCount counts what is made durable in a directory.
type syncCount struct {
	*journal.Directory
	files, names int
}

func (c *syncCount) Append(name string) (journal.File, error) {
	file, err := c.Directory.Append(name)
	return syncedFile{file, c}, err
}

func (c *syncCount) SyncNames() error {
	c.names++
	return c.Directory.SyncNames()
}

type syncedFile struct {
	journal.File
	count *syncCount
}

func (f syncedFile) Sync() error {
	f.count.files++
	return f.File.Sync()
}

// The token of a scheduler is durable before anybody gets it, and later starts have the same.
func TestTheTokenIsKept(t *testing.T) {
	directory, err := journal.OpenDirectory(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	files := &syncCount{Directory: directory}
	for _, made := range []string{"first", "second"} {
		if token, err := keptToken(files, made); err != nil || token != "first" {
			t.Errorf("%q, %v", token, err)
		}
	}
	if files.files != 1 || files.names != 1 {
		t.Errorf("the file was synced %d times, the directory %d times", files.files, files.names)
	}
	if err := directory.Close(); err != nil {
		t.Error(err)
	}
}

// written makes a journal with a graph of a client, and returns its directory.
func written(t *testing.T) string {
	t.Helper()
	directory := filepath.Join(t.TempDir(), "journal")
	files, err := journal.OpenDirectory(directory)
	if err != nil {
		t.Fatal(err)
	}
	j, err := journal.Open(journal.Config{Files: files}, func(time.Time, journal.Record) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := keptToken(files, "secret-token"); err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	for _, r := range []journal.Record{
		&journal.Begun{Cluster: "c1", Life: 7, Starts: 1},
		&journal.ClientOpened{Client: 4, Spec: schedapi.ClientSpec{Name: "a client", Namespace: "default", TTL: time.Minute}},
		&sched.GraphPut{Graph: 9, Client: 4, Name: "etl", Namespace: "default"},
		&sched.TasksPut{Graph: 9, Options: []sched.Options{{Resources: map[string]float64{"gpu": 1}}}, Inputs: []sched.InputRow{{Task: 100}},
			Tasks: []sched.TaskRow{{Task: 100, Key: "load\x1b[2J", Arguments: []byte("secret-argument")}, {Task: 101, Key: "big", Arguments: bytes.Repeat([]byte("secret"), 20000), Inputs: 1}}},
		&sched.HoldsPut{Holder: sched.Holder{Kind: sched.HolderClient, Number: 4}, Tasks: []ids.TaskID{100, 101}},
		&sched.TasksEnded{State: sched.TaskFailed, Tasks: []sched.TaskRef{{Task: 101, Attempt: 1}}, Err: &sched.TaskError{Reason: "TASK_FAILED", Message: "no disk", LogTail: "secret-log"}},
		&sched.TasksEnded{State: sched.TaskSucceeded, Tasks: []sched.TaskRef{{Task: 7, Attempt: 1}}},
	} {
		if err := j.Wait(t.Context(), j.Append(at, r)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(j.Close(), files.Close()); err != nil {
		t.Fatal(err)
	}
	return directory
}

func TestAJournalIsShown(t *testing.T) {
	directory := written(t)
	out, err := commandLine(t, "journal", "show", directory)
	if err != nil {
		t.Fatal(err)
	}
	const want = `2026-11-28T12:00:00.000Z  1  begun cluster=c1 life=7 starts=1
2026-11-28T12:00:00.000Z  2  client_opened client=c4 name="a client" namespace=default ttl=1m0s
2026-11-28T12:00:00.000Z  3  graph_put graph=g9 client=c4 name=etl namespace=default
2026-11-28T12:00:00.000Z  4  tasks_put graph=g9 options=(1 items) tasks=(2 items) inputs=(1 items)
2026-11-28T12:00:00.000Z  5  holds_put holder=c4 tasks=[t100 t101]
2026-11-28T12:00:00.000Z  6  tasks_ended state=FAILED tasks=(1 items) reason=TASK_FAILED message="no disk"
2026-11-28T12:00:00.000Z  7  tasks_ended state=SUCCEEDED tasks=(1 items)
`
	if out != want {
		t.Errorf("got\n%s, want\n%s", out, want)
	}
	for _, c := range []struct {
		lines int
		args  []string
	}{{4, []string{"--graph", "9"}}, {3, []string{"--client", "4"}}, {4, []string{"--graph", "g9"}}, {3, []string{"--client", "c4"}}, {2, []string{"--client", "4", "--graph", "9"}}, {0, []string{"--graph", "8"}}} {
		out, err := commandLine(t, append([]string{"journal", "show", directory}, c.args...)...)
		if n := strings.Count(out, "\n"); err != nil || n != c.lines {
			t.Errorf("%v: %d lines, not %d; %v\n%s", c.args, n, c.lines, err, out)
		}
	}
	out, err = commandLine(t, "journal", "show", directory, "--json")
	var all struct {
		Records []struct {
			Kind, Graph string
			Batch       int
			Tasks       []any
		}
	}
	if err := errors.Join(err, json.Unmarshal([]byte(out), &all)); err != nil || len(all.Records) != 7 {
		t.Fatalf("%v\n%s", err, out)
	}
	r := all.Records[3]
	if r.Kind != "tasks_put" || r.Graph != "g9" || r.Batch != 4 || len(r.Tasks) != 2 {
		t.Fatalf("%+v", r)
	}
	task, _ := r.Tasks[1].(map[string]any)
	if arguments, _ := task["arguments"].(map[string]any); arguments["bytes"] != 120000.0 || task["inputs"] != 1.0 {
		t.Errorf("%+v", task)
	}
	if strings.Contains(out, "secret") {
		t.Errorf("it has secrets: %s", out)
	}
	out, err = commandLine(t, "journal", "show", directory, "--json", "--graph", "8")
	if err := errors.Join(err, json.Unmarshal([]byte(out), &all)); err != nil || len(all.Records) != 0 {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestAJournalIsCheckedAndCut(t *testing.T) {
	directory := written(t)
	check := func(args ...string) (journalView, error) {
		t.Helper()
		out, err := commandLine(t, append([]string{"journal", "check", directory, "--json"}, args...)...)
		var v journalView
		if broken := json.Unmarshal([]byte(out), &v); broken != nil {
			t.Fatalf("%v, %v\n%s", broken, err, out)
		}
		return v, err
	}
	if v, err := check(); err != nil || !v.Sound || v.End != "stopped" || v.Records != 7 || v.Cluster != "c1" || v.Values != 1 {
		t.Errorf("%+v, %v", v, err)
	}
	if out, err := commandLine(t, "journal", "check", directory, "-o", "wide"); err != nil || !strings.Contains(out, "7 in 7 batches") || !strings.Contains(out, ".log") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := commandLine(t, "journal", "cut", directory, "--yes"); err != nil || out != "nothing is damaged\n" {
		t.Errorf("%q, %v", out, err)
	}
	name := filepath.Join(directory, "00000000000000000001.log")
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(data, []byte("no disk"))
	data[at] = 'x'
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	v, err := check()
	if exitCode(err) != exitFailed || v.Sound || v.Records != 5 || v.Damage == nil || v.Damage.File != filepath.Base(name) || v.Damage.Offset >= int64(at) || v.Damage.Remedy == "" || v.BehindFiles != 1 {
		t.Errorf("%+v, %v", v, err)
	}
	if out, err := commandLine(t, "journal", "check", directory); exitCode(err) != exitFailed || !strings.Contains(out, "millrace journal cut") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := commandLine(t, "journal", "show", directory); exitCode(err) != exitFailed || strings.Count(out, "\n") != 5 {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := commandLine(t, "journal", "cut", directory); exitCode(err) != exitUsage || !strings.Contains(err.Error(), "--yes would keep 5 records") {
		t.Errorf("without --yes: %v", err)
	}
	lock, err := journal.OpenDirectory(directory)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := commandLine(t, "journal", "cut", directory, "--yes"); err == nil || !strings.Contains(err.Error(), "another scheduler uses it") {
		t.Errorf("while it is locked: %v", err)
	}
	if v, err := check(); err == nil || v.Sound {
		t.Errorf("while it is locked: %+v, %v", v, err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if out, err := commandLine(t, "journal", "cut", directory, "--yes"); err != nil || !strings.Contains(out, "the journal is whole, with 5 records") {
		t.Errorf("%v\n%s", err, out)
	}
	copies, err := filepath.Glob(name + ".*.cut")
	if err != nil || len(copies) != 1 {
		t.Fatalf("%q, %v", copies, err)
	}
	if kept, err := os.ReadFile(copies[0]); err != nil || !bytes.Equal(kept, data) {
		t.Errorf("the copy is not the damaged file: %v", err)
	}
	if v, err := check(); err != nil || v.Records != 5 || v.End != "cut" {
		t.Errorf("%+v, %v", v, err)
	}
	if out, err := commandLine(t, "journal", "check", directory); err != nil || strings.Contains(out, "stopped in good order") || !strings.Contains(out, "journal cut") {
		t.Errorf("%v\n%s", err, out)
	}
	// Nothing is whole before a damaged head: the advice is not to cut again.
	data[2] ^= 1
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = commandLine(t, "journal", "cut", directory, "--yes")
	if err == nil || !strings.Contains(err.Error(), "begin a new cluster") || strings.Contains(err.Error(), "journal cut") {
		t.Errorf("%v", err)
	}
}

// A snapshot is checked and shown like the log.
func TestASnapshotOfAJournalIsShown(t *testing.T) {
	directory := written(t)
	files, err := journal.OpenDirectory(directory)
	if err != nil {
		t.Fatal(err)
	}
	j, err := journal.Open(journal.Config{Files: files}, func(time.Time, journal.Record) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 11, 28, 13, 0, 0, 0, time.UTC)
	s := j.Snapshot(at, func(_ uint64, put func(any)) (uint64, bool) {
		put(&journal.DatasetPublished{Number: 3, Name: "kept", Value: bytes.Repeat([]byte("x"), 70000)})
		return 0, false
	})
	for s.Piece(at) {
	}
	if err := errors.Join(s.Wait(t.Context()), j.Close(), files.Close()); err != nil {
		t.Fatal(err)
	}
	out, err := commandLine(t, "journal", "show", directory)
	for _, want := range []string{"13:00:00.000Z  s1  begun cluster=c1", "s1  dataset_published number=3 name=kept", "snapshot_ended rows=2 until=8", "13:00:00.000Z  8  snapshot_began\n"} {
		if err != nil || !strings.Contains(out, want) || strings.Contains(out, "etl") {
			t.Errorf("no %q, %v, in\n%s", want, err, out)
		}
	}
	out, err = commandLine(t, "journal", "check", directory)
	if err != nil || !strings.Contains(out, "00000000000000000008.snapshot, ") || !strings.Contains(out, "3 rows") || !strings.Contains(out, "1 in 1 batches") || !strings.Contains(out, "stopped in good order") {
		t.Errorf("%v\n%s", err, out)
	}
	name := filepath.Join(directory, "00000000000000000008.snapshot")
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err = commandLine(t, "journal", "check", directory)
	if exitCode(err) != exitFailed || !strings.Contains(out, "restore the directory from a copy, or begin a new cluster") || strings.Contains(out, "journal cut") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err = commandLine(t, "journal", "cut", directory, "--yes"); err == nil || !strings.Contains(err.Error(), "begin a new cluster") || strings.Contains(err.Error(), "try again") {
		t.Errorf("%v", err)
	}
}

// A folder without segments, a file, and a number that is none are no journals.
func TestAnythingButAJournalIsRefused(t *testing.T) {
	directory := t.TempDir()
	if out, err := commandLine(t, "journal", "check", directory); exitCode(err) != exitFailed || !strings.Contains(err.Error(), directory+" has no journal") {
		t.Errorf("%v\n%s", err, out)
	}
	file := filepath.Join(directory, "x")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"check", "show", "cut"} {
		if _, err := commandLine(t, "journal", name, file); exitCode(err) != exitUsage || !strings.Contains(err.Error(), file+" is a file") || !strings.Contains(err.Error(), "--journal") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, bad := range []string{"--graph=t1", "--client=g1"} {
		if _, err := commandLine(t, "journal", "show", written(t), bad); exitCode(err) != exitUsage || strings.Contains(err.Error(), "ParseInt") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// A scheduler that cannot read its journal names the directory.
func TestAStartWithADamagedJournalNamesTheDirectory(t *testing.T) {
	directory := written(t)
	name := filepath.Join(directory, "00000000000000000001.log")
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = commandLine(t, "scheduler", "--journal", directory, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
	if err == nil || !strings.Contains(err.Error(), directory) || !strings.Contains(err.Error(), filepath.Base(name)) {
		t.Errorf("%v", err)
	}
}

// A journal of an older format is refused. The error names the directory, the file and its format.
func TestAJournalOfAnOlderFormatIsRefused(t *testing.T) {
	directory := written(t)
	name := filepath.Join(directory, "00000000000000000001.log")
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	data[8] = 3
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"journal", "check", directory}, {"journal", "show", directory}, {"journal", "cut", directory, "--yes"},
		{"scheduler", "--journal", directory, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"},
	} {
		_, err := commandLine(t, args...)
		if exitCode(err) != exitFailed {
			t.Errorf("%s %s: %v", args[0], args[1], err)
			continue
		}
		for _, want := range []string{directory, filepath.Base(name) + " has format 3,", "record of facts", "finish its work with that version, then begin a new directory"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s %s does not say %q: %v", args[0], args[1], want, err)
			}
		}
	}
	if kept, err := os.ReadFile(name); err != nil || !bytes.Equal(kept, data) {
		t.Errorf("the file was changed: %v", err)
	}
}

func TestADirectoryWithoutAJournalIsNotMade(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none")
	for _, name := range []string{"check", "show", "cut"} {
		if _, err := commandLine(t, "journal", name, missing, "--yes"); name == "cut" && err == nil {
			t.Errorf("%s: no error", name)
		}
		if _, err := commandLine(t, "journal", name, missing); err == nil || !strings.Contains(err.Error(), "no such file") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat(missing); err == nil {
		t.Error("the directory was made")
	}
	if out, _ := commandLine(t, "__complete", "journal", "check", ""); !strings.Contains(out, ":16") {
		t.Errorf("directories are not completed: %q", out)
	}
}
