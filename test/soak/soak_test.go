package soak

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"
)

// fault is something that happens to a cluster whose schedulers are all there. It returns when it
// is over.
type fault struct {
	name string
	do   func(s *soak)
	// cuts: it needs hosts whose networks can be cut.
	cuts bool
}

var faults = []fault{
	{name: "kill the leader", do: (*soak).killLeader},
	{name: "kill a follower", do: func(s *soak) {
		p := s.follower()
		p.stop(syscall.SIGKILL)
		s.pass()
		p.start()
	}},
	{name: "kill a follower and lose its disk", do: func(s *soak) {
		p := s.follower()
		p.stop(syscall.SIGKILL)
		if err := os.RemoveAll(p.journal); err != nil {
			s.c.t.Fatal(err)
		}
		p.start()
	}},
	{name: "kill all schedulers", do: func(s *soak) {
		for _, p := range s.c.all {
			p.signal(syscall.SIGKILL)
		}
		for _, p := range s.c.all {
			<-p.ended
			p.start()
		}
	}},
	{name: "stop the leader for some time", do: func(s *soak) {
		p := s.c.leader()
		s.failover("SIGSTOP", p, func() { p.signal(syscall.SIGSTOP) })
		s.pass()
		p.signal(syscall.SIGCONT)
	}},
	{name: "stop a follower for some time", do: func(s *soak) {
		p := s.follower()
		p.signal(syscall.SIGSTOP)
		s.pass()
		p.signal(syscall.SIGCONT)
	}},
	{name: "end the leader", do: func(s *soak) {
		p := s.c.leader()
		s.failover("SIGTERM", p, func() {
			if code := p.stop(syscall.SIGTERM); code != 0 {
				s.c.t.Errorf("%s ends with code %d", p.name, code)
			}
		})
		p.start()
	}},
	{name: "kill a worker", do: func(s *soak) { s.signalWorker(syscall.SIGKILL) }},
	{name: "stop a worker for some time", do: func(s *soak) {
		if pid := s.signalWorker(syscall.SIGSTOP); pid != 0 {
			s.pass()
			_ = syscall.Kill(pid, syscall.SIGCONT) // the supervisor may have killed it
		}
	}},
	{name: "cut the leader off from the others", cuts: true, do: func(s *soak) {
		s.cutLeader("partition", true, true)
	}},
	{name: "lose what the leader sends to the others", cuts: true, do: func(s *soak) {
		s.cutLeader("one-way partition", true, false)
	}},
	{name: "lose what the others send to the leader", cuts: true, do: func(s *soak) {
		s.cutLeader("one-way partition", false, true)
	}},
	{name: "cut the workers off from the leader", cuts: true, do: func(s *soak) {
		p := s.c.leader()
		s.c.lab.Cut(p.host, workerHost)
		s.c.lab.Cut(workerHost, p.host)
		s.pass()
		s.c.lab.Mend(p.host, workerHost)
		s.c.lab.Mend(workerHost, p.host)
	}},
}

// soak makes faults, by a seed.
type soak struct {
	c      *cluster
	prober *prober
	random *rand.Rand
	// failovers are the times until another scheduler acknowledged something, by cause.
	failovers map[string][]time.Duration
}

// pass lets up to six seconds pass, more than the lease of a worker. The time is the fault itself.
func (s *soak) pass() { time.Sleep(time.Duration(s.random.IntN(6000)) * time.Millisecond) }

// follower returns one of the schedulers that do not lead.
func (s *soak) follower() *process {
	leads := s.c.leader()
	return s.c.all[(leads.host+1+s.random.IntN(schedulers-1))%schedulers]
}

func (s *soak) killLeader() {
	p := s.c.leader()
	s.failover("SIGKILL", p, func() { p.signal(syscall.SIGKILL) })
	<-p.ended
	s.pass()
	p.start()
}

// failover makes a fault of the leader, and measures the time until another scheduler leads.
func (s *soak) failover(cause string, led *process, fault func()) {
	began := time.Now()
	fault()
	var answered time.Time
	s.c.until("another scheduler leads after "+cause, func(context.Context) (ok bool) {
		answered, ok = s.prober.since(began, led.host)
		return ok
	})
	s.failovers[cause] = append(s.failovers[cause], answered.Sub(began))
}

