package sim

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/server/members"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/worker/lifecycle"
)

// object names one generation of a result.
type object = ledger.ObjectID

// smallBytes is the size that a small result is counted with.
const smallBytes = 16

// inlineBytes is the size of the largest result that a worker sends inline.
const inlineBytes = 4 << 10

// host is a place for a worker. It has at most one process at a time.
type host struct {
	w         *world
	index     int
	name      string
	slots     uint32
	resources map[string]float64
	proc      *process
}

// start begins a new life of the worker, with an empty slab.
func (h *host) start() {
	w := h.w
	w.lastIncarnation++
	books, err := ledger.New(ledger.Config{SizeBytes: w.plan.slabBytes, HeaderBytes: memory.HeaderBytes})
	if err != nil {
		w.fail(nil, "ledger: %v", err)
	}
	p := &process{
		w: w, host: h, incarnation: fmt.Sprintf("life-%d", w.lastIncarnation),
		life: lifecycle.New(lifecycle.Config{
			Slots: int(h.slots), Resources: h.resources, StartedAfter: 60 * time.Millisecond, ReserveBytes: 64 << 10,
			SlotDepth: 8, FetchObjects: 5, Fetches: 6, MaxBlocked: 1 + w.rng.IntN(4),
		}),
		ledger: books, small: map[object]uint64{}, values: map[object]uint64{}, written: map[object]*written{},
		functions: map[ids.FunctionHash]bool{},
		jobs:      map[lifecycle.Ref]*job{}, peers: map[ids.WorkerID]*process{}, mappings: map[ids.WorkerID]*process{}, slots: map[slotKey]*slot{},
		reservations: map[lifecycle.ReservationID]ledger.ReservationID{}, queuedReservations: map[ledger.ReservationID]lifecycle.ReservationID{},
	}
	h.proc = p
	w.log("%s starts as %s", h.name, p.incarnation)
	p.connect()
	p.after(w.between(0, beatEvery), p.beat)
}

// crash ends the process at once. The scheduler learns of it from the broken stream, from the
// supervisor, from the registration of the next life, or not at all.
func (h *host) crash(cause string) {
	w, p := h.w, h.proc
	w.counts.crashes++
	w.log("%s (%s) crashes: %s", h.name, p.incarnation, cause)
	h.end()
	if p.link != nil {
		if w.chance(0.7) {
			p.link.cut()
		} else {
			p.link.broken = true
		}
	}
	if w.chance(0.5) {
		w.after(w.between(time.Millisecond, 300*time.Millisecond), func() { w.server.died(h.name, p.incarnation) })
	}
}

// leave ends the process with a last message to the scheduler. A stopped process leaves when it
// continues.
func (h *host) leave() {
	p := h.proc
	if p.stopped {
		h.w.after(100*time.Millisecond, func() {
			if h.proc == p {
				h.leave()
			}
		})
		return
	}
	h.w.counts.leaves++
	h.w.log("%s leaves", h.name)
	p.outgoing.leaving = true
	p.sendOutgoing()
	h.end()
}

// askToLeave simulates SIGTERM. The process leaves when the scheduler allows it and no attempt is
// left here, or when a time limit is over.
func (h *host) askToLeave() {
	p := h.proc
	h.w.log("%s is told to leave", h.name)
	p.run(func() {
		p.leaveRequested = true
		p.outgoing.draining = true
	})
	h.w.after(h.w.between(100*time.Millisecond, 4*time.Second), func() {
		if h.proc == p {
			h.leave()
		}
	})
}

// mayLeave makes the process leave if it was asked to, the scheduler has allowed it, and no attempt
// is left here.
func (p *process) mayLeave() {
	if p.leaveRequested && p.leaveAllowed && !p.dead && len(p.life.Attempts()) == 0 {
		p.w.log("%s is drained", p.host.name)
		p.host.leave()
	}
}

// written is an object that a client wrote. answer tells the client whether the scheduler accepted
// it.
type written struct {
	report sched.Stored
	answer func(accepted bool)
}

func (h *host) end() {
	w := h.w
	h.proc.dead = true
	h.proc.endSubscriptions()
	h.unmapLater()
	h.proc = nil
	w.after(w.between(50*time.Millisecond, 3*time.Second), h.start)
}

