// Package transfer is an Interface: how the bytes of objects get from one
// process to another. It knows nothing of tasks.
//
// The receiver pulls, after it has reserved the memory: it asks a peer for
// objects, hears how large they are, provides a place for each, and is told when
// the bytes are there and valid. What carries them (gRPC, a mapped memfd, a
// one-sided read) is a Path; which path to take is decided above.
package transfer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
)

// The kinds of errors.
var (
	// ErrNotHere: the peer does not hold the object (any more). Another holder
	// may; asking this one again is no use.
	ErrNotHere = errors.New("object is not here")
	// ErrPeerLost: the peer cannot be reached, or went away in the middle.
	ErrPeerLost = errors.New("peer cannot be reached")
	// ErrStalled: the peer is there and no byte came for too long.
	ErrStalled = errors.New("no progress")
	// ErrProtocol: the peer said something that makes no sense.
	ErrProtocol = errors.New("protocol violation")
	// ErrDenied: the peer does not accept our credentials.
	ErrDenied = errors.New("permission denied")
	// ErrNoWay: this path does not lead to that peer, as both are now, or not to
	// that object there; another one may.
	ErrNoWay = errors.New("no such way")
)

// Ref names one generation of an object.
type Ref struct {
	Task ids.TaskID
	// Generation is the attempt that made it. 0 asks for whatever is there.
	Generation ids.Attempt
}

// String returns task and attempt, as in t42/a1.
func (r Ref) String() string { return r.Task.String() + "/" + r.Generation.String() }

// Head describes an object.
type Head struct {
	Ref Ref
	// Header is opaque here: a serialised Value.
	Header []byte
	// FrameBytes are the sizes of its frames.
	FrameBytes []uint64
}

// Bytes is the sum of the frames' sizes.
func (h Head) Bytes() (n uint64) {
	for _, b := range h.FrameBytes {
		n += b
	}
	return n
}

// Region is a frame in a space: what a path reads from or writes to. A path that
// needs registered memory finds the registration by the space.
type Region struct {
	Space memory.Space
	Frame memory.Frame
}

// Bytes returns the region in place, nil if the processor cannot address it.
func (r Region) Bytes() []byte {
	if r.Frame.Bytes == 0 {
		return nil
	}
	return r.Space.Bytes(r.Frame.Offset, r.Frame.Bytes)
}

// Peer says how to reach a worker.
type Peer struct {
	Worker ids.WorkerID
	Name   string
	// Address is the host:port of its DataService.
	Address string
}

// String names the peer for messages.
func (p Peer) String() string {
	return fmt.Sprintf("%s (%s, %s)", p.Name, p.Worker, p.Address)
}

// Sink is where a fetch puts what it gets. Its methods are called from the
// goroutine of the fetch, Place before Done, Done exactly once for each object
// of the request unless Fetch fails as a whole.
type Sink interface {
	// Place provides a region for each frame of the object at index in the
	// request. It may wait for memory. Its error becomes that of the object, and
	// the rest of the fetch goes on.
	Place(ctx context.Context, index int, head Head) ([]Region, error)
	// Done says that the object is in place and valid, or, with an error, that
	// it will not be: nothing writes to its regions any more.
	Done(index int, err error)
}

// Path is one way to get at the objects of peers. Its methods may be called from
// any goroutine.
type Path interface {
	// Name is what people call it: "grpc".
	Name() string
	// Fetch pulls objects from one peer. It returns nil when Done was called for
	// each of them, and otherwise the error that ended it: then those without a
	// Done have failed with it. It fails with ErrStalled when nothing arrived for
	// the stall timeout of the path while it was not waiting in Place. When Fetch
	// has returned, nothing writes to any of the regions.
	Fetch(ctx context.Context, peer Peer, refs []Ref, sink Sink) error
	// Close ends all connections. Fetches in progress fail.
	Close() error
}

// Loan is an object of a peer that is used where it is.
type Loan struct {
	Head Head
	// Regions are its frames, in the peer's memory as it is mapped here, for
	// reading only. They stay mapped until End.
	Regions []Region
	// Err is why there is no loan: it matches ErrNotHere if the peer does not hold
	// the object, ErrNoWay if it cannot lend it. Everything else is unset then.
	Err error
	// End ends the loan, once, and says whether the bytes were this object's
	// throughout; if not, what came of them is to be thrown away. It does not wait
	// for the peer.
	End func() (held bool)
}

// Borrower is a Path that can lend.
type Borrower interface {
	// Lends says, without asking it, whether a peer is worth asking.
	Lends(peer Peer) bool
	// Borrow asks one peer for loans, one for each ref. Its error matches ErrNoWay
	// if that peer lends nothing to us.
	Borrow(ctx context.Context, peer Peer, refs []Ref) ([]Loan, error)
}

// Lender is a Path that lends at once what it has mapped, or not at all. Its methods
// wait for nobody.
type Lender interface {
	// Shows says whether Lend would probably lend an object.
	Shows(peer Peer, ref Ref) bool
	// Lend makes into a loan of an object; false: it has none to give, and the object is
	// to be fetched. As long as a loan lasts, its peer may have to wait for memory: who
	// waits for anything itself must not hold one.
	Lend(peer Peer, ref Ref, into *Loan) bool
	// Read says how many bytes of a peer's loans were read in place, for the books. It
	// may be said when they have ended.
	Read(peer Peer, bytes uint64)
}

// Rescuer is a Path that keeps the memory of a peer whose process has ended mapped for
// a while, and can read it.
type Rescuer interface {
	// Rescue is Fetch from such a peer, in one life of it. Its error matches ErrNoWay if
	// that memory is not mapped here, or the process may live: who lives goes on
	// writing. What does not lie there, or was not finished, is ErrNotHere.
	Rescue(ctx context.Context, peer Peer, incarnation [16]byte, refs []Ref, sink Sink) error
}

// Reader is who asks for objects.
type Reader struct {
	// Worker is 0 for a client.
	Worker ids.WorkerID
}

// LeaseID names a read lease, 0 none.
type LeaseID uint64

// Leased is an object under a read lease.
type Leased struct {
	// Lease is 0 exactly if Err is set.
	Lease   LeaseID
	Head    Head
	Regions []Region
	// Err matches ErrNotHere if the object is not here.
	Err error
}

// Source is what the serving side of a path reads from. Its methods may be
// called from any goroutine.
type Source interface {
	// Lease protects objects for a reader for at most ttl and says where they
	// are. The result has one element for each ref. A ttl of 0 means until
	// Release: for readers in this process, which cannot vanish without it.
	Lease(reader Reader, refs []Ref, ttl time.Duration) []Leased
	// Release ends leases and says for each whether it held throughout; if not,
	// what was read under it is to be thrown away.
	Release(leases []LeaseID) []bool
}

// Renewer is a Source whose leases can be made longer.
type Renewer interface {
	// Renew makes leases last for ttl from now on, and says for each whether it
	// held until now and does so.
	Renew(leases []LeaseID, ttl time.Duration) []bool
}

// Receiver is what the serving side of a path writes to, when a client puts an
// object here.
type Receiver interface {
	// Create provides regions for a new object, waiting for memory if need be.
	Create(ctx context.Context, head Head) (Incoming, error)
}

// Incoming is an object that is being written. Exactly one of Commit and Abort is
// called, once nothing writes to the regions any more.
type Incoming interface {
	Regions() []Region
	// Commit makes the object visible, and returns when whoever must know of it
	// has been told.
	Commit(ctx context.Context) error
	Abort()
}
