package sim

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/notify"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/loop"
	"github.com/millrace/millrace/worker/native"
	"github.com/millrace/millrace/worker/session"
	"github.com/millrace/millrace/worker/store"
	"github.com/millrace/millrace/worker/tasklog"
)

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
	w.lastProcess++
	p := &process{
		w: w, host: h, number: w.lastProcess, incarnation: fmt.Sprintf("%08x-0000-4000-8000-000000000000", w.lastProcess),
		slab: &slab{size: w.plan.slabBytes}, mappings: map[ids.WorkerID]*process{}, lent: map[*loan]bool{}, kept: map[object]bool{},
	}
	p.slots, p.notifier = newSlots(p), &notifier{p: p, subscribers: map[*process]*notify.Subscriber{}}
	var below []memory.Tier
	if w.plan.diskBytes > 0 {
		p.disk = &tier{p: p, size: w.plan.diskBytes, space: tierSpace{p: p, size: w.plan.diskBytes}}
		below = append(below, p.disk)
	}
	log := slog.New(&logHandler{w: w, process: h.name, least: slog.LevelWarn})
	var err error
	if p.store, err = store.New(p.slab, log, below...); err != nil {
		w.fail(nil, "store: %v", err)
	}
	p.store.OnWaited(p.waited)
	p.path = &path{p: p}
	p.worker = loop.New(loop.Config{
		Registration: p.registration(), Native: &natives{p: p}, Store: p.store, Path: p.path, Notifier: p.notifier, Executors: &executors{p: p}, Logs: new(tasklog.Logs),
		Sessions: func(c session.Config) loop.Sessions { p.session = c; return p }, MemoryWait: memoryWait, Log: log, RSS: func() uint64 { return 1 }, Go: p.begin,
		Lifecycle: lifecycle.Config{
			StartedAfter: 60 * time.Millisecond, ReserveBytes: 64 << 10, SlotDepth: 8, FetchObjects: 5, Fetches: 6, MaxBlocked: 1 + w.rng.IntN(4),
		},
	})
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	p.worker.Begin(p.ctx)
	h.proc = p
	w.processes = append(w.processes, p)
	w.log("%s starts as %s", h.name, p.incarnation)
	p.connect()
	p.after(w.between(0, lifecycle.Beat), p.beat)
}

// memoryWait is how long attempts and writes wait for memory.
const memoryWait = 10 * time.Second

func (p *process) registration() *workerv1.Registration {
	w, h := p.w, p.host
	r := &workerv1.Registration{
		Name: h.name, Incarnation: p.incarnation, Host: h.name, DataAddress: p.address(), Slots: h.slots, Resources: h.resources, MemoryLimitBytes: w.plan.slabBytes,
		Executors: []string{"native", "python", "simexec"}, NativeOps: []string{mixOp, copyOp}, Notifies: h.index%7 != 3, Supervised: true,
	}
	switch {
	case w.plan.chains():
		r.Host, r.Device = "gpus", millracev1.DeviceKind_DEVICE_KIND_CUDA
	case w.plan.mapped:
		r.Host = fmt.Sprintf("machine-%d", h.machine())
	}
	return r
}

