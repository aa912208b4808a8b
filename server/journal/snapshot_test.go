package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// table is a table of facts: values by number.
type table map[uint64][]byte

// apply makes a record so.
func (t table) apply(r Record) {
	switch r := r.(type) {
	case *DatasetPublished:
		t[r.Number] = r.Value
	case *DatasetUnpublished:
		delete(t, r.Number)
	}
}

// source hands the table over, so many rows in a piece.
func (t table) source(piece int) Source {
	return func(cursor uint64, put func(row any)) (next uint64, more bool) {
		left := piece
		for _, number := range slices.Sorted(maps.Keys(t)) {
			if number < cursor {
				continue
			}
			if left--; left < 0 {
				return number, true
			}
			put(&DatasetPublished{Number: number, Value: t[number]})
		}
		return 0, false
	}
}

// ledger is a journal of a table through its starts.
type ledger struct {
	t        rapid.TB
	config   Config
	files    *disk
	journal  *Journal
	table    table
	snapshot *Snapshot
	// states are those after each change, the first of which is the one at the start. The first
	// acknowledged changes are durable.
	states       []table
	acknowledged int
	started      []Record // that the last start has read
}

func newLedger(t rapid.TB, config Config) *ledger {
	l := &ledger{t: t, config: config, states: []table{{}}}
	l.open(newDisk())
	return l
}

func (l *ledger) open(files *disk) {
	l.files, l.snapshot, l.started = files, nil, nil
	l.config.Files, l.config.RetryTime = files, time.Millisecond
	had := table{}
	var err error
	l.journal, err = Open(l.config, func(_ time.Time, r Record) error {
		had.apply(r)
		l.started = append(l.started, r)
		return nil
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.match(had)
	l.table = had
}

// match checks that a state is one of those that may be there. It need not be durable yet.
func (l *ledger) match(had table) {
	for i := len(l.states) - 1; i >= l.acknowledged; i-- {
		if reflect.DeepEqual(l.states[i], had) {
			l.states, l.acknowledged = l.states[l.acknowledged:i+1:i+1], 0
			return
		}
	}
	l.t.Fatalf("none of the last %d states is %s: the last one is %s", len(l.states)-l.acknowledged, had, l.states[len(l.states)-1])
}

func (t table) String() string {
	var b strings.Builder
	for _, number := range slices.Sorted(maps.Keys(t)) {
		fmt.Fprintf(&b, "%d: %d bytes %.4x; ", number, len(t[number]), t[number])
	}
	return b.String()
}

func (l *ledger) change(r Record) {
	l.table.apply(r)
	l.states = append(l.states, maps.Clone(l.table))
	l.journal.Append(time.Now(), r)
}

// settle waits until all changes are durable.
func (l *ledger) settle() error {
	n := len(l.states) - 1
	l.journal.mu.Lock()
	last := l.journal.appended
	l.journal.mu.Unlock()
	err := l.journal.Wait(context.Background(), last)
	if err == nil && last > 0 {
		l.acknowledged = n
	}
	return err
}

// take takes a whole snapshot.
func (l *ledger) take() error {
	s := l.journal.Snapshot(time.Now(), l.table.source(2))
	if s == nil {
		return errors.New("no snapshot now")
	}
	return finish(l.t, s)
}

func finish(t rapid.TB, s *Snapshot) error {
	t.Helper()
	for s.Piece(time.Now()) {
		s.Room(context.Background())
	}
	return s.Wait(context.Background())
}

// value returns one of a few values, some of which are long.
func value(n int) []byte {
	switch n %= 6; n {
	case 0, 1, 2:
		return long(n+1, largeBytes+n).Value
	default:
		return bytes.Repeat([]byte{byte(n)}, n)
	}
}

// Snapshots are taken while rows change, the disk fails and power is lost. Each start reads a
// state that was there, with all that was acknowledged.
func TestSnapshotsAndTheLogAreTheState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLedger(t, Config{SegmentBytes: rapid.SampledFrom([]int{1, 200, 3 * largeBytes}).Draw(t, "segment"), SnapshotBytes: 1})
		steps := []string{"put", "put", "put", "put", "delete", "settle", "begin", "piece", "piece", "piece", "whole", "fail write", "fail sync", "fail open", "full", "kill", "crash", "restart"}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			l.step(rapid.SampledFrom(steps).Draw(t, "step"), t)
		}
		l.step("crash", t)
		l.step("restart", t)
	})
}

