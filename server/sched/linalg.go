package sched

import (
	"slices"

	"github.com/millrace/millrace/internal/ids"
)

// Linalg describes how a worker computes linear algebra on the CPU.
type Linalg struct {
	// Library describes the library for people. Empty: the worker does not compute linear algebra.
	Library string
	// File is the library's file on the worker's host; empty: there is no library, or no such file.
	File string
	// Cores is the number of processors that native operations may use together; 0 means all.
	Cores uint32
	// Ops are the native operations of linear algebra that the CPU computes.
	Ops []string
}

// madeBy records the library that computed a task, if its operation is one of linear algebra. The
// record outlives the worker, and costs nothing for other operations.
func (m *Machine) madeBy(id ids.TaskID, t *task, w *worker) {
	if spec := &m.ops[t.op].spec; spec.Kind == OpNative && slices.Contains(w.linalg.Ops, spec.Name) {
		m.linalg[id] = w.linalg.Library
		return
	}
	delete(m.linalg, id) // an earlier attempt may have run elsewhere
}