// process is one life of a worker: the real lifecycle machine and ledger, and the worker loop's
// part around them.
type process struct {
	w           *world
	host        *host
	incarnation string
	// dead means that the process has ended, stopped that it is suspended. parked are the actions
	// that it performs when it continues.
	dead, stopped bool
	parked        []func()

	life   *lifecycle.Machine
	ledger *ledger.Ledger
	// small are results that are not in the slab.
	small map[object]uint64
	// values are the values of the objects in the ledger.
	values map[object]uint64
	// written are objects that clients wrote and that the scheduler has not accepted yet. Readers
	// do not find them.
	written map[object]*written
	// leaveRequested means that the process wants to leave, leaveAllowed that the scheduler has
	// allowed it.
	leaveRequested, leaveAllowed bool

	self ids.WorkerID
	link *link
	// outgoing collects the next message to the scheduler.
	outgoing workerMessage
	// peers are the addresses of workers that the scheduler has sent.
	peers map[ids.WorkerID]*process
	// functions are the pickled functions that the scheduler has sent.
	functions map[ids.FunctionHash]bool
	// mappings are the processes, living or dead, whose memory is mapped here.
	mappings map[ids.WorkerID]*process

	// subscribers wait for completion notifications of this process.
	subscribers []subscriber

	jobs  map[lifecycle.Ref]*job
	slots map[slotKey]*slot
	// events wait for a step of the lifecycle machine, in order.
	events   []lifecycle.Event
	stepping bool
	ticking  bool

	lastReservation ledger.ReservationID
	reservations    map[lifecycle.ReservationID]ledger.ReservationID
	// queuedReservations are the reservations in the ledger's queue.
	queuedReservations map[ledger.ReservationID]lifecycle.ReservationID

	stepsSinceCheck int
}

// job is one attempt that was assigned to the process.
type job struct {
	ref        lifecycle.Ref
	spec       *spec
	assignment *assignment
	inputs     []jobInput
	// memory is the reservation that the lifecycle machine made for the run, ownReservation that of
	// the run itself; 0: none.
	memory         lifecycle.ReservationID
	ownReservation ledger.ReservationID
	slot           *slot
	// begun means that its slot is running it. runs changes whenever the job enters or leaves a
	// slot, so that a late timer can detect that its run is over.
	begun   bool
	runs    int
	began   time.Time
	timeout time.Duration
	bytes   uint64
	ended   *sched.TaskError
	// rest is the run time that is left after a wait for other tasks.
	rest time.Duration
	// reassigned means that the attempt was assigned again after its end, and that its result is
	// still here.
	reassigned bool
}

// jobInput is one input, in the order of the arguments. known means that value is set and the slab
// is not needed.
type jobInput struct {
	object object
	value  uint64
	known  bool
}

// run runs an action in the process and sends the resulting message. A stopped process runs it
// later, a dead one never.
func (p *process) run(do func()) {
	switch {
	case p.dead:
	case p.stopped:
		p.parked = append(p.parked, do)
	default:
		do()
		p.sendOutgoing()
	}
}

func (p *process) after(d time.Duration, do func()) { p.w.after(d, func() { p.run(do) }) }

// stop simulates SIGSTOP, and SIGCONT after a time.
func (p *process) stop(d time.Duration) {
	if p.stopped {
		return
	}
	p.w.counts.stops++
	p.w.log("%s stops for %v", p.host.name, d)
	p.stopped = true
	p.w.after(d, func() {
		if p.dead {
			return
		}
		p.w.log("%s goes on", p.host.name)
		p.stopped = false
		parked := p.parked
		p.parked = nil
		for _, do := range parked {
			p.run(do)
		}
	})
}

