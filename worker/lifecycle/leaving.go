package lifecycle

import "time"

// Pending says what is under way to a worker besides its attempts: peers are asked for leases, and
// objects of a dead worker are copied.
type Pending struct{ Leases, Rescues bool }

// Leaves says whether a worker that was asked to leave does so now: nothing runs or is under way,
// and nothing is lost with it. objects is the number of its objects, and agreed says that the
// scheduler has copies of all of them that it needs.
func (m *Machine) Leaves(x Pending, agreed bool, objects int) bool {
	return m.Idle(x) && (agreed || objects == 0)
}

// Idle says whether nothing runs, and nothing is under way.
func (m *Machine) Idle(x Pending) bool { return m.Len() == 0 && !x.Leases && !x.Rescues }

// LeavesAlone says whether a worker that was asked to leave does so without an agreement, because
// the scheduler has been unreachable for a time: then objects may be lost, but nothing that runs.
func (m *Machine) LeavesAlone(x Pending, unreachable time.Duration) bool {
	return unreachable >= AloneGrace && m.Len() == 0 && !x.Rescues
}

// Renewal says how far a worker has come that gives up all that it has of an earlier life of the
// scheduler.
type Renewal uint8

const (
	// Renewing: something of the earlier life is still active.
	Renewing Renewal = iota + 1
	// Renewable: nothing is active any more, and the rest can be forgotten.
	Renewable
	// RenewalHangs: something active has not ended in RenewLimit, and the worker must end.
	RenewalHangs
)

// Renewal returns how far the worker has come after a time.
func (m *Machine) Renewal(x Pending, took time.Duration) Renewal {
	switch {
	case !m.Busy() && !x.Leases && !x.Rescues:
		return Renewable
	case took > RenewLimit:
		return RenewalHangs
	}
	return Renewing
}
