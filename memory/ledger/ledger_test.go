package ledger

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/alloc"
)

func TestBooksHoldUnderRandomSteps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slab := rapid.SampledFrom([]uint64{64 << 10, 3 * mib, 8 * mib}).Draw(t, "slab")
		var below []Tier
		for i := range rapid.IntRange(0, 2).Draw(t, "tiers below") {
			below = append(below, Tier{
				Name: []string{"pinned", "disk"}[i], SizeBytes: slab * rapid.Uint64Range(1, 3).Draw(t, "size"),
				UnitBytes: rapid.SampledFrom([]uint64{0, 4096}).Draw(t, "unit"), DiscardBytes: rapid.SampledFrom([]uint64{0, 8192}).Draw(t, "discard"),
			})
		}
		x := newTester(t, slab, below...)
		limit := x.l.config.SizeBytes
		sizeGen := rapid.OneOf(rapid.Uint64Range(0, limit/16), rapid.Uint64Range(0, limit/2), rapid.Uint64Range(0, limit+1))
		sizesGen := rapid.SliceOfN(sizeGen, 0, 4)
		anyObj := func(t *rapid.T) ObjectID { return obj(rapid.IntRange(1, 12).Draw(t, "object")) }
		holder := func(t *rapid.T) Holder {
			return Holder{Kind: HolderKind(rapid.IntRange(1, 4).Draw(t, "kind")), ID: uint64(rapid.IntRange(1, 3).Draw(t, "holder"))}
		}
		pin := func(t *rapid.T) Pin {
			return Pin{
				Reason: Reason(rapid.IntRange(1, 4).Draw(t, "reason")), Holder: holder(t),
				Attempt: ids.Attempt(rapid.IntRange(0, 2).Draw(t, "attempt")), Rank: rapid.Uint64Range(0, 9).Draw(t, "rank"),
			}
		}
		soft := func(err error) {
			// A refusal is a correct result here. Check finds out whether it changed anything.
			for _, kind := range []error{nil, ErrOutgrown, ErrUnknown, ErrState, ErrDuplicate, ErrRange, ErrAway} {
				if errors.Is(err, kind) {
					return
				}
			}
			t.Fatal(err)
		}
		pick := func(t *rapid.T, from []ReservationID) ReservationID {
			if len(from) == 0 {
				t.Skip("no reservation")
			}
			return rapid.SampledFrom(from).Draw(t, "reservation")
		}
		t.Repeat(map[string]func(*rapid.T){
			"reserve": func(t *rapid.T) {
				x.ask(Request{
					Holder: holder(t), Bytes: sizesGen.Draw(t, "sizes"), Urgent: rapid.IntRange(0, 3).Draw(t, "urgent") == 0,
					Inputs: rapid.SliceOfN(rapid.Custom(anyObj), 0, 3).Draw(t, "inputs"),
				}, time.Duration(rapid.IntRange(0, 9).Draw(t, "wait")))
			},
			"rebuild": func(t *rapid.T) {
				id, o := pick(t, x.granted), anyObj(t)
				if v := x.l.objects[o]; v != nil && v.builder == x.l.reservations[id] {
					delete(x.want, o)
				}
				x.l.Rebuild(id, o)
			},
			"adopt": func(t *rapid.T) {
				id, from, to := pick(t, x.granted), anyObj(t), anyObj(t)
				err := x.l.Adopt(id, from, to, holder(t))
				soft(err)
				if err == nil {
					x.want[to] = x.want[from]
					delete(x.want, from)
				}
			},
			"merge": func(t *rapid.T) {
				from := pick(t, x.granted)
				err := x.l.Merge(from, pick(t, x.granted))
				soft(err)
				if err == nil {
					x.granted = slices.DeleteFunc(x.granted, func(id ReservationID) bool { return id == from })
				}
			},
			"hold": func(t *rapid.T) { soft(x.l.Hold(pick(t, x.granted), anyObj(t))) },
			"io": func(t *rapid.T) {
				if len(x.io) == 0 {
					t.Skip("no io")
				}
				var err error
				if rapid.IntRange(0, 7).Draw(t, "fails") == 0 {
					err = errors.New("broken disk")
				}
				x.carryOut(rapid.IntRange(0, len(x.io)-1).Draw(t, "which"), err)
			},
			"expect": func(t *rapid.T) {
				x.l.Expect(anyObj(t), rapid.SampledFrom([]uint64{0, 5, 7, UnknownUse, NeverUsed}).Draw(t, "use"))
			},
			"copied": func(t *rapid.T) { x.l.Copied(anyObj(t)) },
			"keep":   func(t *rapid.T) { x.l.Keep(anyObj(t)) },
			"look":   func(*rapid.T) { x.l.Snapshot(3) },
			"publish": func(t *rapid.T) {
				x.publish(anyObj(t))
				x.check()
			},
			"unpublish": func(t *rapid.T) {
				id := anyObj(t)
				x.l.Unpublish(id)
				if o := x.l.objects[id]; o != nil && o.state == Building && (o.published || x.published[id]) {
					t.Fatalf("object %s is still in the index", id)
				}
			},
			"read what is published": func(*rapid.T) { x.look() },
			"end reading": func(t *rapid.T) {
				if len(x.looks) == 0 {
					t.Skip("nobody reads")
				}
				x.endLook(rapid.IntRange(0, len(x.looks)-1).Draw(t, "who"))
			},
			"allocate": func(t *rapid.T) {
				_, err := x.allocate(pick(t, x.granted), anyObj(t), sizesGen.Draw(t, "sizes")...)
				soft(err)
			},
			"allocate what was reserved": func(t *rapid.T) {
				id := pick(t, x.granted)
				var sizes []uint64
				for _, b := range x.l.reservations[id].blocks {
					sizes = append(sizes, b.Bytes)
				}
				if _, err := x.allocate(id, anyObj(t), sizes...); !errors.Is(err, ErrDuplicate) && err != nil {
					t.Fatalf("memory that is set aside was refused: %v", err)
				}
			},
			"alias": func(t *rapid.T) {
				from, to := anyObj(t), anyObj(t)
				var ranges []memory.Frame
				var want []uint64
				if o, ok := x.l.Lookup(from); ok {
					for i, f := range o.Frames {
						cut := rapid.Uint64Range(0, f.Bytes).Draw(t, "cut")
						ranges = append(ranges, memory.Frame{Offset: f.Offset + cut, Bytes: f.Bytes - cut})
						want = append(want, x.want[from][i]+(f.Offset+cut)/alloc.Granule-f.Offset/alloc.Granule)
					}
				}
				err := x.l.Alias(pick(t, x.granted), to, from, ranges...)
				if soft(err); err == nil {
					x.want[to] = append(x.want[to], want...)
				}
			},
			"seal": func(t *rapid.T) { soft(x.l.Seal(anyObj(t), nil)) },
			"cost": func(t *rapid.T) {
				x.l.Cost(anyObj(t), time.Duration(rapid.Uint64Range(0, 1<<40).Draw(t, "took")))
			},
			"release": func(t *rapid.T) { x.release(pick(t, x.granted)) },
			"give up": func(t *rapid.T) { x.release(pick(t, x.queue)) },
			"drop": func(t *rapid.T) {
				out, err := x.l.Drop(anyObj(t))
				soft(err)
				x.effects(out)
			},
			"restore": func(t *rapid.T) {
				id := anyObj(t)
				before, _ := x.l.Lookup(id)
				err := x.l.Restore(id)
				soft(err)
				if can := before.State == Dropped && !x.lost[id]; can != (err == nil) {
					t.Fatalf("object %s, which is %s, lost: %v, is restored: %v", id, before.State, x.lost[id], err)
				}
			},
			"pin": func(t *rapid.T) { soft(x.l.Pin(anyObj(t), pin(t))) },
			"unpin": func(t *rapid.T) {
				out, err := x.l.Unpin(anyObj(t), pin(t))
				soft(err)
				x.effects(out)
			},
			"lease": func(t *rapid.T) {
				id, err := x.l.Lease(x.now, anyObj(t), holder(t), x.now.Add(time.Duration(rapid.IntRange(1, 9).Draw(t, "for"))))
				soft(err)
				if err == nil {
					x.leases = append(x.leases, id)
				}
			},
			"end lease": func(t *rapid.T) {
				if len(x.leases) == 0 {
					t.Skip("no lease")
				}
				id := rapid.SampledFrom(x.leases).Draw(t, "lease")
				e := x.l.leases[id]
				want := e != nil && x.now.Before(e.Deadline)
				held, out := x.l.EndLease(x.now, id)
				if held != want {
					t.Fatalf("ending lease %d said %v, want %v", id, held, want)
				}
				x.effects(out)
			},
			"renew": func(t *rapid.T) {
				if len(x.leases) > 0 {
					x.l.Renew(x.now, rapid.SampledFrom(x.leases).Draw(t, "lease"), x.now.Add(5))
				}
			},
			"tick": func(t *rapid.T) { x.now = x.now.Add(1) },
			"expire": func(t *rapid.T) {
				x.effects(x.l.Expire(x.now))
				if at, ok := x.l.NextDeadline(); ok && !x.now.Before(at) {
					t.Fatalf("after Expire at %v something was due at %v", x.now, at)
				}
			},
			"gone":    func(t *rapid.T) { x.holderGone(holder(t)) },
			"trim":    func(t *rapid.T) { x.effects(x.l.Trim(rapid.Uint64Range(0, limit).Draw(t, "keep"))) },
			"punched": func(t *rapid.T) { x.effects(x.l.Punched(rapid.Bool().Draw(t, "ok"))) },
			"":        func(t *rapid.T) { x.check() },
		})
		x.drain()
	})
}