func (l *ledger) step(step string, t *rapid.T) {
	d := l.files
	fail := func(count *int, most int) {
		d.mu.Lock()
		*count = rapid.IntRange(1, most).Draw(t, "failure")
		d.mu.Unlock()
	}
	switch step {
	case "put":
		l.change(&DatasetPublished{Number: rapid.Uint64Range(0, 9).Draw(t, "number"), Value: value(rapid.IntRange(0, 5).Draw(t, "value"))})
	case "delete":
		l.change(&DatasetUnpublished{Number: rapid.Uint64Range(0, 9).Draw(t, "number")})
	case "settle":
		_ = l.settle() // The disk may refuse.
	case "begin":
		if s := l.journal.Snapshot(time.Now(), l.table.source(rapid.IntRange(1, 4).Draw(t, "piece")), table{}.source(1)); s != nil {
			l.snapshot = s
		}
	case "piece":
		if l.snapshot != nil {
			l.snapshot.Piece(time.Now())
		}
	case "whole":
		if l.snapshot != nil {
			_ = finish(t, l.snapshot) // The disk may refuse.
		}
	case "fail write":
		fail(&d.failWrite, 3)
	case "fail sync":
		fail(&d.failSync, 3)
	case "fail open":
		fail(&d.failOpen, 2)
	case "full":
		fail(&d.fullBytes, 4*largeBytes)
	case "restart":
		_ = l.journal.Close() // The disk may refuse.
		l.open(d.left())
	case "kill", "crash":
		files := d.left()
		_ = l.journal.Close() // It cannot write.
		if step == "crash" {
			files.crash(rapid.IntRange(0, 300).Draw(t, "rest"), rapid.IntRange(0, tornShapes-1).Draw(t, "shape"))
		}
		l.open(files)
	}
}

// Power is lost at each change of the disk in turn, while snapshots are taken and replace files.
func TestPowerIsLostAtEachChangeOfASnapshot(t *testing.T) {
	for _, segment := range []int{1, 3 * largeBytes} {
		for stop := 1; ; stop += 1 + segment/largeBytes { // Small segments change more.
			if snapshotStory(t, segment, stop) {
				break
			}
			if t.Failed() {
				t.Fatalf("at change %d with segments of %d bytes", stop, segment)
			}
		}
	}
}

