package millrace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/rawframe"
)

const (
	// fetchTimeout is how long a fetch retries an existing result that cannot be read, before it
	// returns an error. It also limits how long Scatter looks for a worker.
	fetchTimeout = 60 * time.Second
	// workersFresh is how long a list of workers may be used to place scattered data.
	workersFresh = time.Second
)

// dataPool keeps the data connections to workers.
type dataPool struct {
	client *Client
	shares sharePool
	// partBytes is the minimum size of one part of an object that is read in parts.
	partBytes uint64

	// listing holds a token while a call asks the scheduler for the workers.
	listing chan struct{}

	// mu is never held during a network call.
	mu      sync.Mutex
	conns   map[connKey]*grpc.ClientConn
	workers []*millracev1.Worker // the active ones at the time listed
	listed  time.Time
	turn    int
}

// connKey identifies a connection: the address of a worker, and an index among the connections to
// it. There are several, since one connection is limited by one goroutine at each end.
type connKey struct {
	address string
	number  int
}

func (p *dataPool) init(c *Client) {
	p.client, p.conns, p.partBytes = c, make(map[connKey]*grpc.ClientConn), partBytes
	p.listing = make(chan struct{}, 1)
	p.shares.token, p.shares.off = c.config.token, c.config.unshared
}

func (p *dataPool) conn(address string) (*grpc.ClientConn, error) {
	return p.oneOf(connKey{address: address})
}

func (p *dataPool) oneOf(key connKey) (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns == nil {
		return nil, ErrClosed
	}
	if conn := p.conns[key]; conn != nil {
		return conn, nil
	}
	transport := insecure.NewCredentials()
	if t := p.client.config.tls; t != nil {
		transport = credentials.NewTLS(t)
	}
	options := append(rawframe.DialOptions(),
		grpc.WithTransportCredentials(transport),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig())
	if p.client.callToken != nil {
		options = append(options, grpc.WithPerRPCCredentials(p.client.callToken))
	}
	conn, err := grpc.NewClient(target(key.address), options...)
	if err != nil {
		return nil, fmt.Errorf("millrace: worker address %q: %w", key.address, err)
	}
	p.conns[key] = conn
	return conn, nil
}

func (p *dataPool) close() error {
	p.shares.close()
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, conn := range p.conns {
		errs = append(errs, conn.Close())
	}
	p.conns = nil
	return errors.Join(errs...)
}

// pick returns the next worker in turn that names allows (all workers if names is empty) and that
// is not in avoid.
func (p *dataPool) pick(ctx context.Context, names []string, avoid map[uint32]bool) (*millracev1.Worker, error) {
	if err := p.list(ctx, len(avoid) > 0); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for range p.workers {
		p.turn++
		w := p.workers[p.turn%len(p.workers)]
		if avoid[w.GetWorkerId()] {
			continue
		}
		if len(names) == 0 {
			return w, nil
		}
		for _, n := range names {
			if n == w.GetName() || n == w.GetHost() || n == fmt.Sprintf("w%d", w.GetWorkerId()) {
				return w, nil
			}
		}
	}
	return nil, &Error{Op: "Scatter", Reason: "NO_WORKER_FITS", Message: fmt.Sprintf("no active worker among the %d can take data (wanted: %v)", len(p.workers), names)}
}

// list asks the scheduler for the active workers, unless again is false and the last answer is
// fresh. Calls that need a list wait for the one that asks.
func (p *dataPool) list(ctx context.Context, again bool) error {
	if !again && p.fresh() {
		return nil
	}
	select {
	case p.listing <- struct{}{}:
		defer func() { <-p.listing }()
	case <-ctx.Done():
		return fmt.Errorf("millrace: list of workers: %w", context.Cause(ctx))
	}
	if !again && p.fresh() {
		return nil
	}
	workers, err := p.client.Workers(ctx)
	if err != nil {
		return err
	}
	workers = slices.DeleteFunc(workers, func(w *millracev1.Worker) bool {
		return w.GetState() != millracev1.WorkerState_WORKER_STATE_ACTIVE || w.GetDataAddress() == ""
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.workers = workers
	if len(workers) > 0 {
		p.listed = time.Now()
	}
	return nil
}

func (p *dataPool) fresh() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.listed) <= workersFresh
}

