package board

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The file of a board is a page that describes it, the index and the entries. All
// words are 64 bits in the order of the machine: it never leaves the host.
//
//	page   magic, buckets
//	index  buckets of 8 words, each bucket a cache line; a word is 0, or the number of
//	       an entry below some bits of what mix made of its key
//	entry  a line of 8 words: sequence, task, shape, progress, and words of payload: offset
//	       and size of each frame, then the header
//	rest   for each entry the words of payload that do not go into its line
//
// What has one frame and a short header is in its line, and lines lie side by side: what is
// looked up in the order in which it was shown the processor reads ahead, and a thousand
// entries are 16 pages. progress is whole, or how many bytes of an object have arrived that the lender is still
// fetching itself: it alone changes while the sequence stays. shape is the generation, and above it the number of frames and of bytes of the
// header. What is shown one after the other lies side by side, for it is often looked
// up so, and a page that is not known to the processor costs more than all else. The sequence is odd while an entry is being written; an entry without a
// task is free.
const (
	magic       = 0x3344524F424C4C4D // "MLLBORD3"
	pageBytes   = 4096
	ways        = 8
	bucketBytes = ways * 8
	lineWords   = 8
	restWords   = 24
	entryBytes  = (lineWords + restWords) * 8
	progressAt  = 3
	payloadAt   = 4
	inLine      = lineWords - payloadAt // words of payload
	lineHeader  = (inLine - 2) * 8      // bytes of the header of an object of one frame
	// MaxPayload bounds 16 bytes for each frame together with the header.
	MaxPayload = (inLine + restWords) * 8
	maxFrames  = 8
	whole      = 1<<64 - 1
	// firstBytes of the entries are used first.
	firstBytes = 64 << 10
)

// A page of slots has one word for each slot, on a cache line of its own: a count
// above two bits of state.
const (
	slots     = 16
	slotBytes = 64
	seatBytes = pageBytes

	idle    = 0
	active  = 1
	revoked = 2
	closed  = 3
	states  = 3 // the bits
)

// words is a mapping. The other side sees, and may write, the same words, so each
// is used by an atomic operation.
type words struct {
	data []byte
	list []uint64
}

func (w *words) at(i int) *uint64      { return &w.list[i] }
func (w *words) load(i int) uint64     { return atomic.LoadUint64(&w.list[i]) }
func (w *words) store(i int, v uint64) { atomic.StoreUint64(&w.list[i], v) }
func (w *words) swap(i int, a, b uint64) bool {
	return atomic.CompareAndSwapUint64(&w.list[i], a, b)
}

// sealed makes a file of n bytes in memory that cannot change its size.
func sealed(name string, n int) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("board: memfd: %w; look at the limit of open files", err)
	}
	file := os.NewFile(uintptr(fd), name)
	if err := unix.Ftruncate(fd, int64(n)); err != nil {
		return nil, errors.Join(fmt.Errorf("board: size to %d bytes: %w", n, err), file.Close())
	}
	// Whoever maps a file that shrinks dies by SIGBUS.
	if err := seal(file, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func seal(file *os.File, seals int) error {
	if _, err := unix.FcntlInt(file.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return fmt.Errorf("board: seals %#x: %w; the kernel is too old for it", seals, err)
	}
	return nil
}

// mapFile maps a file of which want seals and a size are asked.
func mapFile(file *os.File, bytes int64, write bool) (words, error) {
	fd := int(file.Fd())
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return words{}, fmt.Errorf("board: stat: %w", err)
	}
	if bytes == 0 {
		bytes = st.Size
	}
	if st.Size != bytes || bytes < pageBytes || bytes > maxFileBytes {
		return words{}, fmt.Errorf("%w: a file of %d bytes", ErrNotABoard, st.Size)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return words{}, fmt.Errorf("%w: it is not sealed against shrinking (seals %#x, %w)", ErrNotABoard, seals, err)
	}
	protection := unix.PROT_READ
	if write {
		protection |= unix.PROT_WRITE
	}
	data, err := unix.Mmap(fd, 0, int(bytes), protection, unix.MAP_SHARED)
	if err != nil {
		return words{}, fmt.Errorf("board: map %d bytes: %w", bytes, err)
	}
	return words{data: data, list: unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(data))), len(data)/8)}, nil
}

// populate has the pages of an index of so many buckets at hand, and those of the entries that are used first: to come to a page
// for the first time takes longer than all else that is done there. Kernels before 5.14 do without.
func (w *words) populate(buckets uint64, advice int) {
	n := min(fileBytes(buckets), int64(pageBytes+buckets*bucketBytes+firstBytes))
	_ = unix.Madvise(w.data[:n], advice) // nothing depends on it
}

func (w *words) unmap() error {
	data := w.data
	w.data, w.list = nil, nil
	if data == nil {
		return nil
	}
	return unix.Munmap(data)
}

// mix spreads a key over all bits, and is never 0.
func mix(task uint64, generation uint32) uint64 {
	x := task*0x9E3779B97F4A7C15 ^ uint64(generation)*0xC2B2AE3D27D4EB4F
	x ^= x >> 32
	x *= 0xD6E8FEB86659FD93
	x ^= x >> 32
	return x | 1
}

// buckets are the two in which a key may be.
func buckets(tag, mask uint64) (a, b uint64) { return tag >> 1 & mask, tag >> 33 & mask }

// wayOf is where in the first of its buckets a key is looked for first, and is unless another
// one was there when it was shown: nobody can predict which of many words it is.
func wayOf(tag uint64) int { return int(tag >> 61) }

// An index word has the number of an entry in its lower bits; shownBit makes it differ
// from 0.
const (
	numberBits = 24
	shownBit   = 1 << 23
)

func indexWord(tag, entry uint64) uint64 { return tag>>numberBits<<numberBits | shownBit | entry }

// entryOf is the entry of an index word, if that may be a tag's. There are fewer entries than
// shownBit says, so what is not the tag's, or not shown, is none.
func entryOf(word, tag, entries uint64) (entry uint64, ok bool) {
	entry = word ^ indexWord(tag, 0)
	return entry, entry < entries
}

// shapeOf is how many frames a shape has, and bytes of header.
func shapeOf(shape uint64) (frames, header int) { return int(shape >> 32 & 0xFF), int(shape >> 40) }

func indexAt(bucket uint64) int { return int(pageBytes/8 + bucket*ways) }

// entryAt is where the line of an entry is, restAt where the rest of its payload would be if all
// of it were there.
func entryAt(buckets, entry uint64) int {
	return int((pageBytes+buckets*bucketBytes)/8 + entry*lineWords)
}

func restAt(buckets, entry uint64) int {
	return int((pageBytes+buckets*bucketBytes)/8 + buckets*ways*lineWords + entry*restWords - inLine)
}

// payload is where a word of the payload of an entry is, by the places of its line and of its rest.
func payload(line, rest, word int) int {
	if word < inLine {
		return line + payloadAt + word
	}
	return rest + word
}

func fileBytes(buckets uint64) int64 {
	return int64(pageBytes + buckets*(bucketBytes+ways*entryBytes))
}

// maxFileBytes bounds what a peer makes us map.
const maxFileBytes = 1 << 30

func slotAt(slot int) int { return slot * slotBytes / 8 }
