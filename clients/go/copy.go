package millrace

import (
	"runtime"
	"sync"
)

const (
	// copyPart is what each of several copiers gets at least: starting one costs as much as copying 100 KiB.
	copyPart = 8 << 20
	// copiers move a frame together: one processor alone moves 5 GB/s where memory has 50, and less into pages that are
	// touched for the first time.
	copiers  = 4
	hugePage = 2 << 20
)

// copyFrame copies as many bytes as both have.
func copyFrame(dst, src []byte) {
	n := min(len(dst), len(src))
	dst, src = dst[:n], src[:n]
	parts := min(copiers, runtime.GOMAXPROCS(0), n/copyPart)
	if parts < 2 {
		copy(dst, src)
		return
	}
	// A huge page is touched by one of them only.
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