// Tasks with several inputs and an output run concurrently in random order, on a slab that has room
// for about two of them. Each asks once, and no deadline is near.
func TestRunningTasksNeverDeadlock(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := newTester(t, 16*mib)
		left := rapid.IntRange(1, 60).Draw(t, "tasks")
		kept := 0
		for left > 0 || len(x.queue)+len(x.granted) > 0 {
			if left > 0 && (len(x.queue)+len(x.granted) == 0 || rapid.Bool().Draw(t, "arrive")) {
				left--
				x.reserve(task(left), time.Hour, rapid.SliceOfN(rapid.Uint64Range(1, 5*mib), 1, 3).Draw(t, "sizes")...)
				continue
			}
			if len(x.granted) == 0 {
				t.Fatalf("nobody runs, and %v wait", x.queue)
			}
			id := rapid.SampledFrom(x.granted).Draw(t, "finishes")
			if rapid.Bool().Draw(t, "keeps its result") {
				kept++
				block := x.l.reservations[id].blocks
				if _, err := x.allocate(id, obj(kept), block[0].Bytes); err != nil {
					t.Fatal(err)
				}
				if err := x.l.Seal(obj(kept), nil); err != nil {
					t.Fatal(err)
				}
			}
			x.release(id)
			// The graph uses results before it needs room for others.
			if len(x.granted) == 0 {
				for _, o := range x.l.Objects() {
					out, _ := x.l.Drop(o.ID)
					x.effects(out)
				}
			}
		}
	})
}

