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

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/edge"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/rawframe"
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
	// Follow streams the output of tasks.
	Follow func(*millracev1.FollowLogsRequest, grpc.ServerStreamingServer[millracev1.FollowLogsResponse]) error
	// OwnLog returns the last lines of the process's log, at most limit; 0 means all.
	OwnLog func(limit int) []*millracev1.LogLine
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
	send := func(m rawframe.Message, park func(), data ...[]byte) error {
		for _, chunk := range data { // at most one, since answer.together is not set
			if park != nil {
				chunk = bytes.Clone(chunk)
				parkNow = park
				held.begin()
				defer held.end()
			}
			m.Data = outgoing.Payload(chunk)
		}
		return stream.SendMsg(&rawframe.ReadResponse{Message: m})
	}
	a := &answer{server: s, leased: leased, part: part, chunkBytes: rawframe.ChunkBytes, send: send}
	if err := a.all(); err != nil {
		return err
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
	o, land := incoming{head: head, regions: regions}, landing{}
	defer land.close()
	held := newSilence(holdFor, holdFor, func() { land.park(0) })
	for {
		if n := m.Data.Len(); n > 0 {
			misplaced, err := o.write(&m.Message, &land)
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
	if err := land.flush(); err != nil {
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

// FollowLogs is part of DataServiceServer.
func (s *Server) FollowLogs(request *millracev1.FollowLogsRequest, stream grpc.ServerStreamingServer[millracev1.FollowLogsResponse]) error {
	if s.Follow == nil {
		return status.Error(codes.Unimplemented, "this server keeps no logs")
	}
	return s.Follow(request, stream)
}

// GetWorkerLog is part of DataServiceServer.
func (s *Server) GetWorkerLog(_ context.Context, request *millracev1.GetWorkerLogRequest) (*millracev1.GetWorkerLogResponse, error) {
	if s.OwnLog == nil {
		return nil, status.Error(codes.Unimplemented, "this server keeps no log of its own")
	}
	return &millracev1.GetWorkerLogResponse{Lines: s.OwnLog(int(request.GetLimit()))}, nil
}
