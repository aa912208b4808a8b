package ledger

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/memory"
)

func disk(sizeBytes uint64) Tier { return Tier{Name: "disk", SizeBytes: sizeBytes, UnitBytes: 4096} }

// where returns the place of object n: slab, disk, both, or coming.
func (x *tester) where(n int) string {
	o := x.l.objects[obj(n)]
	if o == nil {
		return "gone"
	}
	e := o.extents[0]
	switch {
	case e.places[0].presence == Resident && e.clean(0):
		return "both"
	case e.places[0].presence == Resident:
		return "slab"
	case e.places[0].presence == Coming:
		return "coming"
	case e.best() < 0:
		return "lost"
	}
	return "disk"
}

func (x *tester) whereAll(want string) {
	x.t.Helper()
	var is []string
	for n := range strings.Fields(want) {
		is = append(is, x.where(n+1))
	}
	if got := strings.Join(is, " "); got != want {
		x.t.Fatalf("objects are %s, want %s", got, want)
	}
}

func TestVictimIsWhatIsNeededLast(t *testing.T) {
	x := newTester(t, 16*mib, disk(64*mib))
	for n := range 7 {
		x.make(n+1, 2*mib)
	}
	x.l.Expect(obj(1), 10)
	x.l.Expect(obj(2), 90)
	x.l.Expect(obj(3), 50)
	x.l.Expect(obj(5), NeverUsed)
	// The use of 4, 6 and 7 is unknown, but a task that waits here needs 7.
	if err := x.l.Pin(obj(7), Pin{Reason: PinQueued, Holder: task(70), Rank: 20}); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ where, reason string }{
		{"slab slab slab slab disk slab slab", "nobody will need it"},
		{"slab slab slab disk disk slab slab", "nobody is known to need it"},
		{"slab slab slab disk disk disk slab", "nobody is known to need it"},
		{"slab disk slab disk disk disk slab", "at rank 90"},
		{"slab disk disk disk disk disk slab", "at rank 50"},
		{"slab disk disk disk disk disk disk", "at rank 20"},
	} {
		before := strings.Fields(x.places(7))
		id, granted := x.reserve(task(100), time.Minute, 2*mib)
		if granted {
			t.Fatal("a full slab had room")
		}
		x.settle()
		x.whereAll(step.where)
		for n, now := range strings.Fields(step.where) {
			if now != before[n] && !strings.Contains(strings.Join(x.l.History(obj(n+1)), "\n"), step.reason) {
				t.Errorf("the history of %d does not say %q:\n%s", n+1, step.reason, strings.Join(x.l.History(obj(n+1)), "\n"))
			}
		}
		if !slices.Contains(x.granted, id) {
			t.Fatal("room was made and not given")
		}
		// It keeps the memory that it got.
		if _, err := x.allocate(id, obj(1000+int(id)), 2*mib); err != nil {
			t.Fatal(err)
		}
	}
	// Held objects stay, even if they are needed last.
	if _, granted := x.reserve(task(101), 0, 8*mib); granted {
		t.Error("memory was given twice")
	}
}

// Among objects that are needed at the same time, the one with the smallest cost for its size
// leaves first, whenever it was used. Objects that cannot be computed again leave last.
func TestVictimAmongEqualsIsWhatIsQuicklyMadeAgain(t *testing.T) {
	for name, use := range map[string]uint64{"never": NeverUsed, "unknown": UnknownUse, "same rank": 7} {
		t.Run(name, func(t *testing.T) {
			x := newTester(t, 16*mib, disk(64*mib))
			for n, took := range []time.Duration{time.Minute, 0, time.Millisecond, time.Second, time.Millisecond} {
				x.make(n+1, 2*mib)
				x.l.Expect(obj(n+1), use)
				if took > 0 {
					x.l.Cost(obj(n+1), took)
				}
			}
			// It took half as long as object 4, for a quarter of the bytes.
			x.make(6, mib/2)
			x.l.Expect(obj(6), use)
			x.l.Cost(obj(6), 500*time.Millisecond)
			var order []ObjectID
			for _, e := range slices.SortedFunc(slices.Values(x.l.tiers[0].costly.list), compareVictims) {
				order = append(order, e.owners[0].id)
			}
			if want := []ObjectID{obj(3), obj(5), obj(4), obj(6), obj(1), obj(2)}; !slices.Equal(order, want) {
				t.Errorf("they leave in the order %v, want %v", order, want)
			}
			x.reserve(task(99), time.Minute, 2*mib, 2*mib, 2*mib)
			x.settle()
			if x.where(3) != "disk" || x.where(2) != "slab" {
				t.Errorf("objects are %s", x.places(6))
			}
			if history := strings.Join(x.l.History(obj(3)), "\n"); !strings.Contains(history, "took 1ms to make") || use >= UnknownUse && !strings.Contains(history, "; it took 1ms to make") {
				t.Errorf("the history does not have the cost:\n%s", history)
			}
		})
	}
}

