// Package model is Test support: it says in plain and slow code what clients may see of a
// scheduler, and checks histories against it: lists of the calls that clients made, and of the
// answers that they got, while schedulers were killed and started again.
//
// A call takes effect at one moment between its beginning and its answer. A call that was never
// answered takes effect at any moment after its beginning, or never. Kills do not occur in the
// model: an effect that was answered stays, also if processes are killed and disks fail. Package
// porcupine looks for an order of the effects that explains all answers about one thing
// (linearizability: Herlihy, Wing, 1990). These are the things:
//
//   - A lock is a set of holders, at most as many as its limit, each with a fencing number above
//     those of all before. One who is told that he has no room is right at some moment. A release
//     that was answered has happened, and so has the end of a lease.
//   - A queue is a list of values. A value that was put is taken once, in the order of the list.
//     Values of a taker who was never told are on their way: they go back to their place in the
//     list, or are lost with him.
//   - A variable has the value that it was given last, or none. An event is a variable.
//
// Tasks have rules instead, each of which is checked against each pair of answers:
//
//   - A number belongs to one task for ever.
//   - A task whose submission was answered is known while its client holds it, and is gone after
//     all who held it have released it.
//   - The end of a task is committed once: a generation has one outcome with one value, and after a
//     newer generation no older one is seen. Without a loss of a worker or an object there is one
//     generation.
//   - Ends survive. The scheduler waits for no disk before it tells of an end, but its journal has
//     an order: an end that was seen before the beginning of a call that became durable is durable
//     when that call is answered. From then on a task that has FAILED or was CANCELLED stays so
//     until somebody retries it.
//   - Workers that are known to be gone have no objects, and there is one life of the cluster.
//
// A history that breaks a rule is an error that shows the calls about that thing. The tests of this
// package have histories of schedulers with bugs, all of which are found.
package model
