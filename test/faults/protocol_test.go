package faults

import (
	"fmt"
	"testing"
)

// protocol is a way for bytes from worker to worker.
type protocol struct {
	name  string
	flags []string
	// together: it leads only to workers on the same host.
	together bool
}

var (
	byGRPC   = protocol{name: "grpc", flags: []string{"--protocol", "grpc"}}
	byTCP    = protocol{name: "ucx tcp", flags: []string{"--protocol", "ucx", "--ucx-tls", "tcp"}}
	byCMA    = protocol{name: "ucx cma", flags: []string{"--protocol", "ucx", "--ucx-tls", "posix,cma"}, together: true}
	byBorrow = protocol{name: "borrow", flags: []string{"--protocol", "borrow"}, together: true}

	apart      = []protocol{byGRPC, byTCP}
	everywhere = []protocol{byGRPC, byTCP, byCMA, byBorrow}
)

// with runs a test once for each protocol, each beside whatever else there is.
func with(t *testing.T, protocols []protocol, test func(t *testing.T, p protocol)) {
	t.Helper()
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			test(t, p)
		})
	}
}

// pair starts a source and a reader, source-0 and reader-0, whose slabs hold the bytes that tests move and some more.
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
