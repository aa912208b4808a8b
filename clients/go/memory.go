package millrace

import (
	"context"
	"fmt"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// DescribeMemory returns the objects in a worker's memory, the reasons why they are kept there,
// and the requests that wait for memory. limit is the maximum number of holders and pins,
// largest first (0: 20). If task is not 0, the answer includes the history of its result.
func (c *Client) DescribeMemory(ctx context.Context, w *millracev1.Worker, limit int, task uint64) (*millracev1.DescribeMemoryResponse, error) {
	if w.GetDataAddress() == "" {
		return nil, fmt.Errorf("millrace: worker %s has no memory of its own", w.GetName())
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
