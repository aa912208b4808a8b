package journal

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
)

// A snapshot is a file like a segment, with batches of rows in place of the records before it. The
// loop hands the rows over piece by piece, while it goes on, so each piece is of its own time. A
// row says how a thing is, or that it is gone, so the snapshot together with the log from its
// beginning on is the state: the log puts right what the rows have of other times.
//
// Its name is the number of the batch at which it began, which is the first one of a segment. It
// has that name only when all of it is durable, and so is the log up to the time of its last row.
// Its batches have numbers from 1 on, and name the places of all values of their rows. A mark is
// behind the last one.
const (
	snapshotSuffix = ".snapshot"
	// snapshotPart is the name of a snapshot that is not whole.
	snapshotPart = "next.snapshot.part"

	// snapshotBytes is the least size of the log since the last snapshot from which another one is
	// taken. Beyond it the log must have grown by the size of the last snapshot: so all snapshots
	// write no more than the log does, and the log is no larger than what is alive, or than this.
	// Sizes are those before compression, because a start takes its time for these: about a
	// million small tasks are 64 MiB, and are read within a few seconds.
	snapshotBytes = 64 << 20
	// snapshotRetry is the time after a snapshot that failed until the next one. Somebody must make
	// room on a full disk, which takes longer.
	snapshotRetry = time.Minute
	// snapshotSync is the number of bytes of a snapshot after which they are synced: so few that
	// the log, which is synced meanwhile, does not wait for them for long.
	snapshotSync = 8 << 20

	snapshotRemedy = "restore the directory from a copy, or begin a new cluster with an empty one: the log before the snapshot is not kept"
)

func snapshotName(first uint64) string { return fmt.Sprintf("%020d%s", first, snapshotSuffix) }

// Source hands over rows of a table, piece by piece, from a cursor on, which is 0 at the beginning.
// It returns the cursor of the next piece, and whether there is one.
type Source func(cursor uint64, put func(row any)) (next uint64, more bool)

// Snapshot is one that is being taken. Piece has the caller of Append; the other methods may be
// called by any goroutine.
type Snapshot struct {
	journal *Journal
	began   time.Time
	// The caller of Piece owns these.
	sources []Source
	cursor  uint64
	filling *batch
	ended   bool
	// whole has the batches that wait to be written. It is closed after the last one.
	whole chan *batch
	// taken is signalled when one of them is taken.
	taken chan struct{}
	// stop ends the snapshot at once. done is closed at its end, and err is why it has failed.
	stop func()
	done chan struct{}
	err  error

	// first is the number of the batch at which it begins; 0: that is not durable yet. before is
	// the size of the log before that. The journal's mutex guards them.
	first, before uint64
	// The goroutine of the snapshot owns these. places are those of the values that it names, and
	// copied the bytes of those that it has written.
	places map[hash]place
	values *valueFile
	made   []uint64 // files of values
	copied uint64
	rows   uint64
	// size is that of the file, and unpacked that of its records.
	size, unpacked uint64
}

// SnapshotDue reports whether it is time for a snapshot. It costs next to nothing.
func (j *Journal) SnapshotDue() bool { return j.due.Load() }

// stopShare is the share of the least size of the log from which a stop in good order takes a
// snapshot.
const stopShare = 64

// SnapshotAtStop reports whether a stop in good order should take a snapshot, if that is quick.
func (j *Journal) SnapshotAtStop() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.logged >= uint64(j.config.SnapshotBytes)/stopShare
}

// checkDue finds out whether a snapshot is due. The caller holds the mutex.
func (j *Journal) checkDue() {
	limit := max(uint64(j.config.SnapshotBytes), j.snapshots.unpacked)
	j.due.Store(j.snapshot == nil && !j.lost && j.trouble == nil && (j.logged >= limit || j.wasteful) && !time.Now().Before(j.snapshotAfter))
}

