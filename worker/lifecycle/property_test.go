package lifecycle_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/worker/lifecycle"
)

// world simulates everything around the machine: it carries out the effects with delays, and checks
// that the machine's orders are consistent.
type world struct {
	t   *rapid.T
	m   *lifecycle.Machine
	now time.Time

	assigned map[lifecycle.Ref]bool // false after the final report
	reserves []lifecycle.ReservationID
	// loading are granted reservations whose inputs are still being loaded.
	loading  []lifecycle.ReservationID
	inputs   map[lifecycle.ReservationID][]lifecycle.Object
	reserver map[lifecycle.ReservationID]lifecycle.Ref
	granted  map[lifecycle.ReservationID]bool
	fetches  []*stream
	runs     map[lifecycle.Ref]*run
	// order has the running attempts in the order of their start.
	order []lifecycle.Ref
	pins  map[lifecycle.Ref]map[lifecycle.Object]bool
	slots int
	// makers are the makers of each pre-assigned attempt. published are the attempts that have
	// succeeded.
	makers    map[lifecycle.Ref][]lifecycle.Ref
	published map[lifecycle.Ref]bool
	// objects are the inputs of each attempt.
	objects map[lifecycle.Ref][]lifecycle.Input
	// functions are those that were requested and have not arrived.
	functions []ids.FunctionHash
	// ways are those of the last Admit or Lease of each attempt, leasing are the attempts whose
	// requests for leases are to be answered, and leases are those that were granted.
	ways    map[lifecycle.Ref][]lifecycle.Way
	leasing []lifecycle.Ref
	leases  map[lifecycle.Ref][]bool
	// awaits are the awaited objects of each pre-assigned attempt. asked are the objects with a
	// subscription, reported those that were reported as made.
	awaits   map[lifecycle.Ref][]lifecycle.Object
	asked    []lifecycle.Object
	reported map[lifecycle.Object]bool
	// admits are the Admit effects that are to be answered.
	admits []lifecycle.Ref
}

type stream struct {
	id      lifecycle.FetchID
	objects []lifecycle.FetchObject
}

type run struct {
	slot  string
	slots int
	// blocked: it waits for other tasks. told: the machine has said so. freed: its slots may be
	// given to others. asks: it wants to go on. behind: it is behind one that waited, and is to
	// come back.
	blocked, told, freed, asks, behind bool
}

func (w *world) step(e lifecycle.Event) {
	for _, effect := range w.m.Step(w.now, e) {
		w.carryOut(effect)
	}
	for len(w.admits) > 0 {
		r := w.admits[0]
		w.admits = w.admits[1:]
		ways := w.ways[r]
		if slices.ContainsFunc(ways, func(x lifecycle.Way) bool { return x.Lease }) && rapid.IntRange(0, 2).Draw(w.t, "nobody lends") > 0 {
			w.leasing = append(w.leasing, r)
			w.step(lifecycle.LeasesRequested{Ref: r})
			continue
		}
		w.step(&lifecycle.Admitted{Ref: r, Found: w.found(r)})
	}
	if err := w.m.Check(); err != nil {
		w.t.Fatal(err)
	}
	w.checkSlots()
}

func (w *world) checkSlots() {
	slots := make(map[string]int)
	for _, r := range w.runs {
		if !r.behind && !(r.told && r.freed) {
			slots[r.slot] = max(slots[r.slot], r.slots)
		}
	}
	sum := 0
	for _, n := range slots {
		sum += n
	}
	if sum > w.slots {
		w.t.Fatalf("%d slots in use of %d", sum, w.slots)
	}
}

