package ucx

import "time"

// opKind and eventKind are those of shim.h.
type (
	opKind    int32
	eventKind int32
)

// memoryKind is UCX's.
type memoryKind int32

const (
	hostMemory memoryKind = iota
	cudaMemory
)

// noNap: no copies of a device are outstanding.
const noNap time.Duration = -1

const (
	opGet opKind = iota
	opSend
	opClose
	opFree
)

const (
	eventGet eventKind = iota
	eventMessage
	eventEndpointError
	eventClosed
)

// op is an order to the engine. Its layout is that of mr_op.
type op struct {
	// tag comes back with the event.
	tag uint64
	// local is where a GET writes; the payload of a send; the handle to be freed.
	local  uint64
	length uint64
	// remote is where a GET reads, in the peer's address space; for a send the
	// buffer that the engine frees when it is gone, 0: none.
	remote   uint64
	kind     opKind
	endpoint int32
	memory   int32
	// rendezvous: a send that announces its bytes and has the receiver fetch them. 0, eager, for all of ours: receivers refuse others.
	rendezvous int32
	header     header
}

// header is what every message begins with.
type header [24]byte

// event is what became of an order, or what came from a peer. Its layout is that
// of mr_event.
type event struct {
	// tag is that of the order or of the endpoint; for a message the handle that
	// opFree takes.
	tag    uint64
	data   uint64
	length uint64
	kind   eventKind
	status int32
	// header is that of a message.
	header header
}

// engine is one UCX worker. All methods but signal and buffer belong to the one
// thread that made it.
type engine interface {
	// memoryTypes is UCX's mask of the kinds of memory that it can read.
	memoryTypes() uint64
	address() []byte
	// mapMemory registers memory and returns its index for GETs and the key for
	// peers.
	mapMemory(base, length uint64, kind memoryKind) (index int32, key []byte, err error)
	// connect makes an endpoint in peer-error mode. With an error and an index
	// >= 0 there is an endpoint that must be closed.
	connect(address, key []byte, tag uint64) (endpoint int32, err error)
	// release frees what belongs to an endpoint that was closed and has nothing
	// outstanding.
	release(endpoint int32)
	// transports lists what the endpoint uses, as in "posix/memory".
	transports(endpoint int32) []string
	// wait posts orders, then waits for events, a signal or the end of timeout.
	// Events, and the bytes of messages until they are freed, lie in C memory;
	// the slice is good until the next call. With nap >= 0 copies of a device are
	// outstanding, which should be over then.
	wait(orders []op, spin, timeout, nap time.Duration) []event
	// message returns the bytes of a message.
	message(e *event) []byte
	// signal ends wait. From any thread, while the engine lives.
	signal()
	// buffer makes one for a send; from any thread. It is freed by posting it, or
	// by discard.
	buffer(length int) (b []byte, handle uint64)
	discard(handle uint64)
	// fill copies to an address in memory that is not Go's.
	fill(to uint64, b []byte)
	statusText(status int32) string
	destroy()
}

// version is that of the library: what must be equal among peers.
type version struct{ major, minor, release uint }
