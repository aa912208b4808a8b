// Package sim is Test support: it simulates a whole cluster in virtual time, from one seed. The
// loops of the scheduler and of the workers are the real ones, with all their machines, stores and
// messages. Their surroundings are simulated here, with faults: streams, peers, the memory of
// workers and their disks, native operations, executors, completion notifications and clients.
//
// The scheduler is killed at any step, sometimes with a loss of power, and goes on from its
// journal, whose disk is simulated. It must know what it has acknowledged, give no number twice,
// and compute nothing again that a worker still holds. Meanwhile the clock of its machine may be
// set. -sim.restarts=false leaves that out.
//
// Streams break and lose all messages in flight. Old messages are delivered again. Workers crash,
// stop and come back, ask to leave and are drained. Workers of the same machine lend each other
// objects, loans break, and objects of dead workers are rescued. Slabs become full, and disks fail
// or are slow. Executors die, functions fail, clients disappear. Objects that clients write are
// hidden until the scheduler has accepted them, and some are refused.
//
// Clients share locks, queues and variables. At the end, package model checks the history of what
// they were told: nobody gets a lock that another client has, no value of a queue is lost or given
// to two, and no variable goes back, whatever happens to messages and to the scheduler.
// TestSharedState has runs with nothing else, which take some hundredths of a second.
//
// A run is in a bubble of package synctest. An agenda has all that is going to happen, in order. A
// worker's goroutines take turns by the agenda, so that only one goroutine runs at a time; see
// background.
//
// Results are numbers computed from the results of the inputs, so that a stale or wrong input is
// found: each frame of memory holds such a number until something else is written there. A run ends
// without faults: every wanted task must reach the outcome that its graph prescribes, the scheduler
// and the workers must agree on the place of each object, and after the clients have gone nothing
// may be left anywhere.
//
// A run is a function of its seed: two runs of one seed have the same trace hash. Before a failure
// is reported, the run is shrunk: the report is about the run with the fewest clients, tasks and
// kinds of faults that is found to fail, too.
package sim
