package millrace

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	hostv1 "github.com/millrace/millrace/gen/go/millrace/host/v1"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/slabshare"
)

const canShare = true

// shareTimeout limits the handshake and the leasing, which normally take a fraction of a
// millisecond.
const shareTimeout = 5 * time.Second

// share is a connection to a worker on this host, with a mapping of the worker's memory.
type share struct {
	conn *slabshare.Conn
	data []byte

	mu sync.Mutex
	// users counts the current uses of the mapping; the last one after close unmaps it.
	// Guarded by mu.
	users  int
	closed bool
}

func openShare(ctx context.Context, address, token string, write bool) (*share, error) {
	ctx, cancel := context.WithTimeout(ctx, shareTimeout)
	defer cancel()
	conn, welcome, file, err := slabshare.Dial(ctx, address, &hostv1.BorrowHello{Token: token, Write: write})
	if err != nil {
		return nil, err
	}
	data, err := slabshare.Map(file, welcome, write)
	_ = file.Close() // the mapping stays
	if err != nil {
		_ = conn.Close()
		conn.Free()
		return nil, err
	}
	return &share{conn: conn, data: data}, nil
}

func (s *share) broken() bool { return s.conn.Err() != nil }

// use reports whether the mapping exists, and if so keeps it until done is called.
func (s *share) use() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.users++
	return true
}

func (s *share) done() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users--
	s.unmapIfUnused()
}

func (s *share) close() {
	_ = s.conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.unmapIfUnused()
}

// unmapIfUnused ends the mapping after close, when there are no users. REQUIRES: mu is held.
func (s *share) unmapIfUnused() {
	if s.closed && s.users == 0 && s.data != nil {
		_ = slabshare.Unmap(s.data) // there is no remedy for an error
		s.data = nil
		s.conn.Free()
	}
}

// acquire leases objects, in their order. A lease without end means that the object was not leased.
func (s *share) acquire(ctx context.Context, refs []*millracev1.ObjectRef) ([]lease, error) {
	ctx, cancel := context.WithTimeout(ctx, shareTimeout)
	defer cancel()
	response, err := s.conn.Call(ctx, &hostv1.BorrowRequest{Order: &hostv1.BorrowRequest_Acquire{
		Acquire: &hostv1.BorrowAcquire{Objects: refs},
	}}, func(late *hostv1.BorrowResponse) {
		for _, l := range late.GetAcquired().GetLeases() {
			s.giveBack(l.GetLeaseId())
		}
	})
	if err != nil {
		return nil, err
	}
	pbs := response.GetAcquired().GetLeases()
	if len(pbs) != len(refs) {
		return nil, fmt.Errorf("millrace: %d leases for %d objects", len(pbs), len(refs))
	}
	out := make([]lease, len(refs))
	for i, pb := range pbs {
		if pb.GetLeaseId() == 0 {
			continue
		}
		frames, ok := s.frames(pb.GetFrames(), pb.GetHead().GetFrameBytes())
		if !ok || !s.use() {
			s.giveBack(pb.GetLeaseId())
			continue
		}
		out[i] = lease{head: pb.GetHead(), frames: frames, end: func() bool {
			held := s.conn.Held(0)
			s.giveBack(pb.GetLeaseId())
			s.done()
			return held
		}}
	}
	return out, nil
}

func (s *share) giveBack(id uint64) {
	if id == 0 {
		return
	}
	// A connection that has ended has returned all leases.
	_ = s.conn.Send(&hostv1.BorrowRequest{Order: &hostv1.BorrowRequest_Release{
		Release: &hostv1.BorrowRelease{LeaseIds: []uint64{id}},
	}})
}

// frames returns frames as slices of the mapping. Together they are at most as large as that.
func (s *share) frames(at []*hostv1.FrameLocation, sizes []uint64) ([][]byte, bool) {
	if len(at) != len(sizes) {
		return nil, false
	}
	out := make([][]byte, len(at))
	size := uint64(len(s.data))
	left := size
	for i, f := range at {
		n := f.GetBytes()
		if n != sizes[i] || n > left || f.GetOffset() > size-n {
			return nil, false
		}
		left -= n
		out[i] = s.data[f.GetOffset() : f.GetOffset()+n : f.GetOffset()+n]
	}
	return out, true
}

// write writes an object directly into the worker's memory. done is false if the object must be
// written by gRPC instead; here means that the worker had it already.
func (s *share) write(ctx context.Context, head *millracev1.ObjectHead, frames [][]byte) (done, here bool, err error) {
	if !s.use() {
		return false, false, nil
	}
	defer s.done()
	response, err := s.conn.Call(ctx, &hostv1.BorrowRequest{Order: &hostv1.BorrowRequest_Create{
		Create: &hostv1.BorrowCreate{Head: head},
	}}, func(late *hostv1.BorrowResponse) {
		_ = s.finish(context.Background(), late.GetCreated().GetPlaceId(), false)
	})
	if err != nil {
		here = alreadyWritten(err)
		return here, here, ctx.Err()
	}
	created := response.GetCreated()
	into, ok := s.frames(created.GetFrames(), head.GetFrameBytes())
	for i := range into {
		copyFrame(into[i], frames[i])
	}
	if err := s.finish(ctx, created.GetPlaceId(), ok); err != nil {
		here = alreadyWritten(err)
		return here, here, ctx.Err()
	}
	return ok, false, nil
}

// alreadyWritten reports whether a refusal means that the worker has the object already.
func alreadyWritten(err error) bool {
	var refused *slabshare.RefusedError
	return errors.As(err, &refused) && refused.Reason == "OBJECT_EXISTS"
}

func (s *share) finish(ctx context.Context, place uint64, commit bool) error {
	if place == 0 {
		return nil
	}
	request := &hostv1.BorrowRequest{Order: &hostv1.BorrowRequest_Finish{Finish: &hostv1.BorrowFinish{PlaceId: place, Commit: commit}}}
	if !commit {
		return s.conn.Send(request)
	}
	_, err := s.conn.Call(ctx, request, nil)
	return err
}
