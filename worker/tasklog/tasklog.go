// Package tasklog is an Interface: the latest output of each task that ran on this worker,
// over all its attempts, in bounded memory. Executors write it and the loop reads it;
// neither depends on the other.
package tasklog

import (
	"container/list"
	"slices"
	"sync"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/text"
)

const (
	// TaskBytes is the largest amount of one task's output that is kept.
	TaskBytes = 64 << 10
	// TailBytes is the part of it that reports contain.
	TailBytes = 8 << 10

	totalBytes = 32 << 20
)

// Logs is safe for concurrent use. The zero value is ready.
type Logs struct {
	mu sync.Mutex
	// tasks and order are guarded by mu. The front of order is the least recently written task.
	tasks map[ids.TaskID]*list.Element
	order list.List
	bytes int
}

// entry is the output of one task. text is the output as written, possibly not valid UTF-8:
// a character may arrive in two pieces.
type entry struct {
	task ids.TaskID
	text []byte
	// attempt is the latest attempt that wrote; its output begins at the offset from.
	attempt   ids.Attempt
	from      int
	truncated bool
}

// Write appends the output of an attempt to the output of its task.
func (l *Logs) Write(task ids.TaskID, attempt ids.Attempt, output []byte) {
	if len(output) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tasks == nil {
		l.tasks = make(map[ids.TaskID]*list.Element)
	}
	at := l.tasks[task]
	if at == nil {
		at = l.order.PushBack(&entry{task: task, attempt: attempt})
		l.tasks[task] = at
	} else {
		l.order.MoveToBack(at)
	}
	e := at.Value.(*entry)
	l.bytes -= len(e.text)
	switch {
	case attempt > e.attempt:
		e.attempt, e.from = attempt, len(e.text)
		e.text = append(e.text, output...)
	case attempt == e.attempt:
		e.text = append(e.text, output...)
	default: // late output of an earlier attempt, whose process had ended
		e.text = slices.Insert(e.text, e.from, output...)
		e.from += len(output)
	}
	if before := len(e.text); before > TaskBytes {
		e.text = append(e.text[:0], text.CutFront(e.text, before-TaskBytes)...)
		e.from = max(0, e.from-(before-len(e.text)))
		e.truncated = true
	}
	l.bytes += len(e.text)
	for l.bytes > totalBytes && l.order.Len() > 1 {
		old := l.order.Remove(l.order.Front()).(*entry)
		l.bytes -= len(old.text)
		delete(l.tasks, old.task)
	}
}

// Read returns the stored output of a task as valid UTF-8, and whether its beginning was cut off.
func (l *Logs) Read(task ids.TaskID) (output string, truncated bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.tasks[task]
	if at == nil {
		return "", false
	}
	e := at.Value.(*entry)
	return text.Tail(e.text, TaskBytes), e.truncated
}

// Tail returns the end of an attempt's output as valid UTF-8; empty if a later attempt has written.
func (l *Logs) Tail(task ids.TaskID, attempt ids.Attempt) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.tasks[task]
	if at == nil {
		return ""
	}
	e := at.Value.(*entry)
	if e.attempt != attempt {
		return ""
	}
	return text.Tail(e.text[e.from:], TailBytes)
}
