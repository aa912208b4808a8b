package alloc

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"os"
	"testing"
)

// readTrace reads what MILLRACE_ALLOC_TRACE has recorded of a worker.
func readTrace(tb testing.TB, path string) (steps []Step) {
	tb.Helper()
	f, err := os.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = f.Close() }() // nothing was written
	z, err := gzip.NewReader(f)
	if err != nil {
		tb.Fatal(err)
	}
	in := bufio.NewScanner(z)
	for in.Scan() {
		var s Step
		if _, err := fmt.Sscanf(in.Text(), "%c %d %d", &s.Kind, &s.Offset, &s.Bytes); err != nil {
			tb.Fatalf("%s: line %d: %q: %v", path, len(steps)+1, in.Text(), err)
		}
		steps = append(steps, s)
	}
	if err := in.Err(); err != nil {
		tb.Fatal(err)
	}
	return steps
}

// replay makes the steps again, wherever that puts the blocks. It returns the most
// bytes that were asked for and in use at one time, and whether all found room.
// What was claimed inside was only free memory on its way back to the system.
func replay(a *Allocator, steps []Step) (peak uint64, ok bool) {
	type block struct{ at, bytes uint64 }
	blocks := make(map[uint64]block)
	var live uint64
	for _, s := range steps {
		switch s.Kind {
		case Allocated:
			at, ok := a.Alloc(s.Bytes)
			if !ok {
				return peak, false
			}
			blocks[s.Offset] = block{at, s.Bytes}
			live += s.Bytes
		case Claimed:
			if s.Offset == 0 && a.Claim(0, s.Bytes) {
				live += s.Bytes
			}
		case Cut:
			b := blocks[s.Offset]
			if rest, ok := a.Split(b.at, s.Bytes); ok {
				blocks[s.Offset] = block{b.at, min(b.bytes, s.Bytes)}
				blocks[s.Offset+rest-b.at] = block{rest, b.bytes - min(b.bytes, s.Bytes)}
			}
		case Freed:
			if b, ok := blocks[s.Offset]; ok {
				delete(blocks, s.Offset)
				a.Free(b.at)
				live -= b.bytes
			}
		}
		peak = max(peak, live)
	}
	return peak, true
}

// Fragmentation is what it costs: of the smallest slab in which the whole trace
// finds room, the share that is not in use when most is. That counts rounding,
// alignment and holes, and nothing that a larger slab merely leaves free.
func TestFragmentationOfTheMainJob(t *testing.T) {
	for _, name := range []string{"digits-0", "digits-1"} {
		t.Run(name, func(t *testing.T) {
			steps := readTrace(t, "testdata/"+name+".trace.gz")
			large, err := New(MaxBytes)
			if err != nil {
				t.Fatal(err)
			}
			peak, ok := replay(large, steps)
			if !ok || peak == 0 {
				t.Fatalf("peak %d, %v", peak, ok)
			}
			for size := Rounded(peak); ; size += Rounded(peak / 500) {
				a, err := New(size)
				if err != nil {
					t.Fatal(err)
				}
				if _, ok := replay(a, steps); !ok {
					continue
				}
				share := 1 - float64(peak)/float64(size)
				t.Logf("%d steps, %d bytes at most in use, all find room in %d: fragmentation %.1f %%", len(steps), peak, size, 100*share)
				if share >= 0.1 {
					t.Errorf("fragmentation %.1f %%, want less than 10", 100*share)
				}
				return
			}
		})
	}
}

func BenchmarkReplayOfTheMainJob(b *testing.B) {
	steps := readTrace(b, "testdata/digits-0.trace.gz")
	for b.Loop() {
		a, err := New(MaxBytes)
		if err != nil {
			b.Fatal(err)
		}
		if _, ok := replay(a, steps); !ok {
			b.Fatal("no room")
		}
	}
	b.ReportMetric(float64(len(steps)*b.N)/b.Elapsed().Seconds(), "steps/s")
}