// fetch reads the objects of succeeded tasks from the workers that hold them.
// If dst is not nil, there must be one object; its largest frame is read into dst.
// If an object vanishes during the fetch, fetch waits until the scheduler has produced it again.
func (c *Client) fetch(ctx context.Context, futures []*Future, dst []byte) ([]Object, error) {
	out := make([]Object, len(futures))
	left := make([]int, len(futures))
	for i := range left {
		left[i] = i
	}
	deadline := time.Now().Add(fetchTimeout)
	wait := 2 * time.Millisecond
	for try := 0; ; try++ {
		failed, err := c.fetchOnce(ctx, futures, left, try, out, dst)
		if len(failed) == 0 {
			return out, nil
		}
		if errors.Is(err, errObject) {
			return nil, fmt.Errorf("result of task %q: %w", futures[failed[0]].key, err)
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("millrace: fetch of task %q: %w", futures[failed[0]].key, context.Cause(ctx))
		}
		if c.closed.Load() {
			return nil, ErrClosed
		}
		for _, i := range failed {
			if _, err := futures[i].wait(ctx); err != nil {
				return nil, err
			}
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("millrace: result of task %q cannot be read from any worker: %w", futures[failed[0]].key, err)
		}
		if !sleep(ctx, wait) {
			return nil, fmt.Errorf("millrace: fetch of task %q: %w", futures[failed[0]].key, context.Cause(ctx))
		}
		wait = min(2*wait, time.Second)
		left = failed
	}
}

// maxLocate is the largest number of tasks in one LocateObjects request.
const maxLocate = 100_000

// locate asks the scheduler for the places of objects. The result has one for each task; a worker
// may be in it several times.
func (c *Client) locate(ctx context.Context, tasks []uint64) (*millracev1.LocateObjectsResponse, error) {
	all := &millracev1.LocateObjectsResponse{}
	for some := range slices.Chunk(tasks, maxLocate) {
		located, err := c.service.LocateObjects(ctx, &millracev1.LocateObjectsRequest{TaskIds: some})
		if err != nil {
			return nil, callError(ctx, "LocateObjects", err)
		}
		if n := len(located.GetObjects()); n != len(some) {
			return nil, fmt.Errorf("millrace: LocateObjects: the scheduler answered %d places for %d tasks", n, len(some))
		}
		all.Objects, all.Workers = append(all.Objects, located.GetObjects()...), append(all.Workers, located.GetWorkers()...)
	}
	return all, nil
}

