package sched

// Shares. Each task has a place in one order, which is given to it when it is submitted. If places
// went by time alone, a client with ten tasks would wait for the 300,000 of another one. So clients
// are flows with places of their own: the first task of an idle flow gets the place at which the
// machine is, and each further one the next, at a distance that is larger the smaller the weight of
// its namespace is (start-time fair queueing). Flows with tasks then take turns by weight. Graphs
// without a client share one flow of their namespace.
//
// Shares count tasks, not their run times. Priorities come before places, for all flows together.

// placeBits are the bits of fractions of places, and onePlace is the distance of tasks of a flow
// that has weight 1.
const (
	placeBits = 16
	onePlace  = 1 << placeBits
)

// flow is what takes turns: a client, or the graphs of a namespace that have none. Its places are
// in units of 1/onePlace.
type flow struct {
	ns *namespace
	// graphs counts the graphs with tasks that have not ended.
	graphs int
	// served is the place of its next task, if its tasks are assigned in order, and finish that of
	// the next task that is submitted.
	served, finish uint64
}

// nextPlace returns the place of the first new task of a flow.
func (m *Machine) nextPlace(f *flow) uint64 {
	if f.graphs > 0 {
		return max(m.served, f.finish)
	}
	return m.served
}

// extend gives a flow the places of so many new tasks, the first of which is that of nextPlace.
func (f *flow) extend(start, tasks uint64) {
	if f.graphs == 0 {
		f.served = start
	}
	f.finish = start + tasks*f.ns.step
}

// serve notes that a task of a flow is assigned. The machine is at the place of that task, not at
// that of the flow's next one, which may be far away.
func (m *Machine) serve(f *flow) {
	m.served = max(m.served, f.served)
	f.served = min(f.served+f.ns.step, f.finish)
}

// deriveFlows gives the flows the places that follow from their tasks, after a restart. The machine
// goes on at the flow that has waited for longest.
func (m *Machine) deriveFlows() {
	left := map[*flow]uint64{}
	last := m.served
	for _, g := range m.graphs {
		if g == nil {
			continue
		}
		last = max(last, g.flow.finish)
		if g.active > 0 {
			left[g.flow] += g.active
		}
	}
	m.served = last
	// order-free: each flow has its own places, and the lowest of them counts.
	for f, tasks := range left {
		f.finish = max(f.finish, firstRank<<placeBits)
		f.served = max(firstRank<<placeBits, f.finish-min(f.finish, tasks*f.ns.step))
		m.served = min(m.served, f.served)
	}
}
