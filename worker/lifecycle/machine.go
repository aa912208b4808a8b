// Package lifecycle is a Machine: it decides about the attempts that a worker was assigned, from
// their arrival until their final report.
//
// An attempt may be PRE-ASSIGNED: its function is still to arrive, or other attempts, here or at
// other workers, are still to make some of its inputs. It then has nothing, and waits for nothing
// else. After that, and any other attempt from its arrival, it is ADMITTING while its inputs are
// looked up, LEASING while peers are asked to lend some, WAITING for memory that its missing inputs
// need, FETCHING them from other workers, QUEUED for a slot, and RUNNING in a slot. An attempt
// whose inputs do not fit here asks peers again after PAUSING. The step that reports an attempt
// also forgets it. Memory for all missing inputs of an attempt is reserved at once, before the
// first is fetched, so that attempts cannot block each other half-way. Inputs of queued attempts
// are fetched while others run.
//
// These are the ways from state to state; an attempt can end in each of them:
//
//	(assigned)    -> PRE-ASSIGNED, ADMITTING, WAITING, QUEUED
//	PRE-ASSIGNED  -> ADMITTING, WAITING, QUEUED
//	ADMITTING     -> LEASING, WAITING, FETCHING, QUEUED
//	LEASING       -> ADMITTING, PAUSING, QUEUED
//	PAUSING       -> ADMITTING
//	WAITING       -> ADMITTING, LEASING, PAUSING, FETCHING, QUEUED
//	FETCHING      -> LEASING, WAITING, QUEUED
//	QUEUED        -> WAITING, RUNNING
//	RUNNING       -> ADMITTING, PAUSING, WAITING, QUEUED
//
// A slot is a place where attempts run one after the other: a goroutine for native operations, a
// process for executors. An attempt that needs several slots runs in one, and the others stay
// empty. Attempts that are known to be short are handed to a busy slot in advance, so that slots
// never wait for the loop. They can be taken back until they have begun.
//
// An attempt that waits for other tasks gives its slots back until it goes on. It keeps its place,
// and another place takes over: so there can be more places than slots, but only as many work.
//
// Messages of the scheduler refer to attempts, and messages of paths refer to fetches. A message
// that refers to something unknown is late; it is ignored or refused, as described at each event.
package lifecycle

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/invariant"
)

// Config is fixed for the life of a machine.
type Config struct {
	// Self is the worker's own number among holders; Registered changes it.
	Self ids.WorkerID
	// Slots is the number of slots, at least 1. Each kind of runner has as many, of which at most
	// Slots are in use over all kinds.
	Slots int
	// Resources are the declared amounts by name.
	Resources map[string]float64
	// FetchesPerPeer and Fetches limit the streams from one peer and from all peers. Default 2 and
	// 16.
	FetchesPerPeer, Fetches int
	// FetchObjects and FetchBytes limit one stream. An object beyond FetchBytes is fetched alone.
	// Default 1000 and 256 MiB.
	FetchObjects int
	FetchBytes   uint64
	// SlotDepth and SlotWindow limit the attempts that a slot is given in advance: their number and
	// the sum of their expected run times. Default 64 and 2 ms.
	SlotDepth  int
	SlotWindow time.Duration
	// StartedAfter is how long an attempt runs before it is reported as started. Default 20 ms. An
	// attempt whose function is not called yet is not reported: the scheduler blames those that
	// have started for the death of the worker.
	StartedAfter time.Duration
	// MaxBlocked is the number of attempts that may wait for other tasks without a slot, each in a
	// place of its own. Default 100; negative: none.
	MaxBlocked int
	// FunctionWait is how long an attempt waits for its function in a session. Default 30 s: a
	// scheduler that has the function sends it with its next messages.
	FunctionWait time.Duration
	// Leases: peers can lend inputs. ReadsInPlace: inputs can be read in the mapped memory of
	// peers.
	Leases, ReadsInPlace bool
	// MemoryWait is how long an attempt asks for leases of inputs whose copies do not fit. Default
	// 30 s.
	MemoryWait time.Duration
	// SubscriptionWait is how long the subscription of a peer is kept while its attempt is unknown
	// here: the assignment may still be on its way. After that the peer is told that the object
	// will not be made here. Default 2 s: a message of the scheduler that takes longer is lost.
	SubscriptionWait time.Duration
	// ReserveBytes is the smallest expected output for which memory is reserved before the attempt
	// starts. Default 1 MiB.
	ReserveBytes uint64
}