func TestLargerThanTheSlabIsRefusedAtOnceWithSizes(t *testing.T) {
	x := newTester(t, 64*mib)
	for name, sizes := range map[string][]uint64{
		"one block":        {65 * mib},
		"the sum":          {32 * mib, 33 * mib},
		"only by header":   {64 * mib},
		"only by rounding": {31*mib + 1, 31 * mib, 2*mib - 1},
		"overflow":         {1<<64 - 1, 2},
	} {
		_, _, err := x.l.Reserve(x.now, Request{ID: 1, Holder: task(7), Bytes: sizes, Deadline: x.now.Add(time.Hour)})
		if !errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), "64 MiB") || !strings.Contains(err.Error(), "task t7") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	// Not the bytes that were asked for are too large, but the blocks that they take.
	_, _, err := x.l.Reserve(x.now, Request{ID: 1, Holder: task(7), Bytes: slices.Repeat([]uint64{1}, 1<<20), Deadline: x.now.Add(time.Hour)})
	if !errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), "256 MiB") || !strings.Contains(err.Error(), "1048576 blocks") {
		t.Errorf("a million small blocks: got %v", err)
	}
	if _, granted := x.reserve(task(1), 0, 62*mib); !granted {
		t.Error("the largest aligned block of an empty slab was refused")
	}
}

