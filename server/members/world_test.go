package members_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/members"
	"github.com/millrace/millrace/server/sched"
)

// world makes random events, and compares the machine with a model of what the scheduling machine
// and the workers may rely on.
type world struct {
	m     *members.Machine
	now   time.Time
	pick  func(n int) int
	trace []string

	session members.Session
	heard   map[members.Session]time.Time
	// open has the open sessions, with their workers.
	open map[members.Session]ids.WorkerID
	// scheduled are the members as the scheduling machine knows them, with true if connected.
	scheduled map[ids.WorkerID]bool
	last      ids.WorkerID
	// names and incarnations are those of scheduled.
	names, incarnations map[ids.WorkerID]string
	reaped              map[string]bool
	// since is the time from which on a member must be heard from, or come back.
	since map[ids.WorkerID]time.Time
	// told are the addresses that a session was sent; "" stands for a worker that is gone.
	told map[members.Session]map[ids.WorkerID]string
}

const lease, grace = 5 * time.Second, 2 * time.Second

func newWorld(pick func(n int) int) *world {
	return &world{
		m: members.New(members.Config{Life: 1, Lease: lease, Grace: grace}), now: time.Unix(1000, 0), pick: pick,
		heard: map[members.Session]time.Time{}, open: map[members.Session]ids.WorkerID{}, scheduled: map[ids.WorkerID]bool{},
		names: map[ids.WorkerID]string{}, incarnations: map[ids.WorkerID]string{}, reaped: map[string]bool{},
		since: map[ids.WorkerID]time.Time{}, told: map[members.Session]map[ids.WorkerID]string{},
	}
}

func (w *world) say(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf(format, args...))
}

func (w *world) name() string { return string(rune('a' + w.pick(4))) }

func (w *world) incarnation(name string) string { return fmt.Sprintf("%s%d", name, w.pick(4)) }

// anySession is mostly one that was open at some time.
func (w *world) anySession() members.Session { return members.Session(w.pick(int(w.session)+1) + 1) }

func (w *world) step() error {
	switch what := w.pick(12); what {
	case 0, 1, 2:
		return w.register()
	case 3:
		s := w.anySession()
		w.say("disconnected %d", s)
		return w.give(members.Disconnected{Session: s})
	case 4:
		s := w.anySession()
		w.say("left %d", s)
		return w.give(members.Left{Session: s})
	case 5:
		return w.died()
	case 6:
		s, peer := w.anySession(), ids.WorkerID(w.pick(int(w.last)+2))
		w.say("session %d maps %d", s, peer)
		return w.give(members.Measured{Session: s, Paths: []members.Path{{Peer: peer, Maps: true, BytesPerSecond: 1e9}}})
	case 7:
		s, to := w.anySession(), ids.WorkerID(w.pick(int(w.last)+2))
		if peer, isNew := w.m.Introduce(s, to); isNew {
			w.say("session %d is told of %d", s, to)
			return w.tell(s, peer)
		}
		return nil
	case 8:
		w.say("unmapped")
		return w.give(members.Unmapped{Session: w.anySession(), Dead: ids.WorkerID(w.pick(int(w.last) + 2))})
	case 9:
		if w.pick(4) == 0 {
			w.say("stood still")
			for id := range w.since {
				w.since[id] = w.now
			}
			return w.give(members.StoodStill{})
		}
		return nil
	default:
		return w.pass()
	}
}

func (w *world) register() error {
	w.session++
	name := w.name()
	event := members.Registered{
		Session: w.session, Life: 1, DataAddress: fmt.Sprintf("%s:%d", name, w.pick(2)),
		Worker: sched.WorkerRegistered{Name: name, Incarnation: w.incarnation(name), Host: "h", PipelinedReads: w.pick(2) == 0},
	}
	welcome, effects, refused := w.m.Register(w.now, event, nil)
	w.say("register session %d, incarnation %s: worker %d, %v", w.session, event.Worker.Incarnation, welcome.Worker, refused)
	if refused != nil {
		if len(effects) > 0 {
			return fmt.Errorf("a refused registration has effects: %+v", effects)
		}
		if refused.Kind == members.ErrDead != w.reaped[event.Worker.Incarnation] {
			return fmt.Errorf("refused: %w, and the incarnation was reaped: %t", refused, w.reaped[event.Worker.Incarnation])
		}
		return nil
	}
	if w.reaped[event.Worker.Incarnation] {
		return fmt.Errorf("incarnation %s was reaped, and registers", event.Worker.Incarnation)
	}
	if connected, known := w.scheduled[welcome.Worker]; welcome.Back != known || known && w.incarnations[welcome.Worker] != event.Worker.Incarnation {
		return fmt.Errorf("worker %d is back: %t; connected %t, known %t", welcome.Worker, welcome.Back, connected, known)
	}
	if !welcome.Back && welcome.Worker <= w.last {
		return fmt.Errorf("worker %d has a number that was given before", welcome.Worker)
	}
	w.last = max(w.last, welcome.Worker)
	w.open[w.session], w.heard[w.session], w.told[w.session] = welcome.Worker, w.now, map[ids.WorkerID]string{}
	return w.carryOut(effects)
}

func (w *world) died() error {
	name := w.name()
	death := members.Death{DeviceFault: w.pick(3) == 0}
	if w.pick(3) > 0 {
		death.Incarnation = w.incarnation(name)
		w.reaped[death.Incarnation] = true
	} else if id, here := w.m.Named(name); here {
		w.reaped[w.incarnations[id]] = true
	} else {
		w.reaped[""] = true
	}
	w.say("died %s, incarnation %q", name, death.Incarnation)
	return w.give(members.Died{Name: name, Death: death})
}

