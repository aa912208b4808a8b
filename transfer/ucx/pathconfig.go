package ucx

import (
	"context"
	"time"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/transfer"
)

// PathConfig does not change during the life of a Path.
type PathConfig struct {
	// Connect sends a request of the control connection to a peer: PeerService.Connect. Its
	// errors are gRPC statuses.
	Connect func(context.Context, transfer.Peer, *workerv1.ConnectRequest) (*workerv1.ConnectResponse, error)
	// Worker returns the worker ID to read as. It is a function because a worker gets a new ID when
	// it registers again. Nil: 0.
	Worker func() ids.WorkerID
	// StallTimeout is how long a fetch waits without any progress. It also limits each step of
	// opening a connection, except for the first: the peer's answer may take four times as long.
	// The default is transfer.DefaultStallTimeout.
	StallTimeout time.Duration
	// Received, if set, is called with the number of bytes that arrived.
	Received func(bytes int)
}

func (c PathConfig) withDefaults() PathConfig {
	if c.StallTimeout <= 0 {
		c.StallTimeout = transfer.DefaultStallTimeout
	}
	if c.Worker == nil {
		c.Worker = func() ids.WorkerID { return 0 }
	}
	if c.Received == nil {
		c.Received = func(int) {}
	}
	return c
}
