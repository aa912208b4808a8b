package ucx

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"unsafe"

	hostv1 "github.com/millrace/millrace/gen/go/millrace/host/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/transfer"
)

const (
	// proofBytes is the size of the timed reads at connect.
	proofBytes = 4 << 20
	// proofs is how many connections can be proved at the same time: a silent peer must not delay
	// others.
	proofs = 8
)

// Context is this process's UCX worker, with the slab registered. Its methods may be called from
// any goroutine.
type Context struct {
	config  Config
	version version
	engine  engine
	// slab is Config.Space if it lies on a GPU, else nil.
	slab *cuda.Slab
	kind memoryKind
	// address, key and base are sent to peers; they do not change.
	address, key []byte
	base         uint64
	// scratch is registered memory for proofs, in slots of proofBytes. slots has the numbers of the
	// free slots: a goroutine that receives a number owns that slot until it sends the number back.
	scratch scratch
	slots   chan int
	// slabMemory and scratchMemory are the indices of the registrations.
	slabMemory, scratchMemory int32

	mu sync.Mutex
	// orders wait for the progress thread. woken says that the thread was woken for them. closed
	// says that no more orders are accepted. Guarded by mu.
	orders []func(*loop)
	woken  bool
	closed bool
	// active is the number of fetches that will soon give more orders. While there are any, polling
	// for orders is worthwhile.
	active atomic.Int32
	served atomic.Uint64
	unmap  sync.Once
	// unmapped is the result of closing scratch; set under unmap.
	unmapped error
	// serving has the goroutines that call a source which is not quick, and those of unmapPeer.
	serving sync.WaitGroup
	// ended is closed by the progress thread as its last action.
	ended chan struct{}
}

// Open loads the library if this process has not loaded it yet, makes a UCX worker and registers
// the slab. Without a usable library it fails with ErrUnavailable.
func Open(config Config) (*Context, error) {
	config = config.withDefaults()
	if config.Space == nil || config.Space.Size() <= memory.HeaderBytes {
		return nil, errors.New("ucx: a context needs a slab")
	}
	slab, _ := config.Space.(*cuda.Slab)
	kind, base := hostMemory, uint64(0)
	if slab != nil {
		kind, base = cudaMemory, slab.Pointer(0, slab.Size())
		config = config.onDevice()
	} else if first := config.Space.Bytes(0, 1); first != nil {
		base = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(first))))
	} else {
		return nil, errors.New("ucx: the slab is neither host memory nor that of a GPU, which is all that this build reads")
	}
	library := config.library()
	if slab != nil {
		slab.Device().OpenedByOthers()
	}
	v, err := config.load()
	if err != nil {
		return nil, err
	}
	scratch, err := newScratch(slab)
	if err != nil {
		return nil, fmt.Errorf("ucx: %d bytes for proofs: %w", proofs*proofBytes, err)
	}
	c := &Context{
		config: config, version: v, slab: slab, kind: kind, base: base,
		scratch: scratch, slots: make(chan int, proofs), ended: make(chan struct{}),
	}
	for i := range proofs {
		c.slots <- i
	}
	ready := make(chan error)
	go run(c, ready)
	if err := <-ready; err != nil {
		<-c.ended
		return nil, errors.Join(fmt.Errorf("ucx %s from %s: %w: %w", v, library, ErrUnavailable, err), scratch.close())
	}
	return c, nil
}

// load loads the library if this process has not loaded it yet. It opens no device, socket or
// thread.
func (c Config) load() (version, error) {
	library := c.library()
	err := errors.Join(checkFiles(library), checkDescriptors())
	var v version
	if err == nil {
		v, err = loadLibrary(library, c.environment())
	}
	if err != nil {
		return v, fmt.Errorf("ucx: load %s: %w", library, err)
	}
	return v, nil
}

// Version returns the version of the library, such as "1.19.0".
func (c *Context) Version() string { return c.version.String() }

// String returns the version as in 1.19.0.
func (v version) String() string { return fmt.Sprintf("%d.%d.%d", v.major, v.minor, v.release) }

