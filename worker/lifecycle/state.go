package lifecycle

import "slices"

// State is the stage of an attempt.
type State uint8

// The states. A pre-assigned attempt begins as PreAssigned, any other as Admitting, or as Queued if
// it needs nothing.
const (
	// Waiting: the memory that it needs was requested and is not granted yet.
	Waiting State = iota + 1
	// Fetching: some inputs are on their way.
	Fetching
	// Queued: it can run as soon as there is a slot for it.
	Queued
	// Running: it was handed to a slot.
	Running
	// PreAssigned: its function is still to arrive, or some of its inputs are still to be made.
	PreAssigned
	// Admitting: its inputs are being looked up.
	Admitting
	// Leasing: it has asked peers to lend it inputs.
	Leasing
	// Pausing: it asks peers again after a pause.
	Pausing
)

// String returns the state's name as the API spells it.
func (s State) String() string {
	switch s {
	case Waiting:
		return "WAITING"
	case Fetching:
		return "FETCHING"
	case Queued:
		return "QUEUED"
	case Running:
		return "RUNNING"
	case PreAssigned:
		return "PRE-ASSIGNED"
	case Admitting:
		return "ADMITTING"
	case Leasing:
		return "LEASING"
	case Pausing:
		return "PAUSING"
	}
	return "UNKNOWN"
}

// next returns the states that a state leads to; 0 stands for the assignment. The package comment
// shows them. An attempt is WAITING again, or ADMITTING or PAUSING, after it had more: it has given
// that back, because it could not go on with it.
func (s State) next() []State {
	switch s {
	case 0:
		return []State{PreAssigned, Admitting, Waiting, Queued}
	case PreAssigned:
		return []State{Admitting, Waiting, Queued}
	case Admitting:
		return []State{Leasing, Waiting, Fetching, Queued}
	case Leasing:
		return []State{Admitting, Pausing, Queued}
	case Pausing:
		return []State{Admitting}
	case Waiting:
		return []State{Admitting, Leasing, Pausing, Fetching, Queued}
	case Fetching:
		return []State{Leasing, Waiting, Queued}
	case Queued:
		return []State{Waiting, Running}
	case Running:
		return []State{Admitting, Pausing, Waiting, Queued}
	}
	return nil
}

// leadsTo says whether an attempt may go from a state to another.
func (s State) leadsTo(next State) bool { return s == next || slices.Contains(s.next(), next) }
