package tasklog

import (
	"cmp"
	"errors"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/text"
)

const (
	// maxFollowers is the largest number of followers at one time.
	maxFollowers = 256
	// chunkBytes is the largest amount of one attempt's output that a follower gets at once. A
	// follower that is slower than an attempt misses the older part of its output, so that an
	// attempt that writes much does not delay the output of others.
	chunkBytes = 16 << 10
	// batchBytes is the size of a batch from which on it gets no further attempt.
	batchBytes = 64 << 10
)

// errTooManyFollowers refuses a follower.
var errTooManyFollowers = errors.New("too many followers read the output of this worker's tasks: end some, or ask for the output of single tasks")

// Filter selects attempts.
type Filter struct {
	// Namespace of the tasks; empty: all.
	Namespace string
	// Tasks and Keys select the tasks of either; both empty: all.
	Tasks map[ids.TaskID]bool
	Keys  map[string]bool
	// After is the position to begin at, as Next returned it before; 0: the output of attempts
	// that have written within the time Within.
	After  uint64
	Within time.Duration
	// Whole returns all that is kept of an attempt at once. For readers that do not follow.
	Whole bool
}

// Chunk is output of one attempt to one of its streams.
type Chunk struct {
	Source
	// Offset is the number of bytes that the attempt had written before the chunk. Skipped of these
	// precede the chunk immediately, and were not returned.
	Offset, Skipped uint64
	Stderr          bool
	// Bytes is the number of bytes that Text stands for. They differ from it where they are not
	// UTF-8.
	Bytes int
	Text  string
}

// Follower reads output while it is written. It is not safe for concurrent use.
type Follower struct {
	logs   *Logs
	filter Filter
	// seen is the value of Logs.written up to which everything was read.
	seen uint64
	// since selects attempts by the time of their last write, while seen is 0.
	since time.Time
	// read is the offset up to which each attempt was read.
	read map[*entry]uint64
	// changed is closed when an attempt that it wants has written; nil if it does not wait.
	changed chan struct{}
}

// Follow returns a follower. The caller must close it.
func (l *Logs) Follow(f Filter) (*Follower, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.followers) >= maxFollowers {
		return nil, errTooManyFollowers
	}
	follower := &Follower{logs: l, filter: f, seen: min(f.After, l.written), since: time.Now().Add(-f.Within), read: make(map[*entry]uint64)}
	l.followers = append(l.followers, follower)
	return follower, nil
}

// Close ends the follower.
func (f *Follower) Close() {
	f.logs.mu.Lock()
	defer f.logs.mu.Unlock()
	f.logs.followers = slices.DeleteFunc(f.logs.followers, func(other *Follower) bool { return other == f })
}

// Next returns the next output, least recently written attempts first, and the position after it.
// more reports whether there is more already. If there is none, changed is closed as soon as there
// may be; it is nil if there will be none.
func (f *Follower) Next() (chunks []Chunk, position uint64, more bool, changed <-chan struct{}) {
	l := f.logs
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.order.Back()
	if at == nil || at.Value.(*entry).last <= f.seen {
		return nil, f.seen, false, f.wait()
	}
	for before := at.Prev(); before != nil && before.Value.(*entry).last > f.seen; before = at.Prev() {
		at = before
	}
	bytes := 0
	for ; at != nil && bytes < batchBytes; at = at.Next() {
		e := at.Value.(*entry)
		if f.wants(e) {
			for _, c := range f.take(e) {
				chunks, bytes = append(chunks, c), bytes+len(c.Text)
			}
		}
		f.seen = e.last
	}
	if at != nil {
		return chunks, f.seen, true, nil
	}
	f.forget()
	return chunks, f.seen, false, f.wait()
}

// wait returns the channel that is closed by the next write that the follower wants. REQUIRES: the
// lock.
func (f *Follower) wait() <-chan struct{} {
	if f.logs.closed {
		return nil
	}
	if f.changed == nil {
		f.changed = make(chan struct{})
	}
	return f.changed
}

// wake ends a wait. REQUIRES: the lock.
func (f *Follower) wake() {
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

func (f *Follower) wants(e *entry) bool {
	if f.filter.Namespace != "" && e.Namespace != f.filter.Namespace {
		return false
	}
	if len(f.filter.Tasks)+len(f.filter.Keys) > 0 && !f.filter.Tasks[e.Task] && !f.filter.Keys[e.Key] {
		return false
	}
	return f.filter.After > 0 || !e.at.Before(f.since)
}

// take returns the output of an attempt that was not read yet, split where it changes between
// stdout and stderr. A character at the end that has not arrived completely is left for later.
// REQUIRES: the lock.
func (f *Follower) take(e *entry) (chunks []Chunk) {
	from, end := max(f.read[e], e.start), e.end()-uint64(unfinished(e.text))
	skipped := from - f.read[e]
	if !f.filter.Whole && from+chunkBytes < end {
		cut := len(e.text) - len(text.CutFront(e.text, int(end-chunkBytes-e.start)))
		skipped += e.start + uint64(cut) - from
		from = e.start + uint64(cut)
	}
	if from >= end {
		return nil
	}
	i, found := slices.BinarySearchFunc(e.turns, from, func(t turn, offset uint64) int { return cmp.Compare(t.offset, offset) })
	if !found && i > 0 {
		i--
	}
	for ; from < end; i++ {
		to := end
		if i+1 < len(e.turns) {
			to = min(end, e.turns[i+1].offset)
		}
		c := Chunk{Source: e.Source, Offset: from, Skipped: skipped, Stderr: e.turns[i].stderr, Bytes: int(to - from)}
		c.Text = text.Valid(string(e.text[from-e.start : to-e.start]))
		chunks, from, skipped = append(chunks, c), to, 0
	}
	f.read[e] = end
	return chunks
}

// unfinished returns the number of bytes at the end that begin a character but do not complete it.
func unfinished(s []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(s); n++ {
		if c := s[len(s)-n]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(s[len(s)-n:]) {
				return n
			}
			return 0
		}
	}
	return 0
}

// forget removes the attempts that the logs do not keep any more, now and then. REQUIRES: the lock.
func (f *Follower) forget() {
	if len(f.read) < 2*f.logs.order.Len()+100 {
		return
	}
	kept := make(map[*entry]uint64, f.logs.order.Len())
	for at := f.logs.order.Front(); at != nil; at = at.Next() {
		if offset, ok := f.read[at.Value.(*entry)]; ok {
			kept[at.Value.(*entry)] = offset
		}
	}
	f.read = kept
}
