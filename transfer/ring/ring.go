// Package ring is an Adapter: it passes records from one process of a host to another through
// memory that both have mapped, with a ring for each direction. Neither the writer nor the reader
// of a record makes a system call as long as the reader polls.
//
// # Waking
//
// A reader announces in the ring whether it polls (Awake) or sleeps (Asleep). A writer publishes
// its record first and reads that state afterwards. A reader that goes to sleep writes the state
// first and checks for records afterwards (Waiting). All these operations are sequentially
// consistent, so at least one side sees the other: the writer finds the reader asleep and Put asks
// its caller to wake it, or the reader finds the record. The writer that finds the reader asleep
// marks it as called by compare-and-swap. So the reader is woken only once until it announces its
// state anew. How it is woken is the caller's business.
//
// # Trust
//
// Both sides belong to the same user, but a bug of one must not harm the other. The file cannot
// change its size. Each side keeps its own position in its own memory and uses the other side's
// position only if it is plausible. A record's length is read once and checked before anything is
// copied; the copy belongs to the reader alone and no longer changes. A reader that writes invalid
// positions gets no more records, or wrong ones. Invalid data of a writer is either detected
// (ErrNonsense) or looks like a record; so the reader must check the contents of records.
package ring

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrNonsense means that the other side has another format, or writes where it must not.
var ErrNonsense = errors.New("ring: what the other side wrote makes no sense")

// A file has two rings. Each is a page that describes it, and the room for its records. Positions
// count all bytes since the beginning. Each word that one side writes and the other reads has cache
// lines of its own. A record is a word with its length, and its bytes, padded to a whole word.
// Numbers are in native byte order: they never leave the host.
const (
	magic     = 0x31474E52524C4C4D // "MLLRRNG1"
	pageBytes = 4096
	// Room is the capacity of a ring in bytes.
	Room      = 256 << 10
	ringBytes = pageBytes + Room
	fileBytes = 2 * ringBytes

	headAt  = 256
	tailAt  = 512
	stateAt = 768

	lengthBytes = 8
)

// Reader states. Unknown values are treated as awake: a reader that corrupts its own state only
// misses wake-ups.
const (
	asleep uint64 = iota
	awake
	called
)

// Make creates the memory of two rings. The caller owns the file.
func Make() (*os.File, error) {
	fd, err := unix.MemfdCreate("millrace-ring", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("ring: memfd: %w; look at the limit of open files", err)
	}
	file := os.NewFile(uintptr(fd), "millrace-ring")
	if err := unix.Ftruncate(fd, fileBytes); err != nil {
		return nil, errors.Join(fmt.Errorf("ring: size to %d bytes: %w", fileBytes, err), file.Close())
	}
	var word [8]byte
	binary.NativeEndian.PutUint64(word[:], magic)
	if _, err := file.WriteAt(word[:], 0); err != nil {
		return nil, errors.Join(fmt.Errorf("ring: %w", err), file.Close())
	}
	// A process that accesses a shrunken mapping dies by SIGBUS.
	if _, err := unix.FcntlInt(file.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return nil, errors.Join(fmt.Errorf("ring: seals: %w; the kernel is too old for it", err), file.Close())
	}
	return file, nil
}

// End is one side of the two rings: the ring that it writes and the ring that it reads.
type End struct {
	data []byte
	Out  Writer
	In   Reader
}

// Open maps the rings of a file. The caller keeps the file. first must be true on exactly one of
// the two sides.
func Open(file *os.File, first bool) (*End, error) {
	fd := int(file.Fd())
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("ring: stat: %w", err)
	}
	if st.Size != fileBytes {
		return nil, fmt.Errorf("%w: a file of %d bytes, not %d", ErrNonsense, st.Size, fileBytes)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return nil, fmt.Errorf("%w: it is not sealed against shrinking (seals %#x, %w)", ErrNonsense, seals, err)
	}
	data, err := unix.Mmap(fd, 0, fileBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("ring: map %d bytes: %w", fileBytes, err)
	}
	if got := binary.NativeEndian.Uint64(data); got != magic {
		return nil, errors.Join(fmt.Errorf("%w: it begins with %#x", ErrNonsense, got), unix.Munmap(data))
	}
	one, two := layOut(data[:ringBytes]), layOut(data[ringBytes:])
	if !first {
		one, two = two, one
	}
	return &End{data: data, Out: Writer{shared: one}, In: Reader{shared: two}}, nil
}

