package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/coord"
	"github.com/millrace/millrace/server/copies"
	"github.com/millrace/millrace/server/functions"
	"github.com/millrace/millrace/server/plugins"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
	"github.com/millrace/millrace/server/templates"
)

// opened opens a journal and returns the records that it had.
func opened(t rapid.TB, files Files, segment int) (*Journal, []Record) {
	t.Helper()
	var had []Record
	j, err := Open(Config{Files: files, SegmentBytes: segment, RetryTime: time.Millisecond}, func(_ time.Time, r Record) error {
		had = append(had, r)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return j, had
}

func numbered(n int) Record {
	return &WorkerNumbered{Worker: ids.WorkerID(n), Name: fmt.Sprint("worker-", n), Incarnation: "i"}
}

// A crash may leave any part of what was being written. The journal has all that was acknowledged,
// in order, and nothing but what was appended.
func TestAcknowledgedRecordsOutliveCrashes(t *testing.T) {
	rapid.Check(t, crashes)
}

func crashes(t *rapid.T) {
	segment := rapid.SampledFrom([]int{1, 200, 4000, 1 << 20}).Draw(t, "segment")
	s := &life{t: t, segment: segment, files: newDisk()}
	s.journal, _ = opened(t, s.files, segment)
	steps := []string{"append", "append", "large", "wait", "wait", "fail write", "fail sync", "full", "crash", "kill", "restart"}
	for range rapid.IntRange(1, 40).Draw(t, "steps") {
		s.step(rapid.SampledFrom(steps).Draw(t, "step"))
	}
	s.step("crash")
	s.step("restart")
}

// life is a journal through its starts.
type life struct {
	t       *rapid.T
	segment int
	files   *disk
	journal *Journal
	// appended are all records that may be in the journal, in order; the first ones are
	// acknowledged. n is the number of the last one.
	appended        []Record
	acknowledged, n int
}

func (s *life) step(step string) {
	switch step {
	case "append":
		for range rapid.IntRange(1, 5).Draw(s.t, "records") {
			s.append(numbered(s.n))
		}
	case "large":
		r := long(s.n%3, largeBytes+rapid.IntRange(0, 2).Draw(s.t, "more"))
		r.Number = uint64(s.n)
		s.append(r)
	case "wait":
		s.journal.mu.Lock()
		last := s.journal.appended
		s.journal.mu.Unlock()
		if s.journal.Wait(s.t.Context(), last) == nil && last > 0 {
			s.acknowledged = len(s.appended)
		}
	case "fail write":
		s.files.mu.Lock()
		s.files.failWrite = rapid.IntRange(1, 3).Draw(s.t, "write")
		s.files.mu.Unlock()
	case "fail sync":
		s.files.mu.Lock()
		s.files.failSync = rapid.IntRange(1, 3).Draw(s.t, "sync")
		s.files.mu.Unlock()
	case "full":
		s.files.mu.Lock()
		s.files.fullBytes = rapid.IntRange(1, 4000).Draw(s.t, "full")
		s.files.mu.Unlock()
	case "restart":
		_ = s.journal.Close() // The disk may refuse.
		s.open(s.files.left())
	case "kill", "crash":
		files := s.files.left()
		_ = s.journal.Close() // It cannot write.
		if step == "crash" {
			files.crash(rapid.IntRange(0, 300).Draw(s.t, "rest"), rapid.IntRange(0, tornShapes-1).Draw(s.t, "shape"))
		}
		s.open(files)
	}
}

func (s *life) append(r Record) {
	s.n++
	s.appended = append(s.appended, r)
	s.journal.Append(time.Now(), r)
}

// open opens the journal again, and checks what it has.
func (s *life) open(files *disk) {
	s.files = files
	var had []Record
	s.journal, had = opened(s.t, files, s.segment)
	if len(had) < s.acknowledged || len(had) > len(s.appended) {
		s.t.Fatalf("%d records were acknowledged and %d appended; the journal has %d", s.acknowledged, len(s.appended), len(had))
	}
	for i := range had {
		if !reflect.DeepEqual(had[i], s.appended[i]) {
			s.t.Fatalf("record %d is %.200s, not %.200s", i, fmt.Sprint(had[i]), fmt.Sprint(s.appended[i]))
		}
	}
	s.appended = had
}

// filled returns a disk with a journal of some batches.
func filled(t *testing.T, batches, segment int) *disk {
	t.Helper()
	files := newDisk()
	j, _ := opened(t, files, segment)
	for n := range batches {
		if err := j.Wait(t.Context(), j.Append(time.Now(), numbered(n))); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	return files
}

// Each byte of a journal is broken in turn. It is found, or nothing is missing: the journal refuses
// to open, and names the file and the remedy. Only a scheduler that did not stop in good order may
// lose the last batch, with a warning.
func TestDamageIsFoundWhereverItIs(t *testing.T) {
	for _, segment := range []int{1 << 20, 100} {
		files := newDisk()
		j, _ := opened(t, files, segment)
		for n := range 5 {
			write(t, j, numbered(n))
		}
		write(t, j, long(1, largeBytes))
		killed := files.left()
		files.stopAt = 0
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		for _, whole := range []*disk{files, killed} {
			names, _ := whole.List()
			logs := segments(whole)
			last := logs[len(logs)-1]
			for _, name := range names {
				for i := range whole.files[name].data {
					if i > 300 && i%1000 != 0 {
						continue
					}
					broken := whole.left()
					broken.files[name].data[i] ^= 0x10
					had, log, err := reread(broken)
					switch {
					case err != nil:
						if text := err.Error(); !strings.Contains(text, name) || !strings.Contains(text, "millrace journal c") && !strings.Contains(text, "format") {
							t.Errorf("byte %d of %s: %v", i, name, err)
						}
					case len(had) == 6:
					case whole != killed || name != last || len(had) != 5 || !strings.Contains(log, "what was accepted last is lost"):
						t.Errorf("byte %d of %s is broken, and the journal has %d of 6 records: %s", i, name, len(had), log)
					}
				}
			}
		}
	}
}

// forged returns what looks like a batch of a segment without a salt.
func forged(number uint64) []byte {
	return appendBatch(nil, 0, number, []byte("\x00forged"))
}

func TestASegmentThatIsMissingIsFound(t *testing.T) {
	files := filled(t, 8, 100)
	names := segments(files)
	if len(names) < 3 {
		t.Fatalf("there are %d segments only", len(names))
	}
	delete(files.files, names[1])
	if _, err := Open(Config{Files: files}, func(time.Time, Record) error { return nil }); err == nil || !strings.Contains(err.Error(), "the segment is missing") {
		t.Errorf("without %s: %v", names[1], err)
	}
}

func TestALaterFormatIsRefused(t *testing.T) {
	files := filled(t, 2, 1<<20)
	names := segments(files)
	files.files[names[0]].data[len(magic)]++
	if _, err := Open(Config{Files: files}, func(time.Time, Record) error { return nil }); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("has format %d,", formatVersion+1)) {
		t.Errorf("format %d: %v", formatVersion+1, err)
	}
}

func TestAValueThatIsDamagedIsFound(t *testing.T) {
	files := newDisk()
	j, _ := opened(t, files, 1<<20)
	value := bytes.Repeat([]byte("v"), largeBytes)
	if err := j.Wait(t.Context(), j.Append(time.Now(), &DatasetPublished{Number: 1, Value: value})); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	for name, f := range files.files {
		if strings.HasSuffix(name, valuesSuffix) {
			f.data[7]++
		}
	}
	if _, err := Open(Config{Files: files}, func(time.Time, Record) error { return nil }); err == nil || !strings.Contains(err.Error(), "is damaged") {
		t.Errorf("with a damaged value: %v", err)
	}
}

// A full disk refuses, and the journal goes on as soon as there is room.
func TestAFullDiskStopsAcknowledgementsUntilThereIsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files := newDisk()
		j, _ := opened(t, files, 1<<20)
		files.fullBytes = 30
		if err := j.Wait(t.Context(), j.Append(time.Now(), numbered(1))); !errors.Is(err, errDisk) {
			t.Errorf("a full disk: %v", err)
		}
		if j.Trouble() == nil {
			t.Error("the journal has no trouble")
		}
		files.mu.Lock()
		files.fullBytes = 0
		files.mu.Unlock()
		if err := j.Wait(t.Context(), j.Append(time.Now(), numbered(2))); err != nil {
			t.Errorf("with room again: %v", err)
		}
		if err := j.Trouble(); err != nil {
			t.Errorf("with room again: %v", err)
		}
		if err := j.Close(); err != nil {
			t.Error(err)
		}
		j, had := opened(t, files, 0)
		if err := j.Close(); err != nil || len(had) != 2 {
			t.Errorf("the journal has %d records, not 2; %v", len(had), err)
		}
	})
}

