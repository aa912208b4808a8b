package consensus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/millrace/millrace/internal/pause"
)

// A peer whose directory is empty asks the others before it begins. If all of them have nothing
// either, this is the first start of the cluster, and each of them begins with the list. If one has
// been in a cluster, the directory was lost, or this peer has missed the beginning. Then it has
// no part in elections, because nobody knows what it had promised, until the leader has put it into
// the configuration under another id.

// phases of a peer, from the first start on.
const (
	phaseEmpty    = "empty"    // it has nothing
	phaseFounding = "founding" // it has the list alone
	phaseMember   = "member"   // it has been in a cluster
)

// question is what one peer asks another one.
type question struct {
	// Join is the id under which the asking peer wants to be a member; empty: it asks for the
	// state only. Address is its address.
	Join    string `json:"join,omitempty"`
	Address string `json:"address,omitempty"`
	// Applied is the last entry that it has carried out.
	Applied uint64 `json:"applied,omitempty"`
}

// answer says how a peer is.
type answer struct {
	Phase string `json:"phase"`
	// Leads: the peer leads. Error is why it did not do what was asked.
	Leads   bool   `json:"leads,omitempty"`
	Error   string `json:"error,omitempty"`
	Process uint64 `json:"process"` // the random id of the process
	Term    uint64 `json:"term"`
	Applied uint64 `json:"applied"`
	Last    uint64 `json:"last"` // entry of its log
	// Silence is the time since a follower has heard of the leader.
	Silence time.Duration `json:"silence"`
	Client  string        `json:"client"` // its address for clients
	Version string        `json:"version"`
	// Peers is the list that it was started with. Cluster is the name of its cluster, and Members
	// are the ids in the configuration that it knows; empty: it is in none yet.
	Peers   string   `json:"peers"`
	Cluster string   `json:"cluster,omitempty"`
	Members []string `json:"members,omitempty"`
}

const (
	// joinTime is how long a change of the configuration may wait for its turn, and changeTime
	// until it is committed. The caller may allow less.
	joinTime   = 5 * time.Second
	changeTime = 2 * joinTime
	// askTime bounds a question that changes nothing.
	askTime = 5 * time.Second
	// waitLog is the time between two lines of the log while others are waited for.
	waitLog = 10 * time.Second
)

// answer answers a question.
func (r *Peer) answer(conn net.Conn) {
	var q question
	if conn.SetDeadline(time.Now().Add(2*joinTime)) != nil || json.NewDecoder(conn).Decode(&q) != nil {
		return
	}
	_ = json.NewEncoder(conn).Encode(r.consider(q)) // The other side asks again.
}

func (r *Peer) consider(q question) answer {
	r.mu.Lock()
	started := r.raft
	a := answer{
		Phase: r.phase, Process: r.state.process, Client: r.config.Advertise, Version: r.config.Version,
		Peers: List(r.config.Addresses), Cluster: r.identity.Cluster,
	}
	r.mu.Unlock()
	if started == nil {
		return a
	}
	a.Phase, a.Leads, a.Term = phaseMember, started.State() == raft.Leader, started.CurrentTerm()
	a.Applied, a.Last = started.AppliedIndex(), started.LastIndex()
	if !a.Leads {
		a.Silence = r.silence(started)
	}
	for _, s := range r.members() {
		a.Members = append(a.Members, string(s.ID))
	}
	// The first term has no election. In a later one, votes were given, perhaps by a peer that has
	// lost them since: it must not begin with the list and vote once more.
	if r.state.leader.Load() == nil && started.LastIndex() <= 1 && a.Term <= 1 {
		a.Phase = phaseFounding
	}
	if q.Join != "" {
		if !a.Leads {
			a.Error = "it does not lead"
		} else if err := r.admit(started, q); err != nil {
			a.Error = err.Error()
		}
	}
	return a
}

// members returns the configuration that this peer knows.
func (r *Peer) members() []raft.Server {
	if started := r.started(); started != nil {
		if future := started.GetConfiguration(); future.Error() == nil {
			return future.Configuration().Servers
		}
	}
	return nil
}

