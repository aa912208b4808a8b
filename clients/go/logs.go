package millrace

import (
	"context"
	"errors"
	"fmt"
	"io"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// FollowLogs reads the output of tasks on a worker, and calls f with each batch, until the context
// ends, the worker ends, f returns an error, or, with UntilNow, all that was written before the
// call was read. No task waits for f: while it is slow, output is left out.
func (c *Client) FollowLogs(ctx context.Context, w *millracev1.Worker, request *millracev1.FollowLogsRequest, f func(*millracev1.FollowLogsResponse) error) error {
	if w.GetDataAddress() == "" {
		return fmt.Errorf("millrace: worker %s has no data address", w.GetName())
	}
	conn, err := c.data.conn(w.GetDataAddress())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := millracev1.NewDataServiceClient(conn).FollowLogs(ctx, request)
	if err != nil {
		return callError(ctx, "FollowLogs", err)
	}
	for {
		batch, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return callError(ctx, "FollowLogs", err)
		}
		if err := f(batch); err != nil {
			return err
		}
	}
}
