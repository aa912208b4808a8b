package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

func (a *app) explain() *cobra.Command {
	cmd := &cobra.Command{
		Use: "explain TASK", Short: "Say why a task is not running, or what became of it", Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd, func(ctx context.Context, c *millrace.Client, s millracev1.SchedulerServiceClient) error {
				out, err := s.ExplainTask(ctx, &millracev1.ExplainTaskRequest{Task: byKey(args[0], a.settings.String("namespace"))})
				if n, ok := number(args[0], 't'); err != nil && ok {
					out, err = s.ExplainTask(ctx, &millracev1.ExplainTaskRequest{Task: byNumber(n)})
				}
				if err != nil {
					return err
				}
				out.Explanation += explainMemory(ctx, c, out.GetTask())
				return a.print(out, func(w io.Writer, _ bool) {
					row(w, statusWord(out.GetStatus())+": "+out.GetExplanation())
					if len(out.GetWorkers()) > 0 {
						row(w)
						row(w, "WORKER", "MAY RUN IT", "QUEUE", "TO FETCH", "FETCH", "FINISH", "BY", "WHY NOT")
					}
					for _, v := range out.GetWorkers() {
						row(w, v.GetWorker(), v.GetFeasible(), estimate(v.GetQueueTime()), size(v.GetMissingBytes()), estimate(v.GetTransferTime()), estimate(v.GetCompletionTime()), v.GetSources(), v.GetReason())
					}
				})
			})
		},
	}
	addCall(cmd)
	addOutput(cmd)
	return cmd
}

// statusWord returns the name of a status without its prefix.
func statusWord(s millracev1.TaskStatus) string {
	return strings.TrimPrefix(s.String(), "TASK_STATUS_")
}

func estimate(d *durationpb.Duration) string { return fmt.Sprintf("%.3f s", d.AsDuration().Seconds()) }