// admit puts a peer that has nothing into the configuration, in the place of what was at its
// address. It gets no vote before it has nearly all: until then, it could acknowledge nothing in
// time, and the others would wait for it.
func (r *Peer) admit(leads *raft.Raft, q question) error {
	ctx, cancel := context.WithTimeout(r.closing, 3*joinTime) // Then the other side is gone.
	defer cancel()
	for _, s := range r.members() {
		switch {
		case string(s.ID) == q.Join && s.Suffrage == raft.Voter:
			return nil
		case string(s.ID) == q.Join:
			if q.Applied+trailing < leads.AppliedIndex() {
				return nil // It asks again.
			}
			r.log.Info("a peer has all, and votes from now on", "address", q.Address)
			return r.propose(ctx, func() error { return leads.AddVoter(s.ID, s.Address, 0, joinTime).Error() })
		case !strings.HasPrefix(q.Join, q.Address+idMark):
		case string(s.Address) == q.Address:
			r.vacate(q.Address, true)
			if err := r.propose(ctx, func() error { return leads.RemoveServer(s.ID, 0, joinTime).Error() }); err != nil {
				return err
			}
		}
	}
	if !strings.HasPrefix(q.Join, q.Address+idMark) {
		return fmt.Errorf("its id is %s, and that was removed: move its directory away", q.Join)
	}
	if !r.isVacant(q.Address) {
		return fmt.Errorf("%s is none of the peers: add it with \"millrace peers add %s\"", q.Address, q.Address)
	}
	r.log.Warn("a peer comes with an empty directory", "address", q.Address)
	err := r.propose(ctx, func() error {
		return leads.AddNonvoter(raft.ServerID(q.Join), raft.ServerAddress(q.Address), 0, joinTime).Error()
	})
	if err == nil {
		r.vacate(q.Address, false)
	}
	return err
}

func (r *Peer) vacate(address string, vacant bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.vacant[address] = vacant
}

func (r *Peer) isVacant(address string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.vacant[address]
}

// inquire asks all other peers. It returns the answers by address, and the errors.
func (r *Peer) inquire(ctx context.Context, q question) (map[string]answer, map[string]error) {
	return r.inquireAt(ctx, r.addresses(), q)
}

// seek is inquire, and goes on until a leader has answered: it also asks the peers that this one
// does not know, and an answer names. A list of the start may have no more than a follower of now.
// An answer of another cluster is an error: a peer of it may be at an address of before.
func (r *Peer) seek(ctx context.Context, q question) (map[string]answer, map[string]error) {
	answers, errs := r.inquire(ctx, q)
	for {
		named, led := map[string]bool{}, false
		for address, a := range answers { // order-free: sets
			if a.Cluster != "" && a.Cluster != r.identity.Cluster {
				errs[address] = errors.New("it belongs to another cluster")
				delete(answers, address)
				continue
			}
			led = led || a.Leads
			for _, id := range a.Members {
				address, _, _ := strings.Cut(id, idMark)
				if _, answered := answers[address]; !answered && errs[address] == nil && address != r.config.Own {
					named[address] = true
				}
			}
		}
		if led || len(named) == 0 {
			return answers, errs
		}
		more, failed := r.inquireAt(ctx, named, q)
		maps.Copy(answers, more)
		maps.Copy(errs, failed)
	}
}

// inquireAt asks the peers at some addresses.
func (r *Peer) inquireAt(ctx context.Context, addresses map[string]bool, q question) (map[string]answer, map[string]error) {
	limit := askTime
	if q.Join != "" {
		limit = 3 * joinTime
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	answers, errs := map[string]answer{}, map[string]error{}
	var mu sync.Mutex
	var asking sync.WaitGroup
	for address := range addresses { // order-free: all are asked at once
		if address == r.config.Own {
			continue
		}
		asking.Go(func() {
			a, err := r.inquireOf(ctx, address, q)
			mu.Lock()
			defer mu.Unlock()
			if answers[address] = a; err != nil {
				delete(answers, address)
				errs[address] = err
			}
		})
	}
	asking.Wait()
	return answers, errs
}

// addresses returns those of all peers. A peer that is in no cluster yet has those that it was
// started with.
func (r *Peer) addresses() map[string]bool {
	all := map[string]bool{}
	for _, s := range r.members() {
		all[string(s.Address)] = true
	}
	if len(all) == 0 || !all[r.config.Own] {
		for _, address := range r.config.Addresses {
			all[address] = true
		}
	}
	return all
}

// told waits until all peers that can be reached have applied an entry of the log.
func (r *Peer) told(ctx context.Context, index uint64) {
	ctx, cancel := context.WithTimeout(ctx, 2*joinTime)
	defer cancel()
	for {
		behind := false
		answers, _ := r.inquire(ctx, question{}) // One that cannot be reached has ended, or hears of it later.
		for _, a := range answers {              // order-free: any of them
			behind = behind || a.Applied < index
		}
		if !behind || pause.For(ctx, retryTime) != nil {
			return
		}
	}
}

func (r *Peer) inquireOf(ctx context.Context, address string, q question) (a answer, err error) {
	conn, err := r.layer.dial(ctx, address, connAsk)
	if err != nil {
		return a, err
	}
	defer func() { _ = conn.Close() }() // All was said.
	end := within(ctx, conn)
	defer end()
	err = json.NewEncoder(conn).Encode(q)
	if err == nil {
		err = json.NewDecoder(conn).Decode(&a)
	}
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("peer: question to %s: %w", address, ctx.Err())
	}
	return a, err
}

// within ends what a connection waits for when the context ends. The caller calls end.
func within(ctx context.Context, conn net.Conn) (end func() bool) {
	return context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }) // Its reader hears of it.
}

