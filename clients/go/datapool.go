package millrace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/hostport"
	"github.com/millrace/millrace/internal/rawframe"
)

// workersFresh is how long a list of workers may be used to place scattered data.
const workersFresh = time.Second

// dataPool keeps the data connections to workers.
type dataPool struct {
	client *Client
	shares sharePool
	// partBytes is the number of bytes for which an object gets one more part.
	partBytes uint64

	// listing holds a token while a call asks the scheduler for the workers.
	listing chan struct{}

	// mu is never held during a network call.
	mu      sync.Mutex
	conns   map[connKey]*grpc.ClientConn
	workers []*millracev1.Worker // the active ones at the time listed
	listed  time.Time
	next    int
}

// connKey identifies a connection: the address of a worker, and an index among the connections to
// it. There are several, since one connection is limited by one goroutine at each end.
type connKey struct {
	address string
	number  int
}

func (p *dataPool) init(c *Client) {
	p.client, p.conns, p.partBytes = c, make(map[connKey]*grpc.ClientConn), partBytes
	p.listing = make(chan struct{}, 1)
	p.shares.token, p.shares.off = c.config.token, c.config.unshared
}

func (p *dataPool) conn(address string) (*grpc.ClientConn, error) {
	return p.connTo(connKey{address: address})
}

func (p *dataPool) connTo(key connKey) (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns == nil {
		return nil, ErrClosed
	}
	if conn := p.conns[key]; conn != nil {
		return conn, nil
	}
	transport := insecure.NewCredentials()
	if t := p.client.config.tls; t != nil {
		transport = credentials.NewTLS(t)
	}
	options := append(rawframe.DialOptions(),
		grpc.WithTransportCredentials(transport),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		reconnectSoon())
	if p.client.callToken != nil {
		options = append(options, grpc.WithPerRPCCredentials(p.client.callToken))
	}
	conn, err := grpc.NewClient(hostport.Target(key.address), options...)
	if err != nil {
		return nil, fmt.Errorf("millrace: worker address %q: %w", key.address, err)
	}
	p.conns[key] = conn
	return conn, nil
}

func (p *dataPool) close() error {
	p.shares.close()
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, conn := range p.conns {
		errs = append(errs, conn.Close())
	}
	p.conns = nil
	return errors.Join(errs...)
}

// pick returns the next worker in turn that names allows (all workers if names is empty) and that
// is not in avoid.
func (p *dataPool) pick(ctx context.Context, names []string, avoid map[uint32]bool) (*millracev1.Worker, error) {
	if err := p.list(ctx, len(avoid) > 0); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for range p.workers {
		p.next++
		w := p.workers[p.next%len(p.workers)]
		if avoid[w.GetWorkerId()] {
			continue
		}
		if len(names) == 0 {
			return w, nil
		}
		for _, n := range names {
			if n == w.GetName() || n == w.GetHost() || n == fmt.Sprintf("w%d", w.GetWorkerId()) {
				return w, nil
			}
		}
	}
	return nil, &Error{Op: "Scatter", Reason: "NO_WORKER_FITS", Message: fmt.Sprintf("no active worker among the %d can take data (wanted: %v)", len(p.workers), names)}
}

// list asks the scheduler for the active workers, unless again is false and the last answer is
// fresh. Calls that need a list wait for the one that asks.
func (p *dataPool) list(ctx context.Context, again bool) error {
	if !again && p.fresh() {
		return nil
	}
	select {
	case p.listing <- struct{}{}:
		defer func() { <-p.listing }()
	case <-ctx.Done():
		return fmt.Errorf("millrace: list of workers: %w", context.Cause(ctx))
	}
	if !again && p.fresh() {
		return nil
	}
	workers, err := p.client.Workers(ctx)
	if err != nil {
		return err
	}
	workers = slices.DeleteFunc(workers, func(w *millracev1.Worker) bool {
		return w.GetState() != millracev1.WorkerState_WORKER_STATE_ACTIVE || w.GetDataAddress() == ""
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.workers = workers
	if len(workers) > 0 {
		p.listed = time.Now()
	}
	return nil
}

func (p *dataPool) fresh() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.listed) <= workersFresh
}
