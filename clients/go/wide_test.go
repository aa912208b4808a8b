package millrace

import "testing"

// A task of many inputs once took memory proportional to the square of their number: 30 GB for
// 100,000 inputs.
func TestWideTaskTakesMemoryOfItsInputsOnly(t *testing.T) {
	g := new(GraphBuilder)
	const n = 100_000
	if got := len(g.positional(n)); got < n || got > 16*n {
		t.Fatalf("arguments of %d inputs take %d bytes", n, got)
	}
	kept := 0
	for _, b := range g.packed {
		kept += len(b)
	}
	if kept > 1<<20 {
		t.Fatalf("%d bytes kept beside them", kept)
	}
	if a, b := string(g.positional(3)), string(g.positional(n)[:len(g.positional(3))]); a != b {
		t.Fatalf("inputs 0..2 are %x alone and %x among others", a, b)
	}
}