// crash ends the process at once. The scheduler learns of it from the broken stream, from the
// supervisor, from the registration of the next life, or not at all.
func (h *host) crash(cause string) {
	w, p := h.w, h.proc
	w.counts.crashes++
	w.log("%s (%s) crashes: %s", h.name, p.incarnation, cause)
	w.server.blame(p)
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

// leave tells the process to end. A stopped process learns it when it continues.
func (h *host) leave() {
	p := h.proc
	p.run(func() {
		h.w.log("%s is told to end", h.name)
		p.turn(loop.StopOrdered)
	})
}

// askToLeave simulates SIGTERM. The process leaves when the scheduler allows it and no attempt is
// left here, or when a time limit is over.
func (h *host) askToLeave() {
	p := h.proc
	p.run(func() {
		h.w.log("%s is told to leave", h.name)
		p.turn(loop.DrainOrdered)
	})
	p.after(h.w.between(100*time.Millisecond, 4*time.Second), func() { p.turn(loop.GraceOver) })
}

// end ends what is left of the process, and starts the next one later.
func (h *host) end() {
	w, p := h.w, h.proc
	p.dead, p.died, w.lastDeath = true, w.now, w.now
	p.cancel(errEnded)
	p.giveAll()
	p.notifier.end()
	// order-free: all get the same mark.
	for o := range p.kept {
		w.oracle.byTask[o.Task].mayBeLost = true
	}
	h.unmapLater()
	h.proc = nil
	w.after(w.between(50*time.Millisecond, 3*time.Second), h.start)
}

// machine is the number of the host's machine.
func (h *host) machine() int { return h.index * machines / h.w.plan.workers }

// unmapLater makes all processes unmap the memory of the dead process after some time, even without
// an order of the scheduler.
func (h *host) unmapLater() {
	dead := h.proc
	h.w.after(h.w.between(time.Second, 5*time.Second), func() {
		for _, o := range h.w.hosts {
			if o.proc != nil {
				o.proc.unmap(dead)
			}
		}
	})
}

// process is one life of a worker: its real loop with what it needs from the outside.
type process struct {
	w    *world
	host *host
	// number counts the processes of a run.
	number      int
	incarnation string
	// dead means that the process has ended, at the time died; stopped that it is suspended. parked
	// are the actions that it performs when it continues.
	dead, stopped bool
	died          time.Time
	parked        []func()
	// turns are those of its goroutines that came while it was suspended.
	turns  []chan struct{}
	ctx    context.Context //nolint:containedctx // it ends with the process
	cancel context.CancelCauseFunc

	worker   *loop.Worker
	store    *store.Store
	slab     *slab
	disk     *tier
	path     *path
	slots    *slots
	native   native.Host
	notifier *notifier
	// session is what the loop gives to its sessions, link the stream of the current one, nil if
	// there is none. registered: it has the scheduler's first message. sessions counts them, and
	// lost is the time since when there is none.
	session    session.Config
	link       *link
	registered bool
	sessions   uint64
	lost       time.Time
	// fetching: the receiver of messages carries out a fetch. unread are the messages that it will
	// receive afterwards.
	fetching bool
	unread   []func()

	// mappings are the processes, living or dead, whose memory is mapped here. lent are the loans
	// of others here that have not ended.
	mappings map[ids.WorkerID]*process
	lent     map[*loan]bool
	// kept are the objects that are no copies: they were made or written here, or the scheduler has
	// ordered to keep them.
	kept map[object]bool

	ticking         bool
	stepsSinceCheck int
}

// Run is part of loop.Sessions. Nobody calls it: connect and receive do its work.
func (*process) Run(context.Context) {}

// Connected is part of loop.Sessions.
func (p *process) Connected() bool { return p.link != nil && p.registered }

// Leave is part of loop.Sessions.
func (*process) Leave() {}

// run runs an action in the process. A stopped process runs it later, a dead one never.
func (p *process) run(do func()) {
	switch {
	case p.dead:
	case p.stopped:
		p.parked = append(p.parked, do)
	default:
		do()
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
		p.giveAll()
	})
}

// turn lets the worker's loop take a turn, and does what follows from it.
func (p *process) turn(why loop.Occasion) {
	if p.dead {
		return
	}
	if next := p.worker.Turn(why); next.Stopped {
		p.ended()
	}
}

// ended ends the process whose loop has stopped: it sends what the loop has left to say.
func (p *process) ended() {
	w, h := p.w, p.host
	w.log("%s ends: %v", h.name, p.worker.Stopped())
	w.counts.leaves++
	p.send()
	h.end()
}

// settle follows each step of the simulation in which the process may have done something: it
// handles the events in the inbox, sends the outbox and sees to the ticks.
func (p *process) settle() (busy bool) {
	if p.stopped {
		return false
	}
	for !p.dead && (p.worker.Waiting() || p.worker.Stopped() != nil) {
		busy = true
		p.turn(loop.Woken)
		if p.stepsSinceCheck++; p.stepsSinceCheck >= p.w.server.checkEvery {
			p.deepCheck()
		}
	}
	if p.dead {
		return busy
	}
	p.send()
	if !p.ticking && p.worker.Busy() {
		p.ticking = true
		p.after(tickEvery, p.tick)
	}
	return busy
}

// tickEvery is the time between two ticks of a loop. It is longer than lifecycle.Tick, which saves
// time.
const tickEvery = 20 * time.Millisecond

func (p *process) tick() {
	p.ticking = false
	p.turn(loop.TickDue)
}

// beat makes the loop send a heartbeat once a second.
func (p *process) beat() {
	p.turn(loop.BeatDue)
	p.after(lifecycle.Beat, p.beat)
}

func (p *process) deepCheck() {
	p.stepsSinceCheck = 0
	if err := p.worker.Check(); err != nil {
		p.w.fail(nil, "worker %s: an invariant is broken: %v", p.host.name, err)
	}
}

