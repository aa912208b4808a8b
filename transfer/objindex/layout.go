package objindex

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The index file has a page that describes it, the hash index and the entries. All words are 64
// bits in native byte order: the file never leaves the host.
//
//	page   magic, number of buckets
//	index  buckets of 8 words, each bucket a cache line. A word is 0, or an entry number
//	       in the lower bits and a part of the key's hash (mix) in the upper bits
//	entry  a line of 8 words: sequence, task, shape, progress, and 4 words of payload.
//	       The payload is offset and size of each frame, then the header
//	rest   for each entry the words of payload that do not fit in its line
//	long   the payloads that do not fit in line and rest. The first word of payload in the line
//	       is then the place of the payload in the file, in words. The system gives memory to the
//	       parts that have been in use
//
// The sequence is odd while an entry is being written. An entry without a task is free. shape holds
// the generation, above it the number of frames and the number of bytes of the header. progress is
// whole, or the number of bytes that have arrived of an object that the lender is still fetching.
// Only progress may change while the sequence stays the same.
//
// An object with one frame and a short header fits in its line. Lines are contiguous, and objects
// that are published one after the other get neighbouring lines, because they are often looked up
// in that order. Then the processor prefetches the lines, and a thousand entries take only 16
// pages: a page that is not in the TLB costs more than the rest of the lookup.
const (
	magic       = 0x3158444E494C4C4D // "MLLINDX1"
	pageBytes   = 4096
	ways        = 8
	bucketBytes = ways * 8
	lineWords   = 8
	restWords   = 24
	entryBytes  = (lineWords + restWords) * 8
	progressAt  = 3
	payloadAt   = 4
	inLine      = lineWords - payloadAt // words of payload in the line
	lineHeader  = (inLine - 2) * 8      // header bytes next to one frame in the line
	// shortPayload is the largest payload in bytes that fits in line and rest: 16 for each frame,
	// and the header.
	shortPayload = (inLine + restWords) * 8
	// longBytes is the room for long payloads, for each bucket.
	longBytes = 8 << 10
	// MaxFrames and MaxHeader bound what one entry describes. shape has room for no more.
	MaxFrames  = 1<<frameBits - 1
	MaxHeader  = 1<<headerBits - 1
	frameBits  = 12
	headerBits = 64 - 32 - frameBits
	whole      = 1<<64 - 1
	// firstBytes is the size of the entry lines that are used first. See populate.
	firstBytes = 64 << 10
)

// A page of slots has a cache line for each slot. Its first word is the slot: the two lowest bits
// are the state; the bits above count the uses. Its second word counts the bytes that were read.
const (
	slots         = 16
	slotBytes     = 64
	slotPageBytes = pageBytes

	idle    = 0
	active  = 1
	revoked = 2
	closed  = 3
	states  = 3 // mask of the state bits
)

// words is a mapping. Another process sees, and may write, the same words, so each access is an
// atomic operation.
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

// sealed creates a file of n bytes in memory (a memfd) whose size cannot change.
func sealed(name string, n int) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("object index: memfd: %w; look at the limit of open files", err)
	}
	file := os.NewFile(uintptr(fd), name)
	if err := unix.Ftruncate(fd, int64(n)); err != nil {
		return nil, errors.Join(fmt.Errorf("object index: size to %d bytes: %w", n, err), file.Close())
	}
	// A process that accesses a shrunken mapping dies by SIGBUS.
	if err := seal(file, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func seal(file *os.File, seals int) error {
	if _, err := unix.FcntlInt(file.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return fmt.Errorf("object index: seals %#x: %w; the kernel is too old for it", seals, err)
	}
	return nil
}

// mapFile maps a file of exactly the given size; 0 means any size. It refuses a file that is not
// sealed against shrinking or that is larger than maxFileBytes.
func mapFile(file *os.File, bytes int64, write bool) (words, error) {
	fd := int(file.Fd())
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return words{}, fmt.Errorf("object index: stat: %w", err)
	}
	if bytes == 0 {
		bytes = st.Size
	}
	if st.Size != bytes || bytes < pageBytes || bytes > maxFileBytes {
		return words{}, fmt.Errorf("%w: a file of %d bytes", ErrNotAnIndex, st.Size)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return words{}, fmt.Errorf("%w: it is not sealed against shrinking (seals %#x, %w)", ErrNotAnIndex, seals, err)
	}
	protection := unix.PROT_READ
	if write {
		protection |= unix.PROT_WRITE
	}
	data, err := unix.Mmap(fd, 0, int(bytes), protection, unix.MAP_SHARED)
	if err != nil {
		return words{}, fmt.Errorf("object index: map %d bytes: %w", bytes, err)
	}
	return words{data: data, list: unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(data))), len(data)/8)}, nil
}

