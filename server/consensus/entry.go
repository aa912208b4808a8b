package consensus

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"path/filepath"
)

// An entry of the log of Raft is, with numbers in little endian:
//
//	4 bytes  CRC-32C of the rest
//	1 byte   kind
//	8 bytes  writer: the random number of one time as a leader
//	8 bytes  number of the entry among those of the writer, from 1 on
//	n bytes  operations on files, or texts of other kinds
//
// The log of Raft does not check what it reads from the disk, so entries have a checksum.
const (
	entryHead = 4 + 1 + 8 + 8

	// kindBegin begins the time of a leader: the entries of all earlier writers that are not in the
	// log yet are refused from now on. It has the id of the peer, and its address for clients.
	kindBegin = 1
	// kindFiles is a group of operations.
	kindFiles = 2
	// kindStop stops schedulers. It has the number of processes, and the id of each.
	kindStop = 3
)

// The operations on files.
const (
	opMake     = 1 // make the file if there is none
	opAppend   = 2 // append bytes to a file of a known length
	opTruncate = 3
	opRename   = 4
	opRemove   = 5
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// entry is one of the log.
type entry struct {
	kind   byte
	writer uint64
	number uint64
	body   []byte
}

// seal returns an entry as bytes.
func (e entry) seal() []byte {
	data := make([]byte, entryHead, entryHead+len(e.body))
	data[4] = e.kind
	binary.LittleEndian.PutUint64(data[5:], e.writer)
	binary.LittleEndian.PutUint64(data[13:], e.number)
	data = append(data, e.body...)
	binary.LittleEndian.PutUint32(data, crc32.Checksum(data[4:], castagnoli))
	return data
}

// open reads an entry.
func open(data []byte) (e entry, err error) {
	if len(data) < entryHead || crc32.Checksum(data[4:], castagnoli) != binary.LittleEndian.Uint32(data) {
		return e, errors.New("its checksum is wrong")
	}
	return entry{kind: data[4], writer: binary.LittleEndian.Uint64(data[5:]), number: binary.LittleEndian.Uint64(data[13:]), body: data[entryHead:]}, nil
}

// operation is one on a file. size is the length of the file before an append, or after a
// truncation.
type operation struct {
	kind byte
	name string
	to   string
	size int64
	data []byte
}

func (o operation) append(to []byte) []byte {
	to = appendText(append(to, o.kind), o.name)
	switch o.kind {
	case opAppend:
		to = binary.AppendUvarint(to, uint64(o.size))
		to = binary.AppendUvarint(to, uint64(len(o.data)))
		to = append(to, o.data...)
	case opTruncate:
		to = binary.AppendUvarint(to, uint64(o.size))
	case opRename:
		to = appendText(to, o.to)
	}
	return to
}

func appendText(to []byte, text string) []byte {
	return append(binary.AppendUvarint(to, uint64(len(text))), text...)
}

// reader reads the body of an entry, or the head of a snapshot.
type reader struct {
	data []byte
	err  error
}

func (r *reader) byte() (b byte) {
	if part := r.part(1); len(part) == 1 {
		b = part[0]
	}
	return b
}

func (r *reader) number() uint64 {
	n, size := binary.Uvarint(r.data)
	if size <= 0 {
		r.err, r.data = errors.New("it ends within a number"), nil
		return 0
	}
	r.data = r.data[size:]
	return n
}

func (r *reader) part(n uint64) []byte {
	if n > uint64(len(r.data)) {
		r.err, r.data = errors.New("it is too short"), nil
		return nil
	}
	part := r.data[:n]
	r.data = r.data[n:]
	return part
}

func (r *reader) text() string { return string(r.part(r.number())) }

// name reads the name of a file, which is one within the directory.
func (r *reader) name() string {
	name := r.text()
	if r.err == nil && (name == "." || name == ".." || filepath.Base(name) != name) {
		r.err = fmt.Errorf("%q is not the name of a file", name)
	}
	return name
}

func (r *reader) operation() (o operation) {
	o.kind, o.name = r.byte(), r.name()
	switch o.kind {
	case opMake, opRemove:
	case opAppend:
		o.size = int64(r.number())
		o.data = r.part(r.number())
	case opTruncate:
		o.size = int64(r.number())
	case opRename:
		o.to = r.name()
	default:
		if r.err == nil {
			r.err = fmt.Errorf("the operation %d is unknown: a later version of the program wrote it: start that one", o.kind)
		}
	}
	return o
}
