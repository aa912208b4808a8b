package simd

import (
	"math/bits"
	"unsafe"

	"github.com/millrace/millrace/internal/sharedlib"
)

// Segment is a part of an array of keys to sort: signed integers, of 32 bits or, if wide is set, of
// 64 bits. Its N keys are at From, and Other has room for N keys. The sorted keys will be at Other
// if Across is not 0, otherwise at From. It has the layout of struct simd_segment.
type Segment struct {
	From, Other uint64
	N           int64
	Seed        uint64 // of the choice of pivots
	Across      int32
	Depth       int32 // the number of passes after which heapsort takes over
}

// NewSegment returns a segment of n keys, with room for as many. The caller keeps both alive.
func NewSegment(keys, other unsafe.Pointer, n int) Segment {
	return Segment{
		From: sharedlib.Address(keys), Other: sharedlib.Address(other), N: int64(n),
		Depth: int32(2 * bits.Len(uint(n))),
	}
}
