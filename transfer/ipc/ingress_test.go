package ipc

import (
	"testing"
	"time"
)

// fakeTurn is the egress token of a source; others: other readers hold it.
type fakeTurn struct{ others, ours bool }

func (f *fakeTurn) Acquire(_, _ time.Time) bool {
	f.ours = f.ours || !f.others
	return f.ours
}

func (f *fakeTurn) Release() { f.ours = false }

// lanesOf returns lanes of one device, each with the given number of large pieces queued.
func lanesOf(pieces ...int) ([]*lane, []*fakeTurn) {
	e := new(entrance)
	lanes, turns := make([]*lane, len(pieces)), make([]*fakeTurn, len(pieces))
	for i, n := range pieces {
		turns[i] = new(fakeTurn)
		lanes[i] = newLane([2][]place{})
		lanes[i].entrance, lanes[i].turn = e, turns[i]
		for range n {
			lanes[i].queues[large].pieces = append(lanes[i].queues[large].pieces, piece{rows: make([]row, 1), bytes: chunkBytes})
		}
	}
	return lanes, turns
}

// step posts a piece if the lane may, without a device.
func step(l *lane, now time.Time) bool {
	q := &l.queues[large]
	ok := l.enter(now, q)
	if ok {
		p := l.newPost()
		q.take(p, 1)
		q.posted = append(q.posted, p)
	}
	l.leave(q)
	return ok
}

// end ends the first post of a lane.
func end(l *lane) {
	q := &l.queues[large]
	q.posted = q.posted[1:]
	l.leave(q)
}

func TestOneLaneHasChunksQueued(t *testing.T) {
	lanes, turns := lanesOf(2, 1)
	now := time.Unix(1, 0)
	if !step(lanes[0], now) || step(lanes[1], now) {
		t.Fatal("the second lane did not wait for the first")
	}
	if turns[1].ours {
		t.Error("a lane that waits for others of its device keeps its source's other readers waiting")
	}
	if !step(lanes[0], now) || step(lanes[1], now) {
		t.Fatal("the second lane began while two chunks of the first were under way")
	}
	end(lanes[0])
	if !turns[0].ours {
		t.Error("the turn was given before the last chunk was over")
	}
	if !step(lanes[1], now) {
		t.Error("the second lane waited for the end of the first one's last chunk")
	}
	end(lanes[0])
	if turns[0].ours {
		t.Error("a turn was kept for nothing")
	}
}

func TestALaneWithoutItsTurnLetsOthersPass(t *testing.T) {
	lanes, turns := lanesOf(1, 1)
	turns[0].others = true
	now := time.Unix(1, 0)
	if step(lanes[0], now) || !step(lanes[1], now) {
		t.Fatal("a lane whose source is busy held up the other one")
	}
	end(lanes[1])
	if step(lanes[0], now.Add(turnLong)) {
		t.Error("it went on without its turn too early")
	}
	if !step(lanes[0], now.Add(turnLong+time.Microsecond)) {
		t.Error("it waits for ever for a turn that nobody gives")
	}
}

func TestATurnEndsAfterMuch(t *testing.T) {
	n := turnBytes / chunkBytes
	lanes, turns := lanesOf(n+1, 1)
	now := time.Unix(1, 0)
	for i := range n {
		if !step(lanes[0], now) {
			t.Fatalf("piece %d of a turn had to wait", i)
		}
		if i > 0 {
			end(lanes[0])
		}
	}
	if step(lanes[0], now) {
		t.Error("a turn has no end")
	}
	if !step(lanes[1], now) {
		t.Error("the other lane may not follow")
	}
	end(lanes[0])
	if turns[0].ours {
		t.Error("the turn was kept after its bytes")
	}
}
