package grpcpath_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/grpcpath"
	"github.com/millrace/millrace/transfer/transfertest"
)

// small are objects of a few sizes, in the memory of a device. Number missing is not there.
type small struct {
	far     *transfertest.Far
	objects *transfertest.Objects
	refs    []transfer.Ref
	frames  [][][]byte
	missing int
}

func newSmall(t *testing.T, count int, sizes ...int) *small {
	t.Helper()
	far := transfertest.NewFar(t, 1<<30)
	s := newSmallIn(transfertest.NewRoom(far), count, sizes...)
	s.far = far
	return s
}

func newSmallIn(room *transfertest.Room, count int, sizes ...int) *small {
	s := &small{objects: transfertest.NewObjectsIn(room), missing: -1}
	for i := range count {
		ref := transfer.Ref{Task: ids.TaskID(i + 1), Generation: 1}
		var frames [][]byte
		for k, n := range sizes {
			frame := bytes.Repeat([]byte{byte(i), byte(i >> 8), byte(k), 7}, n/4+1)[:n]
			frames = append(frames, frame)
		}
		s.refs, s.frames = append(s.refs, ref), append(s.frames, frames)
		s.objects.Put(ref, "h", frames...)
	}
	return s
}

// check compares everything that a fetch delivered, except for the objects that skip names: the
// first one and the distance to the next.
func (s *small) check(t *testing.T, sink *transfertest.Sink, skip ...int) {
	t.Helper()
	for i := range s.refs {
		if len(skip) > 0 && i%skip[1] == skip[0] {
			continue
		}
		_, frames, done, err := sink.Result(i)
		if i == s.missing {
			if !done || !errors.Is(err, transfer.ErrNotHere) {
				t.Errorf("object %d: %v %v", i, done, err)
			}
			continue
		}
		if !done || err != nil || len(frames) != len(s.frames[i]) {
			t.Fatalf("object %d: %v %v, %d frames", i, done, err, len(frames))
		}
		for k := range frames {
			if !bytes.Equal(frames[k], s.frames[i][k]) {
				t.Fatalf("object %d: frame %d has other bytes", i, k)
			}
		}
	}
}

// TestSmallObjectsAreCopiedTogether: the objects of one request share buffers, and all bytes are
// right, with any sizes and with an object among them that is not there.
func TestSmallObjectsAreCopiedTogether(t *testing.T) {
	for _, c := range []struct {
		name    string
		bare    bool
		count   int
		sizes   []int
		missing int
		loads   int64
		streams int
	}{
		{"bare, 1000 of 64 KiB", true, 1000, []int{64 << 10}, -1, 16, 1},
		{"grpc, 1000 of 64 KiB", false, 1000, []int{64 << 10}, -1, 16, 1},
		{"bare, several frames of odd sizes", true, 300, []int{1, 0, 70001, 17}, -1, 6, 1},
		{"bare, one that is not here", true, 200, []int{64 << 10, 3}, 77, 6, 1},
		{"grpc, one that is not here", false, 200, []int{64 << 10, 3}, 77, 6, 1},
		{"bare, by 3 streams", true, 1001, []int{64 << 10, 5}, -1, 18, 3},
		{"grpc, by 4 streams", false, 200, []int{64 << 10, 3}, 77, 9, 4},
		{"bare, large and small frames, by 2 streams", true, 70, []int{1, 1 << 20}, -1, 25, 2},
		{"bare, large and small frames", true, 5, []int{9<<20 + 1, 100}, -1, 15, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSmall(t, c.count, c.sizes...)
			if s.missing = c.missing; s.missing >= 0 {
				s.refs[s.missing].Task = 1 << 40
			}
			data := &grpcpath.Server{Source: s.objects}
			var options []grpc.ServerOption
			if c.bare {
				options = append(options, grpc.Creds(data.Credentials(nil)))
			}
			peer, _ := serveWith(t, data, options...)
			sink := transfertest.NewSinkIn(transfertest.NewRoom(transfertest.NewFar(t, 1<<30)))
			fetchSmall(t, peer, s, transfertest.Batching{Sink: sink}, c.streams)
			s.check(t, sink)
			if n := s.far.Loads.Load(); n > c.loads {
				t.Errorf("the source copied %d times, expected at most %d", n, c.loads)
			}
			transfertest.NoLeases(t, s.objects)
			nothingLent(t, s.far)
		})
	}
}

