// Package sim is Test support: it simulates a whole cluster in one goroutine and in virtual time,
// from one seed. The scheduler machine, and the lifecycle machines and ledgers of 50 workers, are
// the real ones. Everything around them (streams, leases, processes, executors, clients) is
// simulated here in the same way as the loops do it, with faults. Streams break and lose all
// messages in flight. Old messages are delivered again. Workers crash, stop and come back, ask to
// leave and are drained. Workers of the same machine rescue the objects of dead ones. Executors
// die, functions fail, clients disappear. Objects that clients write are hidden until the scheduler
// has accepted them, and some are refused.
//
// Results are numbers computed from the results of the inputs, so that a stale or wrong input is
// found. A run ends without faults: every wanted task must reach the outcome that its graph
// prescribes, the scheduler and the workers must agree on the place of each object, and after the
// clients have gone nothing may be left anywhere.
//
// A run is a function of its seed: two runs of one seed have the same trace hash.
package sim
