// Package journal is an Adapter: it keeps on disk what the scheduler has accepted, so that the next
// start of the scheduler goes on from there.
//
// A journal is a directory with segments, which are files of batches of records, and with a file
// for each long value. Records are appended in the order in which the machine saw the events. One
// goroutine writes all records that have collected as one batch and makes it durable; those that
// wait for any of them then go on (group commit). ADR 24 has the reasons.
package journal

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

const (
	// segmentBytes is the size from which a segment is ended and the next one begun.
	segmentBytes = 64 << 20
	// retryTime is the time between two attempts to write to a disk that refuses: clients are told
	// of the error at once, and a disk that has room again is found soon.
	retryTime = time.Second
	// idleTime is the longest time that records stay in memory if nobody waits for them.
	idleTime = 50 * time.Millisecond
	// fullBatch is the size of the collected records from which they are written at once.
	fullBatch = 1 << 20
	// waitingBytes bounds the records that wait while a disk refuses them. Beyond it the journal
	// gives up.
	waitingBytes = 256 << 20
	// keptBuffer bounds the buffers that are kept for the next batch.
	keptBuffer = 4 << 20

	segmentSuffix = ".log"
	valueSuffix   = ".value"
)

// Config sets up a journal.
type Config struct {
	Files Files
	Log   *slog.Logger
	// SegmentBytes is the size from which a new segment is begun. 0: 64 MiB.
	SegmentBytes int
	// RetryTime is the time between two attempts to write to a disk that refuses. 0: 1 s.
	RetryTime time.Duration
}

// Journal appends records. Append has one caller at a time; the other methods may be called by any
// goroutine.
type Journal struct {
	config  Config
	log     *slog.Logger
	encoder *zstd.Encoder
	wake    chan struct{}
	// some is signalled when a batch gets its first record.
	some    chan struct{}
	closing chan struct{}
	ended   chan struct{}

	mu sync.Mutex // guards the fields up to the writer's
	// filling takes the records that are appended; writing is the batch that is on its way to the
	// disk, or nil.
	filling, writing *batch
	appended         uint64 // records so far
	durable          uint64 // records so far that are durable
	trouble          error  // of the last attempt to write; nil: none
	lost             bool   // no further record is taken
	bytes            uint64 // in files
	syncs            sched.Histogram

	// The writer's goroutine owns the remaining fields.
	file    File
	name    string
	size    int64
	number  uint64 // of the next batch
	buffer  []byte
	written map[[sha256.Size]byte]struct{} // the values that are durable
}

// batch is the records that become durable together.
type batch struct {
	codec codec
	began time.Time // the time of its first record
	last  uint64    // the last record of it
	// done is closed after each attempt to write it, and then replaced if there will be another
	// one; err is the outcome of the attempt.
	attempt *attempt
}

type attempt struct {
	done chan struct{}
	err  error
}

func newBatch() *batch { return &batch{attempt: &attempt{done: make(chan struct{})}} }

// Open reads a journal and calls apply for each record in order, with the time at which it was
// appended. Then it is ready for further records. A batch that was being written when the scheduler
// ended is cut off. Any other damage is an error.
func Open(config Config, apply func(time.Time, Record) error) (*Journal, error) {
	if config.SegmentBytes == 0 {
		config.SegmentBytes = segmentBytes
	}
	if config.RetryTime == 0 {
		config.RetryTime = retryTime
	}
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	j := &Journal{
		config: config, log: config.Log, encoder: encoder,
		wake: make(chan struct{}, 1), some: make(chan struct{}, 1), closing: make(chan struct{}), ended: make(chan struct{}),
		filling: newBatch(), written: map[[sha256.Size]byte]struct{}{},
	}
	if err := j.replay(apply); err != nil {
		return nil, err
	}
	go j.write()
	return j, nil
}

// segmentName returns the name of the segment whose first batch has this number.
func segmentName(first uint64) string { return fmt.Sprintf("%020d%s", first, segmentSuffix) }

// segments lists the segments, in order.
func segments(files Files) ([]string, error) {
	names, err := files.List()
	if err != nil {
		return nil, fmt.Errorf("journal: list the files: %w", err)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasSuffix(name, segmentSuffix) })
	slices.Sort(names)
	return names, nil
}

// errEnough ends the reading of a journal.
var errEnough = errors.New("enough")

