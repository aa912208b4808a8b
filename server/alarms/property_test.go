package alarms_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/server/alarms"
)

// Invariants hold after any observations. Effects and the list of alarms agree; no alarm is raised
// twice without an end; and silence ends all of them.
func TestAlarmsOfAnyHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := alarms.New(alarms.Policy{})
		now := time.Unix(1000, 0)
		open := map[string]alarms.Severity{}
		step := func(seen *alarms.Observed) {
			for _, e := range m.Step(now, seen) {
				before, known := open[e.Alarm.ID]
				switch e.Kind {
				case alarms.Raised:
					if known {
						t.Fatalf("%s is raised twice: %q", e.Alarm.ID, m.History(e.Alarm.ID))
					}
					open[e.Alarm.ID] = e.Alarm.Severity
				case alarms.Changed:
					if !known || before == e.Alarm.Severity {
						t.Fatalf("%s has changed from %v to %v: %q", e.Alarm.ID, before, e.Alarm.Severity, m.History(e.Alarm.ID))
					}
					open[e.Alarm.ID] = e.Alarm.Severity
				case alarms.Ended:
					if !known {
						t.Fatalf("%s ends and was not raised: %q", e.Alarm.ID, m.History(e.Alarm.ID))
					}
					delete(open, e.Alarm.ID)
				}
			}
			if err := m.Check(); err != nil {
				t.Fatal(err)
			}
			list := m.Alarms()
			if len(list) != len(open) {
				t.Fatalf("%d alarms are listed, and %d are open", len(list), len(open))
			}
			for i, a := range list {
				if i > 0 && list[i-1].Severity < a.Severity {
					t.Fatalf("%s comes before %s", list[i-1].ID, a.ID)
				}
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "observations") {
			now = now.Add(time.Duration(rapid.IntRange(0, 40).Draw(t, "seconds")) * time.Second)
			step(observation(t, now))
		}
		// Nothing is observed for as long as anything is remembered.
		for range 3 {
			now = now.Add(2 * time.Hour)
			step(&alarms.Observed{})
		}
		if len(open) > 0 {
			t.Fatalf("open after silence: %v", open)
		}
	})
}

func observation(t *rapid.T, now time.Time) *alarms.Observed {
	number := func(name string, limit uint64) uint64 { return rapid.Uint64Range(0, limit).Draw(t, name) }
	some := func(name string) bool { return rapid.Bool().Draw(t, name) }
	var seen alarms.Observed
	for _, name := range []string{"a", "b"} {
		if some("absent") {
			continue
		}
		w := alarms.Worker{
			Name: name, Lost: some("lost"), MemoryBytes: 100, MemoryUsedBytes: number("used", 110), MemoryEvictableBytes: number("evictable", 110),
			SpillWrittenBytes: number("written", 1000), DiskBytes: 100, DiskUsedBytes: number("disk", 110), GPU: "u",
			XIDs: number("xids", 2), UncorrectedECC: number("ecc", 2),
		}
		if some("throttled") {
			w.Throttled = []string{"temperature"}
		}
		if some("failing") {
			w.DiskFailure = "no space left on device"
		}
		for range number("deaths", 4) {
			w.Deaths = append(w.Deaths, alarms.Death{At: now})
		}
		seen.Workers = append(seen.Workers, w)
	}
	var routes []alarms.Route
	for i := range 5 {
		routes = append(routes, alarms.Route{
			Reader: "z", Source: string(rune('a' + i)), Path: "ucx", BytesPerSecond: float64(number("rate", 4) * 1e8), Bytes: 1 << 30, Fetches: number("fetches", 12),
		})
	}
	for i := range 6 {
		routes = append(routes, alarms.Route{
			Reader: string(rune('v' + i%3)), Source: string(rune('a' + i/3)), Path: "ucx", BytesPerSecond: float64(number("rate of others", 9) * 1e8), Bytes: 1 << 30, Fetches: 8,
		})
	}
	compared := alarms.Policy{}.Compare(routes)
	seen.Routes, seen.Readers = compared.Doubtful, compared.Readers
	seen.Ops = []alarms.Op{{Name: "f", Succeeded: number("ok", 40), Failed: number("failed", 40)}}
	if some("unserved") {
		seen.Unserved = []alarms.Unserved{{Op: "f", Key: "k", Tasks: 1, Why: "no worker is registered; start one"}}
	}
	if some("journal") {
		seen.Journal = &alarms.Journal{Lag: time.Duration(number("lag", 2000)) * time.Millisecond, Lost: some("given up")}
	}
	seen.Scheduler = alarms.Scheduler{Delay: time.Duration(number("delay", 400)) * time.Millisecond, HeldBytes: number("held", 100), LimitBytes: 100}
	return &seen
}
