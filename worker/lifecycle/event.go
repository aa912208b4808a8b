package lifecycle

import (
	"cmp"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// Ref identifies one attempt of a task.
type Ref struct {
	Task    ids.TaskID
	Attempt ids.Attempt
}

// String returns task and attempt, as in t42/a1.
func (r Ref) String() string { return r.Task.String() + "/" + r.Attempt.String() }

func (r Ref) compare(b Ref) int {
	return cmp.Or(cmp.Compare(r.Task, b.Task), cmp.Compare(r.Attempt, b.Attempt))
}

// Object identifies one generation of a task's result, or one item of it. An item that is fetched
// serves the attempts that wait for it, and is dropped then: the scheduler knows of whole objects
// only.
type Object struct {
	Task       ids.TaskID
	Generation ids.Attempt
	Item       ids.Item
}

// String returns task and generation, as in t42/a1, and the item, if any, as in t42/a1/i3.
func (o Object) String() string {
	return o.Task.String() + "/" + o.Generation.String() + o.Item.String()
}

// FetchID identifies one stream of objects from a peer.
type FetchID uint64

// ReservationID identifies memory that is reserved or requested.
type ReservationID uint64

// Event is something that happened.
type Event interface{ event() }

type (
	// Assigned: the scheduler wants an attempt to run. An attempt that is known already is a
	// duplicate and ignored. If other attempts here, or other workers, are still to make some of
	// its inputs (pre-assignment), it is admitted when all of them are made. It is dropped if one
	// of these attempts does not succeed or is unknown.
	Assigned struct {
		Ref  Ref
		Rank uint64
		// Slots and Resources are occupied while it runs. A number of slots above the worker's
		// means all of them.
		Slots     uint32
		Resources map[string]float64
		// Runner is the kind of slot that it needs: "native", "python", ...
		Runner string
		// Prepares: its process may have to start and to load what the function needs, after the
		// attempt was handed to a slot. Called follows.
		Prepares bool
		// Estimate is its expected run time, 0 if that is not known well.
		Estimate time.Duration
		// OutputBytes is the expected size of its result, 0 if unknown.
		OutputBytes uint64
		// Inputs are its inputs, in the order of its arguments. The machine takes the list over.
		Inputs []Input
		// Reads is how its operation reads inputs. Replicates: it only makes copies of them, so it
		// never leases.
		Reads      Reading
		Replicates bool
		// Function is the function that its process needs, if it has not arrived yet.
		Function Function
		// Makers are the attempts here that make inputs, and Awaited the objects that other workers
		// make.
		Makers  []Ref
		Awaited []Awaited
	}
	// Admitted answers Admit. It has no effect if the attempt has ended or does not wait for the
	// answer by now, except that the pins are released.
	Admitted struct {
		Ref Ref
		// Estimate is the same as in Assigned.
		Estimate time.Duration
		// Found are the inputs as they are now, in the order of the inputs. The list is valid
		// during the step.
		Found []Found
		// MapsNothing: its process cannot use leases.
		MapsNothing bool
	}
	// LeasesRequested: leases were requested for an attempt that is to be admitted, and Leased
	// follows.
	LeasesRequested struct{ Ref Ref }
	// Leased: the peers have answered a request for leases. If the attempt has ended or does not
	// wait for them, the leases are ended.
	Leased struct {
		Ref Ref
		// Answers are the answers by input. The list is valid during the step.
		Answers []LeaseAnswer
	}
	// Renewed: the scheduler was started anew, and names of objects mean other objects from now on.
	Renewed struct{}
	// Made: an awaited object was made. It has Bytes, and Inline is its value if that came with the
	// notification.
	Made struct {
		Object Object
		Bytes  uint64
		Inline []byte
	}
	// NeverMade: the maker of an awaited object cannot be asked, or does not know it.
	NeverMade struct{ Object Object }
	// Asked: a peer subscribes to the completion of an object. Here: the object is here, but its
	// maker may not have ended.
	Asked struct {
		Object Object
		By     Subscriber
		Here   bool
	}
	// Unasked: a peer has ended its subscription to an object, or all of its subscriptions.
	Unasked struct {
		Object Object
		By     Subscriber
		All    bool
	}
	// Beaten: it comes about once per Beat, also while there are no attempts.
	Beaten struct{}
	// FunctionsCame: functions have arrived.
	FunctionsCame struct{ Functions []ids.FunctionHash }
	// Disconnected: there is no session. Requests for functions are lost with a session.
	Disconnected struct{}
	// Registered: a session begins, and the worker's number is Self now.
	Registered struct{ Self ids.WorkerID }
	// Reserved: the memory requested by Reserve was granted. With Loading, some inputs are still
	// being brought into the slab, and Loaded or InputLost follows.
	Reserved struct {
		Reservation ReservationID
		Loading     bool
	}
	// Loaded: all inputs of a reservation that are here are in the slab, and stay there.
	Loaded struct{ Reservation ReservationID }
	// InputLost: an input was here and no longer is. If the attempt was handed to a slot, it has
	// not begun. Reservation is the one for which the input could not be brought into the slab;
	// Loaded does not follow for it. 0: there was none.
	InputLost struct {
		Ref         Ref
		Object      Object
		Reservation ReservationID
	}
	// InputAway: an attempt was handed to a slot and has not begun, because an input is not in the
	// slab.
	InputAway struct{ Ref Ref }
	// InPlaceFailed: an attempt was handed to a slot and has not begun, because an input cannot be
	// read in the memory of a peer, or because much is to be moved (StartRun.MoveLimit).
	InPlaceFailed struct{ Ref Ref }
	// ReserveWaits: requested memory is neither granted nor refused yet.
	ReserveWaits struct{ Reservation ReservationID }
	// ReserveFailed: the requested memory cannot be granted.
	ReserveFailed struct {
		Reservation ReservationID
		// TooLarge: an empty slab could not grant it either.
		TooLarge bool
		Message  string
	}
	// InputFetched: an object has arrived. It stays until it is unpinned or dropped.
	InputFetched struct {
		Fetch  FetchID
		Object Object
		// Bytes is its actual size.
		Bytes uint64
	}
	// Rescued: an object is here that this worker was ordered to copy out of the memory of a dead
	// peer. It stays until Released, whatever becomes of a fetch of it.
	Rescued struct {
		Object Object
		Bytes  uint64
	}
	// FetchFailed: an object of a fetch did not arrive.
	FetchFailed struct {
		Fetch  FetchID
		Object Object
		// Missing: the peer does not hold it.
		Missing bool
		// NoRoom: the peer holds it, and there was no room for it here.
		NoRoom  bool
		Message string
	}
	// FetchEnded: the stream has ended. Objects without an outcome have failed with Message.
	FetchEnded struct {
		Fetch   FetchID
		Message string
	}
	// RunEnded: a slot has finished an attempt. Succeeded says that there is a result to publish;
	// otherwise Outcome is the outcome to report.
	RunEnded struct {
		Ref       Ref
		Succeeded bool
		Outcome   Outcome
		// Moved is the size of its result, if the run has read inputs in place.
		Moved uint64
	}
	// Called: the function of an attempt that Prepares is running now.
	Called struct{ Ref Ref }
	// RunReturned: a slot returns an attempt that it has not begun.
	RunReturned struct{ Ref Ref }
	// NoRoom: an attempt has not begun because its result needs memory that is not free.
	NoRoom struct {
		Ref   Ref
		Bytes []uint64
	}
	// Short: a running attempt waits for memory for its result, and keeps its slot and its inputs
	// until it has that memory. The event comes again while the wait lasts.
	Short struct{}
	// Blocked: a running attempt waits for other tasks, and does not need its slots meanwhile. It
	// is reported, and SlotFreed follows.
	Blocked struct{ Ref Ref }
	// SlotFreed: the scheduler knows that an attempt waits, and has assigned what can run in its
	// slots. It is ignored if the attempt does not wait any more.
	SlotFreed struct{ Ref Ref }
	// Unblocked: an attempt that waited wants to go on. The answer is Resume.
	Unblocked struct{ Ref Ref }
	// Retracted: the scheduler wants an attempt back. This is refused if the attempt runs or is
	// unknown.
	Retracted struct{ Ref Ref }
	// Cancelled: the scheduler has cancelled an attempt. An unknown attempt was reported before;
	// the event is ignored.
	Cancelled struct{ Ref Ref }
	// Released: an object is not needed any more.
	Released struct{ Object Object }
	// Ticked: some time has passed. It comes several times per StartedAfter while there are
	// attempts.
	Ticked struct{}
)

// Awaited is an object that another worker will make.
type Awaited struct {
	Object Object
	Peer   ids.WorkerID
}

// Function identifies a function that processes load. The zero value is none.
type Function struct {
	Name string
	Hash ids.FunctionHash
}

// Input is one input of an assignment: an object, or one item of a list.
type Input struct {
	Object Object
	// Bytes is the expected size of the object, and for an item that of the list of Items items.
	Bytes uint64
	Items uint32
	// Inline: its value came with the assignment.
	Inline bool
	// Holders are the workers that hold it, best first.
	Holders []ids.WorkerID
	// Upstream, if not 0, is the upstream worker in a broadcast chain: it fetches the object too,
	// and this worker reads it there while it arrives, before holders are tried. Downstream:
	// another worker will read it here while it arrives.
	Upstream   ids.WorkerID
	Downstream bool

	// The machine's records: how it uses the input, and Found.Below and Found.Known of the last
	// lookup.
	use   use
	below bool
	known int
}

// Size is the expected size of what the input needs: the object, or the item.
func (in *Input) Size() uint64 {
	if in.Object.Item == 0 || in.Items == 0 {
		return in.Bytes
	}
	return (in.Bytes + uint64(in.Items) - 1) / uint64(in.Items)
}

// Found says where an input of an attempt is. The zero value says that it is not here.
type Found struct {
	Place Place
	// Object is the object that is pinned: the input or, for an item, maybe its list.
	Object Object
	// Below: the input is an item, and its list is here, in a tier below the slab, from where the
	// item is copied.
	Below bool
	// Known is the number of its holders that can be asked, for attempts with Admit.Large.
	Known int
}

// Place says where an input is.
type Place uint8

// The places.
const (
	// Elsewhere: it is not here.
	Elsewhere Place = iota
	// Kept: the attempt has it, and nothing is pinned: its value is here without a place in a tier,
	// or it has a lease.
	Kept
	// InPlace: it is to be read in the memory of a peer.
	InPlace
	// Pinned: it is here, and pinned for the attempt.
	Pinned
	// Away: it is pinned, but may be moved out of the slab, or has been, until a reservation with
	// it among its inputs is loaded.
	Away
)

func (*Assigned) event()       {}
func (*Admitted) event()       {}
func (Made) event()            {}
func (NeverMade) event()       {}
func (Asked) event()           {}
func (Unasked) event()         {}
func (Beaten) event()          {}
func (LeasesRequested) event() {}
func (*Leased) event()         {}
func (Renewed) event()         {}
func (ReserveWaits) event()    {}
func (FunctionsCame) event()   {}
func (Disconnected) event()    {}
func (Registered) event()      {}
func (Reserved) event()        {}
func (ReserveFailed) event()   {}
func (Loaded) event()          {}
func (InputLost) event()       {}
func (InputAway) event()       {}
func (InPlaceFailed) event()   {}
func (InputFetched) event()    {}
func (Rescued) event()         {}
func (FetchFailed) event()     {}
func (FetchEnded) event()      {}
func (RunEnded) event()        {}
func (Called) event()          {}
func (RunReturned) event()     {}
func (NoRoom) event()          {}
func (Short) event()           {}
func (Blocked) event()         {}
func (SlotFreed) event()       {}
func (Unblocked) event()       {}
func (Retracted) event()       {}
func (Cancelled) event()       {}
func (Released) event()        {}
func (Ticked) event()          {}

// Outcome is the outcome of an attempt. The values equal those of the API.
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
	// WaitsForTasks and GoesOn are no ends: the attempt has started, and waits for other tasks
	// without a slot, or has a slot again.
	WaitsForTasks Outcome = 9
	GoesOn        Outcome = 10
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
	case WaitsForTasks:
		return "waits for tasks"
	case GoesOn:
		return "goes on"
	}
	return "unknown"
}