// Identify returns the first record of a journal, which says to which cluster it belongs; nil: the
// journal is empty.
func Identify(files Files) (*Begun, error) {
	names, err := segments(files)
	if err != nil || len(names) == 0 {
		return nil, err
	}
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	defer decoder.Close()
	data, err := files.Read(names[0])
	if err != nil {
		return nil, fmt.Errorf("journal: read %s: %w", names[0], err)
	}
	var begun *Begun
	r := reader{journal: &Journal{config: Config{Files: files}, written: map[[sha256.Size]byte]struct{}{}}, decoder: decoder, apply: func(_ time.Time, r Record) error {
		begun, _ = r.(*Begun)
		return errEnough
	}}
	var first uint64
	if _, err := fmt.Sscanf(names[0], "%d", &first); err != nil {
		return nil, damaged(names[0], 0, "its name is not the number of a batch")
	}
	if _, _, err := readSegment(names[0], data, first, len(names) == 1, r.body); err != nil && !errors.Is(err, errEnough) {
		return nil, err
	}
	return begun, nil
}

// replay applies all records, and opens the last segment for more.
func (j *Journal) replay(apply func(time.Time, Record) error) error {
	names, err := segments(j.config.Files)
	if err != nil {
		return err
	}
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	defer decoder.Close()
	r := reader{journal: j, decoder: decoder, apply: apply}
	j.number = 1
	for i, name := range names {
		data, err := j.config.Files.Read(name)
		if err != nil {
			return fmt.Errorf("journal: read %s: %w", name, err)
		}
		if name != segmentName(j.number) {
			return damaged(name, 0, fmt.Sprintf("a segment is missing: batch %d comes next", j.number))
		}
		last := i == len(names)-1
		next, whole, err := readSegment(name, data, j.number, last, r.body)
		if err != nil {
			return err
		}
		j.bytes += uint64(whole)
		j.number = next
		if last {
			return j.reopen(name, len(data), whole)
		}
	}
	return j.begin()
}

// reopen continues the last segment behind its whole batches.
func (j *Journal) reopen(name string, size, whole int) (err error) {
	if j.file, err = j.config.Files.Append(name); err != nil {
		return fmt.Errorf("journal: open %s: %w", name, err)
	}
	j.name, j.size = name, int64(whole)
	if whole == size && whole > 0 {
		return nil
	}
	j.log.Warn("the end of the journal is cut off: the scheduler ended while it was written, and nobody was told that it is kept",
		"file", name, "bytes", size-whole)
	if err := j.file.Truncate(j.size); err != nil {
		return fmt.Errorf("journal: cut %s after %d bytes: %w", name, whole, err)
	}
	if whole == 0 {
		if _, err := j.file.Write(segmentHead()); err != nil {
			return fmt.Errorf("journal: write %s: %w", name, err)
		}
		j.size = int64(headBytes)
	}
	if err := j.file.Sync(); err != nil {
		return fmt.Errorf("journal: sync %s: %w", name, err)
	}
	return nil
}

// reader applies the records of batches.
type reader struct {
	journal *Journal
	decoder *zstd.Decoder
	apply   func(time.Time, Record) error
}

func (r *reader) body(body []byte) error {
	data, err := openBody(body, r.decoder)
	if err != nil {
		return err
	}
	c := codec{reading: true, data: data, load: r.journal.load}
	for len(c.data) > 0 {
		var nanos int64
		whole(&c, &nanos)
		record := c.code(nil)
		if c.err != nil {
			return c.err
		}
		if err := r.apply(time.Unix(0, nanos), record); err != nil {
			return err
		}
	}
	return nil
}

// load reads a value that has a file of its own.
func (j *Journal) load(hash [sha256.Size]byte) ([]byte, error) {
	name := hex.EncodeToString(hash[:]) + valueSuffix
	value, err := j.config.Files.Read(name)
	if err != nil {
		return nil, fmt.Errorf("the value %s: %w", name, err)
	}
	if sha256.Sum256(value) != hash {
		return nil, fmt.Errorf("the value %s is damaged", name)
	}
	if _, known := j.written[hash]; !known {
		j.bytes += uint64(len(value))
	}
	j.written[hash] = struct{}{}
	return value, nil
}

