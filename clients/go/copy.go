package millrace

import (
	"runtime"
	"sync"
)

const (
	// minCopyBytes is the smallest amount for each of several copying goroutines, since starting
	// one costs as much as copying 100 KiB.
	minCopyBytes = 8 << 20
	// maxCopiers is the number of goroutines that copy a large frame together. One core copies 5
	// GB/s where the memory allows 50 GB/s, and less into pages that are touched for the first
	// time.
	maxCopiers = 4
	hugePage   = 2 << 20
)

// copyFrame copies the smaller of the two lengths.
func copyFrame(dst, src []byte) {
	n := min(len(dst), len(src))
	dst, src = dst[:n], src[:n]
	parts := min(maxCopiers, runtime.GOMAXPROCS(0), n/minCopyBytes)
	if parts < 2 {
		copy(dst, src)
		return
	}
	// The parts are multiples of a huge page, so that each huge page is touched by one goroutine
	// only.
	step := (n/parts + hugePage) &^ (hugePage - 1)
	var others sync.WaitGroup
	for at := step; at < n; at += step {
		others.Go(func() {
			end := min(at+step, n)
			copy(dst[at:end], src[at:end])
		})
	}
	copy(dst[:step], src)
	others.Wait()
}
