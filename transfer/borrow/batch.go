package borrow

import (
	"context"
	"errors"
	"fmt"
	"time"

	hostv1 "github.com/millrace/millrace/gen/go/millrace/host/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/monotonic"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

// Batch holds the loans that one peer gave for one request. It serves the same purpose as Borrow,
// for thousands of objects: the work per loan is small, and one call ends many loans. Its methods
// must be called by one goroutine at a time.
type Batch struct {
	// Memory is the peer's memory; it contains the frames.
	Memory Memory
	// Objects has one element for each ref.
	Objects []Lent

	peer   *peer
	leases []lease
	// open counts the leases that have not ended; guarded by peer.mu.
	open int
}

// Lent is one object of a batch.
type Lent struct {
	Head transfer.Head
	// Frames are the locations in the memory of the frames that Head.FrameBytes describes.
	Frames []memory.Frame
	// OnGPU says for each frame that it lies on the lender's GPU, from where Batch.Stage brings it;
	// its location has only a size then. Empty: all frames lie in the memory.
	OnGPU []bool
	// Err is why there is no loan, as in transfer.Loan.
	Err error
}

// Batch asks one peer for loans, one for each ref. If Batch returns no error, the caller must end
// all of the loans.
func (p *Path) Batch(ctx context.Context, at transfer.Peer, refs []transfer.Ref) (*Batch, error) {
	if len(refs) > maxRefs {
		return nil, fmt.Errorf("borrow from %s: %d objects at once; at most %d", at, len(refs), maxRefs)
	}
	c, err := p.connected(ctx, at)
	if err != nil {
		return nil, err
	}
	request := &hostv1.BorrowAcquireMany{
		TtlMillis: uint64(p.config.LeaseTTL / time.Millisecond), TaskIds: make([]uint64, len(refs)), Generations: make([]uint32, len(refs)),
	}
	for i, r := range refs {
		request.TaskIds[i], request.Generations[i] = uint64(r.Task), uint32(r.Generation)
		if r.Item != 0 {
			if request.Items == nil {
				request.Items = make([]uint32, len(refs))
			}
			request.Items[i] = uint32(r.Item)
		}
	}
	asked := time.Now()
	response, err := c.call(ctx, &hostv1.BorrowRequest{Order: &hostv1.BorrowRequest_AcquireMany{AcquireMany: request}}, c.decline)
	if err != nil {
		return nil, err
	}
	pb := response.GetAcquiredMany()
	b := &Batch{Memory: c.space, Objects: make([]Lent, len(refs)), peer: c, leases: make([]lease, len(refs))}
	limit := int64(monotonic.Of(asked.Add(p.config.LeaseTTL)))
	for i, id := range pb.GetLeaseIds() {
		if i < len(refs) && id != 0 {
			b.leases[i].id, b.leases[i].open = id, true
			b.leases[i].limit.Store(limit)
			b.open++
		}
	}
	c.mu.Lock()
	unmapped := c.unmapped
	if b.open > 0 && !unmapped {
		c.batches[b] = struct{}{}
	}
	c.mu.Unlock()
	if unmapped {
		return nil, fmt.Errorf("borrow from %s: %w", at, transfer.ErrPeerLost)
	}
	if err := b.read(at, refs, pb); err != nil {
		b.EndAll()
		return nil, fmt.Errorf("borrow from %s: %w: %w", at, transfer.ErrProtocol, err)
	}
	return b, nil
}

// read fills Objects from the answer of the peer, and checks the answer.
func (b *Batch) read(at transfer.Peer, refs []transfer.Ref, pb *hostv1.BorrowAcquiredMany) error {
	n := len(refs)
	if len(pb.GetLeaseIds()) != n || len(pb.GetRefusals()) != n || len(pb.GetGenerations()) != n || len(pb.GetFrames()) != n ||
		len(pb.GetHeaderBytes()) != n || len(pb.GetFrameOffsets()) != len(pb.GetFrameBytes()) {
		return fmt.Errorf("the answer for %d objects has %d lease numbers, %d refusals, %d generations, %d frame counts and %d header lengths, "+
			"and %d frame offsets for %d frame sizes; run the same version on both sides", n, len(pb.GetLeaseIds()), len(pb.GetRefusals()),
			len(pb.GetGenerations()), len(pb.GetFrames()), len(pb.GetHeaderBytes()), len(pb.GetFrameOffsets()), len(pb.GetFrameBytes()))
	}
	sizes, headers := pb.GetFrameBytes(), pb.GetHeaders()
	frames := make([]memory.Frame, len(sizes))
	onGPU := pb.GetFramesOnGpu()
	if len(onGPU) != 0 && (len(onGPU) != len(frames) || b.peer.stageBytes == 0) {
		return fmt.Errorf("the answer for %d frames says of %d whether they lie on a GPU, and the peer stages %d bytes; run the same version on both sides", len(frames), len(onGPU), b.peer.stageBytes)
	}
	for i := range frames {
		frames[i] = memory.Frame{Offset: pb.GetFrameOffsets()[i], Bytes: sizes[i]}
		away := len(onGPU) > 0 && onGPU[i]
		if sizes[i] > 0 && !away && !frames[i].Within(b.Memory.Size()) {
			return fmt.Errorf("a frame [%d, +%d) is outside of the memory of %d bytes", frames[i].Offset, sizes[i], b.Memory.Size())
		}
	}
	for i, r := range refs {
		o := &b.Objects[i]
		switch {
		case pb.GetRefusals()[i] == hostv1.Refusal_REFUSAL_NOT_HERE:
			o.Err = fmt.Errorf("%s on %s: %w", r, at, transfer.ErrNotHere)
			continue
		case b.leases[i].id == 0:
			o.Err = fmt.Errorf("%s on %s: %w: the peer does not lend it: it lies in other memory, or too much is lent already", r, at, transfer.ErrUnreachable)
			continue
		}
		k, h := int(pb.GetFrames()[i]), int(pb.GetHeaderBytes()[i])
		if k > len(sizes) || h > len(headers) {
			return fmt.Errorf("%s has %d frames and a header of %d bytes, and the answer ends before", r, k, h)
		}
		generation := ids.Attempt(pb.GetGenerations()[i])
		if r.Generation != 0 && generation != r.Generation {
			return fmt.Errorf("%s was asked for, generation %s came", r, generation)
		}
		o.Head = transfer.Head{Ref: transfer.Ref{Task: r.Task, Generation: generation, Item: r.Item}, Header: headers[:h:h], FrameBytes: sizes[:k:k]}
		o.Frames = frames[:k:k]
		if len(onGPU) > 0 {
			o.OnGPU, onGPU = onGPU[:k:k], onGPU[k:]
		}
		sizes, frames, headers = sizes[k:], frames[k:], headers[h:]
	}
	return nil
}

// End ends the loans with the given indices. It says for each whether the bytes belonged to the
// object during the whole loan, as transfer.Loan.End does.
func (b *Batch) End(indices []int) []bool {
	held := make([]bool, len(indices))
	if len(indices) == 0 {
		return held
	}
	c := b.peer
	holds := c.conn.HeldFunc()
	for n, i := range indices {
		limit := b.leases[i].limit.Load()
		held[n] = limit != 0 && holds(monotonic.Time(limit))
	}
	c.mu.Lock()
	for _, i := range indices {
		if l := &b.leases[i]; l.open {
			l.open = false
			b.open--
			c.ended = append(c.ended, l.id)
		}
	}
	if b.open == 0 {
		delete(c.batches, b)
	}
	c.unmapIfUnused()
	c.mu.Unlock()
	c.wakeUp()
	return held
}

// EndAll ends the loans that have not ended yet.
func (b *Batch) EndAll() {
	var left []int
	for i := range b.leases {
		if b.leases[i].id != 0 {
			left = append(left, i)
		}
	}
	b.End(left)
}

// acquireMany answers a request for leases.
func (c *serving) acquireMany(response *hostv1.BorrowResponse, order *hostv1.BorrowAcquireMany) error {
	n, items := len(order.GetTaskIds()), order.GetItems()
	if n > maxRefs || len(order.GetGenerations()) != n || len(items) != 0 && len(items) != n {
		return c.send(refusal(response.GetCall(), reasonProtocol, fmt.Sprintf("%d objects with %d generations and %d items in one request; at most %d", n, len(order.GetGenerations()), len(items), maxRefs)))
	}
	refs := make([]transfer.Ref, n)
	for i := range refs {
		refs[i] = transfer.Ref{Task: ids.TaskID(order.GetTaskIds()[i]), Generation: ids.Attempt(order.GetGenerations()[i])}
		if len(items) > 0 {
			refs[i].Item = ids.Item(items[i])
		}
	}
	out := &hostv1.BorrowAcquiredMany{
		LeaseIds: make([]uint64, n), Refusals: make([]hostv1.Refusal, n), Generations: make([]uint32, n), Frames: make([]uint32, n),
		HeaderBytes: make([]uint32, n), FrameOffsets: make([]uint64, 0, n), FrameBytes: make([]uint64, 0, n),
	}
	lent := make(map[transfer.LeaseID]object, n)
	var elsewhere []transfer.LeaseID
	var bytes uint64
	staged := false // some frame lies on the GPU
	answer := c.answering()
	// Of a client (worker 0), the bytes that it borrows are limited (keep), so they are counted.
	for i, l := range c.lent.Source.Lease(c.reader, refs, lifetime(order.GetTtlMillis(), defaultTTL)) {
		switch {
		case l.Lease == 0 && errors.Is(l.Err, transfer.ErrNotHere):
			out.Refusals[i] = hostv1.Refusal_REFUSAL_NOT_HERE
		case l.Lease == 0:
			out.Refusals[i] = hostv1.Refusal_REFUSAL_ELSEWHERE
		case !c.lends(l.Regions, c.stager != nil) || !answer.has(l.Head) || !c.keep(l.Head.Bytes()):
			elsewhere = append(elsewhere, l.Lease)
			out.Refusals[i] = hostv1.Refusal_REFUSAL_ELSEWHERE
		default:
			lent[l.Lease] = c.object(l)
			out.LeaseIds[i], out.Generations[i] = uint64(l.Lease), uint32(l.Head.Ref.Generation)
			out.Frames[i], out.HeaderBytes[i] = uint32(len(l.Regions)), uint32(len(l.Head.Header))
			out.Headers = append(out.Headers, l.Head.Header...)
			for _, r := range l.Regions {
				offset, onGPU := r.Frame.Offset, c.onGPU(r)
				if onGPU {
					offset, staged = 0, true
				}
				out.FrameOffsets, out.FrameBytes, out.FramesOnGpu = append(out.FrameOffsets, offset), append(out.FrameBytes, r.Frame.Bytes), append(out.FramesOnGpu, onGPU)
			}
			bytes += l.Head.Bytes()
		}
	}
	if !staged {
		out.FramesOnGpu = nil
	}
	c.lent.Source.Release(elsewhere)
	c.keepLeases(lent)
	c.server.out.Add(bytes)
	response.Answer = &hostv1.BorrowResponse_AcquiredMany{AcquiredMany: out}
	return c.send(response)
}
