package topology

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// CPUSet is a sorted set of CPUs or of NUMA nodes.
type CPUSet []int

// maxCPU limits the numbers in a list. The kernel's own limit is 8192.
const maxCPU = 1 << 16

// ParseCPUSet parses a list in the kernel's format: "0-3,8,10-11". "" is the empty set.
func ParseCPUSet(text string) (CPUSet, error) {
	var set CPUSet
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		first, last, ranged := strings.Cut(strings.TrimSpace(part), "-")
		a, err := strconv.Atoi(first)
		b := a
		if err == nil && ranged {
			b, err = strconv.Atoi(last)
		}
		if err != nil || a < 0 || b < a || b >= maxCPU {
			return nil, fmt.Errorf("topology: %q is no list of processors, at %q", text, part)
		}
		for n := a; n <= b; n++ {
			set = append(set, n)
		}
	}
	slices.Sort(set)
	return slices.Compact(set), nil
}

// String returns the set in the kernel's format.
func (s CPUSet) String() string {
	var parts []string
	for i := 0; i < len(s); {
		j := i
		for j+1 < len(s) && s[j+1] == s[j]+1 {
			j++
		}
		if i == j {
			parts = append(parts, strconv.Itoa(s[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", s[i], s[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ",")
}

// Contains reports whether n is in the set.
func (s CPUSet) Contains(n int) bool {
	_, found := slices.BinarySearch(s, n)
	return found
}

// Intersect returns the numbers that are in both sets.
func (s CPUSet) Intersect(other CPUSet) CPUSet {
	var both CPUSet
	for _, n := range s {
		if other.Contains(n) {
			both = append(both, n)
		}
	}
	return both
}
