package millrace

import (
	"bytes"
	"runtime"
	"testing"
)

// Frames that several goroutines copy are complete, wherever the boundaries of the parts are,
// and no byte behind them is overwritten.
func TestCopyFrame(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	for _, n := range []int{0, 1, 4096, 2*minCopyBytes - 1, 2 * minCopyBytes, 3*minCopyBytes + 12345, 5*minCopyBytes + hugePage} {
		src, dst := make([]byte, n), make([]byte, n+3)
		for i := range src {
			src[i] = byte(i>>12) ^ byte(i)
		}
		copyFrame(dst, src)
		if !bytes.Equal(dst[:n], src) || !bytes.Equal(dst[n:], make([]byte, 3)) {
			t.Errorf("%d bytes came otherwise", n)
		}
	}
}
