package cuda

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
)

// DefaultFraction is the default fraction of a device's memory for the slab. The rest is needed
// because each context of a child process costs about 0.5 GiB, and libraries need room.
const DefaultFraction = 0.7

// slabGranule is the unit of slab sizes: the size of the driver's pages.
const slabGranule = 2 << 20

// Size is an amount of a device's memory, in bytes or as a fraction of the total. The zero Size
// means DefaultFraction.
type Size struct {
	Bytes    uint64
	Fraction float64
}

// ParseSize reads "80GiB", "0.7", "70%", "auto" or "". A number of at most 1 with a point or a
// percent sign is a fraction.
func ParseSize(text string) (Size, error) {
	t := strings.TrimSpace(text)
	if t == "" || strings.EqualFold(t, "auto") {
		return Size{}, nil
	}
	number, percent := strings.CutSuffix(t, "%")
	if f, err := strconv.ParseFloat(strings.TrimSpace(number), 64); err == nil && (percent || strings.ContainsRune(t, '.')) {
		if percent {
			f /= 100
		}
		if f <= 0 || f > 1 || math.IsNaN(f) {
			return Size{}, fmt.Errorf("cuda: size %q: a fraction is above 0 and at most 1; write 0.7, 70%%, 80GiB or auto", text)
		}
		return Size{Fraction: f}, nil
	}
	n, err := humanize.ParseBytes(t)
	if err != nil || n == 0 {
		return Size{}, fmt.Errorf("cuda: size %q is no amount of memory; write 80GiB, 0.7, 70%% or auto", text)
	}
	return Size{Bytes: n}, nil
}

// String returns the form that ParseSize reads.
func (s Size) String() string {
	switch {
	case s.Bytes != 0:
		return humanize.IBytes(s.Bytes)
	case s.Fraction != 0:
		return strconv.FormatFloat(s.Fraction, 'f', -1, 64)
	default:
		return "auto"
	}
}

// Of returns the size on a device with total bytes, rounded down to whole pages of the driver.
func (s Size) Of(total uint64) uint64 {
	n := s.Bytes
	if n == 0 {
		f := s.Fraction
		if f == 0 {
			f = DefaultFraction
		}
		n = uint64(f * float64(total))
	}
	return n / slabGranule * slabGranule
}
