package consensus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/millrace/millrace/internal/leader"
	"github.com/millrace/millrace/server/journal"
	"github.com/millrace/millrace/server/schedapi"
)

// change calls do at the leader until it leads still, enough peers answer, and the change does not
// take too long.
func (c *cluster) change(do func(*Peer) error) error {
	c.t.Helper()
	return c.ask(func(r *Peer) error {
		// A peer of a busy machine may not answer in time.
		err := do(r)
		var missing *schedapi.Error
		if err != nil && (errors.As(err, &missing) && missing.Kind == schedapi.ErrPeersMissing || strings.Contains(err.Error(), "repeat the call")) {
			return leader.Refusal("")
		}
		return err
	})
}

// ask calls do at the peers until one does not refuse it, as one does that does not lead.
func (c *cluster) ask(do func(*Peer) error) (err error) {
	c.t.Helper()
	until(c.t, "a leader answers", func() bool {
		for _, r := range c.peers {
			if r == nil {
				continue
			}
			err = do(r)
			if _, refused := leader.Refused(err); !refused {
				return true
			}
		}
		return false
	})
	return err
}

// TestARestartedPeerWaitsBeforeItVotes: a leader may count on a peer for one lease after the peer
// has said that it follows. A peer that was restarted has forgotten that, so it votes for nobody
// before a heartbeat timeout has passed, unless the leader hands over. One that founds the cluster
// votes at once.
func TestARestartedPeerWaitsBeforeItVotes(t *testing.T) {
	c := newPlaces(t, Config{Heartbeat: time.Hour}) // Nobody wants to lead meanwhile.
	header := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(names[0]), Addr: []byte(names[0])}
	const last = 1 << 40 // The log of the one that asks has all.
	// Both ask the second peer, in the name of the first one.
	preVotes := func(term uint64) bool {
		var answer raft.RequestPreVoteResponse
		err := c.peers[0].transport.RequestPreVote(raft.ServerID(names[1]), "", &raft.RequestPreVoteRequest{RPCHeader: header, Term: term, LastLogIndex: last, LastLogTerm: last}, &answer)
		return err == nil && answer.Granted
	}
	votes := func(term uint64, handed bool) bool {
		var answer raft.RequestVoteResponse
		err := c.peers[0].transport.RequestVote(raft.ServerID(names[1]), "", &raft.RequestVoteRequest{RPCHeader: header, Term: term, LastLogIndex: last, LastLogTerm: last, LeadershipTransfer: handed}, &answer)
		return err == nil && answer.Granted
	}
	have := func() {
		t.Helper()
		until(t, "Raft begins", func() bool { return c.peers[0].started() != nil && c.peers[1].started() != nil })
	}
	for i := range names {
		c.start(i)
	}
	have()
	if !preVotes(10) || !votes(10, false) {
		t.Error("a founder does not vote at the first start")
	}
	c.stop(1)
	c.start(1)
	have()
	if preVotes(11) || votes(11, false) {
		t.Error("a peer that was restarted votes at once")
	}
	if !votes(12, true) {
		t.Error("it does not vote for the one to which the leader hands over")
	}
	c.stop(1)
	c.config.Heartbeat = time.Second
	c.start(1)
	have()
	until(t, "it votes later", func() bool { return preVotes(1000) })
}

