package sim

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
)

// traceLines is the number of lines that are kept for a failure report.
const traceLines = 20_000

// trace hashes every line of the trace, and keeps the last ones.
type trace struct {
	hash  *xxhash.Digest
	ring  [traceLines][]byte
	lines uint64
	// whole receives every line; may be nil.
	whole io.Writer
}

func newTrace(whole io.Writer) *trace { return &trace{hash: xxhash.New(), whole: whole} }

func (t *trace) add(at time.Duration, format string, args ...any) {
	slot := &t.ring[t.lines%traceLines]
	*slot = fmt.Appendf((*slot)[:0], "%12.6f ", at.Seconds())
	*slot = fmt.Appendf(*slot, format, args...)
	*slot = append(*slot, '\n')
	_, _ = t.hash.Write(*slot)
	if t.whole != nil {
		_, _ = t.whole.Write(*slot)
	}
	t.lines++
}

// tail returns the kept lines that contain match, oldest first; if match is empty, the last n
// lines.
func (t *trace) tail(n int, match string) string {
	var b strings.Builder
	first := uint64(0)
	if t.lines > traceLines {
		first = t.lines - traceLines
	}
	if match == "" && t.lines > uint64(n) && t.lines-uint64(n) > first {
		first = t.lines - uint64(n)
	}
	for i := first; i < t.lines; i++ {
		if line := t.ring[i%traceLines]; match == "" || strings.Contains(string(line), match) {
			b.Write(line)
		}
	}
	return b.String()
}
