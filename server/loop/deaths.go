package loop

import (
	"sync/atomic"

	"github.com/millrace/millrace/server/members"
)

// deathCause is the cause of a worker's death, as metrics have it.
type deathCause uint8

const (
	deathLost deathCause = iota
	deathOutOfMemory
	deathDevice
	deathSignal
	deathExit
	deathCauses
)

func (c deathCause) String() string {
	return [...]string{"lost", "out_of_memory", "gpu", "signal", "exit"}[c]
}

// deaths counts the deaths of workers by cause. Any goroutine may read it.
type deaths [deathCauses]atomic.Uint64

func causeOf(d *members.Death) deathCause {
	switch {
	case d.OutOfMemory:
		return deathOutOfMemory
	case d.DeviceFault:
		return deathDevice
	case d.Signal != "":
		return deathSignal
	case d.Reaped:
		return deathExit
	default:
		return deathLost
	}
}

// Deaths returns the numbers of deaths of workers, by cause.
func (l *Loop) Deaths() map[string]uint64 {
	out := make(map[string]uint64, deathCauses)
	for c := range deathCauses {
		out[c.String()] = l.deaths[c].Load()
	}
	return out
}