// Close unmaps the rings. REQUIRES: In and Out are never used again.
func (e *End) Close() error { return unix.Munmap(e.data) }

// shared is a ring as both sides see it. The other side may write any part of it at any time.
type shared struct {
	// head is the writer's position, tail the reader's. state is the state of the reader.
	head, tail, state *uint64
	room              []byte
}

func layOut(b []byte) shared {
	word := func(at int) *uint64 { return (*uint64)(unsafe.Pointer(&b[at])) }
	return shared{head: word(headAt), tail: word(tailAt), state: word(stateAt), room: b[pageBytes:]}
}

// Writer may be used by one goroutine at a time.
type Writer struct {
	shared
	// at is the position of the next record. read is the reader's position when it was last loaded.
	at, read uint64
}

// Put appends a record. ok is false if there is no room, or if the record is empty: an empty one
// could not be told from memory that was never written. If wake is true, the reader sleeps and the
// caller must wake it; Put has marked it as called.
func (w *Writer) Put(record []byte) (ok, wake bool) {
	if !w.publish(record) {
		return false, false
	}
	return true, w.call()
}

// call reports whether the reader must be woken, and marks it as called. The record was published
// before.
func (w *Writer) call() bool {
	return atomic.LoadUint64(w.state) == asleep && atomic.CompareAndSwapUint64(w.state, asleep, called)
}

// publish makes a record visible to the reader. It returns false if there is no room, or if the
// record is empty.
func (w *Writer) publish(record []byte) bool {
	if len(record) == 0 {
		return false
	}
	need := spaceOf(uint64(len(record)))
	if w.at+need-w.read > Room {
		read := atomic.LoadUint64(w.tail)
		if w.at-read > Room || w.at+need-read > Room {
			return false // it is full, or the reader's position is ahead of the writer's
		}
		w.read = read
	}
	at := w.at % Room
	binary.NativeEndian.PutUint64(w.room[at:], uint64(len(record)))
	at = (at + lengthBytes) % Room
	if n := copy(w.room[at:], record); n < len(record) {
		copy(w.room, record[n:])
	}
	w.at += need
	atomic.StoreUint64(w.head, w.at)
	return true
}

// spaceOf returns the room that a record of n bytes takes.
func spaceOf(n uint64) uint64 { return (lengthBytes + n + 7) &^ 7 }

// Reader may be used by one goroutine at a time.
type Reader struct {
	shared
	// at is the position of the next record.
	at uint64
}

// Awake announces that this side polls until it announces the opposite.
func (r *Reader) Awake() { atomic.StoreUint64(r.state, awake) }

// Asleep announces that this side must be woken. The caller must check for records once more
// afterwards.
func (r *Reader) Asleep() { atomic.StoreUint64(r.state, asleep) }

// Waiting reports whether there is a record to take.
func (r *Reader) Waiting() bool { return atomic.LoadUint64(r.head) != r.at }

// Take returns the next record, or nil if there is none. The record belongs to the caller. After an
// error the ring is unusable.
func (r *Reader) Take() ([]byte, error) {
	have := atomic.LoadUint64(r.head) - r.at
	if have == 0 {
		return nil, nil
	}
	at := r.at % Room
	n := atomic.LoadUint64((*uint64)(unsafe.Pointer(&r.room[at])))
	if have > Room || n == 0 || n > have || spaceOf(n) > have {
		return nil, fmt.Errorf("%w: a record of %d bytes in %d", ErrNonsense, n, have)
	}
	record := make([]byte, n)
	at = (at + lengthBytes) % Room
	if m := copy(record, r.room[at:]); m < len(record) {
		copy(record[m:], r.room)
	}
	r.at += spaceOf(n)
	atomic.StoreUint64(r.tail, r.at)
	return record, nil
}
