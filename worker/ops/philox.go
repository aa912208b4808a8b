package ops

import "math/bits"

// Philox4x32-10 (Salmon, Moraes, Dror and Shaw, 2011) is a keyed bijection of 128-bit counters. Any
// block of the stream can be computed without the blocks before it.
const (
	philoxM0     = 0xD2511F53
	philoxM1     = 0xCD9E8D57
	philoxW0     = 0x9E3779B9
	philoxW1     = 0xBB67AE85
	philoxRounds = 10
)

func philox(counter [4]uint32, key [2]uint32) [4]uint32 {
	c0, c1, c2, c3 := counter[0], counter[1], counter[2], counter[3]
	k0, k1 := key[0], key[1]
	for range philoxRounds {
		high0, low0 := bits.Mul32(philoxM0, c0)
		high1, low1 := bits.Mul32(philoxM1, c2)
		c0, c1, c2, c3 = high1^c1^k0, low1, high0^c3^k1, low0
		k0 += philoxW0
		k1 += philoxW1
	}
	return [4]uint32{c0, c1, c2, c3}
}

// philoxStream is the sequence of 64-bit words that belongs to a seed. Word i is half i%2 of block
// i/2, whose counter is {low, high half of i/2, 0, 0} and whose key is {low, high half of the
// seed}. Half h has output 2h in its lower and output 2h+1 in its upper 32 bits.
type philoxStream struct {
	key [2]uint32
}

func newPhiloxStream(seed int64) philoxStream {
	return philoxStream{[2]uint32{uint32(seed), uint32(uint64(seed) >> 32)}}
}

// block returns the pair of words 2i and 2i+1.
func (s philoxStream) block(i uint64) (even, odd uint64) {
	out := philox([4]uint32{uint32(i), uint32(i >> 32)}, s.key)
	return uint64(out[0]) | uint64(out[1])<<32, uint64(out[2]) | uint64(out[3])<<32
}