// TestPeersAreAddedAndRemoved: a cluster moves to other machines, one after the other, and keeps
// all that was acknowledged.
func TestPeersAreAddedAndRemoved(t *testing.T) {
	c := newCluster(t, Config{})
	i, term := c.put("file", "", "first")
	// Without an order, nobody is taken.
	c.start(3)
	if err := c.ask(func(r *Peer) error {
		a := r.consider(question{Join: "d:1#1", Address: "d:1"})
		if !a.Leads {
			return leader.Refusal("")
		}
		return errors.New(a.Error)
	}); !strings.Contains(err.Error(), "millrace peers add d:1") {
		t.Errorf("a peer that nobody added is told %q", err)
	}
	for range 2 { // The call is repeated.
		if err := c.change(func(r *Peer) error { return r.AddPeer(t.Context(), "d:1") }); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "the new peer votes", c.peers[3].votes)
	want := map[string]string{"file": "first"}
	c.have(want)
	// The leader is removed: another one leads, and removes it.
	for range 2 {
		if err := c.change(func(r *Peer) error { return r.RemovePeer(t.Context(), names[i]) }); err != nil {
			t.Fatal(err)
		}
	}
	<-term.Lost()
	term.Release()
	removed := c.peers[i]
	until(t, "the removed peer ends", func() bool { return isClosed(removed.Failed()) })
	if err := removed.Cause(); !errors.Is(err, ErrRemoved) {
		t.Error(err)
	}
	c.stop(i)
	// One that is dead is replaced.
	dead := (i + 1) % 3
	c.stop(dead)
	if err := c.change(func(r *Peer) error { return r.RemovePeer(t.Context(), names[dead]) }); err != nil {
		t.Fatal(err)
	}
	if err := c.change(func(r *Peer) error { return r.AddPeer(t.Context(), "e:1") }); err != nil {
		t.Fatal(err)
	}
	c.start(4)
	until(t, "the second new peer votes", c.peers[4].votes)
	_, next := c.put("file", "first", " second")
	c.have(map[string]string{"file": "first second"})
	next.Release()
	// Its list of the first start does not matter any more.
	c.stop(4)
	c.start(4)
	c.have(map[string]string{"file": "first second"})
}

// TestAFollowerIsEnoughToJoin: the list of a new peer may lack the leader.
func TestAFollowerIsEnoughToJoin(t *testing.T) {
	c := newCluster(t, Config{})
	i, term := c.lead()
	term.Release()
	if err := c.change(func(r *Peer) error { return r.AddPeer(t.Context(), "d:1") }); err != nil {
		t.Fatal(err)
	}
	c.config.Addresses = []string{names[(i+1)%3], "d:1"}
	c.start(3)
	until(t, "the new peer votes", c.peers[3].votes)
}

// TestARemovedPeerHearsOfALaterLeader: a peer was away when it was removed, and ends although it
// has never heard of the one that leads now.
func TestARemovedPeerHearsOfALaterLeader(t *testing.T) {
	c := newCluster(t, Config{})
	i, term := c.lead()
	term.Release()
	away := (i + 1) % 3
	c.stop(away)
	if err := c.change(func(r *Peer) error { return r.AddPeer(t.Context(), "d:1") }); err != nil {
		t.Fatal(err)
	}
	c.start(3)
	until(t, "the new peer votes", c.peers[3].votes)
	if err := c.change(func(r *Peer) error { return r.RemovePeer(t.Context(), names[away]) }); err != nil {
		t.Fatal(err)
	}
	// The one that led would still send to the removed one, once.
	c.stop(i)
	c.start(i)
	added := c.peers[3]
	until(t, "the new peer leads", func() bool {
		for _, r := range c.peers {
			if r == nil || r == added {
				continue
			}
			if started := r.started(); started != nil && started.State() == raft.Leader {
				_ = started.LeadershipTransferToServer(raft.ServerID(added.self().ID), "d:1").Error() // It is repeated.
			}
		}
		return added.started().State() == raft.Leader
	})
	c.start(away)
	removed := c.peers[away]
	until(t, "the removed peer ends", func() bool { return isClosed(removed.Failed()) })
	if err := removed.Cause(); !errors.Is(err, ErrRemoved) {
		t.Error(err)
	}
}

