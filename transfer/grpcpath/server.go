package grpcpath

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/dataproto"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/rawframe"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

const (
	// ReasonNotHere is the TaskError.reason of an object that is not here.
	ReasonNotHere = "OBJECT_NOT_HERE"
	// ReasonUnreadable is that of an object that is here and cannot be read.
	ReasonUnreadable = "OBJECT_UNREADABLE"

	maxObjects = 10000
	maxHeader  = 16 << 20
	maxFrames  = 1 << 20
	defaultTTL = 30 * time.Second
	maxTTL     = 10 * time.Minute
)

// Server is the serving side: DataService over a Source and a Receiver.
type Server struct {
	millracev1.UnimplementedDataServiceServer
	// Source is what is read from, Receiver what is written to.
	Source   transfer.Source
	Receiver transfer.Receiver
	// Incarnation is told with leases.
	Incarnation string
	// ReaderPatience is how long the reader of a bare stream may neither take bytes nor
	// say that it is alive. Default 20 s.
	ReaderPatience time.Duration
	// Lane, if set, is the serving side of the path of one-sided reads.
	Lane func(context.Context, *millracev1.ConnectLaneRequest) (*millracev1.ConnectLaneResponse, error)
	// Logs returns what a task wrote, and whether the beginning is missing.
	Logs func(ids.TaskID) (text string, truncated bool)
	// Memory describes the memory, with so many of the largest holders, and the story
	// of a task's result if one is named.
	Memory func(limit int, task ids.TaskID) *millracev1.DescribeMemoryResponse

	in, out atomic.Uint64
	raw     rawConns
}

// Traffic returns the bytes received and sent so far.
func (s *Server) Traffic() (in, out uint64) { return s.in.Load(), s.out.Load() }

func refsFromProto(objects []*millracev1.ObjectRef) ([]transfer.Ref, error) {
	if len(objects) > maxObjects {
		return nil, status.Errorf(codes.InvalidArgument, "%d objects in one request; ask for at most %d", len(objects), maxObjects)
	}
	return dataproto.RefsFrom(objects), nil
}

// ReadObjects is part of DataServiceServer.
func (s *Server) ReadObjects(request *millracev1.ReadObjectsRequest, stream grpc.ServerStreamingServer[millracev1.ReadObjectsResponse]) error {
	leased, part, release, err := s.lease(request)
	if err != nil {
		return err
	}
	defer release()
	var outgoing rawframe.Outgoing
	send := func(m rawframe.Message, data []byte) error {
		m.Data = outgoing.Payload(data)
		return stream.SendMsg(&rawframe.ReadResponse{Message: m})
	}
	for i := range leased {
		if err := s.send(uint32(i), &leased[i], part, rawframe.ChunkBytes, send); err != nil {
			return err
		}
	}
	// The leases hold until the last byte has left the slab.
	select {
	case <-outgoing.Drained():
		return nil
	case <-stream.Context().Done():
		return status.FromContextError(stream.Context().Err()).Err()
	}
}

// lease checks a request and leases what it names. Release ends the leases. Its error is
// a gRPC status.
func (s *Server) lease(request *millracev1.ReadObjectsRequest) (leased []transfer.Leased, _ part, release func(), err error) {
	refs, err := refsFromProto(request.GetObjects())
	if err != nil {
		return nil, part{}, nil, err
	}
	if len(refs) == 0 {
		return nil, part{}, nil, status.Error(codes.InvalidArgument, "no objects asked for; name at least one")
	}
	if parts := request.GetParts(); parts > maxParts || request.GetPart() >= max(parts, 1) {
		return nil, part{}, nil, status.Errorf(codes.InvalidArgument, "part %d of %d: at most %d, counted from 0", request.GetPart(), parts, maxParts)
	}
	// No time limit: the lease ends with the stream, and a stream whose reader is
	// dead or stopped is ended by the connection's keepalive. A lease that ran out
	// in its middle would let another object's bytes pass as this one's.
	leased = s.Source.Lease(transfer.Reader{Worker: ids.WorkerID(request.GetReaderWorkerId())}, refs, 0)
	var leases []transfer.LeaseID
	for _, l := range leased {
		if l.Lease != 0 {
			leases = append(leases, l.Lease)
		}
	}
	return leased, part{request.GetPart(), request.GetParts()}, func() { s.Source.Release(leases) }, nil
}

