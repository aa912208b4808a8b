package ipc

import (
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/borrow"
)

var _ memory.Reader = (*mapping)(nil)

// lends reports whether our kernels can read a peer's memory: the gather kernel did so when the
// link was proved, with timed reads of the peer's memory.
func lends(space borrow.Memory) bool {
	m := space.(*mapping)
	return m.peer != nil && m.queue.gather != nil
}

// CanLend is part of transfer.Lender: the peer's memory is mapped and the object is in its object
// index.
func (p *Path) CanLend(at transfer.Peer, ref transfer.Ref) bool { return p.lenders.CanLend(at, ref) }

// Lend is part of transfer.Lender. The regions lie in a space that knows their device addresses
// (Pointer). It stays mapped until the loan ends, even if the peer dies, so kernels can always
// read the memory. Their result is valid if Loan.End returns true.
func (p *Path) Lend(at transfer.Peer, ref transfer.Ref, into *transfer.Loan) bool {
	if !p.lenders.Lend(at, ref, into) {
		return false
	}
	// A GPU that reported an error may return wrong bytes.
	if len(into.Regions) > 0 && into.Regions[0].Space.(*mapping).suspect() != nil {
		into.End()
		*into = transfer.Loan{}
		return false
	}
	return true
}

// Read is part of transfer.Lender: it counts bytes that kernels have read.
func (p *Path) Read(at transfer.Peer, bytes uint64) { p.lenders.Read(at, bytes) }

// Pointer returns the device address of [off, off+n). REQUIRES: the range lies within the memory,
// the memory is on a GPU, and a loan or an epoch guard keeps it.
func (m *mapping) Pointer(off, n uint64) uint64 { return m.peer.Pointer(off, n) }

// ReadInto is part of memory.Reader, for memory on a GPU.
func (m *mapping) ReadInto(off uint64, p []byte) error { return m.peer.ReadInto(off, p) }
