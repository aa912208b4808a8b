package consensus

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/millrace/millrace/internal/leader"
)

// TestALeaderThatWasStoppedAsksFirst: when a leader has stood still for longer than its lease, it
// does not know yet that another one may lead. It says that it leads only if most still follow.
func TestALeaderThatWasStoppedAsksFirst(t *testing.T) {
	c := newCluster(t, Config{Heartbeat: 5 * time.Second})
	long := time.Now().Add(-time.Hour)
	for asked := false; !asked; { // A leader of a busy machine may lose its term.
		_, term := c.lead()
		term.confirmed.Store(&long)
		if err := term.Leads(t.Context()); err == nil {
			asked = true
			if !term.confirmed.Load().After(long) {
				t.Error("a leader whose peers follow has asked nobody")
			}
		} else if _, refused := leader.Refused(err); !refused {
			t.Fatal(err)
		}
		term.end()
		term.Release()
	}
	i, old := c.lead()
	c.cut(i, true)
	old.confirmed.Store(&long)
	if _, refused := leader.Refused(old.Leads(t.Context())); !refused {
		t.Error("a leader that nobody follows says that it leads")
	}
	old.Release()
	_, next := c.lead()
	if _, refused := leader.Refused(old.Leads(t.Context())); !refused {
		t.Error("a leader of before says that it leads")
	}
	next.Release()
}

// TestAFencedEntryIsNoSignOfTheLead: most peers have an entry that was refused, because another
// peer has begun to lead since. It does not say that they follow this one.
func TestAFencedEntryIsNoSignOfTheLead(t *testing.T) {
	c := newCluster(t, Config{Heartbeat: 5 * time.Second})
	for fenced := false; !fenced; { // A leader of a busy machine may lose its term.
		i, term := c.lead()
		other := entry{kind: kindBegin, writer: term.writer ^ 2, body: appendText(appendText(nil, "other"), "client")}
		begun := c.peers[i].raft.Apply(other.seal(), 0)
		long := time.Now().Add(-time.Hour)
		if begun.Error() == nil {
			term.confirmed.Store(&long)
			term.mu.Lock()
			sent := term.send(kindFiles, operation{kind: opMake, name: "file"}.append(nil))
			term.mu.Unlock()
			<-sent.done
			fenced = errors.Is(sent.err, errFenced)
		}
		if fenced && term.confirmed.Load() != &long {
			t.Error("a refused entry counts as a sign that this peer leads")
		}
		term.end()
		term.Release()
	}
}

// TestALeaderThatTriedToHandOverAsks: a peer that was to take the lead may still come, whatever
// others have said lately, until Raft elects this one again.
func TestALeaderThatTriedToHandOverAsks(t *testing.T) {
	c := newCluster(t, Config{Heartbeat: 5 * time.Second})
	for same := false; !same; { // A leader of a busy machine may lose its term.
		i, term := c.lead()
		c.peers[i].handing.Store(true)
		term.end() // as after an entry that came during the attempt
		term.Release()
		now, next := c.lead()
		begun := time.Now()
		next.confirmed.Store(&begun)
		if same = now == i && next.elected == term.elected; same && next.isFollowed() {
			t.Error("it counts on those that follow")
		}
		next.end()
		next.Release()
	}
}

// TestAQuestionWhoLeadsEnds: a read whose caller has no deadline is refused if the peer cannot find
// out whether it leads, here because the question of another read does not end.
func TestAQuestionWhoLeadsEnds(t *testing.T) {
	c := newCluster(t, Config{})
	i, term := c.lead()
	defer term.Release()
	long := time.Now().Add(-time.Hour)
	term.confirmed.Store(&long)
	term.asking <- struct{}{}
	if address, refused := leader.Refused(term.Leads(context.Background())); !refused || address == "client-"+names[i] {
		t.Errorf("a peer that does not know who leads names %q", address)
	}
}

// TestCallsShareASlowQuestion: calls that wait for an answer do not ask one after the other, even
// if it took longer than a lease, or after an attempt to hand over.
func TestCallsShareASlowQuestion(t *testing.T) {
	c := newCluster(t, Config{Heartbeat: 5 * time.Second})
	for range 3 { // A leader of a busy machine may lose its term.
		i, term := c.lead()
		c.cut(i, true) // Another question has no good answer.
		c.peers[i].handing.Store(true)
		long := time.Now().Add(-time.Hour)
		term.confirmed.Store(&long)
		term.asking <- struct{}{}
		const calls = 20
		errs := make(chan error, calls)
		for range calls {
			go func() { errs <- term.Leads(context.Background()) }()
		}
		begun := time.Now().Add(time.Minute) // after all calls began
		term.confirmed.Store(&begun)
		<-term.asking
		refused := 0
		for range calls {
			if <-errs != nil {
				refused++
			}
		}
		term.end()
		term.Release()
		if refused == 0 {
			return
		}
		c.cut(i, false)
	}
	t.Error("calls that waited for an answer are refused after it")
}

// TestAQuestionOutlivesItsCaller: while Raft does not answer, calls come and give up, and yet only
// one of them has asked.
func TestAQuestionOutlivesItsCaller(t *testing.T) {
	c := newCluster(t, Config{Heartbeat: 5 * time.Second})
	for looked := false; !looked; { // A leader of a busy machine may lose its term.
		i, term := c.lead()
		c.cut(i, true)
		long := time.Now().Add(-time.Hour)
		term.confirmed.Store(&long)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = term.Leads(ctx)
		}()
		until(t, "it asks, or lost the lead", func() bool { return len(term.asking) == 1 || isClosed(term.lost) })
		cancel()
		<-done
		waits := len(term.asking) == 1
		if looked = c.peers[i].raft.State() == raft.Leader && !isClosed(term.lost); looked && !waits {
			t.Error("the next call may ask, while this question has no answer")
		}
		until(t, "Raft answers", func() bool { return len(term.asking) == 0 })
		term.end()
		term.Release()
		c.cut(i, false)
	}
	i, term := c.lead()
	defer term.Release()
	c.peers[i].close()
	long := time.Now().Add(-time.Hour)
	term.confirmed.Store(&long)
	if _, refused := leader.Refused(term.Leads(t.Context())); !refused || len(term.asking) > 0 {
		t.Error("a peer that ends says that it leads, or asks for ever")
	}
}

// TestPeersWithoutAVoteDoNotCount: they follow, and the others may have another leader.
func TestPeersWithoutAVoteDoNotCount(t *testing.T) {
	for led := false; !led; { // A leader of a busy machine may lose its term.
		c := newCluster(t, Config{Heartbeat: 5 * time.Second})
		i, term := c.lead()
		demoted := c.peers[i].raft.DemoteVoter(raft.ServerID(names[(i+1)%3]), 0, 0).Error()
		long := time.Now().Add(-time.Hour)
		term.confirmed.Store(&long)
		err := term.Leads(t.Context())
		if led = demoted == nil && !isClosed(term.lost); led {
			if err != nil {
				t.Error("a leader that most follow does not say so:", err)
			}
			c.stop((i + 2) % 3)
			term.confirmed.Store(&long)
			if _, refused := leader.Refused(term.Leads(t.Context())); !refused {
				t.Error("a leader that no other peer with a vote follows says that it leads")
			}
		}
		term.end()
		term.Release()
	}
}
