package millrace

import (
	"context"
	"fmt"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// DescribeMemory asks a worker to describe its memory: its tiers, its largest objects, those that
// cannot leave the slab, its reservations and its last fetches. limit is the largest number of
// objects and of fetches in each list, at most 10,000; 0 or less means 20. All reservations are
// listed. If task is not 0, the answer includes the history of that task's result on this worker.
func (c *Client) DescribeMemory(ctx context.Context, w *millracev1.Worker, limit int, task uint64) (*millracev1.DescribeMemoryResponse, error) {
	if w.GetDataAddress() == "" {
		return nil, fmt.Errorf("millrace: worker %s has no data address", w.GetName())
	}
	conn, err := c.data.conn(w.GetDataAddress())
	if err != nil {
		return nil, err
	}
	out, err := millracev1.NewDataServiceClient(conn).DescribeMemory(ctx, &millracev1.DescribeMemoryRequest{
		Limit: uint32(max(limit, 0)), TaskId: task,
	})
	return out, callError(ctx, "DescribeMemory", err)
}
