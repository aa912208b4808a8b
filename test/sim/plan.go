package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

const (
	workerCount = 50
	// machines have as many workers each.
	machines    = 5
	clientCount = 3

	// As the scheduler's loop has them.
	workerLease    = 5 * time.Second
	reconnectGrace = 2 * time.Second
	beatEvery      = time.Second

	clientTTL   = 6 * time.Second
	clientRenew = 1500 * time.Millisecond

	// hangAfter is how long after the trouble has ended everything must be done.
	hangAfter = 4 * time.Minute
)

// plan is what a seed brings: each kind of trouble is there or not, much or
// little, so that seeds differ in kind and not only in order.
type plan struct {
	// chaos is how long there is trouble.
	chaos time.Duration
	// actions is what each client does in that time; tasks bounds one graph.
	actions, tasks int

	// drop and duplicate are chances for each message; slow for a late one.
	drop, duplicate, slow float64
	// lateRegister is the chance that the registration on a broken stream still
	// arrives.
	lateRegister float64
	// Mean time between these over the whole cluster; 0: never.
	crashEvery, stopEvery, leaveEvery, loseEvery, clientCrashEvery time.Duration
	// executorDies and noRoom are chances for each run.
	executorDies, noRoom float64
	// duplicateAssign lets assignments come again as well.
	duplicateAssign bool
	// keepReports: workers keep what they could not say until they are back.
	keepReports bool
	// fixedPorts: a restarted worker is found at its old address.
	fixedPorts bool
	// slabBytes of each worker. tight: runs may fail for lack of memory.
	slabBytes uint64
	tight     bool
	// longRuns is the share of tasks that run for hundreds of milliseconds.
	longRuns float64
	// mapped: workers of one machine have each other's memory mapped once they have fetched from it, and rescue what the dead
	// leave there. rescueFails is the chance for each object that this does not work.
	mapped      bool
	rescueFails float64
}

func newPlan(r *rand.Rand) plan {
	// some returns 0, or a value between low and high with the logarithm spread
	// evenly.
	some := func(chance, low, high float64) float64 {
		u, v := r.Float64(), r.Float64()
		if u >= chance {
			return 0
		}
		return low * math.Pow(high/low, v)
	}
	every := func(chance float64, low, high time.Duration) time.Duration {
		return time.Duration(some(chance, float64(low), float64(high)))
	}
	p := plan{
		chaos:            4*time.Second + time.Duration(r.Float64()*float64(10*time.Second)),
		actions:          4 + r.IntN(16),
		tasks:            8 + r.IntN(90),
		drop:             some(0.7, 0.0005, 0.03),
		duplicate:        some(0.6, 0.001, 0.05),
		slow:             some(0.6, 0.001, 0.05),
		lateRegister:     some(0.5, 0.05, 0.5),
		crashEvery:       every(0.7, 100*time.Millisecond, 5*time.Second),
		stopEvery:        every(0.5, 200*time.Millisecond, 5*time.Second),
		leaveEvery:       every(0.3, time.Second, 5*time.Second),
		loseEvery:        every(0.3, 50*time.Millisecond, 2*time.Second),
		clientCrashEvery: every(0.4, 2*time.Second, 8*time.Second),
		executorDies:     some(0.5, 0.001, 0.02),
		noRoom:           some(0.3, 0.01, 0.2),
		duplicateAssign:  r.IntN(5) == 0,
		keepReports:      r.IntN(2) == 0,
		fixedPorts:       r.IntN(2) == 0,
		slabBytes:        64 << 20,
		tight:            r.IntN(8) == 0,
		longRuns:         some(0.7, 0.02, 0.4),
		mapped:           r.IntN(4) > 0,
		rescueFails:      some(0.5, 0.01, 0.5),
	}
	if p.tight {
		p.slabBytes = 5 << 19
	}
	return p
}

// relays: workers read objects at each other that are arriving there. It is no draw of its own, so that older seeds stay what
// they were.
func (p plan) relays() bool { return p.mapped && p.fixedPorts }

// String lists what makes the seed special.
func (p plan) String() string {
	return fmt.Sprintf("chaos %.1fs drop %.4f dup %.4f slow %.4f lateRegister %.2f crash %.1fs stop %.1fs leave %.1fs lose %.1fs clientCrash %.1fs executorDies %.4f noRoom %.3f dupAssign %v keepReports %v fixedPorts %v tight %v long %.2f mapped %v rescueFails %.2f",
		p.chaos.Seconds(), p.drop, p.duplicate, p.slow, p.lateRegister, p.crashEvery.Seconds(), p.stopEvery.Seconds(), p.leaveEvery.Seconds(), p.loseEvery.Seconds(),
		p.clientCrashEvery.Seconds(), p.executorDies, p.noRoom, p.duplicateAssign, p.keepReports, p.fixedPorts, p.tight, p.longRuns, p.mapped, p.rescueFails)
}