// DefaultMaxBlocked is the default of Config.MaxBlocked.
const DefaultMaxBlocked = 100

func (c Config) withDefaults() Config {
	c.Slots = max(c.Slots, 1)
	c.FetchesPerPeer = cmp.Or(c.FetchesPerPeer, 2)
	c.Fetches = cmp.Or(c.Fetches, 16)
	c.FetchObjects = cmp.Or(c.FetchObjects, 1000)
	c.FetchBytes = cmp.Or(c.FetchBytes, 256<<20)
	c.SlotDepth = cmp.Or(c.SlotDepth, 64)
	c.SlotWindow = cmp.Or(c.SlotWindow, 2*time.Millisecond)
	c.StartedAfter = cmp.Or(c.StartedAfter, 20*time.Millisecond)
	c.MaxBlocked = cmp.Or(c.MaxBlocked, DefaultMaxBlocked)
	c.FunctionWait = cmp.Or(c.FunctionWait, 30*time.Second)
	c.MemoryWait = cmp.Or(c.MemoryWait, DefaultMemoryWait)
	c.SubscriptionWait = cmp.Or(c.SubscriptionWait, 2*time.Second)
	c.ReserveBytes = cmp.Or(c.ReserveBytes, 1<<20)
	return c
}

// attempt is the machine's record of one attempt.
type attempt struct {
	ref       Ref
	state     State
	rank      uint64
	slots     int
	resources map[string]float64
	runner    string
	// estimate is its expected run time, 0 if unknown.
	estimate time.Duration
	// inputs are all its inputs, and expected is the expected size of its result.
	inputs   []Input
	expected uint64
	// reads and replicates are those of Assigned, and mapsNothing is that of the last Admitted.
	reads                   Reading
	replicates, mapsNothing bool
	// leased: it has asked for leases since it began to be admitted, and may have some. copies: it
	// fetches copies, and does not use inputs at peers again. large is set if copies do not fit.
	leased, copies bool
	large          *large
	// placed: its inputs have not moved since they were pinned. roomy: output are the sizes that
	// NoRoom has named.
	placed, roomy bool
	// pinned are the inputs that are pinned for it. missing are the inputs that are not here yet:
	// exactly the wanted objects that list this attempt.
	pinned  []Object
	missing []*wanted
	// loose: some of its inputs are pinned, but may be moved out of the slab.
	loose bool
	// output are the sizes of the blocks of its result that are part of its reservation, none if
	// the result is small or its size unknown.
	output []uint64
	// reservation is the memory reserved for it, nil if it needs none.
	reservation *reservation
	// slot is the slot of the attempt, set exactly while Running.
	slot *slot
	// cancelled: the scheduler has cancelled it. It ends as soon as its slot gives it back.
	cancelled bool
	// started: it was reported as started. prepares: it runs, and its function is not known to be
	// called yet; mayPrepare is Assigned.Prepares.
	started, prepares, mayPrepare bool
	// waits says whether it waits for other tasks; notWaiting in all states but Running.
	waits waiting
	// returning: its slot was asked to return it if it has not begun.
	returning bool
	// heapIndex is its position in the ready queue of its runner, -1 outside.
	heapIndex int
	// function is the function that it waits for, nil if it waits for none.
	function *function
	// makers are the attempts here whose results it waits for: exactly those that list it as a
	// follower, each once.
	makers, followers []*attempt
	// awaited are the objects of other workers that it waits for: exactly those that list it as
	// waiting, each once.
	awaited []*awaited
	// succeeded: its result is stored and was published.
	succeeded bool
	// since is the time when it came into its state. waiting is the time that it has spent as
	// Waiting before, and fetching and loading the time as Fetching: loading is the part in which
	// no input came from another worker, but only from lower tiers of this one.
	since                      time.Time
	fetching, waiting, loading time.Duration
	// loads says that it is Fetching, and that the time counts as loading.
	loads bool
}

// special says whether it needs more than one plain slot.
func (a *attempt) special() bool { return a.slots > 1 || len(a.resources) > 0 }

