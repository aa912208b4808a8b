package borrow

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	hostv1 "github.com/millrace/millrace/gen/go/millrace/host/v1"
	"github.com/millrace/millrace/internal/monotonic"
	"github.com/millrace/millrace/internal/slabshare"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/dataproto"
	"github.com/millrace/millrace/transfer/objindex"
)

// peer is a connection to a peer, open or being opened. conn, space, index, lends, stageBytes and
// err do not change once ready is closed.
type peer struct {
	path  *Path
	at    transfer.Peer // fixed
	ready chan struct{}
	conn  *slabshare.Conn
	space Memory
	// index reads the peer's shared object index; nil if the peer gave us none.
	index *objindex.Reader
	// lends says whether Lend may use this connection; see lend.go.
	lends bool
	// stageBytes is the largest number of bytes of a place that Stage asks for; 0: the peer's GPU
	// is not read this way. stages has an element for each place that is held or asked for.
	stageBytes uint64
	stages     chan struct{}
	err        error
	// stalled says that the connection was closed because the peer did not answer.
	stalled atomic.Bool
	// wake notifies run that loans have ended. Its buffer has room for one element.
	wake chan struct{}
	// unneeded says that the memory is not needed after the peer's death; guarded by path.mu.
	unneeded bool
	// lending holds the loans without leases; see lend.go.
	lending lending

	mu sync.Mutex
	// All below is guarded by mu. ended are the leases to give back.
	// declined are places that came too late.
	loans    map[*loan]struct{}
	ended    []uint64
	declined []uint64
	// batches are the batches with leases that have not ended.
	batches map[*Batch]struct{}
	// guards is the number of epoch guards that have not ended.
	guards int
	// gone says that the connection has ended; the end of the last loan then unmaps the memory.
	// dead says that the peer's process is known to have ended as well.
	gone, dead bool
	unmapped   bool
}

// lease is a lease on one object.
type lease struct {
	// id does not change; 0 means no lease.
	id uint64
	// limit is when the lease expires (a monotonic.Time). Each renewal moves it. 0: the lease did
	// not hold.
	limit atomic.Int64
	// open says that the lease belongs to a batch and has not ended; guarded by peer.mu.
	open bool
}

// over says whether the connection was opened and has ended, or could not be opened.
func (c *peer) over() bool {
	select {
	case <-c.ready:
		return c.err != nil || c.conn.Err() != nil
	default:
		return false
	}
}

func (c *peer) connect(at transfer.Peer) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), c.path.config.StallTimeout, transfer.ErrStalled)
	defer cancel()
	hello := &hostv1.BorrowHello{Token: c.path.config.Token, Device: c.path.config.Open != nil, ObjectIndex: !c.path.config.NoIndex, Pinned: c.path.config.Pinned}
	if c.path.config.Worker != nil {
		hello.ReaderWorkerId = uint32(c.path.config.Worker())
	}
	conn, welcome, file, err := slabshare.Dial(ctx, at.Address, hello)
	if err != nil {
		if errors.Is(err, slabshare.ErrRefused) {
			return fmt.Errorf("%w: %w", transfer.ErrUnreachable, err)
		}
		if errors.Is(err, slabshare.ErrNotHere) {
			// The peer is on another host, or dead: both look the same from here.
			return fmt.Errorf("%w: %w: %w", transfer.ErrUnreachable, transfer.ErrPeerLost, err)
		}
		return fmt.Errorf("%w: %w", transfer.ErrPeerLost, err)
	}
	index, token := openIndex(conn)
	open := c.path.config.Open
	if open == nil {
		open = mapped
	}
	space, err := open(at, welcome, file, token)
	if err != nil {
		if file != nil {
			_ = file.Close() // nothing was written
		}
		_ = conn.Close()
		conn.Free()
		if index != nil {
			_ = index.Close() // no recovery is possible
		}
		if token != nil {
			_ = token.Close() // as above
		}
		return fmt.Errorf("%w: %w", transfer.ErrUnreachable, err)
	}
	if slabshare.Spins() {
		conn.Spin = c.path.config.Spin
	}
	c.conn, c.space, c.index = conn, space, index
	c.stageBytes = welcome.GetStageBytes()
	c.lends = index != nil && (c.path.config.Lends == nil || c.path.config.Lends(space))
	return nil
}

