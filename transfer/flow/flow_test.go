package flow_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/transfer/flow"
)

var start = time.Unix(1_000_000, 0)

func machine() *flow.Machine { return flow.New(flow.Config{Paths: []string{"borrow", "ucx", "grpc"}}) }

func choose(t *testing.T, m *flow.Machine, now time.Time, tried ...bool) int {
	t.Helper()
	path, ok := m.Choose(now, "a", tried)
	if !ok {
		t.Fatal("no path")
	}
	return path
}

func TestBestPathFirstAndTheNextWhenItCannotReach(t *testing.T) {
	m := machine()
	if p := choose(t, m, start); p != 0 {
		t.Errorf("path %d", p)
	}
	m.Ended(start, "a", 0, flow.End{Kind: flow.CannotReach, Message: "another host"})
	if p := choose(t, m, start); p != 1 {
		t.Errorf("path %d", p)
	}
	// It is probed again after a while, by one fetch at a time.
	later := start.Add(61 * time.Second)
	if p := choose(t, m, later); p != 0 {
		t.Errorf("path %d", p)
	}
	if p := choose(t, m, later); p != 1 {
		t.Errorf("path %d while another one asks", p)
	}
	if s := m.Describe("a"); !strings.Contains(s, "borrow unreachable (another host)") {
		t.Error(s)
	}
}

func TestFailuresShutAPathUntilAProbeSucceeds(t *testing.T) {
	m := machine()
	fail := flow.End{Kind: flow.Failed, Message: "silent"}
	m.Ended(start, "a", choose(t, m, start), fail)
	if p := choose(t, m, start); p != 0 {
		t.Errorf("one failure shut it: %d", p)
	}
	m.Ended(start, "a", 0, fail)
	if p := choose(t, m, start); p != 1 {
		t.Errorf("path %d", p)
	}
	now := start.Add(31 * time.Second)
	if p := choose(t, m, now); p != 0 {
		t.Errorf("no probe: %d", p)
	}
	m.Ended(now, "a", 0, fail)
	if p := choose(t, m, now); p != 1 {
		t.Errorf("a failed probe opened it: %d", p)
	}
	now = now.Add(31 * time.Second)
	m.Ended(now, "a", choose(t, m, now), flow.End{Bytes: 1})
	if p := choose(t, m, now); p != 0 {
		t.Errorf("path %d", p)
	}
}

func TestTheLastPathIsNeverShut(t *testing.T) {
	m := machine()
	for range 10 {
		for p := range 3 {
			m.Choose(start, "a", nil)
			m.Ended(start, "a", p, flow.End{Kind: flow.Failed, Message: "dead"})
		}
	}
	if p := choose(t, m, start); p != 2 {
		t.Errorf("path %d", p)
	}
	if _, ok := m.Choose(start, "a", []bool{true, true, true}); ok {
		t.Error("a path that was tried already")
	}
}

func TestMeasures(t *testing.T) {
	m := machine()
	choose(t, m, start)
	m.Ended(start, "a", 0, flow.End{Bytes: 100, Took: 40 * time.Microsecond})
	m.Ended(start, "a", 0, flow.End{Bytes: 1 << 30, Took: time.Second})
	l := m.Routes()[0]
	if l.Latency != 40*time.Microsecond || l.Rate != 1<<30 || l.Bytes != 1<<30+100 || l.State != flow.Open {
		t.Errorf("%+v", l)
	}
	if d, bounded := m.Allowed("a", 0, 1<<30); !bounded || d != 25*time.Second {
		t.Errorf("1 GiB may take %v, %v", d, bounded)
	}
	if _, bounded := m.Allowed("a", 2, 1<<30); bounded {
		t.Error("the last path has a deadline")
	}
	m.Forget("a")
	if len(m.Routes()) != 0 {
		t.Error("forgotten and still known")
	}
}

// pair is a machine with successive fetches from one peer on the best path.
type pair struct {
	*flow.Machine
	now time.Time
}

func newPair() *pair { return &pair{machine(), start} }

// fetch performs a fetch of the given duration.
func (p *pair) fetch(bytes uint64, took time.Duration) {
	p.Choose(p.now, "a", nil)
	p.now = p.now.Add(took)
	p.Ended(p.now, "a", 0, flow.End{Bytes: bytes, Took: took})
	p.now = p.now.Add(time.Microsecond)
}

// takes returns the duration that the machine expects of a fetch.
func (p *pair) takes(bytes uint64) time.Duration {
	l := p.Routes()[0]
	if bytes <= 128<<10 {
		return l.Latency
	}
	return time.Duration(float64(bytes) / l.Rate * float64(time.Second))
}

// measuring has sizes that measure the latency, and sizes that measure the rate.
var measuring = []uint64{0, 4096, 1 << 20, 64 << 20}

// A fetch that was delayed by a page fault, another process or the device says nothing about the
// next ones, wherever it comes in a sequence. Several fetches that were delayed together do not say
// much more.
func TestAStallIsNotTakenForTheRule(t *testing.T) {
	const usual = 40 * time.Microsecond
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 2))
		bytes, p := measuring[r.IntN(len(measuring))], newPair()
		if r.IntN(2) == 0 {
			p.Proved(p.now, "a", 0, usual, float64(bytes)/usual.Seconds())
		} else {
			p.fetch(bytes, usual)
		}
		for range r.IntN(8) {
			p.fetch(bytes, usual)
		}
		stall := time.Duration(1+r.IntN(1000)) * time.Millisecond
		p.fetch(bytes, stall)
		if took := p.takes(bytes); took < usual*99/100 || took > 2*usual {
			t.Errorf("seed %d: after one of %v: %v, not %v", seed, stall, took, usual)
		}
		for range 2 {
			p.fetch(bytes, stall)
		}
		if took := p.takes(bytes); took > 4*usual {
			t.Errorf("seed %d: after three of %v: %v, not %v", seed, stall, took, usual)
		}
		for range 5 {
			p.fetch(bytes, usual)
		}
		if took := p.takes(bytes); took < usual*99/100 || took > usual*5/4 {
			t.Errorf("seed %d: %v after a stall of %v is over, not %v", seed, took, stall, usual)
		}
	}
}