// Machine is owned by one goroutine. The zero value is not usable.
type Machine struct {
	config    Config
	now       time.Time // of the step
	attempts  map[Ref]*attempt
	free      map[string]float64 // of resources
	freeSlots int
	runners   []*runner // in order of first use
	// special are the queued attempts that need more than one plain slot, by rank.
	special []*attempt
	// blocked counts the attempts that run without slots, because they wait for other tasks.
	// resuming are those of them that want to go on, by rank. inPlace counts the slots of attempts
	// that wait and keep them.
	blocked, inPlace int
	resuming         []*attempt

	// functions are the functions that attempts wait for.
	functions    map[ids.FunctionHash]*function
	lastFunction uint64

	awaited map[Object]*awaited
	// subscribed are the subscriptions of peers to objects that are made here.
	subscribed map[Object][]subscription
	wanted     map[Object]*wanted
	// peers are the workers that objects were fetched from, in order of first use.
	peers       []*peer
	fetches     map[FetchID]*fetch
	lastFetch   FetchID
	reserved    map[ReservationID]*reservation
	lastReserve ReservationID

	usage usage
	// pausing are the large attempts that pause.
	pausing []*attempt

	log history
	out []Effect
	// waysOut is the memory of Ways in effects.
	waysOut []Way
}

// New returns a machine without attempts.
func New(c Config) *Machine {
	c = c.withDefaults()
	m := &Machine{
		config:     c,
		attempts:   make(map[Ref]*attempt),
		free:       make(map[string]float64, len(c.Resources)),
		freeSlots:  c.Slots,
		functions:  make(map[ids.FunctionHash]*function),
		awaited:    make(map[Object]*awaited),
		subscribed: make(map[Object][]subscription),
		wanted:     make(map[Object]*wanted),
		fetches:    make(map[FetchID]*fetch),
		reserved:   make(map[ReservationID]*reservation),
	}
	// order-free: a copy.
	for name, amount := range c.Resources {
		m.free[name] = amount
	}
	return m
}

// Len returns the number of attempts that are not finished.
func (m *Machine) Len() int { return len(m.attempts) }

// FreeSlots returns the number of slots that no attempt occupies.
func (m *Machine) FreeSlots() int { return m.freeSlots }

// Busy says whether anything is active: attempts, fetches whose attempts have ended, reserved or
// requested memory.
func (m *Machine) Busy() bool {
	return len(m.attempts)+len(m.wanted)+len(m.fetches)+len(m.reserved) > 0
}

// Attempts returns the attempts that are not finished, sorted by task and attempt.
func (m *Machine) Attempts() []Ref {
	refs := make([]Ref, 0, len(m.attempts))
	// sorted: below.
	for r := range m.attempts {
		refs = append(refs, r)
	}
	slices.SortFunc(refs, Ref.compare)
	return refs
}

// Has says whether an attempt of a task is not finished.
func (m *Machine) Has(task ids.TaskID) bool {
	// order-free: it only matters whether there is one.
	for r := range m.attempts {
		if r.Task == task {
			return true
		}
	}
	return false
}

// State returns the state of an attempt; false if it is unknown.
func (m *Machine) State(r Ref) (State, bool) {
	a := m.attempts[r]
	if a == nil {
		return 0, false
	}
	return a.state, true
}

// Step handles an event and returns the effects, in order. The result is valid until the next step.
func (m *Machine) Step(now time.Time, e Event) []Effect {
	clear(m.out)
	m.out, m.waysOut = m.out[:0], m.waysOut[:0]
	m.now = now
	switch e := e.(type) {
	case *Assigned:
		m.assigned(e)
	case *Admitted:
		m.onAdmitted(e)
	case Made:
		m.onMade(e)
	case NeverMade:
		m.onNeverMade(e)
	case FunctionsCame:
		m.onFunctionsCame(e)
	case Disconnected:
		m.onDisconnected()
	case Registered:
		m.config.Self = e.Self
		m.requestFunctions()
		m.repeatStarted()
	case Reserved:
		m.onReserved(e)
	case ReserveFailed:
		m.onReserveFailed(e)
	case Loaded:
		m.onLoaded(e)
	case InputLost:
		m.onInputLost(now, e)
	case InputAway:
		m.onInputAway(now, e)
	case InPlaceFailed:
		m.onInPlaceFailed(now, e)
	case LeasesRequested:
		m.onLeasesRequested(e)
	case *Leased:
		m.onLeased(e)
	case ReserveWaits:
		m.onReserveWaits(e)
	case Asked:
		m.onAsked(e)
	case Unasked:
		m.onUnasked(e)
	case Beaten:
		m.onBeaten()
	case Renewed:
		m.onRenewed()
	case InputFetched:
		m.onFetched(e)
	case Rescued:
		m.onRescued(e)
	case FetchFailed:
		m.onFetchFailed(e)
	case FetchEnded:
		m.onFetchEnded(e)
	case RunEnded:
		m.onRunEnded(now, e)
	case Called:
		m.onCalled(e)
	case RunReturned:
		m.onRunReturned(now, e)
	case NoRoom:
		m.onNoRoom(now, e)
	case Short:
		m.onShort()
	case Blocked:
		m.onBlocked(e)
	case SlotFreed:
		m.onSlotFreed(e)
	case Unblocked:
		m.onUnblocked(e)
	case Retracted:
		m.onRetracted(e)
	case Cancelled:
		m.onCancelled(e)
	case Released:
		m.onReleased(e)
	case Ticked:
		m.onTicked(now)
	}
	m.pump()
	m.dispatch(now)
	if invariant.Enabled {
		if err := m.Check(); err != nil {
			panic(err)
		}
	}
	return m.out
}

