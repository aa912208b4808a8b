package grpcpath_test

import (
	"bytes"
	"cmp"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/leaktest"
	"github.com/millrace/millrace/internal/rawframe"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/grpcpath"
	"github.com/millrace/millrace/transfer/transfertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Patient{M: m}) }

// serve makes a DataService over loopback. It ends with the test or by stop.
func serve(tb testing.TB, objects transfer.Source, receiver transfer.Receiver) (peer transfer.Peer, stop func()) {
	tb.Helper()
	data := &grpcpath.Server{Source: objects, Receiver: receiver}
	return serveWith(tb, data, grpc.Creds(data.Credentials(nil)))
}

func serveWith(tb testing.TB, data *grpcpath.Server, options ...grpc.ServerOption) (peer transfer.Peer, stop func()) {
	tb.Helper()
	// Under the race detector, a loaded machine can stop for seconds.
	for _, timeout := range []*time.Duration{&data.ReaderTimeout, &data.StreamTimeout, &data.WriterTimeout} {
		*timeout = cmp.Or(*timeout, transfertest.Patience)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	server := grpc.NewServer(append(rawframe.ServerOptions(), options...)...)
	data.Register(server)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	var stopping sync.WaitGroup
	tb.Cleanup(func() {
		server.Stop()
		data.Close()
		stopping.Wait()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			tb.Error(err)
		}
	})
	return transfer.Peer{Worker: 1, Name: "peer", Address: listener.Addr().String()}, func() {
		stopping.Go(func() {
			server.Stop()
			data.Close()
		})
	}
}

// nothingLent waits until all buffers of spaces are given back. A source may give back its buffers
// when its reader has all bytes.
func nothingLent(t *testing.T, spaces ...*transfertest.Far) {
	t.Helper()
	for limit := time.Now().Add(transfertest.Patience); ; time.Sleep(time.Millisecond) {
		n := int64(0)
		for _, space := range spaces {
			n += space.Lent.Load()
		}
		if n == 0 {
			return
		}
		if time.Now().After(limit) {
			t.Errorf("%d buffers were not given back", n)
			return
		}
	}
}

func newPath(tb testing.TB, stall time.Duration) *grpcpath.Path {
	tb.Helper()
	path := grpcpath.New(grpcpath.Config{StallTimeout: stall, Streams: 3})
	tb.Cleanup(func() {
		if err := path.Close(); err != nil {
			tb.Error(err)
		}
	})
	return path
}

// pieceBytes is the least share of an object that one of several connections brings.
const pieceBytes = 8 << 20

func TestConformance(t *testing.T) {
	transfertest.Harness{
		Serve: func(t *testing.T, source transfer.Source) (transfer.Peer, func()) {
			t.Helper()
			return serve(t, source, nil)
		},
		Path: func(t *testing.T, stall time.Duration) transfer.Path {
			t.Helper()
			return newPath(t, stall)
		},
		CanStall: true,
		Piece:    pieceBytes,
	}.Run(t)
}

// The server does not support bare streams, so all fetches use gRPC.
func TestConformanceByGRPCAlone(t *testing.T) {
	transfertest.Harness{
		Serve: func(t *testing.T, source transfer.Source) (transfer.Peer, func()) {
			t.Helper()
			return serveWith(t, &grpcpath.Server{Source: source})
		},
		Path: func(t *testing.T, stall time.Duration) transfer.Path {
			t.Helper()
			return newPath(t, stall)
		},
		CanStall: true,
		Piece:    pieceBytes,
	}.Run(t)
}

// far makes a harness that reads from and writes to spaces that the CPU cannot address.
func far(t *testing.T, h transfertest.Harness) transfertest.Harness {
	t.Helper()
	space := func(t *testing.T) *transfertest.Far {
		t.Helper()
		f := transfertest.NewFar(t, 512<<20)
		t.Cleanup(func() {
			if n := f.Lent.Load(); n != 0 {
				t.Errorf("%d buffers were not given back", n)
			}
		})
		return f
	}
	rooms := map[transfer.Path]*transfertest.Room{}
	path := h.Path
	h.Path = func(t *testing.T, stall time.Duration) transfer.Path {
		t.Helper()
		p := path(t, stall)
		rooms[p] = transfertest.NewRoom(space(t))
		return p
	}
	h.Objects = func(*testing.T) *transfertest.Objects {
		return transfertest.NewObjectsIn(transfertest.NewRoom(space(t)))
	}
	h.Room = func(p transfer.Path) *transfertest.Room { return rooms[p] }
	return h
}

func TestConformanceOfSpacesThatTheProcessorCannotAddress(t *testing.T) {
	for name, creds := range map[string]bool{"bare": true, "grpc": false} {
		t.Run(name, func(t *testing.T) {
			far(t, transfertest.Harness{
				Serve: func(t *testing.T, source transfer.Source) (transfer.Peer, func()) {
					t.Helper()
					if creds {
						return serve(t, source, nil)
					}
					return serveWith(t, &grpcpath.Server{Source: source})
				},
				Path: func(t *testing.T, stall time.Duration) transfer.Path {
					t.Helper()
					return newPath(t, stall)
				},
				CanStall: true,
				Piece:    pieceBytes,
			}).Run(t)
		})
	}
}

func TestADeviceThatIsLostFailsTheObjectOnly(t *testing.T) {
	space := transfertest.NewFar(t, 64<<20)
	objects := transfertest.NewObjectsIn(transfertest.NewRoom(space))
	for task := range ids.TaskID(3) {
		objects.Put(transfer.Ref{Task: task + 1, Generation: 1}, "header", bytes.Repeat([]byte{byte(task)}, 9<<20+int(task)))
	}
	peer, _ := serve(t, objects, nil)
	refs := []transfer.Ref{{Task: 1, Generation: 1}, {Task: 2, Generation: 1}, {Task: 3, Generation: 1}}
	for name, broken := range map[string]*transfertest.Far{"source": space, "target": transfertest.NewFar(t, 64<<20)} {
		t.Run(name, func(t *testing.T) {
			target := broken
			if broken == space {
				target = transfertest.NewFar(t, 64<<20)
			}
			sink := transfertest.NewSinkIn(transfertest.NewRoom(target))
			if broken == space {
				broken.Break.Store(true)
			} else {
				// The second object is known by its size.
				sink.Misplace = func(regions []transfer.Region) []transfer.Region {
					if at := regions[0].Frame; at.Bytes == 9<<20+1 {
						broken.BreakAt.Store(&at)
					}
					return regions
				}
			}
			path := newPath(t, transfertest.Patience)
			if err := path.Fetch(t.Context(), peer, refs, sink); err != nil {
				t.Fatal(err)
			}
			broken.Break.Store(false)
			broken.BreakAt.Store(nil)
			for i := range refs {
				_, _, done, err := sink.Result(i)
				if bad := broken == space || i == 1; !done || (err != nil) != bad {
					t.Errorf("object %d: done %v, %v", i, done, err)
				}
			}
			nothingLent(t, target, space)
		})
	}
}

// client is a DataService client as any language would generate it: without raw frames.
func client(t *testing.T, peer transfer.Peer) millracev1.DataServiceClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+peer.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return millracev1.NewDataServiceClient(conn)
}