// After a failed sync, nobody knows what the disk has. The journal does not try again.
func TestAFailedSyncEndsTheJournal(t *testing.T) {
	files := newDisk()
	j, _ := opened(t, files, 1<<20)
	write(t, j, numbered(0))
	files.mu.Lock()
	files.failSync = 1
	files.mu.Unlock()
	if err := j.Wait(t.Context(), j.Append(time.Now(), numbered(1))); !errors.Is(err, errDisk) {
		t.Errorf("the sync fails: %v", err)
	}
	if err := j.Wait(t.Context(), j.Append(time.Now(), numbered(2))); !errors.Is(err, errDisk) {
		t.Errorf("after a failed sync: %v", err)
	}
	if err := j.Close(); !errors.Is(err, errDisk) {
		t.Errorf("closed after a failed sync: %v", err)
	}
}

// Those that wait at the same time share one sync.
func TestWaitersShareASync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files := newDisk()
		j, _ := opened(t, files, 1<<20)
		write(t, j, numbered(0))
		before := files.syncs
		var wait sync.WaitGroup
		last := uint64(0)
		for n := range 64 {
			last = j.Append(time.Now(), numbered(n))
		}
		for n := range uint64(64) {
			wait.Go(func() {
				if err := j.Wait(t.Context(), last-n); err != nil {
					t.Error(err)
				}
			})
		}
		wait.Wait()
		if n := files.syncs - before; n != 1 {
			t.Errorf("64 records needed %d syncs", n)
		}
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Records for which nobody waits are written after a while.
func TestRecordsAreWrittenWithoutWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j, _ := opened(t, newDisk(), 1<<20)
		j.Append(time.Now(), numbered(1))
		time.Sleep(2 * idleTime)
		synctest.Wait()
		if n := j.Waiting(); n != 0 {
			t.Errorf("%d records wait", n)
		}
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestAWaiterGoesWithItsContext(t *testing.T) {
	j, _ := opened(t, newDisk(), 1<<20)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	record := j.Append(time.Now(), numbered(1))
	if err := j.Wait(ctx, record); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
}