// begin begins a segment.
func (j *Journal) begin() error {
	name := segmentName(j.number)
	file, err := j.config.Files.Append(name)
	if err != nil {
		return fmt.Errorf("journal: make %s: %w", name, err)
	}
	head := segmentHead()
	if _, err = file.Write(head); err == nil {
		err = file.Sync()
	}
	if err == nil {
		err = j.config.Files.SyncNames()
	}
	if err != nil {
		_ = file.Truncate(0) // The next attempt writes the head again, or the next start does.
		_ = file.Close()     // Nothing in it counts.
		return fmt.Errorf("journal: begin %s: %w", name, err)
	}
	j.file, j.name, j.size = file, name, int64(len(head))
	j.grown(len(head))
	return nil
}

// Append adds a record, which the machine has just seen, and returns its number. It neither waits
// nor writes. The record may be changed after that, but not its arguments and functions.
func (j *Journal) Append(at time.Time, r Record) uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.appended++
	if j.lost {
		return j.appended
	}
	b := j.filling
	if len(b.codec.data) == 0 {
		b.began = time.Now()
		signal(j.some)
	}
	nanos := at.UnixNano()
	whole(&b.codec, &nanos)
	b.codec.code(r)
	b.last = j.appended
	if n := len(b.codec.data); n > fullBatch {
		j.kick()
		if j.trouble != nil && n > waitingBytes {
			j.giveUp(fmt.Errorf("journal: more than %d MiB wait for the disk: %w", waitingBytes>>20, j.trouble))
		}
	}
	return j.appended
}

// kick wakes the writer.
func (j *Journal) kick() { signal(j.wake) }

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// giveUp ends the use of the disk: records that are not durable by now never will be.
func (j *Journal) giveUp(cause error) {
	if j.lost {
		return
	}
	j.lost, j.trouble = true, cause
	j.log.Error("the journal is given up: nothing is accepted any more; start the scheduler again when the disk works", "error", cause)
	for _, b := range []*batch{j.filling, j.writing} {
		if b != nil {
			b.end(cause)
		}
	}
}

// end tells the waiters of a batch the outcome of an attempt to write it.
func (b *batch) end(err error) {
	select {
	case <-b.attempt.done:
	default:
		b.attempt.err = err
		close(b.attempt.done)
	}
}

// Wait waits until a record is durable. An error says that it is not, as far as is known, and why.
func (j *Journal) Wait(ctx context.Context, record uint64) error {
	j.mu.Lock()
	if record <= j.durable {
		j.mu.Unlock()
		return nil
	}
	if j.lost {
		defer j.mu.Unlock()
		return j.trouble
	}
	b := j.filling
	if j.writing != nil && record <= j.writing.last {
		b = j.writing
	}
	a := b.attempt
	j.kick()
	j.mu.Unlock()
	select {
	case <-a.done:
		return a.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Trouble returns the reason why nothing can become durable at present; nil: there is none.
func (j *Journal) Trouble() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.trouble
}

// Waiting returns the number of records that are not durable yet.
func (j *Journal) Waiting() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.appended - j.durable
}

// Stats returns the state of the journal.
func (j *Journal) Stats() schedapi.Journal {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := schedapi.Journal{Records: j.appended, Waiting: j.appended - j.durable, Bytes: j.bytes, Syncs: j.syncs, Lost: j.lost}
	oldest := j.writing
	if oldest == nil {
		oldest = j.filling
	}
	if len(oldest.codec.data) > 0 {
		s.Lag = time.Since(oldest.began)
	}
	if j.trouble != nil {
		s.Trouble = j.trouble.Error()
	}
	return s
}

// grown counts bytes that were written to files.
func (j *Journal) grown(bytes int) {
	j.mu.Lock()
	j.bytes += uint64(bytes)
	j.mu.Unlock()
}

// Close makes all records durable, and ends the journal. No record may be appended after it.
func (j *Journal) Close() error {
	close(j.closing)
	<-j.ended
	j.encoder.Close()
	if j.file != nil {
		if err := j.file.Close(); err != nil {
			return fmt.Errorf("journal: close %s: %w", j.name, err)
		}
	}
	return j.Trouble()
}

