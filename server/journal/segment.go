package journal

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/klauspost/compress/zstd"
)

// A segment is a file of batches. It begins with a head:
//
//	8 bytes  "MILLJRNL"
//	4 bytes  number of the format
//	8 bytes  salt: random
//	4 bytes  CRC-32C of the 20 bytes before
//
// and each batch is, with numbers in little endian:
//
//	4 bytes  length of the body
//	8 bytes  number of the batch; numbers count from 1 through all segments
//	4 bytes  CRC-32C of the salt and the body
//	4 bytes  CRC-32C of the salt and the 16 bytes before
//	1 byte   form of the body
//	n bytes  places of values, if the form says so, and the records
//
// The length counts the byte of the form. The head has a checksum of its own, so that a wrong
// length cannot make the batches behind it look like a part of this one. Because of the salt, no
// argument of a task can contain what looks like a batch of its segment.
//
// A mark ends a segment whose last batch is durable. It has the number of the next batch. A segment
// without a mark was being written when the scheduler ended. Bytes behind a mark do not count, nor
// do batches that the next segment has, too.
const (
	magic = "MILLJRNL"
	// formatVersion is the number of the format of segments, snapshots and records. The program
	// reads no other one. No released version wrote 1, 2 or 3: these numbers are never used again.
	formatVersion = 4
	saltAt        = len(magic) + 4
	headBytes     = saltAt + 8 + 4
	batchHead     = 20
	// smallBody is the length up to which records are not compressed: a disk writes whole blocks of
	// this size, and compressing fewer bytes would take longer than writing them.
	smallBody = 4096

	// The bits of a form. Each mark has a body of one byte.
	formCompressed = 1 << 0 // the records are compressed by zstd
	formValues     = 1 << 1 // places of values are before the records
	formStopped    = 1 << 2 // a mark: the scheduler stopped in good order
	formContinued  = 1 << 3 // a mark: another segment follows
	formCut        = 1 << 4 // beside formStopped: the end was cut off, and the scheduler did not stop
	formMark       = formStopped | formContinued
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// newHead returns the head of a new segment, and the seed of the checksums in it.
func newHead() (head []byte, seed uint32) {
	head = binary.LittleEndian.AppendUint32([]byte(magic), formatVersion)
	head = append(head, make([]byte, 8)...)
	_, _ = rand.Read(head[saltAt:]) // It never fails.
	seed = crc32.Checksum(head[saltAt:], castagnoli)
	return binary.LittleEndian.AppendUint32(head, crc32.Checksum(head, castagnoli)), seed
}

// appendBatch appends the batch that has the parts as its body.
func appendBatch(to []byte, seed uint32, number uint64, body ...[]byte) []byte {
	start := len(to)
	to = append(to, make([]byte, batchHead)...)
	for _, part := range body {
		to = append(to, part...)
	}
	head, whole := to[start:start+batchHead], to[start+batchHead:]
	binary.LittleEndian.PutUint32(head, uint32(len(whole)))
	binary.LittleEndian.PutUint64(head[4:], number)
	binary.LittleEndian.PutUint32(head[12:], crc32.Update(seed, castagnoli, whole))
	binary.LittleEndian.PutUint32(head[16:], crc32.Update(seed, castagnoli, head[:16]))
	return to
}

// errBadBatch says that no whole batch is at a place of a segment.
var errBadBatch = errors.New("no whole batch")

// batchAt returns the body of the batch at the beginning of data, its number, and the bytes that it
// takes.
func batchAt(data []byte, seed uint32) (body []byte, number uint64, size int, err error) {
	number, size, err = batchHeadAt(data, seed)
	if err != nil || size > len(data) {
		return nil, number, size, errBadBatch
	}
	body = data[batchHead:size]
	if crc32.Update(seed, castagnoli, body) != binary.LittleEndian.Uint32(data[12:]) {
		return nil, number, size, errBadBatch
	}
	return body, number, size, nil
}

// batchHeadAt reads the head of a batch alone.
func batchHeadAt(data []byte, seed uint32) (number uint64, size int, err error) {
	if len(data) < batchHead || crc32.Update(seed, castagnoli, data[:16]) != binary.LittleEndian.Uint32(data[16:]) {
		return 0, 0, errBadBatch
	}
	length := binary.LittleEndian.Uint32(data)
	if length == 0 {
		return 0, 0, errBadBatch
	}
	return binary.LittleEndian.Uint64(data[4:]), batchHead + int(length), nil
}

// hasBatchAfter reports whether a whole batch with a higher number begins anywhere in data. Then
// the bytes before it were durable, and are damaged.
func hasBatchAfter(data []byte, seed uint32, number uint64) bool {
	for at := range data {
		if n, _, err := batchHeadAt(data[at:], seed); err == nil && n > number {
			if _, _, _, err := batchAt(data[at:], seed); err == nil {
				return true
			}
		}
	}
	return false
}

// DamageError says what in a journal cannot be read.
type DamageError struct {
	// File is the damaged file, or one that is missing; Offset is a byte of it.
	File   string
	Offset int64
	Cause  string
	// Remedy says what to do; empty: DamageRemedy.
	Remedy string
}

// DamageRemedy says what to do about damage.
const DamageRemedy = "restore the directory from a copy, or give up what was accepted after that: \"millrace journal check\" tells how much is whole, " +
	"and \"millrace journal cut\" removes the rest"

func (e *DamageError) Error() string {
	return fmt.Sprintf("journal: %s: at byte %d: %s: the disk or a program has damaged it: %s", e.File, e.Offset, e.Cause, cmp.Or(e.Remedy, DamageRemedy))
}

func damaged(name string, offset int, format string, args ...any) error {
	return &DamageError{File: name, Offset: int64(offset), Cause: fmt.Sprintf(format, args...)}
}

// segment is what was read of a segment.
type segment struct {
	name string
	seed uint32
	// end is the length of the whole batches, and last the offset of the last one of them; 0: there
	// is none. size is the length of the file.
	end, last, size int
	// mark is the form of the mark behind them; 0: there is none.
	mark byte
}

// readHead returns the length of a segment's head, which is 0 if the scheduler was ended while it
// made the segment, and the seed of the checksums.
func readHead(name string, data []byte, last bool) (size int, seed uint32, err error) {
	if last && len(data) <= headBytes && (len(data) < saltAt || len(bytes.Trim(data, "\x00")) == 0) {
		return 0, 0, nil
	}
	if len(data) < saltAt || string(data[:len(magic)]) != magic {
		return 0, 0, damaged(name, 0, "the head is missing")
	}
	switch version := binary.LittleEndian.Uint32(data[len(magic):]); {
	case version > 0 && version < formatVersion:
		return 0, 0, fmt.Errorf("journal: %s has format %d, and this program reads format %d: a version from before the record of facts was complete wrote it: "+
			"finish its work with that version, then begin a new directory", name, version, formatVersion)
	case version > formatVersion:
		return 0, 0, fmt.Errorf("journal: %s has format %d, and this program reads format %d: start the version of the program that wrote it, or a later one", name, version, formatVersion)
	case len(data) < headBytes || crc32.Checksum(data[:headBytes-4], castagnoli) != binary.LittleEndian.Uint32(data[headBytes-4:]):
		return 0, 0, damaged(name, 0, "the head is damaged")
	}
	return headBytes, crc32.Checksum(data[saltAt:headBytes-4], castagnoli), nil
}

// readSegment calls visit for the body of each batch of a segment, in order. first is the number of
// the first batch, and after the number of the first batch of the next segment; 0: this is the last
// one. It returns the number of the next batch. Bytes behind the end of the last segment, without a
// mark, are a batch that was being written when the scheduler ended, or that was damaged later.
func readSegment(name string, data []byte, first, after uint64, visit func(number uint64, at int, body []byte) error) (s segment, next uint64, err error) {
	s, next = segment{name: name, size: len(data)}, first
	if s.end, s.seed, err = readHead(name, data, after == 0); err != nil || s.end == 0 {
		return s, next, err
	}
	for s.end < len(data) && (after == 0 || next < after) {
		body, number, size, err := batchAt(data[s.end:], s.seed)
		switch {
		case err != nil && after == 0 && (size == 0 || s.end+size >= len(data)) && !hasBatchAfter(data[s.end+1:], s.seed, next):
			return s, next, nil
		case err != nil:
			return s, next, damaged(name, s.end, "a batch is damaged")
		case number != next:
			return s, next, damaged(name, s.end, "batch %d is where %d should be", number, next)
		case body[0]&formMark != 0:
			s.mark = body[0]
			return s, next, nil
		}
		if err := visit(number, s.end, body); err != nil {
			return s, next, err
		}
		s.last = s.end
		next, s.end = next+1, s.end+size
	}
	return s, next, nil
}

// newEncoder returns what compresses records.
func newEncoder() (*zstd.Encoder, error) {
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	return encoder, nil
}

// pack returns the form and the bytes of records in a body. It compresses to the room that it gets,
// and returns that, or more room that it needed.
func pack(records []byte, encoder *zstd.Encoder, room []byte) (form byte, packed, used []byte) {
	if len(records) <= smallBody {
		return 0, records, room
	}
	if cap(room) < len(records)/2 {
		room = make([]byte, 0, len(records)/2)
	}
	room = encoder.EncodeAll(records, room[:0])
	if len(room) < len(records) {
		return formCompressed, room, room
	}
	return 0, records, room
}

// unpack returns the records of a body, after it has noted where values are.
func unpack(body []byte, decoder *zstd.Decoder, values map[hash]place) ([]byte, error) {
	form, rest := body[0], body[1:]
	if form&^(formCompressed|formValues) != 0 {
		return nil, fmt.Errorf("the form %d of a batch is unknown", form)
	}
	if form&formValues != 0 {
		c := codec{reading: true, data: rest}
		var placed []placed
		list(&c, &placed, (*codec).placed)
		if c.err != nil {
			return nil, c.err
		}
		for _, p := range placed {
			values[p.hash] = p.place
		}
		rest = c.data
	}
	if form&formCompressed != 0 {
		return decoder.DecodeAll(rest, nil)
	}
	return rest, nil
}