func writeAll(t *testing.T, c millracev1.DataServiceClient, messages ...*millracev1.WriteObjectRequest) (*millracev1.WriteObjectResponse, error) {
	t.Helper()
	stream, err := c.WriteObject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range messages {
		if stream.Send(m) != nil {
			break
		}
	}
	return stream.CloseAndRecv()
}

func TestPlainProtobufClientWrites(t *testing.T) {
	objects := transfertest.NewObjects()
	peer, _ := serve(t, objects, objects)
	c := client(t, peer)
	ref := &millracev1.ObjectRef{TaskId: 7, Generation: 2}
	head := &millracev1.ObjectHead{Object: ref, Header: []byte("h"), FrameBytes: []uint64{3, 0, 2}}
	r, err := writeAll(t, c,
		&millracev1.WriteObjectRequest{Head: head, Data: []byte("ab")},
		&millracev1.WriteObjectRequest{Offset: 2, Data: []byte("c")},
		&millracev1.WriteObjectRequest{Frame: 2, Data: []byte("de")},
	)
	if err != nil || r.GetBytes() != 5 {
		t.Fatalf("%v, %v", r, err)
	}
	frames, ok := objects.Get(transfer.Ref{Task: 7, Generation: 2})
	if !ok || string(bytes.Join(frames, []byte("|"))) != "abc||de" {
		t.Errorf("stored %q", frames)
	}
	for name, messages := range map[string][]*millracev1.WriteObjectRequest{
		"no head":        {{Data: []byte("x")}},
		"no task":        {{Head: &millracev1.ObjectHead{}}},
		"too much":       {{Head: head, Data: []byte("abcd")}},
		"wrong order":    {{Head: head}, {Frame: 2, Data: []byte("de")}},
		"too little":     {{Head: head, Data: []byte("abc")}},
		"second head":    {{Head: head}, {Head: head}},
		"beyond the end": {{Head: &millracev1.ObjectHead{Object: ref}}, {Data: []byte("x")}},
		"overflow":       {{Head: &millracev1.ObjectHead{Object: ref, FrameBytes: []uint64{1 << 63, 1 << 63}}}},
	} {
		if _, err := writeAll(t, c, messages...); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRequestsAreChecked(t *testing.T) {
	objects := transfertest.NewObjects()
	peer, _ := serve(t, objects, objects)
	c := client(t, peer)
	for _, n := range []int{0, 10001} {
		stream, err := c.ReadObjects(t.Context(), &millracev1.ReadObjectsRequest{Objects: make([]*millracev1.ObjectRef, n)})
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%d objects: %v", n, err)
		}
	}
	if _, err := c.GetTaskLogs(t.Context(), &millracev1.GetTaskLogsRequest{TaskId: 1}); status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "no logs") {
		t.Errorf("logs: %v", err)
	}
}
