package journal

import (
	"errors"
	"fmt"
	"time"
)

// This file has the two goroutines of a journal: one prepares the next batch while the other writes
// the one before.

// write is the writer's goroutine.
func (j *Journal) write() {
	defer close(j.ended)
	defer j.idle.Stop()
	for ended := false; !ended; {
		select {
		case <-j.wake:
		case <-j.idle.C:
			if !j.overdue() {
				continue
			}
		case <-j.closing:
			ended = true
		}
		for j.flush(ended) {
		}
	}
}

// overdue reports whether records have waited for idleTime. If there are younger ones, it sets the
// timer for the first of them.
func (j *Journal) overdue() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.armed = false
	if j.next != nil {
		return true
	}
	if len(j.filling.codec.data) == 0 {
		return false
	}
	left := idleTime - time.Since(j.filling.began)
	if left <= 0 {
		return true
	}
	j.armed = true
	j.idle.Reset(left)
	return false
}

// flush writes the records that have collected. If the disk refuses them, it tries again until it
// takes them, or the journal is closed. It reports whether more may wait.
func (j *Journal) flush(ended bool) (more bool) {
	j.mu.Lock()
	b := j.next
	more = b != nil
	if j.lost || !more && len(j.filling.codec.data) == 0 {
		j.mu.Unlock()
		return false
	}
	if !more {
		b = j.fill()
	}
	j.next, j.writing = nil, b
	if j.filling.full() {
		signal(j.full)
	}
	j.mu.Unlock()
	for {
		err := located(j.config.Files, j.put(b))
		j.mu.Lock()
		if err == nil && j.trouble != nil && !j.lost {
			j.trouble = nil
			j.log.Info("the journal is written again")
		}
		if j.lost {
			j.mu.Unlock()
			return false
		}
		if err == nil {
			j.durable, j.durableBatch, j.writing = b.last, j.number-1, nil
			j.keep(b)
			j.checkDue()
			b.end(nil)
			j.mu.Unlock()
			return more
		}
		taken := errors.Is(err, ErrTaken)
		if j.trouble == nil && !taken {
			j.log.Error("the journal cannot be written: nothing is accepted until it can", "error", err)
		}
		j.trouble = err
		j.checkDue()
		if ended || j.abandoned || taken {
			j.giveUp(err)
			j.mu.Unlock()
			return false
		}
		for _, b := range j.batches() {
			b.end(err)
			b.attempt = &attempt{done: make(chan struct{})}
		}
		j.mu.Unlock()
		pause := time.NewTimer(j.config.RetryTime)
		select {
		case <-pause.C:
		case <-j.closing:
			ended = true
		}
		pause.Stop()
	}
}

// put writes a batch and makes it durable. After a failed write, the segment is cut to its whole
// batches. After a failed sync nothing is known about the segment, so it is abandoned.
func (j *Journal) put(b *batch) error {
	b.prepare(j.encoder)
	if err := j.putValues(b); err != nil {
		return err
	}
	if j.file == nil || j.size >= int64(j.config.SegmentBytes) {
		if err := j.begin(); err != nil {
			return err
		}
	}
	if b.snapshot != nil && j.first != j.number {
		if err := j.begin(); err != nil {
			return err
		}
	}
	j.buffer = appendBatch(j.buffer[:0], j.seed, j.number, b.body()...)
	if _, err := j.file.Write(j.buffer); err != nil {
		if cut := j.file.Truncate(j.size); cut != nil {
			j.abandoned = true
		}
		return fmt.Errorf("journal: write %s: %w: free space on the disk, or mend it", j.name, err)
	}
	began := time.Now()
	if err := j.file.Sync(); err != nil {
		j.abandoned = true
		return fmt.Errorf("journal: sync %s: %w: mend the disk, and start the scheduler again", j.name, err)
	}
	j.mu.Lock()
	j.syncs.Observe(time.Since(began))
	if b.snapshot != nil {
		b.snapshot.first, b.snapshot.before = j.number, j.logged
	}
	j.bytes += uint64(len(j.buffer))
	j.logged += uint64(len(b.codec.data))
	for _, p := range b.placed {
		j.logged += uint64(p.size)
	}
	j.mu.Unlock()
	j.size += int64(len(j.buffer))
	j.number++
	if cap(j.buffer) > keptBuffer {
		j.buffer = nil
	}
	return nil
}

// prepare is a goroutine that prepares the next batch, if it is full, while the disk takes the one
// before. So those that wait for the one before do not wait for that.
func (j *Journal) prepare() {
	defer close(j.prepared)
	for {
		select {
		case <-j.full:
		case <-j.ended:
			return
		}
		j.mu.Lock()
		if j.writing == nil || j.next != nil || !j.filling.full() || j.lost {
			j.mu.Unlock()
			continue
		}
		b := j.fill()
		j.next = b
		j.mu.Unlock()
		b.prepare(j.encoder)
	}
}

// begin begins a segment. The last batch of the segment before is copied into it if that may not be
// durable.
func (j *Journal) begin() error {
	if j.file != nil {
		j.before = j.segment()
	}
	first, before := j.number, j.before
	head, seed := newHead()
	content := head
	if j.carried != nil {
		first, before.end = j.number-1, before.last
		content = appendBatch(content, seed, first, j.carried)
	}
	name := segmentName(first)
	if err := PutFile(j.config.Files, name, content); err != nil {
		return err
	}
	file, err := j.config.Files.Append(name)
	if err != nil {
		return fmt.Errorf("journal: open %s: %w", name, err)
	}
	if before.name != "" && before.name != name {
		j.markContinued(before, first)
	}
	if j.file != nil {
		_ = j.file.Close() // All of it is durable.
	}
	j.carried, j.before = nil, segment{}
	j.file, j.name, j.seed, j.size, j.first = file, name, seed, int64(len(content)), first
	j.grown(len(content))
	return nil
}

// segment returns the segment that is written.
func (j *Journal) segment() segment {
	return segment{name: j.name, seed: j.seed, end: int(j.size)}
}

// markContinued marks a segment, so that a missing segment behind it is noticed. Nothing else needs
// the mark, so an error is no trouble: bytes behind the last batch do not count now.
func (j *Journal) markContinued(s segment, next uint64) {
	if file, err := j.config.Files.Append(s.name); err == nil {
		if file.Truncate(int64(s.end)) == nil {
			j.mark(file, s, next, formContinued)
		}
		_ = file.Close()
	}
}

// mark writes a mark at the end of a segment, as far as the disk takes it.
func (j *Journal) mark(file File, s segment, next uint64, form byte) {
	data := appendBatch(nil, s.seed, next, []byte{form})
	_, err := file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	if err != nil {
		_ = file.Truncate(int64(s.end))
		return
	}
	j.grown(len(data))
}
