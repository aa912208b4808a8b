// Package sim is Test support: it simulates a whole cluster in one goroutine and in virtual time,
// from one seed. The scheduler's loop with all its machines is the real one, and so are the
// lifecycle machines and ledgers of 50 workers. Streams, the loops of workers, processes, executors
// and clients are simulated here, with faults. There is no journal. Streams break and lose all
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
