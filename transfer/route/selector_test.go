package route_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/millrace/millrace/internal/leaktest"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/flow"
	"github.com/millrace/millrace/transfer/route"
	"github.com/millrace/millrace/transfer/transfertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Patient{M: m}) }

// odd is a path with a fetch function of the test, which may pass calls on to the path below.
type odd struct {
	transfer.Path
	name  string
	fetch func(ctx context.Context, below transfer.Path, peer transfer.Peer, refs []transfer.Ref, sink transfer.Sink) error
	calls atomic.Int64
}

func (o *odd) Name() string { return o.name }

func (o *odd) Fetch(ctx context.Context, peer transfer.Peer, refs []transfer.Ref, sink transfer.Sink) error {
	o.calls.Add(1)
	return o.fetch(ctx, o.Path, peer, refs, sink)
}

func (o *odd) Close() error { return nil }

func (o *odd) Capabilities() transfer.Capabilities { return transfer.Capabilities{} }

type fixture struct {
	network *transfertest.Network
	objects *transfertest.Objects
	peer    transfer.Peer
}

func newFixture() *fixture {
	f := &fixture{network: transfertest.NewNetwork(), objects: transfertest.NewObjects(), peer: transfer.Peer{Worker: 1, Name: "peer", Address: "a"}}
	f.network.Add("a", f.objects)
	for i := range 3 {
		f.objects.Put(transfer.Ref{Task: 1, Generation: 1}, "x", []byte(strings.Repeat(fmt.Sprint(i), 1000)))
		f.objects.Put(transfer.Ref{Task: 2, Generation: 1}, "y", []byte("second"))
	}
	return f
}

func (f *fixture) selector(tb testing.TB, c flow.Config, first func(ctx context.Context, below transfer.Path, peer transfer.Peer, refs []transfer.Ref, sink transfer.Sink) error) (*route.Selector, *odd) {
	tb.Helper()
	o := &odd{Path: f.network.Path(2), name: "odd", fetch: first}
	p := route.New(route.Config{Candidates: []route.Candidate{{Path: o}, {Path: f.network.Path(2)}}, Flow: c})
	tb.Cleanup(func() {
		if err := p.Close(); err != nil {
			tb.Error(err)
		}
	})
	return p, o
}

var refs = []transfer.Ref{{Task: 1, Generation: 1}, {Task: 2, Generation: 1}}

// fetched fetches both objects and compares them. It returns the number of Place calls.
func (f *fixture) fetched(t *testing.T, p *route.Selector) (places int) {
	t.Helper()
	sink := transfertest.NewSink()
	sink.PlaceHook = func(context.Context, int, transfer.Head) error { places++; return nil }
	if err := p.Fetch(t.Context(), f.peer, refs, sink); err != nil {
		t.Fatal(err)
	}
	for i, r := range refs {
		_, frames, done, err := sink.Result(i)
		want, _ := f.objects.Get(r)
		if !done || err != nil || len(frames) != 1 || string(frames[0]) != string(want[0]) {
			t.Errorf("%s: %v %v %q", r, done, err, frames)
		}
	}
	return places
}

func TestConformance(t *testing.T) {
	network, served := transfertest.NewNetwork(), 0
	transfertest.Harness{
		Serve: func(_ *testing.T, source transfer.Source) (transfer.Peer, func()) {
			served++
			peer := transfer.Peer{Worker: 1, Name: "peer", Address: fmt.Sprint("source-", served)}
			network.Add(peer.Address, source)
			return peer, func() { network.Remove(peer.Address) }
		},
		Path: func(t *testing.T, _ time.Duration) transfer.Path {
			t.Helper()
			unreachable := &odd{name: "nowhere", fetch: func(context.Context, transfer.Path, transfer.Peer, []transfer.Ref, transfer.Sink) error {
				return transfer.ErrUnreachable
			}}
			p := route.New(route.Config{Candidates: []route.Candidate{{Path: unreachable}, {Path: network.Path(2)}}})
			t.Cleanup(func() {
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			})
			return p
		},
	}.Run(t)
}

