package sched

import "github.com/millrace/millrace/internal/ids"

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

func (m *Machine) putHold(i uint32, id ids.TaskID) {
	f := &m.facts
	if !f.on {
		return
	}
	h := m.holders[i].number()
	r := lastOf[*HoldsPut](f)
	if r == nil || r.Holder != h {
		r = &HoldsPut{Holder: h}
		f.rows = append(f.rows, r)
	}
	r.Tasks = append(r.Tasks, id)
}

func (m *Machine) putUnhold(i uint32, id ids.TaskID) {
	f := &m.facts
	if !f.on {
		return
	}
	h := m.holders[i].number()
	r := lastOf[*HoldsDeleted](f)
	if r == nil || r.Holder != h {
		r = &HoldsDeleted{Holder: h}
		f.rows = append(f.rows, r)
	}
	r.Tasks = append(r.Tasks, id)
}