func (s *soak) cutLeader(cause string, to, from bool) {
	p := s.c.leader()
	each := func(do func(from, to int)) {
		for _, other := range s.c.all {
			if other != p && to {
				do(p.host, other.host)
			}
			if other != p && from {
				do(other.host, p.host)
			}
		}
	}
	s.failover(cause, p, func() { each(s.c.lab.Cut) })
	s.pass()
	each(s.c.lab.Mend)
}

// signalWorker sends a signal to the process of a worker, and returns which.
func (s *soak) signalWorker(signal syscall.Signal) (pid int) {
	ctx, cancel := soon()
	defer cancel()
	list := s.c.workers(ctx)
	// With fewer, a small value might have no worker for minutes.
	if len(list) < workers {
		return 0
	}
	pid = int(list[s.random.IntN(len(list))].GetPid())
	if err := syscall.Kill(pid, signal); err != nil {
		return 0
	}
	return pid
}

// floor is the least number of acknowledged requests of each kind in a minute. A machine on which
// they take ten times as long as elsewhere makes more.
const floor = 5

// TestSoak makes faults, one after the other, while clients work. All that they were told is there,
// each lock had one holder at a time, and values of a queue came once and in order.
func TestSoak(t *testing.T) {
	c := startCluster(t)
	tr := startTraffic(c, 20*time.Millisecond)
	s := &soak{c: c, prober: startProber(c), random: rand.New(rand.NewPCG(*seedFlag, 0)), failovers: map[string][]time.Duration{}}
	t.Cleanup(s.prober.end)
	possible := slices.Clone(faults)
	if *minutesFlag == 0 && testing.Short() {
		possible = possible[:4] // The others take minutes on a busy machine.
	}
	if !apart {
		possible = slices.DeleteFunc(possible, func(f fault) bool { return f.cuts })
	}
	tr.goesOn()
	before, began, end := tr.counts(), time.Now(), time.Now().Add(time.Duration(*minutesFlag*float64(time.Minute)))
	made := map[string]int{}
	for n := 0; n < len(possible) || time.Now().Before(end); n++ {
		f := possible[n%len(possible)]
		if n >= len(possible) {
			f = possible[s.random.IntN(len(possible))]
		}
		c.leader()
		t.Logf("%v: %s", time.Since(began).Round(time.Millisecond), f.name)
		f.do(s)
		made[f.name]++
		c.leader()
		tr.goesOn()
		if t.Failed() {
			break
		}
	}
	after, took := tr.counts(), time.Since(began)
	c.until("all workers are back", func(ctx context.Context) bool { return len(c.workers(ctx)) == workers })
	tr.end()
	for _, kind := range kinds {
		// In a short run each kind went on after each fault, which tells enough.
		if n := after[kind] - before[kind]; *minutesFlag > 0 && float64(n) < floor*took.Minutes() {
			t.Errorf("%d requests of the kind %s were acknowledged in %v: at least %d a minute are needed for a proof", n, kind, took, floor)
		}
	}
	t.Logf("in %v: %v", took.Round(time.Second), made)
	t.Logf("acknowledged: %v; without an answer: %d; large values lost with their worker: %d", after, tr.unanswered, tr.lost)
	t.Logf("longest times between two acknowledged requests: %v", tr.longest)
	var all []time.Duration
	for _, cause := range slices.Sorted(maps.Keys(s.failovers)) {
		all = append(all, s.failovers[cause]...)
		t.Logf("until another scheduler acknowledges after %s: %s", cause, figures(s.failovers[cause]))
	}
	t.Logf("after all of these: %s", figures(all))
}

// figures sums up times.
func figures(times []time.Duration) string {
	slices.Sort(times)
	at := func(share float64) time.Duration {
		return times[int(share*float64(len(times)-1)+0.5)].Round(time.Millisecond)
	}
	return fmt.Sprintf("%d times, median %v, p99 %v, longest %v", len(times), at(0.5), at(0.99), at(1))
}
