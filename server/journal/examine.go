package journal

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Entry is a record with its place in a journal.
type Entry struct {
	At     time.Time
	Record Record
	// Batch is the number of its batch, which begins at a byte of a file.
	Batch  uint64
	File   string
	Offset int
	// Snapshot: it is a row of a snapshot.
	Snapshot bool
}

// Report says what a journal has.
type Report struct {
	// Begun is the last start of a scheduler; nil: there is none. Starts counts them.
	Begun  *Begun
	Starts int
	// Segments are the files of the log that were read. They have so many whole batches.
	Segments []SegmentReport
	Batches  uint64
	Records  int
	// Snapshot is the file that takes the place of the older log; nil: there is none.
	Snapshot *SegmentReport
	// First and Last are the times of records.
	First, Last time.Time
	// Values are the different long values, with ValueBytes together.
	Values     int
	ValueBytes uint64
	// Stopped: the scheduler stopped in good order. WasCut: Cut made it whole, and no scheduler has
	// written since. Otherwise a scheduler runs, or it has crashed.
	Stopped, WasCut bool
	// Torn is the end of the last segment if it is no whole batch; nil: all is whole. Such a batch
	// was being written, or it was damaged.
	Torn *DamageError
	// Damage is the first damage. Nothing behind it was read.
	Damage *DamageError
	// BehindFiles and BehindBytes are what is behind the damage or the torn end, in segments.
	BehindFiles int
	BehindBytes uint64
}

// Sound reports whether all that was acknowledged is there, as far as one can see.
func (r *Report) Sound() bool { return r.Damage == nil && r.Torn == nil }

// SegmentReport says what a segment has.
type SegmentReport struct {
	File    string
	Bytes   int
	Records int
}

// errReplaced says that a scheduler has removed what was about to be read.
var errReplaced = errors.New("journal: the scheduler has taken a snapshot meanwhile, and removed what it replaces: try again")

// Examine reads all of a journal, and calls visit for each record. It changes nothing. live says
// that a scheduler may be writing meanwhile: then a torn end is none. An error of visit ends it.
func Examine(files Files, live bool, visit func(Entry) error) (*Report, error) {
	report, _, err := examine(files, live, visit)
	return report, located(files, err)
}

func examine(files Files, live bool, visit func(Entry) error) (*Report, *history, error) {
	report := new(Report)
	l, err := arrange(files)
	if err != nil {
		return report, nil, err
	}
	h, err := newHistory(files)
	if err != nil {
		return report, nil, err
	}
	defer h.close()
	records := map[string]int{}
	err = h.read(func(at time.Time, r Record, batch uint64, offset int) error {
		if begun, ok := r.(*Begun); ok {
			if report.Begun == nil || report.Begun.Starts != begun.Starts { // A snapshot repeats it.
				report.Starts++
			}
			report.Begun = begun
		}
		if report.Records == 0 {
			report.First = at
		}
		report.Records, report.Last = report.Records+1, at
		e := Entry{at, r, batch, h.file, offset, h.file == snapshotName(h.base)}
		records[e.File]++
		return visit(e)
	})
	if live && err != nil {
		if again, changed := arrange(files); changed == nil && again.base != h.base {
			return report, h, errReplaced
		}
	}
	for i := range h.segments {
		s := &h.segments[i]
		report.Segments = append(report.Segments, SegmentReport{s.name, s.size, records[s.name]})
	}
	report.Batches, report.Values, report.ValueBytes = h.next-max(1, h.base), len(h.places), sizeOf(h.places)
	if h.base > 0 {
		report.Snapshot = &SegmentReport{snapshotName(h.base), int(h.snapshot.size), h.snapshot.records}
		report.Records -= h.snapshot.records
	}
	if errors.As(err, &report.Damage) {
		err = nil
	} else if n := h.torn(); n > 0 {
		report.Torn = &DamageError{File: h.tail().name, Offset: int64(h.tail().end), Cause: fmt.Sprintf("the last %d bytes are no whole batch", n)}
	}
	if live {
		report.Torn = nil
		if d := report.Damage; d != nil && !slices.Contains(l.names, d.File) {
			if _, err := files.ReadPart(d.File, 0, 0); err == nil {
				report.Damage = nil // The segment was begun meanwhile.
			}
		}
	}
	report.Stopped = report.Sound() && h.tail().mark == formStopped
	report.WasCut = report.Sound() && h.tail().mark&formCut != 0
	if !report.Sound() {
		for i, name := range l.names[max(0, len(h.segments)-1):] {
			data, read := files.Read(name)
			n := len(data)
			if i == 0 && len(h.segments) > 0 {
				n -= h.tail().end
			}
			if read == nil && n > 0 {
				report.BehindFiles, report.BehindBytes = report.BehindFiles+1, report.BehindBytes+uint64(n)
			}
		}
	}
	return report, h, err
}

// ErrNothingWhole is the error of Cut if it would keep nothing.
var ErrNothingWhole = errors.New("journal: nothing is whole before the damage: restore the directory from a copy, or remove it to begin a new cluster")

// ErrSnapshotNeeds is the error of Cut if a snapshot, or the part of the log that it needs, is
// damaged.
var ErrSnapshotNeeds = errors.New("journal: the damage is in the snapshot, or in the part of the log without which it is of no use: " + snapshotRemedy)

// Cut makes a damaged journal whole: it removes all that is behind the first damage, or a torn end.
// It keeps a copy of each segment that it changes or removes, under a name with the suffix, which
// it returns. A crash within Cut leaves the journal damaged, and Cut may be called again.
func Cut(files Files, suffix string) (copies []string, err error) {
	report, h, err := examine(files, false, func(Entry) error { return nil })
	if err != nil || report.Sound() {
		return nil, err
	}
	if h.next == 1 {
		return nil, ErrNothingWhole
	}
	if h.base > 0 && h.next <= max(h.snapshot.ended.Until, h.base) {
		return nil, ErrSnapshotNeeds
	}
	l, err := arrange(files)
	if err != nil {
		return nil, err
	}
	kept := len(h.segments) - 1
	for h.segments[kept].end == 0 {
		kept--
	}
	s := h.segments[kept]
	data, err := files.Read(s.name)
	if err != nil {
		return nil, fmt.Errorf("journal: read %s: %w", s.name, err)
	}
	if err := PutFile(files, s.name+suffix, data); err != nil {
		return nil, err
	}
	copies = append(copies, s.name+suffix)
	for i := len(l.names) - 1; i > kept; i-- {
		if err := files.Rename(l.names[i], l.names[i]+suffix); err != nil {
			return nil, fmt.Errorf("journal: rename %s: %w", l.names[i], err)
		}
		copies = append(copies, l.names[i]+suffix)
	}
	return copies, PutFile(files, s.name, appendBatch(data[:s.end:s.end], s.seed, h.next, []byte{formStopped | formCut}))
}
