package schedapi

// ErrorKind is the reason why the loop refused a request. The machine's own refusals have a
// sched.ErrorKind.
type ErrorKind uint8

// Kinds of errors. The rpc adapter maps each kind to a gRPC code and an API reason.
const (
	ErrUnknownWorker ErrorKind = iota + 1
	ErrUnknownOp
	ErrUnknownFunction
	ErrInvalidField
	// ErrPermissionDenied: the token's role forbids a field, or the client is another's.
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
	// ErrRevisionTooOld: a watch fell behind the remembered changes; it starts anew with a
	// snapshot.
	ErrRevisionTooOld
	// ErrDraining: the scheduler is stopping and accepts no new work.
	ErrDraining
	// ErrWatchEnded: the client's lease ended while it was watched.
	ErrWatchEnded
	// ErrSchedulerFull: at present there is no room for the submission.
	ErrSchedulerFull

	// ErrPeersMissing: without a scheduler, the others could not go on.
	ErrPeersMissing

	// ErrJournal: what the scheduler accepts cannot be written to its journal.
	ErrJournal

	// ErrorKinds is one more than the last kind.
	ErrorKinds
)

// Error is a refused request. It was refused as a whole: nothing changed.
type Error struct {
	Kind ErrorKind
	// Object is the worker, dataset or client that the error is about.
	Object string
	// Message names the failure, its place, its cause and the remedy.
	Message string
	// Metadata are details by name, for programs; may be nil.
	Metadata map[string]string
}

func (e *Error) Error() string { return e.Message }