func (w *world) carryOut(e lifecycle.Effect) {
	t := w.t
	switch e := e.(type) {
	case lifecycle.Reserve:
		w.reserves = append(w.reserves, e.Reservation)
		w.inputs[e.Reservation], w.reserver[e.Reservation] = e.Inputs, e.Ref
		if _, twice := w.granted[e.Reservation]; twice {
			t.Fatalf("reservation %d is used twice", e.Reservation)
		}
		w.granted[e.Reservation] = false
	case lifecycle.Unreserve:
		if _, known := w.granted[e.Reservation]; !known {
			t.Fatalf("reservation %d is given back twice", e.Reservation)
		}
		delete(w.granted, e.Reservation)
		for _, f := range w.fetches {
			for _, o := range f.objects {
				if o.Reservation == e.Reservation {
					t.Fatalf("reservation %d is given back while %s is being written into it", e.Reservation, o.Object)
				}
			}
		}
	case lifecycle.StartFetch:
		for _, o := range e.Objects {
			if !w.granted[o.Reservation] {
				t.Fatalf("%s is fetched into memory that is not there", o.Object)
			}
			for _, f := range w.fetches {
				for _, other := range f.objects {
					if other.Object == o.Object {
						t.Fatalf("%s is fetched twice at once", o.Object)
					}
				}
			}
		}
		w.fetches = append(w.fetches, &stream{e.Fetch, e.Objects})
	case lifecycle.PinInput:
		w.pin(e.Ref, e.Object)
	case lifecycle.Unpin:
		if !w.pins[e.Ref][e.Object] {
			t.Fatalf("%s is not pinned for %s", e.Object, e.Ref)
		}
		delete(w.pins[e.Ref], e.Object)
	case lifecycle.StartRun:
		if w.runs[e.Ref] != nil {
			t.Fatalf("%s runs already", e.Ref)
		}
		if e.Reservation != 0 && !w.granted[e.Reservation] {
			t.Fatalf("%s runs without its memory", e.Ref)
		}
		w.runs[e.Ref] = &run{slot: e.Runner + string(rune('0'+e.Slot)), slots: w.slotsOf(e.Ref)}
		w.order = append(w.order, e.Ref)
	case lifecycle.Discard:
	case lifecycle.Admit:
		for _, maker := range w.makers[e.Ref] {
			if !w.published[maker] {
				t.Fatalf("%s is admitted before %s has succeeded", e.Ref, maker)
			}
		}
		for _, o := range w.awaits[e.Ref] {
			if !w.reported[o] {
				t.Fatalf("%s is admitted before %s was reported as made", e.Ref, o)
			}
		}
		w.admits = append(w.admits, e.Ref)
		w.ways[e.Ref] = slices.Clone(e.Ways)
	case lifecycle.Lease:
		w.leasing = append(w.leasing, e.Ref)
		w.ways[e.Ref] = slices.Clone(e.Ways)
	case lifecycle.EndLeases:
		delete(w.leases, e.Ref)
	case lifecycle.Await:
		if slices.Contains(w.asked, e.Object) {
			t.Fatalf("%s is awaited twice", e.Object)
		}
		w.asked = append(w.asked, e.Object)
	case lifecycle.Unawait:
		if !slices.Contains(w.asked, e.Object) {
			t.Fatalf("%s is awaited no more, and was not", e.Object)
		}
		w.asked = slices.DeleteFunc(w.asked, func(o lifecycle.Object) bool { return o == e.Object })
	case lifecycle.Publish:
		w.published[e.Ref] = true
		w.final(e.Ref)
	case lifecycle.Report:
		switch e.Outcome {
		case lifecycle.Started:
			if w.runs[e.Ref] == nil {
				t.Fatalf("%s is reported as started and does not run", e.Ref)
			}
		case lifecycle.RetractRefused:
		case lifecycle.WaitsForTasks:
			w.givenBack(e.Ref)
		case lifecycle.GoesOn:
			if r := w.runs[e.Ref]; r != nil {
				r.told = false
			}
		default:
			w.final(e.Ref)
		}
	case lifecycle.Loosen:
		if !w.pins[e.Ref][e.Object] {
			t.Fatalf("%s is loosened for %s and not pinned", e.Object, e.Ref)
		}
	case lifecycle.Resume:
		if r := w.runs[e.Ref]; r == nil || !r.asks {
			t.Fatalf("%s goes on, and has not asked for it", e.Ref)
		} else {
			r.blocked, r.asks = false, false
		}
	case lifecycle.NeedFunction:
		w.functions = append(w.functions, e.Function)
	case lifecycle.StopRun, lifecycle.TakeBack, lifecycle.Gained, lifecycle.Drop:
	}
}

// givenBack notes that a run occupies no slot, and that those behind it are about to come back.
func (w *world) givenBack(ref lifecycle.Ref) {
	r := w.runs[ref]
	if r == nil || !r.blocked {
		w.t.Fatalf("%s is said to wait for tasks, and does not", ref)
	}
	r.told = true
	for other, b := range w.runs { // order-free: a flag of each
		b.behind = b.behind || other != ref && b.slot == r.slot
	}
}

