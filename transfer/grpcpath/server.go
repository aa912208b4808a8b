package grpcpath

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/edge"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/rawframe"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/dataproto"
)

const (
	// ReasonNotHere is the TaskError.reason for an object that this process does not hold.
	ReasonNotHere = "OBJECT_NOT_HERE"
	// ReasonUnreadable is the TaskError.reason for an object that is here but cannot be read.
	ReasonUnreadable = "OBJECT_UNREADABLE"

	maxObjects = 10000
)

// Server is the serving side: DataService and PeerService on top of a Source and a Receiver.
type Server struct {
	millracev1.UnimplementedDataServiceServer
	workerv1.UnimplementedPeerServiceServer
	// Source is the store that readers read from, Receiver the store that clients write to.
	Source   transfer.Source
	Receiver transfer.Receiver
	// ReaderTimeout is how long a write to the reader of a bare stream may block without a rawPing
	// from that reader. Default 20 s.
	ReaderTimeout time.Duration
	// StreamTimeout is how long the reader of a gRPC stream may take no bytes. Default 60 s.
	// WriterTimeout is how long a writer may send no bytes. Default 30 s.
	StreamTimeout, WriterTimeout time.Duration
	// Log receives panics. Nil: the default logger.
	Log *slog.Logger
	// Notify, if set, serves a connection of DialNotify until it ends (completion notifications).
	// Drain and Close close these connections.
	Notify func(net.Conn)
	// OneSided, if set, is the serving side of the set-up of one-sided reads (package ucx).
	OneSided func(context.Context, *workerv1.ConnectRequest) (*workerv1.ConnectResponse, error)
	// Logs returns the output of a task, and whether its beginning is missing.
	Logs func(ids.TaskID) (text string, truncated bool)
	// Memory describes the memory, with at most limit of the largest holders, and the history of a
	// task's result if task is not 0.
	Memory func(limit int, task ids.TaskID) *millracev1.DescribeMemoryResponse

	in, out atomic.Uint64
	raw     rawConns
}

// Register adds DataService and PeerService to a gRPC server.
func (s *Server) Register(server grpc.ServiceRegistrar) {
	millracev1.RegisterDataServiceServer(server, s)
	workerv1.RegisterPeerServiceServer(server, s)
}

// Traffic returns the bytes received and sent so far.
func (s *Server) Traffic() (in, out uint64) { return s.in.Load(), s.out.Load() }

func refsFromProto(objects []*millracev1.ObjectRef) ([]transfer.Ref, error) {
	if len(objects) > maxObjects {
		return nil, edge.InvalidField("objects", fmt.Sprintf("%d objects in one request: ask for at most %d", len(objects), maxObjects))
	}
	return dataproto.RefsFrom(objects), nil
}

// ReadObjects is part of DataServiceServer.
func (s *Server) ReadObjects(request *millracev1.ReadObjectsRequest, stream grpc.ServerStreamingServer[millracev1.ReadObjectsResponse]) error {
	timeout, end := s.StreamTimeout, hangUp(stream.Context())
	if end == nil {
		timeout = forEver
	}
	return s.watched(timeout, defaultStreamTimeout, nameOf(len(request.GetObjects())), end, func(reader *silence) error {
		return s.readObjects(request, watchedStream{stream, reader})
	})
}

func (s *Server) readObjects(request *millracev1.ReadObjectsRequest, stream watchedStream) error {
	leased, part, release, err := s.lease(request)
	if err != nil {
		return err
	}
	defer release()
	outgoing := rawframe.Outgoing{Sent: stream.peer.alive}
	var parkNow func()
	held := newSilence(holdFor, holdFor, func() { parkNow() })
	// Bytes in place do not change until the leases end. A buffer is used again, so it is cloned.
	send := func(m rawframe.Message, data []byte, park func()) error {
		if park != nil {
			data = bytes.Clone(data)
			parkNow = park
			held.begin()
			defer held.end()
		}
		m.Data = outgoing.Payload(data)
		return stream.SendMsg(&rawframe.ReadResponse{Message: m})
	}
	for i := range leased {
		if err := s.send(uint32(i), &leased[i], part, rawframe.ChunkBytes, send); err != nil {
			return err
		}
	}
	// The leases must hold until the last byte has left the slab.
	stream.peer.begin()
	defer stream.peer.end()
	select {
	case <-outgoing.Drained():
		return nil
	case <-stream.Context().Done():
		return status.FromContextError(stream.Context().Err()).Err()
	}
}

