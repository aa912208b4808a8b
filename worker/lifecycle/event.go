package lifecycle

import (
	"cmp"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// Ref names one attempt of a task.
type Ref struct {
	Task    ids.TaskID
	Attempt ids.Attempt
}

// String returns task and attempt, as in t42/a1.
func (r Ref) String() string { return r.Task.String() + "/" + r.Attempt.String() }

func (r Ref) compare(b Ref) int {
	return cmp.Or(cmp.Compare(r.Task, b.Task), cmp.Compare(r.Attempt, b.Attempt))
}

// Object names one generation of a task's result.
type Object struct {
	Task       ids.TaskID
	Generation ids.Attempt
}

// String returns task and generation, as in t42/a1.
func (o Object) String() string { return o.Task.String() + "/" + o.Generation.String() }

// FetchID names one stream of objects from a peer.
type FetchID uint64

// ReservationID names memory that is set aside, or asked for.
type ReservationID uint64

// Event is something that happened.
type Event interface{ event() }

type (
	// Assigned: the scheduler wants an attempt to run. One that is here already is
	// a duplicate and ignored.
	Assigned struct {
		Ref  Ref
		Rank uint64
		// Slots and Resources are what it occupies while it runs. More slots than
		// there are means all.
		Slots     uint32
		Resources map[string]float64
		// Runner is the kind of lane it needs: "native", "python", ...
		Runner string
		// Estimate is how long it will run, 0 if that is not known well.
		Estimate time.Duration
		// OutputBytes is how large its result will be, 0 if unknown.
		OutputBytes uint64
		// Admitted: it was ahead, and this answers Admit. Without effect if it is
		// not here any more.
		Admitted bool
		// Inputs are those that are pinned for it already, and those that are not
		// here. Inputs that came with the assignment, and those that are read at a peer, are
		// left out.
		Inputs []Input
	}
	// AssignedAhead: the scheduler wants an attempt to run on results that others
	// of its assignments here are to make, or other workers. It is admitted when
	// they have, and dropped when one of those here ends otherwise or is not known.
	// One that is here already is a duplicate and ignored.
	AssignedAhead struct {
		Ref Ref
		// Makers are those others here, Awaited is what comes from elsewhere: at least
		// one of the two.
		Makers  []Ref
		Awaited []Awaited
	}
	// Made: an object that was awaited is there.
	Made struct{ Object Object }
	// NeverMade: its maker cannot tell, or knows nothing of it.
	NeverMade struct{ Object Object }
	// Registered: the worker has this number now.
	Registered struct{ Self ids.WorkerID }
	// Reserved: memory is set aside, as asked by Reserve. With Loading, some of the
	// inputs are still being brought into place, and Loaded or InputLost follows.
	Reserved struct {
		Reservation ReservationID
		Loading     bool
	}
	// Loaded: all inputs of a reservation that are here are in place, and stay so.
	Loaded struct{ Reservation ReservationID }
	// InputLost: an input was here and is not any more. An attempt that was handed
	// to a lane has not begun.
	InputLost struct {
		Ref    Ref
		Object Object
	}
	// InputAway: an attempt was handed to a lane and has not begun, because an input
	// is not in place.
	InputAway struct{ Ref Ref }
	// NotLent: an attempt was handed to a lane and has not begun, because an input that
	// it was to read at a peer, and that Assigned hence left out, cannot be read there.
	// It is admitted anew: the answer lists that input.
	NotLent struct{ Ref Ref }
	// ReserveFailed: it cannot be.
	ReserveFailed struct {
		Reservation ReservationID
		Message     string
	}
	// InputFetched: an object has arrived, and stays until it is unpinned or
	// dropped.
	InputFetched struct {
		Fetch  FetchID
		Object Object
		// Bytes is its real size.
		Bytes uint64
	}
	// FetchFailed: an object of a fetch did not come.
	FetchFailed struct {
		Fetch  FetchID
		Object Object
		// Missing: the peer does not hold it.
		Missing bool
		// NoRoom: the peer has it, and there was no room for it here.
		NoRoom  bool
		Message string
	}
	// FetchEnded: the stream has ended. Objects of it for which nothing was said
	// have failed with its message.
	FetchEnded struct {
		Fetch   FetchID
		Message string
	}
	// RunEnded: a lane is done with an attempt. Succeeded tells whether there is a
	// result to publish; otherwise Outcome says what to report.
	RunEnded struct {
		Ref       Ref
		Succeeded bool
		Outcome   Outcome
	}
	// RunReturned: a lane gives an attempt back that it had not begun.
	RunReturned struct{ Ref Ref }
	// NoRoom: an attempt did not begin because its result needs memory that is not
	// free.
	NoRoom struct {
		Ref   Ref
		Bytes []uint64
	}
	// Retracted: the scheduler wants an attempt back. One that runs, or is not
	// known, is refused.
	Retracted struct{ Ref Ref }
	// Cancelled: the scheduler does not want an attempt any more. One that is not
	// known has been reported before.
	Cancelled struct{ Ref Ref }
	// Released: nobody needs an object.
	Released struct{ Object Object }
	// Ticked: some time has passed; a few times in StartedAfter while anything
	// runs.
	Ticked struct{}
)

// Awaited is an object that another worker is to make.
type Awaited struct {
	Object Object
	Peer   ids.WorkerID
}

// Input is one input of an assignment.
type Input struct {
	Object Object
	Bytes  uint64
	// Pinned: it is here, and kept here for the task. Away: its bytes may be moved,
	// or have been, until a reservation with it among its inputs is loaded.
	Pinned, Away bool
	// Holders have it, best first, if it is not here.
	Holders []ids.WorkerID
	// Relay, if not 0, fetches it too: it is to be read there, while it arrives, before
	// holders are asked. Relayed: another worker is to read it here, while it arrives.
	Relay   ids.WorkerID
	Relayed bool
}

func (*Assigned) event()      {}
func (*AssignedAhead) event() {}
func (Made) event()           {}
func (NeverMade) event()      {}
func (Registered) event()     {}
func (Reserved) event()       {}
func (ReserveFailed) event()  {}
func (Loaded) event()         {}
func (InputLost) event()      {}
func (InputAway) event()      {}
func (NotLent) event()        {}
func (InputFetched) event()   {}
func (FetchFailed) event()    {}
func (FetchEnded) event()     {}
func (RunEnded) event()       {}
func (RunReturned) event()    {}
func (NoRoom) event()         {}
func (Retracted) event()      {}
func (Cancelled) event()      {}
func (Released) event()       {}
func (Ticked) event()         {}

// Outcome is what became of an attempt. The values equal those of the API.
type Outcome uint8

// The outcomes.
const (
	Started          Outcome = 1
	Succeeded        Outcome = 2
	Failed           Outcome = 3
	InputUnreachable Outcome = 4
	GivenBack        Outcome = 5
	Dropped          Outcome = 6
	RetractRefused   Outcome = 7
	ExecutorDied     Outcome = 8
)

// String returns the name in small letters.
func (o Outcome) String() string {
	switch o {
	case Started:
		return "started"
	case Succeeded:
		return "succeeded"
	case Failed:
		return "failed"
	case InputUnreachable:
		return "input unreachable"
	case GivenBack:
		return "given back"
	case Dropped:
		return "dropped"
	case RetractRefused:
		return "retract refused"
	case ExecutorDied:
		return "executor died"
	}
	return "unknown"
}

// Effect is an order.
type Effect interface{ effect() }

type (
	// Admit: all results that an attempt was ahead of are here, published, or it is to
	// begin anew: answer with Assigned, which can say now where its inputs are.
	Admit struct{ Ref Ref }
	// Await: ask a peer to tell when it has made an object, and answer with Made or
	// NeverMade.
	Await struct{ Awaited }
	// Unawait: nobody waits for it any more.
	Unawait struct{ Awaited }
	// Reserve: set memory aside, all of it or none, and answer with Reserved or
	// ReserveFailed. Those of the inputs that are here are brought into place in the
	// same step, and stay there until Unreserve.
	Reserve struct {
		Reservation ReservationID
		Ref         Ref
		Bytes       []uint64
		Inputs      []Object
	}
	// Unreserve: the reservation is not needed any more, granted or not.
	Unreserve struct{ Reservation ReservationID }
	// StartFetch: read objects from a peer into the memory of their reservations,
	// and answer with InputFetched or FetchFailed for each, then FetchEnded. Follow: the
	// peer is fetching them itself, or will be.
	StartFetch struct {
		Fetch   FetchID
		Peer    ids.WorkerID
		Follow  bool
		Objects []FetchObject
	}
	// PinInput: keep a fetched object for an attempt; in place, if a reservation is
	// named.
	PinInput struct {
		Ref         Ref
		Object      Object
		Reservation ReservationID
	}
	// Loosen: an attempt waits for memory, and its input may be moved meanwhile.
	Loosen struct {
		Ref    Ref
		Object Object
	}
	// Unpin: it is not needed for that attempt any more.
	Unpin struct {
		Ref    Ref
		Object Object
	}
	// StartRun: hand an attempt to a lane.
	StartRun struct {
		Ref    Ref
		Runner string
		Lane   int
		// Reservation is the memory set aside for its result, 0 if none.
		Reservation ReservationID
	}
	// StopRun: make a running attempt end; RunEnded or RunReturned follows.
	StopRun struct{ Ref Ref }
	// TakeBack: make the lane return an attempt that it has not begun; nothing
	// follows if it has.
	TakeBack struct{ Ref Ref }
	// Publish: report an attempt's result, which is stored.
	Publish struct{ Ref Ref }
	// Discard: an attempt was cancelled and succeeded all the same: its result is
	// to be dropped. The report follows.
	Discard struct{ Ref Ref }
	// Report: tell the scheduler what became of an attempt that has no result. For
	// Failed and ExecutorDied without a Reason, the run itself said why.
	Report struct {
		Ref         Ref
		Outcome     Outcome
		Reason      string
		Message     string
		Unreachable []Unreachable
	}
	// Gained: tell the scheduler that a fetched copy is here.
	Gained struct {
		Object Object
		Bytes  uint64
	}
	// Drop: nobody needs an object; its bytes go with their last pin.
	Drop struct{ Object Object }
)

// FetchObject is one object of a fetch.
type FetchObject struct {
	Object      Object
	Reservation ReservationID
	// Relayed is what Input says.
	Relayed bool
}

// Unreachable is an input that did not come, and from whom.
type Unreachable struct {
	Object    Object
	FailedAt  []ids.WorkerID
	MissingAt []ids.WorkerID
}

func (Admit) effect()      {}
func (Await) effect()      {}
func (Unawait) effect()    {}
func (Reserve) effect()    {}
func (Unreserve) effect()  {}
func (StartFetch) effect() {}
func (PinInput) effect()   {}
func (Loosen) effect()     {}
func (Unpin) effect()      {}
func (StartRun) effect()   {}
func (StopRun) effect()    {}
func (TakeBack) effect()   {}
func (Publish) effect()    {}
func (Discard) effect()    {}
func (Report) effect()     {}
func (Gained) effect()     {}
func (Drop) effect()       {}
