package e2e

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/millrace/millrace/test/model"
)

// Clients share locks, queues and variables, and submit tasks, while their scheduler is killed
// again and again. The model explains all that they were told.
func TestTheModelExplainsAKilledScheduler(t *testing.T) {
	t.Parallel()
	kills, calls := 3, 150
	if !testing.Short() {
		kills, calls = 10, 300
	}
	scheduler := withJournal(t)
	scheduler.workers(t, scheduler.dial(t))
	history := new(model.History)
	var over atomic.Bool
	all, cancel := context.WithTimeout(t.Context(), 4*eventTimeout)
	defer cancel()
	ctx := metadata.AppendToOutgoingContext(all, "authorization", "Bearer t0ken")
	var players sync.WaitGroup
	defer players.Wait()
	defer over.Store(true)
	for i := range 4 {
		// Each has a connection of its own, whose end it notices by itself.
		conn, err := grpc.NewClient(scheduler.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		players.Go(func() {
			defer func() { _ = conn.Close() }() // All calls have ended.
			p := model.Player{History: history, Conn: conn, Name: fmt.Sprint("p", i), Seed: uint64(i), Tasks: true}
			if err := p.Play(ctx, func() bool { return !over.Load() }); err != nil && context.Cause(ctx) == nil {
				t.Errorf("player %d: %v", i, err)
			}
		})
	}
	for kill := range kills {
		within(t, "the clients have made calls", func() bool { return history.Len() > (kill+1)*calls || t.Failed() })
		scheduler.restart(t)
	}
	within(t, "the clients have made calls", func() bool { return history.Len() > (kills+1)*calls || t.Failed() })
	over.Store(true)
	players.Wait()
	if err := history.Check(); err != nil {
		t.Errorf("%d calls: %v", history.Len(), err)
	}
	t.Logf("%d calls, %d kills", history.Len(), kills)
}
