package members_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/members"
	"github.com/millrace/millrace/server/sched"
)

// TestScripts runs testdata/scripts/*. Each verb prints its effects; after each verb all invariants
// are checked. Run with -rewrite to accept new output. The life of the scheduler is 7, the lease
// 5 s and the grace 2 s.
//
//	register session=1 name=a incarnation=a1 [host=h address=x gpu life=7 holds=(1,2) runs=(3)]
//	disconnect|leave session=1 | hear session=1 | introduce session=1 to=2
//	measure session=1 [memory=9] with one line per path: PEER [maps] [rate=1e9]
//	died name=a [incarnation=a1 signal=SIGKILL code=1 oom fault cause=text]
//	ran name=a incarnation=a1 keys=(x,y) | unmapped session=1 dead=2 | stood-still
//	deaths name=a | tombstone of=2 | pass d=3s
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		t.Helper()
		s := &script{m: members.New(members.Config{Life: 7}), now: time.Unix(0, 0), heard: map[members.Session]time.Time{}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			t.Helper()
			s.t, s.d = t, d
			out := s.run()
			if err := s.m.Check(); err != nil {
				d.Fatalf(t, "%v", err)
			}
			return out
		})
	})
}

type script struct {
	m     *members.Machine
	now   time.Time
	heard map[members.Session]time.Time
	t     *testing.T
	d     *datadriven.TestData
}

func (s *script) text(key string) (v string) { s.d.MaybeScanArgs(s.t, key, &v); return v }

func (s *script) number(key string) (v uint64) { s.d.MaybeScanArgs(s.t, key, &v); return v }

func (s *script) session() members.Session { return members.Session(s.number("session")) }

func (s *script) list(key string) []string {
	for _, arg := range s.d.CmdArgs {
		if arg.Key == key {
			return arg.Vals
		}
	}
	return nil
}

func (s *script) run() string {
	switch s.d.Cmd {
	case "register":
		return s.register()
	case "disconnect":
		return s.step(members.Disconnected{Session: s.session()})
	case "leave":
		return s.step(members.Left{Session: s.session()})
	case "hear":
		s.heard[s.session()] = s.now
		return ""
	case "introduce":
		peer, isNew := s.m.Introduce(s.session(), ids.WorkerID(s.number("to")))
		return fmt.Sprintf("%+v %t\n", peer, isNew)
	case "measure":
		return s.step(members.Measured{Session: s.session(), MemoryUsedBytes: s.number("memory"), Paths: s.paths()})
	case "died":
		return s.step(members.Died{Name: s.text("name"), Death: members.Death{
			Incarnation: s.text("incarnation"), Signal: s.text("signal"), Cause: s.text("cause"), ExitCode: int32(s.number("code")),
			OutOfMemory: s.d.HasArg("oom"), DeviceFault: s.d.HasArg("fault"),
		}, Calls: sched.Calls{Known: s.d.HasArg("calls-known")}})
	case "ran":
		return s.step(members.Ran{Name: s.text("name"), Incarnation: s.text("incarnation"), Keys: s.list("keys")})
	case "unmapped":
		return s.step(members.Unmapped{Session: s.session(), Dead: ids.WorkerID(s.number("dead"))})
	case "stood-still":
		return s.step(members.StoodStill{})
	case "deaths":
		var b strings.Builder
		for _, d := range s.m.Deaths(s.text("name")) {
			fmt.Fprintf(&b, "%s at %s: %s, reaped %t, memory %d, ran %v\n", d.Incarnation, d.Time.Sub(time.Unix(0, 0)), d.Cause, d.Reaped, d.MemoryUsedBytes, d.RunningKeys)
		}
		return b.String()
	case "tombstone":
		peer, incarnation, found := s.m.Tombstone(ids.WorkerID(s.number("of")))
		return fmt.Sprintf("%+v %s %t\n", peer, incarnation, found)
	case "pass":
		return s.pass()
	}
	s.d.Fatalf(s.t, "no verb %s", s.d.Cmd)
	return ""
}

