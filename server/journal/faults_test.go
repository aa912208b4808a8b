package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/server/sched"
)

// write appends records and waits until they are durable.
func write(t *testing.T, j *Journal, records ...Record) {
	t.Helper()
	for _, r := range records {
		if err := j.Wait(t.Context(), j.Append(time.Now(), r)); err != nil {
			t.Fatal(err)
		}
	}
}

// long is a record with a long value that cannot be compressed.
func long(n, size int) *DatasetPublished {
	value := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{byte(n)}).Read(value) // It never fails.
	return &DatasetPublished{Number: uint64(n), Value: value}
}

// segments returns the names of the segments that count, in order.
func segments(files Files) []string {
	l, _ := arrange(files)
	return l.names
}

// reread opens a journal without a scheduler, and returns its records and log messages.
func reread(files Files) (had []Record, log string, err error) {
	var text bytes.Buffer
	j, err := Open(Config{Files: files, SegmentBytes: 1 << 20, Log: slog.New(slog.NewTextHandler(&text, nil))}, func(_ time.Time, r Record) error {
		had = append(had, r)
		return nil
	})
	if err == nil {
		err = j.Close()
	}
	return had, text.String(), err
}

// After a failed sync the system has the bytes in memory, and the disk has not. A start that reads
// them must write them again before it builds on them.
func TestBytesThatAFailedSyncLeftAreWrittenAgain(t *testing.T) {
	for _, segment := range []int{100, 1 << 20} {
		files := newDisk()
		j, _ := opened(t, files, segment)
		write(t, j, numbered(1), numbered(2))
		files.mu.Lock()
		files.failSync = 1
		files.mu.Unlock()
		_ = j.Wait(t.Context(), j.Append(time.Now(), numbered(3)))
		_ = j.Close() // It has failed.
		j, had := opened(t, files, segment)
		write(t, j, numbered(4))
		after := files.left()
		_ = j.Close()
		after.crash(0, tornShort)
		again, log, err := reread(after)
		if err != nil || len(again) != len(had)+1 || !reflect.DeepEqual(again[len(had)], numbered(4)) {
			t.Errorf("the start read %d records and wrote one more; after a loss of power there are %d; %v\n%s", len(had), len(again), err, log)
		}
	}
}

// A loss of power within begin may leave a head of zeros.
func TestAHeadOfZerosIsNoDamage(t *testing.T) {
	for _, size := range []int{0, 5, 12, 24} {
		files := newDisk()
		j, _ := opened(t, files, 1<<20)
		write(t, j, numbered(1))
		after := files.left()
		_ = j.Close()
		after.files["00000000000000000002.log"] = &diskContent{data: make([]byte, size)}
		j, had := opened(t, after, 1<<20)
		if len(had) != 1 {
			t.Errorf("%d bytes: %d records", size, len(had))
		}
		write(t, j, numbered(2))
		if err := j.Close(); err != nil {
			t.Error(err)
		}
		if had, log, err := reread(after); err != nil || len(had) != 2 {
			t.Errorf("%d bytes: %d records, %v\n%s", size, len(had), err, log)
		}
	}
}

// An argument may contain what looks like a batch. A torn batch with it is torn all the same.
func TestAnArgumentThatLooksLikeABatchIsNone(t *testing.T) {
	files := newDisk()
	j, _ := opened(t, files, 1<<20)
	write(t, j, numbered(1))
	r := long(2, largeBytes/2)
	copy(r.Value[1000:], forged(1000))
	j.Append(time.Now(), r)
	files.mu.Lock()
	files.stopAt = files.changes + 1 // Half of the batch is written.
	files.mu.Unlock()
	_ = j.Close()
	after := files.left()
	if had, log, err := reread(after); err != nil || len(had) != 1 || !strings.Contains(log, "not whole") {
		t.Errorf("%d records, %v\n%s", len(had), err, log)
	}
}

// A journal that stopped in good order ends with a mark. Without its last segments it is not whole.
func TestLastSegmentsThatAreMissingAreFound(t *testing.T) {
	stopped := filled(t, 8, 100)
	names := segments(stopped)
	for kept := range len(names) - 1 {
		files := stopped.left()
		for _, name := range names[kept+1:] {
			delete(files.files, name)
		}
		if _, _, err := reread(files); err == nil || !strings.Contains(err.Error(), names[kept+1]) {
			t.Errorf("without %s and those behind it: %v", names[kept+1], err)
		}
	}
}

