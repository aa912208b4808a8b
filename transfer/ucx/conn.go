package ucx

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/transfer"
)

// conn is a connection. The progress thread owns all of it except the fields that do not change.
type conn struct {
	// token is ours: messages to us begin with it, and it is the tag of the endpoint. Messages to
	// the peer begin with theirs. The fields from here to gone do not change.
	token, theirs uint64
	peer          string
	// reader is the peer that reads from us through this connection.
	reader transfer.Reader
	// noInline says that the reader takes no bytes of objects inside of answers.
	noInline bool
	// base and bytes are the address and size of the peer's slab. They are 0 if the peer reads from
	// us; see serves. offer is the rest of what the peer offers.
	base, bytes uint64
	offer       offer
	// route says what is read, and into what. It is set when the routes are proved, before others
	// than the goroutine that connects and the progress thread get the conn.
	route route
	// onFailure, if set, is called by the progress thread when the connection fails. onSilence, if
	// set, is called when the peer has owed an answer for askAfter; it clears asking when it has a
	// reply. Both must not block.
	onFailure func()
	onSilence func()
	// gone is closed when UCX holds nothing of the connection any more.
	gone chan struct{}

	// pace predicts when reads from a GPU end.
	pace pace
	// unmap, if set, closes our own mapping of a peer's GPU memory; dead says that the peer's
	// process has ended (see watch). The progress thread calls it when neither we nor UCX read that
	// memory any more.
	unmap func(dead bool)
	watch *watched
	// lost says that the endpoint failed, or the peer was reported as gone. That does not prove
	// that its process has ended: on an overloaded host, UCX gives up on live peers, too.
	lost bool

	endpoint int32
	// failure is set once. From then on nothing is posted.
	failure error
	// closed says that UCX has closed the endpoint.
	closed       bool
	small, large []*read
	// wantedSmall and wantedLarge are reads of a staged route that are in no piece yet; wanted is
	// the sum of their bytes. pieces are those in progress.
	wantedSmall, wantedLarge []*read
	wanted                   uint64
	pieces                   []*piece
	// stagings is the number of requests of the peer for slots of our ring that wait or have one.
	// copying is the number of those for which bytes are being copied to the slot.
	stagings, copying int
	// returned is when the peer last gave a slot back.
	returned    time.Time
	smallPosted int
	largePosted int
	// asked are the reads that the peer was asked to answer by a message, by request number; see
	// byMessage.
	asked map[uint64]flight
	// calls are the requests without an answer; nil after the connection has failed.
	calls    map[uint64]*call
	lastCall uint64
	// quiet is the time since which the peer has owed an answer without sending anything. Zero: it
	// has just sent something, or owes no answer. asking says that onSilence was called and has no
	// reply yet.
	quiet  time.Time
	asking bool
	// leases are those that the peer holds here.
	leases map[transfer.LeaseID]bool
	// unconfirmed are the objects that were read in this turn. Their leases are given back
	// together.
	unconfirmed []confirmation
}

// serves says that the peer reads from us through this connection; otherwise we read from the peer.
func (n *conn) serves() bool { return n.bytes == 0 }

// confirmation is a lease that is given back after a read. The progress thread calls held once,
// with the answer of the source; held must not block.
type confirmation struct {
	lease transfer.LeaseID
	held  func(bool, error)
}

// ended counts a posted read as ended.
func (n *conn) ended(small bool) {
	if small {
		n.smallPosted--
	} else {
		n.largePosted--
	}
}

// call is a request that waits for its answer.
type call struct {
	// answer is called once, by the progress thread, and must not block. Nil: the caller has
	// stopped waiting, and granted leases are given back.
	answer func(answer, error)
}

// answer is a message without its preamble, except for its count. It lies in C memory until the
// callback returns. If the callback sets keep, the message stays until the progress thread is asked
// to free the handle.
type answer struct {
	count   uint32
	payload []byte
	handle  uint64
	keep    *bool
}

// request sends a message and returns at once. answered gets the answer.
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

// read is one GET of at most one chunk.
type read struct {
	batch         *batch
	local, remote uint64
	length        uint64
	memory        int32
	key           remoteKey
	// began is the predicted time at which the link became free for this read; used by pace.
	began time.Time
}

// batch is a group of reads with one result, such as those of an object.
type batch struct {
	// left is the number of reads that have not ended, and err the first error; owned by the
	// progress thread.
	left int
	err  error
	// done is called by the progress thread after the last read has ended, and must not block.
	done func(*loop, error)
	// cancelled says that reads that are not posted yet need not be.
	cancelled *atomic.Bool
	// moved is increased by every progress.
	moved *atomic.Uint64
}

var errDropped = errors.New("dropped before it was posted")

// ended counts a read of the batch as ended.
func (b *batch) ended(l *loop, err error) {
	b.left--
	if err != nil && b.err == nil {
		b.err = err
	}
	b.moved.Add(1)
	if b.left == 0 {
		b.done(l, b.err)
	}
}

// dropped says whether a read need not be posted any more. If so, it counts the read as ended.
func (b *batch) dropped(l *loop) bool {
	if !b.cancelled.Load() && b.err == nil {
		return false
	}
	b.ended(l, errDropped)
	return true
}

// admit counts the reads of a batch. If there are none, or the connection has failed, the batch
// ends at once, and admit returns false.
func (l *loop) admit(n *conn, b *batch, reads []*read) bool {
	b.left = len(reads)
	if len(reads) == 0 {
		b.done(l, nil)
		return false
	}
	if n.failure != nil {
		for range reads {
			b.ended(l, n.failure)
		}
		return false
	}
	return true
}

// queue takes the reads of a batch.
func (l *loop) queue(n *conn, b *batch, reads []*read) {
	if !l.admit(n, b, reads) {
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

// confirm gives back the leases of all objects that were read in this turn, in as few messages as
// possible. Before that it makes sure that GPUs see what network devices have written.
func (l *loop) confirm(n *conn) {
	if len(n.unconfirmed) > 0 && n.route.writesToGPU(l.c) {
		if err := l.c.slab.Device().FlushWrites(); err != nil {
			l.fail(n, fmt.Errorf("the bytes on their way to the GPU: %w", err))
			return
		}
	}
	for len(n.unconfirmed) > 0 {
		k := min(len(n.unconfirmed), maxRefs)
		part := n.unconfirmed[:k:k]
		n.unconfirmed = n.unconfirmed[k:]
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
	n.unconfirmed = nil
}
