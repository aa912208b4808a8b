package tasklog

import (
	"strings"
	"testing"
	"unicode/utf8"

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

// Texts are cut at limits in bytes. The result must be valid UTF-8, otherwise its message cannot be sent.
func FuzzTextIsValidWhereverItIsCut(f *testing.F) {
	f.Add([]byte(strings.Repeat("█", 30000)), uint(0))
	f.Add([]byte(strings.Repeat("█", 30000)+"x"), uint(1))
	f.Add([]byte("\xff\n"), uint(0))
	f.Add([]byte("caf\xe9 "), uint(9000))
	f.Add([]byte(strings.Repeat("😀", 3000)), uint(7))
	f.Fuzz(func(t *testing.T, text []byte, at uint) {
		var l Logs
		cut := 0
		if len(text) > 0 {
			cut = int(at % uint(len(text)))
		}
		l.Write(1, text[:cut])
		l.Write(1, text[cut:]) // also in the middle of a character
		whole, _ := l.Read(1)
		for name, got := range map[string]string{"text": whole, "tail": l.Tail(1)} {
			if !utf8.ValidString(got) {
				t.Errorf("the %s of %q is not UTF-8: %q", name, text, got)
			}
		}
		if utf8.Valid(text) && len(text) <= TaskBytes && whole != string(text) {
			t.Errorf("%q became %q", text, whole)
		}
		if len(whole) > TaskBytes || len(l.Tail(1)) > TailBytes {
			t.Errorf("%d bytes, %d of them in the tail", len(whole), len(l.Tail(1)))
		}
	})
}