// Close ends all connections, notifies the peers, and frees everything. After it the slab may be
// unmapped.
func (c *Context) Close() error {
	c.do(func(l *loop) { l.stop() })
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	<-c.ended
	c.serving.Wait()
	c.unmap.Do(func() {
		for range proofs {
			<-c.slots // proofs end because all connections have ended
		}
		c.unmapped = c.scratch.close()
	})
	return c.unmapped
}

// Served returns the number of bytes that peers got leases for or were sent.
func (c *Context) Served() uint64 { return c.served.Load() }

// do makes the progress thread call f; the calls come in order. It returns false if the thread is
// ending and will not call f.
func (c *Context) do(f func(*loop)) bool { return c.order(f, true) }

// later is do for calls that are not urgent: the thread is not woken for them.
func (c *Context) later(f func(*loop)) { c.order(f, false) }

func (c *Context) order(f func(*loop), wake bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.orders = append(c.orders, f)
	if wake && !c.woken {
		// The lock is held, so the engine exists: it lives until closed is set.
		c.engine.signal()
		c.woken = true
	}
	return true
}

// ask makes the progress thread call f, and waits for its result.
func ask[T any](c *Context, f func(*loop) T) (T, error) {
	answer := make(chan T, 1)
	if !c.do(func(l *loop) { answer <- f(l) }) {
		var none T
		return none, fmt.Errorf("ucx: %w: closed", transfer.ErrPeerLost)
	}
	return <-answer, nil
}

// local returns our side of a new connection, for the peer.
func (c *Context) local(token uint64) *workerv1.Endpoint {
	id := c.config.Space.Identity()
	return &workerv1.Endpoint{
		Version: c.version.String(), Address: seal(contentAddress, c.version, c.address), Token: token,
		WorkerUuid: id.WorkerUUID[:], Incarnation: id.Incarnation[:], Nonce: id.Nonce,
	}
}

func newToken() uint64 {
	for {
		if t := rand.Uint64(); t != 0 {
			return t
		}
	}
}

// Accept is the serving side of the control connection: PeerService.Connect. Depending on the
// request, it opens the endpoint for the answers to a reader, ends it, or reports whether it is
// still served. Its error is a gRPC status.
func (c *Context) Accept(_ context.Context, request *workerv1.ConnectRequest) (*workerv1.ConnectResponse, error) {
	if token := request.GetCloseToken(); token != 0 {
		c.do(func(l *loop) {
			// Only a connection on which we serve. The other side ends its own connections itself.
			if n := l.conns[token]; n != nil && n.serves() {
				l.fail(n, fmt.Errorf("%w: the reader gave the connection up", transfer.ErrPeerLost))
			}
		})
		return new(workerv1.ConnectResponse), nil
	}
	if token := request.GetCheckToken(); token != 0 {
		served, err := ask(c, func(l *loop) bool {
			n := l.conns[token]
			return n != nil && n.failure == nil && n.serves()
		})
		if err != nil {
			return nil, refusal(err)
		}
		return &workerv1.ConnectResponse{Ended: !served}, nil
	}
	reader := request.GetReader()
	if err := c.config.wellFormed(reader); err != nil {
		return nil, err
	}
	address, err := c.version.acceptable(reader)
	if err != nil {
		return nil, err
	}
	token := newToken()
	err, closed := ask(c, func(l *loop) error {
		_, err := l.connect(&conn{
			token: token, theirs: reader.GetToken(), peer: fmt.Sprintf("reader w%d", request.GetReaderWorkerId()),
			reader: readerOf(request),
		}, address, nil)
		return err
	})
	if err := errors.Join(closed, err); err != nil {
		return nil, refusal(err)
	}
	answer := c.local(token)
	answer.MemoryKey, answer.MemoryBase, answer.MemoryBytes = seal(contentKey, c.version, c.key), c.base, c.config.Space.Size()
	if c.slab != nil {
		e, err := c.slab.Export()
		if err != nil {
			return nil, refusal(err)
		}
		answer.Device = &hostv1.DeviceMemory{IpcHandle: e.Handle[:], DeviceUuid: e.Device[:]}
	}
	return &workerv1.ConnectResponse{Source: answer}, nil
}