func (x *tester) places(n int) string {
	var is []string
	for i := range n {
		is = append(is, x.where(i+1))
	}
	return strings.Join(is, " ")
}

func TestHeldBytesNeverLeave(t *testing.T) {
	x := newTester(t, 16*mib, disk(64*mib))
	for n := range 4 {
		x.make(n+1, 2*mib)
	}
	if err := x.l.Pin(obj(1), Pin{Reason: PinInput, Holder: task(9)}); err != nil {
		t.Fatal(err)
	}
	if _, err := x.l.Lease(x.now, obj(2), Holder{HolderWorker, 2}, x.now.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	holder, _ := x.ask(Request{Holder: task(8), Inputs: []ObjectID{obj(3)}}, 0)
	x.reserve(task(7), time.Hour, 14*mib)
	x.settle()
	// While the holder is granted, the other reservation does not get 14 MiB.
	x.whereAll("slab slab slab slab")
	x.release(holder)
	x.settle()
	x.whereAll("slab slab disk disk")
}

func TestInputsComeBackWithTheirReservation(t *testing.T) {
	x := newTester(t, 16*mib, disk(64*mib))
	for n := range 7 {
		x.make(n+1, 2*mib)
	}
	big, _ := x.reserve(task(50), time.Minute, 14*mib)
	x.settle()
	x.release(big)
	if x.places(7) != "disk disk disk disk disk disk disk" {
		t.Fatalf("objects are %s", x.places(7))
	}
	id, granted := x.ask(Request{Holder: task(51), Bytes: []uint64{2 * mib}, Inputs: []ObjectID{obj(2), obj(3), obj(99)}}, time.Minute)
	if !granted || !x.loading[id] {
		t.Fatalf("granted %v, loading %v", granted, x.loading[id])
	}
	x.whereAll("disk coming coming disk")
	x.settle()
	x.whereAll("disk both both disk")
	if x.loading[id] {
		t.Error("nobody said that the inputs have come")
	}
	// Both have a copy below, so they leave again without a write.
	x.release(id)
	x.reserve(task(52), 0, 14*mib)
	if len(x.io) > 0 {
		t.Errorf("clean bytes were written: %v", x.io)
	}
	x.whereAll("disk disk disk disk")
	// The request with its inputs on disk is larger than the slab.
	_, _, err := x.l.Reserve(x.now, Request{ID: 999, Holder: task(53), Bytes: []uint64{12 * mib}, Inputs: []ObjectID{obj(1), obj(2)}, Deadline: x.now.Add(time.Hour)})
	if !errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), "16 MiB") {
		t.Errorf("got %v", err)
	}
}

// If only the places of its own inputs are in the way of a reservation, these inputs move.
func TestOwnInputsMoveOutOfTheWay(t *testing.T) {
	x := newTester(t, 16*mib, disk(64*mib))
	for n := range 7 {
		x.make(n+1, 2*mib)
	}
	for _, n := range []int{1, 2, 3, 5, 6, 7} {
		out, err := x.l.Drop(obj(n))
		if err != nil {
			t.Fatal(err)
		}
		x.effects(out)
	}
	// Object 4 lies in the middle, and 12 MiB fit on neither side of it.
	id, granted := x.ask(Request{Holder: task(9), Bytes: []uint64{10 * mib}, Inputs: []ObjectID{obj(4)}}, time.Minute)
	if granted {
		t.Fatal("granted at once")
	}
	x.settle()
	if !slices.Contains(x.granted, id) || x.where(4) != "both" {
		t.Errorf("granted %v, the input is in %s", x.granted, x.where(4))
	}
}