// write is the writer's goroutine.
func (j *Journal) write() {
	defer close(j.ended)
	idle := time.NewTimer(idleTime)
	defer idle.Stop()
	for ended := false; !ended; {
		select {
		case <-j.wake:
		case <-j.some:
			idle.Reset(idleTime)
			continue
		case <-idle.C:
		case <-j.closing:
			ended = true
		}
		j.flush(ended)
	}
}

// flush writes the records that have collected. If the disk refuses them, it tries again until it
// takes them, or the journal is closed.
func (j *Journal) flush(ended bool) {
	j.mu.Lock()
	b := j.filling
	if len(b.codec.data) == 0 || j.lost {
		j.mu.Unlock()
		return
	}
	j.filling, j.writing = newBatch(), b
	j.mu.Unlock()
	for {
		err := j.put(b)
		j.mu.Lock()
		if err == nil && j.trouble != nil && !j.lost {
			j.trouble = nil
			j.log.Info("the journal is written again")
		}
		if j.lost {
			j.mu.Unlock()
			return
		}
		if err == nil {
			j.durable, j.writing = b.last, nil
			b.end(nil)
			j.mu.Unlock()
			return
		}
		if j.trouble == nil {
			j.log.Error("the journal cannot be written: nothing is accepted until it can", "error", err)
		}
		j.trouble = err
		b.end(err)
		if ended || j.file == nil {
			j.giveUp(err)
			j.mu.Unlock()
			return
		}
		b.attempt = &attempt{done: make(chan struct{})}
		j.filling.end(err)
		j.filling.attempt = &attempt{done: make(chan struct{})}
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
// batches. After a failed sync nothing is known about the segment, so it is given up: file is nil.
func (j *Journal) put(b *batch) error {
	if err := j.putValues(&b.codec); err != nil {
		return err
	}
	if j.size >= int64(j.config.SegmentBytes) && j.size > int64(headBytes) {
		old := j.file
		if err := j.begin(); err != nil {
			return err
		}
		_ = old.Close() // All of it is durable.
	}
	j.buffer = appendBatch(j.buffer[:0], j.number, b.codec.data, j.encoder)
	if _, err := j.file.Write(j.buffer); err != nil {
		if cut := j.file.Truncate(j.size); cut != nil {
			j.abandon()
		}
		return fmt.Errorf("journal: write %s: %w: free space on the disk, or mend it", j.name, err)
	}
	began := time.Now()
	if err := j.file.Sync(); err != nil {
		j.abandon()
		return fmt.Errorf("journal: sync %s: %w: mend the disk, and start the scheduler again", j.name, err)
	}
	j.mu.Lock()
	j.syncs.Observe(time.Since(began))
	j.bytes += uint64(len(j.buffer))
	j.mu.Unlock()
	j.size += int64(len(j.buffer))
	j.number++
	if cap(j.buffer) > keptBuffer {
		j.buffer = nil
	}
	return nil
}

func (j *Journal) abandon() {
	_ = j.file.Close() // The error that led here says more.
	j.mu.Lock()
	j.file = nil
	j.mu.Unlock()
}

// putValues makes the long values of a batch durable, and writes their hashes into the records.
func (j *Journal) putValues(c *codec) error {
	made := false
	for i := range c.large {
		l := &c.large[i]
		hash := sha256.Sum256(l.value)
		copy(c.data[l.offset:], hash[:])
		if _, known := j.written[hash]; known {
			continue
		}
		if err := j.putValue(hex.EncodeToString(hash[:])+valueSuffix, l.value); err != nil {
			return err
		}
		j.written[hash], made = struct{}{}, true
		j.grown(len(l.value))
	}
	if !made {
		return nil
	}
	if err := j.config.Files.SyncNames(); err != nil {
		clear(j.written)
		return fmt.Errorf("journal: sync the directory: %w", err)
	}
	return nil
}

// putValue writes a value under another name first, so that a file with its name is whole.
func (j *Journal) putValue(name string, value []byte) error {
	const part = "value.part"
	file, err := j.config.Files.Append(part)
	if err != nil {
		return fmt.Errorf("journal: make %s: %w", part, err)
	}
	err = file.Truncate(0)
	if err == nil {
		_, err = file.Write(value)
	}
	if err == nil {
		err = file.Sync()
	}
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = j.config.Files.Rename(part, name)
	}
	if err != nil {
		return fmt.Errorf("journal: write %s: %w: free space on the disk, or mend it", name, err)
	}
	return nil
}