// send sends one object in chunks of at most so many bytes.
func (s *Server) send(index uint32, l *transfer.Leased, part part, chunkBytes uint64, send func(m rawframe.Message, data []byte) error) error {
	if l.Err != nil {
		reason := ReasonUnreadable
		if errors.Is(l.Err, transfer.ErrNotHere) {
			reason = ReasonNotHere
		}
		return send(rawframe.Message{Index: index, Error: &millracev1.TaskError{Reason: reason, Message: l.Err.Error()}}, nil)
	}
	head := dataproto.HeadTo(l.Head)
	for frame, region := range l.Regions {
		begin, end := part.bounds(region.Frame.Bytes)
		chunkBytes := chunkBytes
		if _, ok := region.Space.(memory.Reader); ok {
			chunkBytes = min(chunkBytes, rawframe.ChunkBytes) // chunk copies
		}
		for offset := begin; offset < end; offset += chunkBytes {
			n := min(chunkBytes, end-offset)
			data, err := chunk(region, offset, n)
			if err != nil {
				// It was spilled and cannot be read: what the reader has of it is useless.
				return send(rawframe.Message{Index: index, Error: &millracev1.TaskError{Reason: ReasonNotHere, Message: err.Error()}}, nil)
			}
			if err := send(rawframe.Message{Index: index, Head: head, Frame: uint32(frame), Offset: offset}, data); err != nil {
				return err
			}
			head = nil
			s.out.Add(n)
		}
	}
	if head == nil {
		return nil
	}
	return send(rawframe.Message{Index: index, Head: head}, nil)
}

// chunk returns bytes of a region: in place, or as a copy if they cannot be
// addressed.
func chunk(region transfer.Region, offset, n uint64) ([]byte, error) {
	if from, ok := region.Space.(memory.Reader); ok {
		data := make([]byte, n)
		return data, from.ReadInto(region.Frame.Offset+offset, data)
	}
	return region.Space.Bytes(region.Frame.Offset+offset, n), nil
}

// WriteObject is part of DataServiceServer.
func (s *Server) WriteObject(stream grpc.ClientStreamingServer[millracev1.WriteObjectRequest, millracev1.WriteObjectResponse]) error {
	ctx := stream.Context()
	var m rawframe.WriteRequest
	if err := stream.RecvMsg(&m); err != nil {
		return err
	}
	defer func() { m.Data.Free() }()
	head, err := checkedHead(m.Head)
	if err != nil {
		return err
	}
	incoming, err := s.Receiver.Create(ctx, head)
	if err != nil {
		return err
	}
	if err := s.fill(stream, &m, head, incoming.Regions()); err != nil {
		incoming.Abort()
		return err
	}
	if err := incoming.Commit(ctx); err != nil {
		return err
	}
	return stream.SendAndClose(&millracev1.WriteObjectResponse{Bytes: head.Bytes()})
}

func checkedHead(pb *millracev1.ObjectHead) (transfer.Head, error) {
	head := dataproto.HeadFrom(pb)
	switch {
	case pb == nil || head.Ref.Task == 0:
		return head, status.Error(codes.InvalidArgument, "the first message of WriteObject must have a head that names the object's task")
	case len(head.Header) > maxHeader:
		return head, status.Errorf(codes.InvalidArgument, "object %s: its header has %d bytes, at most %d are allowed; put bulk into frames", head.Ref, len(head.Header), maxHeader)
	case len(head.FrameBytes) > maxFrames:
		return head, status.Errorf(codes.InvalidArgument, "object %s has %d frames, at most %d are allowed; pack small ones together", head.Ref, len(head.FrameBytes), maxFrames)
	}
	var sum uint64
	for _, n := range head.FrameBytes {
		if sum += n; sum < n || sum > 1<<62 {
			return head, status.Errorf(codes.InvalidArgument, "object %s: its frames are larger than any memory", head.Ref)
		}
	}
	return head, nil
}

