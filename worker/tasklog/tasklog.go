// Package tasklog is an Interface: the latest output of each attempt that ran on this worker, in
// bounded memory. Executors write it; the loop and the followers of the data service read it; none
// of them depends on another.
package tasklog

import (
	"cmp"
	"container/list"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/text"
)

const (
	// TaskBytes is the largest amount of one attempt's output that is kept, and of what Read
	// returns.
	TaskBytes = 64 << 10
	// TailBytes is the part of it that reports contain.
	TailBytes = 8 << 10

	totalBytes = 32 << 20
	// slackBytes is the room beyond TaskBytes. The front is cut off only when it is full, so that
	// not every write moves all text.
	slackBytes = 64 << 10
	// entryBytes is the memory that an entry takes in addition to its text.
	entryBytes = 512
	// maxTurns is the largest number of alternations between stdout and stderr that are kept of one
	// attempt.
	maxTurns = 1024
)

// Source is an attempt that writes.
type Source struct {
	Task      ids.TaskID
	Attempt   ids.Attempt
	Key       string
	Namespace string
}

// Logs is safe for concurrent use. The zero value is ready.
type Logs struct {
	mu sync.Mutex
	// The following fields are guarded by mu. tasks has the attempts of each task, in ascending
	// order. The front of order is the least recently written attempt.
	tasks map[ids.TaskID][]*list.Element
	order list.List
	bytes int
	// written is the number of writes so far.
	written   uint64
	followers []*Follower
	closed    bool
}

// entry is the output of one attempt. text is the output as written, possibly not valid UTF-8: a
// character may arrive in two pieces. start is the number of bytes that were cut off before it.
type entry struct {
	Source
	text  []byte
	start uint64
	turns []turn
	// last is the value of Logs.written at the last write, and at is its time.
	last uint64
	at   time.Time
}

// turn says that the output from an offset on went to stderr, or to stdout. Offsets count the bytes
// that the attempt has written.
type turn struct {
	offset uint64
	stderr bool
}

func (e *entry) end() uint64 { return e.start + uint64(len(e.text)) }

// kept returns the part of the text that is kept. More may be in e.text.
func (e *entry) kept() []byte { return text.CutFront(e.text, len(e.text)-TaskBytes) }

func (e *entry) truncated() bool { return e.end() > TaskBytes }

// Write appends output of an attempt.
func (l *Logs) Write(of Source, stderr bool, output []byte) {
	if len(output) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entry(of)
	l.bytes -= len(e.text)
	if n := len(e.turns); n == 0 || e.turns[n-1].stderr != stderr {
		e.turns = append(e.turns, turn{e.end(), stderr})
	}
	e.text = append(e.text, output...)
	if over := len(e.text) - TaskBytes; over > slackBytes {
		kept := e.kept()
		e.start += uint64(len(e.text) - len(kept))
		e.text = append(e.text[:0], kept...)
	}
	e.forgetTurns()
	l.bytes += len(e.text)
	l.written++
	e.last, e.at = l.written, time.Now()
	for l.bytes > totalBytes && l.order.Len() > 1 {
		l.drop(l.order.Front())
	}
	for _, f := range l.followers {
		if f.wants(e) {
			f.wake()
		}
	}
}

// forgetTurns removes the alternations before the beginning of the text, and the oldest ones if
// there are too many.
func (e *entry) forgetTurns() {
	first := 0
	for first+1 < len(e.turns) && (e.turns[first+1].offset <= e.start || len(e.turns)-first > maxTurns) {
		first++
	}
	e.turns = slices.Delete(e.turns, 0, first)
}

// entry returns the entry of an attempt as the most recently written one. REQUIRES: the lock.
func (l *Logs) entry(of Source) *entry {
	if l.tasks == nil {
		l.tasks = make(map[ids.TaskID][]*list.Element)
	}
	attempts := l.tasks[of.Task]
	i, found := slices.BinarySearchFunc(attempts, of.Attempt, func(at *list.Element, attempt ids.Attempt) int {
		return cmp.Compare(at.Value.(*entry).Attempt, attempt)
	})
	if found {
		l.order.MoveToBack(attempts[i])
		return attempts[i].Value.(*entry)
	}
	e := &entry{Source: of}
	l.tasks[of.Task] = slices.Insert(attempts, i, l.order.PushBack(e))
	l.bytes += entryBytes + len(of.Key)
	return e
}

// drop forgets an attempt. REQUIRES: the lock.
func (l *Logs) drop(at *list.Element) {
	e := l.order.Remove(at).(*entry)
	l.bytes -= len(e.text) + entryBytes + len(e.Key)
	left := slices.DeleteFunc(l.tasks[e.Task], func(other *list.Element) bool { return other == at })
	if len(left) == 0 {
		delete(l.tasks, e.Task)
	} else {
		l.tasks[e.Task] = left
	}
}

// Read returns the stored output of a task over all its attempts as valid UTF-8, and whether its
// beginning was cut off.
func (l *Logs) Read(task ids.TaskID) (output string, truncated bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all strings.Builder
	for _, at := range l.tasks[task] {
		e := at.Value.(*entry)
		all.Write(e.kept())
		truncated = truncated || e.truncated()
	}
	return text.Tail(all.String(), TaskBytes), truncated || all.Len() > TaskBytes
}

// Tail returns the end of an attempt's output as valid UTF-8.
func (l *Logs) Tail(task ids.TaskID, attempt ids.Attempt) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, at := range l.tasks[task] {
		if e := at.Value.(*entry); e.Attempt == attempt {
			return text.Tail(e.text, TailBytes)
		}
	}
	return ""
}

// Close ends all followers after they have read what is there.
func (l *Logs) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, f := range l.followers {
		f.wake()
	}
}
