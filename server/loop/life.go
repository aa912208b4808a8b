package loop

import (
	"crypto/rand"
	"encoding/binary"

	"github.com/millrace/millrace/internal/ids"
)

// A life of the scheduler is the time from its start to its end. A restarted scheduler does not
// know the numbers of tasks, workers and clients that the previous life gave out, but workers and
// clients of that life still use them. Three things prevent that a number of one life is mistaken
// for a number of another:
//
//   - Each life has a random number. Workers and clients send it with their state, and the
//     scheduler ignores state of another life.
//   - The number of a life's first task depends on the life, so a late report or release that does
//     not name its life refers to an unknown task.
//   - Client numbers are random: no client can use the lease of another one, by chance or by
//     counting.

// random64 returns 64 random bits from crypto/rand, which cannot be guessed.
func random64() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // It never fails: see its documentation.
	return binary.LittleEndian.Uint64(b[:])
}

const (
	// taskRegion is the number of tasks that one life may have before its numbers reach those of
	// another life.
	taskRegion = 1 << 32
	// taskRegions bounds the task numbers. JavaScript and other languages keep integers as doubles,
	// which are exact up to 2^53; and a task's number must stay below the machine's limit, 2^48.
	taskRegions = 1 << 14
)

// firstTask returns the number of the first task of a life.
func firstTask(life uint64) ids.TaskID { return ids.TaskID(life%taskRegions*taskRegion + 1) }

// newClientID draws the random number of a lease. It fits into a signed 64-bit integer, because
// some languages have no unsigned one.
func (l *Loop) newClientID() ids.ClientID {
	for {
		id := ids.ClientID(l.config.Random() >> 1)
		if _, taken := l.clients.byID[id]; id != 0 && !taken {
			return id
		}
	}
}
