package ucx

import "time"

// opKind and eventKind have the values of shim.h.
type (
	opKind    int32
	eventKind int32
)

// memoryKind has the values of this package for UCX's kinds of memory.
type memoryKind int32

const (
	hostMemory memoryKind = iota
	cudaMemory
)

// noNap says that no copies of a GPU are outstanding.
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
	// tag is returned with the event.
	tag uint64
	// local is the destination of a GET, the payload of a send, or the handle to be freed.
	local  uint64
	length uint64
	// remote is the source address of a GET in the peer's address space. For a send it is the
	// buffer that the engine frees after sending; 0: none.
	remote   uint64
	kind     opKind
	endpoint int32
	memory   int32
	// rendezvous sends only an announcement, and the receiver fetches the bytes. It is 0 (eager)
	// for all our sends: receivers refuse rendezvous.
	rendezvous int32
	// key says with which key of the peer a GET reads.
	key    remoteKey
	header header
}

// remoteKey is a key of a peer's memory. Its values are the numbers under which the engine has the
// keys of an endpoint, and also name the memory in messages.
type remoteKey int32

const (
	// keySlab is the key of the slab, and keyRing that of the source's ring.
	keySlab remoteKey = iota
	keyRing
)

// header is the beginning of every message.
type header [24]byte

// event is the result of an order, or a message or an error from a peer. Its layout is that of
// mr_event.
type event struct {
	// tag is the tag of the order or of the endpoint. For a message it is the handle for opFree.
	tag    uint64
	data   uint64
	length uint64
	kind   eventKind
	status int32
	// header is set for messages only.
	header header
}

// engine is one UCX worker. All methods except signal, buffer and discard must be called on the
// thread that made it.
type engine interface {
	address() []byte
	// mapMemory registers memory. It returns the index for GETs and the key for peers.
	mapMemory(base, length uint64, kind memoryKind) (index int32, key []byte, err error)
	// knowsCUDA says whether the library can register the memory of GPUs.
	knowsCUDA() bool
	// connect makes an endpoint with error handling for peers.
	connect(address []byte, tag uint64) (endpoint int32, err error)
	// unpack gives the endpoint a key of the peer. After an error it has no such key.
	unpack(endpoint int32, at remoteKey, key []byte) error
	// release frees an endpoint that was closed and has no outstanding operations.
	release(endpoint int32)
	// transports lists the transports of the endpoint, as in "posix/memory".
	transports(endpoint int32) []string
	// wait posts orders, then waits for events, a signal or the end of timeout. It polls for spin
	// before it blocks. Events, and the bytes of messages until they are freed, lie in C memory;
	// the slice is valid until the next call. nap >= 0 says that copies of a GPU are outstanding,
	// and when they should end: then wait sleeps until that time and polls, without UCX's wake-up.
	wait(orders []op, spin, timeout, nap time.Duration) []event
	// message returns the bytes of a message.
	message(e *event) []byte
	// signal ends wait. It may be called on any thread while the engine exists.
	signal()
	// buffer makes a buffer for a send; on any thread. The buffer is freed when it was posted and
	// sent, or by discard.
	buffer(length int) (b []byte, handle uint64)
	discard(handle uint64)
	// fill copies b to an address in C memory or in the slab.
	fill(to uint64, b []byte)
	statusText(status int32) string
	destroy()
}

// version is the version of the library. The major and minor version of peers must be equal.
type version struct{ major, minor, release uint }
