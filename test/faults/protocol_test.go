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
	// together: the path only works between workers on the same host.
	together bool
	// path and transport are what a worker reports as its route.
	path      millracev1.TransferPath
	transport string
}

var (
	byGRPC   = protocol{name: "grpc", flags: []string{"--protocol", "grpc"}, path: millracev1.TransferPath_TRANSFER_PATH_GRPC}
	byTCP    = protocol{name: "ucx tcp", flags: []string{"--protocol", "ucx", "--ucx-tls", "tcp"}, path: millracev1.TransferPath_TRANSFER_PATH_UCX, transport: "tcp"}
	byCMA    = protocol{name: "ucx cma", flags: []string{"--protocol", "ucx", "--ucx-tls", "posix,cma"}, together: true, path: millracev1.TransferPath_TRANSFER_PATH_UCX, transport: "cma"}
	byBorrow = protocol{name: "borrow", flags: []string{"--protocol", "borrow"}, together: true, path: millracev1.TransferPath_TRANSFER_PATH_BORROW}

	apart      = []protocol{byGRPC, byTCP}
	everywhere = []protocol{byGRPC, byTCP, byCMA, byBorrow}
)

// with runs a test once for each protocol, all in parallel with the other tests.
func with(t *testing.T, protocols []protocol, test func(t *testing.T, p protocol)) {
	t.Helper()
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			test(t, p)
		})
	}
}

// pair starts source-0 and reader-0. Their slabs hold the bytes that tests move, and some more.
func (c *cluster) pair(p protocol, s spec) {
	c.t.Helper()
	c.source(p, s)
	c.reader(p, s)
}

func (c *cluster) source(p protocol, s spec) {
	c.t.Helper()
	s.by, s.host, s.name, s.limit = p, 1, "source", fmt.Sprint(moved()/4*5)
	c.run(s)
}

func (c *cluster) reader(p protocol, s spec) {
	c.t.Helper()
	s.by, s.host, s.name, s.limit, s.listen = p, 2, "reader", fmt.Sprint(moved()/4*5), ""
	if p.together {
		s.host = 1
	}
	c.run(s)
}

// carried waits until a reader's bytes come from a source by the protocol under test, and not by a
// fallback of the route selector. If necessary, it makes the reader read an object.
func (c *cluster) carried(p protocol, source, reader string) {
	c.t.Helper()
	var last time.Time
	c.until(fmt.Sprintf("%s reads from %s by %s", reader, source, p.name), func() bool {
		if slices.ContainsFunc(c.must(reader).GetRoutes(), func(l *millracev1.Route) bool {
			return l.GetPeer() == source && l.GetPath() == p.path && l.GetTransport() == p.transport && l.GetReceivedBytes() > 0
		}) {
			return true
		}
		// Workers report it with their next heartbeat, so do not read all the time until then.
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