func TestTheNextPathContinuesInTheSamePlace(t *testing.T) {
	f := newFixture()
	p, o := f.selector(t, flow.Config{}, func(ctx context.Context, below transfer.Path, peer transfer.Peer, refs []transfer.Ref, sink transfer.Sink) error {
		// The second object arrives; the first one breaks off halfway.
		if err := below.Fetch(ctx, peer, refs[1:], shifted{sink}); err != nil {
			return err
		}
		if _, err := sink.Place(ctx, 0, transfer.Head{Ref: refs[0], Header: []byte("x"), FrameBytes: []uint64{1000}}); err != nil {
			return err
		}
		return transfer.ErrPeerLost
	})
	if places := f.fetched(t, p); places != 2 {
		t.Errorf("%d places for 2 objects", places)
	}
	// Two failures shut it.
	f.fetched(t, p)
	f.fetched(t, p)
	if o.calls.Load() != 2 {
		t.Errorf("%d calls of a path that fails", o.calls.Load())
	}
	if routes := p.Routes(); routes[0].State != flow.Shut || routes[1].State != flow.Open || routes[0].Why == "" {
		t.Errorf("%+v", routes)
	}
}

type shifted struct{ transfer.Sink }

func (s shifted) Capabilities() transfer.SinkCapabilities { return transfer.SinkCapabilities{} }

func (s shifted) Place(ctx context.Context, index int, head transfer.Head) ([]transfer.Region, error) {
	return s.Sink.Place(ctx, index+1, head)
}
func (s shifted) Done(index int, err error) { s.Sink.Done(index+1, err) }

func TestSlowPathIsGivenUp(t *testing.T) {
	f := newFixture()
	p, _ := f.selector(t, flow.Config{Grace: 20 * time.Millisecond}, func(ctx context.Context, _ transfer.Path, _ transfer.Peer, refs []transfer.Ref, sink transfer.Sink) error {
		if _, err := sink.Place(ctx, 0, transfer.Head{Ref: refs[0], Header: []byte("x"), FrameBytes: []uint64{1000}}); err != nil {
			return err
		}
		<-ctx.Done()
		return context.Cause(ctx)
	})
	f.fetched(t, p)
	if why := p.Routes()[0].Why; !strings.Contains(why, transfer.ErrStalled.Error()) {
		t.Error(why)
	}
}

