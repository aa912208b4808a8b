//go:build cgo && linux

package ucx_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/grpcpath"
	"github.com/millrace/millrace/transfer/transfertest"
	"github.com/millrace/millrace/transfer/ucx"
)

// fetchOne fetches object 1, and calls placed just before the object is read.
func (w *worker) fetchOne(t *testing.T, source *worker, want []byte, placed func()) error {
	t.Helper()
	sink := transfertest.NewSinkIn(w.room)
	sink.PlaceHook = func(context.Context, int, transfer.Head) error {
		if placed != nil {
			placed()
		}
		return nil
	}
	err := w.path.Fetch(t.Context(), source.peer, []transfer.Ref{refOf(1)}, sink)
	_, frames, done, objectErr := sink.Result(0)
	if done && objectErr == nil && !bytes.Equal(frames[0], want) {
		t.Error("wrong bytes were delivered as valid")
	}
	return errors.Join(err, objectErr)
}

func TestReaderOfAConnectionThatIsNotServedGoesOnAtOnce(t *testing.T) {
	eachPair(t, fewPlaces, func(t *testing.T, p pair) {
		t.Helper()
		source := newWorkerThatServes(t, p, transfertest.Patience, nil)
		reader := newWorkerThatServes(t, pair{tls: p.tls, source: p.reader}, time.Hour, nil)
		want := stamped(1, 5<<20)
		source.objects.Put(refOf(1), "x", want)
		end := func() {}
		defer func() { end() }()
		lose := func() {
			end()
			end = source.context.LoseReaders()
		}
		fetch := func(placed func()) (err error) {
			t.Helper()
			within(t, transfertest.Patience, "a fetch", func() { err = reader.fetchOne(t, source, want, placed) })
			return err
		}
		for name, fetchThatLoses := range map[string]func() error{
			"before it asks": func() error {
				lose()
				return fetch(nil)
			},
			"before it reads": func() error { return fetch(lose) },
		} {
			if err := fetch(nil); err != nil {
				t.Fatalf("%s: while all is well: %v", name, err)
			}
			if err := fetchThatLoses(); !errors.Is(err, transfer.ErrPeerLost) || errors.Is(err, transfer.ErrStalled) {
				t.Errorf("%s: %v", name, err)
			}
			if err := fetch(nil); err != nil {
				t.Errorf("%s: it does not connect anew: %v", name, err)
			}
		}
	})
}

// through gives the worker a path whose requests on the control connection go through f; f gets the
// function that really sends them.
func (w *worker) through(t *testing.T, stall time.Duration, f func(*workerv1.ConnectRequest, carry) (*workerv1.ConnectResponse, error)) {
	t.Helper()
	wire := grpcpath.New(grpcpath.Config{StallTimeout: transfertest.Patience})
	path := ucx.NewPath(w.context, ucx.PathConfig{
		StallTimeout: stall,
		Connect: func(ctx context.Context, peer transfer.Peer, request *workerv1.ConnectRequest) (*workerv1.ConnectResponse, error) {
			return f(request, func(r *workerv1.ConnectRequest) (*workerv1.ConnectResponse, error) {
				return wire.Connect(ctx, peer, r)
			})
		},
	})
	t.Cleanup(func() {
		if err := errors.Join(path.Close(), wire.Close()); err != nil {
			t.Error(err)
		}
	})
	w.path = path
}

type carry func(*workerv1.ConnectRequest) (*workerv1.ConnectResponse, error)

// slow is a source that answers only after the test allows it.
type slow struct {
	transfer.Source
	until chan struct{} // closed by the test; then the source answers
}

func (s slow) Lease(reader transfer.Reader, refs []transfer.Ref, ttl time.Duration) []transfer.Leased {
	<-s.until
	return s.Source.Lease(reader, refs, ttl)
}

func TestASourceThatIsSlowKeepsItsConnection(t *testing.T) {
	until := make(chan struct{})
	source := newWorkerThatServes(t, pair{tls: transports["tcp"]}, transfertest.Patience, func(s transfer.Source) transfer.Source { return slow{s, until} })
	answer := sync.OnceFunc(func() { close(until) })
	t.Cleanup(answer)
	reader := newWorker(t, transports["tcp"])
	var asked atomic.Int32
	reader.through(t, transfertest.Patience, func(r *workerv1.ConnectRequest, on carry) (*workerv1.ConnectResponse, error) {
		response, err := on(r)
		if r.GetCheckToken() != 0 {
			if asked.Add(1) == 2 {
				answer()
			}
		}
		return response, err
	})
	want := stamped(1, 5<<20)
	source.objects.Put(refOf(1), "x", want)
	within(t, transfertest.Patience, "a fetch", func() {
		if err := reader.fetchOne(t, source, want, nil); err != nil {
			t.Error(err)
		}
	})
}

func TestASourceThatDoesNotKnowTheQuestionIsAskedOnce(t *testing.T) {
	source, reader := newWorker(t, transports["tcp"]), newWorker(t, transports["tcp"])
	var asked atomic.Int32
	reader.through(t, 2*time.Second, func(r *workerv1.ConnectRequest, on carry) (*workerv1.ConnectResponse, error) {
		if r.GetCheckToken() != 0 {
			asked.Add(1)
			r = new(workerv1.ConnectRequest) // an older worker reads the request like this
		}
		return on(r)
	})
	want := stamped(1, 5<<20)
	source.objects.Put(refOf(1), "x", want)
	end := func() {}
	defer func() { end() }()
	within(t, transfertest.Patience, "the stall", func() {
		err := reader.fetchOne(t, source, want, func() { end = source.context.LoseReaders() })
		if !errors.Is(err, transfer.ErrStalled) {
			t.Errorf("got %v", err)
		}
	})
	if n := asked.Load(); n != 1 {
		t.Errorf("it was asked %d times", n)
	}
}