// connect opens a new session and registers with the whole inventory.
func (p *process) connect() {
	w := p.w
	l := w.newLink()
	p.link = l
	l.downBroken = func() { p.run(func() { p.disconnected(l) }) }
	ev := sched.WorkerRegistered{
		Name: p.host.name, Incarnation: p.incarnation, Host: p.host.name, Slots: p.host.slots, Resources: p.host.resources,
		MemoryBytes: w.plan.slabBytes, Executors: []string{"native", "python", "simexec"}, Notifies: true, PipelinedReads: w.plan.chains(),
	}
	switch {
	case ev.PipelinedReads:
		ev.Host = "gpus"
	case w.plan.mapped:
		ev.Host = fmt.Sprintf("machine-%d", p.host.machine())
	}
	for _, o := range p.inventory() {
		ev.Inventory = append(ev.Inventory, sched.Replica{Task: o.Task, Generation: o.Generation, Bytes: p.size(o)})
	}
	for _, r := range p.life.Attempts() {
		ev.Running = append(ev.Running, sched.TaskRef{Task: r.Task, Attempt: r.Attempt})
	}
	if !w.plan.keepReports {
		p.outgoing = workerMessage{}
	}
	// Attempts that have ended count as running until their end is reported.
	for _, r := range p.outgoing.reports {
		if isFinal(r.Outcome) {
			ev.Running = append(ev.Running, sched.TaskRef{Task: r.Task, Attempt: r.Attempt})
		}
	}
	// Objects that were not accepted yet are not in the inventory. The worker reports each of them
	// again, once.
	p.outgoing.gained = slices.DeleteFunc(p.outgoing.gained, func(g sched.Stored) bool { return g.Written })
	for _, o := range sortedObjects(p.written) {
		p.outgoing.gained = append(p.outgoing.gained, p.written[o].report)
	}
	if p.leaveRequested {
		p.leaveAllowed, p.outgoing.draining = false, true
	}
	functions := slices.SortedFunc(maps.Keys(p.functions), func(a, b ids.FunctionHash) int { return bytes.Compare(a[:], b[:]) })
	register := func() { w.server.register(l, p, p.address(), ev, functions) }
	l.send(true, register, nil)
	if l.broken && w.fault(w.plan.lateRegister) {
		w.after(w.between(0, 3*time.Second), register)
	}
}

func (p *process) disconnected(l *link) {
	if p.link != l {
		return
	}
	w := p.w
	w.log("%s sees stream %d broken", p.host.name, l.number)
	l.broken = true
	p.link = nil
	p.after(w.between(time.Millisecond, 500*time.Millisecond), func() {
		if p.link == nil {
			p.connect()
		}
	})
}

// address is that of the process; a restarted worker may have another one.
func (p *process) address() string {
	if p.w.plan.fixedPorts {
		return p.host.name
	}
	return p.incarnation
}

// sendOutgoing sends the collected message, if there is one.
func (p *process) sendOutgoing() {
	if p.outgoing.empty() || p.dead {
		return
	}
	if p.link == nil {
		if !p.w.plan.keepReports {
			p.outgoing = workerMessage{}
		}
		return
	}
	said := p.outgoing
	p.outgoing = workerMessage{}
	p.send(said, nil)
}

// measured is what a process reports in a heartbeat.
func (p *process) measured() *members.Measured {
	m := &members.Measured{MemoryUsedBytes: 1 + p.ledger.Stats().HeldBytes, Paths: []members.Path{}}
	for _, id := range sortedKeys(p.mappings) {
		m.Paths = append(m.Paths, members.Path{Peer: id, Maps: true})
	}
	if p.w.chance(0.1) {
		m.Paths = append(m.Paths, members.Path{
			Peer: ids.WorkerID(p.w.rng.IntN(1 + len(p.w.server.workers))), BytesPerSecond: 1e6 * (1 + 1e4*p.w.rng.Float64()), Latency: p.w.between(0, time.Millisecond),
		})
	}
	return m
}

// send sends a message; measured is nil unless it is a heartbeat.
func (p *process) send(said workerMessage, measured *members.Measured) {
	w, l := p.w, p.link
	if !said.empty() {
		w.log("stream %d from %s: %s", l.number, p.host.name, &said)
	}
	l.send(true, func() {
		if l.stream != nil {
			l.stream.receive(said.clone(), measured)
		}
	}, func() {
		if l.stream != nil && !said.empty() {
			w.log("again, stream %d from %s: %s", l.number, p.host.name, &said)
			again := said.clone()
			again.leaving = false
			if w.plan.loseEvery > 0 {
				// For an object that came and went, only the order in the stream tells which was
				// last. Real streams do not repeat messages within a session, so leave these out.
				again.gained, again.lost = nil, nil
			}
			l.stream.receive(again, nil)
		}
	})
}

