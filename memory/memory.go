// Package memory is an Interface: the view of a worker's memory for the packages that move bytes.
// It is independent of the kind of memory. The adapters (host and cuda) implement Space. The ledger
// decides which object owns which bytes of a space.
package memory

import (
	"errors"
	"hash/crc32"
)

// HeaderBytes is the size of the page at offset 0 of each space. The page is never allocated. It
// holds the identity with which a peer proves that it reads the right memory (see Identity).
const HeaderBytes = 4096

// Frame is a contiguous range of a space: bytes [Offset, Offset+Bytes). A frame of 0 bytes occupies
// nothing, and its Offset has no meaning.
type Frame struct {
	Offset uint64
	Bytes  uint64
}

// End returns the offset just after the frame.
func (f Frame) End() uint64 { return f.Offset + f.Bytes }

// Within says whether the frame lies in [0, size) without integer overflow. Check every frame that
// comes from another process with it.
func (f Frame) Within(size uint64) bool {
	return f.Bytes <= size && f.Offset <= size-f.Bytes
}

// Contains says whether inner lies completely inside the frame.
func (f Frame) Contains(inner Frame) bool {
	return inner.Offset >= f.Offset && inner.Within(f.End())
}

// Identity identifies a space. It is written to the header page.
type Identity struct {
	// WorkerUUID identifies the worker and stays the same after a restart.
	WorkerUUID [16]byte
	// Incarnation identifies one life of that worker (ids.Incarnation in 16 bytes).
	Incarnation [16]byte
	// Nonce is a new random number for each space. A reader that finds another nonce than the
	// scheduler announced reads the wrong memory.
	Nonce uint64
}

// Space is one region of memory that a worker allocates at start, shares with its executors once,
// and sub-allocates. Its methods may be called from any goroutine. The ledger decides which
// goroutine may touch which bytes.
type Space interface {
	// Size is the length in bytes, header page included. It never changes.
	Size() uint64
	// Identity returns the identity that was written to the header page.
	Identity() Identity
	// Bytes returns [off, off+n) for reading and writing in place, or nil if the processor cannot
	// address the memory (device spaces). The capacity of the slice is n. It is valid until the
	// space is closed.
	// REQUIRES: the range lies within the space, otherwise Bytes panics. The caller has checked
	// ranges from other processes with Frame.Within.
	Bytes(off, n uint64) []byte
	// FD is a file descriptor that another process can map, -1 if there is none. The space owns it:
	// pass it to another process, which duplicates it, but never close it.
	FD() int
}

// Puncher is a Space that can give physical pages back to the system while the range stays mapped.
type Puncher interface {
	// Punch returns the memory of the ranges to the system. After that they read as zeros.
	// REQUIRES: nothing uses the ranges until Punch returns. The ledger ensures this: it withholds
	// the ranges meanwhile.
	Punch(ranges []Frame) error
}

// Reader is memory that copies its bytes on demand: a Tier, or a Space whose bytes the processor
// cannot address (Bytes returns nil, FD returns -1).
type Reader interface {
	// ReadInto copies [off, off+len(p)) to p. It may be called from any goroutine.
	ReadInto(off uint64, p []byte) error
}

// Tier is memory below a Space, larger and slower, for bytes that are not needed now. The ledger
// decides the place of the bytes in it. Its methods may be called from any goroutine, for ranges
// that do not overlap.
// REQUIRES: the offsets of Write, Read and Discard are multiples of UnitBytes.
type Tier interface {
	Reader
	// Name is the name for people: "disk".
	Name() string
	// Size is the capacity in bytes. UnitBytes is the unit to which sizes should be rounded.
	// DiscardBytes is the smallest size of an unneeded range that is worth a Discard.
	Size() uint64
	UnitBytes() uint64
	DiscardBytes() uint64
	// Write writes p at off and returns its checksum. After an error the contents of the range are
	// undefined. Bytes outside of the range are not changed, except those up to the next multiple
	// of UnitBytes, which are undefined after each Write.
	Write(off uint64, p []byte) (sum uint32, err error)
	// Read copies the bytes at off to p and compares their checksum with sum. If they differ, the
	// error matches ErrChecksum, and the bytes in p are invalid.
	Read(off uint64, p []byte, sum uint32) error
	// Discard gives the storage of a range back to the system.
	Discard(off, n uint64) error
}

// ErrChecksum: the bytes that were read are not the bytes that were written.
var ErrChecksum = errors.New("checksum does not match")

// castagnoli is the table of CRC-32C, for which processors have an instruction.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum extends the checksum sum of preceding bytes by p. The checksum of no bytes is 0.
func Checksum(sum uint32, p []byte) uint32 { return crc32.Update(sum, castagnoli, p) }