func TestRefusedRungIsSkippedAndSaysWhy(t *testing.T) {
	f := newFixture()
	o := &odd{Path: f.network.Path(2), name: "odd"}
	p := route.New(route.Config{Candidates: []route.Candidate{
		{Path: o, Eligible: func(context.Context, transfer.Peer) error { return errors.New("version differs") }},
		{Path: f.network.Path(2)},
	}})
	f.fetched(t, p)
	if o.calls.Load() != 0 || !strings.Contains(p.Routes()[0].Why, "version differs") || p.Routes()[0].State != flow.Unreachable {
		t.Errorf("%d calls, %+v", o.calls.Load(), p.Routes()[0])
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// If a path refuses every object of a fetch, that counts neither as a success nor as a measurement
// of its latency.
func TestAPathThatRefusesEveryObjectIsNotJudged(t *testing.T) {
	f := newFixture()
	o := &odd{Path: f.network.Path(2), name: "odd", fetch: func(_ context.Context, _ transfer.Path, _ transfer.Peer, refs []transfer.Ref, sink transfer.Sink) error {
		for i, r := range refs {
			sink.Done(i, fmt.Errorf("%s: %w: it lies elsewhere", r, transfer.ErrUnreachable))
		}
		return nil
	}}
	p := route.New(route.Config{Candidates: []route.Candidate{{Path: o}, {Path: f.network.Path(2)}}})
	f.fetched(t, p)
	if l := p.Routes()[0]; o.calls.Load() != 1 || l.State == flow.Open || l.Succeeded != 0 || l.Latency != 0 {
		t.Errorf("%d calls, %+v", o.calls.Load(), l)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// A peer whose check was slow once is checked again at the next fetch, not only after a minute.
func TestCandidateThatIsSlowToAnswerIsTriedAgain(t *testing.T) {
	f := newFixture()
	ineligible := fmt.Errorf("%w: it is not connected", transfer.ErrStalled)
	o := &odd{Path: f.network.Path(2), name: "odd", fetch: func(ctx context.Context, below transfer.Path, peer transfer.Peer, refs []transfer.Ref, sink transfer.Sink) error {
		return below.Fetch(ctx, peer, refs, sink)
	}}
	p := route.New(route.Config{Candidates: []route.Candidate{
		{Path: o, Eligible: func(context.Context, transfer.Peer) error { return ineligible }},
		{Path: f.network.Path(2)},
	}})
	f.fetched(t, p)
	if l := p.Routes()[0]; o.calls.Load() != 0 || !strings.Contains(l.Why, "it is not connected") || l.State == flow.Unreachable || l.Failed != 1 {
		t.Errorf("%d calls, %+v", o.calls.Load(), l)
	}
	ineligible = nil
	f.fetched(t, p)
	if l := p.Routes()[0]; o.calls.Load() != 1 || l.State != flow.Open {
		t.Errorf("%d calls, %+v", o.calls.Load(), l)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// chained is a path that can fetch pipelined.
type chained struct {
	odd
	fetchPipelined func(sink transfer.Sink) error
}

func (c *chained) Capabilities() transfer.Capabilities { return transfer.Capabilities{Pipelined: c} }

func (c *chained) FetchPipelined(_ context.Context, _ transfer.Peer, _ []transfer.Ref, sink transfer.Sink) error {
	return c.fetchPipelined(sink)
}

func TestOnlyPathsThatCanFetchPipelinedDo(t *testing.T) {
	f := newFixture()
	p, o := f.selector(t, flow.Config{}, nil)
	if err := p.FetchPipelined(t.Context(), f.peer, refs, transfertest.NewSink()); !errors.Is(err, transfer.ErrUnreachable) || o.calls.Load() > 0 {
		t.Errorf("no path can: %v, %d fetches", err, o.calls.Load())
	}
	c := &chained{odd: odd{Path: f.network.Path(2), name: "chained"}}
	p = route.New(route.Config{Candidates: []route.Candidate{{Path: &odd{name: "first"}}, {Path: c}, {Path: f.network.Path(2)}}})
	c.fetchPipelined = func(sink transfer.Sink) error {
		sink.Done(0, transfer.ErrNotHere)
		return nil
	}
	sink := transfertest.NewSink()
	if err := p.FetchPipelined(t.Context(), f.peer, refs[:1], sink); err != nil {
		t.Error(err)
	}
	if _, _, done, err := sink.Result(0); !done || !errors.Is(err, transfer.ErrNotHere) {
		t.Errorf("done %v, %v", done, err)
	}
	// No other path is tried: the caller then asks a holder.
	broken := errors.New("broken")
	c.fetchPipelined = func(transfer.Sink) error { return broken }
	if err := p.FetchPipelined(t.Context(), f.peer, refs, transfertest.NewSink()); !errors.Is(err, broken) {
		t.Error(err)
	}
	for _, l := range p.Routes() {
		if l.Path == "chained" && (l.Succeeded != 0 || l.Failed != 1) {
			t.Errorf("%+v: how long it takes says nothing, how it fails does", l)
		}
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// told is a sink that records the reported progress of its objects.
type told struct {
	*transfertest.Sink
	come      uint64
	withdrawn []int
}

func (s *told) Capabilities() transfer.SinkCapabilities {
	return transfer.SinkCapabilities{Forward: s}
}

func (s *told) Forward(index int) (func(uint64), uint64) {
	return func(n uint64) { s.come = n + uint64(index) }, 7
}

func (s *told) Withdraw(index int) { s.withdrawn = append(s.withdrawn, index) }

// The progress that one path reported is withdrawn before the next path writes to the same place.
func TestProgressOfAFailedFetchIsWithdrawn(t *testing.T) {
	f := newFixture()
	p, _ := f.selector(t, flow.Config{}, func(ctx context.Context, below transfer.Path, peer transfer.Peer, refs []transfer.Ref, sink transfer.Sink) error {
		if err := below.Fetch(ctx, peer, refs[1:], shifted{sink}); err != nil {
			return err
		}
		on := sink.Capabilities().Forward
		for i := range refs {
			arrived, step := on.Forward(i)
			if arrived(100); step != 7 {
				t.Errorf("a step of %d", step)
			}
		}
		return transfer.ErrStalled
	})
	s := &told{Sink: transfertest.NewSink()}
	withdrawn := -1
	s.PlaceHook = func(_ context.Context, index int, _ transfer.Head) error {
		if index == 0 {
			withdrawn = len(s.withdrawn)
		}
		return nil
	}
	if err := p.Fetch(t.Context(), f.peer, refs, s); err != nil {
		t.Fatal(err)
	}
	if s.come != 101 || withdrawn != 1 || len(s.withdrawn) != 1 || s.withdrawn[0] != 0 {
		t.Errorf("%d bytes had come; withdrawn were %v, %d of them in time", s.come, s.withdrawn, withdrawn)
	}
}

// quick is a path that begins at once while prompt is true.
type quick struct {
	*odd
	prompt bool
}

func (q *quick) Capabilities() transfer.Capabilities { return transfer.Capabilities{Prompt: q} }

func (q *quick) Prompt(transfer.Peer) bool { return q.prompt }

// waiter is a sink that records the notifications that its fetch waits.
type waiter struct {
	*transfertest.Sink
	waits []time.Duration
}

func (w *waiter) Capabilities() transfer.SinkCapabilities {
	return transfer.SinkCapabilities{Wait: w}
}

func (w *waiter) Waits(left time.Duration) { w.waits = append(w.waits, left) }

// Only the best path can begin at once, and only once it is known to work. Later paths may wait,
// and the sink is notified before.
func TestASinkHearsBeforePathsThatMayWait(t *testing.T) {
	f := newFixture()
	first := &quick{odd: &odd{Path: f.network.Path(2), name: "quick"}, prompt: true}
	var seen []time.Duration
	var failure error
	first.fetch = func(ctx context.Context, below transfer.Path, peer transfer.Peer, refs []transfer.Ref, sink transfer.Sink) error {
		sink.Capabilities().Wait.Waits(time.Microsecond)
		if failure != nil {
			return failure
		}
		return below.Fetch(ctx, peer, refs, sink)
	}
	p := route.New(route.Config{Candidates: []route.Candidate{{Path: first}, {Path: f.network.Path(2)}}})
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	fetch := func() {
		t.Helper()
		sink := &waiter{Sink: transfertest.NewSink()}
		if err := p.Fetch(t.Context(), f.peer, refs, sink); err != nil {
			t.Fatal(err)
		}
		seen = sink.waits
	}
	if p.Prompt(f.peer) {
		t.Error("nothing is known of the path, and it is said to begin at once")
	}
	fetch()
	if !p.Prompt(f.peer) || len(seen) != 1 || seen[0] != time.Microsecond {
		t.Errorf("a path that works does not begin at once, or the sink heard %v", seen)
	}
	first.prompt = false
	if p.Prompt(f.peer) {
		t.Error("the path has to wait, and the selector does not say so")
	}
	first.prompt, failure = true, transfer.ErrUnreachable
	fetch()
	if len(seen) != 2 || seen[1] != transfer.Long {
		t.Errorf("before the next path the sink heard %v", seen)
	}
	if p.Prompt(f.peer) {
		t.Error("a path that leads nowhere is said to begin at once")
	}
}

// A fetch whose time is over says so, and not that the peer cannot be reached, also if its path
// failed for a reason of its own at the same moment.
func TestTheEndOfTheTimeOfAFetchIsItsError(t *testing.T) {
	f := newFixture()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	p, _ := f.selector(t, flow.Config{}, func(context.Context, transfer.Path, transfer.Peer, []transfer.Ref, transfer.Sink) error {
		<-ctx.Done()
		return transfer.ErrUnreachable
	})
	if err := p.Fetch(ctx, f.peer, refs, transfertest.NewSink()); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, transfer.ErrUnreachable) {
		t.Errorf("got %v", err)
	}
}
