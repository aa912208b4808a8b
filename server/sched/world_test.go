package sched_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/server/schedtest"
)

type rapidSource struct{ t *rapid.T }

func (s rapidSource) Intn(n int) int {
	if n <= 1 {
		return 0
	}
	return rapid.IntRange(0, n-1).Draw(s.t, "")
}

// prng is a fast random source for many seeds (xorshift64*).
type prng uint64

func (p *prng) Intn(n int) int {
	x := uint64(*p)
	x ^= x >> 12
	x ^= x << 25
	x ^= x >> 27
	*p = prng(x)
	if n <= 1 {
		return 0
	}
	return int(x * 0x2545f4914f6cdd1d >> 33 % uint64(n))
}

// bytesSource takes its choices from a fuzzer's input. After the end of the input it always chooses
// 0.
type bytesSource struct{ data []byte }

func (s *bytesSource) Intn(n int) int {
	if n <= 1 || len(s.data) == 0 {
		return 0
	}
	v := int(s.data[0])
	s.data = s.data[1:]
	if n > 256 && len(s.data) > 0 {
		v = v<<8 | int(s.data[0])
		s.data = s.data[1:]
	}
	return v % n
}

func tail(lines []string, n int) string {
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func TestAnyWorldEndsWell(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := schedtest.NewWorld(rapidSource{t})
		if err := w.Run(rapid.IntRange(1, 150).Draw(t, "steps")); err != nil {
			t.Fatalf("%v\n%s", err, tail(w.Trace, 200))
		}
	})
}

func TestManySeedsEndWell(t *testing.T) {
	seeds := 400
	if testing.Short() {
		seeds = 50
	}
	for seed := 1; seed <= seeds; seed++ {
		p := prng(uint64(seed) * 0x9e3779b97f4a7c15)
		w := schedtest.NewWorld(&p)
		if err := w.Run(400); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, tail(w.Trace, 150))
		}
	}
}

func FuzzMachine(f *testing.F) {
	f.Add([]byte("millrace"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 4096 {
			data = data[:4096]
		}
		w := schedtest.NewWorld(&bytesSource{data})
		if err := w.Run(min(len(data), 300)); err != nil {
			t.Fatalf("%v\n%s", err, tail(w.Trace, 150))
		}
	})
}

func TestSameChoicesSameEffects(t *testing.T) {
	for seed := 1; seed <= 20; seed++ {
		var traces [2]string
		for i := range traces {
			p := prng(uint64(seed) * 0x9e3779b97f4a7c15)
			w := schedtest.NewWorld(&p)
			if err := w.Run(300); err != nil {
				t.Fatal(err)
			}
			for _, line := range w.Trace {
				// Only lines of effects: events print with addresses in them.
				if strings.HasPrefix(line, "  ") {
					traces[i] += line + "\n"
				}
			}
		}
		if traces[0] != traces[1] {
			t.Fatalf("seed %d: two runs differ", seed)
		}
	}
}
