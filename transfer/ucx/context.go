package ucx

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"unsafe"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/transfer"
)

const (
	// proofBytes is the size of the timed read at connect.
	proofBytes = 4 << 20
	// proofs is how many connections can be proved at once: one peer that is
	// silent must not keep others waiting.
	proofs = 8
)

// Context is this process's UCX: a worker with the slab registered. Its methods
// may be called from any goroutine.
type Context struct {
	config  Config
	version version
	engine  engine
	// slab is the memory if it lies on a GPU, else nil.
	slab *cuda.Slab
	kind memoryKind
	// address, key and base are what peers are told of us; fixed.
	address, key []byte
	base         uint64
	// scratch is registered memory for proofs, in slots of proofBytes. Who took the
	// number of a slot out of slots owns it until it is put back.
	scratch scratch
	slots   chan int
	// slabMemory and scratchMemory are the registrations.
	slabMemory, scratchMemory int32

	mu sync.Mutex
	// orders wait for the thread, which was woken for them if woken; closed: no
	// more are taken. Guarded by mu.
	orders []func(*loop)
	woken  bool
	closed bool
	// active are the fetches that will give more orders soon, so that it is worth
	// looking for them for a moment.
	active atomic.Int32
	served atomic.Uint64
	unmap  sync.Once
	// unmapped is what became of scratch; set by unmap.
	unmapped error
	// serving are the goroutines that ask a source which is not quick.
	serving sync.WaitGroup
	// ended is closed by the thread as its last act.
	ended chan struct{}
}

// Open loads the library if this process has not yet, makes a UCX worker and
// registers the slab. Without a usable library it fails with ErrUnavailable.
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

// load loads the library if this process has not yet. With it nothing is open.
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

// Version is that of the library, as in "1.19.0".
func (c *Context) Version() string { return c.version.String() }

// String returns it as in 1.19.0.
func (v version) String() string { return fmt.Sprintf("%d.%d.%d", v.major, v.minor, v.release) }

// Close ends all connections, tells the peers, and gives everything back. The
// slab may be unmapped then.
func (c *Context) Close() error {
	c.do(func(l *loop) { l.stop() })
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	<-c.ended
	c.serving.Wait()
	c.unmap.Do(func() {
		for range proofs {
			<-c.slots // proofs end, since all connections have
		}
		c.unmapped = c.scratch.close()
	})
	return c.unmapped
}

// Served is the number of bytes that peers were given leases to read, or were
// sent.
func (c *Context) Served() uint64 { return c.served.Load() }

// do has the thread call f, in order. It returns false if the thread is ending
// and f will not be called.
func (c *Context) do(f func(*loop)) bool { return c.order(f, true) }

// later is do for what need not be done soon: the thread is not woken for it.
func (c *Context) later(f func(*loop)) { c.order(f, false) }

func (c *Context) order(f func(*loop), wake bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.orders = append(c.orders, f)
	if wake && !c.woken {
		// Under the lock: the engine lives as long as closed is not set.
		c.engine.signal()
		c.woken = true
	}
	return true
}

// ask is do, and waits for the answer.
func ask[T any](c *Context, f func(*loop) T) (T, error) {
	answer := make(chan T, 1)
	if !c.do(func(l *loop) { answer <- f(l) }) {
		var none T
		return none, fmt.Errorf("ucx: %w: closed", transfer.ErrPeerLost)
	}
	return <-answer, nil
}

// local is our side of a new connection.
func (c *Context) local(token uint64) *millracev1.LaneEndpoint {
	id := c.config.Space.Identity()
	return &millracev1.LaneEndpoint{
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

// Accept is the serving side of the control connection: DataService.ConnectLane. It
// makes the endpoint through which answers go back, ends it, or says whether it is
// well. Its error is a gRPC status.
func (c *Context) Accept(_ context.Context, request *millracev1.ConnectLaneRequest) (*millracev1.ConnectLaneResponse, error) {
	if token := request.GetGiveUpToken(); token != 0 {
		c.do(func(l *loop) {
			// Only a lane on which we serve: others end on their own side.
			if n := l.conns[token]; n != nil && n.bytes == 0 {
				l.fail(n, fmt.Errorf("%w: the reader gave the lane up", transfer.ErrPeerLost))
			}
		})
		return new(millracev1.ConnectLaneResponse), nil
	}
	if token := request.GetServedToken(); token != 0 {
		served, err := ask(c, func(l *loop) bool {
			n := l.conns[token]
			return n != nil && n.failure == nil && n.bytes == 0
		})
		if err != nil {
			return nil, refusal(err)
		}
		return &millracev1.ConnectLaneResponse{LaneEnded: !served}, nil
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
		answer.Device = &millracev1.DeviceMemory{IpcHandle: e.Handle[:], DeviceUuid: e.Device[:]}
	}
	return &millracev1.ConnectLaneResponse{Source: answer}, nil
}
