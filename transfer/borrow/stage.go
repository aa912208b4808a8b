package borrow

import (
	"context"
	"errors"
	"fmt"
	"time"

	hostv1 "github.com/millrace/millrace/gen/go/millrace/host/v1"
	"github.com/millrace/millrace/internal/mishap"
	"github.com/millrace/millrace/internal/slabshare"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

// Objects on a GPU whose memory the reader's GPU cannot map (consumer GPUs, MIG instances, GPUs
// apart by ACS) travel through the lender's pinned memory: the reader names parts of leased
// objects, the lender's GPU copies them to a place there, and the reader's GPU copies them from
// that place. A reader keeps several places at a time, so that both copies run at the same time.

const (
	// stagesMost is how many places one connection may hold or wait for.
	stagesMost = 8
	// StageParts is the largest number of parts of one place.
	StageParts = 1024
	// stageTimeout is how long a reader may keep a place; others may wait for its memory. It is far
	// above the time of a copy, also of one that has to wait until the reader's process has pinned
	// the memory.
	stageTimeout = 5 * time.Second
	// stageWait is how long the lender waits for room before it refuses. It is below the stall
	// timeout of readers.
	stageWait = 3 * time.Second
)

// NextPart returns the start of the next part in a place whose last part ends at end. Parts are
// aligned for the kernel that copies many small ones.
func NextPart(end uint64) uint64 { return (end + 15) &^ 15 }

// Stager copies parts of objects on a GPU to places in host memory that other processes map.
type Stager interface {
	// StageBytes is the largest number of bytes of one place; 0: there is no room for places.
	StageBytes() uint64
	// Stage copies pieces of the GPU's slab to a place of the given size, and returns the place in
	// Host.Space. The context bounds only the time that it waits for room.
	Stage(ctx context.Context, bytes uint64, slab memory.Space, pieces []memory.Piece) (memory.Frame, error)
	// Unstage gives a place back.
	Unstage(place memory.Frame)
}

// staged is a place that the reader holds. late ends the connection if the reader keeps it too
// long.
type staged struct {
	place memory.Frame
	late  *time.Timer
}

// stage copies parts of leased objects to a place, in a goroutine of its own, because that may wait
// for room.
func (c *serving) stage(ctx context.Context, call uint64, order *hostv1.BorrowStage) error {
	pieces, err := c.pieces(order)
	if err != nil {
		return c.send(refusal(call, reasonProtocol, err.Error()))
	}
	c.creating.Add(1)
	go func() {
		defer c.creating.Done()
		failed := func(err error) {
			c.mu.Lock()
			c.staging--
			c.mu.Unlock()
			_ = c.send(refusal(call, reasonInternal, err.Error())) // if the send fails, the reader is gone
		}
		defer mishap.Caught(c.server.config.Log, "a place for parts of objects", failed)
		limited, cancel := context.WithTimeoutCause(ctx, stageWait, errors.New("no room within "+stageWait.String()))
		defer cancel()
		last := pieces[len(pieces)-1]
		place, err := c.stager.Stage(limited, last.At+last.Bytes, c.server.config.Space, pieces)
		if err != nil {
			failed(err)
			return
		}
		answer := &hostv1.BorrowStaged{PlaceId: c.hold(place), Offset: place.Offset}
		_ = c.send(&hostv1.BorrowResponse{Call: call, Answer: &hostv1.BorrowResponse_Staged{Staged: answer}}) // as above
	}()
	return nil
}

// pieces returns the pieces of the slab that an order of a reader names, with their positions in
// the place, and counts that place. It checks all of the order.
func (c *serving) pieces(order *hostv1.BorrowStage) ([]memory.Piece, error) {
	n := len(order.GetLeaseIds())
	switch {
	case c.stager == nil:
		return nil, errors.New("this connection stages nothing")
	case n == 0 || n > StageParts || len(order.GetFrames()) != n || len(order.GetOffsets()) != n || len(order.GetBytes()) != n:
		return nil, fmt.Errorf("%d leases with %d frames, %d offsets and %d sizes to stage; 1 to %d, as many of each", n,
			len(order.GetFrames()), len(order.GetOffsets()), len(order.GetBytes()), StageParts)
	}
	pieces := make([]memory.Piece, n)
	end, most := uint64(0), c.stager.StageBytes()
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, id := range order.GetLeaseIds() {
		lent, ok := c.leases[transfer.LeaseID(id)]
		frame := order.GetFrames()[i]
		if !ok || uint64(frame) >= uint64(len(lent.regions)) || !c.onGPU(lent.regions[frame]) {
			return nil, fmt.Errorf("part %d to stage: there is no frame %d on the GPU under a lease %d of this connection", i, frame, id)
		}
		of := lent.regions[frame].Frame
		part, at := memory.Frame{Offset: order.GetOffsets()[i], Bytes: order.GetBytes()[i]}, NextPart(end)
		if part.Bytes == 0 || !part.Within(of.Bytes) || at > most || part.Bytes > most-at {
			return nil, fmt.Errorf("part %d to stage: [%d, +%d) of a frame of %d bytes, at %d of a place; a place has %d bytes at most",
				i, part.Offset, part.Bytes, of.Bytes, at, most)
		}
		end = at + part.Bytes
		part.Offset += of.Offset
		pieces[i] = memory.Piece{At: at, Frame: part}
	}
	if c.staging == stagesMost {
		return nil, fmt.Errorf("this connection has %d places already; give one back first", stagesMost)
	}
	c.staging++
	return pieces, nil
}

// hold records a place that the reader holds from now on, and returns its number.
func (c *serving) hold(place memory.Frame) (id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastPlace++
	id = c.lastPlace
	c.stages[id] = &staged{place, time.AfterFunc(c.server.config.StageTimeout, func() { c.tooLong(id) })}
	return id
}

// tooLong ends the connection of a reader that still holds a place. Its leases are gone with the
// connection, so it discards all that its GPU may read in that place from now on.
func (c *serving) tooLong(id uint64) {
	c.mu.Lock()
	_, held := c.stages[id]
	c.mu.Unlock()
	if held {
		c.server.config.Log.Warn("a reader keeps pinned memory too long, and loses its connection", "reader", c.reader.Worker, "after", c.server.config.StageTimeout)
		c.shutDown() // its goroutine gives the memory back
	}
}

// unstage gives a place back. There is no answer: the reader does not wait for it. An error ends
// the connection.
func (c *serving) unstage(id uint64) error {
	c.mu.Lock()
	s := c.stages[id]
	if s != nil {
		delete(c.stages, id)
		c.staging--
	}
	c.mu.Unlock()
	if s == nil {
		return fmt.Errorf("the reader gives back a place %d, which it does not have", id)
	}
	s.late.Stop()
	c.stager.Unstage(s.place)
	return nil
}

// Part is a range of a frame on the lender's GPU.
type Part struct {
	// Object is the index of the object in its batch, Frame that of the frame in the object.
	Object, Frame int
	// Offset is the start in the frame.
	Offset, Bytes uint64
}

// Staged is a place with copies of parts, in Batch.Memory, until End.
type Staged struct {
	// Parts are the locations of the parts in the memory.
	Parts []memory.Frame

	peer *peer
	id   uint64
}

// StageBytes is the largest size of a place. It is not 0 if any frame of the batch lies on a GPU.
func (b *Batch) StageBytes() uint64 { return b.peer.stageBytes }

// Stage asks the lender to copy parts of the batch's objects from its GPU to a place in Memory. It
// waits while this process already holds all places that the connection allows. If the lender has
// no room, the error matches ErrUnreachable, and the connection still works. Any goroutine may call
// it.
// REQUIRES: the loans of the parts have not ended, and the parts fit into a place (NextPart).
func (b *Batch) Stage(ctx context.Context, parts []Part) (*Staged, error) {
	c := b.peer
	order, s := &hostv1.BorrowStage{}, &Staged{Parts: make([]memory.Frame, len(parts)), peer: c}
	end := uint64(0)
	for i, p := range parts {
		order.LeaseIds = append(order.LeaseIds, b.leases[p.Object].id)
		order.Frames = append(order.Frames, uint32(p.Frame))
		order.Offsets = append(order.Offsets, p.Offset)
		order.Bytes = append(order.Bytes, p.Bytes)
		s.Parts[i] = memory.Frame{Offset: NextPart(end), Bytes: p.Bytes}
		end = s.Parts[i].End()
	}
	select {
	case c.stages <- struct{}{}:
	case <-c.conn.Done():
		// It has ended: call tells why. Nobody asks this connection for places any more.
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	response, err := c.call(ctx, &hostv1.BorrowRequest{Order: &hostv1.BorrowRequest_Stage{Stage: order}}, c.declineStaged)
	if errors.Is(err, slabshare.ErrRefused) {
		<-c.stages
	}
	if err != nil {
		return nil, err // if an answer can still come, declineStaged gets it
	}
	s.id = response.GetStaged().GetPlaceId()
	place := memory.Frame{Offset: response.GetStaged().GetOffset(), Bytes: end}
	if !place.Within(c.space.Size()) {
		s.End()
		return nil, fmt.Errorf("borrow from %s: %w: a place [%d, +%d) in a memory of %d bytes", c.at, transfer.ErrProtocol, place.Offset, place.Bytes, c.space.Size())
	}
	for i := range s.Parts {
		s.Parts[i].Offset += place.Offset
	}
	return s, nil
}

// End gives the place back.
// REQUIRES: nothing reads it any more.
func (s *Staged) End() { s.peer.unstage(s.id) }

// unstage gives a place back, and lets another one be asked for.
func (c *peer) unstage(id uint64) {
	// If the connection breaks, the peer takes all places back.
	_ = c.conn.Send(&hostv1.BorrowRequest{Order: &hostv1.BorrowRequest_Unstage{Unstage: &hostv1.BorrowUnstage{PlaceId: id}}})
	<-c.stages
}

// declineStaged gives back a place that came after the caller had stopped waiting. It is called by
// the goroutine that receives, which must not wait to send: run does it.
func (c *peer) declineStaged(r *hostv1.BorrowResponse) {
	if r.GetStaged() == nil {
		<-c.stages // refused
		return
	}
	c.mu.Lock()
	c.declined = append(c.declined, r.GetStaged().GetPlaceId())
	c.mu.Unlock()
	c.wakeUp()
}
