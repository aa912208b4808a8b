//go:build cgo && linux

package ucx_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/rawframe"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/grpcpath"
	"github.com/millrace/millrace/transfer/transfertest"
	"github.com/millrace/millrace/transfer/ucx"
)

// worker is both sides in one context, like a real worker.
type worker struct {
	context *ucx.Context
	path    *ucx.Path
	peer    transfer.Peer
	objects *transfertest.Objects
	room    *transfertest.Room // for the objects that it fetches
}

func newWorker(tb testing.TB, tls string) *worker {
	tb.Helper()
	return newWorkerThatServes(tb, pair{tls: tls}, transfertest.Patience, nil)
}

// newWorkerThatServes makes a worker whose slab is at the source's place of a pair, with the given
// StallTimeout. It serves from between(objects), or directly from objects if between is nil.
func newWorkerThatServes(tb testing.TB, p pair, stall time.Duration, between func(transfer.Source) transfer.Source) *worker {
	tb.Helper()
	space := newSpace(tb, p.source)
	objects := transfertest.NewObjectsIn(transfertest.NewRoom(space))
	room := transfertest.NewRoom(space)
	if _, err := room.Take(slabBytes / 2); err != nil {
		tb.Fatal(err)
	}
	config := ucx.Config{
		Library: library(tb), TLS: p.tls, NetDevices: "lo", Space: space, Source: objects, SourceIsQuick: true, InlineBytes: 4 << 10,
	}
	if between != nil {
		config.Source, config.SourceIsQuick = between(objects), false
	}
	c, err := ucx.Open(at(p.source, config))
	if err != nil {
		tb.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	server := grpc.NewServer(rawframe.ServerOptions()...)
	(&grpcpath.Server{OneSided: c.Accept}).Register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	wire := grpcpath.New(grpcpath.Config{StallTimeout: transfertest.Patience})
	path := ucx.NewPath(c, ucx.PathConfig{Connect: wire.Connect, StallTimeout: stall})
	tb.Cleanup(func() {
		server.Stop()
		if err := errors.Join(<-served, path.Close(), c.Close(), wire.Close()); err != nil {
			tb.Error(err)
		}
	})
	return &worker{c, path, transfer.Peer{Worker: 1, Name: "worker", Address: listener.Addr().String()}, objects, room}
}

// TestManyReadersBothWaysSomeGivingUp lets three workers read from each other at the same time, and
// cancels some fetches at random moments. All bytes delivered must be right, and no lease may
// remain. A fetch may fail with ErrPeerLost, but none may stall. The reason for such a failure: a
// cancelled fetch may close a connection. UCX pairs the endpoints of two workers in an order of its
// own, so it may then fail a source's endpoint to a reader, and not the endpoint of that reader.
// The reader asks the source when no answer comes.
func TestManyReadersBothWaysSomeGivingUp(t *testing.T) {
	eachPair(t, manyPlaces, func(t *testing.T, p pair) {
		t.Helper()
		var workers [3]*worker
		sizes := []int{0, 1, 100, 5000, 70_000, 1 << 20, 3<<20 + 1, 9 << 20}
		for w := range workers {
			if w == 1 {
				p.source, p.reader = p.reader, p.source
			}
			workers[w] = newWorkerThatServes(t, p, transfertest.Patience, nil)
			for i, n := range sizes {
				workers[w].objects.Put(refOf(10*w+i), "x", stamped(10*w+i, n), stamped(10*w+i, n/3))
			}
		}
		rounds := 25
		if testing.Short() {
			rounds = 10
		}
		var wait sync.WaitGroup
		for w, reader := range workers {
			for g := range 2 {
				random := rand.New(rand.NewPCG(uint64(w), uint64(g)))
				wait.Go(func() {
					for range rounds {
						s := (w + 1 + random.IntN(2)) % 3
						reader.read(t, workers[s], s, sizes, random)
					}
				})
			}
		}
		wait.Wait()
		for _, w := range workers {
			within(t, transfertest.Patience, "the return of all leases", func() {
				for w.objects.Leases() > 0 {
					<-time.After(time.Millisecond)
				}
			})
		}
	})
}

// TestPeerThatAnswersTheWireUpLate: a peer that first has to open its library answers later than
// StallTimeout, and the connection succeeds all the same.
func TestPeerThatAnswersTheWireUpLate(t *testing.T) {
	source := newWorker(t, transports["tcp"])
	reader := newWorker(t, transports["tcp"])
	const stall = 2 * time.Second
	wire := grpcpath.New(grpcpath.Config{StallTimeout: transfertest.Patience})
	path := ucx.NewPath(reader.context, ucx.PathConfig{StallTimeout: stall, Connect: func(ctx context.Context, peer transfer.Peer, request *workerv1.ConnectRequest) (*workerv1.ConnectResponse, error) {
		select {
		case <-time.After(stall + stall/4):
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
		return wire.Connect(ctx, peer, request)
	}})
	t.Cleanup(func() {
		if err := errors.Join(path.Close(), wire.Close()); err != nil {
			t.Error(err)
		}
	})
	// If the wait for the answer counted, each attempt would stall. A busy machine may stall once
	// otherwise.
	limit := time.Now().Add(transfertest.Patience)
	_, err := path.Connect(t.Context(), source.peer)
	for errors.Is(err, transfer.ErrStalled) && time.Now().Before(limit) {
		_, err = path.Connect(t.Context(), source.peer)
	}
	if err != nil {
		t.Error(err)
	}
}

// read fetches some of a worker's objects, and gives up every third time.
func (w *worker) read(t *testing.T, source *worker, s int, sizes []int, random *rand.Rand) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var refs []transfer.Ref
	for range 1 + random.IntN(4) {
		refs = append(refs, refOf(10*s+random.IntN(len(sizes))))
	}
	sink := transfertest.NewSinkIn(w.room)
	giveUp := random.IntN(3) == 0
	if giveUp {
		at := random.IntN(len(refs))
		sink.PlaceHook = func(_ context.Context, index int, _ transfer.Head) error {
			if index == at {
				go cancel()
			}
			return nil
		}
	}
	err := w.path.Fetch(ctx, source.peer, refs, sink)
	if err != nil && !(giveUp && errors.Is(err, context.Canceled)) && !errors.Is(err, transfer.ErrPeerLost) {
		t.Errorf("got %v", err)
	}
	for i, ref := range refs {
		_, frames, done, objectErr := sink.Result(i)
		switch {
		case err == nil && (!done || objectErr != nil) && !errors.Is(objectErr, transfertest.ErrFull):
			t.Errorf("%s: %v, %v", ref, done, objectErr)
		case done && objectErr == nil && (!bytes.Equal(frames[0], stamped(int(ref.Task), len(frames[0]))) || !bytes.Equal(frames[1], stamped(int(ref.Task), len(frames[1])))):
			t.Errorf("%s: wrong bytes were delivered as valid", ref)
		}
	}
}

// TestIdleConnectionsCostLittle distinguishes contexts that block from contexts that poll, also on
// a busy machine. `millrace bench idle` measures the exact figure.
func TestIdleConnectionsCostLittle(t *testing.T) {
	a, b := newWorker(t, transports["cma"]), newWorker(t, transports["cma"])
	if _, err := a.path.Connect(t.Context(), b.peer); err != nil {
		t.Fatal(err)
	}
	used := func() time.Duration {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	runtime.GC() // frees the memory of earlier tests
	const rest = 2 * time.Second
	before := used()
	<-time.After(rest)
	if spent := used() - before; spent > rest/5 {
		t.Errorf("two idle contexts used %v in %v", spent, rest)
	}
}
