package consensus

import (
	"context"
	"errors"
	"testing"
	"time"

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
	_, term := c.lead()
	defer term.Release()
	long := time.Now().Add(-time.Hour)
	term.confirmed.Store(&long)
	term.asking <- struct{}{}
	if _, refused := leader.Refused(term.Leads(context.Background())); !refused {
		t.Error("a peer that does not know it says that it leads")
	}
}
