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

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	network, served := inproc.NewNetwork(), 0
	transfertest.Harness{
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
	}.Run(t)
}
