package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

func (a *app) rebalance() *cobra.Command {
	cmd := &cobra.Command{
		Use: "rebalance [WORKER...]", Short: "Move results until all workers hold about the same share of their memory",
		Long: `Moves results from workers that hold a larger share of their memory to those that hold a smaller one, until all are within 5 %
of the mean, or no move helps: after workers have joined, or after a scatter to few of them. A worker that gets a result keeps
it before the other one drops it, so no result is lost by this. Without names, all active workers take part. --dry-run shows
what would be moved. The rebalance ends with this command; what has moved stays moved. Without --timeout it takes as long as it
needs. Results stay where they are if several workers have them, if tasks need them there, or if they are small.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			limit := a.settings.Duration("timeout")
			if a.settings.origin["timeout"] == "default" {
				limit = 0
			}
			return a.callFor(cmd.Context(), limit, func(ctx context.Context, _ *millrace.Client, s millracev1.SchedulerServiceClient) error {
				out, err := a.rebalanced(ctx, s, args)
				if err != nil {
					return err
				}
				return a.print(out, func(w io.Writer, _ bool) { rebalanceTable(w, out) })
			})
		},
	}
	cmd.Flags().Bool("dry-run", false, "only plan")
	addTimeout(cmd)
	addOutput(cmd)
	return cmd
}

// rebalanced orders a rebalance and follows it to its end.
func (a *app) rebalanced(ctx context.Context, s millracev1.SchedulerServiceClient, names []string) (*millracev1.RebalanceResponse, error) {
	refs, err := workerRefs(ctx, s, names)
	if err != nil {
		return nil, err
	}
	stream, err := s.Rebalance(ctx, &millracev1.RebalanceRequest{Workers: refs, DryRun: a.settings.Bool("dry-run")})
	if err != nil {
		return nil, err
	}
	tell, stop := a.progress("rebalance")
	defer stop()
	for {
		out, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil, errors.New("the scheduler ended the call before the rebalance had ended: run it again")
		}
		if err != nil || out.GetDone() {
			return out, err
		}
		tell(int(out.GetMovedObjects()+out.GetFailedObjects()), int(out.GetPlannedObjects()))
	}
}

// rebalanceTable shows the workers of a rebalance, and the sums.
func rebalanceTable(w io.Writer, out *millracev1.RebalanceResponse) {
	names := make(map[uint32]string)
	row(w, "ID", "NAME", "BEFORE", "NOW", "PLANNED", "STAYING", "LIMIT", "FILL")
	for _, x := range out.GetWorkers() {
		names[x.GetWorkerId()] = x.GetName()
		limit, fill := "-", "-"
		if n := x.GetMemoryLimitBytes(); n > 0 {
			limit, fill = size(n), fmt.Sprintf("%.1f %%", 100*float64(x.GetBytes())/float64(n))
		}
		staying := "-"
		if n := x.GetStayingBytes(); n > 0 {
			staying = size(n)
		}
		row(w, fmt.Sprintf("w%d", x.GetWorkerId()), x.GetName(), size(x.GetInitialBytes()), size(x.GetBytes()), size(x.GetPlannedBytes()), staying, limit, fill)
	}
	row(w)
	row(w, fmt.Sprintf("planned %s, moved %s, failed %s", results(out.GetPlannedObjects(), out.GetPlannedBytes()),
		results(out.GetMovedObjects(), out.GetMovedBytes()), results(out.GetFailedObjects(), out.GetFailedBytes())))
	for _, f := range out.GetFailures() {
		key := f.GetKey()
		if key == "" {
			key = fmt.Sprintf("t%d", f.GetTaskId())
		}
		row(w, fmt.Sprintf("%s (%s) did not move from %s to %s: %s", key, size(f.GetBytes()), names[f.GetSourceWorkerId()], names[f.GetTargetWorkerId()], f.GetReason()))
	}
}
