//go:build cgo && linux

package ucx_test

import (
	"testing"

	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/transfertest"
)

// TestAMessageWhoseBytesAreToBeFetchedEndsItsConnection: with rendezvous, the library passes a
// descriptor instead of the bytes. A peer may send so if it has other settings in its environment.
// It loses its connection, and nothing reads beyond the descriptor.
func TestAMessageWhoseBytesAreToBeFetchedEndsItsConnection(t *testing.T) {
	objects := newObjects(t)
	objects.Put(transfer.Ref{Task: 1, Generation: 1}, "h", make([]byte, 1000))
	c := startChild(t, childOrder{TLS: "posix,cma,self"}, objects)
	r := newReader(t, "posix,cma,self", transfertest.Patience)
	if _, err := r.path.Connect(t.Context(), c.peer); err != nil {
		t.Fatal(err)
	}
	if n := r.context.SendByRendezvous(1 << 20); n != 1 {
		t.Fatalf("sent on %d connections", n)
	}
	for r.context.Connections() > 0 { // until the source has closed it
		if t.Context().Err() != nil {
			t.Fatal("the connection did not end")
		}
	}
	sink := transfertest.NewSink()
	if err := r.path.Fetch(t.Context(), c.peer, []transfer.Ref{{Task: 1, Generation: 1}}, sink); err != nil {
		t.Fatalf("a new connection: %v", err)
	}
}
