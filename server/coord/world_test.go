package coord_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/coord"
)

// world makes random calls, and compares the machine with a model of what callers may rely on.
type world struct {
	m      *coord.Machine
	now    time.Time
	pick   func(n int) int
	trace  []string
	ticket uint64
	hold   uint64

	// open are the calls that were not answered.
	open map[uint64]coord.Call
	// by are the locks that callers were given, "client/id/name", with their names.
	by map[string]string
	// holds are the numbers that were given and not ended.
	holds map[uint64]bool
	// log are the changes of durable rows, by step. restarts says that the machine may be replaced
	// by one that was loaded from them.
	log      [][]coord.Change
	restarts bool
	started  uint64
}

func newWorld(pick func(n int) int) *world {
	return &world{
		m: coord.New(coord.Config{TopicMessages: 5, Bytes: 64 << 10}), now: time.Unix(1000, 0), pick: pick, open: map[uint64]coord.Call{},
		by: map[string]string{}, holds: map[uint64]bool{},
	}
}

func (w *world) say(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf(format, args...))
}

func (w *world) name() string            { return string(rune('a' + w.pick(3))) }
func (w *world) client() ids.ClientID    { return ids.ClientID(1 + w.pick(3)) }
func (w *world) someWait() time.Duration { return time.Duration(w.pick(4)) * 3 * time.Second }

func (w *world) value() coord.Value {
	v := coord.Value{Data: []byte(strings.Repeat("v", w.pick(2000)))}
	if w.pick(2) == 0 {
		w.hold++
		w.holds[w.hold] = true
		v.Keys, v.Hold = []string{"k"}, w.hold
	}
	return v
}

// refuse ends the hold of a value that was not accepted.
func (w *world) refuse(v coord.Value) { delete(w.holds, v.Hold) }

func (w *world) step() error {
	w.now = w.now.Add(time.Duration(w.pick(3)) * time.Second)
	var out []coord.Effect
	if w.restarts && w.pick(25) == 0 {
		return w.restart()
	}
	switch what := w.pick(20); what {
	case 0, 1, 2, 3, 4, 5:
		call := w.call()
		var err *coord.Error
		w.open[call.Ticket] = call
		w.say("%d ask client=%d id=%q wait=%v keep=%t %s", call.Ticket, call.Client, call.ID, call.Wait, call.Keep, call.Ask)
		if out, err = w.m.Ask(w.now, call, nil); err != nil {
			w.say("  refused: %v", err)
			delete(w.open, call.Ticket)
			if ask, ok := call.Ask.(coord.PutInQueue); ok {
				w.refuse(ask.Value)
			}
		}
	case 6, 7, 8:
		out = w.release()
	case 9:
		value := w.value()
		var err *coord.Error
		w.say("set variable")
		if out, err = w.m.SetVariable(w.now, "ns", w.name(), value, nil); err != nil {
			w.refuse(value)
		}
	case 10:
		w.say("delete variable")
		out = w.m.DeleteVariable(w.now, "ns", w.name(), nil)
	case 11:
		w.say("set event")
		out, _ = w.m.SetEvent(w.now, "ns", w.name(), nil)
	case 12:
		w.say("clear event")
		out = w.m.ClearEvent(w.now, "ns", w.name(), nil)
	case 13:
		value := w.value()
		w.say("publish")
		var err *coord.Error
		if _, out, err = w.m.Publish(w.now, "ns", w.name(), []coord.Value{value}, nil); err != nil {
			w.refuse(value)
		}
	case 14:
		tree := &coord.Tree{Names: []string{"x", "y"}, Trees: []coord.Tree{{Leaf: []byte("1")}, {}}}
		if w.pick(3) == 0 {
			tree = nil
		}
		path := []string{w.name(), w.name()}[:1+w.pick(2)]
		w.say("metadata %q %v", path, tree)
		out, _ = w.m.SetMetadata(w.now, "ns", path, tree, nil)
	case 15:
		if len(w.open) > 0 {
			ticket := slices.Min(keys(w.open)) + uint64(w.pick(3))
			w.say("hang up %d", ticket)
			out = w.m.HungUp(w.now, ticket, nil)
			delete(w.open, ticket)
		}
	case 16:
		client, id := w.client(), w.id()
		w.say("withdraw or acknowledge %d %q", client, id)
		if w.pick(2) == 0 {
			out = w.m.Acknowledge(w.now, client, id, nil)
		} else {
			out = w.m.Withdraw(w.now, client, id, nil)
			w.unlock(client, id, nil)
		}
	case 17:
		if w.pick(3) == 0 {
			client := w.client()
			w.say("client %d is gone", client)
			out = w.m.ClientGone(w.now, client, nil)
			w.gone(client)
		}
	case 18:
		name := w.name()
		if w.pick(3) == 0 {
			w.say("close queue %s", name)
			if w.pick(2) == 0 {
				_, out = w.m.CloseQueue(w.now, "ns", name, nil)
			} else {
				_, out = w.m.LeaveQueue(w.now, w.client(), "ns", name, nil)
			}
		} else {
			out, _ = w.m.OpenQueue(w.now, w.client(), "ns", name, uint32(w.pick(3)), nil)
		}
	case 19:
		if w.pick(4) == 0 {
			name := w.name()
			w.say("close semaphore %s", name)
			_, out = w.m.CloseSemaphore(w.now, "ns", name, nil)
			w.closeLock(name)
		}
	}
	if err := w.take(out); err != nil {
		return err
	}
	if at, ok := w.m.NextDeadline(); ok && !at.After(w.now) {
		w.say("time passes")
		if err := w.take(w.m.TimePassed(w.now, nil)); err != nil {
			return err
		}
	}
	return nil
}