// fetchOnce tries to read each object of left from one of its holders, in each try from another
// one. It returns those that it did not get, and a reason.
func (c *Client) fetchOnce(ctx context.Context, futures []*Future, left []int, try int, out []Object, dst []byte) ([]int, error) {
	tasks := make([]uint64, len(left))
	for i, at := range left {
		tasks[i] = futures[at].TaskID()
	}
	located, err := c.locate(ctx, tasks)
	if err != nil {
		return left, err
	}
	address := make(map[uint32]string, len(located.GetWorkers()))
	for _, w := range located.GetWorkers() {
		address[w.GetWorkerId()] = w.GetDataAddress()
	}
	type group struct {
		at    []int
		refs  []*millracev1.ObjectRef
		sizes []uint64
	}
	groups := make(map[string]*group)
	var failed []int
	lastErr := error(&Error{Op: "LocateObjects", Reason: "OBJECT_LOST", Message: "no worker holds it at the moment"})
	for i, at := range left {
		holders := slices.DeleteFunc(located.GetObjects()[i].GetWorkerIds(), func(w uint32) bool { return address[w] == "" })
		if len(holders) == 0 {
			failed = append(failed, at)
			continue
		}
		where := address[holders[try%len(holders)]]
		if groups[where] == nil {
			groups[where] = new(group)
		}
		groups[where].at = append(groups[where].at, at)
		groups[where].sizes = append(groups[where].sizes, located.GetObjects()[i].GetBytes())
		groups[where].refs = append(groups[where].refs, &millracev1.ObjectRef{TaskId: tasks[i]})
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for where, g := range groups {
		wg.Go(func() {
			got := make([]Object, len(g.refs))
			bad, err := c.read(ctx, where, g.refs, g.sizes, got, dst)
			mu.Lock()
			defer mu.Unlock()
			for i, at := range g.at {
				if got[i].Value != nil {
					out[at] = got[i]
				} else {
					failed = append(failed, at)
				}
			}
			if err != nil && !errors.Is(lastErr, errObject) {
				lastErr = err
			} else if bad != nil {
				lastErr = bad
			}
		})
	}
	wg.Wait()
	return failed, lastErr
}

// read reads objects from one worker; sizes are their approximate sizes.
// An object whose Value stays nil was not read; bad is the reason for one of them.
func (c *Client) read(ctx context.Context, address string, refs []*millracev1.ObjectRef, sizes []uint64, got []Object, dst []byte) (bad *Error, err error) {
	if err := c.borrow(ctx, address, refs, got, dst); err != nil {
		return nil, err
	}
	var left []*millracev1.ObjectRef
	var known []uint64
	var at []int
	for i := range got {
		switch parts := c.data.parts(sizes[i]); {
		case got[i].Value != nil:
		case parts > 1:
			worse, err := c.streamParts(ctx, address, refs[i], sizes[i], parts, &got[i], dst)
			if bad = cmp.Or(worse, bad); err != nil {
				return bad, err
			}
		default:
			left, known, at = append(left, refs[i]), append(known, sizes[i]), append(at, i)
		}
	}
	if len(left) == 0 {
		return bad, nil
	}
	rest := make([]Object, len(left))
	worse, err := c.stream(ctx, address, left, known, rest, dst)
	for n, i := range at {
		got[i] = rest[n]
	}
	return cmp.Or(worse, bad), err
}

// stream reads objects by gRPC over one connection.
func (c *Client) stream(ctx context.Context, address string, refs []*millracev1.ObjectRef, sizes []uint64, got []Object, dst []byte) (bad *Error, err error) {
	reader := newObjectReader(dst, sizes...)
	bad, err = c.receive(ctx, connKey{address: address}, &millracev1.ReadObjectsRequest{Objects: refs}, reader)
	if err == nil {
		reader.take(got)
	}
	return bad, err
}

// receive reads one stream to its end.
func (c *Client) receive(ctx context.Context, over connKey, request *millracev1.ReadObjectsRequest, reader *objectReader) (bad *Error, err error) {
	conn, err := c.data.oneOf(over)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, millracev1.DataService_ReadObjects_FullMethodName)
	if err != nil {
		return nil, callError(ctx, "ReadObjects", err)
	}
	if err := stream.SendMsg(request); err != nil && !errors.Is(err, io.EOF) {
		return nil, callError(ctx, "ReadObjects", err)
	}
	if err := stream.CloseSend(); err != nil {
		return nil, callError(ctx, "ReadObjects", err)
	}
	for {
		var m rawframe.ReadResponse
		err := stream.RecvMsg(&m)
		if errors.Is(err, io.EOF) {
			return bad, nil
		}
		if err != nil {
			return bad, callError(ctx, "ReadObjects", err)
		}
		if m.Error != nil {
			bad = &Error{Op: "ReadObjects", Reason: m.Error.GetReason(), Message: m.Error.GetMessage(), Metadata: m.Error.GetMetadata()}
		} else {
			err = reader.accept(&m.Message)
		}
		m.Data.Free()
		if errors.Is(err, errGrown) {
			return bad, fmt.Errorf("millrace: ReadObjects from %s: %w", over.address, err)
		}
		if err != nil {
			return bad, fmt.Errorf("%w from %s: %w", errObject, over.address, err)
		}
	}
}

// errObject marks an object that was delivered but cannot be used. Reading it again will not help.
var errObject = errors.New("millrace: ReadObjects")

// errGrown means that a worker announced an object that is much larger than the scheduler knows.
// The scheduler may know the size of an earlier run, so its next answer may help.
var errGrown = errors.New("it is larger than the scheduler knows")

// growth is how much larger than its known size an object may be. A known size is approximate: it
// may not count the header, or belong to an earlier run.
const growth = 64 << 20