// Effect is an order of the machine that the loop carries out.
type Effect interface{ effect() }

type (
	// Admit: find the inputs that did not come with the assignment, and answer with Admitted.
	// First, request leases of inputs that may be leased and are not here, from their first holders
	// that lend, and answer with LeasesRequested if there are any. Otherwise choose holders for
	// those that may be read in place and are not here. Pin the others that are here.
	Admit struct {
		Ref Ref
		// Waits: the attempt waits for memory in any case. Copies: it needs copies of items.
		Waits, Copies bool
		// Ways says what may be done, by input; nil: nothing. It is valid until the next step.
		Ways []Way
		// Large: copies of the inputs do not fit, so leases are needed: any holder may be asked,
		// beginning with the one at the index Round.
		Large bool
		Round int
	}
	// Lease: request leases as Admit does for a large attempt, and answer with Leased.
	Lease struct {
		Ref   Ref
		Ways  []Way
		Round int
	}
	// EndLeases: end all leases of an attempt.
	EndLeases struct{ Ref Ref }
	// NeedFunction: ask the scheduler for a function, and answer with FunctionsCame.
	NeedFunction struct{ Function ids.FunctionHash }
	// Await: subscribe to the completion of an object at a peer, and answer with Made or NeverMade.
	Await struct{ Awaited }
	// Unawait: end the subscription; no attempt waits for the object any more.
	Unawait struct{ Awaited }
	// EnterInput: enter the value of an object as an input of an attempt that has waited for it.
	EnterInput struct {
		Ref    Ref
		Object Object
		Inline []byte
	}
	// Notify: tell a subscriber that an object is here, or that it will not be made here.
	Notify struct {
		Object      Object
		To          Subscriber
		Unavailable bool
	}
	// Reserve: reserve memory, all of it or none, and answer with Reserved or ReserveFailed. Those
	// of the inputs that are here are brought into the slab as part of it, and stay there until
	// Unreserve.
	// WithResult: Bytes include the expected result.
	Reserve struct {
		Reservation ReservationID
		Ref         Ref
		Bytes       []uint64
		Inputs      []Object
		WithResult  bool
	}
	// Unreserve: release the reservation, granted or not.
	Unreserve struct{ Reservation ReservationID }
	// StartFetch: read objects from a peer into the memory of their reservations. Answer with
	// InputFetched or FetchFailed for each, then FetchEnded. Pipelined: the peer is fetching them
	// itself, or will, and they are read there while they arrive. A peer that is this worker has
	// the lists of the items that are to be copied.
	StartFetch struct {
		Fetch     FetchID
		Peer      ids.WorkerID
		Pipelined bool
		Objects   []FetchObject
		// Few: a goroutine may begin it before its other duties.
		// Early: publish the objects for other readers while they arrive.
		Few, Early bool
	}
	// PinInput: pin a fetched object for an attempt, and keep it in the slab if a reservation is
	// given.
	PinInput struct {
		Ref         Ref
		Object      Object
		Reservation ReservationID
	}
	// Loosen: an attempt waits for memory; its input may be moved in the meantime.
	Loosen struct {
		Ref    Ref
		Object Object
	}
	// Unpin: the object is not needed for that attempt any more.
	Unpin struct {
		Ref    Ref
		Object Object
	}
	// StartRun: hand an attempt to a slot.
	StartRun struct {
		Ref    Ref
		Runner string
		Slot   int
		// Reservation is the memory reserved for the attempt, 0 if none. Roomy: it has the size
		// that NoRoom has named.
		Reservation ReservationID
		Roomy       bool
		// Placed: its inputs have not moved since they were pinned.
		Placed bool
		// MoveLimit, if not 0: answer with InPlaceFailed if both the inputs that are read in place
		// and the result are larger.
		MoveLimit uint64
		// Waiting is the time that it has waited for memory, Fetching that for inputs of other
		// workers, and Loading that for inputs of lower tiers alone.
		Fetching, Waiting, Loading time.Duration
	}
	// StopRun: stop a running attempt; RunEnded or RunReturned follows. Reason says why it fails;
	// empty: it was cancelled.
	StopRun struct {
		Ref    Ref
		Reason string
	}
	// Resume: let an attempt go on that waited for other tasks.
	Resume struct{ Ref Ref }
	// TakeBack: make the slot return an attempt that it has not begun. If it has begun, there is no
	// answer.
	TakeBack struct{ Ref Ref }
	// Publish: notify subscribers of an attempt's result, which is stored, and report it.
	Publish struct {
		Ref Ref
		To  []Subscriber
	}
	// Discard: a cancelled attempt has succeeded nevertheless; drop its result. The report follows.
	Discard struct{ Ref Ref }
	// Report: report the outcome of an attempt without a result. For Failed and ExecutorDied
	// without a Reason, the run itself has supplied the error.
	Report struct {
		Ref         Ref
		Outcome     Outcome
		Reason      string
		Message     string
		Unreachable []Unreachable
	}
	// Gained: tell the scheduler that a copy is here.
	Gained struct {
		Object Object
		Bytes  uint64
	}
	// Drop: drop an object that is not needed any more; its bytes are freed with the last pin.
	Drop struct{ Object Object }
)

// FetchObject is one object of a fetch.
type FetchObject struct {
	Object      Object
	Reservation ReservationID
	// Downstream is the same as in Input. Then Step is the number of bytes after which its progress
	// is published.
	Downstream bool
	Step       uint64
}

// Unreachable is an input that did not arrive. It failed at the workers FailedAt, and MissingAt do
// not hold it.
type Unreachable struct {
	Object    Object
	FailedAt  []ids.WorkerID
	MissingAt []ids.WorkerID
}

func (Admit) effect()        {}
func (Lease) effect()        {}
func (EndLeases) effect()    {}
func (NeedFunction) effect() {}
func (Await) effect()        {}
func (Unawait) effect()      {}
func (EnterInput) effect()   {}
func (Notify) effect()       {}
func (Reserve) effect()      {}
func (Unreserve) effect()    {}
func (StartFetch) effect()   {}
func (PinInput) effect()     {}
func (Loosen) effect()       {}
func (Unpin) effect()        {}
func (StartRun) effect()     {}
func (StopRun) effect()      {}
func (Resume) effect()       {}
func (TakeBack) effect()     {}
func (Publish) effect()      {}
func (Discard) effect()      {}
func (Report) effect()       {}
func (Gained) effect()       {}
func (Drop) effect()         {}
