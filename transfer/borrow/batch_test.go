package borrow_test

import (
	"testing"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/borrow"
	"github.com/millrace/millrace/transfer/transfertest"
)

// room returns a room in a slab of its own.
func room(tb testing.TB) *transfertest.Room {
	tb.Helper()
	slab, err := host.NewSlab(1<<20, memory.Identity{WorkerUUID: [16]byte{1}, Incarnation: [16]byte{2}, Nonce: 3})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := slab.Close(); err != nil {
			tb.Error(err)
		}
	})
	return transfertest.NewRoom(slab)
}

// TestABatchOfHostMemory: a connection to the host memory of a GPU's worker takes leases from the
// source of that memory, and gives them back to the same source. An object with empty frames shows
// the difference, because its frames lie in no memory.
func TestABatchOfHostMemory(t *testing.T) {
	gpu, mirror := transfertest.NewObjectsIn(room(t)), transfertest.NewObjectsIn(room(t))
	empty := transfer.Ref{Task: 2, Generation: 1}
	for _, objects := range []*transfertest.Objects{gpu, mirror} {
		objects.Put(one, "", []byte("some bytes"))
		objects.Put(empty, "", nil)
	}
	peer, _ := listen(t, borrow.ServerConfig{
		Space: gpu.Room().Space(), Device: &borrow.Device{}, Source: gpu,
		Host: &borrow.Host{Space: mirror.Room().Space(), Source: mirror},
	})
	b, err := open(t, borrow.Config{}).Batch(t.Context(), peer, []transfer.Ref{one, empty})
	if err != nil {
		t.Fatal(err)
	}
	for i, o := range b.Objects {
		if o.Err != nil {
			t.Errorf("object %d: %v, want a loan", i, o.Err)
		}
	}
	if gpu, mirror := gpu.Leases(), mirror.Leases(); gpu != 0 || mirror != 2 {
		t.Fatalf("%d leases of the GPU's memory and %d of host memory, want 0 and 2", gpu, mirror)
	}
	b.EndAll()
	transfertest.NoLeases(t, mirror)
}
