// Package ring is an Adapter: records from one process of a host to another through memory that both have mapped, a ring for
// each direction. Who writes a record and who reads it make no system call, as long as the reader looks.
//
// # Waking
//
// A reader that looks by itself says so in the ring (Awake), and so does one that sleeps (Asleep). A writer publishes its
// record first and reads that word after it; a reader that goes to sleep writes the word first and looks for records after it
// (Waiting). All of it is by sequentially consistent operations, so of the two one sees the other: the writer finds the reader
// asleep and is told to wake it, or the reader finds the record. The writer that is told has marked the reader as called, by
// compare-and-swap: until the reader says anew what it does, nobody wakes it twice. How it is woken is the caller's business.
//
// # Trust
//
// Both sides belong to the same user, and still neither can do the other harm by mistake. The file cannot change its size.
// Each side keeps its own position in its own memory, and believes the other's only if it makes sense. A record's length is read
// once, and checked before anything is copied; what is copied is the reader's alone and does not change any more. A reader that writes
// nonsense gets no further records, or wrong ones; a writer that does is told from an honest one (ErrNonsense), or is not, and then
// its records are for their reader to check.
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

// ErrNonsense: the other side is not what this build uses, or writes where it must not.
var ErrNonsense = errors.New("ring: what the other side wrote makes no sense")

// A file has two rings, each a page that describes it and the room for its records. Positions count bytes since the
// beginning. Each word that one side writes and the other reads lies far from all others. A record is its length in a word, and its
// bytes up to the next word. Numbers are in the order of the machine: none leaves the host.
const (
	magic     = 0x31474E52524C4C4D // "MLLRRNG1"
	pageBytes = 4096
	// Room is what fits into a ring, in bytes.
	Room      = 256 << 10
	ringBytes = pageBytes + Room
	fileBytes = 2 * ringBytes

	headAt  = 256
	tailAt  = 512
	stateAt = 768

	lengthBytes = 8
)

// What a reader does. Whatever else is there means awake: it hurts its writer, who is the reader.
const (
	asleep uint64 = iota
	awake
	called
)

// Make makes the memory of two rings. The descriptor is the caller's.
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
	// Whoever maps a file that shrinks dies by SIGBUS.
	if _, err := unix.FcntlInt(file.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return nil, errors.Join(fmt.Errorf("ring: seals: %w; the kernel is too old for it", err), file.Close())
	}
	return file, nil
}

// End is one side's: what it writes and what it reads.
type End struct {
	data []byte
	Out  Writer
	In   Reader
}

// Open maps the rings of a file, which stays the caller's. One side is the first, the other is not.
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

// Close ends the mapping. REQUIRES: nobody uses In or Out, now or later.
func (e *End) Close() error { return unix.Munmap(e.data) }

// shared is a ring as both sides see it. The other one may write all of it at any moment.
type shared struct {
	// head is where the writer is, tail where the reader is; state is what the reader does.
	head, tail, state *uint64
	room              []byte
}

func layOut(b []byte) shared {
	word := func(at int) *uint64 { return (*uint64)(unsafe.Pointer(&b[at])) }
	return shared{head: word(headAt), tail: word(tailAt), state: word(stateAt), room: b[pageBytes:]}
}

// Writer belongs to one goroutine at a time.
type Writer struct {
	shared
	// at is where the next record begins, and read how far the reader was when we asked last.
	at, read uint64
}

// Put appends a record. It does not if there is no room; wake: the reader sleeps and was not called yet, which is the
// caller's to do.
func (w *Writer) Put(record []byte) (ok, wake bool) {
	if !w.publish(record) {
		return false, false
	}
	return true, w.call()
}

// call says whether the reader is to be woken, and notes that it was. What it is woken for was published before.
func (w *Writer) call() bool {
	return atomic.LoadUint64(w.state) == asleep && atomic.CompareAndSwapUint64(w.state, asleep, called)
}

// publish shows a record to the reader.
func (w *Writer) publish(record []byte) bool {
	need := spaceOf(uint64(len(record)))
	if w.at+need-w.read > Room {
		read := atomic.LoadUint64(w.tail)
		if w.at-read > Room || w.at+need-read > Room {
			return false // it is full, or the reader claims to have read what was not written
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

// spaceOf is what a record of n bytes takes.
func spaceOf(n uint64) uint64 { return (lengthBytes + n + 7) &^ 7 }

// Reader belongs to one goroutine at a time.
type Reader struct {
	shared
	// at is where the next record begins.
	at uint64
}

// Awake says that this side looks by itself until it says that it does not.
func (r *Reader) Awake() { atomic.StoreUint64(r.state, awake) }

// Asleep says that this side wants to be woken. Whoever says so looks once more afterwards.
func (r *Reader) Asleep() { atomic.StoreUint64(r.state, asleep) }

// Waiting says whether there is something to take.
func (r *Reader) Waiting() bool { return atomic.LoadUint64(r.head) != r.at }

// Take returns the next record, which is the caller's, nil if there is none. After an error there is nothing more to be
// expected.
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
