package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/flow"
)

// path is how a process reads from others. Its methods run in goroutines of the process, in their
// turns, unless they do not wait.
type path struct{ p *process }

var errLeaseEnded = errors.New("the lease did not hold")

// Name is part of transfer.Path.
func (*path) Name() string { return "sim" }

// Close is part of transfer.Path.
func (*path) Close() error { return nil }

// Capabilities is part of transfer.Path.
func (x *path) Capabilities() transfer.Capabilities {
	c := transfer.Capabilities{Rescue: x, Prompt: x, Prepare: x}
	if x.p.w.plan.mapped {
		c.Borrow, c.Lend = x, x
	}
	if x.p.w.plan.chains() {
		c.Pipelined = x
	}
	return c
}

// Prompt is part of transfer.Prompter.
func (x *path) Prompt(transfer.Peer) bool { return x.p.w.chance(0.5) }

// Prepare is part of transfer.Preparer: it maps the memory of a peer.
func (x *path) Prepare(_ context.Context, at transfer.Peer) (transfer.Measured, error) {
	peer, err := x.ask(at, stallLimit)
	if err != nil {
		return transfer.Measured{}, err
	}
	if !x.near(peer) {
		return transfer.Measured{}, transfer.ErrUnreachable
	}
	x.p.mappings[at.Worker] = peer
	return transfer.Measured{}, nil
}

// Routes returns the peers whose memory is mapped, and sometimes the rate of another one.
func (x *path) Routes() (routes []flow.Route) {
	p, w := x.p, x.p.w
	for _, id := range slices.Sorted(maps.Keys(p.mappings)) {
		routes = append(routes, flow.Route{Peer: p.mappings[id].address(), Path: "borrow", State: flow.Open})
	}
	if w.chance(0.1) {
		if peer := pick(w, w.hosts).proc; peer != nil {
			routes = append(routes, flow.Route{
				Peer: peer.address(), Path: "grpc", State: flow.Open, Rate: 1e6 * (1 + 1e4*w.rng.Float64()), Latency: w.between(0, time.Millisecond),
			})
		}
	}
	return routes
}

// Forget is part of what package peers asks of a path with routes.
func (*path) Forget(string) {}

// at returns the process that answers at the address of a peer; nil if there is none. With fixed
// ports, a later process of the same host answers there.
func (x *path) at(peer transfer.Peer) *process {
	for _, h := range x.p.w.hosts {
		if h.proc != nil && h.proc.address() == peer.Address {
			return h.proc
		}
	}
	return nil
}

// near says whether a process can map the memory of another one.
func (x *path) near(peer *process) bool {
	return peer != nil && x.p.w.plan.mapped && peer.host.machine() == x.p.host.machine()
}

func (x *path) delay() time.Duration {
	w := x.p.w
	if w.fault(w.plan.slow) {
		return w.between(time.Millisecond, time.Second)
	}
	return w.between(100*time.Microsecond, time.Millisecond)
}

// stallLimit is how long a peer may be silent.
const stallLimit = 3 * time.Second

// ask waits until a peer answers, at most for limit.
func (x *path) ask(at transfer.Peer, limit time.Duration) (*process, error) {
	p, w := x.p, x.p.w
	end := w.now.Add(limit)
	if !p.sleep(min(x.delay(), limit)) {
		return nil, errEnded
	}
	peer := x.at(at)
	if peer == nil {
		if !p.sleep(min(x.delay(), end.Sub(w.now))) {
			return nil, errEnded
		}
		return nil, fmt.Errorf("connection refused: %w", transfer.ErrPeerLost)
	}
	for peer.stopped && !peer.dead {
		if !w.now.Before(end) {
			return nil, fmt.Errorf("no answer for %v: %w", limit, transfer.ErrStalled)
		}
		if !p.sleep(min(50*time.Millisecond, end.Sub(w.now))) {
			return nil, errEnded
		}
	}
	if peer.dead {
		return nil, fmt.Errorf("connection broken: %w", transfer.ErrPeerLost)
	}
	return peer, nil
}

// regionWord returns the content of a region, here or at a peer.
func regionWord(r transfer.Region) (uint64, bool) { return r.Space.(words).word(r.Frame) }

