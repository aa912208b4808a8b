package alloc

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"os"
	"testing"
)

// readTrace reads a trace of a worker that MILLRACE_ALLOC_TRACE recorded.
func readTrace(tb testing.TB, path string) (steps []Step) {
	tb.Helper()
	f, err := os.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = f.Close() }() // the file was only read
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

// replay repeats the steps; blocks may get other offsets. It returns the largest number of
// requested bytes in use at one time, and whether all requests found room. It ignores claims at
// other offsets than 0, because they were only free memory on its way back to the system.
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

// Fragmentation here is measured in the smallest slab in which the whole trace finds room: it is
// the share of that slab that is not in use at the peak. It includes rounding, alignment and holes,
// but no memory that is free only because the slab is larger than necessary.
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
