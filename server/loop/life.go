package loop

import (
	"crypto/rand"
	"encoding/binary"
	"slices"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/front"
	"github.com/millrace/millrace/server/sched"
)

// A life of the scheduler is the time from its start to its end. A restarted scheduler does not know the numbers of
// tasks, workers and clients that the life before gave out, but workers and clients of that life still use them. Three
// things prevent that a number of one life is mistaken for a number of another:
//
//   - Each life has a random number. Workers and clients send it with their state, and state of another life is ignored.
//   - The number of a life's first task depends on the life, so that a late report or release that does not name its life
//     is about an unknown task.
//   - Clients get random numbers: nobody can use the lease of another client, by chance or by counting.

// random64 returns 64 random bits that nobody can guess.
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

// disown removes the objects and attempts of another life from a registration, and returns the orders by which the
// worker drops them. A worker that knows of lives has dropped them before it reads these orders.
func disown(r *front.Registration) (releases []sched.Replica, cancellations []sched.TaskRef) {
	releases, cancellations = slices.Clone(r.Worker.Inventory), slices.Clone(r.Worker.Running)
	r.Worker.Inventory, r.Worker.Running = nil, nil
	return releases, cancellations
}
