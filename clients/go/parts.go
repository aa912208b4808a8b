package millrace

import (
	"context"
	"errors"
	"runtime"
	"sync"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

const (
	// partBytes is what a part has at least; workers cut at multiples of 8 MiB.
	partBytes = 16 << 20
	// mostParts come at once. One stream is bound by the goroutines at its ends, to about 2 GB/s.
	mostParts = 4
)

// parts is in how many parts an object of a size is read by gRPC.
func (p *dataPool) parts(bytes uint64) uint32 {
	return uint32(max(min(uint64(runtime.GOMAXPROCS(0)), mostParts, bytes/p.partBytes), 1))
}

// streamParts reads one object over several connections. Its Value stays nil if it was not read.
func (c *Client) streamParts(ctx context.Context, address string, ref *millracev1.ObjectRef, parts uint32, got *Object, dst []byte) (bad *Error, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	reader := &objectReader{objects: make([]partObject, 1), dst: dst}
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
			cancel() // nothing comes of the others; not before this one is noted, or they would be the cause
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
		return bad, nil // the object is not there, and the others were only told to stop
	}
	if err == nil {
		one := [1]Object{}
		reader.take(one[:])
		*got = one[0]
	}
	return nil, err
}