func (s *script) register() string {
	event := members.Registered{
		Session: s.session(), Life: s.number("life"), PID: 100 + int64(s.session()), DataAddress: s.text("address"),
		Worker: sched.WorkerRegistered{Name: s.text("name"), Incarnation: s.text("incarnation"), Host: s.text("host"), PipelinedReads: s.d.HasArg("gpu")},
	}
	for _, text := range s.list("holds") {
		n, _ := strconv.ParseUint(text, 10, 64)
		event.Worker.Inventory = append(event.Worker.Inventory, sched.Replica{Task: ids.TaskID(n), Generation: 1})
	}
	for _, text := range s.list("runs") {
		n, _ := strconv.ParseUint(text, 10, 64)
		event.Worker.Running = append(event.Worker.Running, sched.TaskRef{Task: ids.TaskID(n), Attempt: 1})
	}
	welcome, effects, err := s.m.Register(s.now, event, nil)
	if err != nil {
		return fmt.Sprintf("refused: %s\n%s", err.Message, show(effects))
	}
	s.heard[event.Session] = s.now
	return fmt.Sprintf("worker %d, back %t, foreign %t\n%s", welcome.Worker, welcome.Back, welcome.Foreign, show(effects))
}

func (s *script) paths() (paths []members.Path) {
	for line := range strings.Lines(s.d.Input) {
		words := strings.Fields(line)
		peer, _ := strconv.ParseUint(words[0], 10, 32)
		path := members.Path{Peer: ids.WorkerID(peer), Latency: time.Millisecond}
		for _, word := range words[1:] {
			if text, isRate := strings.CutPrefix(word, "rate="); isRate {
				path.BytesPerSecond, _ = strconv.ParseFloat(text, 64)
			} else {
				path.Maps = true
			}
		}
		paths = append(paths, path)
	}
	return paths
}

func (s *script) step(event members.Event) string { return show(s.m.Step(s.now, event, nil)) }

// pass lets the time pass, with a step at each deadline.
func (s *script) pass() string {
	var b strings.Builder
	d, err := time.ParseDuration(s.text("d"))
	if err != nil {
		s.d.Fatalf(s.t, "%v", err)
	}
	end := s.now.Add(d)
	for at, ok := s.m.NextDeadline(); ok && !at.After(end); at, ok = s.m.NextDeadline() {
		s.now = at
		if effects := s.m.Step(at, timePassed(s.m, at, s.heard), nil); len(effects) > 0 {
			fmt.Fprintf(&b, "%s:\n%s", at.Sub(time.Unix(0, 0)), show(effects))
		}
	}
	s.now = end
	return b.String()
}

func timePassed(m *members.Machine, now time.Time, heard map[members.Session]time.Time) members.TimePassed {
	var event members.TimePassed
	for _, session := range m.Due(now, nil) {
		event.Heard = append(event.Heard, members.Heard{Session: session, At: heard[session]})
	}
	return event
}

func show(effects []members.Effect) string {
	var b strings.Builder
	for i := range effects {
		e := &effects[i]
		switch e.Kind {
		case members.EffectSchedule:
			if r, registers := e.Event.(sched.WorkerRegistered); registers {
				fmt.Fprintf(&b, "sched.WorkerRegistered{%s: %s, incarnation %s, holds %v, runs %v}\n", r.Worker, r.Name, r.Incarnation, r.Inventory, r.Running)
			} else {
				fmt.Fprintf(&b, "%T%+v\n", e.Event, e.Event)
			}
		case members.EffectEnded:
			fmt.Fprintf(&b, "session %d ends, worker %d, stop %q, register again %t\n", e.Session, e.Worker, e.Stop, e.Reregister)
		case members.EffectPeer:
			fmt.Fprintf(&b, "session %d: %+v\n", e.Session, e.Peer)
		case members.EffectDrop:
			fmt.Fprintf(&b, "session %d: drop %v and %v\n", e.Session, e.Objects, e.Attempts)
		case members.EffectLost:
			fmt.Fprintf(&b, "worker %d is lost: %s, left %t, died %t\n", e.Worker, e.Cause, e.Left, e.Died)
		case members.EffectChanged:
			fmt.Fprintf(&b, "worker %d changed\n", e.Worker)
		case members.EffectUnmapped:
			fmt.Fprintf(&b, "worker %d (%s) is unmapped after %s\n", e.Peer.Worker, e.Peer.Name, e.Time)
		}
	}
	return b.String()
}
