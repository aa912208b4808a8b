// Package transfer is an Interface: how the bytes of objects get from one process to another. It
// does not know about tasks.
//
// The receiver pulls. It first reserves memory: it asks a peer for objects, learns their sizes,
// provides a place for each object, and is notified when the bytes are in place and valid. A Path
// carries the bytes (by gRPC, from a mapped memfd, by one-sided reads). Higher layers choose the
// path.
package transfer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
)

// The kinds of errors. Paths wrap them, so that callers can use errors.Is.
var (
	// ErrNotHere: the peer does not hold the object, or no longer. Another holder may have it; it
	// is useless to ask this peer again.
	ErrNotHere = errors.New("object is not here")
	// ErrPeerLost: the peer cannot be reached, or its connection broke during the fetch.
	ErrPeerLost = errors.New("peer cannot be reached")
	// ErrStalled: the peer is connected, but no byte arrived within the stall timeout.
	ErrStalled = errors.New("no progress")
	// ErrProtocol: the peer sent a message that is invalid.
	ErrProtocol = errors.New("protocol violation")
	// ErrDenied: the peer does not accept our credentials.
	ErrDenied = errors.New("permission denied")
	// ErrUnreachable: this path cannot reach that peer now, or cannot read that object there.
	// Another path may be able to.
	ErrUnreachable = errors.New("unreachable by this path")
)

// Ref names one generation of an object, or one item of an object that is a list. An item is read
// like an object of its own: its header is that of the item, and its frames are those to which this
// header refers.
type Ref struct {
	Task ids.TaskID
	// Generation is the number of the attempt that made the object. 0 asks for any generation.
	Generation ids.Attempt
	Item       ids.Item
}

// String returns task and attempt, as in t42/a1, and the item, if any, as in t42/a1/i3.
func (r Ref) String() string {
	return r.Task.String() + "/" + r.Generation.String() + r.Item.String()
}

// Answers says whether an object that came for the request is the one that was asked for.
func (r Ref) Answers(request Ref) bool {
	return r.Task == request.Task && (request.Generation == 0 || r.Generation == request.Generation) && r.Item == request.Item
}

// Head describes an object.
type Head struct {
	Ref Ref
	// Header is a serialised Value. This package does not interpret it.
	Header []byte
	// FrameBytes are the sizes of the frames.
	FrameBytes []uint64
}

// Bytes is the sum of the frames' sizes.
func (h Head) Bytes() (n uint64) {
	for _, b := range h.FrameBytes {
		n += b
	}
	return n
}

// Fits returns an error unless there is one region for each frame, with the size of that frame.
func (h Head) Fits(regions []Region) error {
	if len(regions) != len(h.FrameBytes) {
		return fmt.Errorf("places for %s: %d regions for %d frames", h.Ref, len(regions), len(h.FrameBytes))
	}
	for i, r := range regions {
		if r.Frame.Bytes != h.FrameBytes[i] {
			return fmt.Errorf("places for %s: region %d has %d bytes for a frame of %d", h.Ref, i, r.Frame.Bytes, h.FrameBytes[i])
		}
	}
	return nil
}

// Region is a frame in a space. Paths read from regions and write to them. A path that needs
// registered memory finds the registration by the space.
type Region struct {
	Space memory.Space
	Frame memory.Frame
}

// Bytes returns the memory of the region without a copy, or nil if the CPU cannot address it.
func (r Region) Bytes() []byte {
	if r.Frame.Bytes == 0 {
		return nil
	}
	return r.Space.Bytes(r.Frame.Offset, r.Frame.Bytes)
}

// Peer identifies a worker and its address.
type Peer struct {
	Worker ids.WorkerID
	Name   string
	// Address is the host:port of its DataService.
	Address string
	// OnGPU says that its slab is on a GPU.
	OnGPU bool
}

// String describes the peer in messages.
func (p Peer) String() string {
	return fmt.Sprintf("%s (%s, %s)", p.Name, p.Worker, p.Address)
}

// Sink receives the objects of a fetch, which calls its methods one at a time: Place for
// each object that the peer has, and afterwards Done. Done is called exactly once for each object
// of the request, also without Place if the peer does not have it, unless Fetch fails as a whole.
type Sink interface {
	// Place provides a region for each frame of the object at index in the request. It may wait for
	// memory. Its error becomes the error of the object; the rest of the fetch goes on.
	Place(ctx context.Context, index int, head Head) ([]Region, error)
	// Done says that nothing writes to the regions of the object any more. Without an error, the
	// object is in place and valid; with an error, it will not be.
	Done(index int, err error)
	// Capabilities are the optional abilities of the sink. They do not change.
	Capabilities() SinkCapabilities
}