// connect opens a new session and registers with the whole inventory.
func (p *process) connect() {
	w := p.w
	l := w.newLink()
	p.link, p.registered = l, false
	l.downBroken = func() { p.run(func() { p.disconnected(l) }) }
	p.sessions++
	reply := make(chan *workerv1.Registration, 1)
	p.session.Tell(session.Opening{Session: p.sessions, Reply: reply})
	p.turn(loop.Woken)
	if p.dead {
		return
	}
	message := encoded(&workerv1.SessionRequest{Register: <-reply})
	register := func() { w.server.register(l, p, message) }
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
	if p.registered {
		p.lost = w.now
	}
	p.link = nil
	p.session.Tell(session.Alone{Since: w.now.Sub(p.lost)})
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

// send sends what is in the outbox.
func (p *process) send() {
	if !p.Connected() {
		return
	}
	w, l := p.w, p.link
	for m := p.session.Outbox.Take(); m != nil; m = p.session.Outbox.Take() {
		p.session.Outbox.Sent()
		for _, r := range m.GetTasks() {
			if r.GetError().GetReason() == "OUT_OF_MEMORY" {
				w.oracle.byTask[ids.TaskID(r.GetTaskId())].starved = true
			}
		}
		bare := m.GetStats() != nil && len(m.GetTasks())+len(m.GetObjects())+len(m.GetRescues())+len(m.GetMissingFunctions()) == 0
		if !bare {
			w.log("stream %d from %s: %s", l.number, p.host.name, saidUp(m))
		}
		whole := encoded(m)
		again := func() {
			if l.stream != nil && !bare {
				w.log("again, stream %d from %s", l.number, p.host.name)
				l.stream.receive(encoded(w.repeatedUp(m)))
			}
		}
		l.send(true, func() {
			if l.stream != nil {
				l.stream.receive(whole)
			}
		}, again)
	}
}

// repeatedUp is what may come again of a message. For an object that came and went, only the order
// in the stream tells which was last, and real streams do not repeat messages within a session.
func (w *world) repeatedUp(m *workerv1.SessionRequest) *workerv1.SessionRequest {
	again := &workerv1.SessionRequest{Tasks: m.GetTasks(), Rescues: m.GetRescues(), MissingFunctions: m.GetMissingFunctions(), Draining: m.GetDraining()}
	if p := &w.plan; p.loseEvery == 0 && p.diskBytes == 0 && !p.tight {
		again.Objects = m.GetObjects()
	}
	return again
}

// receive handles a message of the scheduler.
func (p *process) receive(l *link, message []byte) {
	if p.link != l {
		return
	}
	if p.fetching {
		p.unread = append(p.unread, func() { p.receive(l, message) })
		return
	}
	w := p.w
	m := new(workerv1.SessionResponse)
	if err := proto.Unmarshal(message, m); err != nil {
		w.fail(nil, "a message of the scheduler: %v", err)
	}
	p.checkAssignments(m)
	for _, r := range m.GetKeeps() {
		p.kept[object{Task: ids.TaskID(r.GetTaskId()), Generation: ids.Attempt(r.GetGeneration())}] = true
	}
	in := session.Message{Session: p.sessions, Response: m}
	if m.GetReregister() {
		w.log("%s is told to register anew", p.host.name)
		p.session.Tell(in)
		l.broken, p.lost = true, w.now
		p.connect()
		return
	}
	if !p.registered {
		p.registered = m.GetRegistered() != nil
		p.session.Tell(in)
		return
	}
	fetch, after := p.session.Receive(in)
	if fetch == nil {
		return
	}
	w.counts.prompt++
	p.fetching = true
	p.begin(func() {
		fetch(p.replaced(after))
		if p.fetching {
			p.replaced(after)()
		}
	})
}

// replaced lets another goroutine receive messages, while the fetch of the first one goes on.
func (p *process) replaced(after func()) func() {
	return func() {
		p.fetching = false
		after()
		p.after(0, func() {
			unread := p.unread
			p.unread = nil
			for _, do := range unread {
				p.run(do)
			}
		})
	}
}

// checkAssignments checks that assignments have the right arguments.
func (p *process) checkAssignments(m *workerv1.SessionResponse) {
	w := p.w
	for _, a := range m.GetAssignments() {
		task := ids.TaskID(a.GetTaskId())
		s := w.oracle.byTask[task]
		if s == nil || s.key != a.GetKey() || len(a.GetInputs()) != len(s.inputs) || s.op.Name != copyOp && w.oracle.specOf(a.GetArguments()) != s {
			w.fail([]ids.TaskID{task}, "t%d/a%d came to %s with the wrong arguments: %q", a.GetTaskId(), a.GetAttempt(), p.host.name, a.GetArguments())
		}
		items := s.items()
		for i, in := range a.GetInputs() {
			want := sched.ItemInput{}
			if w.plan.items && s.op.Name != copyOp && len(items) > 0 && items[0].Input == uint32(i) {
				want, items = items[0], items[1:]
			}
			if w.oracle.byTask[ids.TaskID(in.GetTaskId())] != s.inputs[i] || uint32(want.Item) != in.GetItem() {
				w.fail([]ids.TaskID{task}, "t%d/a%d came to %s with the wrong input %d: %v", a.GetTaskId(), a.GetAttempt(), p.host.name, i, in)
			}
		}
	}
}

func encoded(m proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

// loseObject makes the process lose an object that is not in use, as a broken disk would.
func (p *process) loseObject() {
	used := map[object]bool{}
	for _, h := range p.store.Snapshot(math.MaxInt).Pinned {
		used[h.Object] = true
	}
	var all []store.Object
	for _, o := range p.store.Inventory() {
		if o.HasPlace() && !used[o.ID] {
			all = append(all, o)
		}
	}
	if len(all) == 0 || p.stopped {
		return
	}
	o := pick(p.w, all)
	p.w.log("%s loses %s", p.host.name, o.ID)
	p.w.oracle.byTask[o.ID.Task].mayBeLost = true
	p.store.Lose(o.ID, errBroken)
}

// read returns the value of an object that clients and peers can read here.
func (p *process) read(o object) (uint64, bool) {
	leased := p.store.Source().Lease(transfer.Reader{}, []transfer.Ref{transfer.Ref(o)}, time.Second)[0]
	if leased.Err != nil {
		return 0, false
	}
	v, ok := valueOf(leased.Head.Header, func(i uint32) (uint64, bool) { return regionWord(leased.Regions[i]) })
	p.store.Source().Release([]transfer.LeaseID{leased.Lease})
	if !ok {
		p.w.fail([]ids.TaskID{o.Task}, "worker %s: the bytes of %s are not there", p.host.name, o)
	}
	return v, true
}

// keeps says whether an object is here, and is not dropped to make room.
func (p *process) keeps(o object) bool {
	found, ok := p.store.Lookup(o)
	return ok && (p.kept[o] || !found.HasPlace())
}

func (p *process) has(o object) bool {
	_, ok := p.store.Lookup(o)
	return ok
}

// describe writes the process's state of a task.
func (p *process) describe(b *strings.Builder, task ids.TaskID) {
	for _, line := range p.worker.Describe(task) {
		fmt.Fprintf(b, "  %s (%s) has %s\n", p.host.name, p.worker.Self(), line)
	}
	for _, o := range p.store.Inventory() {
		if o.ID.Task == task {
			fmt.Fprintf(b, "  %s (%s) holds %s\n", p.host.name, p.worker.Self(), o.ID)
		}
	}
}

// leftovers describes the state that is left in the process; empty if nothing is left.
func (p *process) leftovers() string {
	if p == nil {
		return "not running"
	}
	s, small, _ := p.store.Stats()
	err := p.worker.Residue()
	reserved := p.store.Snapshot(1).Reservations
	if s.Objects+s.Leases+s.Waiting+small+len(p.lent)+len(reserved)+p.slots.jobs() == 0 && s.HeldBytes+s.ReservedBytes == 0 && err == nil {
		return ""
	}
	return fmt.Sprintf("%+v, %d small, %d lent, %d reservations %+v, %d jobs: %v", s, small, len(p.lent), len(reserved), reserved, p.slots.jobs(), err)
}

// write lets a client write an object here, if there is room for it. answered is called when the
// scheduler has accepted or refused it.
func (p *process) write(o object, s *spec, answered func(accepted bool)) {
	w := p.w
	p.begin(func() {
		sizes := framesOf(s.bytes)
		in, err := p.worker.Receiver().Create(p.ctx, transfer.Head{Ref: transfer.Ref(o), Header: headerOf(s.value, sizes), FrameBytes: sizes})
		switch {
		case p.dead:
			return
		case status.Code(err) == codes.AlreadyExists:
			return // a client that writes it again only asks whether the worker has it
		case err != nil:
			w.log("%s has no room for %s: %v", p.host.name, o, err)
			return
		}
		p.kept[o] = true
		for _, r := range in.Regions() {
			p.slab.write(r.Frame, s.value)
		}
		if w.chance(0.5) && !p.sleep(w.between(0, time.Millisecond)) {
			return
		}
		open := true
		p.after(w.between(0, time.Millisecond), func() {
			if open && p.has(o) {
				w.fail([]ids.TaskID{o.Task}, "worker %s shows %s, which the scheduler has not accepted", p.host.name, o)
			}
		})
		err = in.Commit(p.ctx)
		if p.arrive(turnWritten, uint64(o.Task)) {
			open = false
			answered(err == nil)
		}
	})
}