// beat sends a heartbeat once a second.
func (p *process) beat() {
	if at, ok := p.ledger.NextDeadline(); ok && !p.w.now.Before(at) {
		p.carryOutLedger(p.ledger.Expire(p.w.now))
	}
	if p.link != nil {
		p.send(workerMessage{}, p.measured())
	}
	p.stepAll()
	p.mayLeave()
	p.after(beatEvery, p.beat)
}

// loseObject makes the process lose an object that is not in use, as a broken disk would.
func (p *process) loseObject() {
	all := p.inventory()
	if len(all) == 0 || p.stopped {
		return
	}
	o := pick(p.w, all)
	if v, ok := p.ledger.Lookup(o); ok && len(v.Pins)+v.Leases > 0 {
		return
	}
	p.run(func() {
		lost := sched.Replica{Task: o.Task, Generation: o.Generation, Bytes: p.size(o)}
		p.w.log("%s loses %s", p.host.name, o)
		p.w.oracle.byTask[o.Task].mayBeLost = true
		p.drop(o)
		p.outgoing.lost = append(p.outgoing.lost, lost)
		p.stepAll()
	})
}

// receive handles a message from the scheduler.
func (p *process) receive(l *link, said *schedulerMessage) {
	w := p.w
	if p.link != l {
		return
	}
	if said.stop != "" {
		w.log("%s is told to stop: %s", p.host.name, said.stop)
		p.host.crash("stopped: " + said.stop)
		return
	}
	if said.reregister {
		w.log("%s is told to register anew", p.host.name)
		l.broken = true
		p.connect()
		return
	}
	if said.registered != 0 {
		p.self = said.registered
		p.push(lifecycle.Registered{Self: said.registered})
	}
	for _, e := range said.peers {
		p.peers[e.worker] = e.at
		if e.at == nil {
			delete(p.mappings, e.worker)
		}
	}
	for _, hash := range said.dropped {
		delete(p.functions, hash)
	}
	for _, hash := range said.functions {
		p.functions[hash] = true
	}
	for _, r := range said.accepted {
		p.decided(object{Task: r.Task, Generation: r.Generation}, true)
	}
	for i := range said.assignments {
		p.assigned(&said.assignments[i])
	}
	for _, r := range said.freed {
		p.push(lifecycle.SlotFreed{Ref: lifecycle.Ref(r)})
	}
	for _, r := range said.retractions {
		p.push(lifecycle.Retracted{Ref: lifecycle.Ref(r)})
	}
	for _, r := range said.cancellations {
		p.push(lifecycle.Cancelled{Ref: lifecycle.Ref(r)})
	}
	for _, r := range said.releases {
		p.decided(object{Task: r.Task, Generation: r.Generation}, false)
		p.push(lifecycle.Released{Object: lifecycle.Object{Task: r.Task, Generation: r.Generation}})
	}
	for _, r := range said.rescues {
		p.rescue(r)
	}
	for _, r := range said.keeps {
		o := object{Task: r.Task, Generation: r.Generation}
		if _, here := p.find(o); here {
			r.Bytes = p.size(o)
			p.outgoing.gained = append(p.outgoing.gained, sched.Stored{Replica: r, Kept: true})
		} else {
			p.outgoing.lost = append(p.outgoing.lost, r)
		}
	}
	p.leaveAllowed = p.leaveAllowed || said.drained
	p.stepAll()
	p.mayLeave()
	if said.leave && !p.dead {
		p.host.leave()
	}
}

// decided handles the scheduler's decision about an object that a client wrote.
func (p *process) decided(o object, accepted bool) {
	if x := p.written[o]; x != nil {
		delete(p.written, o)
		x.answer(accepted)
	}
}

func sortedObjects[V any](m map[object]V) []object {
	out := make([]object, 0, len(m))
	for o := range m {
		out = append(out, o)
	}
	slices.SortFunc(out, func(a, b object) int {
		return cmp.Or(cmp.Compare(a.Task, b.Task), cmp.Compare(a.Generation, b.Generation))
	})
	return out
}

func (p *process) push(e lifecycle.Event) { p.events = append(p.events, e) }