// TestSmallObjectsComeTogether: objects in host memory come with heads before their data, to sinks
// that take one object or several at a time, or refuse some.
func TestSmallObjectsComeTogether(t *testing.T) {
	for _, c := range []struct {
		name  string
		sizes []int
		most  int // 0: the sink takes one object at a time
	}{
		{"one at a time", []int{64 << 10}, 0},
		{"several", []int{64 << 10}, 7},
		{"all", []int{64 << 10}, 1000},
		{"frames of odd sizes", []int{0, 1, 0, 20001, 17, 0}, 5},
		{"small ones", []int{3, 5}, 1000},
		{"empty ones", []int{0, 0}, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			space := transfertest.Heap(make([]byte, 64<<20))
			s := newSmallIn(transfertest.NewRoom(&space), 300, c.sizes...)
			s.missing = 77
			s.refs[s.missing].Task = 1 << 40
			peer, _ := serve(t, s.objects, nil)
			into := transfertest.Heap(make([]byte, 64<<20))
			sink := transfertest.NewSinkIn(transfertest.NewRoom(&into))
			refused := errors.New("refused")
			sink.PlaceHook = func(_ context.Context, index int, _ transfer.Head) error {
				if index%50 == 3 {
					return refused
				}
				return nil
			}
			if c.most == 0 {
				fetchSmall(t, peer, s, sink, 1)
			} else {
				fetchSmall(t, peer, s, transfertest.Batching{Sink: sink, Most: c.most}, 1)
			}
			for i := 3; i < len(s.refs); i += 50 {
				if _, _, done, err := sink.Result(i); !done || !errors.Is(err, refused) {
					t.Errorf("object %d: %v %v", i, done, err)
				}
			}
			s.check(t, sink, 3, 50)
			transfertest.NoLeases(t, s.objects)
		})
	}
}

func fetchSmall(t *testing.T, peer transfer.Peer, s *small, sink transfer.Sink, streams int) {
	t.Helper()
	path := grpcpath.New(grpcpath.Config{StallTimeout: transfertest.Patience, Streams: streams})
	defer path.Close()
	if err := path.Fetch(t.Context(), peer, s.refs, sink); err != nil {
		t.Fatal(err)
	}
}

// reported says whether the first objects of a fetch are in place.
func reported(sink *transfertest.Sink, count int) bool {
	for i := range count {
		if _, _, done, err := sink.Result(i); !done || err != nil {
			return false
		}
	}
	return true
}

// TestObjectsThatHaveComeDoNotWaitForTheStream: the source stops in the middle of its answer. The
// objects before that are reported.
func TestObjectsThatHaveComeDoNotWaitForTheStream(t *testing.T) {
	for _, name := range []string{"bare", "bare, in host memory", "grpc"} {
		t.Run(name, func(t *testing.T) {
			bare := name != "grpc"
			s := newSmall(t, 8, 64<<10)
			data := &grpcpath.Server{Source: s.objects}
			var options []grpc.ServerOption
			if bare {
				options = append(options, grpc.Creds(data.Credentials(nil)))
			}
			peer, _ := serveWith(t, data, options...)
			stops, through := newStopping(t, peer, 300<<10)
			far := transfertest.NewFar(t, 64<<20)
			sink := transfertest.NewSinkIn(transfertest.NewRoom(far))
			if name == "bare, in host memory" {
				sink = transfertest.NewSink()
			}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				fetchSmall(t, through, s, sink, 1)
			}()
			<-stops.stopped
			// The answer is reported by a goroutine of the path, which nothing announces.
			for limit := time.Now().Add(transfertest.Patience); !reported(sink, 4) || far.Lent.Load() > 0; time.Sleep(time.Millisecond) {
				if time.Now().After(limit) {
					t.Fatalf("objects that have come are not reported, or %d buffers stay lent", far.Lent.Load())
				}
			}
			if _, _, done, _ := sink.Result(5); done {
				t.Error("object 5 is done, but has not come")
			}
			close(stops.proceed)
			<-ended
			s.check(t, sink)
		})
	}
}

// TestObjectsThatCannotBeStoredFailTogether: the device of the reader breaks. No object is reported
// as stored.
func TestObjectsThatCannotBeStoredFailTogether(t *testing.T) {
	s := newSmall(t, 40, 64<<10)
	peer, _ := serve(t, s.objects, nil)
	far := transfertest.NewFar(t, 64<<20)
	far.Break.Store(true)
	sink := transfertest.NewSinkIn(transfertest.NewRoom(far))
	fetchSmall(t, peer, s, sink, 1)
	far.Break.Store(false) // Result reads the regions
	for i := range s.refs {
		if _, _, done, err := sink.Result(i); !done || !errors.Is(err, transfertest.ErrBroken) {
			t.Fatalf("object %d: %v %v", i, done, err)
		}
	}
	if n := far.Lent.Load(); n != 0 {
		t.Errorf("%d buffers are lent", n)
	}
}

// TestAParkedErrorIsOfItsObjectOnly: the stream uses its flow again for the objects behind one that
// could not be written.
func TestAParkedErrorIsOfItsObjectOnly(t *testing.T) {
	space := transfertest.NewFar(t, 1<<20)
	space.BreakAt.Store(&memory.Frame{Bytes: 100})
	in := memory.NewInflow(space)
	write := func(off uint64) error {
		_, err := in.Room(off, 100)
		return err
	}
	if err := write(0); err != nil {
		t.Fatal(err)
	}
	in.Park(0)
	if err := write(200); !errors.Is(err, transfertest.ErrBroken) {
		t.Errorf("after copies that failed: %v", err)
	}
	in.Close()
	if err := errors.Join(write(200), in.Flush()); err != nil {
		t.Errorf("the next object: %v", err)
	}
	in.Close()
	if n := space.Lent.Load(); n != 0 {
		t.Errorf("%d buffers were not given back", n)
	}
}
