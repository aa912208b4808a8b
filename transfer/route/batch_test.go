package route_test

import (
	"context"
	"testing"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/flow"
	"github.com/millrace/millrace/transfer/route"
	"github.com/millrace/millrace/transfer/transfertest"
)

// batched fetches like a path that handles all objects at once.
func (f *fixture) batched(ctx context.Context, t *testing.T, refs []transfer.Ref, sink transfer.Sink, whole bool) {
	t.Helper()
	b := sink.Capabilities().Batch
	if b == nil {
		t.Fatal("no batches")
	}
	var heads []transfer.Head
	for _, r := range refs {
		frames, _ := f.objects.Get(r)
		heads = append(heads, transfer.Head{Ref: r, Header: []byte("x"), FrameBytes: []uint64{uint64(len(frames[0]))}})
	}
	for first := 0; first < len(refs); {
		placed, err := b.PlaceBatch(ctx, first, heads[first:], []memory.Frame{{Bytes: 1}})
		if err != nil || placed.Objects == 0 || len(placed.Frames) != 1+placed.Objects {
			t.Fatalf("%+v, %v", placed, err)
		}
		for i, frame := range placed.Frames[1:] {
			want, _ := f.objects.Get(refs[first+i])
			copy(placed.Space.Bytes(frame.Offset, frame.Bytes), want[0])
		}
		if whole {
			b.DoneBatch(first, placed.Objects)
		}
		first += placed.Objects
	}
}

// one is a space that differs from others by identity.
type one struct{ transfertest.Heap }

func TestBatchesThroughTheSelector(t *testing.T) {
	for name, batches := range map[string]bool{"a sink of batches": true, "a sink of objects": false} {
		t.Run(name, func(t *testing.T) {
			f := newFixture()
			try := 0
			fetch := func(ctx context.Context, _ transfer.Path, _ transfer.Peer, refs []transfer.Ref, sink transfer.Sink) error {
				try++
				f.batched(ctx, t, refs, sink, try == 2)
				if try == 1 {
					return transfer.ErrPeerLost
				}
				return nil
			}
			p := route.New(route.Config{Candidates: []route.Candidate{
				{Path: &odd{Path: f.network.Path(2), name: "first", fetch: fetch}}, {Path: &odd{Path: f.network.Path(2), name: "second", fetch: fetch}},
			}, Flow: flow.Config{}})
			places := 0
			room := transfertest.NewRoom(&one{make(transfertest.Heap, 1<<16)})
			plain := transfertest.NewSinkIn(room)
			plain.PlaceHook = func(context.Context, int, transfer.Head) error { places++; return nil }
			sink := transfer.Sink(plain)
			if batches {
				sink = transfertest.Batching{Sink: plain}
			}
			if err := p.Fetch(t.Context(), f.peer, refs, sink); err != nil {
				t.Fatal(err)
			}
			for i, r := range refs {
				_, frames, done, err := plain.Result(i)
				want, _ := f.objects.Get(r)
				if !done || err != nil || string(frames[0]) != string(want[0]) {
					t.Errorf("%s: %v %v", r, done, err)
				}
			}
			if places != len(refs) || try != 2 {
				t.Errorf("%d places for %d objects in %d tries: both should write to the same", places, len(refs), try)
			}
			routes := p.Routes()
			if n := routes[1].Bytes; n == 0 || routes[0].Failed != 1 {
				t.Errorf("%+v", routes)
			}
		})
	}
}

// ready is a path that can prepare.
type ready struct {
	transfer.Path
	err error
}

func (r ready) Name() string { return "ready" }

func (r ready) Capabilities() transfer.Capabilities { return transfer.Capabilities{Prepare: r} }

func (r ready) Prepare(context.Context, transfer.Peer) (transfer.Measured, error) {
	return transfer.Measured{Latency: 5, BytesPerSecond: 7}, r.err
}

func TestAPreparedPathIsOpen(t *testing.T) {
	f := newFixture()
	p := route.New(route.Config{Candidates: []route.Candidate{{Path: f.network.Path(2)}, {Path: ready{f.network.Path(2), nil}}}})
	if _, err := p.Prepare(t.Context(), f.peer); err != nil {
		t.Fatal(err)
	}
	if l := p.Routes(); l[0].State != flow.Untried || l[1].State != flow.Open || l[1].Latency != 5 || l[1].Rate != 7 || l[1].Succeeded != 0 {
		t.Errorf("%+v", l)
	}
	p = route.New(route.Config{Candidates: []route.Candidate{{Path: ready{f.network.Path(2), transfer.ErrPeerLost}}}})
	if _, err := p.Prepare(t.Context(), f.peer); err == nil {
		t.Error("no error")
	}
	for _, l := range p.Routes() {
		if l.State != flow.Untried {
			t.Errorf("%+v", l)
		}
	}
}

// way is a path that describes the way of the bytes.
type way struct{ transfer.Path }

func (way) Name() string { return "way" }

func (way) Lane(address string) transfer.Lane {
	return transfer.Lane{Transport: "rc to " + address, Staged: "both", BytesPerSecond: 5, Why: "no dma-buf"}
}

func TestRoutesDescribeTheWay(t *testing.T) {
	f := newFixture()
	p := route.New(route.Config{Candidates: []route.Candidate{{Path: way{f.network.Path(2)}}, {Path: ready{f.network.Path(2), nil}}}})
	if _, err := p.Prepare(t.Context(), f.peer); err != nil {
		t.Fatal(err)
	}
	l := p.Routes()
	if l[0].Transport != "rc to "+f.peer.Address || l[0].Staged != "both" || l[0].ConnectRate != 5 || l[0].ConnectionWhy != "no dma-buf" || l[1].Transport != "" || l[1].ConnectRate != 0 {
		t.Errorf("%+v", l)
	}
}
