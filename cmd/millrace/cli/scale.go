package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

func (a *app) scale() *cobra.Command {
	cmd := &cobra.Command{
		Use: "scale N", Short: "Retire workers until N are left", Args: exactly(1),
		Long: `Retires workers, as "millrace retire" does and without a loss of results, until N active ones are left: first those that
hold the fewest bytes. It cannot start workers, because it does not know on which machines: "millrace worker" does that there.
A system that runs workers again by itself, such as a Deployment of Kubernetes, must be told instead of this command.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.ParseUint(args[0], 10, 31)
			if err != nil {
				return usageError{fmt.Errorf("scale %s: the number of workers that stay, 0 or more", args[0])}
			}
			return a.call(cmd, func(ctx context.Context, c *millrace.Client, s millracev1.SchedulerServiceClient) error {
				workers, err := c.Workers(ctx, millracev1.WorkerState_WORKER_STATE_ACTIVE)
				if err != nil {
					return err
				}
				leave, err := leaving(workers, int(n))
				if err != nil {
					return err
				}
				out := new(millracev1.RetireWorkersResponse)
				if len(leave) > 0 {
					if out, err = s.RetireWorkers(ctx, &millracev1.RetireWorkersRequest{Workers: leave, Reason: "scale " + args[0]}); err != nil {
						return err
					}
				}
				return a.print(out, func(w io.Writer, _ bool) {
					if len(leave) == 0 {
						row(w, fmt.Sprintf("the cluster has %s already", several(int(n), "active worker")))
						return
					}
					drainTable(w, out.GetWorkers())
				})
			})
		},
	}
	addTimeout(cmd)
	addOutput(cmd)
	return cmd
}

// leaving chooses the workers to retire so that n are left.
func leaving(workers []*millracev1.Worker, n int) ([]*millracev1.WorkerRef, error) {
	if more := n - len(workers); more > 0 {
		return nil, status.Errorf(codes.FailedPrecondition,
			"the cluster has %s, and this command cannot start others: start %s with `millrace worker` on the machines that shall run them, or with cluster.scale(%d) in the Python program that made the cluster",
			several(len(workers), "active worker"), several(more, "more worker"), n)
	}
	held := slices.SortedFunc(slices.Values(workers), func(a, b *millracev1.Worker) int {
		return cmp.Or(cmp.Compare(a.GetMemoryUsedBytes()+lowerBytes(a), b.GetMemoryUsedBytes()+lowerBytes(b)),
			cmp.Compare(a.GetAssignedTasks(), b.GetAssignedTasks()), cmp.Compare(b.GetName(), a.GetName()))
	})
	var refs []*millracev1.WorkerRef
	for _, w := range held[:len(workers)-n] {
		refs = append(refs, &millracev1.WorkerRef{Worker: &millracev1.WorkerRef_Id{Id: w.GetWorkerId()}})
	}
	return refs, nil
}
