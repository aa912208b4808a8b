// Package journal is an Adapter: it keeps the facts of the scheduler on disk, so that the next
// start of the scheduler goes on from there.
//
// A journal is a directory with segments, which are files of batches of records, with a snapshot,
// which takes the place of older segments, and with files of long values. Records are appended in
// the order in which the machine saw the events. One goroutine writes all records that have
// collected as one batch and makes it durable; those that wait for any of them then go on (group
// commit). ADRs 27, 29 and 30 have the reasons.
package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
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
	// fullBatch is the size of the collected records from which they are written at once, and
	// fullValues that of their long values.
	fullBatch  = 1 << 20
	fullValues = 16 << 20
	// waitingBytes bounds the records that wait while a disk refuses them. Beyond it the journal
	// gives up.
	waitingBytes = 256 << 20
	// keptBuffer bounds the buffers that are kept for the next batch.
	keptBuffer = 4 << 20

	segmentSuffix = ".log"
)

// ErrTaken is the error of Files that another scheduler has taken over. It is no fault of a disk,
// and this scheduler writes nothing any more.
var ErrTaken = errors.New("another scheduler has the journal now")

// Config sets up a journal.
type Config struct {
	Files Files
	Log   *slog.Logger
	// SegmentBytes is the size from which a new segment is begun. 0: 64 MiB.
	SegmentBytes int
	// SnapshotBytes is the least size of the log from which a snapshot is due. 0: 64 MiB.
	SnapshotBytes int
	// RetryTime is the time between two attempts to write to a disk that refuses. 0: 1 s.
	RetryTime time.Duration
	// Random draws the gaps between the numbers of starts; nil: rand.Uint64.
	Random func() uint64
}

// Journal appends records. Append has one caller at a time; the other methods may be called by any
// goroutine.
type Journal struct {
	config  Config
	log     *slog.Logger
	encoder *zstd.Encoder
	// wake wakes the writer's goroutine, and full the preparer's, when a batch is large enough to
	// be written at once. ended and prepared are closed at the ends of the two.
	wake     chan struct{}
	full     chan struct{}
	closing  chan struct{}
	ended    chan struct{}
	prepared chan struct{}

	mu sync.Mutex // guards the fields up to the writer's
	// filling takes the records that are appended; writing is the batch that is on its way to the
	// disk, or nil; next is the full batch between them, which is prepared meanwhile, or nil.
	filling, next, writing *batch
	// spare has the buffers of a batch that was written, for another one.
	spare buffers
	// idle wakes the writer if nobody waits for the records that have collected. armed means that
	// it runs: setting it for each batch would wake threads.
	idle         *time.Timer
	armed        bool
	appended     uint64 // records so far
	durable      uint64 // records so far that are durable
	trouble      error  // of the last attempt to write; nil: none
	lost         bool   // no further record is taken
	bytes        uint64 // in files
	syncs        sched.Histogram
	durableBatch uint64 // number of the last batch that is durable
	// snapshot is the one that is being taken; nil: none. No other one begins before snapshotAfter.
	snapshot      *Snapshot
	snapshotAfter time.Time
	snapshots     snapshots
	// logged is the size of the records of the log since the last snapshot began, with long values.
	// A start must read all of them, however well they were compressed. wasteful means that files
	// of values have much that is dead.
	logged   uint64
	wasteful bool
	begun    *Begun // the last one

	due    atomic.Bool // a snapshot is due
	values *values     // it has its own lock

	// The writer's goroutine owns the remaining fields. file is nil until the first batch of this
	// start is written, and before is the segment before it.
	file   File
	name   string
	seed   uint32
	size   int64
	before segment
	// carried is the last batch of the segment before if that may not be durable: it was read from
	// the memory of the system. The first segment of this start begins with it.
	carried []byte
	number  uint64 // of the next batch
	first   uint64 // the number of the first batch of the segment
	buffer  []byte
	// valueFile takes the long values; nil: the next one begins a file.
	valueFile *valueFile
	// abandoned means that a sync has failed: nothing is known about the segment.
	abandoned bool
}

// snapshots says which snapshots were taken.
type snapshots struct {
	count uint64 // in this start
	at    time.Time
	took  time.Duration
	// bytes is the size of the last one, with the values that it names, and unpacked that of its
	// rows, with these.
	bytes, unpacked uint64
}

// Open reads a journal and calls apply for each record in order, with the time at which it was
// appended. Then it is ready for further records. It writes nothing before the first of them. The
// end of a batch that was being written when the scheduler ended is left out, with a warning. Any
// other damage is an error. A Begun has a higher number than was recorded.
func Open(config Config, apply func(time.Time, Record) error) (*Journal, error) {
	if config.SegmentBytes == 0 {
		config.SegmentBytes = segmentBytes
	}
	if config.SnapshotBytes == 0 {
		config.SnapshotBytes = snapshotBytes
	}
	if config.RetryTime == 0 {
		config.RetryTime = retryTime
	}
	if config.Random == nil {
		config.Random = rand.Uint64
	}
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	encoder, err := newEncoder()
	if err != nil {
		return nil, err
	}
	j := &Journal{
		config: config, log: config.Log, encoder: encoder,
		wake: make(chan struct{}, 1), full: make(chan struct{}, 1), closing: make(chan struct{}), ended: make(chan struct{}), prepared: make(chan struct{}),
		filling: newBatch(), idle: time.NewTimer(idleTime), armed: true,
	}
	if err := j.replay(apply); err != nil {
		encoder.Close()
		return nil, located(config.Files, err)
	}
	go j.write()
	go j.prepare()
	return j, nil
}

