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

func TestBestPathFirstAndTheNextWhenItLeadsNowhere(t *testing.T) {
	m := machine()
	if p := choose(t, m, start); p != 0 {
		t.Errorf("path %d", p)
	}
	m.Ended(start, "a", 0, flow.End{Kind: flow.LeadsNowhere, Message: "another host"})
	if p := choose(t, m, start); p != 1 {
		t.Errorf("path %d", p)
	}
	// It is asked again after a while, by one fetch at a time.
	later := start.Add(61 * time.Second)
	if p := choose(t, m, later); p != 0 {
		t.Errorf("path %d", p)
	}
	if p := choose(t, m, later); p != 1 {
		t.Errorf("path %d while another one asks", p)
	}
	if s := m.Story("a"); !strings.Contains(s, "borrow no way (another host)") {
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
	l := m.Lanes()[0]
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
	if len(m.Lanes()) != 0 {
		t.Error("forgotten and still known")
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