// nest lets a run wait for other tasks, or go on if it waits already.
func (w *world) nest(ref lifecycle.Ref) {
	r := w.runs[ref]
	switch {
	case r.asks:
	case r.blocked && !r.freed && ref.Task%3 > 0: // the others do not wait for the scheduler
		r.freed = true
		w.step(lifecycle.SlotFreed{Ref: ref})
	case r.blocked:
		r.asks = true
		w.step(lifecycle.Unblocked{Ref: ref})
	default:
		for _, other := range w.order[:slices.Index(w.order, ref)] {
			if w.runs[other].slot == r.slot {
				return // it has not begun
			}
		}
		r.blocked, r.freed = true, false
		w.step(lifecycle.Blocked{Ref: ref})
	}
}

// checkGivenUp checks that no attempt keeps memory while it is queued.
func (w *world) checkGivenUp() {
	for r, open := range w.assigned { // order-free: any one is as good as another
		state, _ := w.m.State(r)
		for id, granted := range w.granted {
			if open && granted && w.reserver[id] == r && state == lifecycle.Queued {
				w.t.Fatalf("%s is queued and keeps reservation %d", r, id)
			}
		}
	}
}

// slotsOf derives an attempt's slots from its task number.
func (w *world) slotsOf(r lifecycle.Ref) int { return min(1+int(r.Task)%7/5, w.slots) }

func (w *world) pin(r lifecycle.Ref, o lifecycle.Object) {
	if w.pins[r] == nil {
		w.pins[r] = make(map[lifecycle.Object]bool)
	}
	if w.pins[r][o] {
		w.t.Fatalf("%s is pinned twice for %s", o, r)
	}
	w.pins[r][o] = true
}

func (w *world) final(r lifecycle.Ref) {
	if !w.assigned[r] {
		w.t.Fatalf("%s is reported twice, or was never assigned", r)
	}
	w.assigned[r] = false
	delete(w.leases, r) // the loop ends them
}

// ended removes a run from the records, before the machine gets the event.
func (w *world) ended(i int) lifecycle.Ref {
	r := w.order[i]
	w.order = append(w.order[:i:i], w.order[i+1:]...)
	delete(w.runs, r)
	return r
}

func (w *world) assign(t *rapid.T, task uint64) {
	e := &lifecycle.Assigned{
		Ref:  lifecycle.Ref{Task: ids.TaskID(task), Attempt: ids.Attempt(rapid.IntRange(1, 2).Draw(t, "attempt"))},
		Rank: uint64(rapid.IntRange(0, 5).Draw(t, "rank")), Runner: rapid.SampledFrom([]string{"n", "p"}).Draw(t, "runner"),
		Slots:    uint32(1 + task%7/5),
		Estimate: rapid.SampledFrom([]time.Duration{0, time.Microsecond, time.Millisecond}).Draw(t, "estimate"),
	}
	if _, known := w.assigned[e.Ref]; known {
		return
	}
	if rapid.IntRange(0, 4).Draw(t, "big") == 0 {
		e.OutputBytes = 2 << 20
	}
	if rapid.IntRange(0, 4).Draw(t, "special") == 0 {
		e.Resources = map[string]float64{"gpu": rapid.SampledFrom([]float64{0.5, 1, 3}).Draw(t, "gpu")}
	}
	w.assigned[e.Ref] = true
	if rapid.IntRange(0, 2).Draw(t, "pre-assign") == 0 && task > 1 {
		for range rapid.IntRange(1, 2).Draw(t, "makers") {
			maker := lifecycle.Ref{Task: ids.TaskID(rapid.Uint64Range(1, task-1).Draw(t, "maker")), Attempt: 1}
			e.Makers = append(e.Makers, maker)
		}
		for _, n := range rapid.SliceOfN(rapid.IntRange(2000, 2003), 0, 3).Draw(t, "awaited") {
			o := lifecycle.Object{Task: ids.TaskID(n), Generation: 1}
			e.Awaited = append(e.Awaited, lifecycle.Awaited{Object: o, Peer: 2})
			w.awaits[e.Ref] = append(w.awaits[e.Ref], o)
		}
		w.makers[e.Ref] = e.Makers
	}
	if rapid.IntRange(0, 5).Draw(t, "function") == 0 {
		e.Function = lifecycle.Function{Name: "f", Hash: ids.FunctionHash{byte(rapid.IntRange(1, 2).Draw(t, "hash"))}}
	}
	for _, n := range rapid.SliceOfN(rapid.IntRange(1000, 1006), 0, 3).Draw(t, "inputs") {
		in := lifecycle.Input{Object: lifecycle.Object{Task: ids.TaskID(n), Generation: 1}, Bytes: uint64(n)}
		for _, h := range rapid.SliceOfNDistinct(rapid.IntRange(1, 4), 0, 3, rapid.ID[int]).Draw(t, "holders") {
			in.Holders = append(in.Holders, ids.WorkerID(h))
		}
		in.Inline = rapid.IntRange(0, 5).Draw(t, "inline") == 0
		in.Bytes *= rapid.SampledFrom([]uint64{1, 100}).Draw(t, "size")
		e.Inputs = append(e.Inputs, in)
	}
	e.Reads = lifecycle.Reading(rapid.IntRange(0, 2).Draw(t, "reads"))
	w.objects[e.Ref] = e.Inputs
	w.step(e)
}