// replay applies all records.
func (j *Journal) replay(apply func(time.Time, Record) error) error {
	h, err := newHistory(j.config.Files)
	if err != nil {
		return err
	}
	defer h.close()
	if err := h.read(apart(j.config.Random()%startsGap, func(at time.Time, r Record) error {
		if begun, ok := r.(*Begun); ok {
			j.begun = begun
		}
		return apply(at, r)
	})); err != nil {
		return err
	}
	last, err := lastValues(j.config.Files)
	if err != nil {
		return err
	}
	j.values = newValues(j.config.Files, h.places, last)
	j.number, j.durableBatch, j.before, j.logged = h.next, h.next-1, h.tail(), h.logged()
	j.snapshots.bytes = uint64(h.snapshot.size) + h.snapshot.valueBytes
	j.snapshots.unpacked = h.snapshot.unpacked + h.snapshot.valueBytes
	if err := j.tidy(h.base); err != nil {
		j.log.Warn("old files of the journal cannot be removed: the next snapshot tries it again", "error", err)
	}
	if j.bytes, err = totalBytes(j.config.Files); err != nil {
		return err
	}
	j.checkDue()
	if s := j.before; s.mark == 0 && s.last > 0 {
		j.carried = bytes.Clone(h.body)
	}
	if n := h.torn(); n > 0 {
		j.log.Warn("the end of the journal is not whole, and is left out: if the scheduler was ended while it wrote that, nobody was told that it is kept; "+
			"if the disk or a program has damaged it, what was accepted last is lost",
			"file", j.before.name, "byte", j.before.end, "bytes", n, "records_until", h.time)
	}
	return nil
}

// Append adds a record, which the machine has just seen, and returns its number. It neither waits
// nor writes. The record may be changed after that, but not its arguments and functions.
func (j *Journal) Append(at time.Time, r Record) uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	if begun, ok := r.(*Begun); ok {
		again := *begun
		j.begun = &again
	}
	return appendAll(j, at, []Record{r})
}

// AppendAll is Append for records that become durable together: after a crash, all of them are
// there, or none. It returns the number of the last one.
func (j *Journal) AppendAll(at time.Time, rows []sched.Row) uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return appendAll(j, at, rows)
}

// appendAll is AppendAll for a caller that holds the mutex.
func appendAll[R any](j *Journal, at time.Time, rows []R) uint64 {
	j.appended += uint64(len(rows))
	if j.lost {
		return j.appended
	}
	b := j.filling
	if len(b.codec.data) == 0 {
		b.began = time.Now()
		if !j.armed {
			j.armed = true
			j.idle.Reset(idleTime)
		}
	}
	for _, r := range rows {
		b.append(at, r)
	}
	b.last = j.appended
	if n := len(b.codec.data); b.full() {
		j.kick()
		signal(j.full)
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
	if errors.Is(cause, ErrTaken) {
		j.log.Info("another scheduler has the journal now: this one writes nothing more")
	} else {
		j.log.Error("the journal is given up: nothing is accepted any more; start the scheduler again when the disk works", "error", cause)
	}
	for _, b := range j.batches() {
		b.end(cause)
	}
}

// batches returns all batches that are not durable, in order.
func (j *Journal) batches() []*batch {
	return slices.DeleteFunc([]*batch{j.writing, j.next, j.filling}, func(b *batch) bool { return b == nil })
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
	a := j.filling.attempt
	for _, b := range j.batches() {
		if record <= b.last {
			a = b.attempt
			break
		}
	}
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
	s := schedapi.Journal{
		Records: j.appended, Waiting: j.appended - j.durable, Bytes: j.bytes, Syncs: j.syncs, Lost: j.lost, Logged: j.logged,
		Snapshots: j.snapshots.count, SnapshotBytes: j.snapshots.bytes, SnapshotAt: j.snapshots.at, SnapshotTook: j.snapshots.took,
	}
	if oldest := j.batches()[0]; len(oldest.codec.data) > 0 {
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

// Close makes all records durable, and ends the journal. No record may be appended after it. A
// snapshot that is being taken is given up.
func (j *Journal) Close() error {
	j.mu.Lock()
	s := j.snapshot
	j.mu.Unlock()
	if s != nil {
		s.stop()
		<-s.done
	}
	close(j.closing)
	<-j.ended
	<-j.prepared
	j.encoder.Close()
	j.valueFile.end()
	trouble := j.Trouble()
	if j.file == nil {
		return trouble
	}
	if trouble == nil {
		j.mark(j.file, j.segment(), j.number, formStopped)
	}
	if err := j.file.Close(); err != nil {
		return fmt.Errorf("journal: close %s: %w", j.name, err)
	}
	return trouble
}
