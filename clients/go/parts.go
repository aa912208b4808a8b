package millrace

import (
	"context"
	"errors"
	"runtime"
	"sync"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

const (
	// partBytes is the number of bytes for which an object gets one more part. Workers round the
	// parts up to multiples of 8 MiB, so the last one may be smaller, or empty.
	partBytes = 16 << 20
	// maxParts is the largest number of parts of one object that are read at the same time.
	// One stream is limited to about 2 GB/s by the goroutines at its ends.
	maxParts = 4
)

// parts returns the number of parts in which an object of the given size is read by gRPC.
func (p *dataPool) parts(bytes uint64) uint32 {
	return uint32(max(min(uint64(runtime.GOMAXPROCS(0)), maxParts, bytes/p.partBytes), 1))
}

// streamParts reads one object over several connections. got.Value stays nil if it was not read.
func (c *Client) streamParts(ctx context.Context, address string, ref *millracev1.ObjectRef, size uint64, parts uint32, got *Object, dst []byte) (bad *Error, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	reader := newObjectReader(dst, size)
	var mu sync.Mutex
	var all sync.WaitGroup
	for part := range parts {
		all.Go(func() {
			request := &millracev1.ReadObjectsRequest{Objects: []*millracev1.ObjectRef{ref}, Parts: parts, Part: part}
			refused, failed := c.receive(ctx, connKey{address, int(part)}, request, reader)
			if failed == nil && refused == nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			cancel() // with mu held, or the errors of the other parts would count as the cause
			if refused != nil {
				bad = refused
			}
			if err == nil || errors.Is(failed, errObject) {
				err = failed
			}
		})
	}
	all.Wait()
	if bad != nil {
		return bad, nil // the worker refused the object; the other errors come from the cancellation
	}
	if err == nil {
		one := [1]Object{}
		reader.take(one[:])
		*got = one[0]
	}
	return nil, err
}
