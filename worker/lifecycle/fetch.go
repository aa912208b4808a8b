package lifecycle

import (
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// fetchSlackBytes is added to an object's size in a reservation: the known size does not tell the
// number of frames, each of which is rounded up.
const fetchSlackBytes = 4096

const (
	// chainStep is the number of bytes after which the progress of an arriving object is published
	// to its readers in a broadcast chain. Each link of the chain adds a delay of this many bytes.
	chainStep = 16 << 20
	// fewObjects is the largest number of objects in a fetch that a goroutine begins before its
	// other duties: to begin a larger one would keep the receiver of the session from receiving for
	// too long.
	fewObjects = 64
	// earlyObjects is the largest number of objects in a fetch that are published while they arrive
	// although no reader is known: there is time for that while the data is copied, and less to do
	// once they are here.
	earlyObjects = 8
)

// wanted is an object that is not here and that attempts wait for. It is fetched once, however many
// wait.
type wanted struct {
	object Object
	bytes  uint64
	// waiting are exactly the attempts that have it among their missing inputs.
	waiting []*attempt
	// upstream is the upstream worker in a broadcast chain, which is tried before the holders; 0:
	// none, or tried already. downstream is the same as in Input.
	upstream   ids.WorkerID
	downstream bool
	// holders are the workers that are still to be tried, in this order.
	holders             []ids.WorkerID
	failedAt, missingAt []ids.WorkerID
	// reservation is the memory for it; nil until the memory was requested.
	reservation *reservation
	// peer is set while the object is in the peer's queue, and fetch while a stream brings it. Both
	// are nil while its memory is not granted yet.
	peer  *peer
	fetch *fetch
	// released: the scheduler does not need the copy. rescued: a rescue has brought it after that,
	// or before, and the scheduler counts on it; it does not matter what becomes of the fetch.
	released, rescued bool
}

// own says whether this worker can be a holder: of an item, if it has the whole list below the
// slab, from where the item is copied.
func (w *wanted) own() bool { return w.object.Item != 0 }

// want begins the wait for an object that is not here. below is that of Found.
func (m *Machine) want(in *Input, below bool) *wanted {
	w := &wanted{object: in.Object, bytes: in.Size(), downstream: in.Downstream}
	if below {
		w.holders = []ids.WorkerID{m.config.Self}
	}
	w.learn(in.Holders, m.config.Self)
	if in.Upstream != m.config.Self {
		w.upstream = in.Upstream
	}
	if !w.own() && slices.Contains(in.Holders, m.config.Self) || len(in.Holders) == 0 && !below {
		w.missingAt = append(w.missingAt, m.config.Self)
	}
	m.wanted[in.Object] = w
	return w
}

// learn adds holders that an assignment named.
func (w *wanted) learn(holders []ids.WorkerID, self ids.WorkerID) {
	for _, h := range holders {
		if (h != self || w.own()) && !slices.Contains(w.holders, h) && !slices.Contains(w.failedAt, h) && !slices.Contains(w.missingAt, h) &&
			(w.fetch == nil || w.fetch.peer.id != h) {
			w.holders = append(w.holders, h)
		}
	}
}

// reservation is memory for the missing inputs and the result of one attempt.
type reservation struct {
	id ReservationID
	// attempt is the attempt that it was made for, nil when that has ended or has given up its
	// claim.
	attempt *attempt
	granted bool
	// loading: its inputs are not in the slab yet. Only set when granted.
	loading bool
	// objects are the objects that will be stored there and have not arrived.
	objects []*wanted
}

// peer is a worker to fetch from. A worker is a second, separate peer for pipelined reads: objects
// that it fetches itself and that are read there while they arrive.
type peer struct {
	id        ids.WorkerID
	pipelined bool
	// queue are the objects to fetch next.
	queue   []*wanted
	fetches int
}

type fetch struct {
	id   FetchID
	peer *peer
	// objects are those that have neither arrived nor failed.
	objects []*wanted
}

// reserve requests memory for an attempt: for its result, and for the objects whose memory no
// attempt has requested before.
func (m *Machine) reserve(a *attempt, bytes []uint64, objects []*wanted) {
	m.lastReserve++
	r := &reservation{id: m.lastReserve, attempt: a, objects: objects}
	m.reserved[r.id] = r
	for _, w := range objects {
		w.reservation = r
	}
	a.reservation = r
	m.move(a, Waiting)
	e := Reserve{Reservation: r.id, Ref: a.ref, Bytes: bytes, WithResult: len(bytes) > len(objects)}
	if a.loose {
		e.Inputs = append(e.Inputs, a.pinned...)
	}
	// Inputs that are missing now may be here when the memory is granted.
	for _, w := range a.missing {
		e.Inputs = append(e.Inputs, w.object)
	}
	m.do(e)
}

// bringIn requests a reservation that brings the inputs of an attempt into the slab. It gives up
// the old reservation first: an attempt that waits holds no memory.
func (m *Machine) bringIn(a *attempt) {
	m.giveUp(a)
	m.reserve(a, a.output, nil)
}

// giveUp ends an attempt's claim on its reservation.
func (m *Machine) giveUp(a *attempt) {
	if r := a.reservation; r != nil {
		r.attempt, a.reservation = nil, nil
		m.settle(r)
	}
}

// settle releases a reservation when neither an attempt nor an object needs it.
func (m *Machine) settle(r *reservation) {
	if r.attempt == nil && len(r.objects) == 0 {
		delete(m.reserved, r.id)
		m.do(Unreserve{Reservation: r.id})
	}
}

func (m *Machine) onReserved(e Reserved) {
	r := m.reserved[e.Reservation]
	if r == nil || r.granted {
		return
	}
	r.granted, r.loading = true, e.Loading
	if r.attempt != nil {
		r.attempt.loose = false
	}
	for _, w := range slices.Clone(r.objects) {
		m.queue(w)
	}
	if r.attempt != nil {
		m.advance(r.attempt)
	}
}

func (m *Machine) onLoaded(e Loaded) {
	r := m.reserved[e.Reservation]
	if r == nil || !r.loading {
		return
	}
	r.loading = false
	if a := r.attempt; a != nil && a.state == Fetching {
		m.advance(a)
	}
}

func (m *Machine) onInputLost(now time.Time, e InputLost) {
	a := m.attempts[e.Ref]
	if a == nil || !a.mayLose(e) {
		return
	}
	m.log.add(a.ref, "input lost")
	if m.notBegun(now, a) {
		return
	}
	m.withdraw(a)
	m.do(Report{Ref: a.ref, Outcome: InputUnreachable, Unreachable: []Unreachable{{
		Object: e.Object, MissingAt: []ids.WorkerID{m.config.Self},
	}}})
}

// mayLose says whether the loss of an input concerns an attempt. An object that is still missing
// may be lost: it has arrived, and was moved out of the slab for other requests, before its arrival
// was told.
func (a *attempt) mayLose(e InputLost) bool {
	if e.Reservation != 0 && (a.reservation == nil || a.reservation.id != e.Reservation) {
		return false // the attempt has given that reservation up
	}
	return slices.Contains(a.pinned, e.Object) ||
		a.reservation != nil && slices.ContainsFunc(a.missing, func(w *wanted) bool { return w.object == e.Object })
}

func (m *Machine) onInputAway(now time.Time, e InputAway) {
	a := m.attempts[e.Ref]
	if a == nil || a.state != Running || m.notBegun(now, a) {
		return
	}
	m.loosen(a)
	m.bringIn(a)
}

// endFetches ends an attempt's wait for its missing inputs.
func (m *Machine) endFetches(a *attempt) {
	for _, w := range a.missing {
		w.waiting = slices.DeleteFunc(w.waiting, func(b *attempt) bool { return b == a })
		m.abandon(w)
	}
	a.missing = nil
}

// notBegun takes an attempt that could not begin out of its slot. It returns true if the attempt
// was cancelled and has ended thereby.
func (m *Machine) notBegun(now time.Time, a *attempt) bool {
	if a.state != Running {
		return false
	}
	m.leaveSlot(now, a)
	if !a.cancelled {
		return false
	}
	m.do(Report{Ref: a.ref, Outcome: Dropped})
	m.forget(a)
	return true
}

// loosen allows the inputs of an attempt to be moved.
func (m *Machine) loosen(a *attempt) {
	for _, o := range a.pinned {
		m.do(Loosen{Ref: a.ref, Object: o})
	}
	a.loose, a.placed = len(a.pinned) > 0, false
}

func (m *Machine) onReserveFailed(e ReserveFailed) {
	r := m.reserved[e.Reservation]
	if r == nil || r.granted {
		return
	}
	if a := r.attempt; a != nil && e.TooLarge {
		m.tooLarge(a) // it has left the reservation if it can go on
	}
	// Other attempts that wait for the same objects would have to request the same memory. They
	// fail as well, instead of queueing for another wait.
	victims := []*attempt{}
	if r.attempt != nil {
		victims = append(victims, r.attempt)
	}
	for _, w := range r.objects {
		for _, a := range w.waiting {
			if !slices.Contains(victims, a) {
				victims = append(victims, a)
			}
		}
	}
	for _, a := range victims {
		m.log.add(a.ref, "no memory")
		m.withdraw(a)
		m.do(Report{Ref: a.ref, Outcome: Failed, Reason: "OUT_OF_MEMORY", Message: a.needs(e.Message)})
	}
}

// queue puts an object whose memory is granted into the queue of the next peer to try.
func (m *Machine) queue(w *wanted) {
	if len(w.holders) == 0 {
		m.unreachable(w)
		return
	}
	id, pipelined := w.upstream, w.upstream != 0
	if w.upstream = 0; !pipelined {
		id, w.holders = w.holders[0], w.holders[1:]
	}
	i := slices.IndexFunc(m.peers, func(p *peer) bool { return p.id == id && p.pipelined == pipelined })
	if i < 0 {
		i = len(m.peers)
		m.peers = append(m.peers, &peer{id: id, pipelined: pipelined})
	}
	w.peer = m.peers[i]
	w.peer.queue = append(w.peer.queue, w)
}

// pump starts fetches as far as the limits allow.
func (m *Machine) pump() {
	for _, p := range m.peers {
		for len(p.queue) > 0 && p.fetches < m.config.FetchesPerPeer && len(m.fetches) < m.config.Fetches {
			m.startFetch(p)
		}
	}
	if len(m.fetches) == 0 && len(m.peers) > 0 {
		m.peers = slices.DeleteFunc(m.peers, func(p *peer) bool { return len(p.queue) == 0 })
	}
}

func (m *Machine) startFetch(p *peer) {
	m.lastFetch++
	f := &fetch{id: m.lastFetch, peer: p}
	var bytes uint64
	for len(p.queue) > 0 && len(f.objects) < m.config.FetchObjects && (bytes == 0 || bytes+p.queue[0].bytes <= m.config.FetchBytes) {
		w := p.queue[0]
		p.queue = p.queue[1:]
		bytes += w.bytes
		w.peer, w.fetch = nil, f
		f.objects = append(f.objects, w)
	}
	p.fetches++
	m.fetches[f.id] = f
	objects := make([]FetchObject, len(f.objects))
	for i, w := range f.objects {
		objects[i] = FetchObject{Object: w.object, Reservation: w.reservation.id, Downstream: w.downstream}
		if w.downstream {
			objects[i].Step = chainStep
		}
	}
	m.do(StartFetch{
		Fetch: f.id, Peer: p.id, Pipelined: p.pipelined, Objects: objects, Few: !p.pipelined && len(objects) <= fewObjects, Early: len(objects) <= earlyObjects,
	})
}

// take removes an object from its fetch; nil if the fetch does not expect it.
func (m *Machine) take(id FetchID, o Object) *wanted {
	f := m.fetches[id]
	w := m.wanted[o]
	if f == nil || w == nil || w.fetch != f {
		return nil
	}
	f.objects = without(f.objects, w)
	w.fetch = nil
	return w
}

// without removes an element of a list, which it may change. Objects mostly arrive in the order of
// the lists that contain them, so the first element is removed without moving the others.
func without(list []*wanted, w *wanted) []*wanted {
	switch i := slices.Index(list, w); i {
	case -1:
		return list
	case 0:
		list[0] = nil
		return list[1:]
	default:
		return slices.Delete(list, i, i+1)
	}
}

// leave ends an object's claim on memory.
func (m *Machine) leave(w *wanted) {
	if r := w.reservation; r != nil {
		r.objects = without(r.objects, w)
		w.reservation = nil
		m.settle(r)
	}
	delete(m.wanted, w.object)
}

func (m *Machine) onFetched(e InputFetched) {
	w := m.take(e.Fetch, e.Object)
	if w == nil {
		m.do(Drop{Object: e.Object})
		return
	}
	waiting := w.waiting
	for _, a := range waiting {
		pin := PinInput{Ref: a.ref, Object: w.object}
		switch r := a.reservation; {
		case r == nil:
			a.loose = true
		case r.granted:
			pin.Reservation = r.id
		}
		m.do(pin)
		a.pinned = append(a.pinned, w.object)
		a.missing = without(a.missing, w)
	}
	w.waiting = nil
	m.leave(w)
	switch {
	case w.rescued: // it was reported then
	case len(waiting) == 0 || w.released || w.object.Item != 0:
		m.do(Drop{Object: w.object})
	default:
		m.do(Gained{Object: w.object, Bytes: e.Bytes})
	}
	for _, a := range waiting {
		if a.state == Fetching && len(a.missing) == 0 {
			m.advance(a)
		}
	}
}

// onRescued reports an object that a rescue has brought. If it is fetched as well, the end of the
// fetch must not drop it.
func (m *Machine) onRescued(e Rescued) {
	if w := m.wanted[e.Object]; w != nil {
		w.released, w.rescued = false, true
	}
	m.do(Gained{Object: e.Object, Bytes: e.Bytes})
}

func (m *Machine) onFetchFailed(e FetchFailed) {
	f := m.fetches[e.Fetch]
	w := m.take(e.Fetch, e.Object)
	if w == nil {
		return
	}
	m.dropReleased(w)
	switch {
	case e.NoRoom:
		waiting := slices.Clone(w.waiting)
		for _, a := range waiting {
			m.withdraw(a)
			m.do(Report{Ref: a.ref, Outcome: Failed, Reason: "OUT_OF_MEMORY", Message: e.Message})
		}
	case f.peer.pipelined:
		// The scheduler did not say that this peer holds it, so this is no failure of a holder.
	case e.Missing:
		w.missingAt = append(w.missingAt, f.peer.id)
	default:
		w.failedAt = append(w.failedAt, f.peer.id)
	}
	if len(w.waiting) == 0 {
		m.abandon(w)
		return
	}
	m.queue(w)
}

// dropReleased drops an object that was released during a fetch which has failed: it may have come
// to this worker in another way, such as by a rescue, and no other order to drop it follows.
func (m *Machine) dropReleased(w *wanted) {
	if w.released {
		m.do(Drop{Object: w.object})
	}
}

func (m *Machine) onFetchEnded(e FetchEnded) {
	f := m.fetches[e.Fetch]
	if f == nil {
		return
	}
	p := f.peer
	p.fetches--
	delete(m.fetches, e.Fetch)
	failed := f.objects
	if len(failed) > 0 {
		// The peer is unreachable. The objects in its queue would fail one timeout after the other,
		// so they fail with the stream.
		failed, p.queue = slices.Concat(failed, p.queue), nil
	}
	var stuck []*wanted
	for _, w := range failed {
		w.fetch, w.peer = nil, nil
		m.dropReleased(w)
		if !p.pipelined {
			w.failedAt = append(w.failedAt, p.id)
		}
		switch {
		case len(w.waiting) == 0:
			m.abandon(w)
		case len(w.holders) == 0:
			stuck = append(stuck, w)
		default:
			m.queue(w)
		}
	}
	m.unreachable(stuck...)
}

// unreachable gives up objects that no further worker may hold. Each attempt reports all of its
// unreachable inputs at once.
func (m *Machine) unreachable(objects ...*wanted) {
	var victims []*attempt
	inputs := make(map[*attempt][]Unreachable)
	for _, w := range objects {
		for _, a := range w.waiting {
			if inputs[a] == nil {
				victims = append(victims, a)
			}
			inputs[a] = append(inputs[a], Unreachable{Object: w.object, FailedAt: w.failedAt, MissingAt: w.missingAt})
		}
	}
	for _, a := range victims {
		m.log.add(a.ref, "input unreachable")
		m.withdraw(a)
		m.do(Report{Ref: a.ref, Outcome: InputUnreachable, Unreachable: inputs[a]})
	}
	for _, w := range objects {
		m.abandon(w)
	}
}

// abandon forgets an object that no attempt waits for, unless a stream is bringing it: then it is
// dropped on arrival.
func (m *Machine) abandon(w *wanted) {
	if len(w.waiting) > 0 || w.fetch != nil || m.wanted[w.object] != w {
		return
	}
	if w.peer != nil {
		w.peer.queue = without(w.peer.queue, w)
		w.peer = nil
	}
	m.leave(w)
}