func (m *Machine) do(e Effect) { m.out = append(m.out, e) }

// advance moves an attempt that does not wait for its own memory to its next state.
func (m *Machine) advance(a *attempt) {
	if len(a.missing) > 0 || a.reservation != nil && a.reservation.loading {
		m.move(a, Fetching)
		a.loads = len(a.missing) == 0
		return
	}
	if a.loose {
		m.bringIn(a)
		return
	}
	if a.large != nil && a.large.given != nil {
		m.regain(a)
		return
	}
	m.move(a, Queued)
	m.enqueue(a)
}

func (m *Machine) move(a *attempt, s State) {
	switch a.state {
	case Fetching:
		if a.loads {
			a.loading += m.now.Sub(a.since)
		} else {
			a.fetching += m.now.Sub(a.since)
		}
		a.loads = false
	case Waiting:
		a.waiting += m.now.Sub(a.since)
	case Queued, Running, PreAssigned, Admitting, Leasing, Pausing:
	}
	if invariant.Enabled && !a.state.leadsTo(s) {
		panic(fmt.Sprintf("lifecycle: attempt %s goes from %s to %s", a.ref, a.state, s))
	}
	a.state, a.since = s, m.now
	m.log.add(a.ref, s.String())
}

// forget ends an attempt that is in no queue and no slot: it releases everything that the attempt
// holds.
func (m *Machine) forget(a *attempt) {
	for _, o := range a.pinned {
		m.do(Unpin{Ref: a.ref, Object: o})
	}
	m.endFetches(a)
	if a.reservation != nil {
		a.reservation.attempt = nil
		m.settle(a.reservation)
	}
	delete(m.attempts, a.ref)
	m.endEarly(a)
	m.endFollowers(a)
}

// withdraw removes an attempt that does not run from its queue and forgets it.
func (m *Machine) withdraw(a *attempt) {
	switch a.state {
	case Queued:
		m.dequeue(a)
	case Pausing:
		m.endPause(a)
	case Waiting, Fetching, Running, PreAssigned, Admitting, Leasing:
	}
	m.forget(a)
}

func (m *Machine) onRetracted(e Retracted) {
	a := m.attempts[e.Ref]
	if a == nil || a.state == Running {
		m.log.add(e.Ref, "retraction refused")
		m.do(Report{Ref: e.Ref, Outcome: RetractRefused})
		return
	}
	m.log.add(e.Ref, "retracted")
	m.withdraw(a)
	m.do(Report{Ref: e.Ref, Outcome: GivenBack})
}

func (m *Machine) onCancelled(e Cancelled) {
	a := m.attempts[e.Ref]
	if a == nil || a.cancelled {
		return
	}
	m.log.add(e.Ref, "cancelled")
	if a.state == Running {
		a.cancelled = true
		m.do(StopRun{Ref: e.Ref})
		return
	}
	m.withdraw(a)
	m.do(Report{Ref: e.Ref, Outcome: Dropped})
}

func (m *Machine) onReleased(e Released) {
	if w := m.wanted[e.Object]; w != nil {
		w.rescued = false
		if w.fetch != nil {
			// It arrives soon. The attempts that still wait for it get it, and it is dropped after
			// the last of them.
			w.released = true
			return
		}
	}
	m.do(Drop{Object: e.Object})
}