func TestTheFirstRecordIdentifiesAJournal(t *testing.T) {
	files := newDisk()
	if begun, err := Identify(files); begun != nil || err != nil {
		t.Errorf("an empty journal is of %+v, %v", begun, err)
	}
	j, _ := opened(t, files, 1<<20)
	j.Append(time.Now(), &Begun{Cluster: "c", Life: 7, Starts: 1})
	j.Append(time.Now(), numbered(1))
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if begun, err := Identify(files); err != nil || begun == nil || *begun != (Begun{"c", 7, 1}) {
		t.Errorf("the journal is of %+v, %v", begun, err)
	}
}

// samples has a record of each kind, with all fields set.
func samples() []Record {
	return []Record{
		&Begun{Cluster: "c", Life: 1 << 63, Starts: 3},
		&ClientOwned{Client: 1 << 62, Owner: "t"},
		&ClientAwaits{Client: 1 << 62, Namespace: "s"},
		&ClientOpened{Client: 1 << 62, Spec: schedapi.ClientSpec{Name: "n", Namespace: "s", Origin: "o", Worker: "w", TTL: time.Minute}},
		&sched.ClientClosed{Client: 4},
		&sched.Counters{NextTask: 1 << 40, NextGraph: 9},
		&sched.GraphPut{Graph: 5, Client: 4, Name: "g", Namespace: "s", Retention: time.Hour, CreatedAt: time.Unix(0, 12345), EndedAt: time.Unix(0, 12346), Dropped: true,
			Ops: []sched.OpTotal{{Name: "f", Tasks: 3}}},
		&sched.GraphEnded{Graph: 5, At: time.Unix(0, 12345)},
		&sched.GraphDropped{Graph: 5},
		&sched.GraphDeleted{Graph: 5},
		&sched.TasksPut{
			Graph: 5,
			Ops:   []sched.OpSpec{{Kind: sched.OpPythonPickle, Name: "f", Function: ids.FunctionHash{1, 2}}},
			Options: []sched.Options{{
				Priority: -7, MaxRetries: 3, RetryBackoff: time.Second, Timeout: time.Minute,
				Resources: map[string]float64{"gpu": 0.5, "a": 2}, Workers: []sched.WorkerSelector{{Worker: 3}, {Name: "w"}, {Host: "h"}},
				AllowOtherWorkers: true, ExpectedOutputBytes: 1 << 40, Slots: 2, NoWait: true,
			}},
			Tasks: []sched.TaskRow{
				{Task: 1 << 40, Key: "k", Op: 0, Options: 1, Inputs: 2, Arguments: []byte{1, 2, 3}, Position: 1<<47 + 5, Submitted: 1_700_000_000_123, RunHold: true},
				{Task: 1<<40 + 7, Key: "large", Arguments: bytes.Repeat([]byte("a"), largeBytes), Position: 1<<47 + 2, Submitted: 1_700_000_000_122},
			},
			Inputs: []sched.InputRow{{Task: 1<<40 - 3, Item: 4, Count: 9}, {Task: 1<<40 + 1}},
			Totals: []sched.OpTotal{{Name: "f", Tasks: 3}},
		},
		&sched.TasksEnded{State: sched.TaskSucceeded, Tasks: []sched.TaskRef{{Task: 1 << 40, Attempt: 4097}, {Task: 1<<40 + 1, Attempt: 4097}}},
		&sched.TasksEnded{State: sched.TaskFailed, Tasks: []sched.TaskRef{{Task: 2, Attempt: 1}}, Err: &sched.TaskError{
			Reason: "R", Message: "m", OriginKey: "k", Worker: "w", Attempt: 1, Attempts: 2, LogTail: "t", Detail: &pb.TaskError{Traceback: "tb"}, DetailBytes: 7,
		}},
		&sched.DataPut{Task: 1 << 40, Bytes: 3, Inline: []byte("abc")},
		&sched.DataPut{Task: 1 << 40, Inline: []byte{}},
		&sched.TaskTroubled{Task: 1 << 40, Retries: 1, Deaths: 2, Kills: 3, Early: 4, Reschedules: 5, Causes: []string{"a", "b"}},
		&sched.TasksForgotten{Tasks: []ids.TaskID{1 << 40, 1<<40 + 1, 3}},
		&sched.RunHoldsPut{Tasks: []ids.TaskID{9}},
		&sched.HoldsPut{Holder: sched.Holder{Kind: sched.HolderClient, Number: 1 << 63}, Tasks: []ids.TaskID{9, 3, 1 << 40}},
		&sched.HoldsDeleted{Holder: sched.Holder{Kind: sched.HolderGraph, Number: 5}, Tasks: []ids.TaskID{9, 10, 11}},
		&sched.HolderDeleted{Holder: sched.Holder{Kind: sched.HolderDataset, Number: 5}},
		&sched.RequestPut{Client: 4, Namespace: "s", Request: "r", Body: 1 << 63, Graph: 5, Tasks: []ids.TaskID{7, 8, 9, 1}, Joined: 1, Failed: []ids.TaskID{1}},
		&FunctionPut{functions.Function{Hash: ids.FunctionHash{1, 2}, Payload: []byte("pickle"), Language: "python 3.12"}},
		&FunctionDeleted{Hash: ids.FunctionHash{1, 2}},
		&DatasetPublished{Number: 8, Name: "d", Namespace: "s", Keys: []string{"k"}, Value: []byte("v"), Replaced: 7},
		&DatasetUnpublished{Number: 8, Name: "d", Namespace: "s"},
		&WorkerNumbered{Worker: 3, Name: "w", Incarnation: "i"},
		&WorkerGone{Worker: 3},
		&copies.DrainOrderChanged{DrainOrder: copies.DrainOrder{
			Name: "w", Purpose: copies.DrainRetire, Reason: "why", Worker: 3, Since: time.Unix(0, 1), Until: time.Unix(9, 0), Lost: time.Unix(7, 0),
		}},
		&copies.DrainOrderChanged{DrainOrder: copies.DrainOrder{Name: "w"}, Gone: true},
		&plugins.PluginChanged{Plugin: plugins.Plugin{Name: "p", Version: 1 << 60, Body: []byte("b")}},
		&plugins.PluginChanged{Plugin: plugins.Plugin{Name: "p"}, Gone: true},
		&templates.TemplateChanged{Namespace: "s", Template: &templates.Template{
			Hash: templates.Hash{3, 4}, Ops: []sched.OpSpec{{Kind: sched.OpPythonPickle, Name: "f", Function: ids.FunctionHash{1, 2}}}, Used: []bool{true},
			Options:   []sched.Options{{Priority: -7, Resources: map[string]float64{"gpu": 0.5}}},
			Functions: []functions.Function{{Hash: ids.FunctionHash{1, 2}, Payload: []byte("pickle"), Language: "python 3.12"}},
			Tasks: []templates.Task{
				{
					Key: "k", Options: 1, Inputs: []templates.Input{1, templates.Hole(0)}, Items: []sched.ItemInput{{Input: 1, Item: 4, Count: 9}}, Hold: true,
					Pieces: []templates.Piece{{Literal: []byte("<")}, {Inside: []templates.Piece{{Hole: 1}, {Inside: []templates.Piece{{Hole: 0}}}, {Literal: []byte(";")}}}},
				},
				{Key: "large", Arguments: bytes.Repeat([]byte("b"), largeBytes)},
			},
			Values: []templates.Value{{Name: "x", Type: 3}, {Name: "y"}}, Inputs: []string{"in"},
		}},
		&templates.TemplateChanged{Namespace: "s", Template: &templates.Template{Hash: templates.Hash{3, 4}}, Gone: true},
		&coord.Coordinated{Changes: []coord.Change{
			{Row: coord.ValueRow{Number: 1, Namespace: "s", Value: coord.Value{Data: []byte("v"), Keys: []string{"k"}, Hold: 3, Tasks: []ids.TaskID{9}}}},
			{Row: coord.ValueRow{Number: 2, Namespace: "s", Value: coord.Value{Data: bytes.Repeat([]byte("v"), largeBytes)}}},
			{Row: coord.ValueRow{Number: 3, Value: coord.Value{Hold: 3}}, Gone: true},
			{Row: coord.VariableRow{Namespace: "s", Name: "v", Value: 1}},
			{Row: coord.EventRow{Namespace: "s", Name: "e"}},
			{Row: coord.QueueRow{Namespace: "s", Name: "q", MaxSize: 4}},
			{Row: coord.OpenerRow{Client: 1 << 62, Namespace: "s", Name: "q"}},
			{Row: coord.ItemRow{Namespace: "s", Name: "q", Value: 2}},
			{Row: coord.TopicRow{Namespace: "s", Name: "t", Base: 1 << 36}},
			{Row: coord.MessageRow{Namespace: "s", Name: "t", Number: 1<<36 + 1, At: time.Unix(0, 12345), Value: 2}},
			{Row: coord.GrantRow{Number: 7, Client: 4, ID: "r", Namespace: "s", Ask: coord.Acquire{Names: []string{"a", "b"}, Limit: 2, Needed: 1}, Names: []string{"a"}, Given: true}},
			{Row: coord.AnswerRow{Client: 4, ID: "r", Namespace: "s", Kind: coord.AnswerTaken, Name: "q", Names: []string{"a"}, Values: []uint64{1, 2}, Given: true}},
			{Row: coord.MetadataRow{Namespace: "s", Path: []string{"a", "b"}, Number: 5, IsLeaf: true, Leaf: []byte("1")}},
		}},
	}
}

