package journal

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

// A file of values has long values, one behind the other, and nothing else. A batch says where the
// values are that no batch before it has named. They are durable before the batch is written. Each
// start of the scheduler begins a file of its own, and so does an error of the disk.
//
// Format 1 of the journal had a file for each value, named by its hash.
const (
	valuesSuffix   = ".values"
	oldValueSuffix = ".value"
)

// place is the place of a value in the files of values.
type place struct {
	// file is the number of the file; 0: the value has a file of its own.
	file         uint64
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

// valueFile is the file that takes new values.
type valueFile struct {
	// file is nil if the next value begins a file. number is that of the last file.
	file   File
	number uint64
	size   int64
}

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
	p := h.places[wanted]
	var name string
	var value []byte
	var err error
	if p.file != 0 {
		name = valuesName(p.file)
		value, err = h.files.ReadPart(name, p.offset, p.size)
	} else {
		name = hex.EncodeToString(wanted[:]) + oldValueSuffix
		value, err = h.files.Read(name)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, damaged(name, int(p.offset), "the file is missing")
	case err != nil:
		return nil, damaged(name, int(p.offset), "%v", err)
	case sha256.Sum256(value) != wanted:
		return nil, damaged(name, int(p.offset), "a value of %d bytes is damaged", len(value))
	}
	h.places[wanted] = place{p.file, p.offset, int64(len(value))}
	h.loaded[wanted] = value
	return value, nil
}

// putValues makes the long values of a batch durable that are not yet, with one sync.
func (j *Journal) putValues(b *batch) error {
	v := &j.values
	if v.file != nil && v.size >= int64(j.config.SegmentBytes) {
		v.end()
	}
	start, fresh := v.size, []placed(nil)
	err := func() error {
		seen := map[hash]struct{}{}
		for i := range b.codec.large {
			l := &b.codec.large[i]
			_, known := j.places[l.hash]
			if _, twice := seen[l.hash]; known || twice {
				continue
			}
			if v.file == nil {
				var err error
				if v.file, err = j.config.Files.Append(valuesName(v.number + 1)); err != nil {
					return err
				}
				v.number++
			}
			if _, err := v.file.Write(l.value); err != nil {
				return err
			}
			seen[l.hash] = struct{}{}
			fresh = append(fresh, placed{l.hash, place{v.number, v.size, int64(len(l.value))}})
			v.size += int64(len(l.value))
		}
		if fresh == nil {
			return nil
		}
		err := j.sync(v.file)
		if err == nil && start == 0 {
			err = j.config.Files.SyncNames()
		}
		if err != nil {
			// Nothing is known about what the disk has of it, so the values go into another file.
			v.end()
		}
		return err
	}()
	if err != nil {
		if v.file != nil && v.file.Truncate(start) != nil {
			v.end()
		}
		if v.file == nil && start == 0 {
			_ = j.config.Files.Remove(valuesName(v.number)) // No batch names it.
		} else if v.file != nil {
			v.size = start
		}
		return fmt.Errorf("journal: write %s: %w: free space on the disk, or mend it", valuesName(v.number), err)
	}
	for _, p := range fresh {
		j.places[p.hash] = p.place
		j.grown(int(p.size))
	}
	b.placed = append(b.placed, fresh...)
	return nil
}

// end ends the file.
func (v *valueFile) end() {
	if v.file != nil {
		_ = v.file.Close() // All that counts in it is durable.
	}
	v.file, v.size = nil, 0
}
