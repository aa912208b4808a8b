package grpcpath_test

import (
	"context"
	"errors"
	"io"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/rawframe"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/grpcpath"
	"github.com/millrace/millrace/transfer/transfertest"
)

// taken is a receiver that reports when its memory is given back.
type taken struct {
	space transfertest.Heap
	ended chan string
}

func (r taken) Create(_ context.Context, head transfer.Head) (transfer.Incoming, error) {
	in := &place{r, nil}
	for _, n := range head.FrameBytes {
		in.regions = append(in.regions, transfer.Region{Space: r.space, Frame: memory.Frame{Offset: 1, Bytes: n}})
	}
	return in, nil
}

type place struct {
	taken
	regions []transfer.Region
}

func (p *place) Regions() []transfer.Region   { return p.regions }
func (p *place) Commit(context.Context) error { p.ended <- "committed"; return nil }
func (p *place) Abort()                       { p.ended <- "aborted" }

func callers(t *testing.T, peer transfer.Peer, options ...grpc.DialOption) millracev1.DataServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(peer.Address, append(options, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return millracev1.NewDataServiceClient(conn)
}

// TestAWriterThatFallsSilentLosesItsPlace: without the limit, two such writers could keep a whole
// slab.
func TestAWriterThatFallsSilentLosesItsPlace(t *testing.T) {
	head := &millracev1.ObjectHead{Object: &millracev1.ObjectRef{TaskId: 7, Generation: 1}, FrameBytes: []uint64{1000}}
	// On a busy machine a short time may be over before the writer has begun.
	for timeout := 50 * time.Millisecond; ; timeout *= 4 {
		receiver := taken{make(transfertest.Heap, 1<<20), make(chan string, 2)}
		peer, _ := serveWith(t, &grpcpath.Server{Source: transfertest.NewObjects(), Receiver: receiver, WriterTimeout: timeout})
		stream, err := callers(t, peer).WriteObject(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&millracev1.WriteObjectRequest{Head: head, Data: []byte("begun")}); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if err := stream.RecvMsg(new(millracev1.WriteObjectResponse)); status.Code(err) != codes.Aborted || !strings.Contains(err.Error(), timeout.String()) {
			t.Error(err)
		}
		select {
		case got := <-receiver.ended:
			if got != "aborted" {
				t.Error(got)
			}
			return
		case <-time.After(timeout):
			if timeout > time.Minute {
				t.Fatal("the writer keeps its place")
			}
		}
	}
}

// TestAReaderThatTakesNothingLosesItsLeases: and its connection before that, because gRPC would
// still send the bytes that it was given.
func TestAReaderThatTakesNothingLosesItsLeases(t *testing.T) {
	objects := transfertest.NewObjects()
	objects.Put(one, "h", make([]byte, 64<<20))
	data := &grpcpath.Server{Source: objects, StreamTimeout: 50 * time.Millisecond}
	peer, _ := serveWith(t, data, grpc.Creds(data.Credentials(nil)))
	stream, err := callers(t, peer, grpc.WithInitialWindowSize(64<<10)).ReadObjects(t.Context(), &millracev1.ReadObjectsRequest{
		Objects: []*millracev1.ObjectRef{{TaskId: 1, Generation: 1}},
	})
	if err != nil {
		t.Fatal(err)
	}
	// On a busy machine the time may be over before the first message has come.
	_, err = stream.Recv()
	transfertest.NoLeases(t, objects)
	for err == nil {
		_, err = stream.Recv()
	}
	if errors.Is(err, io.EOF) {
		t.Error("the stream ended well")
	}
}

// TestAPanicFailsOneCall: a panic must not end the worker, because its memory holds the results of
// others.
func TestAPanicFailsOneCall(t *testing.T) {
	objects := transfertest.NewObjects()
	objects.Put(one, "h", make([]byte, 1000))
	data := &grpcpath.Server{Source: transfertest.Panicking{Objects: objects}}
	peer, _ := serveWith(t, data, grpc.Creds(data.Credentials(nil)))
	thirteen := transfer.Ref{Task: 13, Generation: 1}
	stream, err := callers(t, peer).ReadObjects(t.Context(), &millracev1.ReadObjectsRequest{Objects: []*millracev1.ObjectRef{{TaskId: 13}}})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "thirteen") {
		t.Errorf("by gRPC: %v", err)
	}
	path := newPath(t, transfertest.Patience)
	if err := path.Fetch(t.Context(), peer, []transfer.Ref{thirteen, thirteen}, transfertest.NewSink()); err == nil {
		t.Error("by a bare stream: no error")
	}
	if err := path.Fetch(t.Context(), peer, []transfer.Ref{one}, transfertest.NewSink()); err != nil {
		t.Errorf("another one: %v", err)
	}
}

