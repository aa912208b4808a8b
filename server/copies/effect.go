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
	// EffectCopy asks for a task that copies Object to Worker. Why is a text for people. It is
	// answered by CopyBegan or CopyRefused with the number Copy.
	EffectCopy
	// EffectDropCopy drops the task Object, which copies an object: it is not wanted any more.
	EffectDropCopy
	// EffectKeep tells Worker not to drop Object to make room. The answer is ObjectReported.
	EffectKeep
	// EffectDrop tells Worker to drop Object, which another one keeps.
	EffectDrop
	// EffectState changes the state of Worker to State, which follows from its drain.
	EffectState
	// EffectWorkerChanged means that what Drain returns for Worker has changed.
	EffectWorkerChanged
	// EffectRetract asks Worker to give back all tasks that it has not begun.
	EffectRetract
	// EffectLeave tells Worker, whose process was told to stop, that it may leave.
	EffectLeave
	// EffectRetire tells Worker to end its process for good. EffectRestart tells it to end its
	// process, so that its supervisor starts the next one.
	EffectRetire
	EffectRestart
	// EffectRebalanceEnded means that the rebalance has ended. Rebalance returns its last figures.
	EffectRebalanceEnded
	// EffectContinue asks for Continued when the effects before it are carried out.
	EffectContinue
	// EffectWake asks for TimePassed with Wake at the time At. It is never taken back.
	EffectWake
	// EffectOrder means that the durable row Order has changed.
	EffectOrder
)

// Effect is one order to the owner, as a plain value.
type Effect struct {
	Kind         EffectKind
	Worker, Dead ids.WorkerID
	Object       ids.TaskID
	State        WorkerState
	Copy         uint64
	Why          string
	At           time.Time
	Wake         Wake
	Order        *DrainOrderChanged
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
	// WakeDrain is the next check of a worker's drain, or its deadline.
	WakeDrain
	// WakeMoves is the next look at the moves of a rebalance.
	WakeMoves
)