// A crash is no reason to miss that later segments are gone, once the next start has begun one.
func TestAMissingSegmentIsFoundAfterACrash(t *testing.T) {
	files := newDisk()
	j, _ := opened(t, files, 1<<20)
	write(t, j, numbered(1), numbered(2))
	after := files.left()
	_ = j.Close()
	j, _ = opened(t, after, 1<<20)
	write(t, j, numbered(3))
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	names := segments(after)
	delete(after.files, names[len(names)-1])
	if had, _, err := reread(after); err == nil {
		t.Errorf("without %s of %s: %d records", names[len(names)-1], names, len(had))
	}
}

// A batch that may have been acknowledged is not left out without a word about that.
func TestADamagedEndIsToldTruly(t *testing.T) {
	files := newDisk()
	j, _ := opened(t, files, 1<<20)
	write(t, j, numbered(1), numbered(2))
	after := files.left()
	_ = j.Close()
	f := after.files["00000000000000000001.log"]
	f.data[len(f.data)-1] ^= 1
	had, log, err := reread(after)
	if err != nil || len(had) != 1 {
		t.Fatalf("%d records, %v", len(had), err)
	}
	for _, want := range []string{"if the scheduler was ended while it wrote", "damaged it, what was accepted last is lost", "records_until=", "byte="} {
		if !strings.Contains(log, want) {
			t.Errorf("the warning does not say %q: %s", want, log)
		}
	}
}

// A copy of the directory that is put back does not know the starts since. The next start has a
// number of its own.
func TestStartsOfAnOlderCopyHaveNumbersOfTheirOwn(t *testing.T) {
	files := newDisk()
	j, _ := opened(t, files, 1<<20)
	write(t, j, &Begun{Cluster: "c", Life: 7, Starts: 1})
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	seen := map[uint64]bool{}
	for range 64 {
		had, _, err := reread(files.left())
		if err != nil {
			t.Fatal(err)
		}
		files.stopAt = 0
		seen[had[0].(*Begun).Starts] = true
	}
	// All alike: 64 to the power of -63.
	if len(seen) < 2 || seen[0] {
		t.Errorf("64 copies have the starts %v", seen)
	}
}

