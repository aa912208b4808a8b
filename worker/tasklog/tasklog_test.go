package tasklog

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/ids"
)

func TestEndOfEachTaskIsKept(t *testing.T) {
	var l Logs
	if text, cut := l.Read(1); text != "" || cut {
		t.Errorf("got %q, %v of nothing", text, cut)
	}
	l.Write(1, []byte("hello "))
	l.Write(2, []byte("other"))
	l.Write(1, []byte("world"))
	if text, cut := l.Read(1); text != "hello world" || cut {
		t.Errorf("got %q, %v", text, cut)
	}
	l.Write(1, []byte(strings.Repeat("x", TaskBytes-3)+"end"))
	if text, cut := l.Read(1); len(text) != TaskBytes || !cut || !strings.HasSuffix(text, "xend") {
		t.Errorf("got %d bytes, %v", len(text), cut)
	}
	if tail := l.Tail(1); len(tail) != TailBytes || !strings.HasSuffix(tail, "end") {
		t.Errorf("tail of %d bytes", len(tail))
	}
}

func TestLeastRecentTasksGoFirst(t *testing.T) {
	var l Logs
	text := []byte(strings.Repeat("x", TaskBytes))
	n := totalBytes/TaskBytes + 10
	for i := range n {
		l.Write(ids.TaskID(i+1), text)
		l.Write(1, []byte("still here"))
	}
	if l.bytes > totalBytes {
		t.Errorf("%d bytes are kept", l.bytes)
	}
	for task, want := range map[ids.TaskID]bool{1: true, 2: false, ids.TaskID(n): true} {
		if got := l.Tail(task) != ""; got != want {
			t.Errorf("task %d is kept: %v", task, got)
		}
	}
}