// snapshotStory reports whether the disk had fewer changes than stop.
func snapshotStory(t *testing.T, segment, stop int) (ended bool) {
	t.Helper()
	l := newLedger(t, Config{SegmentBytes: segment, SnapshotBytes: 1})
	l.files.stopAt = stop
	for start := range 2 {
		for n := range 6 {
			l.change(&DatasetPublished{Number: uint64(n % 5), Value: value(n + start)})
			_ = l.settle() // The disk may refuse.
			if n == 2 || n == 5 {
				s := l.journal.Snapshot(time.Now(), l.table.source(1))
				if s == nil {
					continue
				}
				s.Piece(time.Now())
				l.change(&DatasetUnpublished{Number: uint64(n)})
				l.change(&DatasetPublished{Number: 0, Value: value(n)})
				_ = l.settle()
				_ = finish(t, s)
			}
		}
		if start == 0 {
			files := l.files.left()
			_ = l.journal.Close()
			files.stopAt = stop
			l.open(files)
		}
	}
	ended = l.files.counted() < stop
	for _, rest := range []int{0, 100000} {
		for shape := range tornShapes {
			if rest == 0 && shape != tornShort {
				break // Nothing is left to break.
			}
			again := &ledger{t: t, config: l.config, states: l.states, acknowledged: l.acknowledged}
			files := l.files.left()
			files.crash(rest, shape)
			again.open(files)
			if rest > 0 {
				_ = again.journal.Close() // It has written nothing.
				continue
			}
			// It goes on from there.
			again.change(&DatasetPublished{Number: 77, Value: value(1)})
			if err := again.settle(); err != nil {
				t.Error(err)
			}
			if err := again.take(); err != nil {
				t.Error(err)
			}
			if err := again.journal.Close(); err != nil {
				t.Error(err)
			}
			again.open(files.left())
			if err := again.journal.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	_ = l.journal.Close()
	return ended
}

// snapped is a journal with a snapshot and a log behind it, which has stopped.
func snapped(t *testing.T, segment int) *ledger {
	t.Helper()
	l := newLedger(t, Config{SegmentBytes: segment, SnapshotBytes: 1})
	write(t, l.journal, &Begun{Cluster: "c", Life: 7, Starts: 1})
	for n := range 8 {
		l.change(&DatasetPublished{Number: uint64(n), Value: value(n)})
		if err := l.settle(); err != nil {
			t.Fatal(err)
		}
		if n == 4 {
			if err := l.take(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := l.journal.Close(); err != nil {
		t.Fatal(err)
	}
	return l
}

func TestASnapshotIsReported(t *testing.T) {
	l := snapped(t, 1<<20)
	var rows, logged []string
	report, err := Examine(l.files, false, func(e Entry) error {
		kind := fmt.Sprintf("%T", e.Record)
		if e.Snapshot {
			rows = append(rows, kind)
		} else {
			logged = append(logged, kind)
		}
		return nil
	})
	if err != nil || !report.Sound() || !report.Stopped || report.Starts != 1 || report.Begun == nil || report.Batches != 4 || report.Records != 4 ||
		report.Snapshot == nil || report.Snapshot.File != snapshotName(7) || report.Snapshot.Records != 7 || report.Snapshot.Bytes == 0 || report.Values != 3 {
		t.Errorf("%+v, %+v, %v", report, report.Snapshot, err)
	}
	if rows[0] != "*journal.Begun" || rows[6] != "*journal.SnapshotEnded" || len(rows) != 7 || logged[0] != "*journal.SnapshotBegan" || len(logged) != 4 {
		t.Errorf("%q, %q", rows, logged)
	}
	if begun, err := Identify(l.files); err != nil || begun == nil || *begun != (Begun{"c", 7, 1}) {
		t.Errorf("the journal is of %+v, %v", begun, err)
	}
	l.open(l.files)
	if begun, ok := l.started[0].(*Begun); !ok || begun.Cluster != "c" || len(l.started) != 9 {
		t.Errorf("a start reads %d records, the first one is %+v", len(l.started), l.started[0])
	}
	if err := l.journal.Close(); err != nil {
		t.Error(err)
	}
}

// A damaged snapshot, or a log that ends before it did, is refused with what is left to do. Behind
// that, a damaged log can be cut as ever.
func TestADamagedSnapshotIsRefused(t *testing.T) {
	whole := snapped(t, 200)
	l, err := arrange(whole.files)
	if err != nil || l.base == 0 || len(l.names) < 2 || len(l.old) > 0 {
		t.Fatalf("%+v, %v", l, err)
	}
	refused := func(what string, files *disk) {
		t.Helper()
		_, _, err := reread(files)
		if err == nil || !strings.Contains(err.Error(), snapshotRemedy) || strings.Contains(err.Error(), "journal cut") {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := Cut(files, ".cut"); !errors.Is(err, ErrSnapshotNeeds) {
			t.Errorf("cut %s: %v", what, err)
		}
	}
	for i := range whole.files.files[snapshotName(l.base)].data {
		files := whole.files.left()
		files.files[snapshotName(l.base)].data[i] ^= 0x10
		if i >= len(magic) && i < saltAt {
			continue // It is of a later format then.
		}
		refused(fmt.Sprintf("byte %d", i), files)
	}
	for _, gone := range []string{l.names[0], valuesName(1)} {
		files := whole.files.left()
		delete(files.files, gone)
		refused("without "+gone, files)
	}
	files := whole.files.left()
	last := files.files[l.names[len(l.names)-2]]
	last.data[len(last.data)-70] ^= 1
	if _, _, err := reread(files); err == nil || !strings.Contains(err.Error(), "journal cut") {
		t.Errorf("damage behind the snapshot: %v", err)
	}
	if _, err := Cut(files, ".cut"); err != nil {
		t.Errorf("cut damage behind the snapshot: %v", err)
	}
	if r, _ := examined(t, files, false); !r.Sound() || !r.WasCut || r.Snapshot == nil {
		t.Errorf("%+v", r)
	}
}

// Many long values come and go, and a few stay. The disk holds at most three times what is alive.
func TestTheDiskHoldsWhatIsAlive(t *testing.T) {
	const kept = 20
	l := newLedger(t, Config{SegmentBytes: 10 * largeBytes, SnapshotBytes: largeBytes})
	for n := range 600 {
		number := uint64(n)
		if n%30 != 0 {
			number = 1000 + uint64(n%3) // It goes with the next one.
		}
		value := bytes.Clone(value(0))
		copy(value, fmt.Sprint(n))
		l.change(&DatasetPublished{Number: number, Value: value})
		l.states = l.states[len(l.states)-1:]
		if n%20 == 0 {
			if err := l.settle(); err != nil {
				t.Fatal(err)
			}
		}
		if n%50 == 49 && l.journal.SnapshotDue() {
			if err := l.take(); err != nil {
				t.Fatal(err)
			}
		}
	}
	taken := l.journal.Stats().Snapshots
	for range 2 {
		if err := l.take(); err != nil {
			t.Fatal(err)
		}
	}
	size := uint64(0)
	for _, f := range l.files.files {
		size += uint64(len(f.data))
	}
	s := l.journal.Stats()
	if live := uint64((kept + 3) * largeBytes); size > 3*live || taken < 5 || s.Snapshots != taken+2 || s.SnapshotBytes < live || s.SnapshotAt.IsZero() || s.Logged > 1000 {
		t.Errorf("%d bytes are alive, and the disk has %d: %+v", live, size, s)
	}
	if total, err := totalBytes(l.files); err != nil || total != s.Bytes {
		t.Errorf("the disk has %d bytes, and the journal counts %d: %v", total, s.Bytes, err)
	}
	if err := l.journal.Close(); err != nil {
		t.Fatal(err)
	}
	l.open(l.files)
	if len(l.table) != kept+3 {
		t.Errorf("%d values are alive", len(l.table))
	}
	if err := l.journal.Close(); err != nil {
		t.Error(err)
	}
}

// A snapshot that fails leaves nothing, and the log goes on. The next one is not taken at once.
func TestASnapshotThatFailsLeavesNothing(t *testing.T) {
	l := newLedger(t, Config{SegmentBytes: 1 << 20, SnapshotBytes: 1})
	l.change(&DatasetPublished{Number: 1, Value: value(0)})
	if err := l.settle(); err != nil || !l.journal.SnapshotDue() {
		t.Fatalf("%v, or no snapshot is due", err)
	}
	before, _ := l.files.List()
	s := l.journal.Snapshot(time.Now(), l.table.source(1))
	if l.journal.Snapshot(time.Now()) != nil {
		t.Error("two snapshots are taken at once")
	}
	if err := l.settle(); err != nil { // The log takes the beginning.
		t.Fatal(err)
	}
	l.files.mu.Lock()
	l.files.fullBytes = 1
	l.files.mu.Unlock()
	err := finish(t, s)
	l.files.mu.Lock()
	l.files.fullBytes = 0
	l.files.mu.Unlock()
	after, _ := l.files.List()
	if err == nil || l.journal.SnapshotDue() || len(after) != len(before)+1 || l.journal.Stats().Snapshots != 0 {
		t.Errorf("%v: %q were there, and now %q", err, before, after)
	}
	l.change(&DatasetPublished{Number: 2, Value: value(1)})
	if err := l.settle(); err != nil {
		t.Error(err)
	}
	// It is still possible. A stop in its middle gives it up.
	if s = l.journal.Snapshot(time.Now(), l.table.source(1)); s == nil {
		t.Fatal("no snapshot is possible")
	}
	s.Piece(time.Now())
	if err := l.journal.Close(); err != nil || s.Wait(t.Context()) == nil || s.Piece(time.Now()) {
		t.Errorf("%v, %v", err, s.err)
	}
	if _, err := l.files.Size(snapshotPart); err == nil {
		t.Error("its file is left")
	}
	l.open(l.files)
	if len(l.table) != 2 {
		t.Errorf("%v", l.table)
	}
	_ = l.journal.Close() // It has written nothing.
}

// While the disk has not taken the last rows, no more are asked for.
func TestRowsWaitForTheDisk(t *testing.T) {
	l := newLedger(t, Config{SegmentBytes: 1 << 20})
	l.change(&DatasetPublished{Number: 1, Value: value(0)})
	if err := l.settle(); err != nil {
		t.Fatal(err)
	}
	asked := 0
	long := bytes.Repeat([]byte("r"), largeBytes-1)
	s := l.journal.Snapshot(time.Now(), func(cursor uint64, put func(row any)) (uint64, bool) {
		asked++
		put(&DatasetPublished{Number: cursor, Value: long})
		return cursor + 1, true
	})
	goOn := make(chan struct{})
	l.files.mu.Lock()
	l.files.onSync = func() { <-goOn }
	l.files.mu.Unlock()
	for range 1000 {
		s.Piece(time.Now())
	}
	if most := 4 * fullBatch / largeBytes; asked > most {
		t.Errorf("%d rows were asked for, not %d", asked, most)
	}
	close(goOn)
	if err := l.journal.Close(); err != nil {
		t.Error(err)
	}
}