// Path is one way to read objects from peers. Its methods may be called from any goroutine.
type Path interface {
	// Name is the name of the path in configurations and logs, such as "grpc".
	Name() string
	// Fetch pulls objects from one peer. It returns nil if Done was called for each of them.
	// Otherwise it returns the error that ended it, and the objects without a Done have failed with
	// that error. It fails with ErrStalled when no byte arrived for the stall timeout of the path;
	// the time in Place does not count. When Fetch has returned, nothing writes to any of the
	// regions.
	Fetch(ctx context.Context, peer Peer, refs []Ref, sink Sink) error
	// Capabilities are the optional abilities of the path. They do not change.
	Capabilities() Capabilities
	// Close ends all connections. Fetches in progress fail.
	Close() error
}

// Loan is an object that is used in the memory of a peer, without a copy.
type Loan struct {
	Head Head
	// Regions are its frames in the peer's memory, which is mapped here for reading only. They stay
	// mapped until End.
	Regions []Region
	// Err says why there is no loan: it matches ErrNotHere if the peer does not hold the object,
	// and ErrUnreachable if it cannot lend the object. All other fields are unset then.
	Err error
	// End ends the loan. It must be called once. held says whether the bytes belonged to this
	// object during the whole loan; if not, all results computed from them must be thrown away. End
	// does not wait for the peer.
	End func() (held bool)
}

// Borrower is a Path that can give loans.
type Borrower interface {
	// Lends says whether it is worth asking a peer for loans. It does not ask the peer.
	Lends(peer Peer) bool
	// Borrow asks one peer for loans, one for each ref. needs says that copies of the objects do
	// not fit here; see Reader. Its error matches ErrUnreachable if that peer lends nothing to us.
	// The Err of a loan that the peer may give later matches ErrUnreachable.
	Borrow(ctx context.Context, peer Peer, refs []Ref, needs bool) ([]Loan, error)
}

// Lender is a Path that gives a loan at once if the peer's memory is already mapped, and otherwise
// none. Its methods do not block.
type Lender interface {
	// CanLend predicts whether Lend would give a loan of an object.
	CanLend(peer Peer, ref Ref) bool
	// Lend fills into with a loan of an object. It returns false if there is no loan; then the
	// caller must fetch the object. While a loan lasts, the peer may have to wait for memory. So
	// the holder of a loan must not wait for anything else.
	Lend(peer Peer, ref Ref, into *Loan) bool
	// Read adds to the statistics how many bytes of a peer's loans were read in place. It may be
	// called after the loans have ended.
	Read(peer Peer, bytes uint64)
}

// Rescuer is a Path that keeps the memory of a peer mapped for a while after the peer's process has
// ended, and can read from it.
type Rescuer interface {
	// Rescue is Fetch from such a peer; incarnation says which run of its process is meant. The
	// error matches ErrUnreachable if that memory is not mapped here, or if the process may still
	// be alive, because a live process could still write to it. An object that is not in that
	// memory, or was not complete, fails with ErrNotHere.
	Rescue(ctx context.Context, peer Peer, incarnation [16]byte, refs []Ref, sink Sink) error
}

// Reader identifies the process that asks for objects.
type Reader struct {
	// Worker is 0 for a client.
	Worker ids.WorkerID
	// Keeps: it reads the objects in place until a task has run. A source that has little free
	// memory refuses that: the objects could not leave meanwhile.
	Keeps bool
	// Needs: copies of the objects do not fit into its memory, so that it reads them in place or
	// not at all. A source does not refuse that for lack of free memory.
	Needs bool
}

// LeaseID names a read lease; 0 means none.
type LeaseID uint64

// Leased is the result of a lease request for one object.
type Leased struct {
	// Lease is 0 if and only if Err is set.
	Lease   LeaseID
	Head    Head
	Regions []Region
	// Err matches ErrNotHere if this process does not hold the object.
	Err error
}

// Source is the store that the serving side of a path reads from. Its methods may be called from
// any goroutine.
type Source interface {
	// Lease protects objects for a reader for at most ttl, and returns their locations. The result
	// has one element for each ref. A ttl of 0 means until Release; it is for readers in this
	// process, because they cannot disappear without it.
	Lease(reader Reader, refs []Ref, ttl time.Duration) []Leased
	// Release ends leases. It says for each whether the lease held during the whole time; if not,
	// the data read under it must be thrown away.
	Release(leases []LeaseID) []bool
	// Renew makes leases end after ttl from now. It says for each whether the lease has held until
	// now and was renewed.
	Renew(leases []LeaseID, ttl time.Duration) []bool
}

// Bringer is a Source that can bring objects into the memory from which they are lent.
type Bringer interface {
	// Bring begins to bring objects from slower memory into the memory that is lent. They stay
	// there for a moment, in which the reader can ask for them again. It does not wait.
	Bring(reader Reader, refs []Ref)
}

// Receiver is the store that the serving side of a path writes to when a client puts an object
// here.
type Receiver interface {
	// Create provides regions for a new object. It waits for memory if necessary.
	Create(ctx context.Context, head Head) (Incoming, error)
}

// Incoming is an object that a client is writing. Exactly one of Commit and Abort is called, when
// nothing writes to the regions any more.
type Incoming interface {
	Regions() []Region
	// Commit makes the object visible. It returns when the object has been reported to all parties
	// that must know about it.
	Commit(ctx context.Context) error
	Abort()
}