// first decides how a peer with an empty directory begins. found: this is the first start of the
// cluster.
func (r *Peer) first(ctx context.Context) (found bool, err error) {
	logged := time.Now()
	list := List(r.config.Addresses)
	for {
		answers, errs := r.inquire(ctx, question{})
		clusters := map[string]bool{}
		for address, a := range answers { // order-free: sets
			if a.Phase == phaseMember {
				clusters[a.Cluster] = true
			} else if a.Peers != list {
				errs[address] = fmt.Errorf("it has another list, --peers %s: give all the same", a.Peers)
			}
		}
		switch {
		case len(clusters) > 1:
			return false, fmt.Errorf("peer: the addresses %s belong to different clusters: choose those of one", list)
		case len(clusters) == 1:
			var cluster string
			for cluster = range clusters { // order-free: it is the only one
			}
			// An id of before is of no use either.
			return false, r.keepIdentity(identity{ID: fmt.Sprintf("%s%s%016x", r.config.Own, idMark, rand.Uint64()), Cluster: cluster})
		case len(errs) == 0:
			if n := len(r.config.Addresses); n != 3 && n != 5 {
				return false, fmt.Errorf("peer: a cluster of %d schedulers cannot begin: give 3 addresses, of which one may fail, or 5, of which two may", n)
			}
			return true, r.keepIdentity(identity{ID: r.config.Own, Cluster: foundersOf(list)})
		}
		if time.Since(logged) > waitLog {
			logged = time.Now()
			r.log.Warn("the first start of a cluster waits for all peers", "errors", errs)
		}
		if err := pause.For(ctx, retryTime); err != nil {
			return false, err
		}
	}
}

// foundersOf returns the name of the cluster that begins with a list.
func foundersOf(list string) string {
	sum := sha256.Sum256([]byte(list))
	return hex.EncodeToString(sum[:16])
}

// join waits until the leader has put this peer into the configuration.
func (r *Peer) join(ctx context.Context) error {
	logged := time.Now()
	for !r.votes() {
		answers, errs := r.seek(ctx, question{Join: r.identity.ID, Address: r.config.Own, Applied: r.started().AppliedIndex()})
		if time.Since(logged) > waitLog {
			logged = time.Now()
			r.log.Warn("this peer waits until the leader takes it", "answers", answers, "errors", errs)
		}
		if err := pause.For(ctx, retryTime); err != nil {
			return err
		}
	}
	return nil
}

// votes reports whether this peer has a vote in the configuration that it knows. One that has lost
// its directory has none, until it has nearly all.
func (r *Peer) votes() bool {
	return slices.ContainsFunc(r.members(), func(s raft.Server) bool { return string(s.ID) == r.identity.ID && s.Suffrage == raft.Voter })
}

// allVote reports whether all peers of the configuration that this one knows have a vote.
func (r *Peer) allVote() bool {
	return !slices.ContainsFunc(r.members(), func(s raft.Server) bool { return s.Suffrage != raft.Voter })
}

// mayVote returns an error if this peer may have no part in an election now. The process before may
// have told a leader that it follows, and that leader counts on it for one lease. A peer that is up
// keeps to its leader for a heartbeat timeout at least. A peer that was restarted does not know its
// leader, so it waits as long before it votes. A peer that founds the cluster has followed nobody,
// and a leader that hands over counts on nobody.
func (r *Peer) mayVote(command any) error {
	handed := false
	switch asked := command.(type) {
	case *raft.RequestVoteRequest:
		handed = asked.LeadershipTransfer
	case *raft.TimeoutNowRequest:
		handed = true
	case *raft.RequestPreVoteRequest:
	default:
		return nil
	}
	if !r.votes() {
		return fmt.Errorf("peer: %s has no vote, or is just starting", r.config.Own)
	}
	if !handed && !r.founds && time.Since(r.opened) < r.config.Heartbeat {
		return fmt.Errorf("peer: %s was started just now, and does not vote yet: the leader of before may count on it", r.config.Own)
	}
	return nil
}

// transport refuses messages of elections for a peer that may have no part in them.
type transport struct {
	*raft.NetworkTransport
	consumer chan raft.RPC
	ending   chan struct{}
	ended    chan struct{}
}

func newTransport(network *raft.NetworkTransport, r *Peer) *transport {
	t := &transport{NetworkTransport: network, consumer: make(chan raft.RPC), ending: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(t.ended)
		for {
			var rpc raft.RPC
			select {
			case rpc = <-network.Consumer():
			case <-t.ending:
				return
			}
			if err := r.mayVote(rpc.Command); err != nil {
				rpc.Respond(nil, err)
				continue
			}
			select {
			case t.consumer <- rpc:
			case <-t.ending:
				return
			}
		}
	}()
	return t
}

// Consumer is part of raft.Transport.
func (t *transport) Consumer() <-chan raft.RPC { return t.consumer }

func (t *transport) end() {
	t.CloseStreams()
	_ = t.NetworkTransport.Close() // It never fails.
	close(t.ending)
	<-t.ended
}
