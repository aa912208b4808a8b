package front

// ErrorKind says what was wrong with a request, beyond what the machine itself refuses (sched.ErrorKind).
type ErrorKind uint8

// Kinds of errors; the adapter gives each its code and reason.
const (
	ErrUnknownWorker ErrorKind = iota + 1
	ErrUnknownOp
	ErrUnknownFunction
	ErrInvalidField
	ErrUnauthenticated
	ErrPermissionDenied
	// ErrVersionTooNew: the client was built for a newer API.
	ErrVersionTooNew
	ErrResultNotReady
	// ErrResultNotInline: the result must be fetched from a worker.
	ErrResultNotInline
	ErrObjectLost
	ErrTaskFailed
	ErrTaskCancelled
	ErrDatasetExists
	// ErrRevisionTooOld: a watch fell behind what is remembered; it starts anew with a snapshot.
	ErrRevisionTooOld
	// ErrDraining: the scheduler is stopping and takes nothing new.
	ErrDraining
	// ErrWatchEnded: the client's lease ended while it was watched.
	ErrWatchEnded
	// ErrDead: the incarnation was declared dead by its supervisor.
	ErrDead
	// ErrNameTaken: a worker that lives has the name.
	ErrNameTaken
	// ErrSchedulerFull: there is no room for what was submitted, now.
	ErrSchedulerFull

	// ErrorKinds is one more than the last kind.
	ErrorKinds
)

// Error is a request that was refused whole; nothing changed.
type Error struct {
	Kind ErrorKind
	// Object is the worker, dataset or client that the error is about.
	Object string
	// Message says what, where, why, and what to do.
	Message string
	// Metadata are details by name, for machines; may be nil.
	Metadata map[string]string
}

func (e *Error) Error() string { return e.Message }