func TestCopiesOfPeersAreDroppedRatherThanWritten(t *testing.T) {
	x := newTester(t, 16*mib, disk(64*mib))
	for n := range 7 {
		x.make(n+1, 2*mib)
	}
	x.l.Copied(obj(6))
	x.l.Copied(obj(7))
	if err := x.l.Pin(obj(7), Pin{Reason: PinQueued, Holder: task(1)}); err != nil {
		t.Fatal(err)
	}
	if _, granted := x.reserve(task(50), 0, 2*mib); !granted || len(x.io) > 0 {
		t.Errorf("granted %v, io %v", granted, x.io)
	}
	x.whereAll("slab slab slab slab slab gone slab")
}

// A copy that no peer keeps any more is written out like other objects, and without a tier below it
// stays.
func TestKeptCopiesAreNotDropped(t *testing.T) {
	x := newTester(t, 16*mib)
	for n := range 7 {
		x.make(n+1, 2*mib)
	}
	for n := range 7 {
		x.l.Copied(obj(n + 1))
	}
	if !x.l.Keep(obj(1)) || x.l.Keep(obj(99)) {
		t.Error("Keep does not report which object is here")
	}
	if tier := x.l.Tiers()[0]; tier.EvictableBytes != 12*mib || tier.CheapBytes != 12*mib {
		t.Errorf("evictable %d, cheap %d", tier.EvictableBytes, tier.CheapBytes)
	}
	if _, granted := x.reserve(task(50), 0, 8*mib); !granted {
		t.Error("the other copies did not make room")
	}
	if _, granted := x.reserve(task(51), 0, 8*mib); granted {
		t.Error("a kept object was dropped")
	}
	x.whereAll("slab gone gone gone gone gone gone")
}

func TestWriteAheadKeepsRoomReady(t *testing.T) {
	x := newTester(t, 32*mib, disk(64*mib))
	for n := range 14 {
		x.make(n+1, 2*mib)
	}
	if len(x.io) > 0 {
		t.Fatalf("written below the watermark: %v", x.io)
	}
	x.make(15, 1*mib)
	if len(x.io) != 3 {
		t.Fatalf("%d extents are written above the watermark of 28 MiB, want those down to 24", len(x.io))
	}
	x.settle()
	// They stay in the slab until the room is needed.
	x.whereAll("both both both slab slab")
	if _, granted := x.reserve(task(50), 0, 6*mib); !granted {
		t.Error("room that was made ready was not there")
	}
	x.whereAll("disk disk disk slab slab")
}

func TestFailedWriteLeavesBytesAndClosesTheTier(t *testing.T) {
	x := newTester(t, 16*mib, disk(64*mib))
	for n := range 7 {
		x.make(n+1, 2*mib)
	}
	id, _ := x.reserve(task(50), time.Hour, 2*mib)
	broken := errors.New("no space left on device")
	if len(x.io) == 0 {
		t.Fatal("nothing is written")
	}
	// Writes that were in progress together fail together, and count as one failure.
	for len(x.io) > 0 {
		x.carryOut(0, broken)
	}
	x.whereAll("slab slab slab slab slab slab slab")
	state := x.l.Tiers()[1]
	if state.Failed == nil || !errors.Is(state.Failed, broken) {
		t.Fatalf("the tier is not closed: %+v", state)
	}
	if x.check(); len(x.io) > 0 {
		t.Fatalf("written to a closed tier: %v", x.io)
	}
	at, ok := x.l.NextDeadline()
	if !ok || !at.Equal(x.now.Add(firstBackoff)) {
		t.Fatalf("next deadline %v, %v", at, ok)
	}
	// At the retry time, one write is tried. The backoff grows with each failure.
	x.now = at
	x.effects(x.l.Expire(x.now))
	if len(x.io) != 1 {
		t.Fatalf("%d writes are tried", len(x.io))
	}
	x.carryOut(0, broken)
	if at, _ := x.l.NextDeadline(); !at.Equal(x.now.Add(2 * firstBackoff)) {
		t.Fatalf("next deadline %v", at)
	}
	x.now = x.now.Add(2 * firstBackoff)
	x.effects(x.l.Expire(x.now))
	x.settle()
	if x.l.Tiers()[1].Failed != nil || !slices.Contains(x.granted, id) {
		t.Errorf("it works again: %+v, granted %v", x.l.Tiers()[1], x.granted)
	}
}

