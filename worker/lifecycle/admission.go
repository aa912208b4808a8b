package lifecycle

import (
	"slices"

	"github.com/millrace/millrace/internal/ids"
)

func (m *Machine) assigned(e *Assigned) {
	if m.attempts[e.Ref] != nil {
		m.log.add(e.Ref, "assigned again, ignored")
		return
	}
	a := &attempt{
		ref: e.Ref, heapIndex: -1, rank: e.Rank, slots: min(max(int(e.Slots), 1), m.config.Slots), resources: e.Resources,
		runner: e.Runner, mayPrepare: e.Prepares, estimate: e.Estimate, expected: e.OutputBytes, inputs: e.Inputs,
		reads: e.Reads, replicates: e.Replicates,
	}
	if len(e.Makers)+len(e.Awaited) > 0 || e.Function != (Function{}) {
		if m.preAssign(a, e) {
			m.attempts[e.Ref] = a
			m.move(a, PreAssigned)
		}
		return
	}
	m.attempts[e.Ref] = a
	m.log.add(e.Ref, "assigned")
	m.admit(a)
}

// admit looks the inputs of an attempt up, now that all of them are made. An attempt whose inputs
// came with the assignment goes on at once.
func (m *Machine) admit(a *attempt) {
	if !slices.ContainsFunc(a.inputs, func(in Input) bool { return !in.Inline }) {
		m.enter(a, nil)
		return
	}
	m.move(a, Admitting)
	e := Admit{Ref: a.ref, Waits: a.expected > 0, Copies: a.copies || a.large != nil, Ways: m.ways(a), Large: a.large != nil}
	if e.Large {
		e.Round = a.large.rounds
	}
	m.do(e)
}

func (m *Machine) onAdmitted(e *Admitted) {
	a := m.attempts[e.Ref]
	if a == nil || a.state != Admitting {
		m.log.add(e.Ref, "admitted too late, ignored")
		for _, f := range e.Found {
			if f.Place >= Pinned {
				m.do(Unpin{Ref: e.Ref, Object: f.Object})
			}
		}
		return
	}
	a.estimate, a.mapsNothing = e.Estimate, e.MapsNothing
	m.enter(a, e.Found)
}

// enter enters the places of the inputs of an attempt, and requests memory for those that are not
// here and for the result.
func (m *Machine) enter(a *attempt, found []Found) {
	var bytes []uint64
	var fresh, lost []*wanted
	a.placed = true
	for i := range found {
		in, f := &a.inputs[i], &found[i]
		in.below, in.known = f.Below, f.Known
		switch {
		case f.Place >= Pinned:
			in.use = useHere
			if f.Object != in.Object {
				in.use = useWhole
			}
			a.pinned = append(a.pinned, f.Object)
			a.loose = a.loose || f.Place == Away
			a.placed = a.placed && !a.loose
			continue
		case f.Place == InPlace:
			in.use = useInPlace
			if a.reads == ReadsOnce {
				// The bytes are counted now, since many attempts may be admitted before the first
				// one reads.
				*m.usage.read(in.Object) += in.Bytes
			}
			continue
		case f.Place == Kept || in.Inline:
			continue
		}
		in.use, a.placed = useCopy, false
		w := m.wanted[in.Object]
		if w == nil {
			w = m.want(in, f.Below)
			fresh = append(fresh, w)
			bytes = append(bytes, w.bytes+fetchSlackBytes)
			if len(w.holders) == 0 {
				lost = append(lost, w)
			}
		} else {
			w.learn(in.Holders, m.config.Self)
			if f.Below {
				w.learn([]ids.WorkerID{m.config.Self}, m.config.Self)
			}
			w.downstream = w.downstream || in.Downstream
		}
		if !slices.Contains(w.waiting, a) {
			w.waiting = append(w.waiting, a)
			a.missing = append(a.missing, w)
		}
	}
	a.pinned = once(a.pinned)
	if len(lost) > 0 {
		m.unreachable(lost...)
		return
	}
	if a.expected >= m.config.ReserveBytes {
		a.output = []uint64{a.expected}
		bytes = append(bytes, a.expected)
	}
	if len(bytes) > 0 {
		m.reserve(a, bytes, fresh)
		return
	}
	m.advance(a)
}

// fewPins is the largest number of objects that are compared with each other; more need a map.
const fewPins = 32

// once removes repeated objects from a list, which it changes: an attempt may use an object, or
// items of one list, as several inputs, and has one pin of it.
func once(list []Object) []Object {
	kept := list[:0]
	if len(list) <= fewPins {
		for _, o := range list {
			if !slices.Contains(kept, o) {
				kept = append(kept, o)
			}
		}
		return kept
	}
	known := make(map[Object]bool, len(list))
	for _, o := range list {
		if !known[o] {
			known[o] = true
			kept = append(kept, o)
		}
	}
	return kept
}
