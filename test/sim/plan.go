package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

const (
	// machines is the number of machines; each has about the same number of workers.
	machines = 5

	// The same values as in the scheduler's loop.
	workerLease    = 5 * time.Second
	reconnectGrace = 2 * time.Second
	beatEvery      = time.Second

	// life is that of the scheduler.
	life = 1

	clientTTL   = 6 * time.Second
	clientRenew = 1500 * time.Millisecond

	// hangAfter is the time after the end of the faults in which everything must be done.
	hangAfter = 4 * time.Minute
)

// plan has the parameters that a seed sets. Each kind of fault may be absent, rare or frequent, so
// that seeds differ in kind and not only in order.
type plan struct {
	// chaos is the duration of the faults.
	chaos time.Duration
	// clients is the number of clients at a time, actions that of the actions of each of them in
	// the time of the faults. tasks bounds the size of one graph.
	clients, actions, tasks int
	// coordinations is the number of things that each client does with locks, queues and variables.
	coordinations int

	// drop and duplicate are probabilities for each message; slow is the probability of a long
	// delay.
	drop, duplicate, slow float64
	// lateRegister is the probability that the registration on a broken stream still arrives.
	lateRegister float64
	// These are mean times between faults in the whole cluster; 0: never.
	crashEvery, stopEvery, leaveEvery, loseEvery, clientCrashEvery, drainEvery, restartEvery, fillEvery time.Duration
	// executorDies is the probability that a run ends by the death of its executor, noRoom that it
	// finds no memory for its result.
	executorDies, noRoom float64
	// blocks is the probability that a function waits for other tasks.
	blocks float64
	// items turns on inputs that are items of lists.
	items bool
	// fixedPorts lets a restarted worker use its old address.
	fixedPorts bool
	// breakLoans is the probability that a loan breaks while it lasts.
	breakLoans float64
	// large is the share of results that are as large as peers lend.
	large float64
	// workers is their number.
	workers int
	// diskBytes is the size of the tier below the slab of each worker; 0: there is none. spillFails
	// is the probability for each object that it cannot be written or read there, slowDisk that
	// this takes long.
	diskBytes            uint64
	spillFails, slowDisk float64
	// slabBytes is the slab size of each worker. tight means that runs may fail for lack of memory.
	slabBytes uint64
	tight     bool
	// longRuns is the share of tasks that run for 50 to 600 ms.
	longRuns float64
	// mapped lets a worker map the memory of workers of its machine when it fetches from them, and
	// rescue objects from there after their death. rescueFails is the probability for each object
	// that the rescue fails.
	mapped      bool
	rescueFails float64
}

func newPlan(r *rand.Rand) plan {
	// some returns 0, or a value between low and high whose logarithm is evenly distributed.
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
		clients:          3,
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
		blocks:           some(0.5, 0.01, 0.5),
		noRoom:           some(0.3, 0.01, 0.2),
		items:            r.IntN(2) == 0,
		fixedPorts:       r.IntN(2) == 0,
		slabBytes:        64 << 20,
		tight:            r.IntN(8) == 0,
		longRuns:         some(0.7, 0.02, 0.4),
		mapped:           r.IntN(4) > 0,
		rescueFails:      some(0.5, 0.01, 0.5),
		drainEvery:       every(0.5, 200*time.Millisecond, 3*time.Second),
	}
	if p.tight {
		p.slabBytes = 5 << 19
	}
	p.coordinations = p.actions
	p.breakLoans = some(0.8, 0.1, 0.9)
	p.large = some(0.8, 0.2, 0.9)
	p.workers = 50
	if r.IntN(5) < 2 {
		// Few workers, so that their slabs become full.
		p.workers = 10 + r.IntN(10)
		p.diskBytes, p.slabBytes = 64<<20, uint64(700+r.IntN(600))<<10
		p.spillFails = some(0.3, 0.001, 0.02)
	}
	return p
}

