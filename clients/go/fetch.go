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

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/pause"
	"github.com/millrace/millrace/internal/rawframe"
)

// fetchTimeout is how long a fetch retries an existing result that cannot be read, before it
// returns an error. It also limits how long Scatter looks for a worker.
const fetchTimeout = 60 * time.Second

// fetch reads the objects of succeeded tasks from the workers that hold them.
// If dst is not nil, there must be one object; its largest frame is read into dst.
// If an object vanishes during the fetch, fetch waits until the scheduler has produced it again.
func (c *Client) fetch(ctx context.Context, futures []*Future, dst []byte) ([]Object, error) {
	out := make([]Object, len(futures))
	left := make([]int, len(futures))
	for i := range left {
		left[i] = i
	}
	began := time.Now()
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
		longest := fetchTimeout
		if errors.Is(err, errAway) {
			longest = max(longest, c.config.reconnect)
		}
		if time.Since(began) > longest {
			return nil, fmt.Errorf("millrace: result of task %q cannot be read from any worker: %w", futures[failed[0]].key, err)
		}
		if pause.For(ctx, wait) != nil {
			return nil, fmt.Errorf("millrace: fetch of task %q: %w", futures[failed[0]].key, context.Cause(ctx))
		}
		wait = min(2*wait, time.Second)
		left = failed
	}
}

// errAway: the scheduler could not be asked for the places of objects.
var errAway = errors.New("the scheduler is away")

// maxLocate is the largest number of tasks in one LocateObjects request.
const maxLocate = 100_000

// locate asks the scheduler for the places of objects. The result has one for each task; a worker
// may be in it several times.
func (c *Client) locate(ctx context.Context, tasks []uint64) (*millracev1.LocateObjectsResponse, error) {
	all := &millracev1.LocateObjectsResponse{}
	for some := range slices.Chunk(tasks, maxLocate) {
		located, err := c.service.LocateObjects(ctx, &millracev1.LocateObjectsRequest{TaskIds: some})
		if err != nil {
			if err = callError(ctx, "LocateObjects", err); errors.Is(err, ErrUnavailable) {
				err = fmt.Errorf("%w: %w", errAway, err)
			}
			return nil, err
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
	if err := c.readShared(ctx, address, refs, got, dst); err != nil {
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
	conn, err := c.data.connTo(over)
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
