package loop

import (
	"crypto/rand"
	"encoding/binary"
	"slices"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/front"
	"github.com/millrace/millrace/server/sched"
)

// A scheduler that starts anew knows nothing of what the one before it handed out, but workers and clients of that one are still
// there, and come back with its numbers. Three things keep a number of one life from being taken for one of another:
//
//   - Each life has a random number, which workers and clients send with what they know. What is of another life is not believed.
//   - A life's first task has a number that depends on the life, so that a report or a release that does not say its life, and
//     comes late, is about a task that is not known.
//   - Clients get random numbers: nobody can come upon another's lease, by chance or by counting.

// random64 is 64 bits that nobody can guess.
func random64() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // It never fails: see its documentation.
	return binary.LittleEndian.Uint64(b[:])
}

const (
	// taskRegion is how many tasks one life may have before it comes to the numbers of another.
	taskRegion = 1 << 32
	// taskRegions bounds the numbers: JavaScript and others that keep integers as doubles get them whole, and a task's number has
	// to stay below the machine's limit, 2^48.
	taskRegions = 1 << 14
)

// firstTask is the number of the first task of a life.
func firstTask(life uint64) ids.TaskID { return ids.TaskID(life%taskRegions*taskRegion + 1) }

// newClientID draws the number of a lease. It fits into a signed integer of 64 bits, which is all that some languages have.
func (l *Loop) newClientID() ids.ClientID {
	for {
		id := ids.ClientID(random64() >> 1)
		if _, taken := l.clients.byID[id]; id != 0 && !taken {
			return id
		}
	}
}

// foreign says whether what a worker holds and runs is from another life of the scheduler: it says so; or it says nothing, as a
// program from before there were lives does, and this scheduler has not met its incarnation.
func (l *Loop) foreign(r *front.Registration, met bool) bool {
	if r.Life != 0 {
		return r.Life != l.config.Cluster.Life
	}
	return !met && len(r.Worker.Inventory)+len(r.Worker.Running) > 0
}

// disown takes what is from another life out of a registration, and returns the orders that have the worker let go of it. A worker
// that knows of lives has done so before it reads them.
func disown(r *front.Registration) (releases []sched.Replica, cancellations []sched.TaskRef) {
	releases, cancellations = slices.Clone(r.Worker.Inventory), slices.Clone(r.Worker.Running)
	r.Worker.Inventory, r.Worker.Running = nil, nil
	return releases, cancellations
}