// TestAHeadThatCannotBeSentFailsItsObjectAlone: the other objects arrive, and every object that can
// be written can be read.
func TestAHeadThatCannotBeSentFailsItsObjectAlone(t *testing.T) {
	objects := transfertest.NewObjects()
	objects.Put(one, strings.Repeat("h", rawframe.MaxHeadBytes), []byte("x"))
	two := transfer.Ref{Task: 2, Generation: 1}
	objects.Put(two, strings.Repeat("h", 16<<20), []byte("x"))
	for name, data := range map[string]*grpcpath.Server{"bare": {Source: objects}, "gRPC": {Source: objects}} {
		var options []grpc.ServerOption
		if name == "bare" {
			options = append(options, grpc.Creds(data.Credentials(nil)))
		}
		peer, _ := serveWith(t, data, options...)
		sink := transfertest.NewSink()
		if err := newPath(t, transfertest.Patience).Fetch(t.Context(), peer, []transfer.Ref{one, two}, sink); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, _, done, err := sink.Result(0); !done || err == nil || !strings.Contains(err.Error(), "OBJECT_UNREADABLE") {
			t.Errorf("%s: the first: %v, %v", name, done, err)
		}
		if _, _, done, err := sink.Result(1); !done || err != nil {
			t.Errorf("%s: the second: %v, %v", name, done, err)
		}
	}
}

// TestAPartThatIsMissingIsAnError: a peer ends the stream of one part as if we had canceled it,
// after another part has come.
func TestAPartThatIsMissingIsAnError(t *testing.T) {
	objects := transfertest.NewObjects()
	objects.Put(one, "h", make([]byte, 16<<20))
	for _, code := range []codes.Code{codes.Canceled, codes.DeadlineExceeded, codes.Unavailable} {
		come := make(chan struct{})
		peer, _ := serveWith(t, &grpcpath.Server{Source: objects}, grpc.StreamInterceptor(func(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			return next(server, &lacking{stream, code, come})
		}))
		told := sync.OnceFunc(func() { close(come) })
		path := grpcpath.New(grpcpath.Config{StallTimeout: transfertest.Patience, Streams: 2, DialOptions: []grpc.DialOption{
			grpc.WithStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, c *grpc.ClientConn, method string, next grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
				stream, err := next(ctx, d, c, method, options...)
				return &ending{stream, told}, err
			}),
		}})
		sink := transfertest.NewSink()
		err := path.Fetch(t.Context(), peer, []transfer.Ref{one}, sink)
		if _, _, done, _ := sink.Result(0); err == nil || done {
			t.Errorf("%s: %v, done %v", code, err, done)
		}
		if err := path.Close(); err != nil {
			t.Error(err)
		}
	}
}

// If a reader gives up after one part has come and another has not, it has no object.
func TestAReaderThatGivesUpBetweenPartsHasNoObject(t *testing.T) {
	objects := transfertest.NewObjects()
	objects.Put(one, "h", make([]byte, 16<<20))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	peer, _ := serveWith(t, &grpcpath.Server{Source: objects}, grpc.StreamInterceptor(func(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		return next(server, &lacking{stream, codes.Canceled, ctx.Done()})
	}))
	path := grpcpath.New(grpcpath.Config{StallTimeout: transfertest.Patience, Streams: 2, DialOptions: []grpc.DialOption{
		grpc.WithStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, c *grpc.ClientConn, method string, next grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
			stream, err := next(ctx, d, c, method, options...)
			return &ending{stream, cancel}, err
		}),
	}})
	sink := transfertest.NewSink()
	err := path.Fetch(ctx, peer, []transfer.Ref{one}, sink)
	if _, _, done, _ := sink.Result(0); err == nil || done {
		t.Errorf("%v, done %v", err, done)
	}
	if err := path.Close(); err != nil {
		t.Error(err)
	}
}

// lacking ends the stream of part 1 after another part has come.
type lacking struct {
	grpc.ServerStream
	code codes.Code
	come <-chan struct{}
}

func (l *lacking) RecvMsg(m any) error {
	err := l.ServerStream.RecvMsg(m)
	if r, ok := m.(*millracev1.ReadObjectsRequest); ok && err == nil && r.GetPart() == 1 {
		<-l.come
		return status.Error(l.code, "the part is gone")
	}
	return err
}

// ending reports that a client stream has ended without an error.
type ending struct {
	grpc.ClientStream
	told func()
}

func (e *ending) RecvMsg(m any) error {
	err := e.ClientStream.RecvMsg(m)
	if errors.Is(err, io.EOF) {
		e.told()
	}
	return err
}
