package journal

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
)

// A file of values has long values, one behind the other, and nothing else. A batch says where the
// values are that no batch before it has named. They are durable before the batch is written. Each
// start of the scheduler begins a file of its own, and so does an error of the disk.
const valuesSuffix = ".values"

// place is the place of a value in the files of values.
type place struct {
	file         uint64 // its number
	offset, size int64
}

type placed struct {
	hash hash
	place
}

func (c *codec) placed(p *placed) {
	c.fixed(p.hash[:])
	whole(c, &p.file)
	whole(c, &p.offset)
	whole(c, &p.size)
}

func valuesName(number uint64) string { return fmt.Sprintf("%020d%s", number, valuesSuffix) }

// values knows the long values that are on the disk, for the writers of the log and of a snapshot.
type values struct {
	files Files

	mu sync.Mutex // guards the rest
	// places are those of all values. named are those that batches of the log have named since the
	// last snapshot began: no batch before that will be read.
	places, named map[hash]place
	// last is the number of the last file. open are the files that take values.
	last uint64
	open map[uint64]struct{}
	// sparse are the files in which most values are dead: a value of theirs that is needed goes
	// into another file.
	sparse map[uint64]struct{}
}

func newValues(files Files, places map[hash]place, last uint64) *values {
	return &values{files: files, places: places, named: places, last: last, open: map[uint64]struct{}{}, sparse: map[uint64]struct{}{}}
}

// nameAnew makes the log name all values anew.
func (v *values) nameAnew() {
	v.mu.Lock()
	v.named = map[hash]place{}
	v.mu.Unlock()
}

// locate names the values of a batch that are on the disk, unless they are in named already; nil:
// those that the log has named. It returns the values that have to be written.
func (v *values) locate(b *batch, named map[hash]place) (unknown []*large) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if named == nil {
		named = v.named
	}
	seen := map[hash]struct{}{}
	for i := range b.codec.large {
		l := &b.codec.large[i]
		_, known := named[l.hash]
		if _, twice := seen[l.hash]; known || twice {
			continue
		}
		seen[l.hash] = struct{}{}
		p, known := v.places[l.hash]
		if _, sparse := v.sparse[p.file]; !known || sparse {
			unknown = append(unknown, l)
			continue
		}
		named[l.hash] = p
		b.placed = append(b.placed, placed{l.hash, p})
	}
	return unknown
}

// name names values that have been made durable.
func (v *values) name(b *batch, fresh []placed) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, p := range fresh {
		v.places[p.hash], v.named[p.hash] = p.place, p.place
	}
	b.placed = append(b.placed, fresh...)
}

// retain drops all values but those in kept and those that the log has named, and returns the files
// that have none of these, and the size of the values in the other ones. sizes are those of files.
func (v *values) retain(kept map[hash]place, sizes map[string]uint64) (dead []string, live uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	used := map[uint64]uint64{}
	for _, p := range kept { // order-free: a sum
		used[p.file] += uint64(p.size)
	}
	for h, p := range v.named { // order-free: a sum
		if kept[h] != p {
			used[p.file] += uint64(p.size)
		}
	}
	v.places = maps.Clone(v.named)
	maps.Copy(v.places, kept)
	v.sparse = map[uint64]struct{}{}
	for _, name := range slices.Sorted(maps.Keys(sizes)) {
		number, err := numberOf(strings.TrimSuffix(name, valuesSuffix))
		_, open := v.open[number]
		switch {
		case err != nil || open: // It is none of the journal, or it takes values.
		case used[number] == 0:
			dead = append(dead, name)
		case used[number] < sizes[name]/2:
			v.sparse[number] = struct{}{}
		}
	}
	for _, bytes := range used { // order-free: a sum
		live += bytes
	}
	return dead, live
}