// stepAll steps the lifecycle machine until no event is left.
func (p *process) stepAll() {
	if p.stepping {
		return
	}
	p.stepping = true
	for len(p.events) > 0 {
		e := p.events[0]
		p.events = p.events[1:]
		for _, effect := range slices.Clone(p.life.Step(p.w.now, e)) {
			p.carryOut(effect)
		}
		if p.stepsSinceCheck++; p.stepsSinceCheck >= p.w.server.checkEvery {
			p.deepCheck()
		}
	}
	p.stepping = false
	if !p.ticking && len(p.jobs) > 0 {
		p.ticking = true
		p.after(20*time.Millisecond, p.tick)
	}
}

func (p *process) deepCheck() {
	p.stepsSinceCheck = 0
	if err := p.life.Check(); err != nil {
		p.w.fail(nil, "worker %s: an invariant is broken: %v", p.host.name, err)
	}
	if err := p.ledger.Check(); err != nil {
		p.w.fail(nil, "worker %s: an invariant is broken: %v", p.host.name, err)
	}
}

func (p *process) tick() {
	p.ticking = false
	if len(p.jobs) > 0 {
		p.push(lifecycle.Ticked{})
		p.stepAll()
	}
}

// find returns the value of an object that can be read.
func (p *process) find(o object) (uint64, bool) {
	if p.written[o] != nil {
		return 0, false
	}
	if v, ok := p.small[o]; ok {
		return v, true
	}
	if v, ok := p.ledger.Lookup(o); ok && v.State == ledger.Sealed {
		return p.values[o], true
	}
	return 0, false
}

func (p *process) isSmall(o object) bool {
	_, ok := p.small[o]
	return ok
}

func (p *process) size(o object) uint64 {
	if v, ok := p.ledger.Lookup(o); ok {
		return v.Bytes()
	}
	return smallBytes
}

// inventory lists the readable objects, by task, without copies of items.
func (p *process) inventory() []object {
	var out []object
	for _, v := range p.ledger.Objects() {
		if v.State == ledger.Sealed && p.written[v.ID] == nil && v.ID.Item == 0 {
			out = append(out, v.ID)
		}
	}
	for o := range p.small {
		if p.written[o] == nil && o.Item == 0 {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b object) int {
		return cmp.Or(cmp.Compare(a.Task, b.Task), cmp.Compare(a.Generation, b.Generation))
	})
	return out
}

func (p *process) drop(o object) {
	if p.isSmall(o) {
		delete(p.small, o)
		return
	}
	if effects, err := p.ledger.Drop(o); err == nil {
		p.carryOutLedger(effects)
	}
}

func taskHolder(task ids.TaskID) ledger.Holder {
	return ledger.Holder{Kind: ledger.HolderTask, ID: uint64(task)}
}

func inputPin(r lifecycle.Ref) ledger.Pin {
	return ledger.Pin{Reason: ledger.PinInput, Holder: taskHolder(r.Task), Attempt: r.Attempt}
}

// carryOutLedger carries out the ledger's effects.
func (p *process) carryOutLedger(effects []ledger.Effect) {
	for _, e := range effects {
		switch e := e.(type) {
		case ledger.Granted:
			if id, ok := p.queuedReservations[e.Reservation]; ok {
				delete(p.queuedReservations, e.Reservation)
				p.push(lifecycle.Reserved{Reservation: id})
			}
		case ledger.Refused:
			if id, ok := p.queuedReservations[e.Reservation]; ok {
				delete(p.queuedReservations, e.Reservation)
				delete(p.reservations, id)
				p.push(lifecycle.ReserveFailed{Reservation: id, Message: e.Err.Error()})
			}
		case ledger.Freed:
			delete(p.values, e.Object)
		case ledger.LeaseExpired, ledger.PunchHoles:
		default:
			p.w.fail(nil, "worker %s has no tier below its slab, and was told %T", p.host.name, e)
		}
	}
}

// release ends a reservation in the ledger.
func (p *process) release(id ledger.ReservationID) {
	effects, err := p.ledger.Release(id)
	if err != nil && !errors.Is(err, ledger.ErrUnknown) {
		p.w.fail(nil, "worker %s: %v", p.host.name, err)
	}
	p.carryOutLedger(effects)
}

