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
	// sweepEvery is how often leases that ran out are forgotten, at most.
	sweepEvery = 10 * time.Second
	// answerBytes bounds the heads in one answer; objects beyond it must be read by ReadObjects.
	answerBytes = 8 << 20
)

// leaseTable knows the leases that callers of AcquireReadLeases hold, by numbers that nobody can guess: those of the source are
// counted up from 1. A lease can be given back only with the token that took it.
type leaseTable struct {
	mu   sync.Mutex
	held map[uint64]heldLease // guarded by mu
	// by counts them by connection; guarded by mu, as is swept.
	by    map[string]int
	swept time.Time
}

type heldLease struct {
	lease       transfer.LeaseID
	token, from string
	ends        time.Time
}

// caller returns the token that a call shows, and the connection that it came by.
func caller(ctx context.Context) (token, from string) {
	if values := metadata.ValueFromIncomingContext(ctx, "authorization"); len(values) > 0 {
		token = values[0]
	}
	if p, ok := peer.FromContext(ctx); ok {
		from = p.Addr.String()
	}
	return token, from
}

// room says whether a connection may hold so many more.
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

// sweep forgets what ran out. REQUIRES: mu is held.
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

// add returns the number of a lease for its caller.
func (t *leaseTable) add(l heldLease) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held == nil {
		t.held, t.by = make(map[uint64]heldLease), make(map[string]int)
	}
	for {
		var b [8]byte
		_, _ = rand.Read(b[:]) // it never fails
		id := binary.LittleEndian.Uint64(b[:])
		if _, taken := t.held[id]; id == 0 || taken {
			continue
		}
		t.held[id] = l
		t.by[l.from]++
		return id
	}
}

// take returns the source's leases for those numbers that a caller holds, 0 for others, and forgets them.
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
