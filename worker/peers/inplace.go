package peers

import (
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/lifecycle"
)

// A kernel can read an input where it is, in the mapped memory of a peer's GPU. Package lifecycle
// decides which inputs may be read so; this file finds the peers, and leases the inputs for the
// time of a run.

// Reader returns the first holder at which an input can be read in place, if it is not here.
// REQUIRES: the path lends objects to kernels.
func (p *Peers) Reader(in *lifecycle.Input) (transfer.Peer, bool) {
	for _, h := range in.Holders {
		peer := p.all[h]
		if peer.Address == "" || !p.lender.CanLend(peer, transfer.Ref(in.Object)) {
			continue
		}
		_, here := p.config.Store.Lookup(ledger.ObjectID(in.Object))
		return peer, !here
	}
	return transfer.Peer{}, false
}

// LendInPlace leases an object at a peer for the time of a run, and says whether it could.
// REQUIRES: as for Reader.
func (p *Peers) LendInPlace(at transfer.Peer, o lifecycle.Object, into *transfer.Loan) bool {
	return p.lender.Lend(at, transfer.Ref(o), into)
}

// ReadInPlace records that a task has read some bytes of a loan at a peer, from wanted until
// usable.
func (p *Peers) ReadInPlace(loan *transfer.Loan, at transfer.Peer, bytes uint64, by ids.TaskID, wanted, usable time.Time) {
	p.lender.Read(at, bytes)
	p.fetches.write(&fetchTimes{
		first: lifecycle.Object{Task: loan.Head.Ref.Task, Generation: loan.Head.Ref.Generation}, peer: at.Worker, objects: 1, bytes: bytes, readBy: by,
		wanted: wanted, usable: usable.Sub(wanted),
	})
}
