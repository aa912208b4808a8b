package grpcpath_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/grpcpath"
	"github.com/millrace/millrace/transfer/transfertest"
)

// heldBytes is the size of an object that does not fit into the buffers of connections.
const heldBytes = 48 << 20

// limited returns a space that lends one buffer at a time.
func limited(t *testing.T) *transfertest.Far {
	t.Helper()
	f := transfertest.NewFar(t, 512<<20)
	f.Limit(1)
	return f
}

// fetchAll fetches an object with each sink at the same time, and compares the bytes. The returned
// function waits for that.
func fetchAll(t *testing.T, peer transfer.Peer, want []byte, sinks ...*transfertest.Sink) (wait func()) {
	t.Helper()
	var group sync.WaitGroup
	for _, sink := range sinks {
		path := grpcpath.New(grpcpath.Config{StallTimeout: transfertest.Patience, Streams: 1})
		t.Cleanup(func() {
			if err := path.Close(); err != nil {
				t.Error(err)
			}
		})
		group.Go(func() {
			if err := path.Fetch(t.Context(), peer, []transfer.Ref{one}, sink); err != nil {
				t.Error(err)
				return
			}
			if _, frames, done, err := sink.Result(0); !done || err != nil || !bytes.Equal(frames[0], want) {
				t.Errorf("done %v, %v, or other bytes came", done, err)
			}
		})
	}
	return group.Wait
}

// TestSlowReadersKeepNoBuffers: readers that wait for memory of their own take no bytes, for as
// long as they want. Other readers of the same device do not wait for them.
func TestSlowReadersKeepNoBuffers(t *testing.T) {
	for name, bare := range map[string]bool{"bare": true, "grpc": false} {
		t.Run(name, func(t *testing.T) {
			objects := transfertest.NewObjectsIn(transfertest.NewRoom(limited(t)))
			want := make([]byte, heldBytes)
			for i := range want {
				want[i] = byte(i>>12) ^ byte(i)
			}
			objects.Put(one, "h", want)
			data := &grpcpath.Server{Source: objects}
			var options []grpc.ServerOption
			if bare {
				options = append(options, grpc.Creds(data.Credentials(nil)))
			}
			peer, _ := serveWith(t, data, options...)
			placing, room := make(chan struct{}), make(chan struct{})
			slow := func() *transfertest.Sink {
				s := transfertest.NewSink()
				s.PlaceHook = func(context.Context, int, transfer.Head) error {
					placing <- struct{}{}
					<-room
					return nil
				}
				return s
			}
			wait := fetchAll(t, peer, want, slow(), slow(), slow())
			for range 3 {
				<-placing
			}
			fetchAll(t, peer, want, transfertest.NewSink())()
			close(room)
			wait()
			transfertest.NoLeases(t, objects)
		})
	}
}

// stopping forwards connections to a peer. Each connection stops after some bytes of the answer,
// until proceed is closed.
type stopping struct {
	net.Listener
	to      string
	after   int64
	stopped chan struct{}
	proceed chan struct{}
}

func newStopping(t *testing.T, peer transfer.Peer, after int64) (*stopping, transfer.Peer) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &stopping{listener, peer.Address, after, make(chan struct{}, 16), make(chan struct{})}
	var group sync.WaitGroup
	group.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			group.Go(func() { s.forward(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		group.Wait()
	})
	peer.Address = listener.Addr().String()
	return s, peer
}

func (s *stopping) forward(conn net.Conn) {
	defer conn.Close()
	to, err := net.Dial("tcp", s.to) //nolint:noctx // it is local
	if err != nil {
		return
	}
	var group sync.WaitGroup
	group.Go(func() {
		_, _ = io.Copy(to, conn) // it ends with the connection
		_ = to.Close()
	})
	if _, err := io.CopyN(conn, to, s.after); err == nil {
		s.stopped <- struct{}{}
		<-s.proceed
		_, _ = io.Copy(conn, to)
	}
	_ = conn.Close()
	group.Wait()
}

