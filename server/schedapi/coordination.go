package schedapi

import (
	"context"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/coord"
)

// Place says whose namespace a call of Coordination is about: that of the client or, with client 0,
// the named one.
type Place struct {
	Client    ids.ClientID
	Namespace string
}

// Coordination lists the calls to the coordination machine. Any goroutine may call the methods.
// Errors are *coord.Error, *sched.Error, *Error, or the error of the context.
type Coordination interface {
	// Ask makes a call that may have to wait. The loop sets its ticket. If ctx ends, the call keeps
	// its place for a while, provided that it has an id.
	Ask(ctx context.Context, place Place, call coord.Call) (coord.Answer, error)
	Withdraw(ctx context.Context, client ids.ClientID, request string) error
	Acknowledge(ctx context.Context, client ids.ClientID, request string) error

	ReleaseLocks(ctx context.Context, client ids.ClientID, request string, names []string) error
	Semaphore(ctx context.Context, place Place, name string) (coord.SemaphoreInfo, error)
	// CloseSemaphore returns the number of holders, CloseQueue that of values in it. With leave,
	// only the client leaves the queue.
	CloseSemaphore(ctx context.Context, place Place, name string) (int, error)
	SetVariable(ctx context.Context, place Place, name string, value coord.Value) error
	DeleteVariable(ctx context.Context, place Place, name string) error
	SetEvent(ctx context.Context, place Place, name string, set bool) error
	OpenQueue(ctx context.Context, place Place, name string, maxSize uint32) error
	Queue(ctx context.Context, place Place, name string) (coord.QueueInfo, error)
	CloseQueue(ctx context.Context, place Place, name string, leave bool) (int, error)
	PublishToTopic(ctx context.Context, place Place, name string, values []coord.Value) (uint64, error)
	Topics(ctx context.Context, place Place) ([]coord.TopicInfo, error)
	// SetMetadata with nil removes what is at the path.
	SetMetadata(ctx context.Context, place Place, path []string, tree *coord.Tree) error
	Metadata(ctx context.Context, place Place, path []string) (coord.Tree, bool, error)
}