// A submission with many long arguments needs a handful of syncs, and shares those that are alike.
func TestLongValuesShareASync(t *testing.T) {
	files := newDisk()
	j, _ := opened(t, files, 1<<20)
	write(t, j, numbered(1))
	before := files.syncs
	want := new(sched.TasksPut)
	for n := range 1000 {
		want.Tasks = append(want.Tasks, sched.TaskRow{Key: fmt.Sprint(n), Arguments: long(n%100, largeBytes).Value})
	}
	write(t, j, want)
	if n := files.syncs - before; n > 4 {
		t.Errorf("1000 long values needed %d syncs", n)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	size := 0
	for _, f := range files.files {
		size += len(f.data)
	}
	if size > 110*largeBytes {
		t.Errorf("100 different values of %d bytes take %d bytes", largeBytes, size)
	}
	had, _, err := reread(files)
	if err != nil || len(had) != 2 || !reflect.DeepEqual(had[1], want) {
		t.Errorf("%d records, %v", len(had), err)
	}
}

// If no further file of values can be made, the one before is kept: it has values.
func TestAFileOfValuesThatCannotBeMadeHarmsNoOther(t *testing.T) {
	files := newDisk()
	j, _ := opened(t, files, 1)
	write(t, j, long(1, largeBytes))
	files.mu.Lock()
	files.failOpen = 1
	files.mu.Unlock()
	if err := j.Wait(t.Context(), j.Append(time.Now(), long(2, largeBytes))); err == nil {
		t.Error("no file was made, and the value is durable")
	}
	write(t, j, numbered(3))
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if had, _, err := reread(files); err != nil || len(had) != 3 {
		t.Errorf("%d records, %v", len(had), err)
	}
}

// Power is lost at each change of the disk in turn. All that was acknowledged before is read again.
func TestPowerIsLostAtEachChange(t *testing.T) {
	for _, segment := range []int{1, 300, 1 << 20} {
		for stop := 1; ; stop++ {
			acknowledged, ended := story(t, segment, stop)
			if ended {
				break
			}
			if t.Failed() {
				t.Fatalf("at change %d with segments of %d bytes, after %d records", stop, segment, acknowledged)
			}
		}
	}
}

// story writes records, some with long values, over three starts, one of which is killed. It
// reports how many were acknowledged before change stop of the disk, and whether there was none.
func story(t *testing.T, segment, stop int) (acknowledged int, ended bool) {
	t.Helper()
	files, written := newDisk(), 0
	files.stopAt = stop
	for start := range 3 {
		j, had := opened(t, files, segment)
		if len(had) < acknowledged {
			t.Errorf("start %d: %d records of %d", start, len(had), acknowledged)
		}
		written = max(written, len(had))
		for n := len(had); n < len(had)+3; n++ {
			written = max(written, n+1)
			if err := j.Wait(t.Context(), j.Append(time.Now(), record(n))); err != nil {
				break
			}
			acknowledged = n + 1
		}
		if start != 1 {
			_ = j.Close() // It may have failed.
			continue
		}
		files = files.left()
		files.stopAt = stop
		_ = j.Close()
	}
	ended = files.counted() < stop
	for _, rest := range []int{0, 30, 100000} {
		for shape := range tornShapes {
			if rest == 0 && shape != tornShort {
				break // Nothing is left to break.
			}
			after := files.left()
			after.crash(rest, shape)
			had, log, err := reread(after)
			if err != nil || len(had) < acknowledged || len(had) > written {
				t.Errorf("%d bytes more, shape %d: %d records of %d to %d, %v\n%s", rest, shape, len(had), acknowledged, written, err, log)
				continue
			}
			for i, r := range had {
				if !reflect.DeepEqual(r, record(i)) {
					t.Errorf("record %d is %.100s", i, fmt.Sprint(r))
				}
			}
		}
	}
	return acknowledged, ended
}

// record returns the record of a story with this number.
func record(n int) Record {
	if n%3 == 1 {
		return long(n%2, largeBytes+n%2)
	}
	return numbered(n)
}

// A directory with a segment or a snapshot of an older format is refused with what to do, and
// nothing in it is changed.
func TestOlderFormatsAreRefused(t *testing.T) {
	whole := snapped(t, 200).files
	l, err := arrange(whole)
	if err != nil || l.base == 0 || len(l.names) < 2 {
		t.Fatalf("%+v, %v", l, err)
	}
	for format := uint32(1); format < formatVersion; format++ {
		for _, name := range []string{snapshotName(l.base), l.names[0], l.names[len(l.names)-1]} {
			files := whole.left()
			age(files.files[name].data, format)
			refuseFormat(t, files, name, format)
		}
		// The head of format 1 had 12 bytes.
		files := newDisk()
		files.files[segmentName(1)] = &diskContent{data: binary.LittleEndian.AppendUint32([]byte(magic), format)}
		refuseFormat(t, files, segmentName(1), format)
	}
}

// age gives the head of a file the number of an older format.
func age(head []byte, format uint32) {
	binary.LittleEndian.PutUint32(head[len(magic):], format)
	binary.LittleEndian.PutUint32(head[headBytes-4:], crc32.Checksum(head[:headBytes-4], castagnoli))
}

// refuseFormat checks that all that reads a journal refuses it because of a file's format.
func refuseFormat(t *testing.T, files *disk, name string, format uint32) {
	t.Helper()
	before := files.changes
	_, _, opened := reread(files)
	_, examined := Examine(files, false, func(Entry) error { return nil })
	_, cut := Cut(files, ".cut")
	for what, err := range map[string]error{"open": opened, "examine": examined, "cut": cut} { // order-free: each is checked alone
		var damage *DamageError
		if err == nil || errors.As(err, &damage) {
			t.Errorf("%s: %s of format %d: %v", what, name, format, err)
			continue
		}
		for _, want := range []string{name, fmt.Sprintf("has format %d,", format), "record of facts", "finish its work with that version, then begin a new directory"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: it does not say %q: %v", what, want, err)
			}
		}
	}
	if files.changes != before {
		t.Errorf("%s of format %d: the directory was changed", name, format)
	}
}

// While one batch is synced, the next one is prepared if it is full.
func TestABatchIsPreparedDuringTheSyncOfTheLastOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files := newDisk()
		j, _ := opened(t, files, 1<<30)
		write(t, j, numbered(1))
		begun, goOn := make(chan struct{}), make(chan struct{})
		files.onSync = func() {
			begun <- struct{}{}
			<-goOn
		}
		last := j.Append(time.Now(), numbered(2))
		done := make(chan error)
		go func() { done <- j.Wait(t.Context(), last) }()
		<-begun
		for n := range fullValues/largeBytes + 1 {
			j.Append(time.Now(), long(n%2, largeBytes))
		}
		synctest.Wait()
		last = j.Append(time.Now(), numbered(3))
		go func() { done <- j.Wait(t.Context(), last) }()
		if j.next == nil || j.next.packed == nil || j.filling.last != last {
			t.Error("the next batch is not prepared")
		}
		close(goOn)
		go func() {
			for range begun { // Until the end of the test.
			}
		}()
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if err := j.Close(); err != nil {
			t.Error(err)
		}
		close(begun)
	})
}

