package inproc_test

import (
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/inproc"
	"github.com/millrace/millrace/transfer/transfertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(transfertest.Goroutines{M: m}) }

func TestConformance(t *testing.T) { harness().Run(t) }

// The same suite, from and to spaces that the CPU cannot address.
func TestConformanceOfStagedSpaces(t *testing.T) {
	h, rooms := harness(), map[transfer.Path]*transfertest.Room{}
	path := h.Path
	h.Path = func(t *testing.T, stall time.Duration) transfer.Path {
		t.Helper()
		p := path(t, stall)
		rooms[p] = transfertest.NewRoom(transfertest.NewFar(t, 512<<20))
		return p
	}
	h.Objects = func(t *testing.T) *transfertest.Objects {
		t.Helper()
		return transfertest.NewObjectsIn(transfertest.NewRoom(transfertest.NewFar(t, 512<<20)))
	}
	h.Room = func(p transfer.Path) *transfertest.Room { return rooms[p] }
	h.Run(t)
}

func harness() transfertest.Harness {
	network, served := inproc.NewNetwork(), 0
	return transfertest.Harness{
		Serve: func(_ *testing.T, source transfer.Source) (transfer.Peer, func()) {
			served++
			peer := transfer.Peer{Worker: 1, Name: "peer", Address: fmt.Sprint("source-", served)}
			network.Add(peer.Address, source)
			return peer, func() { network.Remove(peer.Address) }
		},
		Path: func(t *testing.T, _ time.Duration) transfer.Path {
			t.Helper()
			path := network.Path(2)
			t.Cleanup(func() {
				if err := path.Close(); err != nil {
					t.Error(err)
				}
			})
			return path
		},
	}
}
