package sched

import "cmp"

// NamespaceLimits are the share and the limits of a namespace.
type NamespaceLimits struct {
	// Weight is the share of each of its clients in relation to those of other namespaces, from
	// 0.01 to 1000. 0: 1.
	Weight float64
	// Tasks and Bytes bound the tasks that are known, and the memory of their records. 0: no bound.
	Tasks, Bytes uint64
}

// otherNamespaces is the name in Config.Namespaces for all that are not in it.
const otherNamespaces = "*"

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
