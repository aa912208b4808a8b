package sched

import (
	"slices"

	"github.com/millrace/millrace/internal/ids"
)

// Several workers of one host that are to fetch the same large object at nearly the same time do so in a chain: the second is
// told to read it at the first one, while it arrives there, the third at the second one. Each link then carries it once, and
// the last has it little later than the first; from one holder they would share that one's link. It is a hint: who does not
// get it so asks the holders, which it is told as well. Only workers chain that can read what is arriving at others: those with
// a GPU.

// relay is a worker that was told to fetch a generation of an object. Those of one object are in the order in which they were
// told.
type relay struct {
	worker     ids.WorkerID
	generation uint32
	// behind is where it reads it; 0: at a holder. Nobody else reads it there.
	behind ids.WorkerID
}

// chain puts a worker that is going to fetch an object behind another one that does, if there is one on its host.
func (m *Machine) chain(id ids.TaskID, t *task, w *worker) {
	if !w.relays || t.output < m.config.RelayBytes {
		return
	}
	list := m.relays[id]
	link := relay{worker: w.id, generation: t.attempt}
	for _, r := range list {
		if r.generation != t.attempt || slices.ContainsFunc(list, func(other relay) bool { return other.behind == r.worker }) {
			continue
		}
		if at := m.workerOf(r.worker); at.reachable() && at.host == w.host {
			link.behind = r.worker
		}
	}
	m.relays[id] = append(list, link)
}

// unchain notes that a worker has an object, or will not fetch it. Who was told to read it there does so if it is there, and is
// as good as one that reads at a holder: the worker may come again, behind that one.
func (m *Machine) unchain(id ids.TaskID, w *worker) {
	list, ok := m.relays[id]
	if !ok {
		return
	}
	left := list[:0]
	for _, r := range list {
		if r.behind == w.id {
			r.behind = 0
		}
		if r.worker != w.id {
			left = append(left, r)
		}
	}
	if len(left) == 0 {
		delete(m.relays, id)
	} else {
		m.relays[id] = left
	}
}

// relayOf says where a worker should read an object that it is going to fetch, 0 for at a holder, and whether another worker
// should read it there.
func (m *Machine) relayOf(id ids.TaskID, t *task, w *worker) (behind ids.WorkerID, relayed bool) {
	for _, r := range m.relays[id] {
		switch {
		case r.generation != t.attempt:
		case r.behind == w.id:
			relayed = true
		case r.worker == w.id && r.behind != 0 && m.workerOf(r.behind).reachable():
			behind = r.behind
		}
	}
	return behind, relayed
}

// relays checks the chains.
func (k *checker) relays() {
	m := k.m
	for _, id := range sortedKeys(m.relays) {
		list := m.relays[id]
		if len(list) == 0 {
			k.fail("%s has an empty chain", id)
		}
		for i, r := range list {
			w := m.workerOf(r.worker)
			if w == nil || !w.relays || !w.coming.has(id) {
				k.fail("%s is not going to fetch %s, and in its chain", r.worker, id)
				continue
			}
			for _, other := range list[:i] {
				if other.worker == r.worker || r.behind != 0 && other.behind == r.behind {
					k.fail("%s and %s are at one place of the chain of %s", other.worker, r.worker, id)
				}
			}
			if r.behind != 0 && !slices.ContainsFunc(list[:i], func(before relay) bool { return before.worker == r.behind }) {
				k.fail("%s reads %s behind %s, which was not told before", r.worker, id, r.behind)
			}
		}
	}
}
