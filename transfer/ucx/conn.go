package ucx

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

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
	// chunk bounds one read, in bytes, and byMessage: the peer is asked to send
	// what is read. Set when it is known which transports there are.
	chunk     uint64
	byMessage bool
	// onFailure, if set, is called by the thread, and must not wait. So is onSilence, when the peer has owed an answer for askAfter:
	// it clears asking when it has one.
	onFailure func()
	onSilence func()
	// lane is set by the goroutine that connects, before others see the conn.
	lane Lane
	// gone is closed when nothing of it is left in UCX.
	gone chan struct{}

	// pace predicts when reads from a GPU are over.
	pace pace
	// unmap, if set, gives up our own mapping of a peer's GPU memory; dead says that the peer's process has ended (see
	// watch). The progress thread calls it when neither we nor UCX read that memory any more.
	unmap func(dead bool)
	watch *watched
	// lost: the endpoint failed, or the peer is said to be gone. That is no proof that its process has ended: UCX gives up
	// peers on a host that is overloaded, too.
	lost bool

	endpoint int32
	// failure is set once; from then on nothing is posted.
	failure error
	// closed: UCX has said that the endpoint is closed.
	closed       bool
	small, large []*read
	smallPosted  int
	largePosted  int
	// asked are the reads that the peer was asked to answer by a message, by
	// request: those of a lane that does not read by itself.
	asked map[uint64]flight
	// calls are the requests without an answer, nil when the connection failed.
	calls    map[uint64]*call
	lastCall uint64
	// quiet is since when the peer has owed an answer and has said nothing; zero: it
	// has just spoken, or owes none. asking: onSilence was called and has no answer yet.
	quiet  time.Time
	asking bool
	// leases are those that the peer holds here.
	leases map[transfer.LeaseID]bool
	// read are the objects that were read in this turn and whose leases are to be
	// given back together.
	read []confirmation
}

// confirmation is a lease that is given back after a read. The thread calls held
// once, with what the source said; it must not wait.
type confirmation struct {
	lease transfer.LeaseID
	held  func(bool, error)
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
	// answer is called once, by the thread, and must not wait. Nil: nobody waits
	// any more, and leases that come are given back.
	answer func(answer, error)
}

// answer is a message without its preamble. It lies in C memory until the call
// returns, or if that sets keep, until the thread is told to free the handle.
type answer struct {
	payload []byte
	handle  uint64
	keep    *bool
}

// request sends a message and waits for the answer in the background.
func (l *loop) request(n *conn, kind messageKind, count int, payload []byte, answered func(answer, error)) *call {
	c := &call{answered}
	if n.failure != nil {
		answered(answer{}, n.failure)
		return c
	}
	n.lastCall++
	n.calls[n.lastCall] = c
	p := preamble{token: n.theirs, request: n.lastCall, kind: kind, count: uint32(count)}
	l.send(n, p, len(payload), func(b []byte) []byte { return append(b, payload...) })
	return c
}

// read is one GET of at most a chunk.
type read struct {
	batch         *batch
	local, remote uint64
	length        uint64
	memory        int32
	// began is when it should have had the link for itself; of pace.
	began time.Time
}

// batch is a number of reads that matter together.
type batch struct {
	// left are those that have not landed, and err what went wrong first; of the
	// thread.
	left int
	err  error
	// done is called by the thread when the last has landed, and must not wait.
	done func(*loop, error)
	// cancelled: what is not posted need not be.
	cancelled *atomic.Bool
	// moved counts signs of life.
	moved *atomic.Uint64
}

var errDropped = errors.New("dropped before it was posted")

func (b *batch) landed(l *loop, err error) {
	b.left--
	if err != nil && b.err == nil {
		b.err = err
	}
	b.moved.Add(1)
	if b.left == 0 {
		b.done(l, b.err)
	}
}

// dropped says whether a read need not be posted, and counts it if so.
func (b *batch) dropped(l *loop) bool {
	if !b.cancelled.Load() && b.err == nil {
		return false
	}
	b.landed(l, errDropped)
	return true
}

// queue takes the reads of a batch. Those of a connection that has failed land
// at once.
func (l *loop) queue(n *conn, b *batch, reads []*read) {
	b.left = len(reads)
	if len(reads) == 0 {
		b.done(l, nil)
		return
	}
	if n.failure != nil {
		for range reads {
			b.landed(l, n.failure)
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
func appendReads(reads []*read, b *batch, local, remote, length, chunk uint64, memory int32) []*read {
	for at := uint64(0); at < length; at += chunk {
		reads = append(reads, &read{
			batch: b, local: local + at, remote: remote + at, length: min(chunk, length-at), memory: memory,
		})
	}
	return reads
}

// confirm gives the leases of all that was read in this turn back, in as few
// messages as can be.
func (l *loop) confirm(n *conn) {
	for len(n.read) > 0 {
		k := min(len(n.read), maxRefs)
		part := n.read[:k:k]
		n.read = n.read[k:]
		leases := make([]transfer.LeaseID, k)
		for i := range part {
			leases[i] = part[i].lease
		}
		l.request(n, messageRelease, k, leasesPayload(leases), func(a answer, err error) {
			if err == nil && len(a.payload) != k {
				err = fmt.Errorf("%w: %d answers for %d leases", transfer.ErrProtocol, len(a.payload), k)
			}
			for i := range part {
				part[i].held(err == nil && a.payload[i] == 1, err)
			}
		})
	}
	n.read = nil
}