// lease checks a request and leases its objects. release ends the leases. The error is a gRPC
// status.
func (s *Server) lease(request *millracev1.ReadObjectsRequest) (leased []transfer.Leased, _ part, release func(), err error) {
	refs, err := refsFromProto(request.GetObjects())
	if err != nil {
		return nil, part{}, nil, err
	}
	if len(refs) == 0 {
		return nil, part{}, nil, edge.InvalidField("objects", "there are none: name at least one")
	}
	if parts := request.GetParts(); parts > maxParts || request.GetPart() >= max(parts, 1) {
		return nil, part{}, nil, edge.InvalidField("part", fmt.Sprintf("part %d of %d: ask for at most %d, counted from 0", request.GetPart(), parts, maxParts))
	}
	// The leases have no time limit: they end with the stream, and a stream whose reader is dead or
	// takes no bytes is ended. If a lease expired in the middle of a stream, another object's bytes
	// could be sent as those of this object.
	leased = s.Source.Lease(transfer.Reader{Worker: ids.WorkerID(request.GetReaderWorkerId())}, refs, 0)
	var leases []transfer.LeaseID
	for _, l := range leased {
		if l.Lease != 0 {
			leases = append(leases, l.Lease)
		}
	}
	return leased, part{request.GetPart(), request.GetParts()}, func() { s.Source.Release(leases) }, nil
}

// sender sends a message with data. If park is not nil, the data is in a buffer of a staged space,
// and valid only until sender returns. If that takes longer than holdFor, sender clones the data
// and calls park, which gives the buffers back.
type sender func(m rawframe.Message, data []byte, park func()) error

// send sends one object in chunks of at most chunkBytes.
func (s *Server) send(index uint32, l *transfer.Leased, part part, chunkBytes uint64, send sender) error {
	if l.Err != nil {
		reason := ReasonUnreadable
		if errors.Is(l.Err, transfer.ErrNotHere) {
			reason = ReasonNotHere
		}
		return send(rawframe.Message{Index: index, Error: &millracev1.TaskError{Reason: reason, Message: l.Err.Error()}}, nil, nil)
	}
	head := dataproto.HeadTo(l.Head)
	if n := proto.Size(head); n > rawframe.MaxHeadBytes {
		return send(rawframe.Message{Index: index, Error: &millracev1.TaskError{Reason: ReasonUnreadable, Message: fmt.Sprintf(
			"object %s: its head has %d bytes with the sizes of %d frames, more than the %d that can be sent", l.Head.Ref, n, len(l.Head.FrameBytes), rawframe.MaxHeadBytes)}}, nil, nil)
	}
	chunk := func(frame int, offset uint64, data []byte, park func()) error {
		err := send(rawframe.Message{Index: index, Head: head, Frame: uint32(frame), Offset: offset}, data, park)
		head = nil
		s.out.Add(uint64(len(data)))
		return err
	}
	for first := 0; first < len(l.Regions); {
		n, err := sendRegions(l.Regions[first:], first, part, chunkBytes, chunk)
		var unreadable *unreadableError
		if errors.As(err, &unreadable) {
			// The bytes that the reader already has are useless.
			return send(rawframe.Message{Index: index, Error: &millracev1.TaskError{Reason: ReasonNotHere, Message: err.Error()}}, nil, nil)
		}
		if err != nil {
			return err
		}
		first += n
	}
	if head == nil {
		return nil
	}
	return send(rawframe.Message{Index: index, Head: head}, nil, nil)
}

// unreadableError: leased bytes could not be read.
type unreadableError struct{ error }

// Unwrap makes errors.Is find the cause.
func (e *unreadableError) Unwrap() error { return e.error }

// sendRegions sends the first region, and those that follow it in the same staged space. It returns
// how many it has sent.
func sendRegions(regions []transfer.Region, first int, part part, chunkBytes uint64, chunk func(frame int, offset uint64, data []byte, park func()) error) (n int, err error) {
	switch from := regions[0].Space.(type) {
	case memory.Staged:
		var frames []memory.Frame
		var begins []uint64
		for _, r := range regions {
			if r.Space != regions[0].Space {
				break
			}
			begin, end := part.bounds(r.Frame.Bytes)
			frames, begins = append(frames, memory.Frame{Offset: r.Frame.Offset + begin, Bytes: end - begin}), append(begins, begin)
		}
		out := memory.NewOutflow(from, frames, chunkBytes)
		defer out.Close()
		for {
			c, more, err := out.Next()
			if err != nil {
				return 0, &unreadableError{err}
			}
			if !more {
				return len(frames), nil
			}
			if err := chunk(first+c.Frame, begins[c.Frame]+c.Offset, c.Data, out.Park); err != nil {
				return 0, err
			}
		}
	case memory.Reader:
		chunkBytes = min(chunkBytes, rawframe.ChunkBytes)
		return 1, eachChunk(regions[0], part, chunkBytes, func(offset, n uint64) error {
			data := make([]byte, n)
			if err := from.ReadInto(regions[0].Frame.Offset+offset, data); err != nil {
				return &unreadableError{err}
			}
			return chunk(first, offset, data, nil)
		})
	default:
		return 1, eachChunk(regions[0], part, chunkBytes, func(offset, n uint64) error {
			return chunk(first, offset, regions[0].Space.Bytes(regions[0].Frame.Offset+offset, n), nil)
		})
	}
}

