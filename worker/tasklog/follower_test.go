package tasklog

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

func of(task ids.TaskID) Source {
	return Source{Task: task, Attempt: 1, Key: fmt.Sprintf("k%d", task), Namespace: "default"}
}

func follow(t *testing.T, l *Logs, filter Filter) *Follower {
	t.Helper()
	f, err := l.Follow(filter)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

// all reads everything that there is, and returns it with a note for each chunk.
func all(f *Follower) (text string) {
	for {
		chunks, _, more, _ := f.Next()
		for _, c := range chunks {
			text += fmt.Sprintf("%s@%d", c.Key, c.Offset)
			if c.Skipped > 0 {
				text += fmt.Sprintf("(-%d)", c.Skipped)
			}
			if c.Stderr {
				text += "!"
			}
			text += fmt.Sprintf(" %q ", c.Text)
		}
		if !more {
			return strings.TrimSpace(text)
		}
	}
}

func TestFollowersReadWhatIsWritten(t *testing.T) {
	var l Logs
	l.Write(of(1), false, []byte("before\n"))
	old, live := follow(t, &l, Filter{Within: time.Hour}), follow(t, &l, Filter{After: l.written})
	if got := all(old); got != `k1@0 "before\n"` {
		t.Errorf("got %s", got)
	}
	chunks, at, more, changed := live.Next()
	if len(chunks) > 0 || more {
		t.Errorf("got %v of nothing new", chunks)
	}
	l.Write(of(2), true, []byte("caf\xc3"))
	<-changed
	if got := all(live); got != `k2@0! "caf"` {
		t.Errorf("half a character: %s", got)
	}
	l.Write(of(2), true, []byte("\xa9"))
	l.Write(of(2), false, []byte("out"))
	l.Write(of(2), true, []byte("err\xff"))
	if got := all(live); got != `k2@3! "é" k2@5 "out" k2@8! "err�"` {
		t.Errorf("both streams: %s", got)
	}
	// A reader that comes back after a break finds the attempts that have written since.
	if got := all(follow(t, &l, Filter{After: at})); got != `k2@0! "café" k2@5 "out" k2@8! "err�"` {
		t.Errorf("after a break: %s", got)
	}
	l.Close()
	if _, _, _, changed = live.Next(); changed != nil {
		t.Error("the follower waits after the end")
	}
}

func TestFollowersSelect(t *testing.T) {
	var l Logs
	for task := range ids.TaskID(3) {
		l.Write(of(task+1), false, []byte("x"))
	}
	other := of(4)
	other.Namespace = "other"
	l.Write(other, false, []byte("y"))
	if got := all(follow(t, &l, Filter{Within: time.Hour, Namespace: "other"})); got != `k4@0 "y"` {
		t.Errorf("of a namespace: %s", got)
	}
	if got := all(follow(t, &l, Filter{Within: time.Hour, Tasks: map[ids.TaskID]bool{2: true}})); got != `k2@0 "x"` {
		t.Errorf("of a task: %s", got)
	}
	if got := all(follow(t, &l, Filter{Within: time.Hour, Keys: map[string]bool{"k3": true}})); got != `k3@0 "x"` {
		t.Errorf("of a key: %s", got)
	}
	if got := all(follow(t, &l, Filter{Within: -time.Hour})); got != "" {
		t.Errorf("of nothing before: %s", got)
	}
}

// An attempt that writes without end neither fills memory nor hides the output of others: a
// follower misses the older part of its output, and learns how much.
func TestFloodsAreBounded(t *testing.T) {
	var l Logs
	f := follow(t, &l, Filter{Within: time.Hour})
	line := []byte(strings.Repeat("x", 99) + "\n")
	const n = 20_000
	for range n {
		l.Write(of(1), false, line)
	}
	l.Write(of(2), false, []byte("quiet\n"))
	for range n {
		l.Write(of(1), false, line)
	}
	if l.bytes > TaskBytes+slackBytes+3*entryBytes {
		t.Errorf("%d bytes are kept", l.bytes)
	}
	chunks, _, more, _ := f.Next()
	if more || len(chunks) != 2 || chunks[0].Text != "quiet\n" {
		t.Fatalf("%d chunks, more %v", len(chunks), more)
	}
	if c := chunks[1]; len(c.Text) > chunkBytes || c.Skipped+uint64(len(c.Text)) != 2*n*100 || c.Offset != c.Skipped {
		t.Errorf("%d bytes from %d, %d skipped", len(c.Text), c.Offset, c.Skipped)
	}
}

// Many attempts that write much come in several batches, each bounded.
func TestBatchesAreBounded(t *testing.T) {
	var l Logs
	f := follow(t, &l, Filter{Within: time.Hour})
	text := []byte(strings.Repeat("y", chunkBytes))
	for task := range ids.TaskID(40) {
		l.Write(of(task+1), false, text)
	}
	seen := 0
	for more := true; more; {
		var chunks []Chunk
		chunks, _, more, _ = f.Next()
		if len(chunks)*chunkBytes > batchBytes {
			t.Errorf("a batch of %d chunks", len(chunks))
		}
		seen += len(chunks)
	}
	if seen != 40 {
		t.Errorf("%d of 40 attempts were read", seen)
	}
}

func TestAlternationsAreBounded(t *testing.T) {
	var l Logs
	for i := range 10 * maxTurns {
		l.Write(of(1), i%2 == 0, []byte("z"))
	}
	if n := len(l.order.Back().Value.(*entry).turns); n > maxTurns {
		t.Errorf("%d alternations are kept", n)
	}
	chunks, _, _, _ := follow(t, &l, Filter{Within: time.Hour}).Next()
	bytes := 0
	for _, c := range chunks {
		bytes += len(c.Text)
	}
	if bytes != 10*maxTurns {
		t.Errorf("%d bytes were read", bytes)
	}
}

func TestFollowersAreBounded(t *testing.T) {
	var l Logs
	for range maxFollowers {
		follow(t, &l, Filter{})
	}
	if _, err := l.Follow(Filter{}); err == nil {
		t.Error("one more was accepted")
	}
}

// TestFollowersSleepWhileOthersWrite: only the followers of a task are woken when it writes.
func TestFollowersSleepWhileOthersWrite(t *testing.T) {
	var l Logs
	one, two := follow(t, &l, Filter{Tasks: map[ids.TaskID]bool{1: true}}), follow(t, &l, Filter{Tasks: map[ids.TaskID]bool{2: true}})
	_, _, _, first := one.Next()
	_, _, _, second := two.Next()
	l.Write(of(1), false, []byte("a"))
	<-first
	select {
	case <-second:
		t.Error("the follower of another task was woken")
	default:
	}
	l.Write(of(2), false, []byte("b"))
	<-second
	if got := all(two); got != `k2@0 "b"` {
		t.Errorf("got %s", got)
	}
	_, _, _, last := two.Next()
	l.Close()
	<-last
}