func TestRefusalSaysWhatTheDiskDoes(t *testing.T) {
	x := newTester(t, 16*mib, disk(4*mib))
	for n := range 7 {
		x.make(n+1, 2*mib)
	}
	x.reserve(task(50), time.Second, 12*mib)
	x.settle()
	out := x.l.Expire(x.now.Add(time.Second))
	var refused error
	for _, e := range out {
		if r, ok := e.(Refused); ok {
			refused = r.Err
		}
	}
	if !errors.Is(refused, ErrNoRoom) || !strings.Contains(refused.Error(), "disk holds 4 MiB of 4 MiB") {
		t.Errorf("got %v in %v", refused, out)
	}
}

func TestFailedReadLosesTheObjectAndFailsTheReservation(t *testing.T) {
	x := newTester(t, 16*mib, disk(64*mib))
	x.make(1, 2*mib)
	x.make(2, 2*mib)
	big, _ := x.reserve(task(50), time.Minute, 14*mib)
	x.settle()
	x.release(big)
	if err := x.l.Pin(obj(1), Pin{Reason: PinQueued, Holder: task(3)}); err != nil {
		t.Fatal(err)
	}
	id, _ := x.ask(Request{Holder: task(3), Inputs: []ObjectID{obj(1), obj(2)}}, time.Minute)
	order := x.io[0].(ReadIn)
	x.io = slices.Delete(x.io, 0, 1)
	out := x.l.ReadEnded(order.Ticket, memory.ErrChecksum)
	var lost, failed bool
	for _, e := range out {
		switch e := e.(type) {
		case Lost:
			lost = e.Object == obj(1) && errors.Is(e.Err, memory.ErrChecksum)
		case LoadFailed:
			failed = e.Object == obj(1) && e.Reservation == id
		}
	}
	if !lost || !failed {
		t.Fatalf("got %v", out)
	}
	x.lost[obj(1)] = true
	x.settle()
	if err := x.l.Pin(obj(1), Pin{Reason: PinQueued, Holder: task(4)}); !errors.Is(err, ErrState) {
		t.Errorf("a lost object can be pinned: %v", err)
	}
	x.release(id)
	gone, err := x.l.Unpin(obj(1), Pin{Reason: PinQueued, Holder: task(3)})
	if err != nil {
		t.Fatal(err)
	}
	x.effects(gone)
	x.whereAll("gone both")
}

