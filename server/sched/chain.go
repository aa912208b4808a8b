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
// PipelinedReads set can read an object that is still arriving at another worker: those with a GPU.

// chainLink is a worker in the broadcast chain of an object: it was told to fetch one generation.
// The links of an object are in the order in which the workers were told.
type chainLink struct {
	worker     ids.WorkerID
	generation uint32
	// upstream is the worker from which it reads; 0: a holder. Each worker has at most one reader
	// in the chain.
	upstream ids.WorkerID
}

// joinChain appends a worker to the broadcast chain of an object that it is going to fetch. Its
// upstream is the last worker of the chain on its host that has no reader yet.
func (m *Machine) joinChain(id ids.TaskID, t *task, w *worker) {
	if !w.pipelined || t.output < m.config.ChainBytes {
		return
	}
	list := m.chains[id]
	link := chainLink{worker: w.id, generation: t.attempt}
	for _, r := range list {
		if r.generation != t.attempt || slices.ContainsFunc(list, func(other chainLink) bool { return other.upstream == r.worker }) {
			continue
		}
		if at := m.workerOf(r.worker); at.reachable() && at.host == w.host {
			link.upstream = r.worker
		}
	}
	m.chains[id] = append(list, link)
}

// leaveChain removes a worker that has the object, or will not fetch it, from the chain. Its reader
// still reads at this worker if the object is there, but now counts as a reader of a holder. So the
// worker may join the chain again later, after that reader.
func (m *Machine) leaveChain(id ids.TaskID, w *worker) {
	list, ok := m.chains[id]
	if !ok {
		return
	}
	left := list[:0]
	for _, r := range list {
		if r.upstream == w.id {
			r.upstream = 0
		}
		if r.worker != w.id {
			left = append(left, r)
		}
	}
	if len(left) == 0 {
		delete(m.chains, id)
	} else {
		m.chains[id] = left
	}
}

// upstreamOf returns the upstream from which a worker should read an object that it is going to
// fetch (0: a holder), and whether another worker should read it at this worker.
func (m *Machine) upstreamOf(id ids.TaskID, t *task, w *worker) (upstream ids.WorkerID, downstream bool) {
	for _, r := range m.chains[id] {
		switch {
		case r.generation != t.attempt:
		case r.upstream == w.id:
			downstream = true
		case r.worker == w.id && r.upstream != 0 && m.workerOf(r.upstream).reachable():
			upstream = r.upstream
		}
	}
	return upstream, downstream
}
