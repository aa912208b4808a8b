package alarms_test

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/millrace/millrace/server/alarms"
)

// TestScripts runs testdata/scripts/*. Each verb prints what became of alarms; after each
// observation all invariants are checked. Run with -rewrite to accept new output.
//
//	observe [n=10] [every=10s]   observes the state in its lines n times
//	alarms                       lists what is raised
//	history ID                   lists the transitions of an alarm
//
// The lines of observe; numbers of bytes have no unit. A value that ends in ++N grows by N with
// each observation.
//
//	worker NAME [lost] [memory= used= evictable= written= disk= diskused= failure=]
//	    [gpu= throttled= xids= ecc= event=] [died=1s,2s]
//	route READER SOURCE rate= [bytes= fetches= relation= path= order= why=]
//	op NAME [ok= failed= why=] | unserved OP tasks= key= why=
//	journal [lag= trouble= lost] | scheduler [delay= held= limit=]
//	peer ADDRESS [away behind= trouble= joining]
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		t.Helper()
		s := &script{m: alarms.New(alarms.Policy{}), now: time.Unix(0, 0).UTC(), grown: map[string]uint64{}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			t.Helper()
			switch d.Cmd {
			case "observe":
				return s.observe(t, d)
			case "alarms":
				return s.list()
			case "history":
				return s.past(d.CmdArgs[0].Key)
			default:
				d.Fatalf(t, "no verb %s", d.Cmd)
				return ""
			}
		})
	})
}

type script struct {
	routes []alarms.Route
	m      *alarms.Machine
	now    time.Time
	grown  map[string]uint64
}

func (s *script) list() string {
	var out strings.Builder
	for _, a := range s.m.Alarms() {
		fmt.Fprintf(&out, "%s %s since %s\n  %s\n  -> %s\n", a.Severity, a.ID, a.Since.Format("15:04:05"), a.Text, a.Remedy)
	}
	if out.Len() == 0 {
		return "none\n"
	}
	return out.String()
}

func (s *script) past(id string) string {
	lines := s.m.History(id)
	if len(lines) == 0 {
		return "none\n"
	}
	return strings.Join(lines, "\n") + "\n"
}

func (s *script) observe(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	n, every := 1, "10s"
	d.MaybeScanArgs(t, "n", &n)
	d.MaybeScanArgs(t, "every", &every)
	step, err := time.ParseDuration(every)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	var out strings.Builder
	for range n {
		s.now = s.now.Add(step)
		var seen alarms.Observed
		s.routes = s.routes[:0]
		for line := range strings.Lines(d.Input) {
			s.add(&seen, fields(strings.TrimSpace(line)))
		}
		compared := alarms.Policy{}.Compare(s.routes)
		seen.Routes, seen.Readers = compared.Doubtful, compared.Readers
		for _, e := range s.m.Step(s.now, &seen) {
			verb := map[alarms.EffectKind]string{alarms.Raised: "raised", alarms.Changed: "changed", alarms.Ended: "ended"}[e.Kind]
			fmt.Fprintf(&out, "%s %s %s (%s)\n", s.now.Format("15:04:05"), verb, e.Alarm.ID, e.Alarm.Severity)
		}
		if err := s.m.Check(); err != nil {
			d.Fatalf(t, "%v", err)
		}
	}
	if out.Len() == 0 {
		return "nothing\n"
	}
	return out.String()
}

// line is one line of observe.
type line struct {
	words  []string
	values map[string]string
}

// fields splits a line. Underscores in values are spaces.
func fields(text string) line {
	l := line{values: map[string]string{}}
	for _, word := range strings.Fields(text) {
		if key, value, ok := strings.Cut(word, "="); ok {
			l.values[key] = strings.ReplaceAll(value, "_", " ")
		} else {
			l.words = append(l.words, word)
		}
	}
	return l
}

func (l line) has(word string) bool {
	for _, w := range l.words[1:] {
		if w == word {
			return true
		}
	}
	return false
}

// number returns a value; one that grows is remembered by the line's words.
func (s *script) number(l line, key string) uint64 {
	text, growth, grows := strings.Cut(l.values[key], "++")
	n, _ := strconv.ParseUint(text, 10, 64)
	if grows {
		id := strings.Join(l.words, " ") + " " + key
		by, _ := strconv.ParseUint(growth, 10, 64)
		s.grown[id] += by
		n += s.grown[id]
	}
	return n
}

func (l line) span(key string) time.Duration {
	d, _ := time.ParseDuration(l.values[key])
	return d
}

func (s *script) add(seen *alarms.Observed, l line) {
	number := func(key string) uint64 { return s.number(l, key) }
	switch l.words[0] {
	case "worker":
		w := alarms.Worker{
			Name: l.words[1], Lost: l.has("lost"), MemoryBytes: number("memory"), MemoryUsedBytes: number("used"), MemoryEvictableBytes: number("evictable"),
			SpillWrittenBytes: number("written"), DiskBytes: number("disk"), DiskUsedBytes: number("diskused"), DiskFailure: l.values["failure"],
			GPU: l.values["gpu"], XIDs: number("xids"), UncorrectedECC: number("ecc"), LastGPUEvent: l.values["event"],
		}
		if reasons := l.values["throttled"]; reasons != "" {
			w.Throttled = strings.Split(reasons, ",")
		}
		for _, at := range strings.Split(l.values["died"], ",") {
			if d, err := time.ParseDuration(at); err == nil {
				w.Deaths = append(w.Deaths, alarms.Death{At: time.Unix(0, 0).Add(d), Cause: "signal SIGSEGV"})
			}
		}
		seen.Workers = append(seen.Workers, w)
	case "route":
		rate, _ := strconv.ParseFloat(l.values["rate"], 64)
		r := alarms.Route{Reader: l.words[1], Source: l.words[2], BytesPerSecond: rate, Bytes: number("bytes"), Fetches: cmp.Or(number("fetches"), 8),
			Relation: l.values["relation"], Path: l.values["path"], Order: int(number("order")), Why: l.values["why"]}
		if r.Bytes == 0 {
			r.Bytes = 1 << 30
		}
		s.routes = append(s.routes, r)
	case "op":
		seen.Ops = append(seen.Ops, alarms.Op{Name: strings.TrimPrefix(l.words[1], "-"), Succeeded: number("ok"), Failed: number("failed"), LastFailure: l.values["why"]})
	case "unserved":
		seen.Unserved = append(seen.Unserved, alarms.Unserved{Op: l.words[1], Key: l.values["key"], Tasks: int(number("tasks")), Why: l.values["why"]})
	case "journal":
		seen.Journal = &alarms.Journal{Lag: l.span("lag"), Trouble: l.values["trouble"], Lost: l.has("lost")}
	case "peer":
		seen.Peers = append(seen.Peers, alarms.Peer{
			Address: l.words[1], Votes: !l.has("joining"), Away: l.has("away"), Trouble: l.values["trouble"], Behind: number("behind"),
		})
	case "scheduler":
		seen.Scheduler = alarms.Scheduler{Delay: l.span("delay"), HeldBytes: number("held"), LimitBytes: number("limit")}
	}
}
