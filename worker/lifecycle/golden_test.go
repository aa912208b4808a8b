package lifecycle_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/worker/lifecycle"
)

// TestGolden runs the scripts in testdata. Each line of a command is one event:
//
//	assign t1/a1 rank=3 slots=2 runner=python est=100us out=5000000 gpu=1
//	    in=t9/a1:pinned in=t8/a2:4096@w2,w3 in=t8/a2/i3:64@w2  (all in one line)
//	    maker=t1/a1 await=t8/a2@w2 function=f
//	functions f g | disconnected
//	admitted t1/a1 in=t9/a1:pinned (some of its inputs)
//	made t8/a2 | made t8/a2 value | never-made t8/a2
//	asked t1/a1 p2 | asked t1/a1 p2 here | unasked t1/a1 p2 | left p2 | beat 3s
//	reserved 1 | loading 1 | loaded 1 | lost t1/a1 t9/a1 1 (or no reservation) | away t1/a1
//	refused 1
//	in-place-failed t1/a1 | waits 1 | too-large 1 | renewed
//	leasing t1/a1 | leased t1/a1 granted for-now for-good lost not-held none (by input)
//	fetched 1 t8/a2 | missing 1 t8/a2 | broken 1 t8/a2 | noroom-fetch 1 t8/a2 | fetch-ended 1
//	rescued t8/a2
//	short | called t1/a1
//	ended t1/a1 moved=4096 | failed t1/a1 | died t1/a1 | returned t1/a1 | no-room t1/a1 100
//	blocked t1/a1 | freed t1/a1 | unblocked t1/a1
//	retract t1/a1 | cancel t1/a1 | release t8/a2 | tick 25ms
//
// The place of an input is pinned or away, or it has a size and holders, and may be kept. Results
// of makers and awaited objects are kept inputs unless they are named. Admit is answered at once
// and not shown if the attempt was assigned with all its inputs and waits for none; otherwise the
// answer is "admitted", which repeats the inputs that are elsewhere now.
//
// The output is the effects of each event, and after "state" the state of each attempt.
func TestGolden(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		t.Helper()
		var m *lifecycle.Machine
		assigned := make(map[lifecycle.Ref]*assignment)
		now := time.Unix(0, 0)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			t.Helper()
			switch d.Cmd {
			case "new":
				c := lifecycle.Config{Self: 1, Slots: 1, Resources: map[string]float64{"gpu": 1}}
				d.MaybeScanArgs(t, "slots", &c.Slots)
				d.MaybeScanArgs(t, "depth", &c.SlotDepth)
				d.MaybeScanArgs(t, "max-blocked", &c.MaxBlocked)
				d.MaybeScanArgs(t, "per-peer", &c.FetchesPerPeer)
				d.MaybeScanArgs(t, "fetch-objects", &c.FetchObjects)
				c.Leases, c.ReadsInPlace = d.HasArg("leases"), d.HasArg("in-place")
				m = lifecycle.New(c)
				clear(assigned)
				return ""
			case "step":
				var out strings.Builder
				for line := range strings.Lines(d.Input) {
					for events := []lifecycle.Event{parse(t, &now, strings.Fields(line), assigned)}; len(events) > 0; events = events[1:] {
						for _, effect := range m.Step(now, events[0]) {
							if x, is := effect.(lifecycle.Admit); is && assigned[x.Ref].whole {
								assigned[x.Ref].whole = false
								if x.Ways == nil {
									events = append(events, assigned[x.Ref].found())
									continue
								}
							}
							fmt.Fprintf(&out, "%s\n", describe(effect))
						}
						if err := m.Check(); err != nil {
							t.Fatalf("after %q: %v", line, err)
						}
					}
				}
				return out.String()
			case "state":
				var out strings.Builder
				for _, r := range m.Attempts() {
					s, _ := m.State(r)
					fmt.Fprintf(&out, "%s %s\n", r, s)
				}
				return out.String()
			case "history":
				return strings.Join(m.History(ref(t, d.CmdArgs[0].Key)), "\n") + "\n"
			}
			t.Fatalf("unknown command %s", d.Cmd)
			return ""
		})
	})
}

