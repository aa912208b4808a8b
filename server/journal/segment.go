package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/klauspost/compress/zstd"
)

// A segment is a file of batches. It begins with a head:
//
//	8 bytes  "MILLJRNL"
//	4 bytes  version of the format
//
// and each batch is, with numbers in little endian:
//
//	4 bytes  length of the body
//	8 bytes  number of the batch; numbers count from 1 through all segments
//	4 bytes  CRC-32C of the body
//	4 bytes  CRC-32C of the 16 bytes before
//	1 byte   form of the body: 0 plain, 1 compressed by zstd
//	n bytes  the records
//
// The length counts the byte of the form. The head has a checksum of its own, so that a wrong
// length cannot make the batches behind it look like a part of this one.
const (
	magic = "MILLJRNL"
	// formatVersion is the version of segments and records that this program writes, and the
	// newest one that it reads.
	formatVersion = 1
	headBytes     = len(magic) + 4
	batchHead     = 20
	// smallBody is the length up to which a body is not compressed.
	smallBody = 256

	formPlain      = 0
	formCompressed = 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func segmentHead() []byte {
	return binary.LittleEndian.AppendUint32([]byte(magic), formatVersion)
}

// appendBatch appends the batch that has these records.
func appendBatch(to []byte, number uint64, records []byte, encoder *zstd.Encoder) []byte {
	start := len(to)
	to = append(to, make([]byte, batchHead)...)
	to = append(to, formPlain)
	to = append(to, records...)
	if len(records) > smallBody {
		packed := encoder.EncodeAll(records, append(make([]byte, 0, len(records)/2), formCompressed))
		if len(packed) < len(records) {
			to = append(to[:start+batchHead], packed...)
		}
	}
	head, body := to[start:start+batchHead], to[start+batchHead:]
	binary.LittleEndian.PutUint32(head, uint32(len(body)))
	binary.LittleEndian.PutUint64(head[4:], number)
	binary.LittleEndian.PutUint32(head[12:], crc32.Checksum(body, castagnoli))
	binary.LittleEndian.PutUint32(head[16:], crc32.Checksum(head[:16], castagnoli))
	return to
}

// errBadBatch says that no whole batch is at a place of a segment.
var errBadBatch = errors.New("no whole batch")

// batchAt returns the body of the batch at the beginning of data, its number, and the bytes that it
// takes.
func batchAt(data []byte) (body []byte, number uint64, size int, err error) {
	number, size, err = batchHeadAt(data)
	if err != nil || size > len(data) {
		return nil, number, size, errBadBatch
	}
	body = data[batchHead:size]
	if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(data[12:]) {
		return nil, number, size, errBadBatch
	}
	return body, number, size, nil
}

// batchHeadAt reads the head of a batch alone.
func batchHeadAt(data []byte) (number uint64, size int, err error) {
	if len(data) < batchHead || crc32.Checksum(data[:16], castagnoli) != binary.LittleEndian.Uint32(data[16:]) {
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
func hasBatchAfter(data []byte, number uint64) bool {
	for at := range data {
		if n, _, err := batchHeadAt(data[at:]); err == nil && n > number {
			if _, _, _, err := batchAt(data[at:]); err == nil {
				return true
			}
		}
	}
	return false
}

// damaged is the error of a segment that cannot be read.
func damaged(name string, offset int, cause string) error {
	return fmt.Errorf("journal: %s: at byte %d: %s: the disk or a program has damaged it; "+
		"restore the directory from a copy, or give an empty one (--journal) and submit anew, since graphs in this one are not whole",
		name, offset, cause)
}

// readSegment calls apply for the body of each batch of a segment, in order. next is the number of
// the first batch. It returns the number after the last batch, and the length of the whole batches:
// the bytes behind it were never acknowledged. Only the last segment may have such a rest.
func readSegment(name string, data []byte, next uint64, last bool, apply func(body []byte) error) (after uint64, whole int, err error) {
	if len(data) < headBytes && last {
		return next, 0, nil
	}
	if len(data) < headBytes || string(data[:len(magic)]) != magic {
		return 0, 0, damaged(name, 0, "the head is missing")
	}
	if version := binary.LittleEndian.Uint32(data[len(magic):]); version == 0 || version > formatVersion {
		return 0, 0, fmt.Errorf("journal: %s has format %d, and this program reads formats up to %d: start the version of the program that wrote it, or a later one", name, version, formatVersion)
	}
	at := headBytes
	for at < len(data) {
		body, number, size, err := batchAt(data[at:])
		if err != nil {
			if last && (size == 0 || at+size >= len(data)) && !hasBatchAfter(data[at+1:], next) {
				return next, at, nil
			}
			return 0, 0, damaged(name, at, "a batch is damaged")
		}
		if number != next {
			return 0, 0, damaged(name, at, fmt.Sprintf("batch %d is where %d should be", number, next))
		}
		if err := apply(body); errors.Is(err, errEnough) {
			return 0, 0, err
		} else if err != nil {
			return 0, 0, damaged(name, at, err.Error())
		}
		next, at = next+1, at+size
	}
	return next, at, nil
}

// openBody returns the records of a body.
func openBody(body []byte, decoder *zstd.Decoder) ([]byte, error) {
	switch body[0] {
	case formPlain:
		return body[1:], nil
	case formCompressed:
		return decoder.DecodeAll(body[1:], nil)
	}
	return nil, fmt.Errorf("the form %d of a batch is unknown", body[0])
}