// found looks the inputs of an attempt up, at random, and pins those that are here.
func (w *world) found(r lifecycle.Ref) (found []lifecycle.Found) {
	ways, leases := w.ways[r], w.leases[r]
	// Inputs that are the same object are in one place, and have one pin.
	places := make(map[lifecycle.Object]lifecycle.Place)
	for i, in := range w.objects[r] {
		f := lifecycle.Found{Object: in.Object, Known: len(in.Holders), Place: rapid.SampledFrom([]lifecycle.Place{
			lifecycle.Elsewhere, lifecycle.Kept, lifecycle.Pinned, lifecycle.Away}).Draw(w.t, "place")}
		switch {
		case in.Inline || leases != nil && leases[i]:
			f.Place = lifecycle.Kept
		case ways != nil && ways[i].Read && rapid.Bool().Draw(w.t, "in place"):
			f.Place = lifecycle.InPlace
		default:
			place, again := places[in.Object]
			if again {
				f.Place = place
			} else if places[in.Object] = f.Place; f.Place >= lifecycle.Pinned {
				w.pin(r, in.Object)
			}
		}
		found = append(found, f)
	}
	return found
}

// answerLeases answers the first request for leases.
func (w *world) answerLeases(t *rapid.T) {
	r := w.leasing[0]
	w.leasing = w.leasing[1:]
	e := &lifecycle.Leased{Ref: r}
	granted := make([]bool, len(w.objects[r]))
	for i := range w.objects[r] {
		a := lifecycle.LeaseAnswer{Refusal: lifecycle.Refusal(rapid.IntRange(0, 3).Draw(t, "refusal"))}
		granted[i] = w.ways[r][i].Lease && rapid.Bool().Draw(t, "granted")
		a.Granted = granted[i]
		e.Answers = append(e.Answers, a)
	}
	if w.assigned[r] {
		w.leases[r] = granted
	}
	w.step(e)
}

func anyRef(t *rapid.T) lifecycle.Ref {
	return lifecycle.Ref{Task: ids.TaskID(rapid.IntRange(1, 60).Draw(t, "task")), Attempt: ids.Attempt(rapid.IntRange(1, 2).Draw(t, "attempt"))}
}

