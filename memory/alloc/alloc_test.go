package alloc_test

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/memory/alloc"
)

// sizes draws requests of all kinds: tiny, near the limits of the classes, and big.
func sizes(limit int) *rapid.Generator[uint64] {
	return rapid.Custom(func(t *rapid.T) uint64 {
		log := rapid.IntRange(0, limit).Draw(t, "log")
		return uint64(max(0, (1<<log)+rapid.IntRange(-1, 1<<log).Draw(t, "off")))
	})
}

func TestAllocatorAgreesWithBitmap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// The larger spaces have room for several big, aligned blocks.
		granules := rapid.SampledFrom([]int{1, 31, 257, 4096, 40_000, 300_000}).Draw(t, "granules")
		m, err := newModel(granules)
		if err != nil {
			t.Fatal(err)
		}
		must := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		limit := 12
		switch {
		case granules > 100_000:
			limit = 26
		case granules > 8192:
			limit = 22
		}
		t.Repeat(map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) { must(m.alloc(sizes(limit).Draw(t, "bytes"))) },
			"free": func(t *rapid.T) {
				if len(m.blocks) == 0 {
					t.Skip("nothing to free")
				}
				m.free(rapid.IntRange(0, len(m.blocks)-1).Draw(t, "which"))
			},
			"split": func(t *rapid.T) {
				if len(m.blocks) == 0 {
					t.Skip("nothing to split")
				}
				must(m.split(rapid.IntRange(0, len(m.blocks)-1).Draw(t, "which"), sizes(limit).Draw(t, "bytes")))
			},
			"claim": func(t *rapid.T) {
				must(m.claim(rapid.Uint64Range(0, uint64(granules+2)*alloc.Granule).Draw(t, "off"), sizes(limit).Draw(t, "bytes")))
			},
			"": func(t *rapid.T) { must(m.check()) },
		})
		for len(m.blocks) > 0 {
			m.free(len(m.blocks) / 2)
		}
		must(m.check())
		if s := m.real.Stats(); s.LargestFree != s.Size {
			t.Fatalf("after freeing all, the largest free block has %d of %d bytes", s.LargestFree, s.Size)
		}
	})
}

