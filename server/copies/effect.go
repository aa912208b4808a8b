package copies

import (
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// EffectKind is the action that the owner must take.
type EffectKind uint8

// Kinds of effects. The owner must carry them out in order.
const (
	// EffectRescue asks Worker to copy Object out of the memory of Dead. It is answered by
	// RescueEnded or RescueFailed.
	EffectRescue EffectKind = iota + 1
	// EffectGiveUp means that no survivor copies Object: it is lost.
	EffectGiveUp
	// EffectUnmap tells Worker that nothing more is needed from the memory of Dead.
	EffectUnmap
	// EffectWake asks for TimePassed with Wake at the time At. It is never taken back.
	EffectWake
)

// Effect is one order to the owner, as a plain value.
type Effect struct {
	Kind         EffectKind
	Worker, Dead ids.WorkerID
	Object       ids.TaskID
	At           time.Time
	Wake         Wake
}

// Wake says what is due.
type Wake struct {
	Kind   WakeKind
	Worker ids.WorkerID
}

// WakeKind is the kind of a deadline.
type WakeKind uint8

const (
	// WakeRescue is the deadline of the rescue of a dead worker's objects.
	WakeRescue WakeKind = iota + 1
)
