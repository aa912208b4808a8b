package sched

import (
	"math"
	"slices"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/copies"
)

// tables are the tables as the machine of copies reads them.
type tables struct{ m *Machine }

// Object is part of copies.Tables.
func (s tables) Object(id ids.TaskID) (copies.Object, bool) {
	b, t := s.m.lookup(id)
	if t == nil {
		return copies.Object{}, false
	}
	o := copies.Object{
		Wanted: t.wanted(), Inline: b.inlineOf(uint64(id&blockMask)) != nil,
		Generation: ids.Attempt(t.attempt), Bytes: t.output, Held: t.holders != 0, Uses: t.unfinished,
	}
	switch t.state {
	case TaskSucceeded:
		o.State = copies.ObjectStored
	case TaskRescuing:
		o.State = copies.ObjectRescuing
	case TaskWaiting, TaskReady, TaskAssigned, TaskRunning, TaskFailed, TaskCancelled, TaskReleased:
	}
	return o, true
}

// Holders is part of copies.Tables.
func (s tables) Holders(id ids.TaskID, out []ids.WorkerID) []ids.WorkerID {
	b, t := s.m.lookup(id)
	if t == nil {
		return out
	}
	for l := t.replicas; l != 0; l = b.links[l].next {
		out = append(out, s.m.workers[b.links[l].value].id)
	}
	return out
}

// Worker is part of copies.Tables.
func (s tables) Worker(id ids.WorkerID) (copies.Worker, bool) {
	w := s.m.workerOf(id)
	if w == nil {
		return copies.Worker{}, false
	}
	return w.view(), true
}

// Workers is part of copies.Tables.
func (s tables) Workers() []copies.Worker {
	workers := make([]copies.Worker, len(s.m.order))
	for i, w := range s.m.order {
		workers[i] = w.view()
	}
	return workers
}

func (w *worker) view() copies.Worker {
	room := math.Inf(1)
	if w.memory > 0 {
		room = float64(w.memory) - float64(w.memoryUsed) + float64(w.memoryEvictable) - float64(w.added) - float64(w.fetchingBytes)
	}
	return copies.Worker{
		ID: w.id, Name: w.name, State: w.state, Native: slices.Contains(w.executors, "native"), Supervised: w.supervised,
		MemoryBytes: w.memory, ClaimedBytes: w.memoryUsed + w.fetchingBytes, Room: room,
		HeldBytes: w.heldBytes, Objects: w.objects.count, Assigned: w.assigned,
	}
}

// Objects is part of copies.Tables.
func (s tables) Objects(id ids.WorkerID) []ids.TaskID {
	if w := s.m.workerOf(id); w != nil {
		return w.objects.members(nil)
	}
	return nil
}

// Holds is part of copies.Tables.
func (s tables) Holds(worker ids.WorkerID, id ids.TaskID) bool {
	w := s.m.workerOf(worker)
	return w != nil && w.objects.has(id)
}

// Key is part of copies.Tables.
func (s tables) Key(id ids.TaskID) (key, namespace string) {
	b, t := s.m.lookup(id)
	if t == nil {
		return "", ""
	}
	return string(b.keyOf(t)), s.m.graphs[t.graph].ns.name
}

// Attempt is part of copies.Tables.
func (s tables) Attempt(task ids.TaskID) (active bool, at ids.WorkerID) {
	_, t := s.m.lookup(task)
	if t == nil {
		return false, 0
	}
	if t.worker != 0 {
		at = s.m.workers[t.worker-1].id
	}
	return t.state.active(), at
}

// scannedUses bounds the dependents that are read to tell whether an object is in use.
const scannedUses = 1000

// Used is part of copies.Tables.
func (s tables) Used(id, except ids.TaskID, bound bool) bool {
	_, t := s.m.lookup(id)
	if t == nil || t.unfinished == 0 {
		return false
	}
	scanned := 0
	for r := t.dependents; r != 0; {
		id, _, ct, e := s.m.consumerOf(r)
		if scanned++; scanned > scannedUses {
			return true
		}
		if id != except && ct.state.active() {
			o := &s.m.options[ct.options]
			if ct.state.assigned() || bound && len(o.Workers) > 0 && !o.AllowOtherWorkers {
				return true
			}
		}
		r = e.next
	}
	return false
}

// BytesPerMicro is part of copies.Tables.
func (s tables) BytesPerMicro(from, to ids.WorkerID) float64 { return s.m.rate(from, to).bytesPerMicro }