// answer makes one of the pending answers happen, chosen at random. It returns false if there is
// none.
func (w *world) answer(t *rapid.T) bool {
	kinds := []func(){}
	if len(w.reserves) > 0 {
		kinds = append(kinds, func() {
			i := rapid.IntRange(0, len(w.reserves)-1).Draw(t, "reservation")
			id := w.reserves[i]
			w.reserves = append(w.reserves[:i:i], w.reserves[i+1:]...)
			if _, wanted := w.granted[id]; wanted && rapid.IntRange(0, 3).Draw(t, "grant") > 0 {
				w.granted[id] = true
				loading := rapid.Bool().Draw(t, "loading")
				if loading {
					w.loading = append(w.loading, id)
				}
				w.step(lifecycle.Reserved{Reservation: id, Loading: loading})
				return
			}
			switch rapid.IntRange(0, 3).Draw(t, "refusal of memory") {
			case 0:
				w.reserves = append(w.reserves, id)
				w.step(lifecycle.ReserveWaits{Reservation: id})
				return
			case 1:
				w.step(lifecycle.ReserveFailed{Reservation: id, Message: "full"})
			default:
				w.step(lifecycle.ReserveFailed{Reservation: id, TooLarge: true, Message: "too large"})
			}
		})
	}
	if len(w.loading) > 0 {
		kinds = append(kinds, func() {
			id := w.loading[0]
			w.loading = w.loading[1:]
			inputs := w.inputs[id]
			if len(inputs) == 0 || rapid.IntRange(0, 3).Draw(t, "lost") > 0 {
				w.step(lifecycle.Loaded{Reservation: id})
				return
			}
			w.step(lifecycle.InputLost{Ref: w.reserver[id], Object: inputs[rapid.IntRange(0, len(inputs)-1).Draw(t, "lost input")], Reservation: id})
		})
	}
	if len(w.asked) > 0 {
		kinds = append(kinds, func() {
			i := rapid.IntRange(0, len(w.asked)-1).Draw(t, "asked")
			o := w.asked[i]
			w.asked = slices.Delete(w.asked, i, i+1)
			if rapid.IntRange(0, 3).Draw(t, "never") == 0 {
				w.step(lifecycle.NeverMade{Object: o})
				return
			}
			w.reported[o] = true
			w.step(lifecycle.Made{Object: o})
		})
	}
	if len(w.leasing) > 0 {
		kinds = append(kinds, func() { w.answerLeases(t) })
	}
	if slices.ContainsFunc(w.m.Attempts(), func(r lifecycle.Ref) bool { s, _ := w.m.State(r); return s == lifecycle.Pausing }) {
		kinds = append(kinds, func() {
			w.now = w.now.Add(200 * time.Millisecond)
			w.step(lifecycle.Ticked{})
		})
	}
	if len(w.functions) > 0 {
		kinds = append(kinds, func() {
			came := w.functions
			w.functions = nil
			w.step(lifecycle.FunctionsCame{Functions: came})
		})
	}
	if len(w.fetches) > 0 {
		kinds = append(kinds, func() { w.progress(t, rapid.IntRange(0, len(w.fetches)-1).Draw(t, "fetch")) })
	}
	if len(w.order) > 0 {
		kinds = append(kinds, func() {
			w.nest(w.order[rapid.IntRange(0, len(w.order)-1).Draw(t, "waits")])
		}, func() {
			r := w.ended(rapid.IntRange(0, len(w.order)-1).Draw(t, "run"))
			switch rapid.IntRange(0, 9).Draw(t, "how") {
			case 0:
				w.step(lifecycle.RunReturned{Ref: r})
			case 4:
				w.step(lifecycle.InputAway{Ref: r})
			case 5:
				w.step(lifecycle.InPlaceFailed{Ref: r})
			case 1:
				w.step(lifecycle.NoRoom{Ref: r, Bytes: []uint64{1}})
			case 2:
				w.step(lifecycle.RunEnded{Ref: r, Outcome: lifecycle.Failed})
			case 3:
				w.step(lifecycle.RunEnded{Ref: r, Outcome: lifecycle.ExecutorDied})
			default:
				w.step(lifecycle.RunEnded{Ref: r, Succeeded: true})
			}
		})
	}
	if len(kinds) == 0 {
		return false
	}
	kinds[rapid.IntRange(0, len(kinds)-1).Draw(t, "kind")]()
	return true
}

func (w *world) progress(t *rapid.T, i int) {
	f := w.fetches[i]
	if len(f.objects) == 0 || rapid.IntRange(0, 5).Draw(t, "ends") == 0 {
		w.fetches = append(w.fetches[:i:i], w.fetches[i+1:]...)
		w.step(lifecycle.FetchEnded{Fetch: f.id, Message: "ended"})
		return
	}
	o := f.objects[0].Object
	f.objects = f.objects[1:]
	switch rapid.IntRange(0, 4).Draw(t, "fetched") {
	case 0:
		w.step(lifecycle.FetchFailed{Fetch: f.id, Object: o, Missing: rapid.Bool().Draw(t, "missing")})
	case 1:
		w.step(lifecycle.FetchFailed{Fetch: f.id, Object: o, NoRoom: true})
	default:
		w.step(lifecycle.InputFetched{Fetch: f.id, Object: o, Bytes: 5})
	}
}

