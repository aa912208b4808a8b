// Package functions is a Machine: it keeps the pickled functions that tasks refer to. It decides
// when a worker must be sent a function, and which workers must forget one that no task refers to.
//
// A worker is sent a function once. It keeps functions when its connection breaks, and may not have
// got the last messages of that session; so it says which functions it has when it opens the next
// one.
package functions

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/invariant"
)

// Function is a pickled function.
type Function struct {
	Hash    ids.FunctionHash
	Payload []byte
	// Language is the language and version that can run it; empty: unknown.
	Language string
}

// Machine is not safe for concurrent use.
type Machine struct {
	byHash map[ids.FunctionHash]*function
	// bytes is the size of all functions.
	bytes   uint64
	workers map[ids.WorkerID]*worker
}

// function is a function to which tasks refer.
type function struct {
	Function
	// at lists the workers that have received it or said so, in the order in which they did.
	at []ids.WorkerID
}

// worker is one that has opened a session and is not lost.
type worker struct {
	// sent are the functions that it had when it opened the last session, or was sent in it.
	sent map[ids.FunctionHash]struct{}
}

// New returns a machine without functions.
func New() *Machine {
	return &Machine{byHash: map[ids.FunctionHash]*function{}, workers: map[ids.WorkerID]*worker{}}
}

// Bytes returns the size of all functions.
func (m *Machine) Bytes() uint64 { return m.bytes }

// Len returns the number of functions.
func (m *Machine) Len() int { return len(m.byHash) }

// Hashes returns the hashes of all functions, in order.
func (m *Machine) Hashes() []ids.FunctionHash {
	hashes := make([]ids.FunctionHash, 0, len(m.byHash))
	// order-free: sorted below.
	for hash := range m.byHash {
		hashes = append(hashes, hash)
	}
	slices.SortFunc(hashes, func(a, b ids.FunctionHash) int { return bytes.Compare(a[:], b[:]) })
	return hashes
}

// Get returns a function; false: it is not known.
func (m *Machine) Get(hash ids.FunctionHash) (Function, bool) {
	f := m.byHash[hash]
	if f == nil {
		return Function{}, false
	}
	return f.Function, true
}

// Take stores those of the needed functions that are not known, and returns them. If the brought
// ones do not include all of these, it stores none and returns the missing ones.
func (m *Machine) Take(brought []Function, needed []ids.FunctionHash) (added, missing []ids.FunctionHash) {
	carried := make(map[ids.FunctionHash]Function, len(brought))
	for _, f := range brought {
		carried[f.Hash] = f
	}
	for _, hash := range needed {
		if _, known := m.byHash[hash]; known || slices.Contains(added, hash) {
			continue
		}
		if _, comes := carried[hash]; !comes {
			missing = append(missing, hash)
			continue
		}
		added = append(added, hash)
	}
	if len(missing) > 0 {
		return nil, missing
	}
	for _, hash := range added {
		m.byHash[hash] = &function{Function: carried[hash]}
		m.bytes += uint64(len(carried[hash].Payload))
	}
	m.verify()
	return added, nil
}

// Forget forgets functions that Take has stored for a submission that was then refused.
func (m *Machine) Forget(hashes []ids.FunctionHash) {
	for _, hash := range hashes {
		m.remove(hash)
	}
	m.verify()
}

// Opened means that a worker has opened a session, and has functions from earlier ones. It returns
// those that the worker must forget.
func (m *Machine) Opened(id ids.WorkerID, has []ids.FunctionHash) (forget []ids.FunctionHash) {
	w := &worker{sent: make(map[ids.FunctionHash]struct{}, len(has))}
	m.workers[id] = w
	for _, hash := range has {
		if stored := m.byHash[hash]; stored == nil {
			forget = append(forget, hash)
		} else {
			m.sent(w, id, stored)
		}
	}
	m.verify()
	return forget
}

// sent notes that a worker has a function.
func (m *Machine) sent(w *worker, id ids.WorkerID, f *function) {
	w.sent[f.Hash] = struct{}{}
	if !slices.Contains(f.at, id) {
		f.at = append(f.at, id)
	}
}

// Gone means that a worker is lost.
func (m *Machine) Gone(id ids.WorkerID) {
	delete(m.workers, id)
	m.verify()
}

// Send returns a function if it must be sent to a worker: it was not sent in this session, or the
// worker reports that it lacks it (again). known is false if no task refers to the function.
func (m *Machine) Send(id ids.WorkerID, hash ids.FunctionHash, again bool) (f Function, send, known bool) {
	w, stored := m.workers[id], m.byHash[hash]
	if w == nil || stored == nil {
		return Function{}, false, stored != nil
	}
	if _, sent := w.sent[hash]; sent && !again {
		return Function{}, false, true
	}
	m.sent(w, id, stored)
	m.verify()
	return stored.Function, true, true
}

// Drop forgets a function to which no task refers any more. It returns the workers that must forget
// it, too; those that are disconnected are told so when they open a session.
func (m *Machine) Drop(hash ids.FunctionHash) (at []ids.WorkerID) {
	for _, id := range m.remove(hash) {
		w := m.workers[id]
		if w == nil {
			continue
		}
		delete(w.sent, hash)
		at = append(at, id)
	}
	m.verify()
	return at
}

// remove forgets a function, and returns the workers that have received it.
func (m *Machine) remove(hash ids.FunctionHash) []ids.WorkerID {
	f := m.byHash[hash]
	if f == nil {
		return nil
	}
	m.bytes -= uint64(len(f.Payload))
	delete(m.byHash, hash)
	return f.at
}

func (m *Machine) verify() {
	if invariant.Enabled {
		if err := m.Check(); err != nil {
			panic(err)
		}
	}
}

// Check returns an error if an invariant is broken.
func (m *Machine) Check() error {
	var problems []error
	fail := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("functions: "+format, args...))
	}
	bytes := uint64(0)
	// order-free: the order changes only the order of the problems.
	for hash, f := range m.byHash {
		bytes += uint64(len(f.Payload))
		if f.Hash != hash {
			fail("function %s is recorded as %s", f.Hash, hash)
		}
	}
	if bytes != m.bytes {
		fail("the functions have %d bytes, and counted are %d", bytes, m.bytes)
	}
	// order-free: the order changes only the order of the problems.
	for id, w := range m.workers {
		// order-free: the order changes only the order of the problems.
		for hash := range w.sent {
			if f := m.byHash[hash]; f == nil || !slices.Contains(f.at, id) {
				fail("worker %d was sent function %s, which is not recorded", id, hash)
			}
		}
	}
	return errors.Join(problems...)
}