// A leased object on disk stays readable there, whatever happens in the slab.
func TestLeaseOnDiskKeepsTheCopy(t *testing.T) {
	x := newTester(t, 16*mib, Tier{Name: "disk", SizeBytes: 4 * mib, UnitBytes: 4096, DiscardBytes: 4096})
	x.make(1, 2*mib)
	big, _ := x.reserve(task(50), time.Minute, 14*mib)
	x.settle()
	x.release(big)
	lease, err := x.l.Lease(x.now, obj(1), Holder{HolderWorker, 2}, x.now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	copies, ok := x.l.Copies(obj(1))
	if !ok || copies[0].Tier != 1 {
		t.Fatalf("copies %v, %v", copies, ok)
	}
	out, err := x.l.Drop(obj(1))
	if err != nil || len(out) > 0 {
		t.Fatalf("%v, %v", out, err)
	}
	x.check()
	if _, out := x.l.EndLease(x.now, lease); len(out) != 2 {
		t.Errorf("got %v, want the object freed and its range discarded", out)
	}
}

// The largest free piece of a tier is smaller than what is free there when the free bytes are not
// in one place.
func TestTiersTellTheirLargestFreePiece(t *testing.T) {
	x := newTester(t, 16*mib, disk(64*mib))
	free := func(i int) (largest, all uint64) {
		s := x.l.Tiers()[i]
		return s.LargestFreeBytes, s.SizeBytes - s.UsedBytes
	}
	if largest, all := free(1); largest != 64*mib || all != largest {
		t.Errorf("of an empty tier %d of %d bytes are in one piece", largest, all)
	}
	for n := range 15 {
		x.make(n+1, mib)
	}
	rest, _ := free(0)
	for n := 1; n < 15; n += 2 {
		out, err := x.l.Drop(obj(n + 1))
		if err != nil {
			t.Fatal(err)
		}
		x.effects(out)
	}
	x.settle()
	if largest, all := free(0); rest >= mib || largest != mib || all != 7*mib+rest {
		t.Errorf("of %d free bytes %d are in one piece, want 7 pieces of 1 MiB and %d bytes", all, largest, rest)
	}
}

// Small copies are not discarded one by one, because each would cost a system call. When the last
// one leaves, the whole range is discarded.
func TestEmptyTierIsSwept(t *testing.T) {
	x := newTester(t, 64<<10, Tier{Name: "disk", SizeBytes: 1 << 20, UnitBytes: 4096, DiscardBytes: 16 << 10})
	for n := range 10 {
		x.make(n+1, 5000)
	}
	big, _ := x.reserve(task(50), time.Minute, 58<<10)
	x.settle()
	x.release(big)
	for n := range 10 {
		out, err := x.l.Drop(obj(n + 1))
		if err != nil {
			t.Fatal(err)
		}
		x.effects(out)
		if n < 9 && len(x.io) > 0 {
			t.Fatalf("discarded after %d of 10: %v", n+1, x.io)
		}
	}
	if d, ok := x.io[0].(Discard); !ok || d.Region.Offset != 0 || d.Region.Bytes < 10*8192 {
		t.Fatalf("got %v", x.io)
	}
	x.settle()
	if used := x.l.Tiers()[1].UsedBytes; used != 0 || len(x.io) > 0 {
		t.Errorf("%d bytes are in use, %v", used, x.io)
	}
}

// A failed tier is not tried again because of room that its own failed writes left, not even if the
// writes were too small to be discarded one by one.
func TestFailedWritesAreNotRepeatedForTheirOwnRoom(t *testing.T) {
	x := newTester(t, 64<<10, Tier{Name: "disk", SizeBytes: 1 << 20, UnitBytes: 4096, DiscardBytes: 16 << 10})
	for n := range 10 {
		x.make(n+1, 5000)
	}
	x.reserve(task(50), time.Minute, 58<<10)
	for writes := 0; len(x.io) > 0; {
		if _, ok := x.io[0].(WriteOut); !ok {
			x.carryOut(0, nil)
			continue
		}
		if writes++; writes > 20 {
			t.Fatalf("%d writes to a tier that fails each", writes)
		}
		x.carryOut(0, errors.New("no space left on device"))
	}
	if tier := x.l.Tiers()[1]; tier.Failed == nil || tier.UsedBytes != 0 {
		t.Errorf("the tier: %+v", tier)
	}
}

// A running task that needs more goes before those that hold nothing.
func TestUrgentGoesFirst(t *testing.T) {
	x := newTester(t, 16*mib, disk(64*mib))
	running, _ := x.reserve(task(1), 0, 10*mib)
	x.reserve(task(2), time.Hour, 8*mib)
	more, granted := x.ask(Request{Holder: task(1), Bytes: []uint64{2 * mib}, Urgent: true}, time.Hour)
	if !granted {
		t.Error("a quarter of the slab is for those who run")
	}
	if err := x.l.Merge(more, running); err != nil {
		t.Fatal(err)
	}
	x.granted = slices.DeleteFunc(x.granted, func(id ReservationID) bool { return id == more })
	if _, err := x.allocate(running, obj(1), 10*mib, 2*mib); err != nil {
		t.Error(err)
	}
	x.check()
}

// A holder that will ask for as much again keeps others from the room for that.
func TestRoomIsLeftForTheResultsOfHolders(t *testing.T) {
	for _, partial := range []bool{false, true} {
		x := newTester(t, 16*mib, disk(64*mib))
		first, _ := x.ask(Request{Holder: task(1), Bytes: []uint64{6 * mib}, Partial: partial}, time.Hour)
		_, granted := x.ask(Request{Holder: task(2), Bytes: []uint64{5 * mib}, Partial: partial}, time.Hour)
		if granted == partial {
			t.Errorf("partial %v: the second was granted: %v", partial, granted)
		}
		if _, granted := x.ask(Request{Holder: task(1), Bytes: []uint64{6 * mib}, Urgent: true}, time.Hour); granted != partial {
			t.Errorf("partial %v: the first got as much again: %v", partial, granted)
		}
		if !x.l.Waits() || x.l.reservations[first] == nil {
			t.Error("one of both waits")
		}
		x.check()
	}
}

// So does a holder with inputs that were here before: it may ask for as much as they have.
func TestRoomIsLeftForResultsAsLargeAsInputs(t *testing.T) {
	x := newTester(t, 16*mib, disk(64*mib))
	for n := range 4 {
		x.make(n+1, 3*mib)
	}
	if _, granted := x.ask(Request{Holder: task(11), Inputs: []ObjectID{obj(1), obj(2)}, Partial: true}, time.Hour); !granted {
		t.Fatal("the first has no room")
	}
	if _, granted := x.ask(Request{Holder: task(12), Inputs: []ObjectID{obj(3), obj(4)}, Partial: true}, time.Hour); granted {
		t.Error("the second has taken the room for the result of the first")
	}
	x.check()
}

// Tasks of a random graph run on a slab that holds a part of their data, above a disk that holds
// all of it. In any order of IO, every reservation is served, no deadline passes, and nothing is
// dropped.
func TestEveryoneIsServedWithADiskBelow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Blocks of 2 MiB and more are aligned, which is slow to check.
		unit := rapid.SampledFrom([]uint64{mib / 32, mib / 32, mib / 32, mib}).Draw(t, "unit")
		x := newTester(t, 16*unit, Tier{Name: "pinned", SizeBytes: 8 * unit}, disk(400*unit))
		objects, started := 0, 0
		sizes := rapid.SliceOfN(rapid.Uint64Range(1, 5*unit), 1, 2)
		step := func() {
			switch rapid.IntRange(0, 6).Draw(t, "what") {
			case 0, 1:
				if len(x.io) > 0 {
					x.carryOut(rapid.IntRange(0, len(x.io)-1).Draw(t, "io"), nil)
				}
			case 2:
				x.publish(obj(max(objects, 1)))
				x.look()
			case 3:
				if len(x.looks) > 0 {
					x.endLook(rapid.IntRange(0, len(x.looks)-1).Draw(t, "who"))
				}
			default:
				x.finishOne(t, &objects)
			}
		}
		for ; started < 40; started++ {
			q := Request{Holder: task(started), Bytes: sizes.Draw(t, "sizes")}
			for range min(objects, rapid.IntRange(0, 2).Draw(t, "inputs")) {
				q.Inputs = append(q.Inputs, obj(rapid.IntRange(1, objects).Draw(t, "input")))
			}
			x.ask(q, time.Hour)
			for range rapid.IntRange(0, 3).Draw(t, "steps") {
				step()
			}
		}
		for len(x.queue)+len(x.granted)+len(x.io) > 0 {
			x.settle()
			x.finishOne(t, &objects)
			if len(x.granted)+len(x.io) == 0 && len(x.queue) > 0 {
				t.Fatalf("nobody runs, nothing moves, and %v wait:\n%+v", x.queue, x.l.Tiers())
			}
		}
	})
}

// finishOne lets a task that has its inputs build an object in its reservation.
func (x *tester) finishOne(t *rapid.T, objects *int) {
	for _, id := range x.granted {
		if x.loading[id] {
			continue
		}
		var sizes []uint64
		for _, b := range x.l.reservations[id].blocks {
			sizes = append(sizes, b.Bytes)
		}
		*objects++
		if _, err := x.allocate(id, obj(*objects), sizes...); err != nil {
			t.Fatal(err)
		}
		if err := x.l.Seal(obj(*objects), nil); err != nil {
			t.Fatal(err)
		}
		x.release(id)
		return
	}
}
