package copies

// ErrorKind classifies a refused order.
type ErrorKind uint8

// Kinds of errors.
const (
	ErrUnknownWorker ErrorKind = iota + 1
	// ErrWorkerLeaving means that the worker's process is about to end, so that no order can change
	// it.
	ErrWorkerLeaving
	// ErrNotSupervised means that nothing would start the worker again.
	ErrNotSupervised
	// ErrRebalanceRunning means that another rebalance is in progress.
	ErrRebalanceRunning
	// ErrWorkerNotActive means that the worker cannot take part, because it is not active.
	ErrWorkerNotActive
	// ErrOneWorker means that a rebalance has one worker only.
	ErrOneWorker
)

// Error refuses a whole order; nothing changed.
type Error struct {
	Kind ErrorKind
	// Object is the worker or the field that the error is about.
	Object string
	// Message says what failed, where, why, and how to correct it.
	Message string
}

func (e *Error) Error() string { return e.Message }
