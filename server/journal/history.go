package journal

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
)

// history reads a journal. It changes no file.
type history struct {
	files   Files
	decoder *zstd.Decoder
	// next is the number of the next batch.
	next uint64
	// places are those of the values. loaded has the long values of one batch.
	places map[hash]place
	loaded map[hash][]byte
	// base is the number of the snapshot that was read; 0: none. snapshot says what it has.
	base     uint64
	snapshot snapshotRead
	// file is the one that is being read. unpacked is the size of the records of the log.
	file     string
	unpacked uint64
	// segments are those that were read. body is the last batch of the last one.
	segments []segment
	body     []byte
	// time is that of the last record.
	time time.Time
}

func newHistory(files Files) (*history, error) {
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	return &history{files: files, decoder: decoder, next: 1, places: map[hash]place{}}, nil
}

func (h *history) close() { h.decoder.Close() }

// segmentName returns the name of the segment whose first batch has this number.
func segmentName(first uint64) string { return fmt.Sprintf("%020d%s", first, segmentSuffix) }

// numberOf returns the number that is a name.
func numberOf(name string) (uint64, error) {
	if len(name) != 20 {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseUint(name, 10, 64)
}

// layout is what a journal has of segments and snapshots.
type layout struct {
	// base is the number of the newest snapshot, which is that of the first batch behind its
	// beginning; 0: there is none.
	base uint64
	// names are the segments that count, in order, and firsts the numbers of their first batches.
	names  []string
	firsts []uint64
	// old are the segments and snapshots that do not count, since a newer snapshot has all of them,
	// and what is left of snapshots that did not become whole.
	old []string
}

// arrange finds out what a journal has.
func arrange(files Files) (l layout, err error) {
	all, err := files.List()
	if err != nil {
		return l, fmt.Errorf("journal: list the files: %w", err)
	}
	slices.Sort(all)
	for _, name := range all {
		text, ok := strings.CutSuffix(name, snapshotSuffix)
		if !ok {
			continue
		}
		number, err := numberOf(text)
		if err != nil || number == 0 {
			return l, fmt.Errorf("journal: %s: its name is not the number of a batch: move it away", name)
		}
		if l.base > 0 {
			l.old = append(l.old, snapshotName(l.base))
		}
		l.base = number
	}
	for _, name := range all {
		text, ok := strings.CutSuffix(name, segmentSuffix)
		if name == snapshotPart {
			l.old = append(l.old, name)
		}
		if !ok {
			continue
		}
		first, err := numberOf(text)
		switch {
		case err != nil || first == 0:
			return l, fmt.Errorf("journal: %s: its name is not the number of a batch: move it away", name)
		case first < l.base:
			l.old = append(l.old, name)
		default:
			l.names, l.firsts = append(l.names, name), append(l.firsts, first)
		}
	}
	return l, nil
}

// errEnough ends the reading of a journal.
var errEnough = errors.New("enough")

// read calls visit for all records in order, those of the snapshot first, with the time at which
// each was appended, the number of its batch and the byte of the file at which that begins.
// h.segments then has the segments before that one. An error of visit ends it.
func (h *history) read(visit func(at time.Time, r Record, batch uint64, offset int) error) error {
	err := h.readAll(visit)
	var damage *DamageError
	if errors.As(err, &damage) && h.base > 0 && h.next <= max(h.base, h.snapshot.ended.Until) {
		damage.Remedy = snapshotRemedy
	}
	return err
}

func (h *history) readAll(visit func(at time.Time, r Record, batch uint64, offset int) error) error {
	l, err := arrange(h.files)
	if err != nil {
		return err
	}
	if h.base = l.base; h.base > 0 {
		h.next = h.base
		if err := h.readSnapshot(visit); err != nil {
			return err
		}
	}
	for i, name := range l.names {
		h.file = name
		if l.firsts[i] != h.next {
			return damaged(segmentName(h.next), 0, "the segment is missing")
		}
		after := uint64(0)
		if i < len(l.names)-1 {
			after = l.firsts[i+1]
		}
		data, err := h.files.Read(name)
		if err != nil {
			return fmt.Errorf("journal: read %s: %w", name, err)
		}
		s, next, err := readSegment(name, data, h.next, after, func(number uint64, offset int, body []byte) error {
			h.body = body
			return h.batch(name, offset, body, func(at time.Time, r Record) error { return visit(at, r, number, offset) })
		})
		h.segments, h.next = append(h.segments, s), next
		if err != nil {
			return err
		}
		if next < after || after == 0 && s.mark == formContinued {
			return damaged(segmentName(next), 0, "the segment is missing")
		}
	}
	if h.base > 0 && h.next <= h.snapshot.ended.Until {
		return h.behind()
	}
	return nil
}

// behind returns the error of a log that ends before the end of its snapshot.
func (h *history) behind() error {
	name, at := segmentName(h.base), 0
	if s := h.tail(); s.name != "" {
		name, at = s.name, s.end
	}
	return &DamageError{File: name, Offset: int64(at), Cause: fmt.Sprintf(
		"batch %d is missing, and %s needs the batches until %d", h.next, snapshotName(h.base), h.snapshot.ended.Until)}
}

// batch calls visit for the records of a batch.
func (h *history) batch(name string, offset int, body []byte, visit func(time.Time, Record) error) error {
	h.loaded = map[hash][]byte{}
	data, err := unpack(body, h.decoder, h.places)
	h.unpacked += uint64(len(data))
	c := codec{reading: true, data: data, err: err, load: h.load}
	for c.err == nil && len(c.data) > 0 {
		var nanos int64
		whole(&c, &nanos)
		record := c.code(nil)
		if c.err != nil {
			break
		}
		h.time = time.Unix(0, nanos)
		if err := visit(h.time, record); errors.Is(err, errEnough) {
			return err
		} else if err != nil {
			return fmt.Errorf("journal: %s: at byte %d: %w", name, offset, err)
		}
	}
	var damage *DamageError
	if c.err != nil && !errors.As(c.err, &damage) {
		return damaged(name, offset, "%v", c.err)
	}
	return c.err
}

// tail returns the segment that was read last.
func (h *history) tail() segment {
	if len(h.segments) == 0 {
		return segment{}
	}
	return h.segments[len(h.segments)-1]
}

// torn returns the bytes at the end of the journal that are no whole batch.
func (h *history) torn() int {
	if s := h.tail(); s.mark == 0 {
		return s.size - s.end
	}
	return 0
}

// logged returns the size of the records of the log, with the values that it names and the snapshot
// does not.
func (h *history) logged() uint64 { return h.unpacked + sizeOf(h.places) - h.snapshot.valueBytes }

// sizeOf returns the bytes of values.
func sizeOf(places map[hash]place) (bytes uint64) {
	for _, p := range places { // order-free: a sum
		bytes += uint64(p.size)
	}
	return bytes
}

// Identify returns the first record of a journal, which says to which cluster it belongs; nil: the
// journal is empty.
func Identify(files Files) (*Begun, error) {
	h, err := newHistory(files)
	if err != nil {
		return nil, err
	}
	defer h.close()
	var begun *Begun
	err = h.read(func(_ time.Time, r Record, _ uint64, _ int) error {
		begun, _ = r.(*Begun)
		return errEnough
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return begun, located(files, err)
}

// startsGap bounds the gap between the numbers of two starts. At most 2^20 starts have numbers of
// attempts of their own.
const startsGap = 64

// apart makes a reader of records see the starts under numbers that are higher by a random gap. The
// next start of the scheduler then gets a number that it would probably not get from an older copy
// of the directory, so what is left of the time that the copy does not know is not mistaken for its
// own.
func apart(gap uint64, apply func(time.Time, Record) error) func(time.Time, Record, uint64, int) error {
	return func(at time.Time, r Record, _ uint64, _ int) error {
		switch r := r.(type) {
		case *Begun:
			r.Starts += gap
		case *SnapshotBegan, *SnapshotEnded:
			return nil // They are no facts.
		}
		return apply(at, r)
	}
}
