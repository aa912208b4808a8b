package faults

import (
	"fmt"
	"slices"
	"testing"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// protocol is a path for bytes from worker to worker.
type protocol struct {
	name  string
	flags []string
	// sameHost: the path works only between workers on the same host.
	sameHost bool
	// path and transport are those of the route that a worker reports.
	path      millracev1.TransferPath
	transport string
}

var (
	byGRPC   = protocol{name: "grpc", flags: []string{"--protocol", "grpc"}, path: millracev1.TransferPath_TRANSFER_PATH_GRPC}
	byTCP    = protocol{name: "ucx tcp", flags: []string{"--protocol", "ucx", "--ucx-tls", "tcp"}, path: millracev1.TransferPath_TRANSFER_PATH_UCX, transport: "tcp"}
	byCMA    = protocol{name: "ucx cma", flags: []string{"--protocol", "ucx", "--ucx-tls", "posix,cma"}, sameHost: true, path: millracev1.TransferPath_TRANSFER_PATH_UCX, transport: "cma"}
	byBorrow = protocol{name: "borrow", flags: []string{"--protocol", "borrow"}, sameHost: true, path: millracev1.TransferPath_TRANSFER_PATH_BORROW}

	// betweenHosts are the protocols that work between hosts.
	betweenHosts = []protocol{byGRPC, byTCP}
	allProtocols = []protocol{byGRPC, byTCP, byCMA, byBorrow}
)

// forEachProtocol runs a test once for each protocol, all in parallel with the other tests.
func forEachProtocol(t *testing.T, protocols []protocol, test func(t *testing.T, p protocol)) {
	t.Helper()
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			test(t, p)
		})
	}
}

// pair starts the workers source-0 and reader-0. Their slabs are a quarter larger than the bytes
// that tests transfer.
func (c *cluster) pair(p protocol, s spec) {
	c.t.Helper()
	c.source(p, s)
	c.reader(p, s)
}

func (c *cluster) source(p protocol, s spec) {
	c.t.Helper()
	s.protocol, s.host, s.name, s.slab = p, 1, "source", fmt.Sprint(transferBytes()/4*5)
	c.run(s)
}

func (c *cluster) reader(p protocol, s spec) {
	c.t.Helper()
	s.protocol, s.host, s.name, s.slab, s.listen = p, 2, "reader", fmt.Sprint(transferBytes()/4*5), ""
	if p.sameHost {
		s.host = 1
	}
	c.run(s)
}

// awaitRoute waits until a reader's bytes come from a source by the protocol under test, and not by
// a fallback of the route selector. If necessary, it makes the reader read an object.
func (c *cluster) awaitRoute(p protocol, source, reader string) {
	c.t.Helper()
	var last time.Time
	c.until(fmt.Sprintf("%s reads from %s by %s", reader, source, p.name), func() bool {
		if slices.ContainsFunc(c.awaitWorker(reader).GetRoutes(), func(l *millracev1.Route) bool {
			return l.GetPeer() == source && l.GetPath() == p.path && l.GetTransport() == p.transport && l.GetReceivedBytes() > 0
		}) {
			return true
		}
		// Workers report routes with their next heartbeat, so read only every 2 s until then.
		if time.Since(last) > 2*time.Second {
			o := c.stamp(1<<40, 1<<20, nil, millrace.WithWorkers(source))
			r := c.stamp(1<<40+1, 32, []object{o}, millrace.WithWorkers(reader))
			c.wait(r)
			release(o, r)
			last = time.Now()
		}
		return false
	})
}