func runnerOf(op sched.OpSpec) string {
	switch op.Kind {
	case sched.OpNative:
		return "native"
	case sched.OpPythonImport, sched.OpPythonPickle:
		return "python"
	case sched.OpExec, sched.OpData:
	}
	return "simexec"
}

// assigned handles one assignment.
func (p *process) assigned(a *assignment) {
	w := p.w
	ref := lifecycle.Ref{Task: a.Task, Attempt: a.Attempt}
	if p.jobs[ref] != nil {
		p.push(&lifecycle.Assigned{Ref: ref})
		p.stepAll()
		return
	}
	if _, done := p.find(objectOf(ref)); done {
		return // It ran before. Its result was reported or is in the inventory.
	}
	if a.op.Kind == sched.OpPythonPickle && !p.functions[a.op.Function] {
		w.fail([]ids.TaskID{a.Task}, "%s came to %s, which has not got its function", ref, p.host.name)
	}
	s := w.oracle.specOf(a.Arguments)
	if s == nil || s.key != a.Key || s.op != a.op || len(a.Inputs) != len(s.inputs) {
		w.fail([]ids.TaskID{a.Task}, "%s came to %s with the wrong arguments: %q", ref, p.host.name, a.Arguments)
	}
	p.jobs[ref] = &job{ref: ref, spec: s, timeout: a.Timeout, assignment: a}
	e := &lifecycle.Assigned{
		Ref: ref, Rank: a.Rank, Slots: a.Slots, Resources: a.Resources, Runner: runnerOf(a.op), OutputBytes: a.ExpectedOutputBytes, Estimate: estimateOf(s),
	}
	for i := range a.Inputs {
		in := &a.Inputs[i]
		x := lifecycle.Input{
			Object: lifecycle.Object{Task: in.Task, Generation: in.Generation, Item: in.Item}, Bytes: in.Bytes, Inline: in.Inline != nil,
			Holders: in.Holders, Upstream: in.Upstream, Downstream: in.Downstream,
		}
		if in.Item != 0 {
			x.Items = itemsOfList
		}
		e.Inputs = append(e.Inputs, x)
	}
	e.Makers, e.Awaited = p.missingInputs(a)
	p.push(e)
	p.stepAll()
}

// estimateOf is what a worker knows of the run time of a task.
func estimateOf(s *spec) time.Duration {
	if s.run < time.Millisecond {
		return s.run
	}
	return 0
}

// admit looks up the inputs of an attempt, and pins those that are here.
func (p *process) admit(j *job) *lifecycle.Admitted {
	w, a, ref := p.w, j.assignment, j.ref
	e := &lifecycle.Admitted{Ref: ref, Estimate: estimateOf(j.spec), Found: make([]lifecycle.Found, len(a.Inputs))}
	j.inputs = p.inlineInputs(a)
	for i := range a.Inputs {
		x, found := &j.inputs[i], &e.Found[i]
		if x.known {
			found.Place = lifecycle.Kept
			continue
		}
		if _, here := p.find(listOf(x.object)); here {
			x.object = listOf(x.object)
		}
		v, here := p.find(x.object)
		switch {
		case !here:
		case p.isSmall(x.object):
			x.value, x.known, found.Place = v, true, lifecycle.Kept
		default:
			found.Place, found.Object = lifecycle.Pinned, lifecycle.Object(x.object)
			if err := p.ledger.Pin(x.object, inputPin(ref)); err != nil {
				w.fail([]ids.TaskID{a.Task}, "worker %s: %v", p.host.name, err)
			}
		}
	}
	return e
}

// inlineInputs lists the inputs of an assignment with the values that came with it.
func (p *process) inlineInputs(a *assignment) []jobInput {
	out := make([]jobInput, len(a.Inputs))
	for i := range a.Inputs {
		in := &a.Inputs[i]
		out[i].object = object{Task: in.Task, Generation: in.Generation, Item: in.Item}
		if in.Inline == nil {
			continue
		}
		v, ok := decode(in.Inline)
		if !ok {
			p.w.fail([]ids.TaskID{a.Task, in.Task}, "t%d came with a broken inline value of %s", a.Task, out[i].object)
		}
		out[i].value, out[i].known = v, true
	}
	return out
}