func keys[V any](m map[uint64]V) (out []uint64) {
	for k := range m {
		out = append(out, k)
	}
	return out
}

func (w *world) id() string { return []string{"", "p", "q", "r"}[w.pick(4)] }

func (w *world) call() coord.Call {
	w.ticket++
	call := coord.Call{Ticket: w.ticket, Client: w.client(), Namespace: "ns", ID: w.id(), Wait: w.someWait(), Keep: w.pick(2) == 0}
	kind := w.pick(7)
	if kind > 1 && w.pick(5) == 0 {
		call.Client, call.ID = 0, ""
	}
	switch kind {
	case 0, 1:
		if call.ID == "" { // Release without an id takes the oldest grant: see the script semaphores
			call.ID = fmt.Sprint("u", call.Ticket)
		}
		names := []string{"a", "b", "c"}[w.pick(3):]
		call.Ask = coord.Acquire{Names: names, Limit: 1 + uint32(w.pick(12)/11), Needed: 1 + w.pick(len(names))}
	case 2:
		call.Ask = coord.ReadVariable{Name: w.name()}
	case 3:
		call.Ask = coord.AwaitEvent{Name: w.name()}
	case 4:
		value := w.value()
		call.Ask = coord.PutInQueue{Name: w.name(), Value: value, MaxSize: uint32(w.pick(3))}
	case 5:
		call.Ask = coord.TakeFromQueue{Name: w.name(), Most: 1 + w.pick(2)}
	case 6:
		call.Ask = coord.ReadTopic{Name: w.name(), After: uint64(w.pick(4)), Later: w.pick(3) == 0, Most: 1 + w.pick(2)}
	}
	return call
}

// release gives back a lock that a caller was given, or one that it was not.
func (w *world) release() []coord.Effect {
	locks := make([]string, 0, len(w.by))
	for lock := range w.by {
		locks = append(locks, lock)
	}
	slices.Sort(locks)
	if len(locks) == 0 {
		if _, err := w.m.Release(w.now, 1, "zz", []string{"a"}, nil); err == nil || err.Kind != coord.ErrNotHeld {
			panic(fmt.Sprint("released what nobody holds: ", err))
		}
		return nil
	}
	var client int
	parts := strings.SplitN(locks[w.pick(len(locks))], "/", 3)
	_, _ = fmt.Sscan(parts[0], &client)
	w.say("release client=%d id=%q %s", client, parts[1], parts[2])
	out, err := w.m.Release(w.now, ids.ClientID(client), parts[1], []string{parts[2]}, nil)
	if err != nil {
		panic(w.tail() + fmt.Sprintf("%v was given and cannot be released: %v", parts, err))
	}
	w.unlock(ids.ClientID(client), parts[1], []string{parts[2]})
	return out
}

// unlock notes that locks are free; nil: all of a call.
func (w *world) unlock(client ids.ClientID, id string, names []string) {
	for _, name := range []string{"a", "b", "c"} {
		lock := fmt.Sprintf("%d/%s/%s", uint64(client), id, name)
		if _, held := w.by[lock]; held && (names == nil || slices.Contains(names, name)) {
			delete(w.by, lock)
		}
	}
}

func (w *world) gone(client ids.ClientID) {
	for lock := range w.by {
		if strings.HasPrefix(lock, fmt.Sprintf("%d/", uint64(client))) {
			delete(w.by, lock)
		}
	}
}

func (w *world) closeLock(name string) {
	for lock := range w.by {
		if strings.HasSuffix(lock, "/"+name) {
			delete(w.by, lock)
		}
	}
}

