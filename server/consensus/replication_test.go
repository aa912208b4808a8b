package consensus

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// scripted is a follower that takes every entry, except those that the test has it refuse.
type scripted struct {
	held   chan struct{} // receives when the entries to be refused are here
	answer chan struct{} // receives when it may answer
	over   chan struct{} // closed at the end

	mu     sync.Mutex
	refuse bool   // the next entries
	last   uint64 // the last entry that it took
}

// serve answers one message.
func (s *scripted) serve(rpc raft.RPC) {
	request, ok := rpc.Command.(*raft.AppendEntriesRequest)
	if !ok {
		rpc.Respond(nil, fmt.Errorf("the script has no %T", rpc.Command))
		return
	}
	response := &raft.AppendEntriesResponse{RPCHeader: request.RPCHeader, Term: request.Term, Success: true}
	if n := len(request.Entries); n > 0 {
		s.mu.Lock()
		refuse := s.refuse
		s.refuse = false
		if !refuse {
			s.last = request.Entries[n-1].Index
		}
		response.LastLog = s.last
		s.mu.Unlock()
		if refuse {
			for _, c := range []chan struct{}{s.held, s.answer} {
				select {
				case c <- struct{}{}:
				case <-s.over:
				}
			}
			response.Success, response.NoRetryBackoff = false, true
		}
	}
	rpc.Respond(response, nil)
}

// TestAFollowerThatRefusesEntriesGetsThemAgain: Raft sends further entries while it waits for the
// answer to earlier ones. When that refuses them, its sender could wait for itself: the follower
// got heartbeats and no entry any more, and Close of the leader never returned.
func TestAFollowerThatRefusesEntriesGetsThemAgain(t *testing.T) {
	// A leader that a busy machine holds up must not lose its term.
	c := newCluster(t, Config{Heartbeat: 5 * time.Second})
	i, term := c.lead()
	defer term.Release()
	place := (i + 1) % len(names)
	known := c.peers[place].self()
	c.stop(place)

	s := &scripted{held: make(chan struct{}), answer: make(chan struct{}), over: make(chan struct{})}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config := Config{Own: names[place], Secret: []byte("secret"), Listener: listener, Log: c.peers[i].log}
	layer := newLayer(config, func() identity { return known }, func(net.Conn) {})
	network := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{Stream: layer, ServerAddressProvider: byID{}, Timeout: messageTime, Logger: newLogger(config.Log)})
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			select {
			case rpc := <-network.Consumer():
				serving.Go(func() { s.serve(rpc) })
			case <-s.over:
				return
			}
		}
	})
	t.Cleanup(func() {
		close(s.over)
		c.stop(i) // Its connections end.
		serving.Wait()
		_ = network.Close() // It closes the layer, too.
	})
	c.mu.Lock()
	c.ports[place] = listener.Addr().String()
	c.mu.Unlock()

	send := func() uint64 {
		term.mu.Lock()
		sent := term.send(kindFiles, operation{kind: opMake, name: "file"}.append(nil))
		term.mu.Unlock()
		<-sent.done
		if sent.err != nil {
			t.Fatal(sent.err)
		}
		return sent.index
	}
	for round := range 12 { // The sender chose one of two ways at random.
		took := func(index uint64) {
			t.Helper()
			until(t, fmt.Sprintf("the follower takes entry %d of round %d", index, round), func() bool {
				s.mu.Lock()
				defer s.mu.Unlock()
				return s.last >= index
			})
		}
		took(send())
		s.mu.Lock()
		s.refuse = true
		s.mu.Unlock()
		send() // The other follower has it.
		<-s.held
		var last uint64
		for range 5 {
			last = send()
		}
		<-s.answer
		took(last)
	}
}
