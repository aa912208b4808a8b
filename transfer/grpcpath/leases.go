package grpcpath

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/transfer"
)

const (
	// maxLeases is how many read leases one connection may hold.
	maxLeases = 100000
	// sweepEvery is the shortest time between two removals of expired leases, unless room is
	// needed.
	sweepEvery = 10 * time.Second
	// answerBytes bounds the heads in one answer. Objects beyond it must be read by ReadObjects.
	answerBytes = 8 << 20
)

// leaseTable holds the leases that callers of AcquireReadLeases have. It names them by random
// numbers that nobody can guess, because the source counts its own numbers up from 1. A lease can
// be released only with the token that acquired it.
type leaseTable struct {
	mu   sync.Mutex
	held map[uint64]heldLease // guarded by mu
	// by counts the leases of each connection; guarded by mu, as is swept.
	by    map[string]int
	swept time.Time
}

type heldLease struct {
	lease       transfer.LeaseID
	token, from string
	ends        time.Time
}

// caller returns the token of a call and the remote address of its connection.
func caller(ctx context.Context) (token, from string) {
	if values := metadata.ValueFromIncomingContext(ctx, "authorization"); len(values) > 0 {
		token = values[0]
	}
	if p, ok := peer.FromContext(ctx); ok {
		from = p.Addr.String()
	}
	return token, from
}

// room returns an error if a connection may not hold more further leases.
func (t *leaseTable) room(from string, more int, now time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.by[from]+more > maxLeases || now.Sub(t.swept) > sweepEvery {
		t.sweep(now)
	}
	if t.by[from]+more > maxLeases {
		return status.Errorf(codes.ResourceExhausted, "this connection holds %d read leases and wants %d more; at most %d: give some back", t.by[from], more, maxLeases)
	}
	return nil
}

// sweep removes the leases that have expired. REQUIRES: mu is held.
func (t *leaseTable) sweep(now time.Time) {
	t.swept = now
	for id, l := range t.held {
		if l.ends.Before(now) {
			t.forget(id, l)
		}
	}
}

func (t *leaseTable) forget(id uint64, l heldLease) {
	delete(t.held, id)
	if t.by[l.from]--; t.by[l.from] <= 0 {
		delete(t.by, l.from)
	}
}

// add stores a lease and returns its number for the caller.
func (t *leaseTable) add(l heldLease) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held == nil {
		t.held, t.by = make(map[uint64]heldLease), make(map[string]int)
	}
	for {
		var b [8]byte
		_, _ = rand.Read(b[:]) // crypto/rand.Read never fails
		id := binary.LittleEndian.Uint64(b[:])
		if _, taken := t.held[id]; id == 0 || taken {
			continue
		}
		t.held[id] = l
		t.by[l.from]++
		return id
	}
}

// take removes the leases that a caller holds, and returns the source's number of each; 0 for the
// numbers that the caller does not hold.
func (t *leaseTable) take(ids []uint64, token string) []transfer.LeaseID {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]transfer.LeaseID, len(ids))
	for i, id := range ids {
		if l, ok := t.held[id]; ok && l.token == token {
			out[i] = l.lease
			t.forget(id, l)
		}
	}
	return out
}
