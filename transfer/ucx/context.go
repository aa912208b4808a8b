package ucx

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	hostv1 "github.com/millrace/millrace/gen/go/millrace/host/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/transfer"
)

const (
	// proofBytes is the size of the timed reads at connect.
	proofBytes = 4 << 20
	// proofPieces is how many reads of that size a staged route is timed with, unless one takes
	// longer than slowProof.
	proofPieces = 4
	slowProof   = 50 * time.Millisecond
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
	// address, key and base are sent to peers. From here to writesDenied, all is set before Open
	// returns, and does not change.
	address, key []byte
	base         uint64
	// slabMemory is the index of the registration of the slab. slabDenied, if not nil, says why a
	// slab on a GPU is not registered. Then key is empty.
	slabMemory int32
	slabDenied error
	// nicDenied, if not nil, says why the network devices of this host cannot access the slab.
	// writesDenied says why they cannot write to it.
	nicDenied, writesDenied error
	// scratch and deviceScratch are for proofs: in host memory, and on the GPU of a registered
	// slab. slots has the numbers of the free slots of both: a goroutine that receives a number
	// owns that slot until it sends the number back.
	scratch, deviceScratch scratch
	slots                  chan int
	// out and in are the rings of a slab on a GPU: peers read from out, and our reads arrive in in.
	// They are two, so that no worker's reads wait for a slot that another's reads hold.
	out, in *ring

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
	// unmapped is the result of free; set under unmap.
	unmapped error
	// serving has the goroutines that call a source which is not quick, those that copy to and from
	// rings, and those of unmapPeer.
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
	base := uint64(0)
	if slab != nil {
		base = slab.Pointer(0, slab.Size())
		config = config.onDevice()
	} else if first := config.Space.Bytes(0, 1); first != nil {
		base = address(first)
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
	c := &Context{
		config: config, version: v, slab: slab, base: base,
		slots: make(chan int, proofs), ended: make(chan struct{}),
	}
	for i := range proofs {
		c.slots <- i
	}
	if err := c.allocate(); err != nil {
		return nil, errors.Join(err, c.free())
	}
	ready := make(chan error)
	go run(c, ready)
	if err := <-ready; err != nil {
		<-c.ended
		return nil, errors.Join(fmt.Errorf("ucx %s from %s: %w: %w", v, library, ErrUnavailable, err), c.free())
	}
	return c, nil
}

// allocate makes the scratch memory, and the rings of a slab on a GPU.
func (c *Context) allocate() (err error) {
	if c.scratch, err = newHostScratch(c.slab != nil || hasRDMADevice("/sys")); err != nil {
		return fmt.Errorf("ucx: %d bytes for proofs: %w", proofs*proofBytes, err)
	}
	if c.slab == nil {
		return nil
	}
	if c.deviceScratch, err = newDeviceScratch(c.slab.Device()); err != nil {
		return fmt.Errorf("ucx: %d bytes for proofs: %w", proofs*proofBytes, err)
	}
	if c.out, err = newRing(c.slab); err != nil {
		return fmt.Errorf("ucx: the ring from which peers read: %w", err)
	}
	if c.in, err = newRing(c.slab); err != nil {
		return fmt.Errorf("ucx: the ring into which this worker reads: %w", err)
	}
	return nil
}

// free undoes allocate.
func (c *Context) free() error {
	return errors.Join(c.out.close(), c.in.close(), c.scratch.close(), c.deviceScratch.close())
}

// register registers all memory with UCX. Without the registration of a slab on a GPU, its bytes
// travel through the rings.
func (c *Context) register(e engine) (err error) {
	if c.scratch.memory, _, err = e.mapMemory(c.scratch.base(), proofs*proofBytes, hostMemory); err != nil {
		return fmt.Errorf("register %d bytes for proofs: %w", proofs*proofBytes, err)
	}
	if c.slab == nil {
		if c.slabMemory, c.key, err = e.mapMemory(c.base, c.config.Space.Size(), hostMemory); err != nil {
			return fmt.Errorf("register the slab of %d bytes: %w", c.config.Space.Size(), err)
		}
		return nil
	}
	if err := errors.Join(c.out.register(e), c.in.register(e)); err != nil {
		return err
	}
	if c.slabDenied = c.registerDevice(e); c.slabDenied != nil {
		c.slabMemory = -1 // no registration
		c.key, c.nicDenied, c.writesDenied = nil, c.slabDenied, c.slabDenied
		c.config.Log.Info("ucx cannot access the memory of the GPU: its bytes go through host memory", "why", c.slabDenied)
	}
	return nil
}

// registerDevice registers the slab on a GPU, and memory there for proofs.
func (c *Context) registerDevice(e engine) (err error) {
	kind := cudaMemory
	switch {
	case c.config.asHost:
		kind = hostMemory
	case !e.knowsCUDA():
		return errors.New("this libucp.so.0 found no CUDA: is libuct_cuda.so.0 beside it, and cuda_copy among --ucx-tls?")
	default:
		c.nicDenied = NICAccess(c.slab.Device().Info().Attributes)
	}
	c.writesDenied = c.nicDenied
	if a := c.slab.Device().Info().Attributes; c.nicDenied == nil && !a.OrdersWrites && !a.FlushesWrites {
		c.writesDenied = errors.New("the driver of the GPU cannot tell when the writes of network devices have reached its memory; update the driver")
	}
	if c.deviceScratch.memory, _, err = e.mapMemory(c.deviceScratch.base(), proofs*proofBytes, kind); err != nil {
		return fmt.Errorf("register %d bytes of the GPU for proofs: %w", proofs*proofBytes, err)
	}
	if c.slabMemory, c.key, err = e.mapMemory(c.base, c.slab.Size(), kind); err != nil {
		return fmt.Errorf("register the slab of %d bytes: %w", c.slab.Size(), err)
	}
	return nil
}

// load loads the library if this process has not loaded it yet. It opens no device, socket or
// thread.
func (c Config) load() (version, error) {
	library := c.library()
	err := errors.Join(checkFiles(library), checkDescriptors())
	var v version
	if err == nil {
		v, err = loadLibrary(library, c.environment(), c.chosen())
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
		c.unmapped = c.free()
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
		WorkerUuid: id.WorkerUUID[:], Incarnation: id.Incarnation[:], Nonce: id.Nonce, NoInline: c.slab != nil,
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
			reader: readerOf(request), noInline: reader.GetNoInline(),
		}, address)
		return err
	})
	if err := errors.Join(closed, err); err != nil {
		return nil, refusal(err)
	}
	answer, err := c.offer(token)
	if err != nil {
		return nil, refusal(err)
	}
	return &workerv1.ConnectResponse{Source: answer}, nil
}

// offer is local, with what the peer needs to read our memory.
func (c *Context) offer(token uint64) (*workerv1.Endpoint, error) {
	e := c.local(token)
	e.MemoryBase, e.MemoryBytes = c.base, c.config.Space.Size()
	if c.slabDenied == nil {
		e.MemoryKey = seal(contentKey, c.version, c.key)
	}
	if c.slab == nil {
		return e, nil
	}
	e.Ring = &workerv1.StagingRing{Key: seal(contentKey, c.version, c.out.key), Base: c.out.base(), Bytes: c.out.size()}
	e.Rdma = c.nicDenied == nil
	if c.slabDenied != nil || c.config.asHost {
		return e, nil
	}
	export, err := c.slab.Export()
	switch {
	case err == nil:
		e.Device = &hostv1.DeviceMemory{IpcHandle: export.Handle[:], DeviceUuid: export.Device[:]}
	case !errors.Is(err, cuda.ErrNotShared):
		return nil, err
	}
	return e, nil
}
