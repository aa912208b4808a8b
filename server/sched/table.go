package sched

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"
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

// options are interned options of tasks. Slot 0 has the defaults and is never freed.
type options struct {
	Options
	tasks uint64
	text  string // canonical form, key of optionIndex
	// body is the canonical form without the priority. A submission may join a task with the same
	// body.
	body string
	// place is the canonical form of the options that restrict placement.
	place string
	rank  uint64 // top bits of the rank
}

// canonical encodes the options so that equal options give equal texts. body is the part without
// the priority, place the part that restricts placement.
func canonical(o *Options) (text, body, place string) {
	var p []byte
	for _, name := range sortedKeys(o.Resources) {
		p = append(p, 'r')
		p = binary.AppendUvarint(p, uint64(len(name)))
		p = append(p, name...)
		p = binary.BigEndian.AppendUint64(p, math.Float64bits(o.Resources[name]))
	}
	for _, s := range o.Workers {
		p = append(p, 'w')
		p = binary.AppendUvarint(p, uint64(s.Worker))
		for _, text := range []string{s.Name, s.Host} {
			p = binary.AppendUvarint(p, uint64(len(text)))
			p = append(p, text...)
		}
	}
	if o.AllowOtherWorkers && len(o.Workers) > 0 {
		p = append(p, 'o')
	}
	if o.NoWait {
		p = append(p, 'n')
	}
	if o.Slots > 1 {
		p = append(p, 's')
		p = binary.AppendUvarint(p, uint64(o.Slots))
	}
	t := slices.Clone(p)
	t = append(t, ' ')
	t = binary.AppendUvarint(t, uint64(o.MaxRetries))
	t = binary.AppendVarint(t, int64(o.RetryBackoff))
	t = binary.AppendVarint(t, int64(o.Timeout))
	t = binary.AppendUvarint(t, o.ExpectedOutputBytes)
	return string(binary.AppendVarint(t, int64(o.Priority))), string(t), string(p)
}

// rankOf returns the top 16 bits of a task's rank, from its priority. Priorities beyond ±32767 are
// clamped.
func rankOf(priority int32) uint64 {
	p := min(max(int64(priority), -32767), 32767)
	return uint64(32767-p) << 48
}

func (m *Machine) internOptions(o Options) uint32 {
	if o.Slots == 1 {
		o.Slots = 0
	}
	text, body, place := canonical(&o)
	if i, ok := m.optionIndex[text]; ok {
		return i
	}
	entry := options{Options: o, text: text, body: body, place: place, rank: rankOf(o.Priority)}
	var i uint32
	if k := len(m.freeOptions); k > 0 {
		i = m.freeOptions[k-1]
		m.freeOptions = m.freeOptions[:k-1]
		m.options[i] = entry
	} else {
		i = uint32(len(m.options))
		m.options = append(m.options, entry)
	}
	m.optionIndex[text] = i
	return i
}

// freeUnusedOptions frees the slot if no task uses it.
func (m *Machine) freeUnusedOptions(i uint32) {
	o := &m.options[i]
	if i == 0 || o.tasks > 0 || m.optionIndex[o.text] != i {
		return
	}
	delete(m.optionIndex, o.text)
	*o = options{}
	m.freeOptions = append(m.freeOptions, i)
}

// namespace is a set of keys. It is kept while a client or graph refers to it.
type namespace struct {
	name string
	keys keyIndex
	refs int
	// limits are those of the configuration, and step is the distance of places that follows from
	// the weight. tasks and bytes are those of the known tasks.
	limits       NamespaceLimits
	step         uint64
	tasks, bytes uint64
	// flow is that of the graphs without a client.
	flow flow
}

func (m *Machine) namespace(name string) *namespace {
	n := m.namespaces[name]
	if n == nil {
		limits, known := m.config.Namespaces[name]
		if !known {
			limits = m.config.Namespaces[otherNamespaces]
		}
		n = &namespace{name: name, limits: limits, step: uint64(onePlace / cmp.Or(limits.Weight, 1))}
		n.flow.ns = n
		m.namespaces[name] = n
	}
	return n
}

// add counts a task of the namespace, and remove takes that back.
func (n *namespace) add(t *task) {
	n.tasks++
	n.bytes += t.heldBytes()
}

func (n *namespace) remove(t *task) {
	n.tasks--
	n.bytes -= t.heldBytes()
}

func (m *Machine) unrefNamespace(n *namespace) {
	if n.refs--; n.refs == 0 {
		delete(m.namespaces, n.name)
	}
}

// holder keeps the objects of a set of tasks wanted.
type holder struct {
	kind HolderKind
	// id is the number of the client, dataset or graph. client is that of a client.
	id     uint64
	client ids.ClientID
	held   taskSet
}

func (h *holder) number() Holder { return Holder{h.kind, h.id} }

func (m *Machine) addHolder(h holder) uint32 {
	if k := len(m.freeHolders); k > 0 {
		i := m.freeHolders[k-1]
		m.freeHolders = m.freeHolders[:k-1]
		m.holders[i] = h
		return i
	}
	m.holders = append(m.holders, h)
	return uint32(len(m.holders) - 1)
}

// removeHolder ends all holds of a holder, in order of task ids, and frees its slot.
func (m *Machine) removeHolder(i uint32) {
	for _, id := range m.holders[i].held.members(nil) {
		m.endHold(i, id)
	}
	m.holders[i] = holder{}
	m.freeHolders = append(m.freeHolders, i)
}

// hold adds a hold and reports whether it is new.
func (m *Machine) hold(i uint32, id ids.TaskID) bool {
	if !m.holders[i].held.add(id) {
		return false
	}
	b, t := m.at(id)
	b.push(&t.holders, i)
	m.putHold(i, id)
	return true
}

// unhold ends a hold and reports whether there was one.
func (m *Machine) unhold(i uint32, id ids.TaskID) bool {
	if !m.endHold(i, id) {
		return false
	}
	m.putUnhold(i, id)
	return true
}

// endHold is unhold for a hold whose end is not reported, because its holder's is.
func (m *Machine) endHold(i uint32, id ids.TaskID) bool {
	if !m.holders[i].held.remove(id) {
		return false
	}
	b, t := m.at(id)
	b.drop(&t.holders, i)
	if m.orphaned(t) && t.flags&flagSettling == 0 {
		t.flags |= flagSettling
		m.settling = append(m.settling, id)
	}
	m.reconsider(id, t)
	return true
}

// orphaned reports that a DATA task waits for bytes that no client will send: the client that
// scatters holds the task, so without a holder there is no such client. A DATA task of a detached
// graph may never have had a hold; it is not affected, because the check follows the loss of a
// hold.
func (m *Machine) orphaned(t *task) bool {
	return t.holders == 0 && t.state == TaskWaiting && m.ops[t.op].spec.Kind == OpData
}
