package ucx

import (
	"errors"
	"sync/atomic"

	"github.com/millrace/millrace/transfer"
)

// conn is a connection. All but the fixed part belongs to the thread.
type conn struct {
	// token is ours: what messages to us begin with, and the tag of the endpoint.
	// theirs is what messages to the peer begin with. Fixed, as is all up to lane.
	token, theirs uint64
	peer          string
	// reader is who reads from us through it.
	reader transfer.Reader
	// base and bytes are where the peer's slab lies; 0 on the serving side.
	base, bytes uint64
	// onFailure, if set, is called by the thread, and must not wait.
	onFailure func()
	// lane is set by the goroutine that connects, before others see the conn.
	lane Lane
	// gone is closed when nothing of it is left in UCX.
	gone chan struct{}

	endpoint   int32
	transports []string
	// failure is set once; from then on nothing is posted.
	failure error
	// closed: UCX has said that the endpoint is closed.
	closed       bool
	small, large []*read
	smallPosted  int
	largePosted  int
	// calls are the requests without an answer, nil when the connection failed.
	calls    map[uint64]*call
	lastCall uint64
	// leases are those that the peer holds here.
	leases map[transfer.LeaseID]bool
}

func (n *conn) landed(small bool) {
	if small {
		n.smallPosted--
	} else {
		n.largePosted--
	}
}

// call is a request that waits for its answer.
type call struct {
	// answer is called once, by the thread, and must not wait. The payload, which
	// is without preamble, is the callee's. Nil: nobody waits any more, and leases
	// that come are given back.
	answer func(payload []byte, err error)
}

// request sends a message and waits for the answer in the background.
func (l *loop) request(n *conn, kind messageKind, count int, payload []byte, answer func([]byte, error)) *call {
	c := &call{answer}
	if n.failure != nil {
		answer(nil, n.failure)
		return c
	}
	n.lastCall++
	n.calls[n.lastCall] = c
	p := preamble{token: n.theirs, request: n.lastCall, kind: kind, count: uint32(count)}
	l.send(n, preambleBytes+len(payload), func(b []byte) []byte { return append(p.append(b), payload...) })
	return c
}

// read is one GET of at most chunkBytes.
type read struct {
	batch         *batch
	local, remote uint64
	length        uint64
	memory        int32
}

// batch is a number of reads that matter together.
type batch struct {
	// left are those that have not landed, and err what went wrong first; of the
	// thread.
	left int
	err  error
	// done is called by the thread when the last has landed, and must not wait.
	done func(error)
	// cancelled: what is not posted need not be.
	cancelled *atomic.Bool
	// moved counts signs of life.
	moved *atomic.Uint64
}

var errDropped = errors.New("dropped before it was posted")

func (b *batch) landed(err error) {
	b.left--
	if err != nil && b.err == nil {
		b.err = err
	}
	b.moved.Add(1)
	if b.left == 0 {
		b.done(b.err)
	}
}

// dropped says whether a read need not be posted, and counts it if so.
func (b *batch) dropped() bool {
	if !b.cancelled.Load() && b.err == nil {
		return false
	}
	b.landed(errDropped)
	return true
}

// queue takes the reads of a batch. Those of a connection that has failed land
// at once.
func (l *loop) queue(n *conn, b *batch, reads []*read) {
	b.left = len(reads)
	if len(reads) == 0 {
		b.done(nil)
		return
	}
	if n.failure != nil {
		for range reads {
			b.landed(n.failure)
		}
		return
	}
	for _, r := range reads {
		if r.length <= smallBytes {
			n.small = append(n.small, r)
		} else {
			n.large = append(n.large, r)
		}
	}
}

// appendReads splits a read into chunks.
func appendReads(reads []*read, b *batch, local, remote, length uint64, memory int32) []*read {
	for at := uint64(0); at < length; at += chunkBytes {
		reads = append(reads, &read{
			batch: b, local: local + at, remote: remote + at, length: min(chunkBytes, length-at), memory: memory,
		})
	}
	return reads
}