// objectReader assembles objects. Several streams may deliver parts of them.
type objectReader struct {
	dst []byte

	mu sync.Mutex
	// objects are guarded by mu, except for the bytes of their frames: the streams write disjoint
	// ranges.
	objects []partObject
}

// newObjectReader reads one object for each known size. It allocates little more than these.
func newObjectReader(dst []byte, sizes ...uint64) *objectReader {
	r := &objectReader{dst: dst, objects: make([]partObject, len(sizes))}
	for i, n := range sizes {
		r.objects[i].most = max(n, n+growth) // the sum may wrap
	}
	return r
}

// take returns the complete objects in got. REQUIRES: no stream is in progress.
func (r *objectReader) take(got []Object) {
	for i := range got {
		if p := &r.objects[i]; p.value != nil && p.missing == 0 {
			got[i] = Object{Value: p.value, Frames: p.frames}
		}
	}
}

type partObject struct {
	// head is the first head that arrived.
	head    *millracev1.ObjectHead
	value   *millracev1.Value
	frames  [][]byte
	missing uint64
	// most is the largest size of all frames for which memory is allocated.
	most uint64
}

func (r *objectReader) accept(m *rawframe.Message) error {
	into, err := r.claim(m)
	if err == nil && into != nil {
		m.Data.CopyTo(into)
	}
	return err
}

// claim returns the memory for the bytes of a message, nil if the message has no bytes.
func (r *objectReader) claim(m *rawframe.Message) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if uint64(m.Index) >= uint64(len(r.objects)) {
		return nil, fmt.Errorf("object %d of %d", m.Index, len(r.objects))
	}
	p := &r.objects[m.Index]
	switch {
	case m.Head == nil:
	case p.head != nil:
		if p.head.GetObject().GetGeneration() != m.Head.GetObject().GetGeneration() || !slices.Equal(p.head.GetFrameBytes(), m.Head.GetFrameBytes()) {
			return nil, fmt.Errorf("task %d: its parts differ", m.Head.GetObject().GetTaskId())
		}
	default:
		p.head, p.value = m.Head, new(millracev1.Value)
		if err := proto.Unmarshal(m.Head.GetHeader(), p.value); err != nil {
			return nil, fmt.Errorf("header of task %d: %w", m.Head.GetObject().GetTaskId(), err)
		}
		if err := r.makeRoom(p, m.Head.GetFrameBytes()); err != nil {
			return nil, fmt.Errorf("task %d: %w", m.Head.GetObject().GetTaskId(), err)
		}
	}
	n := uint64(m.Data.Len())
	if n == 0 {
		return nil, nil
	}
	if uint64(m.Frame) >= uint64(len(p.frames)) {
		return nil, fmt.Errorf("%d bytes for frame %d of an object with %d frames", n, m.Frame, len(p.frames))
	}
	frame := p.frames[m.Frame]
	// NB: the sum of an offset and a length may have more than 64 bits.
	if size := uint64(len(frame)); m.Offset > size || n > size-m.Offset || n > p.missing {
		return nil, fmt.Errorf("%d bytes at %d of frame %d do not belong to the object", n, m.Offset, m.Frame)
	}
	p.missing -= n
	return frame[m.Offset : m.Offset+n], nil
}

// makeRoom allocates the memory of each frame. The largest frame uses dst, if it is set.
func (r *objectReader) makeRoom(p *partObject, sizes []uint64) error {
	largest := -1
	for i, n := range sizes {
		if n > p.most-p.missing {
			return fmt.Errorf("%w: frames of more than %d bytes were announced; the worker's log may tell why", errGrown, p.most)
		}
		if r.dst != nil && (largest < 0 || n > sizes[largest]) {
			largest = i
		}
		p.missing += n
	}
	p.frames = make([][]byte, len(sizes))
	for i, n := range sizes {
		if i != largest {
			p.frames[i] = room(n)
			continue
		}
		if n > uint64(len(r.dst)) {
			return fmt.Errorf("the result has %d bytes, the destination %d", n, len(r.dst))
		}
		p.frames[i] = r.dst[:n:n]
	}
	return nil
}