// TestALeaderOfAnotherClusterRemovesNobody: it has the same token, and is at an address of before.
func TestALeaderOfAnotherClusterRemovesNobody(t *testing.T) {
	c := newCluster(t, Config{})
	_, term := c.lead()
	term.Release()
	c.stop(1)
	c.stop(2)
	others := []string{"b:1", "c:1", "d:1"}
	other := newPlaces(t, Config{Addresses: others})
	for i := range others {
		other.start(1 + i)
	}
	_, term = other.lead()
	term.Release()
	other.mu.Lock()
	ports := slices.Clone(other.ports)
	other.mu.Unlock()
	c.mu.Lock()
	copy(c.ports[1:3], ports[1:3])
	c.mu.Unlock()
	if left := c.peers[0]; left.isRemoved(t.Context()) {
		t.Error("a leader of another cluster removed a peer")
	}
	if answers, errs := c.peers[0].seek(t.Context(), question{}); len(answers) != 0 || len(errs) != 2 {
		t.Errorf("got %v, %v", answers, errs)
	}
}

// TestTheLastMajorityStays: a peer is not removed if too few of the others answer.
func TestTheLastMajorityStays(t *testing.T) {
	c := newCluster(t, Config{})
	i, term := c.lead()
	term.Release()
	dead, living := (i+1)%3, (i+2)%3
	c.stop(dead)
	var refused *schedapi.Error
	if err := c.ask(func(r *Peer) error { return r.RemovePeer(t.Context(), names[living]) }); !errors.As(err, &refused) || refused.Kind != schedapi.ErrPeersMissing {
		t.Errorf("the last but one goes: %v", err)
	}
	if err := c.change(func(r *Peer) error { return r.RemovePeer(t.Context(), names[dead]) }); err != nil {
		t.Error(err)
	}
	_, term = c.put("file", "", "text")
	term.Release()
}

// TestPeersSeeEachOther: all peers tell who leads, who is away and who joins.
func TestPeersSeeEachOther(t *testing.T) {
	c := newCluster(t, Config{})
	i, term := c.lead()
	term.Release()
	dead := (i + 1) % 3
	c.stop(dead)
	if err := c.change(func(r *Peer) error { return r.AddPeer(t.Context(), "d:1") }); err != nil {
		t.Fatal(err)
	}
	roles := func(list []schedapi.Peer) map[string]schedapi.PeerRole {
		found := map[string]schedapi.PeerRole{}
		for _, p := range list {
			found[p.Address] = p.Role
			if (p.Role == schedapi.PeerAway) != (p.Trouble != "") {
				t.Errorf("%+v", p)
			}
		}
		return found
	}
	// On a busy machine another one may lead meanwhile, and a peer may not answer in time.
	living := []int{i, (i + 2) % 3}
	for _, j := range living {
		until(t, fmt.Sprintf("peer %d sees all", j), func() bool {
			want := map[string]schedapi.PeerRole{names[dead]: schedapi.PeerAway, "d:1": schedapi.PeerAway}
			leaders := 0
			for _, k := range living {
				if want[names[k]] = schedapi.PeerFollower; c.peers[k].Own().Leads {
					want[names[k]] = schedapi.PeerLeader
					leaders++
				}
			}
			list := c.peers[j].Peers(t.Context())
			return maps.Equal(roles(list), want) && leaders == 1 && !slices.ContainsFunc(list, func(p schedapi.Peer) bool { return p.Votes != (p.Address != "d:1") })
		})
	}
	until(t, "the leader has looked, and no follower", func() bool {
		first, second := c.peers[living[0]], c.peers[living[1]]
		if second.Own().Leads {
			first, second = second, first
		}
		return first.Own().Leads && len(first.Seen()) == 4 && second.Seen() == nil
	})
	until(t, "both say who leads", func() bool {
		lead, follow := living[0], living[1]
		if c.peers[follow].Own().Leads {
			lead, follow = follow, lead
		}
		own, other := c.peers[lead].Own(), c.peers[follow].Own()
		return own.Leads && own.Votes && own.Voters == 3 && own.Term >= 2 && own.Applied > 0 &&
			!other.Leads && other.Leader == "client-"+names[lead] && other.Last > 0
	})
}

