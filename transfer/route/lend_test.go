package route_test

import (
	"context"
	"testing"

	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/flow"
	"github.com/millrace/millrace/transfer/route"
	"github.com/millrace/millrace/transfer/transfertest"
)

// generous lends everything.
type generous struct {
	*odd
	read uint64
}

func (g *generous) Capabilities() transfer.Capabilities                   { return transfer.Capabilities{Lend: g} }
func (g *generous) CanLend(transfer.Peer, transfer.Ref) bool              { return true }
func (g *generous) Lend(transfer.Peer, transfer.Ref, *transfer.Loan) bool { return true }
func (g *generous) Read(_ transfer.Peer, bytes uint64)                    { g.read += bytes }

// An object is lent by the path that can lend, unless that has failed recently. Its bytes count
// among the bytes of that path.
func TestLendsByThePathThatCan(t *testing.T) {
	f := newFixture()
	lender := &generous{odd: &odd{Path: f.network.Path(2), name: "odd"}}
	p := route.New(route.Config{Candidates: []route.Candidate{{Path: f.network.Path(3)}, {Path: lender}, {Path: f.network.Path(2)}}})
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	var loan transfer.Loan
	if !p.CanLend(f.peer, refs[0]) || !p.Lend(f.peer, refs[0], &loan) {
		t.Error("nothing is lent")
	}
	p.Read(f.peer, 100)
	p.Read(f.peer, 11)
	if routes := p.Routes(); lender.read != 111 || routes[1].Bytes != 111 || routes[0].Bytes != 0 {
		t.Errorf("%d bytes were read; routes are %+v", lender.read, routes)
	}
	without := route.New(route.Config{Candidates: []route.Candidate{{Path: transfertest.NewNetwork().Path(3)}}})
	if without.CanLend(f.peer, refs[0]) || without.Lend(f.peer, refs[0], &loan) {
		t.Error("it lends without a path that does")
	}
	without.Read(f.peer, 1)
}

func TestNothingIsLentByAPathThatFails(t *testing.T) {
	f := newFixture()
	lender := &generous{odd: &odd{Path: f.network.Path(2), name: "odd", fetch: func(context.Context, transfer.Path, transfer.Peer, []transfer.Ref, transfer.Sink) error {
		return transfer.ErrStalled
	}}}
	p := route.New(route.Config{Candidates: []route.Candidate{{Path: lender}, {Path: f.network.Path(2)}}, Flow: flow.Config{Failures: 1}})
	f.fetched(t, p)
	if p.CanLend(f.peer, refs[0]) {
		t.Error("it is said to lend")
	}
}