// fill copies the stream's chunks into the regions. The first message has been
// received.
func (s *Server) fill(stream grpc.ServerStream, m *rawframe.WriteRequest, head transfer.Head, regions []transfer.Region) error {
	o := incoming{regions: regions}
	for {
		if n := m.Data.Len(); n > 0 {
			if err := o.write(&m.Message); err != nil {
				return status.Errorf(codes.InvalidArgument, "object %s: %v", head.Ref, err)
			}
			s.in.Add(uint64(n))
			m.Data.Free()
		}
		// NB: a writer that falls silent is ended by the connection's keepalive.
		err := stream.RecvMsg(m)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if m.Head != nil {
			return status.Errorf(codes.InvalidArgument, "object %s: a second head; one stream carries one object", head.Ref)
		}
	}
	if !o.complete() {
		return status.Errorf(codes.InvalidArgument, "object %s: the stream ended at frame %d, byte %d, before the end", head.Ref, o.frame, o.offset)
	}
	return nil
}

// AcquireReadLeases is part of DataServiceServer.
func (s *Server) AcquireReadLeases(_ context.Context, request *millracev1.AcquireReadLeasesRequest) (*millracev1.AcquireReadLeasesResponse, error) {
	refs, err := refsFromProto(request.GetObjects())
	if err != nil {
		return nil, err
	}
	ttl := time.Duration(request.GetTtlMillis()) * time.Millisecond
	switch {
	case ttl == 0:
		ttl = defaultTTL
	case request.GetTtlMillis() > uint64(maxTTL/time.Millisecond):
		return nil, status.Errorf(codes.InvalidArgument, "a read lease of %d ms; ask for at most %v and renew by asking again", request.GetTtlMillis(), maxTTL)
	}
	response := &millracev1.AcquireReadLeasesResponse{Incarnation: s.Incarnation}
	for _, l := range s.Source.Lease(transfer.Reader{Worker: ids.WorkerID(request.GetReaderWorkerId())}, refs, ttl) {
		lease := &millracev1.ReadLease{LeaseId: uint64(l.Lease)}
		if l.Lease != 0 {
			lease.Head = dataproto.HeadTo(l.Head)
			lease.Frames = dataproto.FramesTo(l.Regions)
		}
		response.Leases = append(response.Leases, lease)
	}
	return response, nil
}

// ReleaseReadLeases is part of DataServiceServer.
func (s *Server) ReleaseReadLeases(_ context.Context, request *millracev1.ReleaseReadLeasesRequest) (*millracev1.ReleaseReadLeasesResponse, error) {
	if len(request.GetLeaseIds()) > maxObjects {
		return nil, status.Errorf(codes.InvalidArgument, "%d leases in one request; give back at most %d", len(request.GetLeaseIds()), maxObjects)
	}
	leases := make([]transfer.LeaseID, len(request.GetLeaseIds()))
	for i, id := range request.GetLeaseIds() {
		leases[i] = transfer.LeaseID(id)
	}
	return &millracev1.ReleaseReadLeasesResponse{Held: s.Source.Release(leases)}, nil
}

// ConnectLane is part of DataServiceServer.
func (s *Server) ConnectLane(ctx context.Context, request *millracev1.ConnectLaneRequest) (*millracev1.ConnectLaneResponse, error) {
	if s.Lane == nil {
		return nil, status.Error(codes.Unimplemented, "this worker has no library for one-sided reads")
	}
	return s.Lane(ctx, request)
}

// DescribeMemory is part of DataServiceServer.
func (s *Server) DescribeMemory(_ context.Context, request *millracev1.DescribeMemoryRequest) (*millracev1.DescribeMemoryResponse, error) {
	const most, usual = 10000, 20
	switch n := request.GetLimit(); {
	case s.Memory == nil:
		return nil, status.Error(codes.Unimplemented, "this server has no memory of its own")
	case n > most:
		return nil, status.Errorf(codes.InvalidArgument, "a limit of %d; ask for at most %d", n, most)
	case n == 0:
		return s.Memory(usual, ids.TaskID(request.GetTaskId())), nil
	default:
		return s.Memory(int(n), ids.TaskID(request.GetTaskId())), nil
	}
}

// GetTaskLogs is part of DataServiceServer.
func (s *Server) GetTaskLogs(_ context.Context, request *millracev1.GetTaskLogsRequest) (*millracev1.GetTaskLogsResponse, error) {
	if s.Logs == nil {
		return nil, status.Error(codes.Unimplemented, "this server keeps no logs")
	}
	text, truncated := s.Logs(ids.TaskID(request.GetTaskId()))
	return &millracev1.GetTaskLogsResponse{Text: text, Truncated: truncated}, nil
}