func FuzzAllocatorAgreesWithBitmap(f *testing.F) {
	f.Add(uint16(64), []byte{0, 3, 0, 9, 1, 0, 2, 1, 3, 5})
	f.Add(uint16(40_000), []byte{0, 200, 0, 201, 0, 90, 1, 0, 0, 199, 1, 1, 3, 140})
	f.Fuzz(func(t *testing.T, granules uint16, script []byte) {
		m, err := newModel(int(granules) + 1)
		if err != nil {
			t.Fatal(err)
		}
		for ; len(script) >= 2; script = script[2:] {
			verb, arg := script[0]%4, uint64(script[1])
			// The high bits of the argument choose the magnitude, so that one byte covers the range
			// from a granule to several MiB.
			bytes := (arg&15 + 1) << (arg >> 4) * 32
			if verb != 0 && verb != 3 && len(m.blocks) == 0 {
				continue
			}
			switch verb {
			case 0:
				err = m.alloc(bytes)
			case 1:
				m.free(int(arg) % len(m.blocks))
			case 2:
				err = m.split(int(script[0]/4)%len(m.blocks), bytes)
			case 3:
				err = m.claim(uint64(script[0]/4)*alloc.Granule*uint64(granules)/64, bytes)
			}
			if err == nil {
				err = m.real.Check()
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := m.check(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestNewRefusesSizesItCannotManage(t *testing.T) {
	for _, size := range []uint64{0, 1, alloc.Granule - 1, alloc.Granule + 1, alloc.MaxBytes + alloc.Granule, 1 << 63} {
		if _, err := alloc.New(size); !errors.Is(err, alloc.ErrSize) {
			t.Errorf("New(%d): got %v, want ErrSize", size, err)
		}
	}
}

func TestLargestSpaceIsOneBlockToItsEnd(t *testing.T) {
	a, err := alloc.New(alloc.MaxBytes)
	if err != nil {
		t.Fatal(err)
	}
	off, ok := a.Alloc(alloc.MaxBytes)
	if !ok || off != 0 {
		t.Fatalf("the whole of an empty space: got %d, %v", off, ok)
	}
	if _, ok := a.Alloc(1); ok {
		t.Fatal("a full space gave a block")
	}
	a.Free(off)
	if _, ok := a.Alloc(1); !ok {
		t.Fatal("an empty space gave no block")
	}
	// Because of the alignment, the largest request that still fits begins at offset 2 MiB.
	if off, ok := a.Alloc(alloc.MaxBytes - alloc.HugeBytes); !ok || off != alloc.HugeBytes {
		t.Fatalf("big block behind a small one: got %d, %v", off, ok)
	}
	if _, ok := a.Alloc(alloc.HugeBytes); ok {
		t.Fatal("a big block fitted where only unaligned space is left")
	}
	if err := a.Check(); err != nil {
		t.Fatal(err)
	}
}

func TestMisusePanics(t *testing.T) {
	for name, f := range map[string]func(a *alloc.Allocator){
		"free of nothing":        func(a *alloc.Allocator) { a.Free(512) },
		"free inside of a block": func(a *alloc.Allocator) { off, _ := a.Alloc(1024); a.Free(off + alloc.Granule) },
		"free twice":             func(a *alloc.Allocator) { off, _ := a.Alloc(1); a.Free(off); a.Free(off) },
		"split of nothing":       func(a *alloc.Allocator) { a.Split(0, 1) },
		"free behind the end":    func(a *alloc.Allocator) { a.Free(1 << 40) },
	} {
		t.Run(name, func(t *testing.T) {
			a, err := alloc.New(1 << 20)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			f(a)
		})
	}
}

// mix draws sizes that are typical of a worker: mostly small, some chunks, few big.
func mix(x uint64) uint64 {
	switch x >> 8 % 10 {
	case 0:
		return x>>16%(8<<20) + 1
	case 1, 2, 3:
		return x>>16%(256<<10) + 1
	default:
		return x>>16%4096 + 1
	}
}

// BenchmarkAllocFree replaces one random block of 1,000 blocks in use per step.
func BenchmarkAllocFree(b *testing.B) {
	for _, c := range []struct {
		name string
		size func(uint64) uint64
	}{
		{"small", func(x uint64) uint64 { return x>>16%4096 + 1 }},
		{"mixed", mix},
		{"chunks", func(x uint64) uint64 { return 1 << 20 << (x >> 16 % 4) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			a, err := alloc.New(64 << 30)
			if err != nil {
				b.Fatal(err)
			}
			live := make([]uint64, 1000)
			x := uint64(1)
			next := func() uint64 { x ^= x << 13; x ^= x >> 7; x ^= x << 17; return x }
			for i := range live {
				live[i], _ = a.Alloc(c.size(next()))
			}
			b.ReportAllocs()
			for b.Loop() {
				r := next()
				i := r % 1000
				a.Free(live[i])
				off, ok := a.Alloc(c.size(r))
				if !ok {
					b.Fatal("full")
				}
				live[i] = off
			}
			b.ReportMetric(100*fragmentation(a.Stats()), "%frag")
		})
	}
}

// The alignment costs at most a sixteenth, for every size.
func TestBlocksOfOneSizeFillTheSpace(t *testing.T) {
	const space = 1 << 30
	for _, bytes := range []uint64{
		alloc.PagedBytes + 1, 1<<20 + 1, alloc.HugeBytes + 1, 6<<20 + 1, 8_000_000, 16<<20 + 1, alloc.BigBytes - 1, alloc.BigBytes + 1,
	} {
		a, err := alloc.New(space)
		if err != nil {
			t.Fatal(err)
		}
		n := uint64(0)
		for _, ok := a.Alloc(bytes); ok; _, ok = a.Alloc(bytes) {
			n++
		}
		if left := space - n*bytes; left > space/16+bytes {
			t.Errorf("blocks of %d bytes: %d find room and leave %d of %d bytes", bytes, n, left, space)
		}
	}
}

// fragmentation is the share of the free bytes that lie outside of the largest free block: 0 if all
// free bytes are one block or nothing is free, near 1 if the free bytes are in many small blocks.
func fragmentation(s alloc.Stats) float64 {
	if s.Free == 0 {
		return 0
	}
	return 1 - float64(s.LargestFree)/float64(s.Free)
}
