package sched

import (
	"slices"

	"github.com/millrace/millrace/internal/ids"
)

// Broadcast chains: when several workers of one host are to fetch the same large object at nearly
// the same time, each reads it from the one before while it is still arriving there. The first
// reads from a holder, the second from the first, the third from the second. So each link carries
// the object once, and the last worker has it little later than the first; if all read from one
// holder, they would share that holder's link. A place in the chain is only a hint: the assignment
// also names the holders, and a worker that cannot read in the chain asks them. Only workers with
// Relays set can read an object that is still arriving at another worker: those with a GPU.

// relay is a worker in the broadcast chain of an object: it was told to fetch one generation. The
// relays of an object are in the order in which they were told.
type relay struct {
	worker     ids.WorkerID
	generation uint32
	// behind is the upstream: the worker from which it reads; 0: a holder. Each worker has at most
	// one reader in the chain.
	behind ids.WorkerID
}

// chain appends a worker to the broadcast chain of an object that it is going to fetch. Its
// upstream is the last worker of the chain on its host that has no reader yet.
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

// unchain removes a worker that has the object, or will not fetch it, from the chain. Its reader
// still reads at this worker if the object is there, but now counts as a reader of a holder. So the
// worker may join the chain again later, after that reader.
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

// relayOf returns the upstream from which a worker should read an object that it is going to fetch
// (0: a holder), and whether another worker should read it at this worker.
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

// relays checks the broadcast chains.
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
