package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

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
hold the fewest bytes. It cannot start workers, because it does not know on which machines: for more workers than there are,
it names the command that does that there. A system that runs workers again by itself, such as a Deployment of Kubernetes,
must be told instead of this command.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.ParseUint(args[0], 10, 31)
			if err != nil {
				return usageError{fmt.Errorf("scale %s: the number of workers that stay, 0 or more", args[0])}
			}
			wait, limit := a.settings.Bool("wait"), a.settings.Duration("timeout")
			if wait && a.settings.origin["timeout"] == "default" {
				limit = 0
			}
			return a.callFor(cmd.Context(), limit, func(ctx context.Context, c *millrace.Client, s millracev1.SchedulerServiceClient) error {
				workers, err := c.Workers(ctx)
				if err != nil {
					return err
				}
				leave, err := leaving(workers, int(n), c.Address())
				if err != nil {
					return err
				}
				out := new(millracev1.ListWorkersResponse)
				if len(leave) > 0 {
					give := func(ctx context.Context, s millracev1.SchedulerServiceClient, refs []*millracev1.WorkerRef) ([]*millracev1.Worker, error) {
						out, err := s.RetireWorkers(ctx, &millracev1.RetireWorkersRequest{Workers: refs, Reason: "scale " + args[0]})
						return out.GetWorkers(), err
					}
					if out, err = a.drained(ctx, c, s, "scale", wait, [][]*millracev1.WorkerRef{leave}, give); err != nil {
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
	cmd.Flags().Bool("wait", false, "wait until the workers have left; without --timeout as long as it takes")
	addTimeout(cmd)
	addOutput(cmd)
	return cmd
}

// leaving chooses the workers to retire so that n active ones are left. If there are too few, the
// error says how to get more for the scheduler at an address.
func leaving(listed []*millracev1.Worker, n int, address string) ([]*millracev1.WorkerRef, error) {
	var workers []*millracev1.Worker
	var drained []string
	for _, w := range listed {
		switch w.GetState() {
		case millracev1.WorkerState_WORKER_STATE_ACTIVE:
			workers = append(workers, w)
		case millracev1.WorkerState_WORKER_STATE_DRAINING, millracev1.WorkerState_WORKER_STATE_DRAINED:
			if w.GetDrain().GetPurpose() == millracev1.DrainPurpose_DRAIN_PURPOSE_KEEP {
				drained = append(drained, w.GetName())
			}
		case millracev1.WorkerState_WORKER_STATE_UNSPECIFIED, millracev1.WorkerState_WORKER_STATE_DISCONNECTED, millracev1.WorkerState_WORKER_STATE_LOST:
		}
	}
	if more := n - len(workers); more > 0 {
		text := fmt.Sprintf("the cluster has %s, and nothing in it can start others: on a machine that shall run %s, run `millrace worker %s --workers %d` with the cluster's token in MILLRACE_TOKEN, and with another --name if workers of this cluster run there already; for a cluster that a Python program has made, call cluster.scale(%d) there",
			several(len(workers), "active worker"), several(more, "more worker"), address, more, n)
		if len(drained) > 0 {
			slices.Sort(drained)
			text += fmt.Sprintf("; or put drained workers back into use: `millrace drain --undo %s`", strings.Join(drained[:min(more, len(drained))], " "))
		}
		return nil, status.Error(codes.FailedPrecondition, text)
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