// eachChunk calls do for each chunk of the given part of a region.
func eachChunk(r transfer.Region, part part, chunkBytes uint64, do func(offset, n uint64) error) error {
	begin, end := part.bounds(r.Frame.Bytes)
	for offset := begin; offset < end; offset += chunkBytes {
		if err := do(offset, min(chunkBytes, end-offset)); err != nil {
			return err
		}
	}
	return nil
}

// WriteObject is part of DataServiceServer.
func (s *Server) WriteObject(stream grpc.ClientStreamingServer[millracev1.WriteObjectRequest, millracev1.WriteObjectResponse]) error {
	return s.watched(s.WriterTimeout, defaultWriterTimeout, "a write of an object", nil, func(writer *silence) error {
		return s.writeObject(watchedStream{stream, writer})
	})
}

func (s *Server) writeObject(stream watchedStream) error {
	ctx := stream.Context()
	var m rawframe.WriteRequest
	switch err := stream.RecvMsg(&m); {
	case errors.Is(err, io.EOF):
		return edge.InvalidField("head", "no message came: send the object's head first")
	case err != nil:
		return err
	}
	defer func() { m.Data.Free() }()
	head, err := dataproto.WrittenHead(m.Head)
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
	return stream.SendMsg(&millracev1.WriteObjectResponse{Bytes: head.Bytes()})
}

// fill copies the chunks of the stream into the regions. m is the first message, already received.
func (s *Server) fill(stream grpc.ServerStream, m *rawframe.WriteRequest, head transfer.Head, regions []transfer.Region) error {
	o := incoming{regions: regions}
	defer o.close()
	held := newSilence(holdFor, holdFor, o.park)
	for {
		if n := m.Data.Len(); n > 0 {
			misplaced, err := o.write(&m.Message)
			if misplaced != nil {
				return edge.InvalidField("data", fmt.Sprintf("object %s: %v", head.Ref, misplaced))
			}
			if err != nil {
				return status.Errorf(codes.Internal, "object %s: %v", head.Ref, err)
			}
			s.in.Add(uint64(n))
			m.Data.Free()
		}
		held.begin()
		err := stream.RecvMsg(m)
		held.end()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if m.Head != nil {
			return edge.InvalidField("head", fmt.Sprintf("object %s: a second head: send one object in a stream", head.Ref))
		}
	}
	if !o.complete() {
		return edge.InvalidField("data", fmt.Sprintf("object %s: the stream ended at frame %d, byte %d, before the end: send all bytes, or correct head.frame_bytes", head.Ref, o.frame, o.offset))
	}
	if err := o.flush(); err != nil {
		return status.Errorf(codes.Internal, "object %s: %v", head.Ref, err)
	}
	return nil
}

// Connect is part of PeerServiceServer.
func (s *Server) Connect(ctx context.Context, request *workerv1.ConnectRequest) (*workerv1.ConnectResponse, error) {
	if s.OneSided == nil {
		return nil, status.Error(codes.Unimplemented, "this worker has no library for one-sided reads")
	}
	return s.OneSided(ctx, request)
}

// DescribeMemory is part of DataServiceServer.
func (s *Server) DescribeMemory(_ context.Context, request *millracev1.DescribeMemoryRequest) (*millracev1.DescribeMemoryResponse, error) {
	const most, usual = 10000, 20
	switch n := request.GetLimit(); {
	case s.Memory == nil:
		return nil, status.Error(codes.Unimplemented, "this server has no memory of its own")
	case n > most:
		return nil, edge.InvalidField("limit", fmt.Sprintf("it is %d: ask for at most %d", n, most))
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
	return &millracev1.GetTaskLogsResponse{Text: strings.ToValidUTF8(text, "\uFFFD"), Truncated: truncated}, nil
}