func TestHoldersAreNamedInWords(t *testing.T) {
	for want, holder := range map[string]Holder{
		"task t42": task(42), "worker w3": {HolderWorker, 3}, "executor 0": {HolderExecutor, 0},
		"a client": {HolderClient, 0}, "a client that writes t9": {HolderClient, 9}, "an unknown holder": {},
	} {
		if got := holder.Describe(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for want, pin := range map[string]Pin{
		"input of task t42/a1": {Reason: PinInput, Holder: task(42), Attempt: 1}, "executor 7": {Reason: PinExecutor, Holder: Holder{HolderExecutor, 7}},
	} {
		if got := pin.Describe(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestSmallRequestWaitsBehindLargeOne(t *testing.T) {
	x := newTester(t, 64*mib)
	x.make(1, 40*mib)
	big, granted := x.reserve(task(2), time.Minute, 40*mib)
	if granted {
		t.Fatal("80 of 64 MiB were granted")
	}
	small, granted := x.reserve(task(3), time.Minute, 1)
	if granted {
		t.Fatal("a later request overtook the queue")
	}
	out, err := x.l.Drop(obj(1))
	if err != nil {
		t.Fatal(err)
	}
	want := []Effect{Freed{obj(1)}, Granted{Reservation: big}, Granted{Reservation: small}}
	if !slices.Equal(out, want) {
		t.Fatalf("got %v, want %v", out, want)
	}
}

func TestWaitEndsAtItsDeadlineAndNamesTheLargestHolders(t *testing.T) {
	x := newTester(t, 64*mib)
	x.make(1, 30*mib)
	x.make(2, 20*mib)
	if err := x.l.Pin(obj(1), Pin{Reason: PinInput, Holder: task(9)}); err != nil {
		t.Fatal(err)
	}
	first, _ := x.reserve(task(3), time.Second, 40*mib)
	second, _ := x.reserve(task(4), time.Minute, mib)
	if at, ok := x.l.NextDeadline(); !ok || !at.Equal(x.now.Add(time.Second)) {
		t.Fatalf("next deadline %v, %v", at, ok)
	}
	out := x.l.Expire(x.now.Add(time.Second))
	if len(out) != 2 || out[1] != (Granted{Reservation: second}) {
		t.Fatalf("got %v", out)
	}
	refused, ok := out[0].(Refused)
	if !ok || refused.Reservation != first || !errors.Is(refused.Err, ErrNoRoom) {
		t.Fatalf("got %v", out[0])
	}
	if text := refused.Err.Error(); !strings.Contains(text, "t1/a1 30 MiB (sealed, pinned as input of task t9); t2/a1 20 MiB") {
		t.Errorf("the error does not name the holders: %s", text)
	}
}

// Requests that arrived together have the same deadline. The first one is in the way of others that
// fit, one of which needs nothing but an input that is in the slab.
func TestDeadlineOfTheHeadRefusesNobodyElse(t *testing.T) {
	x := newTester(t, 64*mib)
	x.make(1, 40*mib)
	big, _ := x.reserve(task(2), time.Second, 40*mib)
	reader, granted := x.ask(Request{Holder: task(3), Inputs: []ObjectID{obj(1)}}, time.Second)
	if granted {
		t.Fatal("a later request overtook the queue")
	}
	small, _ := x.reserve(task(4), time.Second, mib)
	again, _ := x.reserve(task(5), time.Second, 40*mib)
	out := x.l.Expire(x.now.Add(time.Second))
	if len(out) != 3 || out[1] != (Granted{Reservation: reader}) || out[2] != (Granted{Reservation: small}) {
		t.Fatalf("got %v", out)
	}
	if refused, ok := out[0].(Refused); !ok || refused.Reservation != big {
		t.Errorf("got %v", out[0])
	}
	if at, ok := x.l.NextDeadline(); !ok || !at.Equal(x.now.Add(time.Second+recheck)) {
		t.Errorf("reservation %d has deadline %v, although others that were granted will end", again, at)
	}
}

func TestAliasesCountOnceAndOutliveTheirSource(t *testing.T) {
	x := newTester(t, 64*mib)
	whole := x.make(1, 10*mib)[0]
	id, _ := x.reserve(task(2), 0)
	half := memory.Frame{Offset: whole.Offset + 5*mib, Bytes: 5 * mib}
	if err := x.l.Alias(id, obj(2), obj(1), half, half); err != nil {
		t.Fatal(err)
	}
	middle := x.want[obj(1)][0] + 5*mib/alloc.Granule
	x.want[obj(2)] = []uint64{middle, middle}
	if err := x.l.Alias(id, obj(2), obj(1), memory.Frame{Offset: half.Offset, Bytes: half.Bytes + 1}); !errors.Is(err, ErrRange) {
		t.Errorf("a range behind the frame: got %v", err)
	}
	if err := x.l.Seal(obj(2), nil); err != nil {
		t.Fatal(err)
	}
	x.release(id)
	if held := x.l.Stats().HeldBytes; held != 10*mib {
		t.Errorf("%d bytes held, want the frame once", held)
	}
	if h := x.l.Largest(1)[0]; h.SharedBytes != 10*mib {
		t.Errorf("shared bytes: %+v", h)
	}
	for _, c := range []struct {
		drop ObjectID
		held uint64
	}{{obj(1), 10 * mib}, {obj(2), 0}} {
		out, err := x.l.Drop(c.drop)
		if err != nil {
			t.Fatal(err)
		}
		x.effects(out)
		if held := x.l.Stats().HeldBytes; held != c.held {
			t.Errorf("after dropping %s %d bytes are held, want %d", c.drop, held, c.held)
		}
	}
}

func TestDroppedObjectLivesAsLongAsPinsAndLeases(t *testing.T) {
	x := newTester(t, mib)
	x.make(1, 1000)
	reader := Holder{HolderClient, 5}
	if err := x.l.Pin(obj(1), Pin{Reason: PinExecutor, Holder: Holder{HolderExecutor, 1}}); err != nil {
		t.Fatal(err)
	}
	late, _ := x.l.Lease(x.now, obj(1), reader, x.now.Add(10))
	kept, _ := x.l.Lease(x.now, obj(1), reader, x.now.Add(10))
	if !x.l.Renew(x.now, kept, x.now.Add(30)) {
		t.Error("a lease that holds could not be renewed")
	}
	if out, err := x.l.Drop(obj(1)); err != nil || len(out) != 0 {
		t.Fatalf("drop: %v, %v", out, err)
	}
	if _, err := x.l.Lease(x.now, obj(1), reader, x.now.Add(10)); !errors.Is(err, ErrState) {
		t.Errorf("a lease on a dropped object: got %v", err)
	}
	if held, out := x.l.EndLease(x.now.Add(10), late); held || len(out) != 0 {
		t.Errorf("a lease ended at its deadline: held %v, %v", held, out)
	}
	if out, err := x.l.Unpin(obj(1), Pin{Reason: PinExecutor, Holder: Holder{HolderExecutor, 1}}); err != nil || len(out) != 0 {
		t.Errorf("freed under a read lease: %v, %v", out, err)
	}
	if held, out := x.l.EndLease(x.now.Add(20), kept); !held || !slices.Equal(out, []Effect{Freed{obj(1)}}) {
		t.Errorf("the last lease: held %v, %v", held, out)
	}
	if history := strings.Join(x.l.History(obj(1)), "\n"); !strings.Contains(history, "dropped") || !strings.HasSuffix(history, "freed 1000") {
		t.Errorf("history:\n%s", history)
	}
}

// A cancelled run reads its inputs until it has really stopped. The next run of the same task may
// have begun here by then.
func TestRunsOfOneTaskPinApart(t *testing.T) {
	x := newTester(t, mib)
	x.make(1, 1000)
	first := Pin{Reason: PinInput, Holder: task(9), Attempt: 1}
	second := Pin{Reason: PinInput, Holder: task(9), Attempt: 2}
	for _, p := range []Pin{first, second} {
		if err := x.l.Pin(obj(1), p); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := x.l.Drop(obj(1)); err != nil {
		t.Fatal(err)
	}
	if out, err := x.l.Unpin(obj(1), first); err != nil || len(out) != 0 {
		t.Fatalf("the first run's end freed what the second reads: %v, %v", out, err)
	}
	if out, err := x.l.Unpin(obj(1), second); err != nil || len(out) != 1 {
		t.Errorf("got %v, %v; want the object freed", out, err)
	}
}

func TestUnsealedObjectsGoWithTheirReservation(t *testing.T) {
	x := newTester(t, mib)
	id, _ := x.reserve(task(1), 0, 1000, 2000)
	if _, err := x.allocate(id, obj(1), 900); err != nil {
		t.Fatal(err)
	}
	if err := x.l.Pin(obj(1), Pin{Reason: PinInput, Holder: task(2)}); !errors.Is(err, ErrState) {
		t.Errorf("pin of a building object: got %v", err)
	}
	out, err := x.l.Release(id)
	if err != nil || !slices.Equal(out, []Effect{Freed{obj(1)}}) {
		t.Fatalf("got %v, %v", out, err)
	}
	if used := x.l.space.Used(); used != memory.HeaderBytes {
		t.Errorf("%d bytes still used", used)
	}
	if _, err := x.l.Release(id); !errors.Is(err, ErrUnknown) {
		t.Errorf("second release: got %v", err)
	}
}

func TestOutgrownReservationTakesFreeMemoryOrFailsWhole(t *testing.T) {
	x := newTester(t, 16*mib)
	id, _ := x.reserve(task(1), 0, mib)
	if _, err := x.allocate(id, obj(1), 3*mib, mib); err != nil {
		t.Fatalf("free memory was not used: %v", err)
	}
	x.check()
	before := x.l.Stats()
	_, err := x.l.Allocate(id, obj(1), 4*mib, 12*mib)
	if !errors.Is(err, ErrOutgrown) || !strings.Contains(err.Error(), "12 MiB") || !strings.Contains(err.Error(), "t1/a1") {
		t.Errorf("got %v", err)
	}
	if after := x.l.Stats(); after != before {
		t.Errorf("a refused allocation left a trace: %+v, before %+v", after, before)
	}
}

func TestForgoneMemoryIsFree(t *testing.T) {
	x := newTester(t, 16*mib)
	id, _ := x.reserve(task(1), 0, 10*mib)
	waiting, granted := x.reserve(task(2), time.Second, 12*mib)
	if granted {
		t.Fatal("there is room for both")
	}
	x.effects(x.l.Forgo(id))
	x.check()
	if !slices.Contains(x.granted, waiting) {
		t.Fatalf("the memory did not become free: %+v", x.l.Stats())
	}
	if effects := x.l.Forgo(id); len(effects) > 0 {
		t.Errorf("forgone twice: %v", effects)
	}
	if effects := x.l.Forgo(id + 1000); len(effects) > 0 {
		t.Errorf("an unknown reservation: %v", effects)
	}
	// The result of the first task takes free memory.
	x.release(waiting)
	if _, err := x.allocate(id, obj(1), 10*mib); err != nil {
		t.Fatal(err)
	}
	x.check()
	x.release(id)
}

func TestRebuiltObjectTakesItsMemoryAgain(t *testing.T) {
	x := newTester(t, 16*mib)
	id, _ := x.reserve(task(1), 0, 3*mib, 1000)
	if _, err := x.allocate(id, obj(1), 3*mib, 1000); err != nil {
		t.Fatal(err)
	}
	before := x.l.Stats()
	for range 3 {
		delete(x.want, obj(1))
		x.l.Rebuild(id, obj(1))
		x.check()
		if frames, err := x.allocate(id, obj(1), 3*mib, 1000); err != nil || len(frames) != 2 {
			t.Fatalf("%v, %v", frames, err)
		}
	}
	if after := x.l.Stats(); after != before {
		t.Errorf("books %+v, before %+v", after, before)
	}
	if err := x.l.Seal(obj(1), nil); err != nil {
		t.Fatal(err)
	}
	if o, _ := x.l.Lookup(obj(1)); len(o.Frames) != 2 {
		t.Errorf("frames %v", o.Frames)
	}
	x.l.Rebuild(id, obj(1)) // does nothing to a sealed object
	x.release(id)
}

func TestMemoryThatWasSetAsideIsAdopted(t *testing.T) {
	x := newTester(t, 16*mib)
	id, _ := x.reserve(Holder{Kind: HolderWorker}, 0, 3*mib)
	frames, err := x.allocate(id, obj(7), 3*mib)
	if err != nil {
		t.Fatal(err)
	}
	before := x.l.Stats()
	for _, bad := range []struct {
		in       ReservationID
		from, to ObjectID
		want     error
	}{{id + 100, obj(7), obj(1), ErrUnknown}, {id, obj(8), obj(1), ErrUnknown}, {id, obj(7), obj(7), ErrDuplicate}} {
		if err := x.l.Adopt(bad.in, bad.from, bad.to, task(1)); !errors.Is(err, bad.want) {
			t.Errorf("%d, %s as %s: %v", bad.in, bad.from, bad.to, err)
		}
	}
	if err := x.l.Adopt(id, obj(7), obj(1), task(1)); err != nil {
		t.Fatal(err)
	}
	x.want[obj(1)] = x.want[obj(7)]
	delete(x.want, obj(7))
	x.check()
	if after := x.l.Stats(); after != before {
		t.Errorf("books %+v, before %+v", after, before)
	}
	if _, there := x.l.Lookup(obj(7)); there {
		t.Error("it has its old name, too")
	}
	if err := x.l.Seal(obj(1), nil); err != nil {
		t.Fatal(err)
	}
	if o, _ := x.l.Lookup(obj(1)); !slices.Equal(o.Frames, frames) {
		t.Errorf("frames %v, had %v", o.Frames, frames)
	}
	if err := x.l.Adopt(id, obj(1), obj(2), task(1)); !errors.Is(err, ErrDuplicate) {
		t.Errorf("a sealed object got another name: %v", err)
	}
	x.release(id)
}

func TestEmptyFramesAndEmptyObjectsTakeNoMemory(t *testing.T) {
	x := newTester(t, alloc.Granule*32)
	if frames := x.make(1, 0, 0); len(frames) != 2 {
		t.Errorf("got %v", frames)
	}
	x.make(2)
	if s := x.l.Stats(); s.HeldBytes != 0 || s.Objects != 2 {
		t.Errorf("got %+v", s)
	}
	if got := x.l.Objects(); len(got) != 2 || got[0].ID != obj(1) || got[1].ID != obj(2) {
		t.Errorf("inventory: %v", got)
	}
}

// BenchmarkTaskCycle measures the cost of one small task: reserve, allocate, seal, release, pin,
// lease, end, unpin, drop, among 1,000 other objects.
func BenchmarkTaskCycle(b *testing.B) {
	x := newTester(b, 1<<30)
	for n := range 1000 {
		x.make(n+1, 64<<10)
	}
	holder := task(1)
	n := 2000
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		n++
		id, o := ReservationID(n), obj(n)
		_, _, err := x.l.Reserve(x.now, Request{ID: id, Holder: holder, Bytes: []uint64{4096}})
		must(err)
		_, err = x.l.Allocate(id, o, 4000)
		must(err)
		must(x.l.Seal(o, nil))
		_, err = x.l.Release(id)
		must(err)
		must(x.l.Pin(o, Pin{Reason: PinInput, Holder: holder}))
		lease, err := x.l.Lease(x.now, o, holder, x.now.Add(time.Second))
		must(err)
		x.l.EndLease(x.now, lease)
		_, err = x.l.Unpin(o, Pin{Reason: PinInput, Holder: holder})
		must(err)
		_, err = x.l.Drop(o)
		must(err)
	}
}

// A merged reservation holds an object once, so a dropped object is freed at once.
func TestMergedReservationHoldsAnInputOnce(t *testing.T) {
	x := newTester(t, 16*mib)
	x.make(1, mib)
	ask := func() ReservationID {
		id, _ := x.ask(Request{Holder: task(2), Bytes: []uint64{mib}, Inputs: []ObjectID{obj(1)}}, 0)
		return id
	}
	from, into := ask(), ask()
	if err := x.l.Merge(from, into); err != nil {
		t.Fatal(err)
	}
	x.granted = slices.DeleteFunc(x.granted, func(id ReservationID) bool { return id == from })
	out, err := x.l.Drop(obj(1))
	if err != nil || !slices.Equal(out, []Effect{Freed{obj(1)}}) {
		t.Errorf("drop: %v, %v", out, err)
	}
	x.check()
}
