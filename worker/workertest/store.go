package workertest

import (
	"log/slog"
	"testing"

	"github.com/millrace/millrace/memory"
	hostmemory "github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/worker/store"
)

// NewStore returns a store with a slab of the given size in host memory. It is closed at the end of
// the test.
func NewStore(tb testing.TB, bytes uint64) *store.Store {
	tb.Helper()
	slab, err := hostmemory.NewSlab(bytes, memory.Identity{})
	if err != nil {
		tb.Fatal(err)
	}
	objects, err := store.New(slab, slog.New(slog.DiscardHandler))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		objects.Close()
		if err := slab.Close(); err != nil {
			tb.Error(err)
		}
	})
	return objects
}