// Snapshot begins a snapshot of the sources. Call its Piece until that returns false. nil: not now,
// since another one is taken, or the disk is in trouble. It must be called where no record is
// missing: the rows must have all that was appended before.
func (j *Journal) Snapshot(at time.Time, sources ...Source) *Snapshot {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.snapshot != nil || j.trouble != nil || j.lost {
		return nil
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Snapshot{
		journal: j, began: time.Now(), sources: sources, filling: newBatch(),
		whole: make(chan *batch, 1), taken: make(chan struct{}, 1), stop: stop, done: make(chan struct{}), places: map[hash]place{},
	}
	appendAll(j, at, []Record{&SnapshotBegan{}})
	j.snapshot, j.filling.snapshot = s, s
	j.checkDue()
	if j.begun != nil {
		s.filling.append(at, j.begun)
	}
	go s.run(ctx)
	return s
}

// Piece takes one piece of the rows, and reports whether there may be more. It takes none while the
// disk has not taken those before.
func (s *Snapshot) Piece(at time.Time) (more bool) {
	if s.ended {
		return false
	}
	select {
	case <-s.done:
		s.ended = true
		return false
	default:
	}
	if len(s.whole) == cap(s.whole) {
		return true
	}
	if len(s.sources) > 0 {
		s.cursor, more = s.sources[0](s.cursor, func(row any) { s.filling.append(at, row) })
		if !more {
			s.sources, s.cursor = s.sources[1:], 0
		}
	}
	s.ended = len(s.sources) == 0
	if s.ended || s.filling.full() {
		s.journal.mu.Lock()
		s.filling.last = s.journal.appended
		s.journal.mu.Unlock()
		s.whole <- s.filling
		s.filling = newBatch()
	}
	if s.ended {
		close(s.whole)
	}
	return !s.ended
}

// Room waits until Piece takes rows again, or the snapshot has ended.
func (s *Snapshot) Room(ctx context.Context) {
	for len(s.whole) == cap(s.whole) {
		select {
		case <-s.taken:
		case <-s.done:
			return
		case <-ctx.Done():
			return
		}
	}
}

// Wait waits until the snapshot is durable, and all that it replaces is removed, or until it has
// failed.
func (s *Snapshot) Wait(ctx context.Context) error {
	select {
	case <-s.done:
		return s.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run is the goroutine of a snapshot.
func (s *Snapshot) run(ctx context.Context) {
	defer close(s.done)
	defer s.stop()
	j := s.journal
	s.err = s.write(ctx)
	if s.err == nil {
		s.complete()
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.snapshot = nil
	if s.err != nil {
		j.snapshotAfter = time.Now().Add(snapshotRetry)
		if ctx.Err() == nil && !errors.Is(s.err, ErrTaken) {
			j.log.Error("a snapshot of the journal failed: the journal grows on, and another one is tried later", "error", s.err, "after", snapshotRetry)
		}
	}
	j.checkDue()
}

// write writes the snapshot and makes it durable.
func (s *Snapshot) write(ctx context.Context) (err error) {
	files := s.journal.config.Files
	encoder, err := newEncoder()
	if err != nil {
		return err
	}
	defer encoder.Close()
	file, err := files.Append(snapshotPart)
	if err != nil {
		return fmt.Errorf("journal: make %s: %w", snapshotPart, err)
	}
	named := false
	defer func() {
		s.values.end()
		_ = file.Close() // It is durable, or of no use.
		if err == nil || named {
			return
		}
		// The disk may be full.
		_ = files.Remove(snapshotPart)
		for _, number := range s.made {
			_ = files.Remove(valuesName(number))
		}
	}()
	if err := file.Truncate(0); err != nil {
		return fmt.Errorf("journal: write %s: %w", snapshotPart, err)
	}
	head, seed := newHead()
	out := &output{file: file, buffer: head, seed: seed}
	for b, err := range s.batches(ctx) {
		if err == nil {
			err = s.put(ctx, out, b, encoder)
		}
		if err != nil {
			return err
		}
	}
	j := s.journal
	j.mu.Lock()
	first, until := s.first, j.durableBatch
	j.mu.Unlock()
	end := newBatch()
	end.append(time.Now(), &SnapshotEnded{Rows: s.rows, Until: until})
	if err := s.put(ctx, out, end, encoder); err != nil {
		return err
	}
	out.buffer = appendBatch(out.buffer, seed, out.number+1, []byte{formStopped})
	if err := out.write(true); err != nil {
		return err
	}
	s.size = uint64(out.size)
	if err := ctx.Err(); err != nil {
		return err
	}
	named = true
	err = files.Rename(snapshotPart, snapshotName(first))
	if err == nil {
		err = files.SyncNames()
	}
	if err != nil {
		return fmt.Errorf("journal: name %s: %w", snapshotName(first), err)
	}
	return nil
}

// batches returns the batches of the snapshot, each when the log is durable up to its time. Without
// that, a crash could leave rows of what the log does not have.
func (s *Snapshot) batches(ctx context.Context) func(yield func(*batch, error) bool) {
	return func(yield func(*batch, error) bool) {
		for {
			var b *batch
			select {
			case b = <-s.whole:
			case <-ctx.Done():
				yield(nil, ctx.Err())
				return
			}
			if b == nil {
				return
			}
			signal(s.taken)
			if !yield(b, s.journal.Wait(ctx, b.last)) {
				return
			}
		}
	}
}

// put writes a batch, after its values.
func (s *Snapshot) put(ctx context.Context, out *output, b *batch, encoder *zstd.Encoder) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b.prepare(encoder)
	v := s.journal.values
	if unknown := v.locate(b, s.places); len(unknown) > 0 {
		if !s.values.takes(s.journal.config.SegmentBytes) {
			s.values.end()
			var err error
			if s.values, err = v.newFile(); err != nil {
				return err
			}
			s.made = append(s.made, s.values.number)
		}
		fresh, err := s.values.add(unknown)
		if err != nil {
			return err
		}
		for _, p := range fresh {
			s.places[p.hash] = p.place
			s.copied += uint64(p.size)
		}
		b.placed = append(b.placed, fresh...)
	}
	s.rows += uint64(b.records)
	s.unpacked += uint64(len(b.codec.data))
	out.number++
	out.buffer = appendBatch(out.buffer, out.seed, out.number, b.body()...)
	return out.write(false)
}

// output is a file of batches that is written as a whole.
type output struct {
	file   File
	buffer []byte
	seed   uint32
	number uint64 // of the last batch
	size   int64
	// unsynced are the bytes since the last sync.
	unsynced int
}

// write writes what has collected. last makes all of it durable.
func (o *output) write(last bool) error {
	_, err := o.file.Write(o.buffer)
	o.size += int64(len(o.buffer))
	o.unsynced += len(o.buffer)
	if err == nil && (last || o.unsynced >= snapshotSync) {
		o.unsynced, err = 0, o.file.Sync()
	}
	if err != nil {
		return fmt.Errorf("journal: write %s: %w: free space on the disk, or mend it", snapshotPart, err)
	}
	if o.buffer = o.buffer[:0]; cap(o.buffer) > keptBuffer {
		o.buffer = nil
	}
	return nil
}

// complete removes what the snapshot replaces.
func (s *Snapshot) complete() {
	j := s.journal
	j.mu.Lock()
	valueBytes := sizeOf(s.places)
	j.snapshots = snapshots{
		count: j.snapshots.count + 1, at: time.Now(), took: time.Since(s.began), bytes: s.size + valueBytes, unpacked: s.unpacked + valueBytes,
	}
	j.logged -= s.before
	j.bytes += s.size + s.copied
	j.mu.Unlock()
	removed, err := j.clean(s.places)
	if err != nil {
		j.log.Warn("old files of the journal cannot be removed: the next snapshot tries it again", "error", err)
	}
	j.log.Info("a snapshot of the journal was taken", "file", snapshotName(s.first), "rows", s.rows, "bytes", s.size, "value_bytes", valueBytes,
		"after", time.Since(s.began).Round(time.Millisecond), "removed_bytes", removed)
}

// clean removes all that no start would read: files of before the newest snapshot, and files of
// values that neither it nor the log since names. kept are the places of the snapshot's values.
func (j *Journal) clean(kept map[hash]place) (removed uint64, err error) {
	files := j.config.Files
	l, err := arrange(files)
	if err != nil {
		return 0, err
	}
	names, err := files.List()
	if err != nil {
		return 0, fmt.Errorf("journal: list the files: %w", err)
	}
	sizes, total := map[string]uint64{}, uint64(0)
	for _, name := range names {
		if strings.HasSuffix(name, valuesSuffix) {
			if n, err := files.Size(name); err == nil {
				sizes[name] = uint64(n)
				total += uint64(n)
			}
		}
	}
	dead, live := j.values.retain(kept, sizes)
	var errs []error
	for _, name := range append(l.old, dead...) {
		n, _ := files.Size(name) // Of no consequence but for a figure.
		if err := files.Remove(name); err != nil {
			errs = append(errs, err)
			continue
		}
		removed += uint64(n)
		if _, ok := sizes[name]; ok {
			total -= uint64(n)
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.bytes -= min(j.bytes, removed)
	// One more snapshot, at once, empties the sparse files. It is the last one of a row.
	j.wasteful = !j.wasteful && total > 2*live+uint64(j.config.SnapshotBytes)
	return removed, errors.Join(errs...)
}

// tidy removes what an earlier start has left, if base is the newest snapshot. Without one, all
// other files may have their use.
func (j *Journal) tidy(base uint64) error {
	files := j.config.Files
	if base == 0 {
		if _, err := files.Size(snapshotPart); err != nil {
			return nil //nolint:nilerr // Nothing is left.
		}
		return files.Remove(snapshotPart)
	}
	// The name of the snapshot may not be durable, if its scheduler was killed just then.
	if err := files.SyncNames(); err != nil {
		return err
	}
	_, err := j.clean(j.values.places)
	return err
}

// totalBytes returns the size of the files of a journal.
func totalBytes(files Files) (total uint64, err error) {
	names, err := files.List()
	if err != nil {
		return 0, fmt.Errorf("journal: list the files: %w", err)
	}
	for _, name := range names {
		switch path.Ext(name) {
		case segmentSuffix, snapshotSuffix, valuesSuffix:
			n, err := files.Size(name)
			if err != nil {
				return 0, fmt.Errorf("journal: %s: %w", name, err)
			}
			total += uint64(n)
		}
	}
	return total, nil
}

// snapshotRead is what was read of a snapshot.
type snapshotRead struct {
	size       int64
	records    int
	valueBytes uint64
	unpacked   uint64
	ended      SnapshotEnded
}

// readSnapshot calls visit for the rows of the snapshot. Any damage is an error.
func (h *history) readSnapshot(visit func(at time.Time, r Record, batch uint64, offset int) error) error {
	h.file = snapshotName(h.base)
	err := h.rows(h.file, visit)
	h.snapshot.valueBytes, h.snapshot.unpacked, h.unpacked = sizeOf(h.places), h.unpacked, 0
	return err
}

func (h *history) rows(name string, visit func(at time.Time, r Record, batch uint64, offset int) error) error {
	size, err := h.files.Size(name)
	if err != nil {
		return fmt.Errorf("journal: read %s: %w", name, err)
	}
	h.snapshot.size = size
	part := func(offset, length int64) ([]byte, error) {
		if length > size-offset {
			return nil, damaged(name, int(offset), "the file ends at byte %d, before its mark", size)
		}
		data, err := h.files.ReadPart(name, offset, length)
		if err != nil {
			return nil, fmt.Errorf("journal: read %s: %w", name, err)
		}
		return data, nil
	}
	head, err := part(0, int64(headBytes))
	if err != nil {
		return err
	}
	start, seed, err := readHead(name, head, false)
	if err != nil {
		return err
	}
	ended := false
	for at, number := int64(start), uint64(1); ; number++ {
		head, err := part(at, batchHead)
		if err != nil {
			return err
		}
		_, length, err := batchHeadAt(head, seed)
		if err != nil {
			return damaged(name, int(at), "a batch is damaged")
		}
		data, err := part(at, int64(length))
		if err != nil {
			return err
		}
		body, found, _, err := batchAt(data, seed)
		switch {
		case err != nil:
			return damaged(name, int(at), "a batch is damaged")
		case found != number:
			return damaged(name, int(at), "batch %d is where %d should be", found, number)
		case body[0]&formMark != 0 && !ended:
			return damaged(name, int(at), "its last record is missing")
		case body[0]&formMark != 0:
			return nil
		}
		err = h.batch(name, int(at), body, func(t time.Time, r Record) error {
			if end, ok := r.(*SnapshotEnded); ok {
				h.snapshot.ended, ended = *end, true
			}
			h.snapshot.records++
			return visit(t, r, number, int(at))
		})
		if err != nil {
			return err
		}
		at += int64(length)
	}
}
