package cli

import (
	"context"
	"io"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

func (a *app) cancel() *cobra.Command {
	cmd := &cobra.Command{
		Use: "cancel KEY|t5|g3...", Short: "Stop tasks, or whole graphs", Args: atLeast(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd, func(ctx context.Context, _ *millrace.Client, s millracev1.SchedulerServiceClient) error {
				tasks, graphs := a.named(ctx, s, args)
				out, err := s.CancelTasks(ctx, &millracev1.CancelTasksRequest{Tasks: tasks, GraphIds: graphs, Reason: a.settings.String("reason"), Force: true})
				if err != nil {
					return err
				}
				if err := a.print(out, func(w io.Writer, _ bool) { row(w, out.GetCancelledTasks(), "tasks cancelled") }); err != nil {
					return err
				}
				if unknown := out.GetUnknownTaskIds(); len(unknown) > 0 {
					return status.Errorf(codes.NotFound, "%d of the tasks named are unknown, the first is t%d: look for them with `millrace get tasks`",
						len(unknown), unknown[0])
				}
				return nil
			})
		},
	}
	cmd.Flags().String("reason", "cancelled by an operator", "what others are told")
	addCall(cmd)
	addOutput(cmd)
	return cmd
}

func (a *app) retry() *cobra.Command {
	cmd := &cobra.Command{
		Use: "retry KEY|t5|g3...", Short: "Run failed or cancelled tasks again, or those of whole graphs", Args: atLeast(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd, func(ctx context.Context, _ *millrace.Client, s millracev1.SchedulerServiceClient) error {
				tasks, graphs := a.named(ctx, s, args)
				out, err := s.RetryTasks(ctx, &millracev1.RetryTasksRequest{Tasks: tasks, GraphIds: graphs})
				if err != nil {
					return err
				}
				return a.print(out, func(w io.Writer, _ bool) { row(w, out.GetRetriedTasks(), "tasks run again") })
			})
		},
	}
	addCall(cmd)
	addOutput(cmd)
	return cmd
}