func (w *world) pass() error {
	end := w.now.Add(time.Duration(w.pick(4000)) * time.Millisecond)
	for session := range w.open {
		if w.pick(2) == 0 {
			w.heard[session] = w.now
			w.since[w.open[session]] = w.now
		}
	}
	for at, ok := w.m.NextDeadline(); ok && !at.After(end); at, ok = w.m.NextDeadline() {
		w.now = at
		w.say("the time is %v", at.Unix())
		if err := w.give(timePassed(w.m, at, w.heard)); err != nil {
			return err
		}
	}
	w.now = end
	for id, connected := range w.scheduled {
		limit := grace
		if connected {
			limit = lease
		}
		if silence := w.now.Sub(w.since[id]); silence >= limit {
			return fmt.Errorf("worker %d is a member after %v without a sign of it; connected: %t", id, silence, connected)
		}
	}
	return nil
}

func (w *world) give(event members.Event) error { return w.carryOut(w.m.Step(w.now, event, nil)) }

func (w *world) carryOut(effects []members.Effect) error {
	for i := range effects {
		e := &effects[i]
		switch e.Kind {
		case members.EffectSchedule:
			if err := w.schedule(e.Event); err != nil {
				return err
			}
		case members.EffectEnded:
			if _, open := w.open[e.Session]; !open {
				return fmt.Errorf("session %d ends, and is not open", e.Session)
			}
			delete(w.open, e.Session)
		case members.EffectPeer:
			if err := w.tell(e.Session, e.Peer); err != nil {
				return err
			}
		case members.EffectDrop:
			return fmt.Errorf("an object is dropped although there is only one life")
		case members.EffectLost:
			if _, known := w.scheduled[e.Worker]; !known {
				return fmt.Errorf("worker %d is lost twice", e.Worker)
			}
		case members.EffectChanged, members.EffectUnmapped:
		}
	}
	return w.compare()
}

// tell records an address that a session is sent.
func (w *world) tell(session members.Session, peer members.Peer) error {
	if _, open := w.open[session]; !open {
		return fmt.Errorf("session %d is sent the address of %d after its end", session, peer.Worker)
	}
	if before, told := w.told[session][peer.Worker]; told && before == peer.Address {
		return fmt.Errorf("session %d is sent %q as the address of %d a second time", session, peer.Address, peer.Worker)
	}
	w.told[session][peer.Worker] = peer.Address
	return nil
}

// schedule plays the scheduling machine.
func (w *world) schedule(event sched.Event) error {
	switch event := event.(type) {
	case sched.WorkerRegistered:
		for id, name := range w.names {
			if name == event.Name && id != event.Worker {
				return fmt.Errorf("worker %d registers as %s, and worker %d has the name", event.Worker, name, id)
			}
		}
		w.scheduled[event.Worker], w.names[event.Worker], w.incarnations[event.Worker] = true, event.Name, event.Incarnation
		w.since[event.Worker] = w.now
	case sched.WorkerDisconnected:
		if !w.scheduled[event.Worker] {
			return fmt.Errorf("worker %d is disconnected, and was not connected", event.Worker)
		}
		w.scheduled[event.Worker], w.since[event.Worker] = false, w.now
	case sched.WorkerLost:
		if _, known := w.scheduled[event.Worker]; !known {
			return fmt.Errorf("worker %d is lost, and is not known", event.Worker)
		}
		for _, survivor := range event.Survivors {
			if !w.scheduled[survivor] || survivor == event.Worker || event.DeviceFault || event.Left {
				return fmt.Errorf("worker %d is to rescue the objects of worker %d: %+v", survivor, event.Worker, event)
			}
		}
		delete(w.scheduled, event.Worker)
		delete(w.names, event.Worker)
		delete(w.since, event.Worker)
	case sched.WorkerEnded, sched.RatesMeasured:
	default:
		return fmt.Errorf("unexpected %T", event)
	}
	return nil
}

// compare compares the machine with the model.
func (w *world) compare() error {
	if w.m.Len() != len(w.scheduled) {
		return fmt.Errorf("there are %d members, and the scheduling machine knows %d", w.m.Len(), len(w.scheduled))
	}
	for session, id := range w.open {
		if !w.scheduled[id] {
			return fmt.Errorf("session %d is open, and worker %d is not connected", session, id)
		}
		for peer, address := range w.told[session] {
			if _, known := w.scheduled[peer]; !known && address != "" {
				if _, _, buried := w.m.Tombstone(peer); !buried {
					return fmt.Errorf("session %d was not told that worker %d is gone", session, peer)
				}
			}
		}
	}
	return w.m.Check()
}

func TestRandomEvents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "pick") })
		for range 60 {
			if err := w.step(); err != nil {
				t.Fatalf("%v\n%s", err, strings.Join(w.trace[max(0, len(w.trace)-30):], "\n"))
			}
		}
	})
}

// TestTheSameEventsHaveTheSameEffects: the order of maps reaches no effect.
func TestTheSameEventsHaveTheSameEffects(t *testing.T) {
	events := func() (all []string) {
		m, now := members.New(members.Config{Life: 1}), time.Unix(0, 0)
		for i := range 50 {
			name := fmt.Sprint(i)
			_, effects, _ := m.Register(now, members.Registered{Session: members.Session(i + 1), Life: 1, DataAddress: name,
				Worker: sched.WorkerRegistered{Name: name, Incarnation: name, Host: "h", PipelinedReads: true}}, nil)
			all = append(all, show(effects))
		}
		return append(all, show(m.Step(now.Add(time.Minute), timePassed(m, now.Add(time.Minute), nil), nil)))
	}
	first := events()
	for range 5 {
		if !slices.Equal(first, events()) {
			t.Fatal("the effects differ")
		}
	}
}