var refusals = map[string]lifecycle.Refusal{
	"for-now": lifecycle.RefusedForNow, "lost": lifecycle.HolderLost, "not-held": lifecycle.NotHeld,
}

func number(t *testing.T, s string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func ref(t *testing.T, s string) lifecycle.Ref {
	t.Helper()
	task, attempt, _ := strings.Cut(s, "/a")
	return lifecycle.Ref{Task: ids.TaskID(number(t, strings.TrimPrefix(task, "t"))), Attempt: ids.Attempt(number(t, attempt))}
}

func object(t *testing.T, s string) lifecycle.Object {
	t.Helper()
	s, item, isItem := strings.Cut(s, "/i")
	r := ref(t, s)
	o := lifecycle.Object{Task: r.Task, Generation: r.Attempt}
	if isItem {
		o.Item = ids.Item(number(t, item))
	}
	return o
}

func parse(t *testing.T, now *time.Time, f []string, assigned map[lifecycle.Ref]*assignment) lifecycle.Event {
	t.Helper()
	arg := func(i int) string {
		if i >= len(f) {
			t.Fatalf("%v: too short", f)
		}
		return f[i]
	}
	switch f[0] {
	case "assign":
		return assign(t, f[1:], assigned)
	case "admitted":
		a := assigned[ref(t, arg(1))]
		for _, field := range f[2:] {
			in, place := input(t, strings.TrimPrefix(field, "in="))
			a.places[in.Object] = place
		}
		return a.found()
	case "functions":
		var e lifecycle.FunctionsCame
		for _, name := range f[1:] {
			e.Functions = append(e.Functions, ids.FunctionHash{name[0]})
		}
		return e
	case "disconnected":
		return lifecycle.Disconnected{}
	case "short":
		return lifecycle.Short{}
	case "called":
		return lifecycle.Called{Ref: ref(t, arg(1))}
	case "made":
		e := lifecycle.Made{Object: object(t, arg(1))}
		if len(f) > 2 {
			e.Inline = []byte(f[2])
		}
		return e
	case "asked":
		return lifecycle.Asked{Object: object(t, arg(1)), By: arg(2), Here: len(f) > 3}
	case "unasked":
		return lifecycle.Unasked{Object: object(t, arg(1)), By: arg(2)}
	case "left":
		return lifecycle.Unasked{By: arg(1), All: true}
	case "never-made":
		return lifecycle.NeverMade{Object: object(t, arg(1))}
	case "registered":
		return lifecycle.Registered{Self: ids.WorkerID(number(t, strings.TrimPrefix(arg(1), "w")))}
	case "reserved":
		return lifecycle.Reserved{Reservation: lifecycle.ReservationID(number(t, arg(1)))}
	case "loading":
		return lifecycle.Reserved{Reservation: lifecycle.ReservationID(number(t, arg(1))), Loading: true}
	case "loaded":
		return lifecycle.Loaded{Reservation: lifecycle.ReservationID(number(t, arg(1)))}
	case "lost":
		e := lifecycle.InputLost{Ref: ref(t, arg(1)), Object: object(t, arg(2))}
		if len(f) > 3 {
			e.Reservation = lifecycle.ReservationID(number(t, arg(3)))
		}
		return e
	case "away":
		return lifecycle.InputAway{Ref: ref(t, arg(1))}
	case "in-place-failed":
		return lifecycle.InPlaceFailed{Ref: ref(t, arg(1))}
	case "leasing":
		return lifecycle.LeasesRequested{Ref: ref(t, arg(1))}
	case "leased":
		e := &lifecycle.Leased{Ref: ref(t, arg(1))}
		for _, answer := range f[2:] {
			x := lifecycle.LeaseAnswer{Granted: answer == "granted", Refusal: refusals[answer]}
			if !x.Granted && answer != "none" {
				x.Why = answer
			}
			e.Answers = append(e.Answers, x)
		}
		return e
	case "renewed":
		return lifecycle.Renewed{}
	case "waits":
		return lifecycle.ReserveWaits{Reservation: lifecycle.ReservationID(number(t, arg(1)))}
	case "too-large":
		return lifecycle.ReserveFailed{Reservation: lifecycle.ReservationID(number(t, arg(1))), TooLarge: true, Message: "larger than the slab"}
	case "refused":
		return lifecycle.ReserveFailed{Reservation: lifecycle.ReservationID(number(t, arg(1))), Message: "slab is full"}
	case "fetched":
		return lifecycle.InputFetched{Fetch: lifecycle.FetchID(number(t, arg(1))), Object: object(t, arg(2)), Bytes: 100}
	case "rescued":
		return lifecycle.Rescued{Object: object(t, arg(1)), Bytes: 100}
	case "missing", "broken", "noroom-fetch":
		return lifecycle.FetchFailed{
			Fetch: lifecycle.FetchID(number(t, arg(1))), Object: object(t, arg(2)),
			Missing: f[0] == "missing", NoRoom: f[0] == "noroom-fetch", Message: f[0],
		}
	case "fetch-ended":
		return lifecycle.FetchEnded{Fetch: lifecycle.FetchID(number(t, arg(1))), Message: "stream broke"}
	case "ended":
		e := lifecycle.RunEnded{Ref: ref(t, arg(1)), Succeeded: true}
		if len(f) > 2 {
			e.Moved = number(t, strings.TrimPrefix(arg(2), "moved="))
		}
		return e
	case "failed":
		return lifecycle.RunEnded{Ref: ref(t, arg(1)), Outcome: lifecycle.Failed}
	case "died":
		return lifecycle.RunEnded{Ref: ref(t, arg(1)), Outcome: lifecycle.ExecutorDied}
	case "returned":
		return lifecycle.RunReturned{Ref: ref(t, arg(1))}
	case "no-room":
		return lifecycle.NoRoom{Ref: ref(t, arg(1)), Bytes: []uint64{number(t, arg(2))}}
	case "blocked":
		return lifecycle.Blocked{Ref: ref(t, arg(1))}
	case "freed":
		return lifecycle.SlotFreed{Ref: ref(t, arg(1))}
	case "unblocked":
		return lifecycle.Unblocked{Ref: ref(t, arg(1))}
	case "retract":
		return lifecycle.Retracted{Ref: ref(t, arg(1))}
	case "cancel":
		return lifecycle.Cancelled{Ref: ref(t, arg(1))}
	case "release":
		return lifecycle.Released{Object: object(t, arg(1))}
	case "tick", "beat":
		d, err := time.ParseDuration(arg(1))
		if err != nil {
			t.Fatal(err)
		}
		*now = now.Add(d)
		if f[0] == "beat" {
			return lifecycle.Beaten{}
		}
		return lifecycle.Ticked{}
	}
	t.Fatalf("unknown event %v", f)
	return nil
}

// assignment is the event of an attempt, with the places of its inputs.
type assignment struct {
	*lifecycle.Assigned
	places map[lifecycle.Object]lifecycle.Place
	// whole: Admit is to be answered at once.
	whole bool
}

// found answers Admit.
func (a *assignment) found() *lifecycle.Admitted {
	e := &lifecycle.Admitted{Ref: a.Ref, Estimate: a.Estimate}
	for _, in := range a.Inputs {
		f := lifecycle.Found{Place: a.places[in.Object], Object: in.Object, Known: len(in.Holders)}
		if f.Place == whole {
			f.Place, f.Object.Item = lifecycle.Pinned, 0
		}
		e.Found = append(e.Found, f)
	}
	return e
}

// whole is the place of an item whose list is pinned.
const whole = lifecycle.Away + 1

// input reads an input and its place.
func input(t *testing.T, s string) (in lifecycle.Input, place lifecycle.Place) {
	t.Helper()
	o, rest, _ := strings.Cut(s, ":")
	in.Object = object(t, o)
	switch rest {
	case "pinned":
		return in, lifecycle.Pinned
	case "away":
		return in, lifecycle.Away
	}
	size, holders, _ := strings.Cut(rest, "@")
	in.Bytes = number(t, size)
	for h := range strings.SplitSeq(holders, ",") {
		switch {
		case h == "kept":
			place = lifecycle.Kept
		case h == "in-place":
			place = lifecycle.InPlace
		case h == "whole":
			place = whole
		case h == "downstream":
			in.Downstream = true
		case strings.HasPrefix(h, "upstream-w"):
			in.Upstream = ids.WorkerID(number(t, strings.TrimPrefix(h, "upstream-w")))
		case h != "":
			in.Holders = append(in.Holders, ids.WorkerID(number(t, strings.TrimPrefix(h, "w"))))
		}
	}
	return in, place
}

func assign(t *testing.T, f []string, assigned map[lifecycle.Ref]*assignment) *lifecycle.Assigned {
	t.Helper()
	e := &lifecycle.Assigned{Ref: ref(t, f[0]), Runner: "native"}
	a := &assignment{Assigned: e, places: make(map[lifecycle.Object]lifecycle.Place), whole: true}
	for _, field := range f[1:] {
		name, v, _ := strings.Cut(field, "=")
		switch name {
		case "rank":
			e.Rank = number(t, v)
		case "slots":
			e.Slots = uint32(number(t, v))
		case "runner":
			e.Runner = v
		case "out":
			e.OutputBytes = number(t, v)
		case "est":
			d, err := time.ParseDuration(v)
			if err != nil {
				t.Fatal(err)
			}
			e.Estimate = d
		case "prepares":
			e.Prepares = true
		case "maker":
			e.Makers, a.whole = append(e.Makers, ref(t, v)), false
		case "await":
			o, peer, _ := strings.Cut(v, "@w")
			e.Awaited, a.whole = append(e.Awaited, lifecycle.Awaited{Object: object(t, o), Peer: ids.WorkerID(number(t, peer))}), false
		case "reads":
			e.Reads = map[string]lifecycle.Reading{"once": lifecycle.ReadsOnce, "moves": lifecycle.Moves}[v]
		case "replicates":
			e.Replicates = true
		case "function":
			e.Function = lifecycle.Function{Name: v, Hash: ids.FunctionHash{v[0]}}
		case "in":
			in, place := input(t, v)
			e.Inputs = append(e.Inputs, in)
			a.places[in.Object] = place
		default:
			amount, err := strconv.ParseFloat(v, 64)
			if err != nil {
				t.Fatal(err)
			}
			e.Resources = map[string]float64{name: amount}
		}
	}
	early := make([]lifecycle.Object, 0, len(e.Makers)+len(e.Awaited))
	for _, r := range e.Makers {
		early = append(early, lifecycle.Object{Task: r.Task, Generation: r.Attempt})
	}
	for _, x := range e.Awaited {
		early = append(early, x.Object)
	}
	for _, o := range early {
		if _, named := a.places[o]; !named {
			e.Inputs = append(e.Inputs, lifecycle.Input{Object: o})
			a.places[o] = lifecycle.Kept
		}
	}
	if assigned[e.Ref] == nil {
		assigned[e.Ref] = a
	}
	return e
}

// waysOf describes the ways of inputs, by input.
func waysOf(ways []lifecycle.Way) (s string) {
	for i, w := range ways {
		if i == 0 {
			s = ":"
		}
		switch {
		case w.Lease && w.Read:
			s += " lease-or-read"
		case w.Lease:
			s += " lease"
		case w.Read:
			s += " read"
		default:
			s += " -"
		}
	}
	return s
}

func describe(e lifecycle.Effect) string {
	switch e := e.(type) {
	case lifecycle.Reserve:
		s := fmt.Sprintf("Reserve %d for %s: %v", e.Reservation, e.Ref, e.Bytes)
		for _, o := range e.Inputs {
			s += " " + o.String()
		}
		return s
	case lifecycle.Unreserve:
		return fmt.Sprintf("Unreserve %d", e.Reservation)
	case lifecycle.StartFetch:
		from := "from"
		if e.Pipelined {
			from = "upstream"
		}
		s := fmt.Sprintf("StartFetch %d %s %s:", e.Fetch, from, e.Peer)
		for _, o := range e.Objects {
			s += fmt.Sprintf(" %s into %d", o.Object, o.Reservation)
			if o.Downstream {
				s += " downstream"
			}
		}
		return s
	case lifecycle.PinInput:
		s := fmt.Sprintf("PinInput %s for %s", e.Object, e.Ref)
		if e.Reservation != 0 {
			s += fmt.Sprintf(" in %d", e.Reservation)
		}
		return s
	case lifecycle.Loosen:
		return fmt.Sprintf("Loosen %s for %s", e.Object, e.Ref)
	case lifecycle.Unpin:
		return fmt.Sprintf("Unpin %s for %s", e.Object, e.Ref)
	case lifecycle.StartRun:
		s := fmt.Sprintf("StartRun %s in %s/%d", e.Ref, e.Runner, e.Slot)
		if e.Reservation != 0 {
			s += fmt.Sprintf(" into %d", e.Reservation)
		}
		if e.Roomy {
			s += " (roomy)"
		}
		if e.MoveLimit > 0 {
			s += fmt.Sprintf(" (moves at most %d)", e.MoveLimit)
		}
		if e.Waiting+e.Fetching+e.Loading > 0 {
			s += fmt.Sprintf(" (waited %s, fetched %s, loaded %s)", e.Waiting, e.Fetching, e.Loading)
		}
		return s
	case lifecycle.Admit:
		s := fmt.Sprintf("Admit %s", e.Ref)
		if e.Waits {
			s += ", which waits"
		}
		if e.Copies {
			s += ", by copies"
		}
		if e.Large {
			s += fmt.Sprintf(", large, round %d", e.Round)
		}
		return s + waysOf(e.Ways)
	case lifecycle.Lease:
		return fmt.Sprintf("Lease for %s, round %d%s", e.Ref, e.Round, waysOf(e.Ways))
	case lifecycle.EndLeases:
		return fmt.Sprintf("EndLeases %s", e.Ref)
	case lifecycle.NeedFunction:
		return fmt.Sprintf("NeedFunction %c", e.Function[0])
	case lifecycle.Await:
		return fmt.Sprintf("Await %s from %s", e.Object, e.Peer)
	case lifecycle.Unawait:
		return fmt.Sprintf("Unawait %s from %s", e.Object, e.Peer)
	case lifecycle.StopRun:
		return strings.TrimSpace(fmt.Sprintf("StopRun %s %s", e.Ref, e.Reason))
	case lifecycle.Resume:
		return fmt.Sprintf("Resume %s", e.Ref)
	case lifecycle.TakeBack:
		return fmt.Sprintf("TakeBack %s", e.Ref)
	case lifecycle.EnterInput:
		return fmt.Sprintf("EnterInput %s of %s: %s", e.Object, e.Ref, e.Inline)
	case lifecycle.Notify:
		if e.Unavailable {
			return fmt.Sprintf("Notify %v: %s will not be made here", e.To, e.Object)
		}
		return fmt.Sprintf("Notify %v of %s", e.To, e.Object)
	case lifecycle.Publish:
		if len(e.To) > 0 {
			return fmt.Sprintf("Publish %s to %v", e.Ref, e.To)
		}
		return fmt.Sprintf("Publish %s", e.Ref)
	case lifecycle.Discard:
		return fmt.Sprintf("Discard %s", e.Ref)
	case lifecycle.Report:
		s := fmt.Sprintf("Report %s %s", e.Ref, e.Outcome)
		if e.Reason != "" {
			s += fmt.Sprintf(" %s (%s)", e.Reason, e.Message)
		}
		for _, u := range e.Unreachable {
			s += fmt.Sprintf(" %s failed at %v, missing at %v", u.Object, u.FailedAt, u.MissingAt)
		}
		return s
	case lifecycle.Gained:
		return fmt.Sprintf("Gained %s", e.Object)
	case lifecycle.Drop:
		return fmt.Sprintf("Drop %s", e.Object)
	}
	return fmt.Sprintf("%T", e)
}