// TestSlowSourcesKeepNoBuffers: streams that stop in the middle of a record, or between two, do not
// keep the buffers of the device that they write to.
func TestSlowSourcesKeepNoBuffers(t *testing.T) {
	objects := transfertest.NewObjects()
	want := make([]byte, heldBytes)
	for i := range want {
		want[i] = byte(i>>12) ^ byte(i)
	}
	objects.Put(one, "h", want)
	for _, c := range []struct {
		name  string
		bare  bool
		after int64
	}{
		{"bare, in a record", true, 6 << 20},
		{"bare, between records", true, betweenRecords(t, objects)},
		{"grpc", false, 6 << 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			data := &grpcpath.Server{Source: objects}
			var options []grpc.ServerOption
			if c.bare {
				options = append(options, grpc.Creds(data.Credentials(nil)))
			}
			peer, _ := serveWith(t, data, options...)
			stops, through := newStopping(t, peer, c.after)
			space := transfertest.NewRoom(limited(t))
			wait := fetchAll(t, through, want, transfertest.NewSinkIn(space), transfertest.NewSinkIn(space), transfertest.NewSinkIn(space))
			for range 3 {
				<-stops.stopped
			}
			fetchAll(t, peer, want, transfertest.NewSinkIn(space))()
			close(stops.proceed)
			wait()
		})
	}
}

// betweenRecords returns the number of bytes that a server sends on a bare stream up to the end of
// the second record.
func betweenRecords(t *testing.T, objects *transfertest.Objects) int64 {
	t.Helper()
	peer, _ := serve(t, objects, nil)
	conn := bare(t, peer, ask(t, &millracev1.ReadObjectsRequest{Objects: []*millracev1.ObjectRef{{TaskId: 1, Generation: 1}}}))
	defer conn.Close()
	sum := int64(len("MILLRAW1"))
	for range 2 {
		var lengths [8]byte
		if _, err := io.ReadFull(conn, lengths[:]); err != nil {
			t.Fatal(err)
		}
		n := int64(binary.LittleEndian.Uint32(lengths[:4])) + int64(binary.LittleEndian.Uint32(lengths[4:]))
		if _, err := io.CopyN(io.Discard, conn, n); err != nil {
			t.Fatal(err)
		}
		sum += int64(len(lengths)) + n
	}
	return sum
}

// farReceiver places what clients write in a room.
type farReceiver struct {
	room    *transfertest.Room
	created chan transfer.Region
}

// Create is part of transfer.Receiver.
func (f farReceiver) Create(_ context.Context, head transfer.Head) (transfer.Incoming, error) {
	region, err := f.room.Take(head.FrameBytes[0])
	f.created <- region
	return farIncoming{region}, err
}

type farIncoming struct{ region transfer.Region }

func (f farIncoming) Regions() []transfer.Region { return []transfer.Region{f.region} }
func (farIncoming) Commit(context.Context) error { return nil }
func (farIncoming) Abort()                       {}

// TestSlowWritersKeepNoBuffers: what a client has written comes to the device, though the client
// and another one write no more for a while.
func TestSlowWritersKeepNoBuffers(t *testing.T) {
	receiver := farReceiver{transfertest.NewRoom(limited(t)), make(chan transfer.Region, 1)}
	peer, _ := serveWith(t, &grpcpath.Server{Source: transfertest.NewObjects(), Receiver: receiver})
	half := bytes.Repeat([]byte("slow and steady "), 1<<16)
	n := uint64(len(half))
	arrived := func(r transfer.Region, bytes uint64) bool {
		last := make([]byte, 7)
		if err := r.Space.(memory.Reader).ReadInto(r.Frame.Offset+bytes-7, last); err != nil {
			t.Fatal(err)
		}
		return string(last) == "steady "
	}
	var finish []func()
	for task := range ids.TaskID(3) {
		stream, err := callers(t, peer).WriteObject(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		head := &millracev1.ObjectHead{Object: &millracev1.ObjectRef{TaskId: uint64(task) + 1, Generation: 1}, FrameBytes: []uint64{2 * n}}
		if err := stream.Send(&millracev1.WriteObjectRequest{Head: head, Data: half}); err != nil {
			t.Fatal(err)
		}
		region := <-receiver.created
		for limit := time.Now().Add(transfertest.Patience); !arrived(region, n); runtime.Gosched() {
			if time.Now().After(limit) {
				t.Fatalf("what writer %d has written does not arrive", task)
			}
		}
		finish = append(finish, func() {
			if err := stream.Send(&millracev1.WriteObjectRequest{Offset: n, Data: half}); err != nil {
				t.Fatal(err)
			}
			if _, err := stream.CloseAndRecv(); err != nil || !arrived(region, 2*n) {
				t.Errorf("writer %d: %v, or the other half is not there", task, err)
			}
		})
	}
	for _, f := range finish {
		f()
	}
}