// newSharedPlan is a plan without workers and tasks, of clients that share locks, queues and
// variables, and of a scheduler that is killed often.
func newSharedPlan(r *rand.Rand) plan {
	between := func(low, high float64) time.Duration {
		return time.Duration((low + r.Float64()*(high-low)) * float64(time.Second))
	}
	p := plan{
		clients: 3, chaos: between(2, 6), coordinations: 4 + r.IntN(25), slabBytes: 64 << 20,
		drop: r.Float64() * 0.03, slow: r.Float64() * 0.05, restartEvery: between(0.2, 2),
	}
	if r.IntN(2) == 0 {
		p.fillEvery = between(0.5, 3)
	}
	if r.IntN(2) == 0 {
		p.clientCrashEvery = between(0.5, 3)
	}
	return p
}

// planOf returns the plan of a run, and the source of random numbers for the rest of the run.
func planOf(o options) (plan, *rand.Rand, error) {
	r := rand.New(rand.NewPCG(o.seed, 0x6d696c6c72616365))
	if o.shared {
		p := newSharedPlan(r)
		return p, r, p.reduce(o.smaller)
	}
	p := newPlan(r)
	// The draws are apart, so that runs without restarts, or without disks, stay as they are.
	if own := rand.New(rand.NewPCG(o.seed, 0)); o.restarts && own.IntN(5) < 2 {
		p.restartEvery = time.Second + time.Duration(own.Float64()*float64(7*time.Second))
		if own.IntN(2) == 0 {
			p.fillEvery = time.Second + time.Duration(own.Float64()*float64(4*time.Second))
		}
	}
	if own := rand.New(rand.NewPCG(o.seed, 2)); p.diskBytes > 0 && own.IntN(2) == 0 {
		p.slowDisk = 0.001 * math.Pow(200, own.Float64())
	}
	return p, r, p.reduce(o.smaller)
}

// chains turns on broadcast chains: workers read objects that are still arriving at others. It
// follows from other parameters instead of a random draw of its own, so that older seeds keep their
// meaning.
func (p plan) chains() bool { return p.mapped && p.fixedPorts }

// largest is the size of the largest result: with a disk below it, a slab is small.
func (p plan) largest() int {
	if p.diskBytes > 0 {
		return 96 << 10
	}
	return 160 << 10
}

// rebalanceEvery is the mean time between rebalances; 0: never. Like chains, it follows from other
// parameters.
func (p plan) rebalanceEvery() time.Duration {
	if !p.items {
		return 0
	}
	return max(p.crashEvery/2, 200*time.Millisecond)
}

// String lists the parameters of the seed.
func (p plan) String() string {
	return fmt.Sprintf("chaos %.1fs drop %.4f dup %.4f slow %.4f lateRegister %.2f crash %.1fs stop %.1fs leave %.1fs lose %.1fs clientCrash %.1fs restart %.1fs fill %.1fs executorDies %.4f blocks %.3f noRoom %.3f items %v fixedPorts %v tight %v long %.2f mapped %v rescueFails %.2f drain %.1fs rebalance %.1fs breakLoans %.2f large %.2f clients %d workers %d slab %d disk %d spillFails %.3f slowDisk %.3f",
		p.chaos.Seconds(), p.drop, p.duplicate, p.slow, p.lateRegister, p.crashEvery.Seconds(), p.stopEvery.Seconds(), p.leaveEvery.Seconds(), p.loseEvery.Seconds(),
		p.clientCrashEvery.Seconds(), p.restartEvery.Seconds(), p.fillEvery.Seconds(), p.executorDies, p.blocks, p.noRoom, p.items, p.fixedPorts, p.tight, p.longRuns, p.mapped, p.rescueFails, p.drainEvery.Seconds(), p.rebalanceEvery().Seconds(), p.breakLoans, p.large, p.clients, p.workers, p.slabBytes, p.diskBytes, p.spillFails, p.slowDisk)
}
