package soak

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

const (
	// probeEvery is the pace of calls to each scheduler, and probeTimeout the longest wait of one.
	probeEvery   = 20 * time.Millisecond
	probeTimeout = time.Second
)

// prober calls each of three schedulers all the time, each with connections of its own, and so sees
// when another one leads. Each call is a request that must be durable.
type prober struct {
	loops  sync.WaitGroup
	cancel context.CancelFunc

	mu sync.Mutex // guards all below
	// last is the last acknowledged call of each scheduler: when it began and when it was
	// answered.
	last [schedulers]struct{ began, answered time.Time }
}

func startProber(c *cluster) *prober {
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(context.Background(), "authorization", "Bearer "+token))
	p := &prober{cancel: cancel}
	for i := range schedulers {
		conn, err := grpc.NewClient(c.address(i)+":7786", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: probeEvery, Multiplier: 1, MaxDelay: probeEvery}, MinConnectTimeout: probeTimeout,
		}))
		if err != nil {
			c.t.Fatal(err)
		}
		p.loops.Go(func() {
			defer func() { _ = conn.Close() }() // All was said.
			p.probe(ctx, i, millracev1.NewCoordinationServiceClient(conn))
		})
	}
	return p
}

func (p *prober) probe(ctx context.Context, i int, s millracev1.CoordinationServiceClient) {
	in := &millracev1.SetEventRequest{Namespace: "probe", Name: "probe"}
	for ctx.Err() == nil {
		began := time.Now()
		call, cancel := context.WithTimeout(ctx, probeTimeout)
		in.Clear = !in.GetClear() // Each call changes something.
		_, err := s.SetEvent(call, in)
		cancel()
		if err == nil {
			p.mu.Lock()
			p.last[i].began, p.last[i].answered = began, time.Now()
			p.mu.Unlock()
		}
		select {
		case <-ctx.Done():
		case <-time.After(probeEvery):
		}
	}
}

// since returns when another scheduler than one has acknowledged a call that began after a time.
func (p *prober) since(after time.Time, not int) (answered time.Time, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, l := range p.last {
		if i != not && l.began.After(after) {
			return l.answered, true
		}
	}
	return answered, false
}

func (p *prober) end() {
	p.cancel()
	p.loops.Wait()
}
