package tables

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// TestBitsAreCopiedAtAllPlaces compares copies of bits with copies one by one. Bits beside the
// copied ones stay, and no byte behind the source is read.
func TestBitsAreCopiedAtAllPlaces(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 3))
	for range 20_000 {
		first, n, at := random.Int64N(80), random.Int64N(300), random.Int64N(80)
		from, to := make([]byte, (first+n+7)/8), make([]byte, (at+n+7)/8+1)
		for _, b := range [][]byte{from, to} {
			for i := range b {
				b[i] = byte(random.Uint32())
			}
		}
		want := bytes.Clone(to)
		for i := range n {
			place := at + i
			want[place/8] = want[place/8]&^(1<<(place%8)) | bit(from, first+i)<<(place%8)
		}
		copyBits(to, at, from, first, n)
		if !bytes.Equal(to, want) {
			t.Fatalf("%d bits from %d to %d: got %x, want %x", n, first, at, to, want)
		}
	}
}