// populate faults in the pages of an index with the given number of buckets and the first lines of
// the entries: the first access to a page takes longer than everything else in a lookup. Linux
// before 5.14 lacks this advice, and the pages are then faulted in on demand.
func (w *words) populate(buckets uint64, advice int) {
	n := min(fileBytes(buckets), int64(pageBytes+buckets*bucketBytes+firstBytes))
	_ = unix.Madvise(w.data[:n], advice) // best effort: correctness does not depend on it
}

func (w *words) unmap() error {
	data := w.data
	w.data, w.list = nil, nil
	if data == nil {
		return nil
	}
	return unix.Munmap(data)
}

// mix hashes a key. The result is never 0.
func mix(task uint64, generation uint32) uint64 {
	x := task*0x9E3779B97F4A7C15 ^ uint64(generation)*0xC2B2AE3D27D4EB4F
	x ^= x >> 32
	x *= 0xD6E8FEB86659FD93
	x ^= x >> 32
	return x | 1
}

// buckets returns the two buckets in which a key may be.
func buckets(tag, mask uint64) (a, b uint64) { return tag >> 1 & mask, tag >> 33 & mask }

// wayOf returns the preferred place of a key in its first bucket. A key is stored there if the
// place was free when the key was published, and readers look there first. Otherwise the branch
// predictor would have to predict which of 16 words matches.
func wayOf(tag uint64) int { return int(tag >> 61) }

// The lower numberBits of an index word are the entry number with usedBit set, so that a used word
// is never 0.
const (
	numberBits = 24
	usedBit    = 1 << 23
)

func indexWord(tag, entry uint64) uint64 { return tag>>numberBits<<numberBits | usedBit | entry }

// entryOf returns the entry number of an index word if the word may belong to the tag. entries is
// the number of entries and less than usedBit. For a word that is empty or belongs to another tag,
// the exclusive or yields a number that is not less than entries, so one comparison decides.
func entryOf(word, tag, entries uint64) (entry uint64, ok bool) {
	entry = word ^ indexWord(tag, 0)
	return entry, entry < entries
}

// shapeOf returns the number of frames and the number of header bytes.
func shapeOf(shape uint64) (frames, header int) {
	return int(shape >> 32 & MaxFrames), int(shape >> (64 - headerBits))
}

// newShape is the inverse of shapeOf.
func newShape(generation uint32, frames, header int) uint64 {
	return uint64(generation) | uint64(frames)<<32 | uint64(header)<<(64-headerBits)
}

// isLong reports whether the payload is in a block of its own, and not in line and rest.
func isLong(frames, header int) bool { return frames*16+header > shortPayload }

// payloadWords returns the number of words of a payload.
func payloadWords(frames, header int) int { return 2*frames + (header+7)/8 }

func indexAt(bucket uint64) int { return int(pageBytes/8 + bucket*ways) }

// entryAt returns the word offset of an entry's line. restAt returns the word offset at which the
// payload would begin if all of it were in the rest.
func entryAt(buckets, entry uint64) int {
	return int((pageBytes+buckets*bucketBytes)/8 + entry*lineWords)
}

func restAt(buckets, entry uint64) int {
	return int((pageBytes+buckets*bucketBytes)/8 + buckets*ways*lineWords + entry*restWords - inLine)
}

// payload returns the offset of a payload word, given the offsets of the entry's line and rest.
func payload(line, rest, word int) int {
	if word < inLine {
		return line + payloadAt + word
	}
	return rest + word
}

// longLine and longRest make payload return the words of a block, one after the other.
func longLine(block int) int { return block - payloadAt }
func longRest(block int) int { return block }

// longAt returns the word offset of the room for long payloads.
func longAt(buckets uint64) int {
	return int((pageBytes + buckets*(bucketBytes+ways*entryBytes)) / 8)
}

func fileBytes(buckets uint64) int64 { return int64(longAt(buckets))*8 + int64(buckets*longBytes) }

// maxFileBytes bounds the size of a mapping that a peer can cause.
const maxFileBytes = 1 << 30

func slotAt(slot int) int { return slot * slotBytes / 8 }
