//go:build cgo && linux

package ipc_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/borrow"
	"github.com/millrace/millrace/transfer/transfertest"
)

// The device can copy from the host memory of a worker without a GPU.
func TestGPUCopiesFromHostMemoryOfAPeer(t *testing.T) {
	slab, err := host.NewSlab(256<<20, newIdentity())
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, slab)
	objects := transfertest.NewObjectsIn(transfertest.NewRoom(slab))
	address := freeAddress()
	s, err := borrow.Listen(address, borrow.ServerConfig{Space: slab, Source: objects, Incarnation: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, s)
	peer := transfer.Peer{Worker: 7, Name: "source", Address: address}
	r := newReader(t, 256<<20, nil)
	sizes := []int{0, 1, 4097, 1<<20 + 3, 128 << 20}
	var refs []transfer.Ref
	for i, n := range sizes {
		objects.Put(ref(i), "x", pattern(uint64(n)))
		refs = append(refs, ref(i))
	}
	sink := transfertest.NewSinkIn(r.room)
	if err := r.path.Fetch(t.Context(), peer, refs, sink); err != nil {
		t.Fatal(err)
	}
	for i, n := range sizes {
		if _, frames, done, err := sink.Result(i); !done || err != nil || !bytes.Equal(frames[0], pattern(uint64(n))) {
			t.Errorf("%d bytes: done %v, %v, or they differ", n, done, err)
		}
	}
	transfertest.NoLeases(t, objects)
	link := r.path.Links()[address]
	if !link.Host || link.BytesPerSecond <= 0 {
		t.Errorf("the link is %s", link)
	}
	r.room.Reset()
	again := transfertest.NewSinkIn(r.room)
	began := time.Now()
	if err := r.path.Fetch(t.Context(), peer, refs[len(refs)-1:], again); err != nil {
		t.Fatal(err)
	}
	tell(t, "128 MiB from host memory of a peer", float64(128<<20)/time.Since(began).Seconds()/1e9, "GB/s")
}
