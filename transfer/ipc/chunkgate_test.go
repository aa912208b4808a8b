package ipc

import (
	"testing"
	"time"
)

// fakeToken is the egress token of a source. others: other readers hold it. ours: our queue does.
type fakeToken struct{ others, ours bool }

func (f *fakeToken) Acquire(_, _ time.Time) bool {
	f.ours = f.ours || !f.others
	return f.ours
}

func (f *fakeToken) Release() { f.ours = false }

// queuesOf returns copy queues of one device, each with the given number of large pieces queued.
func queuesOf(pieces ...int) ([]*copyQueue, []*fakeToken) {
	e := new(chunkGate)
	queues, tokens := make([]*copyQueue, len(pieces)), make([]*fakeToken, len(pieces))
	for i, n := range pieces {
		tokens[i] = new(fakeToken)
		queues[i] = newCopyQueue([2][]place{})
		queues[i].gate, queues[i].token = e, tokens[i]
		for range n {
			queues[i].queues[large].pieces = append(queues[i].queues[large].pieces, piece{rows: make([]row, 1), bytes: chunkBytes})
		}
	}
	return queues, tokens
}

// step posts a piece if the queue may, without a device.
func step(cq *copyQueue, now time.Time) bool {
	q := &cq.queues[large]
	ok := cq.admitLarge(now, q)
	if ok {
		p := cq.newPost()
		q.take(p, 1)
		q.posted = append(q.posted, p)
	}
	cq.endLarge(q)
	return ok
}

// end ends the first post of a copy queue.
func end(cq *copyQueue) {
	q := &cq.queues[large]
	q.posted = q.posted[1:]
	cq.endLarge(q)
}

func TestOneCopyQueueHasChunksPosted(t *testing.T) {
	queues, tokens := queuesOf(2, 1)
	now := time.Unix(1, 0)
	if !step(queues[0], now) || step(queues[1], now) {
		t.Fatal("the second queue did not wait for the first")
	}
	if tokens[1].ours {
		t.Error("a copy queue that waits for others of its device keeps its source's other readers waiting")
	}
	if !step(queues[0], now) || step(queues[1], now) {
		t.Fatal("the second queue began while two chunks of the first were under way")
	}
	end(queues[0])
	if !tokens[0].ours {
		t.Error("the token was released before the last chunk was over")
	}
	if !step(queues[1], now) {
		t.Error("the second queue waited for the end of the first one's last chunk")
	}
	end(queues[0])
	if tokens[0].ours {
		t.Error("the token was kept for nothing")
	}
}

func TestAQueueWithoutTheTokenLetsOthersPass(t *testing.T) {
	queues, tokens := queuesOf(1, 1)
	tokens[0].others = true
	now := time.Unix(1, 0)
	if step(queues[0], now) || !step(queues[1], now) {
		t.Fatal("a copy queue whose source is busy held up the other one")
	}
	end(queues[1])
	if step(queues[0], now.Add(tokenWait)) {
		t.Error("it went on without the token too early")
	}
	if !step(queues[0], now.Add(tokenWait+time.Microsecond)) {
		t.Error("it waits for ever for a token that is not released")
	}
}

func TestTheTokenIsReleasedAfterItsBytes(t *testing.T) {
	n := tokenBytes / chunkBytes
	queues, tokens := queuesOf(n+1, 1)
	now := time.Unix(1, 0)
	for i := range n {
		if !step(queues[0], now) {
			t.Fatalf("piece %d under the token had to wait", i)
		}
		if i > 0 {
			end(queues[0])
		}
	}
	if step(queues[0], now) {
		t.Error("the token is never released")
	}
	if !step(queues[1], now) {
		t.Error("the other queue may not post")
	}
	end(queues[0])
	if tokens[0].ours {
		t.Error("the token was kept after its bytes")
	}
}