func TestEveryRecordComesBackAsItWas(t *testing.T) {
	files := newDisk()
	j, _ := opened(t, files, 1<<20)
	kinds, rows := map[kind]bool{}, map[rowKind]bool{}
	for _, r := range samples() {
		j.Append(time.Now(), r)
		kinds[kindOf(r)] = true
		if r, ok := r.(*coord.Coordinated); ok {
			for _, c := range r.Changes {
				rows[rowKindOf(c.Row)] = true
			}
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	_, had := opened(t, files, 1<<20)
	if len(had) != len(samples()) {
		t.Fatalf("%d records came back of %d", len(had), len(samples()))
	}
	for i, want := range samples() {
		if begun, ok := want.(*Begun); ok {
			begun.Starts = had[i].(*Begun).Starts // It has a gap.
		}
		if ended, ok := want.(*sched.TasksEnded); ok && ended.Err != nil {
			got := had[i].(*sched.TasksEnded).Err
			if !proto.Equal(got.Detail.(*pb.TaskError), ended.Err.Detail.(*pb.TaskError)) || got.DetailBytes != ended.Err.DetailBytes {
				t.Errorf("the detail came back as %+v", got)
			}
			got.Detail, ended.Err.Detail = nil, nil
		}
		if !reflect.DeepEqual(had[i], want) {
			t.Errorf("a %T came back as %+v, not as %+v", want, had[i], want)
		}
	}
	kinds[kindSnapshotBegan], kinds[kindSnapshotEnded] = true, true // TestASnapshotIsReported reads them.
	for k := range kind(math.MaxUint8) {
		if newRecord(k) != nil && !kinds[k] {
			t.Errorf("no record of kind %d was tried", k)
		}
	}
	for k := range rowKind(math.MaxUint8) {
		if newRow(k) != nil && !rows[k] {
			t.Errorf("no row of kind %d was tried", k)
		}
	}
}

// FuzzRecords reads any bytes as records: it must neither panic nor use much memory.
func FuzzRecords(f *testing.F) {
	var c codec
	for _, r := range samples() {
		c.code(r)
	}
	f.Add(c.data)
	f.Fuzz(func(t *testing.T, data []byte) {
		c := codec{reading: true, data: data, load: func(hash) ([]byte, error) { return nil, nil }}
		for len(c.data) > 0 {
			c.code(nil)
		}
	})
}

// BenchmarkGroupCommit shows what 64 waiting submitters cost on a disk, per record.
func BenchmarkGroupCommit(b *testing.B) {
	for _, waiters := range []int{1, 64} {
		b.Run(fmt.Sprint(waiters), func(b *testing.B) {
			files, err := OpenDirectory(b.TempDir())
			if err != nil {
				b.Fatal(err)
			}
			j, _ := opened(b, files, 0)
			var mu sync.Mutex
			b.SetParallelism(waiters)
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					mu.Lock()
					record := j.Append(time.Now(), numbered(1))
					mu.Unlock()
					if err := j.Wait(b.Context(), record); err != nil {
						b.Error(err)
					}
				}
			})
			if err := j.Close(); err != nil {
				b.Error(err)
			}
			_ = files.Close()
		})
	}
}