// leaseTime is how long a peer protects what is read or lent without hearing of the reader.
const leaseTime = 2 * time.Second

// upstreamWait is how long a worker waits for an object that is arriving at its upstream.
const upstreamWait = 2 * time.Millisecond

// Fetch is part of transfer.Path.
func (x *path) Fetch(_ context.Context, peer transfer.Peer, refs []transfer.Ref, sink transfer.Sink) error {
	return x.fetch(peer, refs, sink, false)
}

// FetchPipelined is part of transfer.PipelinedFetcher.
func (x *path) FetchPipelined(_ context.Context, peer transfer.Peer, refs []transfer.Ref, sink transfer.Sink) error {
	return x.fetch(peer, refs, sink, true)
}

// fetch reads objects from a peer, which takes leases on them for that time. It takes a random
// time, and may break off in the middle.
func (x *path) fetch(at transfer.Peer, refs []transfer.Ref, sink transfer.Sink, pipelined bool) error {
	p, w := x.p, x.p.w
	transfer.Waits(sink)
	lost := w.fault(w.plan.drop)
	peer, err := x.ask(at, stallLimit)
	if err != nil {
		return err
	}
	if pipelined && !hasAll(peer, refs) && !p.sleep(upstreamWait) { // later ones are fetched elsewhere
		return errEnded
	}
	source := peer.store.Source()
	leased := source.Lease(transfer.Reader{Worker: p.worker.Self()}, refs, leaseTime)
	places, bytes := make([][]transfer.Region, len(refs)), uint64(0)
	complete := len(refs)
	if lost {
		complete = w.rng.IntN(len(refs))
	}
	for i := range leased {
		l := &leased[i]
		if l.Err != nil {
			if i < complete {
				w.counts.notArrived += count(pipelined)
				sink.Done(i, l.Err)
			}
			continue
		}
		if places[i], err = sink.Place(context.Background(), i, l.Head); err != nil && i < complete {
			sink.Done(i, err)
		}
		if p.dead {
			return errEnded
		}
		if err != nil {
			source.Release([]transfer.LeaseID{l.Lease})
			l.Err = err
		}
		bytes += l.Head.Bytes()
	}
	if !p.sleep(x.delay() + time.Duration(bytes)) {
		return errEnded
	}
	for i := range leased {
		l := &leased[i]
		if l.Err != nil {
			continue
		}
		whole := true
		for n, r := range l.Regions {
			word, ok := regionWord(r)
			whole = whole && ok
			p.slab.write(places[i][n].Frame, word)
		}
		var err error
		switch held := !peer.dead && source.Release([]transfer.LeaseID{l.Lease})[0]; {
		case i >= complete || peer.dead:
			continue
		case !held:
			err = errLeaseEnded
		case !whole:
			w.fail([]ids.TaskID{l.Head.Ref.Task}, "worker %s: the bytes of %s were freed under a lease", peer.host.name, l.Head.Ref)
		default:
			w.counts.pipelined += count(pipelined)
			w.counts.items += count(l.Head.Ref.Item != 0)
		}
		sink.Done(i, err)
	}
	if lost || peer.dead {
		return fmt.Errorf("stream broken: %w", transfer.ErrPeerLost)
	}
	if x.near(peer) {
		p.mappings[at.Worker] = peer
	}
	return nil
}