// newFile makes a file of values.
func (v *values) newFile() (*valueFile, error) {
	v.mu.Lock()
	v.last++
	f := &valueFile{values: v, number: v.last}
	v.open[f.number] = struct{}{}
	v.mu.Unlock()
	var err error
	if f.file, err = v.files.Append(valuesName(f.number)); err != nil {
		f.end()
		return nil, fmt.Errorf("journal: make %s: %w: free space on the disk, or mend it", valuesName(f.number), err)
	}
	return f, nil
}

// valueFile is a file that takes values.
type valueFile struct {
	values *values
	number uint64
	// file is nil if it takes none any more.
	file File
	size int64
}

// add makes values durable, with one sync. After an error the file may take no more values.
func (f *valueFile) add(list []*large) (fresh []placed, err error) {
	start := f.size
	for _, l := range list {
		if _, err = f.file.Write(l.value); err != nil {
			break
		}
		fresh = append(fresh, placed{l.hash, place{f.number, f.size, int64(len(l.value))}})
		f.size += int64(len(l.value))
	}
	written := err == nil
	if written {
		err = f.file.Sync()
	}
	if err == nil && start == 0 {
		err = f.values.files.SyncNames()
	}
	if err == nil {
		return fresh, nil
	}
	// After a failed sync nothing is known about what the disk has of it.
	if f.size = start; f.file.Truncate(start) != nil || written || start == 0 {
		f.end()
	}
	if start == 0 {
		_ = f.values.files.Remove(valuesName(f.number)) // No batch names it.
	}
	return nil, fmt.Errorf("journal: write %s: %w: free space on the disk, or mend it", valuesName(f.number), err)
}

// end ends the file.
func (f *valueFile) end() {
	if f == nil {
		return
	}
	if f.file != nil {
		_ = f.file.Close() // All that counts in it is durable.
		f.file = nil
	}
	f.values.mu.Lock()
	delete(f.values.open, f.number)
	f.values.mu.Unlock()
}

// takes reports whether a file takes another value.
func (f *valueFile) takes(limit int) bool { return f != nil && f.file != nil && f.size < int64(limit) }

// lastValues returns the number of the last file of values.
func lastValues(files Files) (last uint64, err error) {
	names, err := files.List()
	if err != nil {
		return 0, fmt.Errorf("journal: list the files: %w", err)
	}
	for _, name := range names {
		if text, ok := strings.CutSuffix(name, valuesSuffix); ok {
			number, err := numberOf(text)
			if err != nil {
				return 0, fmt.Errorf("journal: %s: its name is not the number of a file of values: move it away", name)
			}
			last = max(last, number)
		}
	}
	return last, nil
}

// load reads a long value.
func (h *history) load(wanted hash) ([]byte, error) {
	if value, ok := h.loaded[wanted]; ok {
		return value, nil
	}
	p, ok := h.places[wanted]
	if !ok {
		return nil, fmt.Errorf("no batch says where the value %x is", wanted)
	}
	name := valuesName(p.file)
	value, err := h.files.ReadPart(name, p.offset, p.size)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, damaged(name, int(p.offset), "the file is missing")
	case err != nil:
		return nil, damaged(name, int(p.offset), "%v", err)
	case sha256.Sum256(value) != wanted:
		return nil, damaged(name, int(p.offset), "a value of %d bytes is damaged", len(value))
	}
	h.loaded[wanted] = value
	return value, nil
}

// putValues makes the long values of a batch durable that are not yet, with one sync.
func (j *Journal) putValues(b *batch) error {
	if b.snapshot != nil && !b.anew {
		j.values.nameAnew()
		b.anew = true
	}
	unknown := j.values.locate(b, nil)
	if len(unknown) == 0 {
		return nil
	}
	if !j.valueFile.takes(j.config.SegmentBytes) {
		j.valueFile.end()
		var err error
		if j.valueFile, err = j.values.newFile(); err != nil {
			return err
		}
	}
	fresh, err := j.valueFile.add(unknown)
	if err != nil {
		return err
	}
	j.values.name(b, fresh)
	for _, p := range fresh {
		j.grown(int(p.size))
	}
	return nil
}
