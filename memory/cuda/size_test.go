package cuda_test

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/memory/cuda"
)

func TestSizesAreBytesFractionsOrAuto(t *testing.T) {
	const total = 150109880320 // an H200
	for text, want := range map[string]uint64{
		"":       105076752384 / (2 << 20) * (2 << 20),
		"auto":   105076752384 / (2 << 20) * (2 << 20),
		"0.5":    75054940160 / (2 << 20) * (2 << 20),
		"50%":    75054940160 / (2 << 20) * (2 << 20),
		"1.0":    total / (2 << 20) * (2 << 20),
		"80GiB":  80 << 30,
		"80 GB":  80000000000 / (2 << 20) * (2 << 20),
		"123456": 0,
	} {
		s, err := cuda.ParseSize(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		got := s.Of(total)
		if diff := int64(got) - int64(want); diff < -(2<<20) || diff > 2<<20 || got%(2<<20) != 0 {
			t.Errorf("%q: %d bytes, want about %d in whole 2 MiB", text, got, want)
		}
		again, err := cuda.ParseSize(s.String())
		if err != nil || text == "80GiB" && again != s {
			t.Errorf("%q is written as %q, read as %+v, %v", text, s, again, err)
		}
	}
	for _, text := range []string{"1.5", "150%", "-0.5", "0%", "many", "80 cows", "0", "NaN%"} {
		if _, err := cuda.ParseSize(text); err == nil || !strings.Contains(err.Error(), "write") {
			t.Errorf("%q: got %v", text, err)
		}
	}
}