// TestSilenceBeginsWithThePeer: a peer that finds no leader has not waited since the year 1.
func TestSilenceBeginsWithThePeer(t *testing.T) {
	c := newCluster(t, Config{})
	_, term := c.lead()
	term.Release()
	for i := range names {
		c.stop(i)
	}
	begun := time.Now()
	c.start(0)
	r := c.peers[0]
	until(t, "the peer waits", func() bool { return r.Own().Silence > 0 })
	shown := r.Peers(t.Context())[0].Silence
	if most := time.Since(begun); r.Own().Silence < shown || shown > most {
		t.Errorf("a peer of %v waits for %v", most, shown)
	}
}

// TestFoundersNeedTheSameList: a cluster does not begin with two lists, or with four schedulers.
func TestFoundersNeedTheSameList(t *testing.T) {
	c := newPlaces(t, Config{})
	c.start(0)
	c.start(1)
	c.config.Addresses = []string{"a:1", "b:1", "c:1", "d:1"}
	c.start(2)
	c.start(3)
	until(t, "all have answered", func() bool {
		answers, errs := c.peers[2].inquire(t.Context(), question{})
		return len(answers) == 3 && len(errs) == 0
	})
	for i := range 4 {
		if r := c.peers[i]; r.started() != nil || r.self().Cluster != "" {
			t.Errorf("peer %d has begun", i)
		}
	}
	for i := range 2 {
		c.stop(i)
		c.start(i)
	}
	until(t, "the four end", func() bool { return isClosed(c.peers[0].Failed()) || isClosed(c.peers[3].Failed()) })
	for _, i := range []int{0, 3} {
		if err := c.peers[i].Cause(); err != nil && !strings.Contains(err.Error(), "give 3 addresses") {
			t.Error(err)
		}
	}
}

