// Package leadertest is Test support: schedulers that do not lead.
package leadertest

import (
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/reflection"

	"github.com/millrace/millrace/internal/leader"
)

// Follower is a server that refuses every call but those of reflection, as a scheduler does that
// does not lead.
type Follower struct {
	// Address is its host:port.
	Address string

	mu     sync.Mutex
	leader string
	calls  int
}

// NewFollower starts a Follower that names a leader; empty: there is none. It runs until the end of
// the test.
func NewFollower(tb testing.TB, named string) *Follower {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	f := &Follower{Address: listener.Addr().String(), leader: named}
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.calls++
		return leader.Refusal(f.leader)
	}))
	reflection.Register(server) // as schedulers do for everybody
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	tb.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			tb.Error(err)
		}
	})
	return f
}

// Name makes it name another leader.
func (f *Follower) Name(named string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leader = named
}

// Calls returns the number of calls that it has refused.
func (f *Follower) Calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}