// giveBackEvery is how long the return of an ended lease may be delayed, to send more with it.
const giveBackEvery = time.Millisecond

// run connects, gives leases back and renews them, until the connection ends.
func (c *peer) run(at transfer.Peer) {
	defer c.path.wait.Done()
	c.err = c.connect(at)
	close(c.ready)
	if c.err != nil {
		return
	}
	every := c.path.config.LeaseTTL / 3
	timer := time.NewTimer(every)
	defer timer.Stop()
	pause := time.NewTimer(giveBackEvery)
	defer pause.Stop()
	for {
		select {
		case <-c.wake:
			c.giveBack()
			// A reader that fetches objects one by one must not wake this goroutine for each.
			pause.Reset(giveBackEvery)
			select {
			case <-pause.C:
			case <-c.conn.Done():
			}
		case <-timer.C:
			c.renew()
			timer.Reset(every)
		case <-c.conn.Done():
			// NB: a process with much memory on a GPU may still exist for a while after its sockets
			// are closed. So ask only now whether it has exited.
			c.keepMapped()
			dead := c.conn.Exited()
			c.mu.Lock()
			c.gone, c.dead = true, dead
			c.unmapIfUnused()
			c.mu.Unlock()
			return
		}
	}
}

func (c *peer) giveBack() {
	c.mu.Lock()
	ended, declined := c.ended, c.declined
	c.ended, c.declined = nil, nil
	c.mu.Unlock()
	for _, id := range declined {
		c.unstage(id)
	}
	if len(ended) == 0 {
		return
	}
	// If the connection breaks, the peer takes all leases back.
	_ = c.conn.Send(&hostv1.BorrowRequest{Order: &hostv1.BorrowRequest_Release{
		Release: &hostv1.BorrowRelease{LeaseIds: ended},
	}})
}

func (c *peer) renew() {
	c.mu.Lock()
	var leases []*lease
	for l := range c.loans {
		leases = append(leases, &l.lease)
	}
	for b := range c.batches {
		for i := range b.leases {
			if l := &b.leases[i]; l.open {
				leases = append(leases, l)
			}
		}
	}
	c.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(context.Background(), c.path.config.StallTimeout, transfer.ErrStalled)
	defer cancel()
	for part := range slices.Chunk(leases, maxRefs) {
		numbers := make([]uint64, len(part))
		for i, l := range part {
			numbers[i] = l.id
		}
		asked := time.Now()
		response, err := c.conn.Call(ctx, &hostv1.BorrowRequest{Order: &hostv1.BorrowRequest_Renew{
			Renew: &hostv1.BorrowRenew{LeaseIds: numbers, TtlMillis: uint64(c.path.config.LeaseTTL / time.Millisecond)},
		}}, nil)
		if err != nil {
			return // the leases expire, or the next renewal comes in time
		}
		held := response.GetRenewed().GetHeld()
		for i, l := range part {
			if i < len(held) && held[i] {
				l.limit.Store(int64(monotonic.Of(asked.Add(c.path.config.LeaseTTL))))
			} else {
				l.limit.Store(0)
			}
		}
	}
}

// unmapIfUnused unmaps the memory after the last loan has ended. REQUIRES: mu.
func (c *peer) unmapIfUnused() {
	if c.gone && len(c.loans) == 0 && len(c.batches) == 0 && c.guards == 0 && !c.unmapped {
		c.unmapped = true
		if c.index != nil {
			_ = c.index.Close() // no recovery is possible
		}
		c.space.Close(c.dead)
		c.conn.Free()
		if c.path.config.Unmapped != nil {
			c.path.config.Unmapped(c.at, c.dead)
		}
	}
}

// end is Loan.End: the lease is given back by run.
func (l *loan) end() bool {
	c := l.peer
	limit := l.limit.Load()
	held := limit != 0 && c.conn.Held(monotonic.Time(limit))
	c.mu.Lock()
	delete(c.loans, l)
	c.ended = append(c.ended, l.id)
	c.unmapIfUnused()
	c.mu.Unlock()
	c.wakeUp()
	return held
}