// carryOut carries out an effect of the lifecycle machine.
func (p *process) carryOut(e lifecycle.Effect) {
	w := p.w
	switch e := e.(type) {
	case lifecycle.Admit:
		p.push(p.admit(p.jobs[e.Ref]))
	case lifecycle.Reserve:
		p.reserve(e)
	case lifecycle.Unreserve:
		if id, ok := p.reservations[e.Reservation]; ok {
			delete(p.reservations, e.Reservation)
			delete(p.queuedReservations, id)
			p.release(id)
		}
	case lifecycle.StartFetch:
		p.fetch(e)
	case lifecycle.PinInput:
		o := object(e.Object)
		v, ok := p.find(o)
		if !ok {
			w.fail([]ids.TaskID{e.Ref.Task, o.Task}, "worker %s: %s is to be pinned for %s and is not here", p.host.name, o, e.Ref)
		}
		if !p.isSmall(o) {
			if err := p.ledger.Pin(o, inputPin(e.Ref)); err != nil {
				w.fail([]ids.TaskID{e.Ref.Task}, "worker %s: %v", p.host.name, err)
			}
			return
		}
		for i := range p.jobs[e.Ref].inputs {
			if in := &p.jobs[e.Ref].inputs[i]; in.object == o {
				in.value, in.known = v, true
			}
		}
	case lifecycle.Loosen: // nothing moves without a tier below the slab
	case lifecycle.Unpin:
		if effects, err := p.ledger.Unpin(object(e.Object), inputPin(e.Ref)); err == nil {
			p.carryOutLedger(effects)
		}
	case lifecycle.StartRun:
		p.startRun(e)
	case lifecycle.Resume:
		p.resume(e.Ref)
	case lifecycle.StopRun:
		p.stopRun(e.Ref)
	case lifecycle.TakeBack:
		if j := p.jobs[e.Ref]; j != nil && j.slot != nil && !j.begun {
			p.leaveSlot(j)
			p.push(lifecycle.RunReturned{Ref: e.Ref})
		}
	case lifecycle.Publish:
		j := p.jobs[e.Ref]
		delete(p.jobs, e.Ref)
		r := sched.Report{Task: e.Ref.Task, Attempt: e.Ref.Attempt, Outcome: sched.OutcomeSucceeded, RunTime: j.spec.run, OutputBytes: j.bytes}
		if j.bytes <= inlineBytes {
			r.Inline = encode(j.spec.value)
		}
		p.outgoing.reports = append(p.outgoing.reports, r)
		p.notify(objectOf(e.Ref))
	case lifecycle.Await:
		p.subscribe(object(e.Object), e.Peer)
	case lifecycle.Unawait:
		if peer := p.peers[e.Peer]; peer != nil {
			w.after(w.notificationDelay(), func() { peer.unsubscribe(object(e.Object), p) })
		}
	case lifecycle.EnterInput: // it was entered when it came
	case lifecycle.Discard:
		p.drop(objectOf(e.Ref))
	case lifecycle.Report:
		p.report(e)
	case lifecycle.Gained:
		p.outgoing.gained = append(p.outgoing.gained, sched.Stored{Replica: sched.Replica{
			Task: e.Object.Task, Generation: e.Object.Generation, Bytes: e.Bytes}})
	case lifecycle.Drop:
		p.drop(object(e.Object))
	default:
		w.fail(nil, "unknown effect %T", e)
	}
}

func (p *process) report(e lifecycle.Report) {
	r := sched.Report{Task: e.Ref.Task, Attempt: e.Ref.Attempt, Outcome: sched.Outcome(e.Outcome)}
	j := p.jobs[e.Ref]
	switch {
	case e.Reason != "":
		r.Err = &sched.TaskError{Reason: e.Reason, Message: e.Message, Worker: p.host.name, Attempt: e.Ref.Attempt}
	case j != nil:
		r.Err = j.ended
	}
	if r.Err != nil && j != nil {
		r.Err.OriginKey = j.spec.key
	}
	for _, u := range e.Unreachable {
		r.Unreachable = append(r.Unreachable, sched.Unreachable{
			Task: u.Object.Task, Generation: u.Object.Generation, FailedAt: slices.Clone(u.FailedAt), MissingAt: slices.Clone(u.MissingAt)})
	}
	if isFinal(r.Outcome) {
		delete(p.jobs, e.Ref)
	}
	p.outgoing.reports = append(p.outgoing.reports, r)
}

