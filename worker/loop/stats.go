package loop

import (
	"bytes"
	"os"
	"strconv"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

func (w *Worker) stats() *millracev1.WorkerStats {
	books, _, small := w.config.Store.Stats()
	s := &millracev1.WorkerStats{MemoryUsedBytes: books.HeldBytes + books.ReservedBytes + small, RssBytes: rss()}
	if w.config.Traffic != nil {
		s.BytesIn, s.BytesOut = w.config.Traffic()
	}
	if w.config.Executors != nil {
		s.ExecutorDeaths, s.LastExecutorDeath = w.config.Executors.Deaths()
	}
	return s
}

// rss is the resident set size without shared memory, which is the slab; 0 if the
// system does not tell.
func rss() (n uint64) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(status) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		if string(name) != "RssAnon" && string(name) != "RssFile" {
			continue
		}
		kib, err := strconv.ParseUint(string(bytes.TrimSuffix(bytes.TrimSpace(value), []byte(" kB"))), 10, 64)
		if err == nil {
			n += kib << 10
		}
	}
	return n
}