func count(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

func hasAll(p *process, refs []transfer.Ref) bool {
	for _, r := range refs {
		if r.Item = 0; !p.has(object(r)) {
			return false
		}
	}
	return true
}

// loan is an object that a process uses in the memory of another one.
type loan struct {
	borrower, lender *process
	lease            transfer.LeaseID
	ref              transfer.Ref
	// until is the end of the lease, as the borrower knows it.
	until time.Time
	// broken: the object was not protected all the time, ended: the loan is over. garbled: the
	// borrower has read other bytes.
	broken, ended, garbled bool
}

// lentSpace is the memory of the lender, as the borrower sees it.
type lentSpace struct {
	words
	loan *loan
}

func (s lentSpace) word(f memory.Frame) (uint64, bool) {
	l := s.loan
	if l.ended {
		l.borrower.w.fail([]ids.TaskID{l.ref.Task}, "worker %s reads %s after the end of the loan", l.borrower.host.name, l.ref)
	}
	word, ok := s.words.word(f)
	if l.broken || !ok {
		l.garbled = true
		return garbage, true
	}
	return word, true
}

// lend makes a loan of a leased object. It breaks sometimes.
func (x *path) lend(peer *process, leased *transfer.Leased, into *transfer.Loan) {
	p, w := x.p, x.p.w
	w.counts.loans++
	l := &loan{borrower: p, lender: peer, lease: leased.Lease, ref: leased.Head.Ref, until: w.now.Add(leaseTime)}
	*into = transfer.Loan{Head: leased.Head, End: l.end}
	for _, r := range leased.Regions {
		into.Regions = append(into.Regions, transfer.Region{Space: lentSpace{r.Space.(words), l}, Frame: r.Frame})
	}
	peer.lent[l] = true
	if w.fault(w.plan.breakLoans) {
		within := 10 * time.Millisecond
		if w.chance(0.5) {
			within = 200 * time.Microsecond
		}
		w.after(w.between(0, within), l.cut)
	}
	w.after(leaseTime/2, l.renew)
}

// cut ends the protection of a loan, as when the lender takes the borrower for dead.
func (l *loan) cut() {
	if !l.ended && !l.broken && !l.lender.dead && !l.borrower.dead {
		w := l.borrower.w
		w.counts.brokenLoans++
		w.log("%s takes %s back from %s", l.lender.host.name, l.ref, l.borrower.host.name)
		l.broken = true
		l.release()
	}
}

func (l *loan) renew() {
	switch {
	case l.ended || l.lender.dead:
		return
	case l.borrower.dead:
		delete(l.lender.lent, l) // its lease runs out
		return
	case l.broken || l.borrower.stopped || l.lender.stopped:
	case !l.lender.store.Source().Renew([]transfer.LeaseID{l.lease}, leaseTime)[0]:
		l.borrower.w.counts.brokenLoans++
		l.broken = true
	default:
		l.until = l.borrower.w.now.Add(leaseTime)
	}
	l.borrower.w.after(leaseTime/2, l.renew)
}

func (l *loan) release() (held bool) {
	return l.lender.store.Source().Release([]transfer.LeaseID{l.lease})[0]
}

// end is transfer.Loan.End.
func (l *loan) end() (held bool) {
	w := l.borrower.w
	if l.ended {
		w.fail([]ids.TaskID{l.ref.Task}, "worker %s ends a loan of %s twice", l.borrower.host.name, l.ref)
	}
	l.ended = true
	delete(l.lender.lent, l)
	switch {
	case l.broken:
	case l.lender.dead:
		// Its memory stays as it is: the lease holds if it held when the lender died.
		held = l.lender.died.Before(l.until)
	default:
		held = l.release()
	}
	if held && l.garbled {
		w.fail([]ids.TaskID{l.ref.Task}, "worker %s: the bytes of %s were freed under a loan", l.lender.host.name, l.ref)
	}
	return held
}

// Lends is part of transfer.Borrower.
func (x *path) Lends(peer transfer.Peer) bool { return x.near(x.at(peer)) }

// Borrow is part of transfer.Borrower.
func (x *path) Borrow(ctx context.Context, at transfer.Peer, refs []transfer.Ref, needs bool) ([]transfer.Loan, error) {
	w := x.p.w
	limit := stallLimit
	if end, is := ctx.Deadline(); is {
		limit = max(end.Sub(w.now)-time.Millisecond, 0)
	}
	peer, err := x.ask(at, limit)
	if err != nil {
		return nil, err
	}
	if !x.near(peer) {
		return nil, fmt.Errorf("another machine: %w", transfer.ErrUnreachable)
	}
	source := peer.store.Source()
	loans := make([]transfer.Loan, len(refs))
	for i, leased := range source.Lease(transfer.Reader{Worker: x.p.worker.Self(), Keeps: true, Needs: needs}, refs, leaseTime) {
		switch {
		case leased.Err == nil && inSlab(&leased):
			x.lend(peer, &leased, &loans[i])
		case leased.Err == nil:
			source.Release([]transfer.LeaseID{leased.Lease})
			if needs {
				source.(transfer.Bringer).Bring(transfer.Reader{Worker: x.p.worker.Self()}, refs[i:i+1])
			}
			loans[i].Err = fmt.Errorf("spilled: %w", transfer.ErrUnreachable)
		case errors.Is(leased.Err, transfer.ErrNotHere):
			loans[i].Err = leased.Err
		default:
			loans[i].Err = fmt.Errorf("%w: %w", leased.Err, transfer.ErrUnreachable)
		}
	}
	x.p.mappings[at.Worker] = peer
	return loans, nil
}

func inSlab(l *transfer.Leased) bool {
	for _, r := range l.Regions {
		if _, is := r.Space.(*slab); !is {
			return false
		}
	}
	return len(l.Regions) > 0
}

// CanLend is part of transfer.Lender.
func (x *path) CanLend(at transfer.Peer, ref transfer.Ref) bool {
	peer := x.at(at)
	if !x.near(peer) {
		return false
	}
	o, ok := peer.store.Lookup(object(ref))
	return ok && o.InSlab && o.HasPlace()
}

// Lend is part of transfer.Lender.
func (x *path) Lend(at transfer.Peer, ref transfer.Ref, into *transfer.Loan) bool {
	if !x.CanLend(at, ref) || x.p.w.fault(x.p.w.plan.drop) {
		return false
	}
	peer := x.at(at)
	leased := peer.store.Source().Lease(transfer.Reader{Worker: x.p.worker.Self()}, []transfer.Ref{ref}, leaseTime)[0]
	if leased.Err != nil {
		return false
	}
	x.p.w.counts.inPlace++
	x.lend(peer, &leased, into)
	return true
}

// Read is part of transfer.Lender.
func (*path) Read(transfer.Peer, uint64) {}

// Rescue is part of transfer.Rescuer: it copies objects out of the memory of a dead process, which
// is unchanged since its death.
func (x *path) Rescue(ctx context.Context, at transfer.Peer, incarnation [16]byte, refs []transfer.Ref, sink transfer.Sink) error {
	p, w := x.p, x.p.w
	dead := p.mappings[at.Worker]
	if dead == nil || !dead.dead || dead.incarnation != uuid.UUID(incarnation).String() {
		return fmt.Errorf("not mapped: %w", transfer.ErrUnreachable)
	}
	for i, r := range refs {
		if !p.sleep(w.between(20*time.Microsecond, 3*time.Millisecond)) {
			return errEnded
		}
		o, ok := dead.store.Lookup(object(r))
		if !ok || !o.InSlab || !o.HasPlace() || p.mappings[at.Worker] != dead || w.fault(w.plan.rescueFails) {
			sink.Done(i, fmt.Errorf("%s: %w", r, transfer.ErrNotHere))
			continue
		}
		head := transfer.Head{Ref: r, Header: o.Header}
		for _, f := range o.Frames {
			head.FrameBytes = append(head.FrameBytes, f.Bytes)
		}
		places, err := sink.Place(ctx, i, head)
		if p.dead {
			return errEnded
		}
		if err == nil && !p.sleep(time.Duration(head.Bytes())) {
			return errEnded
		}
		for n := 0; n < len(places) && err == nil; n++ {
			word, ok := dead.slab.read(o.Frames[n])
			if !ok {
				w.fail([]ids.TaskID{r.Task}, "worker %s: the bytes of %s are not in the memory of %s", p.host.name, r, dead.host.name)
			}
			p.slab.write(places[n].Frame, word)
		}
		if err == nil {
			w.counts.rescued++
			p.kept[object(r)] = true
		}
		sink.Done(i, err)
	}
	return nil
}

// unmap unmaps the memory of a dead process.
func (p *process) unmap(dead *process) {
	for _, id := range slices.Sorted(maps.Keys(p.mappings)) {
		if p.mappings[id] == dead {
			delete(p.mappings, id)
		}
	}
}
