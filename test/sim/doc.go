// Package sim is Test support: a whole cluster in one goroutine and in virtual
// time, out of one seed. The scheduler machine, the lifecycle machines and the
// ledgers of 50 workers are the real ones; what is around them (streams, leases,
// processes, executors, clients) is played here as the loops do it, and made to
// fail: streams break with everything in flight, old messages come again, workers
// crash, stop and come back, ask to leave and are drained, those of their machine copy what they leave, executors die, functions
// fail, clients disappear. What clients write is hidden until the scheduler has accepted it, and some of it is refused.
//
// Results are numbers computed from those of the inputs, so that a stale or wrong
// input shows. A run ends in calm: every wanted task must have come to the outcome
// that its graph prescribes, both sides must agree on what is where, and after the
// clients have gone nothing may be left anywhere.
//
// A run is a function of its seed: two runs of one seed have the same trace hash.
package sim
