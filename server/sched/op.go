package sched

import (
	"math"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// op is an interned op. The slot of an op without tasks is kept for a while, to keep the learned
// averages.
type op struct {
	spec  OpSpec
	tasks uint64
	// needs is the executor that a worker must offer; empty for DATA.
	needs string
	// runMicros and outputBytes are moving averages over samples finished attempts.
	runMicros   float64
	outputBytes float64
	samples     uint32
	// times has the counts of ended attempts, which ops of one name share; nil before the first.
	times *OpTimes
	// retired means that the op is in Machine.unused.
	retired bool
}

// unusedOps bounds the interned ops kept without tasks.
const unusedOps = 4096

func executorOf(s OpSpec) string {
	switch s.Kind {
	case OpNative:
		return "native"
	case OpPythonImport, OpPythonPickle:
		return "python"
	case OpExec:
		name, _, _ := strings.Cut(s.Name, "/")
		return name
	case OpData:
		return ""
	}
	return ""
}

func (m *Machine) internOp(spec OpSpec) uint32 {
	if i, ok := m.opIndex[spec]; ok {
		return i
	}
	o := op{spec: spec, needs: executorOf(spec)}
	var i uint32
	if k := len(m.freeOps); k > 0 {
		i = m.freeOps[k-1]
		m.freeOps = m.freeOps[:k-1]
		m.ops[i] = o
	} else {
		i = uint32(len(m.ops))
		m.ops = append(m.ops, o)
	}
	m.opIndex[spec] = i
	return i
}

func (m *Machine) useOp(i uint32) {
	o := &m.ops[i]
	if o.tasks++; o.tasks == 1 && o.spec.Function != (ids.FunctionHash{}) {
		m.functions[o.spec.Function]++
	}
}

func (m *Machine) unuseOp(i uint32) {
	o := &m.ops[i]
	if o.tasks--; o.tasks > 0 {
		return
	}
	if f := o.spec.Function; f != (ids.FunctionHash{}) {
		if m.functions[f]--; m.functions[f] == 0 {
			delete(m.functions, f)
			m.emit(Effect{Kind: EffectFunctionUnused, Function: f})
		}
	}
	m.retireOp(i)
}

// retireOp notes that an op has no tasks. It frees the slots of the ops that have been without
// tasks for the longest time.
func (m *Machine) retireOp(i uint32) {
	if m.ops[i].retired {
		return
	}
	m.ops[i].retired = true
	m.unused = append(m.unused, i)
	for len(m.unused) > unusedOps {
		old := m.unused[0]
		m.unused = m.unused[1:]
		o := &m.ops[old]
		o.retired = false
		if o.tasks == 0 {
			delete(m.opIndex, o.spec)
			*o = op{}
			m.freeOps = append(m.freeOps, old)
		}
	}
}

// learn adds a finished attempt to the averages.
func (o *op) learn(run time.Duration, bytes uint64) {
	micros := float64(run) / float64(time.Microsecond)
	if o.samples == 0 {
		o.runMicros, o.outputBytes = micros, float64(bytes)
	} else {
		const weight = 0.125
		o.runMicros += (micros - o.runMicros) * weight
		o.outputBytes += (float64(bytes) - o.outputBytes) * weight
	}
	if o.samples < math.MaxUint32 {
		o.samples++
	}
}

// unknownRunMicros is the assumed run time of an op that has never finished.
const unknownRunMicros = 2000

func (o *op) estimate() float64 {
	if o.samples == 0 {
		return unknownRunMicros
	}
	// Even if the op does nothing, a worker needs about a microsecond per task.
	return max(o.runMicros, 1)
}