// TestEachAttemptIsReportedOnce checks that, for any order of events, each attempt ends with
// exactly one report, memory and pins are released, and slots and resources are never overdrawn.
func TestEachAttemptIsReportedOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{
			t: t, now: time.Unix(0, 0), slots: rapid.IntRange(1, 3).Draw(t, "slots"),
			assigned: make(map[lifecycle.Ref]bool), granted: make(map[lifecycle.ReservationID]bool),
			runs: make(map[lifecycle.Ref]*run), pins: make(map[lifecycle.Ref]map[lifecycle.Object]bool),
			inputs: make(map[lifecycle.ReservationID][]lifecycle.Object), reserver: make(map[lifecycle.ReservationID]lifecycle.Ref),
			makers: make(map[lifecycle.Ref][]lifecycle.Ref), published: make(map[lifecycle.Ref]bool),
			awaits: make(map[lifecycle.Ref][]lifecycle.Object), objects: make(map[lifecycle.Ref][]lifecycle.Input),
			ways: make(map[lifecycle.Ref][]lifecycle.Way), leases: make(map[lifecycle.Ref][]bool), reported: make(map[lifecycle.Object]bool),
		}
		w.m = lifecycle.New(lifecycle.Config{
			Self: 1, Slots: w.slots, Resources: map[string]float64{"gpu": 1}, FetchesPerPeer: 1, Fetches: 2, FetchObjects: 2, SlotDepth: 4,
			Leases: rapid.Bool().Draw(t, "leases"), ReadsInPlace: rapid.Bool().Draw(t, "in place"),
			MaxBlocked: rapid.SampledFrom([]int{-1, 1, 3}).Draw(t, "max blocked"),
		})
		task := uint64(0)
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			w.now = w.now.Add(time.Duration(rapid.IntRange(0, 30).Draw(t, "ms")) * time.Millisecond)
			switch rapid.IntRange(0, 10).Draw(t, "action") {
			case 10:
				w.step(lifecycle.Short{})
				w.checkGivenUp()
			case 0, 1, 2:
				task++
				w.assign(t, task)
			case 3:
				w.step(lifecycle.Cancelled{Ref: anyRef(t)})
			case 4:
				w.step(lifecycle.Retracted{Ref: anyRef(t)})
			case 5:
				w.step(lifecycle.Ticked{})
				if rapid.IntRange(0, 3).Draw(t, "session") == 0 {
					w.step(lifecycle.Disconnected{})
					w.step(lifecycle.Registered{Self: 1})
				}
			case 6:
				w.step(lifecycle.Released{Object: lifecycle.Object{Task: ids.TaskID(rapid.IntRange(1000, 1006).Draw(t, "object")), Generation: 1}})
				if rapid.Bool().Draw(t, "rescued") {
					w.step(lifecycle.Rescued{Object: lifecycle.Object{Task: ids.TaskID(rapid.IntRange(1000, 1006).Draw(t, "object")), Generation: 1}})
				}
			case 7:
				// Late and invented messages.
				w.step(lifecycle.InputFetched{Fetch: 999, Object: lifecycle.Object{Task: 1000, Generation: 1}})
				w.step(lifecycle.FetchEnded{Fetch: 999})
				w.step(lifecycle.Reserved{Reservation: 999})
				w.step(lifecycle.ReserveFailed{Reservation: 999})
				w.step(lifecycle.Made{Object: lifecycle.Object{Task: 999, Generation: 1}})
				w.step(lifecycle.NeverMade{Object: lifecycle.Object{Task: 999, Generation: 1}})
			default:
				w.answer(t)
			}
		}
		for range 100000 {
			if !w.answer(t) {
				break
			}
		}
		for r, open := range w.assigned {
			if open {
				t.Fatalf("%s was never reported; %q", r, w.m.History(r))
			}
		}
		if w.m.Len() != 0 || len(w.granted) != 0 {
			t.Fatalf("%d attempts and %d reservations are left", w.m.Len(), len(w.granted))
		}
		for r, pins := range w.pins {
			if len(pins) > 0 {
				t.Fatalf("%s keeps %v pinned", r, pins)
			}
		}
	})
}
