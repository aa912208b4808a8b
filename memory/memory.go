// Package memory is an Interface: what the memory of a worker looks like to
// those who move bytes. It names no kind of memory; the adapters (host and cuda)
// implement Space, the ledger decides which bytes of it are whose.
package memory

import (
	"errors"
	"hash/crc32"
)

// HeaderBytes is the size of the page at offset 0 of each space. It holds the
// identity by which a peer proves that it reads the right memory (see Identity)
// and is never allocated.
const HeaderBytes = 4096

// Frame is a contiguous range of a space: bytes [Offset, Offset+Bytes). A frame
// of 0 bytes occupies nothing and its Offset means nothing.
type Frame struct {
	Offset uint64
	Bytes  uint64
}

// End returns the offset just behind the frame.
func (f Frame) End() uint64 { return f.Offset + f.Bytes }

// Within says whether the frame lies in [0, size) without wrapping around, as
// must be asked of every frame that another process named.
func (f Frame) Within(size uint64) bool {
	return f.Bytes <= size && f.Offset <= size-f.Bytes
}

// Contains says whether inner lies wholly inside the frame.
func (f Frame) Contains(inner Frame) bool {
	return inner.Offset >= f.Offset && inner.Within(f.End())
}

// Identity is what the header page of a space says.
type Identity struct {
	// WorkerUUID names the worker slot and outlives restarts.
	WorkerUUID [16]byte
	// Incarnation names one life of that worker (ids.Incarnation in 16 bytes).
	Incarnation [16]byte
	// Nonce is fresh for each space. A reader that was told the nonce by the
	// scheduler and finds another one reads somebody else's memory.
	Nonce uint64
}

// Space is one region of memory that a worker allocated at start, shares with
// its executors once, and sub-allocates. Its methods may be called from any
// goroutine; who may touch which bytes is the ledger's business.
type Space interface {
	// Size is the length in bytes, header page included. It never changes.
	Size() uint64
	// Identity returns what the header page was written with.
	Identity() Identity
	// Bytes returns [off, off+n) for reading and writing in place, or nil where
	// the processor cannot address the memory (device spaces). The slice's
	// capacity ends with it. It is valid until the space is closed.
	// REQUIRES: the range lies within the space; it panics otherwise, because a
	// range that came from outside has been checked with Frame.Within.
	Bytes(off, n uint64) []byte
	// FD is the file descriptor that another process can map, -1 when there is
	// none. The space keeps owning it: duplicate it by passing it on, never
	// close it.
	FD() int
}

// Puncher is a Space whose physical pages can be given back while the range
// stays mapped.
type Puncher interface {
	// Punch makes the ranges read as zeros and returns their memory to the
	// system. REQUIRES: nobody uses the ranges until Punch returned, which the
	// ledger ensures by handing out only ranges that it withholds meanwhile.
	Punch(ranges []Frame) error
}

// Reader is a Space whose bytes the processor cannot address, and which copies
// them on demand: Bytes returns nil, FD -1.
type Reader interface {
	// ReadInto copies [off, off+len(p)) to p. It may be called from any goroutine.
	ReadInto(off uint64, p []byte) error
}

// Tier is memory below a Space, larger and slower, where bytes are kept while
// they are not needed. Where in it is the ledger's decision. Its methods may be
// called from any goroutine, for ranges that do not overlap.
type Tier interface {
	Reader
	// Name is for people: "disk".
	Name() string
	// Size is the capacity in bytes. UnitBytes is what sizes should be rounded to,
	// DiscardBytes from what size on a range that is not needed is worth a Discard.
	Size() uint64
	UnitBytes() uint64
	DiscardBytes() uint64
	// Write keeps p at off and returns its checksum. An error means that nothing
	// can be said about the range; what lies elsewhere is not touched.
	Write(off uint64, p []byte) (sum uint32, err error)
	// Read copies the bytes at off to p and compares their checksum, which matches
	// ErrChecksum if it is another one: then p holds rubbish.
	Read(off uint64, p []byte, sum uint32) error
	// Discard gives the place of a range back to the system.
	Discard(off, n uint64) error
}

// ErrChecksum: what was read back is not what was written.
var ErrChecksum = errors.New("checksum does not match")

// castagnoli is computed by the processor.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum continues the checksum of tiers with p; it begins with 0.
func Checksum(sum uint32, p []byte) uint32 { return crc32.Update(sum, castagnoli, p) }
