package consensus

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/millrace/millrace/server/journal"
)

// scripted is a follower that takes every entry, except those that the test has it refuse.
type scripted struct {
	mu      sync.Mutex
	refusal *refusal // of the next entries; nil: they are taken
	last    uint64   // the last entry that it took
}

// refusal is one of entries: here is closed when they have come, and answer when it may be said.
type refusal struct{ here, answer chan struct{} }

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
		refused := s.refusal
		s.refusal = nil
		if refused == nil {
			s.last = request.Entries[n-1].Index
		}
		response.LastLog = s.last
		s.mu.Unlock()
		if refused != nil {
			close(refused.here)
			<-refused.answer
			response.Success, response.NoRetryBackoff = false, true
		}
	}
	rpc.Respond(response, nil)
}

// TestAFollowerThatRefusesEntriesGetsThemAgain: Raft sends further entries while it waits for the
// answer to earlier ones. When that refuses them, its sender could wait for itself: the follower
// got heartbeats and no entry any more, and Close of the leader never returned.
func TestAFollowerThatRefusesEntriesGetsThemAgain(t *testing.T) {
	// A leader that a busy machine holds up seldom loses its term.
	c := newCluster(t, Config{Heartbeat: 5 * time.Second})
	i, term := c.lead()
	defer func() { term.Release() }()
	place := (i + 1) % len(names)
	known := c.peers[place].self()
	c.stop(place)

	s, over := new(scripted), make(chan struct{})
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
			case <-over:
				return
			}
		}
	})
	t.Cleanup(func() {
		for j := range names {
			c.stop(j) // Its connections end.
		}
		close(over)
		serving.Wait()
		_ = network.Close() // It closes the layer, too.
	})
	c.mu.Lock()
	c.ports[place] = listener.Addr().String()
	c.mu.Unlock()

	send := func() (uint64, error) {
		term.mu.Lock()
		sent := term.send(kindFiles, operation{kind: opMake, name: "file"}.append(nil))
		term.mu.Unlock()
		<-sent.done
		return sent.index, sent.err
	}
	took := func(index uint64) {
		t.Helper()
		until(t, fmt.Sprintf("the follower takes entry %d", index), func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.last >= index
		})
	}
	// refused has the follower refuse entries while more are written.
	refused := func() error {
		first, err := send()
		if err != nil {
			return err
		}
		took(first)
		r := &refusal{here: make(chan struct{}), answer: make(chan struct{})}
		answer := sync.OnceFunc(func() { close(r.answer) })
		defer answer()
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.refusal = nil
		}()
		s.mu.Lock()
		s.refusal = r
		s.mu.Unlock()
		last, err := send() // The other follower has it.
		if err != nil {
			return err
		}
		until(t, "entries come, or the term ends", func() bool { return isClosed(r.here) || isClosed(term.lost) })
		for range 5 {
			if last, err = send(); err != nil {
				return err
			}
		}
		answer()
		took(last)
		return nil
	}
	for done := 0; done < 12; { // The sender chose one of two ways at random.
		if err := refused(); err == nil {
			done++
			continue
		}
		term.end()
		term.Release()
		_, term = c.lead()
	}
}

// TestTheFilesOfOnePeerAreAJournal: when most machines are lost for good, a scheduler alone begins
// with a copy of "files" of the one that is left.
func TestTheFilesOfOnePeerAreAJournal(t *testing.T) {
	c := newCluster(t, Config{Heartbeat: 5 * time.Second})
	i, term := c.lead()
	j, err := journal.Open(journal.Config{Files: term}, func(time.Time, journal.Record) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Wait(t.Context(), j.Append(time.Now(), &journal.Begun{Cluster: "c", Life: 7, Starts: 1})); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	want, err := contents(term)
	if err != nil || len(want) == 0 {
		t.Fatal(want, err)
	}
	c.have(want)
	term.Release()
	for k := range names {
		c.stop(k)
	}
	left := filepath.Join(t.TempDir(), "left")
	if err := os.CopyFS(left, os.DirFS(filepath.Join(c.roots[(i+1)%len(names)], filesName))); err != nil {
		t.Fatal(err)
	}
	d, err := journal.OpenDirectory(left)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }() // All was read.
	var life uint64
	alone, err := journal.Open(journal.Config{Files: d}, func(_ time.Time, r journal.Record) error {
		if begun, is := r.(*journal.Begun); is {
			life = begun.Life
		}
		return nil
	})
	if err != nil || life != 7 {
		t.Fatalf("a scheduler alone reads life %d, %v", life, err)
	}
	if err := alone.Close(); err != nil {
		t.Error(err)
	}
}