// alone makes the journal of a scheduler alone: some files, and a token.
func alone(t *testing.T, root string) map[string]string {
	t.Helper()
	d, err := journal.OpenDirectory(root)
	if err != nil {
		t.Fatal(err)
	}
	j, err := journal.Open(journal.Config{Files: d}, func(time.Time, journal.Record) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	err = j.Wait(t.Context(), j.Append(time.Unix(0, 0), &journal.Begun{Cluster: "c1", Life: 7, Starts: 1}))
	if err := errors.Join(err, j.Close()); err != nil {
		t.Fatal(err)
	}
	want, err := contents(d)
	if err != nil {
		t.Fatal(err)
	}
	if err := write(d, "token", "t0ken"); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	return want
}

// TestOneBecomesThree: the journal of a scheduler alone is that of three then. A crash at any point
// costs nothing: the same command goes on.
func TestOneBecomesThree(t *testing.T) {
	c := newPlaces(t, Config{})
	want := alone(t, c.roots[0])
	take := func() error {
		d, err := journal.OpenDirectory(c.roots[0])
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = d.Close() }()
		return Bootstrap(d, names, names[0], []string{"token"}, slog.New(slog.DiscardHandler))
	}
	// An attempt was interrupted, before and after its log had its name.
	for _, left := range []string{raftName + ".part", raftName} {
		if err := os.MkdirAll(filepath.Join(c.roots[0], left, "snapshots"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := take(); err != nil {
		t.Fatal(err)
	}
	if err := take(); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("a second time: %v", err)
	}
	c.start(0)
	i, term := c.lead()
	if i != 0 {
		t.Fatal("another one leads")
	}
	if got, err := contents(term); err != nil || !maps.Equal(got, want) {
		t.Fatalf("the first of three has %v, %v; want %v", got, err, want)
	}
	if err := write(term, "file", "before the others"); err != nil {
		t.Fatal(err)
	}
	want["file"] = "before the others"
	c.start(1)
	c.start(2)
	until(t, "all vote", func() bool { return c.peers[1].votes() && c.peers[2].votes() })
	c.have(want)
	c.stop(0)
	term.Release()
	_, next := c.leading(func(_ int, next *Term) error {
		got, err := contents(next)
		if err == nil && !maps.Equal(got, want) {
			err = fmt.Errorf("the next leader has %v", got)
		}
		return err
	})
	defer next.Release()
	if err := Bootstrap(c.peers[1].config.Directory, names, names[1], nil, slog.Default()); err == nil {
		t.Error("a peer is made the first of several")
	}
	empty, err := journal.OpenDirectory(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = empty.Close() }()
	if err := Bootstrap(empty, names, names[1], nil, slog.Default()); err == nil || !strings.Contains(err.Error(), "has no journal") {
		t.Errorf("an empty directory: %v", err)
	}
}

var _ schedapi.Peers = (*Peer)(nil)

// TestAPeerThatWasAddedMayComeLate: a place without a process stops nobody.
func TestAPeerThatWasAddedMayComeLate(t *testing.T) {
	c := newCluster(t, Config{})
	i, term := c.lead()
	term.Release()
	if err := c.change(func(r *Peer) error { return r.AddPeer(t.Context(), "d:1") }); err != nil {
		t.Fatal(err)
	}
	c.stop((i + 1) % 3)
	_, term = c.put("file", "", "text")
	term.Release()
}

// TestAChangeThatTakesLongSaysSo: a change of the list of peers waits no longer than its caller and
// a limit of its own allow. The error says that it may still happen, and it does.
func TestAChangeThatTakesLongSaysSo(t *testing.T) {
	c := newCluster(t, Config{Heartbeat: 5 * time.Second, changeTime: 200 * time.Millisecond})
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	for _, ctx := range []context.Context{short, t.Context()} {
		address := later[0]
		if ctx == short {
			address = later[1]
		}
		refused := true
		for refused { // A leader of a busy machine may lose its term.
			i, term := c.lead()
			r := c.peers[i]
			r.state.mu.Lock() // The change waits behind an entry.
			term.mu.Lock()
			term.send(kindFiles, operation{kind: opMake, name: "file"}.append(nil))
			term.mu.Unlock()
			done := make(chan error, 1)
			go func() { done <- r.AddPeer(ctx, address) }()
			var err error
			select {
			case err = <-done:
			case <-time.After(patience):
				t.Error("the change waits without a bound")
			}
			r.state.mu.Unlock()
			term.end()
			term.Release()
			if _, refused = leader.Refused(err); !refused && (err == nil || !strings.Contains(err.Error(), "it may still happen")) {
				t.Fatalf("got %v", err)
			}
			if got := errors.Is(err, context.DeadlineExceeded); !refused && got != (ctx == short) {
				t.Errorf("the caller's deadline: %t: %v", got, err)
			}
		}
		until(t, "the change happens", func() bool {
			return slices.ContainsFunc(c.peers[0].members(), func(s raft.Server) bool { return string(s.Address) == address })
		})
	}
}

// TestAQuestionEndsWithItsCaller: a peer takes the connection and says nothing, as one that is
// stopped does. A question to it ends with its context, so that Close does not wait for it.
func TestAQuestionEndsWithItsCaller(t *testing.T) {
	var listeners [2]net.Listener
	for i := range listeners {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = listener.Close() }() // The layer closes one.
		listeners[i] = listener
	}
	config := Config{Own: names[0], Secret: []byte("secret"), Listener: listeners[0], Log: slog.New(slog.DiscardHandler), dial: func(ctx context.Context, address string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	}}
	r := &Peer{config: config, layer: newLayer(config, func() identity { return identity{} }, func(net.Conn) {})}
	defer func() { _ = r.layer.Close() }()
	ask := func() error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		asked := make(chan error, 1)
		go func() {
			_, err := r.inquireOf(ctx, listeners[1].Addr().String(), question{})
			asked <- err
		}()
		conn, err := listeners[1].Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		_, _ = io.ReadFull(conn, make([]byte, len(helloMagic))) // It has begun.
		cancel()
		return <-asked
	}
	var err error
	// On a busy machine the time for a hello may be over first.
	until(t, "a question ends before its time is over", func() bool {
		err = ask()
		return !errors.Is(err, context.DeadlineExceeded)
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
