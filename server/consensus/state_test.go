package consensus

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
)

func newTestState(t *testing.T, root string) *state {
	t.Helper()
	s, err := newState(root, 1<<30, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s
}

func apply(s *state, e entry) any { return s.Apply(&raft.Log{Data: e.seal()}) }

// script is entries, with two operations in each, and the files that they give.
func script() (entries []entry, want map[string]string) {
	entries = []entry{{kindBegin, 5, 0, appendText(appendText(nil, "id"), "address")}}
	pairs := [][2]operation{
		{{kind: opMake, name: "a.part"}, {kind: opAppend, name: "a.part", data: []byte("hello")}},
		{{kind: opRename, name: "a.part", to: "a"}, {kind: opAppend, name: "a", size: 5, data: []byte(" world")}},
		{{kind: opAppend, name: "b", data: []byte("dead")}, {kind: opTruncate, name: "a", size: 7}},
		{{kind: opAppend, name: "a", size: 7, data: []byte("!")}, {kind: opRemove, name: "b"}},
	}
	for i, pair := range pairs {
		entries = append(entries, entry{kindFiles, 5, uint64(i + 1), pair[1].append(pair[0].append(nil))})
	}
	return entries, map[string]string{"a": "hello w!"}
}

// TestCrashWithinAnEntryIsNotSeen: a peer may be killed after any operation, also within an
// entry, and while a snapshot replaces the files. The next start gives the same files.
func TestCrashWithinAnEntryIsNotSeen(t *testing.T) {
	entries, want := script()
	for crash := range 2 * len(entries) {
		root := filepath.Join(t.TempDir(), "peer")
		killed := newTestState(t, root)
		for _, e := range entries[:crash/2] {
			if err := apply(killed, e); err != nil {
				t.Fatal(err)
			}
		}
		if e := entries[crash/2]; crash%2 == 1 && e.kind == kindFiles {
			if err := killed.operate((&reader{data: e.body}).operation()); err != nil {
				t.Fatal(err)
			}
		}
		for _, left := range []string{oldName, newName} { // A snapshot was on its way.
			if err := os.MkdirAll(filepath.Join(root, left, "x"), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		killed.close()
		s := newTestState(t, root)
		for i, e := range entries {
			if err := apply(s, e); err != nil {
				t.Fatalf("killed after %d operations: entry %d: %v", crash, i, err)
			}
		}
		if got, err := contents(s.current()); err != nil || !maps.Equal(got, want) {
			t.Errorf("killed after %d operations: %v, %v", crash, got, err)
		}
	}
}

// sinkOf is a raft.SnapshotSink in memory.
type sinkOf struct{ bytes.Buffer }

func (*sinkOf) ID() string    { return "x" }
func (*sinkOf) Cancel() error { return nil }
func (*sinkOf) Close() error  { return nil }

// TestSnapshotIsOfItsTime: a snapshot has the files as they were when it began, whatever happens
// while it is written, and with it a peer goes on in the middle of a term.
func TestSnapshotIsOfItsTime(t *testing.T) {
	entries, want := script()
	for at := range len(entries) + 1 {
		s := newTestState(t, filepath.Join(t.TempDir(), "peer"))
		for _, e := range entries[:at] {
			if err := apply(s, e); err != nil {
				t.Fatal(err)
			}
		}
		taken, err := s.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries[at:] {
			if err := apply(s, e); err != nil {
				t.Fatal(err)
			}
		}
		sink := new(sinkOf)
		if err := taken.Persist(sink); err != nil {
			t.Fatal(err)
		}
		taken.Release()
		other := newTestState(t, filepath.Join(t.TempDir(), "other"))
		if err := other.Restore(io.NopCloser(bytes.NewReader(sink.Bytes()))); err != nil {
			t.Fatal(err)
		}
		for i, e := range entries[at:] {
			if err := apply(other, e); err != nil {
				t.Fatalf("snapshot after %d entries, and %d behind it: %v", at, i, err)
			}
		}
		if got, err := contents(other.current()); err != nil || !maps.Equal(got, want) {
			t.Errorf("snapshot after %d entries: %v, %v", at, got, err)
		}
		for i := range sink.Len() * (at / len(entries)) {
			damaged := bytes.Clone(sink.Bytes())
			damaged[i] ^= 1
			third := newTestState(t, filepath.Join(t.TempDir(), fmt.Sprint(i)))
			if third.Restore(io.NopCloser(bytes.NewReader(damaged))) == nil {
				t.Errorf("snapshot after %d entries: damage at byte %d is not noticed", at, i)
			}
		}
	}
}

// TestDamagedEntryEndsThePeer: an entry that the disk has damaged is not carried out, and
// neither is any behind it.
func TestDamagedEntryEndsThePeer(t *testing.T) {
	entries, _ := script()
	for i := range entries[1].seal() {
		s := newTestState(t, filepath.Join(t.TempDir(), "peer"))
		if err := apply(s, entries[0]); err != nil {
			t.Fatal(err)
		}
		data := entries[1].seal()
		data[i] ^= 1
		if err, _ := s.Apply(&raft.Log{Data: data}).(error); err == nil || !strings.Contains(err.Error(), "the others hand over all") {
			t.Errorf("damage at byte %d: %v", i, err)
		}
		if !isClosed(s.failed) || apply(s, entries[2]) == nil {
			t.Errorf("damage at byte %d: the peer goes on", i)
		}
	}
}

// TestSnapshotIsDueWhenTheLogIsAsLargeAsTheFiles: a snapshot copies all files, so large ones are
// not copied after each small part of the log.
func TestSnapshotIsDueWhenTheLogIsAsLargeAsTheFiles(t *testing.T) {
	s := newTestState(t, filepath.Join(t.TempDir(), "peer"))
	s.snapshotBytes = 1000
	number, size := uint64(0), int64(0)
	add := func(bytes int) {
		number++
		o := operation{kind: opAppend, name: "a", size: size, data: make([]byte, bytes)}
		if err := apply(s, entry{kindFiles, 5, number, o.append(nil)}); err != nil {
			t.Fatal(err)
		}
		size += int64(bytes)
	}
	if err := apply(s, entry{kindBegin, 5, 0, appendText(appendText(nil, "id"), "address")}); err != nil {
		t.Fatal(err)
	}
	add(900)
	if len(s.due) != 0 {
		t.Error("a snapshot is due of a small log")
	}
	add(9000)
	<-s.due
	taken, err := s.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	sink := new(sinkOf)
	if err := taken.Persist(sink); err != nil {
		t.Fatal(err)
	}
	taken.Release()
	if err := s.Restore(io.NopCloser(&sink.Buffer)); err != nil {
		t.Fatal(err)
	}
	add(5000)
	if len(s.due) != 0 {
		t.Error("a snapshot is due of a log that is half as large as the files")
	}
	add(5000)
	<-s.due
}

// TestStopIsForTheProcessesThatItNames: clocks do not matter, and neither does when the entry is
// carried out.
func TestStopIsForTheProcessesThatItNames(t *testing.T) {
	s := newTestState(t, filepath.Join(t.TempDir(), "peer"))
	stop := func(processes ...uint64) entry {
		body := binary.AppendUvarint(nil, uint64(len(processes)))
		for _, id := range processes {
			body = binary.AppendUvarint(body, id)
		}
		return entry{kindStop, 5, 0, body}
	}
	for i, step := range []struct {
		entry entry
		stops bool
	}{
		{entry{kindBegin, 5, 0, appendText(appendText(nil, "id"), "address")}, false},
		{stop(), false},
		{stop(s.process+1, s.process-1), false},
		{entry{kindStop, 4, 0, stop(s.process).body}, false}, // of the leader before
		{stop(s.process+1, s.process), true},
		{stop(s.process), true},
	} {
		if err := apply(s, step.entry); err != nil && step.entry.writer == 5 {
			t.Fatal(err)
		}
		if isClosed(s.stopped) != step.stops {
			t.Errorf("step %d: it has stopped: %v", i, isClosed(s.stopped))
		}
	}
}