// Those that wait for a batch do not wait until the next one is prepared.
func TestABatchThatIsPreparedDelaysNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files := newDisk()
		j, _ := opened(t, files, 1<<30)
		write(t, j, numbered(1))
		begun, goOn := make(chan struct{}), make(chan struct{})
		files.onSync = func() {
			begun <- struct{}{}
			<-goOn
		}
		last := j.Append(time.Now(), numbered(2))
		done := make(chan error)
		go func() { done <- j.Wait(t.Context(), last) }()
		<-begun
		next, prepare := j.filling, make(chan struct{})
		go next.once.Do(func() {
			<-prepare
			next.packed = next.codec.data
		})
		synctest.Wait()
		for n := range fullBatch/100 + 1 {
			j.Append(time.Now(), &ClientOwned{Owner: fmt.Sprintf("%100d", n)})
		}
		for taken := false; !taken; runtime.Gosched() {
			j.mu.Lock()
			taken = j.next == next
			j.mu.Unlock()
		}
		close(goOn)
		if err := <-done; err != nil {
			t.Error(err)
		}
		close(prepare)
		go func() {
			for range begun { // Until the end of the test.
			}
		}()
		if err := j.Close(); err != nil {
			t.Error(err)
		}
		close(begun)
	})
}

// A start on a full disk reads all, and goes on as soon as there is room.
func TestAFullDiskDoesNotStopAStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files := newDisk()
		j, _ := opened(t, files, 1<<20)
		write(t, j, numbered(1), numbered(2))
		after := files.left()
		_ = j.Close() // It was killed.
		after.fullBytes = 1
		j, had := opened(t, after, 1<<20)
		if len(had) != 2 {
			t.Errorf("%d records are read", len(had))
		}
		if err := j.Wait(t.Context(), j.Append(time.Now(), numbered(3))); err == nil {
			t.Error("the full disk took a record")
		}
		synctest.Wait()
		after.mu.Lock()
		after.fullBytes = 0
		after.mu.Unlock()
		write(t, j, numbered(4))
		if err := j.Close(); err != nil {
			t.Error(err)
		}
		if had, _, err := reread(after); err != nil || len(had) != 4 {
			t.Errorf("%d records, %v", len(had), err)
		}
	})
}

// taken is a Files that another scheduler takes over when over is set.
type taken struct {
	*disk
	over *atomic.Bool
}

func (f taken) Append(name string) (File, error) {
	file, err := f.disk.Append(name)
	return takenFile{file, f.over}, err
}

type takenFile struct {
	File
	over *atomic.Bool
}

func (f takenFile) Sync() error {
	if f.over.Load() {
		return fmt.Errorf("%w: it was elected", ErrTaken)
	}
	return f.File.Sync()
}

// TestJournalOfAnotherSchedulerIsNoFault: the log does not send people to a disk, and nothing is
// tried again.
func TestJournalOfAnotherSchedulerIsNoFault(t *testing.T) {
	for _, early := range []bool{true, false} {
		files := taken{newDisk(), new(atomic.Bool)}
		var lines bytes.Buffer
		j, err := Open(Config{Files: files, Log: slog.New(slog.NewTextHandler(&lines, nil))}, func(time.Time, Record) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		if !early { // else the first segment cannot be begun
			if err := j.Wait(t.Context(), j.Append(time.Now(), &Begun{Starts: 1})); err != nil {
				t.Fatal(err)
			}
		}
		files.over.Store(true)
		if err := j.Wait(t.Context(), j.Append(time.Now(), &Begun{Starts: 2})); !errors.Is(err, ErrTaken) {
			t.Errorf("the record ends with %v", err)
		}
		if !j.Stats().Lost {
			t.Error("the journal is not given up")
		}
		if err := j.Close(); !errors.Is(err, ErrTaken) {
			t.Errorf("it is closed with %v", err)
		}
		if text := lines.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "another scheduler has the journal now") || strings.Contains(text, "disk") {
			t.Errorf("the log: %s", text)
		}
	}
}