// take reads effects: each call is answered once, each hold ends once, a lock is given to as many
// as its limit allows.
func (w *world) take(out []coord.Effect) error {
	for _, effect := range out {
		switch effect.Kind {
		case coord.EffectChanged:
			w.log = append(w.log, effect.Changes)
		case coord.EffectUnheld:
			w.say("  unheld %d", effect.Hold)
			if !w.holds[effect.Hold] {
				return fmt.Errorf("hold %d ends a second time", effect.Hold)
			}
			delete(w.holds, effect.Hold)
		case coord.EffectAnswered:
			w.say("  answered %d met=%t %v, %d values, %d messages, %v", effect.Ticket, effect.Answer.Met, effect.Answer.Names, len(effect.Answer.Values), len(effect.Answer.Messages), effect.Err)
			call, ok := w.open[effect.Ticket]
			if !ok {
				return fmt.Errorf("call %d is answered, and nobody waits for it", effect.Ticket)
			}
			delete(w.open, effect.Ticket)
			for _, v := range effect.Answer.Values {
				if v.Hold != 0 && call.ID != "" && !w.holds[v.Hold] {
					return fmt.Errorf("call %d gets a value whose results are not held", effect.Ticket)
				}
			}
			if ask, ok := call.Ask.(coord.Acquire); ok && effect.Answer.Met {
				if len(effect.Answer.Names) > ask.Needed || len(effect.Answer.Names) == 0 {
					return fmt.Errorf("call %d needs %d locks and gets %v", effect.Ticket, ask.Needed, effect.Answer.Names)
				}
				w.lock(call, effect.Answer.Names)
			}
		}
	}
	if err := w.exclusive(); err != nil {
		return err
	}
	return w.m.Check()
}

func (w *world) lock(call coord.Call, names []string) {
	for _, name := range names {
		w.by[fmt.Sprintf("%d/%s/%s", uint64(call.Client), call.ID, name)] = name
	}
}

// exclusive compares the holders of the machine with those that were told.
func (w *world) exclusive() error {
	told := map[string]int{}
	for _, name := range w.by {
		told[name]++
	}
	for name, n := range told {
		if info := w.m.Semaphore("ns", name); n > len(info.Holders) || len(info.Holders) > int(info.Limit) {
			return fmt.Errorf("%d callers were told that they hold %s, and it has %d holders of %d", n, name, len(info.Holders), info.Limit)
		}
	}
	return nil
}

// end lets all time pass and all clients go, and looks for what is left.
func (w *world) end() error {
	for {
		at, ok := w.m.NextDeadline()
		if !ok {
			break
		}
		w.now = at
		w.say("time passes to the end")
		if err := w.take(w.m.TimePassed(w.now, nil)); err != nil {
			return err
		}
	}
	if len(w.open) > 0 {
		return fmt.Errorf("the calls %v were never answered", keys(w.open))
	}
	for client := ids.ClientID(1); client <= 3; client++ {
		w.gone(client)
		if err := w.take(w.m.ClientGone(w.now, client, nil)); err != nil {
			return err
		}
	}
	for _, name := range []string{"a", "b", "c"} {
		_, out := w.m.CloseQueue(w.now, "ns", name, w.m.DeleteVariable(w.now, "ns", name, nil))
		if err := w.take(out); err != nil {
			return err
		}
		// Messages of topics stay: publishing others pushes them out.
		for range 5 {
			_, out, err := w.m.Publish(w.now, "ns", name, []coord.Value{{}}, nil)
			if err != nil {
				return err
			}
			if err := w.take(out); err != nil {
				return err
			}
		}
		if info := w.m.Semaphore("ns", name); info.Limit != 0 {
			return fmt.Errorf("semaphore %s is left: %+v", name, info)
		}
	}
	if len(w.holds) > 0 {
		return fmt.Errorf("the holds %v were never ended", w.holds)
	}
	return w.m.Check()
}

func (w *world) run(steps int) error {
	for range steps {
		if err := w.step(); err != nil {
			return err
		}
	}
	return w.end()
}

func (w *world) tail() string { return strings.Join(w.trace[max(0, len(w.trace)-150):], "\n") }

func TestAnyWorldEndsWell(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "") })
		if err := w.run(rapid.IntRange(1, 100).Draw(t, "steps")); err != nil {
			t.Fatalf("%v\n%s", err, w.tail())
		}
	})
}

// prng is a fast random source for many seeds (xorshift64*).
type prng uint64

func (p *prng) pick(n int) int {
	x := uint64(*p)
	x ^= x >> 12
	x ^= x << 25
	x ^= x >> 27
	*p = prng(x)
	return int(x * 0x2545f4914f6cdd1d >> 33 % uint64(n))
}

func TestManySeedsEndWell(t *testing.T) {
	seeds := 2000
	if testing.Short() {
		seeds = 200
	}
	for seed := 1; seed <= seeds; seed++ {
		p := prng(uint64(seed) * 0x9e3779b97f4a7c15)
		w := newWorld(p.pick)
		if err := w.run(400); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, w.tail())
		}
	}
}

func TestSameChoicesSameEffects(t *testing.T) {
	for seed := 1; seed <= 20; seed++ {
		var traces [2]string
		for i := range traces {
			p := prng(uint64(seed) * 0x9e3779b97f4a7c15)
			w := newWorld(p.pick)
			if err := w.run(300); err != nil {
				t.Fatal(err)
			}
			traces[i] = strings.Join(w.trace, "\n")
		}
		if traces[0] != traces[1] {
			t.Fatalf("seed %d: two runs differ", seed)
		}
	}
}