// wakeUp makes run look for ended leases.
func (c *peer) wakeUp() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// call sends a request and returns its answer. late gets an answer that comes after that; see
// slabshare.Conn.Call.
func (c *peer) call(ctx context.Context, request *hostv1.BorrowRequest, late func(*hostv1.BorrowResponse)) (*hostv1.BorrowResponse, error) {
	limited, cancel := context.WithTimeoutCause(ctx, c.path.config.StallTimeout, transfer.ErrStalled)
	defer cancel()
	response, err := c.conn.Call(limited, request, late)
	switch {
	case err == nil:
		return response, nil
	case errors.Is(err, slabshare.ErrRefused):
		return nil, fmt.Errorf("borrow from %s: %w: %w", c.at, transfer.ErrUnreachable, err)
	case ctx.Err() != nil:
		return nil, fmt.Errorf("borrow from %s: %w", c.at, err)
	case errors.Is(err, transfer.ErrStalled):
		// The peer takes back what it still grants when the connection ends.
		c.stalled.Store(true)
		_ = c.conn.Close()
		return nil, fmt.Errorf("borrow from %s: %w", c.at, err)
	case c.stalled.Load(): // another call has noticed it first
		return nil, fmt.Errorf("borrow from %s: %w: %w", c.at, transfer.ErrStalled, err)
	}
	return nil, fmt.Errorf("borrow from %s: %w: %w", c.at, transfer.ErrPeerLost, err)
}

// decline gives back leases that were granted after the caller had stopped waiting.
func (c *peer) decline(r *hostv1.BorrowResponse) {
	c.mu.Lock()
	for _, l := range r.GetAcquired().GetLeases() {
		if l.GetLeaseId() != 0 {
			c.ended = append(c.ended, l.GetLeaseId())
		}
	}
	for _, id := range r.GetAcquiredMany().GetLeaseIds() {
		if id != 0 {
			c.ended = append(c.ended, id)
		}
	}
	c.mu.Unlock()
	c.wakeUp()
}

// lent turns one lease of the peer's answer into a loan.
func (c *peer) lent(at transfer.Peer, ref transfer.Ref, pb *hostv1.ReadLease, limit time.Time) transfer.Loan {
	if pb.GetLeaseId() == 0 {
		err := transfer.ErrNotHere
		if pb.GetRefusal() == hostv1.Refusal_REFUSAL_ELSEWHERE {
			err = transfer.ErrUnreachable
		}
		return transfer.Loan{Err: fmt.Errorf("%s on %s: %w", ref, at, err)}
	}
	l := &loan{peer: c}
	l.id = pb.GetLeaseId()
	l.limit.Store(int64(monotonic.Of(limit)))
	c.mu.Lock()
	unmapped := c.unmapped
	c.loans[l] = struct{}{}
	c.mu.Unlock()
	out := transfer.Loan{Head: dataproto.HeadFrom(pb.GetHead()), End: l.end}
	switch {
	case unmapped:
		out.Err = transfer.ErrPeerLost
	case !out.Head.Ref.Answers(ref),
		len(pb.GetFrames()) != len(out.Head.FrameBytes):
		out.Err = fmt.Errorf("%w: another object, %s with %d of %d frames", transfer.ErrProtocol, out.Head.Ref, len(pb.GetFrames()), len(out.Head.FrameBytes))
	}
	for i, f := range pb.GetFrames() {
		frame := memory.Frame{Offset: f.GetOffset(), Bytes: f.GetBytes()}
		if out.Err == nil && (!frame.Within(c.space.Size()) || frame.Bytes != out.Head.FrameBytes[i]) {
			out.Err = fmt.Errorf("%w: frame %d is [%d, +%d) of %d bytes", transfer.ErrProtocol, i, frame.Offset, frame.Bytes, c.space.Size())
		}
		out.Regions = append(out.Regions, transfer.Region{Space: c.space, Frame: frame})
	}
	if out.Err != nil {
		l.end()
		return transfer.Loan{Err: fmt.Errorf("%s on %s: %w", ref, at, out.Err)}
	}
	return out
}

// copyBytes is how much is copied between two checks of the context.
const copyBytes = 4 << 20