// A lasting change, for better or worse, is known after a few fetches.
func TestALastingChangeIsFollowed(t *testing.T) {
	const usual = 400 * time.Microsecond
	for _, bytes := range measuring {
		for _, now := range []time.Duration{usual / 10, usual / 3, usual / 2, usual * 2, usual * 3, usual * 10} {
			p := newPair()
			for range 10 {
				p.fetch(bytes, usual)
			}
			for range 6 {
				p.fetch(bytes, now)
			}
			if took := p.takes(bytes); took < now*3/4 || took > now*4/3 {
				t.Errorf("%d bytes took %v, and %v six times since: %v", bytes, usual, now, took)
			}
		}
	}
}

// The first fetches all wait for the same connection. Only the next one measures the latency, or a
// proof that came in between.
func TestToConnectIsNotTakenForTheLatency(t *testing.T) {
	const connecting, usual = 20 * time.Millisecond, 40 * time.Microsecond
	for _, bytes := range measuring {
		for name, proof := range map[string]int{"never proved": -1, "proved before": 0, "proved between": 1, "proved after": 8} {
			p := newPair()
			for i := range 9 {
				if i == proof {
					p.Proved(start.Add(connecting), "a", 0, usual, float64(bytes)/usual.Seconds())
				}
				if i < 8 {
					p.now = start
					p.fetch(bytes, connecting+time.Duration(i)*usual)
				}
			}
			if proof < 0 {
				if took := p.takes(bytes); took < connecting*99/100 || took > connecting {
					t.Errorf("%s: %d bytes: %v: all that is known is %v", name, bytes, took, connecting)
				}
				p.fetch(bytes, usual)
			}
			if took := p.takes(bytes); took < usual*99/100 || took > usual*101/100 {
				t.Errorf("%s: %d bytes: %v, not %v", name, bytes, took, usual)
			}
		}
	}
}

// The same holds for the fetch that probes a failed path.
func TestAProbeIsNotTakenForTheLatency(t *testing.T) {
	const usual = 40 * time.Microsecond
	p := newPair()
	for range 3 {
		p.fetch(1, usual)
	}
	for range 2 {
		p.Ended(p.now, "a", 0, flow.End{Kind: flow.Failed, Message: "silent"})
	}
	p.now = p.now.Add(time.Minute)
	p.fetch(1, 20*time.Millisecond)
	if l := p.Routes()[0]; l.State != flow.Open || l.Latency != usual {
		t.Errorf("%+v", l)
	}
}

// Of the first fetches the best one counts: with a new peer, pages must be faulted in and kernels
// loaded.
func TestTheBestOfTheFirstFetchesCounts(t *testing.T) {
	const usual = 40 * time.Microsecond
	for _, bytes := range measuring {
		for quick := range 4 {
			p := newPair()
			for i := range 4 {
				took := 20 * time.Millisecond
				if i == quick {
					took = usual
				}
				p.fetch(bytes, took)
			}
			if took := p.takes(bytes); took < usual*99/100 || took > usual*101/100 {
				t.Errorf("%d bytes: %v when number %d took %v", bytes, took, quick, usual)
			}
		}
	}
}

// A late proof neither replaces the measurements of many fetches nor opens a path that failed.
func TestAProofSaysNothingOfAPathThatIsKnown(t *testing.T) {
	p := newPair()
	for range 10 {
		p.fetch(1, 40*time.Microsecond)
	}
	p.Proved(p.now, "a", 0, time.Microsecond, 0)
	if l := p.Routes()[0]; l.Latency != 40*time.Microsecond || l.Rate != 0 {
		t.Errorf("%+v", l)
	}
	for range 2 {
		p.Ended(p.now, "a", 1, flow.End{Kind: flow.Failed, Message: "silent"})
	}
	p.Proved(p.now, "a", 1, time.Microsecond, 1e9)
	if l := p.Routes()[1]; l.State != flow.Shut || l.Latency != 0 || l.Rate != 0 {
		t.Errorf("%+v", l)
	}
}

func TestInvariantsUnderRandomEvents(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		m, now := machine(), start
		type out struct {
			peer string
			path int
		}
		var outs []out
		for range 400 {
			now = now.Add(time.Duration(r.IntN(20)) * time.Second)
			name := fmt.Sprint(r.IntN(4))
			switch {
			case r.IntN(20) == 0:
				m.Forget(name)
			case r.IntN(2) == 0 || len(outs) == 0:
				if p, ok := m.Choose(now, name, []bool{r.IntN(2) == 0, r.IntN(2) == 0, false}); ok {
					outs = append(outs, out{name, p})
				} else {
					t.Fatal("no path though the last one was not tried")
				}
			default:
				i := r.IntN(len(outs))
				m.Ended(now, outs[i].peer, outs[i].path, flow.End{Kind: flow.Kind(r.IntN(4)), Message: "why", Bytes: uint64(r.IntN(1 << 22)), Took: time.Millisecond})
				outs = append(outs[:i], outs[i+1:]...)
			}
			if err := m.Check(); err != nil {
				t.Fatal(seed, err)
			}
		}
	}
}
