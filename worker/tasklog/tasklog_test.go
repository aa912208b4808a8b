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
	l.Write(Source{Task: 1, Attempt: 1}, false, []byte("hello "))
	l.Write(Source{Task: 2, Attempt: 1}, false, []byte("other"))
	l.Write(Source{Task: 1, Attempt: 1}, false, []byte("world"))
	if text, cut := l.Read(1); text != "hello world" || cut {
		t.Errorf("got %q, %v", text, cut)
	}
	l.Write(Source{Task: 1, Attempt: 1}, false, []byte(strings.Repeat("x", TaskBytes-3)+"end"))
	if text, cut := l.Read(1); len(text) != TaskBytes || !cut || !strings.HasSuffix(text, "xend") {
		t.Errorf("got %d bytes, %v", len(text), cut)
	}
	if tail := l.Tail(1, 1); len(tail) != TailBytes || !strings.HasSuffix(tail, "end") {
		t.Errorf("tail of %d bytes", len(tail))
	}
}

// The output of all attempts is kept; the tail contains only that of the requested attempt.
func TestTailsAreOfOneAttempt(t *testing.T) {
	var l Logs
	l.Write(Source{Task: 1, Attempt: 1}, false, []byte("first\n"))
	l.Write(Source{Task: 1, Attempt: 2}, false, []byte("second\n"))
	l.Write(Source{Task: 1, Attempt: 1}, false, []byte("late\n"))
	l.Write(Source{Task: 1, Attempt: 2}, false, []byte("end\n"))
	if all, _ := l.Read(1); all != "first\nlate\nsecond\nend\n" {
		t.Errorf("all: %q", all)
	}
	for attempt, want := range map[ids.Attempt]string{1: "first\nlate\n", 2: "second\nend\n", 3: ""} {
		if got := l.Tail(1, attempt); got != want {
			t.Errorf("attempt %d: %q, want %q", attempt, got, want)
		}
	}
	l.Write(Source{Task: 1, Attempt: 3}, false, []byte(strings.Repeat("x", TaskBytes-4)))
	l.Write(Source{Task: 1, Attempt: 2}, false, []byte("later\n"))
	if all, cut := l.Read(1); !cut || len(all) != TaskBytes || !strings.HasSuffix(all[:4], "r\n") || l.Tail(1, 3) != strings.Repeat("x", TailBytes) {
		t.Errorf("%d bytes that begin with %q", len(all), all[:10])
	}
}

func TestLeastRecentTasksGoFirst(t *testing.T) {
	var l Logs
	text := []byte(strings.Repeat("x", TaskBytes))
	n := totalBytes/TaskBytes + 10
	for i := range n {
		l.Write(Source{Task: ids.TaskID(i + 1), Attempt: 1}, false, text)
		l.Write(Source{Task: 1, Attempt: 1}, false, []byte("still here"))
	}
	if l.bytes > totalBytes {
		t.Errorf("%d bytes are kept", l.bytes)
	}
	for task, want := range map[ids.TaskID]bool{1: true, 2: false, ids.TaskID(n): true} {
		if got := l.Tail(task, 1) != ""; got != want {
			t.Errorf("task %d is kept: %v", task, got)
		}
	}
}

// Texts are cut at limits in bytes. The result must be valid UTF-8, otherwise its message cannot be
// sent.
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
		l.Write(Source{Task: 1, Attempt: 1}, false, text[:cut])
		l.Write(Source{Task: 1, Attempt: 1}, false, text[cut:]) // possibly in the middle of a character
		whole, _ := l.Read(1)
		for name, got := range map[string]string{"text": whole, "tail": l.Tail(1, 1)} {
			if !utf8.ValidString(got) {
				t.Errorf("the %s of %q is not UTF-8: %q", name, text, got)
			}
		}
		if utf8.Valid(text) && len(text) <= TaskBytes && whole != string(text) {
			t.Errorf("%q became %q", text, whole)
		}
		if len(whole) > TaskBytes || len(l.Tail(1, 1)) > TailBytes {
			t.Errorf("%d bytes, %d of them in the tail", len(whole), len(l.Tail(1, 1)))
		}
	})
}
