package consensus

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
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
}

const (
	// joinTime bounds a change of the configuration.
	joinTime = 5 * time.Second
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
	started, phase := r.raft, r.phase
	r.mu.Unlock()
	if started == nil {
		return answer{Phase: phase, Process: r.state.process}
	}
	a := answer{Phase: phaseMember, Process: r.state.process, Leads: started.State() == raft.Leader, Term: started.CurrentTerm(), Applied: started.AppliedIndex()}
	// The first term has no election. In a later one, votes were given, perhaps by a peer that has
	// lost them since: it must not begin with the list and vote once more.
	if _, led := r.state.led(); !led && started.LastIndex() <= 1 && a.Term <= 1 {
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

// admit puts a peer that has lost all into the configuration, in the place of what it was.
func (r *Peer) admit(leads *raft.Raft, q question) error {
	if !strings.HasPrefix(q.Join, q.Address+"#") {
		return fmt.Errorf("%q is no id of %s", q.Join, q.Address)
	}
	future := leads.GetConfiguration()
	if err := future.Error(); err != nil {
		return err
	}
	known := false
	for _, s := range future.Configuration().Servers {
		switch {
		case string(s.ID) == q.Join:
			return nil
		case string(s.Address) == q.Address:
			known = true
			if err := leads.RemoveServer(s.ID, 0, joinTime).Error(); err != nil {
				return err
			}
		}
	}
	if !known && !strings.Contains(","+List(r.config.Addresses)+",", ","+q.Address+",") {
		return fmt.Errorf("%s is none of the peers", q.Address)
	}
	r.log.Warn("a peer comes back without its directory", "address", q.Address)
	return leads.AddVoter(raft.ServerID(q.Join), raft.ServerAddress(q.Address), 0, joinTime).Error()
}

// inquire asks all other peers. It returns the answers by address, and the errors.
func (r *Peer) inquire(ctx context.Context, q question) (map[string]answer, map[string]error) {
	ctx, cancel := context.WithTimeout(ctx, 3*joinTime)
	defer cancel()
	answers, errs := map[string]answer{}, map[string]error{}
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, address := range r.config.Addresses {
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
	if until, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(until); err != nil {
			return a, err
		}
	}
	if err := json.NewEncoder(conn).Encode(q); err != nil {
		return a, err
	}
	return a, json.NewDecoder(conn).Decode(&a)
}

// first decides how a peer with an empty directory begins. found: this is the first start of the
// cluster.
func (r *Peer) first(ctx context.Context) (found bool, err error) {
	logged := time.Now()
	for {
		answers, errs := r.inquire(ctx, question{})
		members := 0
		for _, a := range answers { // order-free: a count
			if a.Phase == phaseMember {
				members++
			}
		}
		if members > 0 {
			// An id of before is of no use either.
			return false, r.keepIdentity(fmt.Sprintf("%s#%016x", r.config.Own, rand.Uint64()))
		}
		if members == 0 && len(errs) == 0 {
			return true, r.keepIdentity(r.config.Own)
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

// join waits until the leader has put this peer into the configuration.
func (r *Peer) join(ctx context.Context) error {
	logged := time.Now()
	for !r.votes() {
		answers, errs := r.inquire(ctx, question{Join: r.identity.ID, Address: r.config.Own})
		if time.Since(logged) > waitLog {
			logged = time.Now()
			r.log.Warn("a peer without a directory waits for the leader to take it", "answers", answers, "errors", errs)
		}
		if err := pause.For(ctx, retryTime); err != nil {
			return err
		}
	}
	return nil
}

// votes reports whether this peer is in the configuration that it knows. One that has lost its
// directory is not, until it has all that was committed before it was taken.
func (r *Peer) votes() bool {
	started := r.started()
	if started == nil {
		return false
	}
	future := started.GetConfiguration()
	if future.Error() != nil {
		return false
	}
	for _, s := range future.Configuration().Servers {
		if string(s.ID) == r.identity.ID {
			return true
		}
	}
	return false
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
			switch rpc.Command.(type) {
			case *raft.RequestVoteRequest, *raft.RequestPreVoteRequest, *raft.TimeoutNowRequest:
				if !r.votes() {
					rpc.Respond(nil, fmt.Errorf("peer: %s has lost its directory, and does not vote yet", r.config.Own))
					continue
				}
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
