package millrace

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

const (
	// shareFrom is the size from which on data of workers on this host goes through shared memory.
	shareFrom = 64 << 10
	// shareAgain is how long a worker that does not share its memory is not asked again.
	shareAgain = time.Minute
)

// sharePool keeps the mappings of the memory of workers on this host.
type sharePool struct {
	token string
	off   bool

	mu sync.Mutex
	// The fields below are guarded by mu, which is never held while a worker is asked. shares are
	// the mappings by data address and mode, for reading or for writing. opening holds a channel
	// for each worker that is being asked; it is closed when that has ended. refused holds, by
	// data address, the reason why there is no mapping and the time until which the worker is not
	// asked again.
	shares  map[shareKey]*share
	opening map[shareKey]chan struct{}
	refused map[string]shareRefusal
	closed  bool
}

type shareKey struct {
	address string
	write   bool
}

type shareRefusal struct {
	why   string
	until time.Time
}

// lease is a read lease on an object in a worker's memory. end must be called once;
// it returns whether the memory held the object's bytes during the whole lease.
type lease struct {
	head   *millracev1.ObjectHead
	frames [][]byte
	end    func() bool
}

// DataPaths reports how each worker with which data was exchanged is reached, by its data address:
// "shared memory", or "grpc" with the reason why shared memory is not used.
func (c *Client) DataPaths() map[string]string {
	out := make(map[string]string)
	c.data.mu.Lock()
	for key := range c.data.conns {
		out[key.address] = "grpc"
	}
	c.data.mu.Unlock()
	p := &c.data.shares
	p.mu.Lock()
	defer p.mu.Unlock()
	for address, r := range p.refused {
		out[address] = "grpc (" + r.why + ")"
	}
	for key := range p.shares {
		out[key.address] = "shared memory"
	}
	return out
}

// get returns the mapping of a worker's memory, nil if there is none. It waits for an answer of
// this worker only.
func (p *sharePool) get(ctx context.Context, address string, write bool) *share {
	if p.off || !canShare {
		return nil
	}
	key := shareKey{address, write}
	for {
		s, opening, mine := p.lookUp(key)
		if opening == nil {
			return s
		}
		if mine {
			return p.open(ctx, key)
		}
		select {
		case <-opening:
		case <-ctx.Done():
			return nil
		}
	}
}

// lookUp returns the existing mapping, or nil if there will be none now. If opening is not nil, the
// worker is being asked until opening is closed; if mine is true, by the caller, which must call
// open.
func (p *sharePool) lookUp(key shareKey) (s *share, opening chan struct{}, mine bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, nil, false
	}
	if s := p.shares[key]; s != nil {
		if !s.broken() {
			return s, nil, false
		}
		s.close()
		delete(p.shares, key)
	}
	if time.Now().Before(p.refused[key.address].until) {
		return nil, nil, false
	}
	if opening := p.opening[key]; opening != nil {
		return nil, opening, false
	}
	if p.opening == nil {
		p.shares, p.refused = make(map[shareKey]*share), make(map[string]shareRefusal)
		p.opening = make(map[shareKey]chan struct{})
	}
	opening = make(chan struct{})
	p.opening[key] = opening
	return nil, opening, true
}

// open asks a worker for its memory. REQUIRES: lookUp returned mine.
func (p *sharePool) open(ctx context.Context, key shareKey) *share {
	s, err := openShare(ctx, key.address, p.token, key.write)
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.opening[key])
	delete(p.opening, key)
	switch {
	case err == nil && p.closed:
		s.close()
		return nil
	case err == nil:
		delete(p.refused, key.address)
		p.shares[key] = s
		return s
	case !hasEnded(ctx):
		p.refused[key.address] = shareRefusal{err.Error(), time.Now().Add(shareAgain)}
	}
	return nil
}

// hasEnded reports whether a context has ended. Its deadline is compared with the clock: a socket
// may notice the deadline before the context does.
func hasEnded(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

func (p *sharePool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, s := range p.shares {
		s.close()
	}
	p.shares = nil
}

// readShared copies the objects that are in a worker's shared memory. The Value of the other
// objects stays nil.
func (c *Client) readShared(ctx context.Context, address string, refs []*millracev1.ObjectRef, got []Object, dst []byte) error {
	s := c.data.shares.get(ctx, address, false)
	if s == nil {
		return nil
	}
	leases, err := s.acquire(ctx, refs)
	if err != nil {
		return nil //nolint:nilerr // it is read by gRPC, which will say what is wrong, if that has not gone away
	}
	reader := &objectReader{objects: make([]partObject, len(refs)), dst: dst}
	for i, l := range leases {
		if l.end == nil {
			continue
		}
		p := &reader.objects[i]
		p.value, p.most = new(millracev1.Value), math.MaxUint64 // its frames are in the worker's memory, which limits them
		failed := proto.Unmarshal(l.head.GetHeader(), p.value)
		if failed == nil {
			failed = reader.makeRoom(p, l.head.GetFrameBytes())
		}
		if failed == nil {
			for n := range l.frames {
				copyFrame(p.frames[n], l.frames[n])
			}
		}
		held := l.end()
		if failed != nil {
			err = fmt.Errorf("%w from %s: task %d: %w", errObject, address, refs[i].GetTaskId(), failed)
			continue
		}
		if held {
			got[i] = Object{Value: p.value, Frames: p.frames}
		}
	}
	return err
}

// View is like Array, but without a copy if the result is in the memory of a worker on this host.
// In that case Data is the worker's memory: it must not be written to, and stays occupied until
// done is called. In all other cases View is the same as Array.
func (f *Future) View(ctx context.Context) (a Array, done func(), err error) {
	end, err := f.wait(ctx)
	if err != nil {
		return Array{}, nil, err
	}
	done = func() {}
	if !end.isInline && end.bytes >= shareFrom {
		l, err := f.client.leaseObject(ctx, f.TaskID())
		if err != nil {
			return Array{}, nil, fmt.Errorf("millrace: result of task %q: %w", f.key, err)
		}
		if l != nil {
			v := new(millracev1.Value)
			var got any
			if err = proto.Unmarshal(l.head.GetHeader(), v); err == nil {
				got, err = goValue(v, l.frames)
			}
			if err == nil {
				a, err = convert[Array](f.key, got)
			}
			if err != nil {
				l.end()
				return Array{}, nil, fmt.Errorf("result of task %q: %w", f.key, err)
			}
			return a, sync.OnceFunc(func() { l.end() }), nil
		}
	}
	a, err = f.Array(ctx)
	return a, done, err
}

// leaseObject leases one object from a worker on this host; nil if no such worker has the object.
func (c *Client) leaseObject(ctx context.Context, task uint64) (*lease, error) {
	located, err := c.locate(ctx, []uint64{task})
	if err != nil {
		return nil, err
	}
	for _, id := range located.GetObjects()[0].GetWorkerIds() {
		for _, w := range located.GetWorkers() {
			if w.GetWorkerId() != id || w.GetDataAddress() == "" {
				continue
			}
			s := c.data.shares.get(ctx, w.GetDataAddress(), false)
			if s == nil {
				continue
			}
			leases, err := s.acquire(ctx, []*millracev1.ObjectRef{{TaskId: task}})
			if err == nil && leases[0].end != nil {
				return &leases[0], nil
			}
		}
	}
	return nil, nil
}