func (p *process) reserve(e lifecycle.Reserve) {
	p.lastReservation++
	id := p.lastReservation
	progress, effects, err := p.ledger.Reserve(p.w.now, ledger.Request{ID: id, Holder: taskHolder(e.Ref.Task), Bytes: e.Bytes, Deadline: p.w.now.Add(10 * time.Second)})
	p.carryOutLedger(effects)
	if err != nil {
		p.push(lifecycle.ReserveFailed{Reservation: e.Reservation, Message: err.Error()})
		return
	}
	p.reservations[e.Reservation] = id
	if progress == ledger.Ready {
		p.push(lifecycle.Reserved{Reservation: e.Reservation})
		return
	}
	p.queuedReservations[id] = e.Reservation
}

// storeWritten stores an object that a client wrote; answer later tells the client whether the
// scheduler accepts it. It returns false if there is no room.
func (p *process) storeWritten(task ids.TaskID, s *spec, answer func(accepted bool)) bool {
	o := object{Task: task, Generation: dataGeneration}
	if x := p.written[o]; x != nil {
		// An object is written once. A client that writes it again only asks whether the worker has
		// it.
		return true
	}
	if _, here := p.find(o); here {
		return true
	}
	if !p.store(o, s, 0) {
		return false
	}
	stored := sched.Stored{Replica: sched.Replica{Task: task, Generation: dataGeneration, Bytes: p.size(o)}, Written: true}
	if s.bytes <= inlineBytes {
		stored.Inline = encode(s.value)
	}
	p.written[o] = &written{stored, answer}
	p.outgoing.gained = append(p.outgoing.gained, stored)
	p.stepAll()
	return true
}

// store stores an object in the slab or, if it is small, beside it. The memory comes from the
// reservation from; 0: from a new one.
func (p *process) store(o object, s *spec, from ledger.ReservationID) bool {
	if s.bytes == 0 {
		p.small[o] = s.value
		return true
	}
	id, bytes := from, share(o, s.bytes)
	if from == 0 {
		p.lastReservation++
		id = p.lastReservation
		_, effects, err := p.ledger.Reserve(p.w.now, ledger.Request{ID: id, Holder: taskHolder(o.Task), Bytes: []uint64{bytes}})
		p.carryOutLedger(effects)
		if err != nil {
			return false
		}
		defer p.release(id)
	}
	if _, err := p.ledger.Allocate(id, o, bytes); err != nil {
		return false
	}
	if err := p.ledger.Seal(o, nil); err != nil {
		p.w.fail([]ids.TaskID{o.Task}, "worker %s: %v", p.host.name, err)
	}
	p.values[o] = s.value
	return true
}

// describe writes the process's state of a task.
func (p *process) describe(b *strings.Builder, task ids.TaskID) {
	for _, r := range p.life.Attempts() {
		if r.Task == task {
			state, _ := p.life.State(r)
			fmt.Fprintf(b, "  %s (%s) has %s, %s: %v\n", p.host.name, p.self, r, state, p.life.History(r))
		}
	}
	for _, o := range p.inventory() {
		if o.Task == task {
			fmt.Fprintf(b, "  %s (%s) holds %s\n", p.host.name, p.self, o)
		}
	}
}

// leftovers describes the state that is left in the process; empty if nothing is left.
func (p *process) leftovers() string {
	if p == nil {
		return "not running"
	}
	s := p.ledger.Stats()
	if s.Objects+s.Leases+s.Waiting+p.life.Len()+len(p.small)+len(p.written)+len(p.jobs)+len(p.values)+len(p.reservations)+len(p.functions) == 0 && s.HeldBytes+s.ReservedBytes == 0 {
		return ""
	}
	return fmt.Sprintf("%+v, attempts %v, %d small, %d jobs, %d values, %d reservations, %d functions", s, p.life.Attempts(), len(p.small), len(p.jobs), len(p.values), len(p.reservations), len(p.functions))
}

// isFinal reports whether an outcome is the end of an attempt.
func isFinal(o sched.Outcome) bool {
	return o != sched.OutcomeStarted && o != sched.OutcomeRetractRefused && o != sched.OutcomeBlocked && o != sched.OutcomeGoesOn
}
