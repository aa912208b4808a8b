package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

func (a *app) wait() *cobra.Command {
	cmd := &cobra.Command{
		Use: "wait g3", Short: "Wait until a graph has ended", Args: exactly(1),
		Long: "Waits until a graph has ended. Exit code 7 if a task failed or was cancelled, 6 if the time is up.",
		RunE: func(cmd *cobra.Command, args []string) error {
			n, ok := number(args[0], 'g')
			if !ok {
				return usageError{fmt.Errorf("wait %s: a graph, as in g3", args[0])}
			}
			return a.call(cmd, func(ctx context.Context, c *millrace.Client, _ millracev1.SchedulerServiceClient) error {
				return a.waitGraph(ctx, c, n)
			})
		},
	}
	addCall(cmd)
	addOutput(cmd)
	return cmd
}

// waitGraph waits for a graph and prints it. It returns an error if a task failed.
func (a *app) waitGraph(ctx context.Context, c *millrace.Client, id uint64) error {
	show, stop := a.notedProgress(fmt.Sprintf("wait g%d", id))
	g, err := c.FollowGraph(ctx, id, func(now *millracev1.Graph) { show(graphProgress(now.GetCounts())) })
	stop()
	if errors.Is(err, context.DeadlineExceeded) {
		return lateError{id, a.settings.Duration("timeout"), err}
	}
	if err != nil {
		return err
	}
	if err := a.print(g, func(w io.Writer, wide bool) { graphsTable(w, []*millracev1.Graph{g}, wide) }); err != nil {
		return err
	}
	if g.GetState() != millracev1.GraphState_GRAPH_STATE_SUCCEEDED {
		return graphError{g}
	}
	return nil
}

// lateError is the error for a graph that has not ended in time.
type lateError struct {
	graph   uint64
	timeout time.Duration
	error
}

// Error says how to wait longer.
func (e lateError) Error() string {
	return fmt.Sprintf("graph g%d has not ended within %s: `millrace wait g%[1]d` with a longer --timeout (0: as long as it takes), or `millrace describe graph g%[1]d` for what it waits for", e.graph, e.timeout)
}

// Unwrap returns the end of the call.
func (e lateError) Unwrap() error { return e.error }

// graphProgress returns how many tasks of a graph have ended, out of how many, and how.
func graphProgress(n *millracev1.TaskCounts) (done, of int, note string) {
	done = int(n.GetSucceeded() + n.GetFailed() + n.GetCancelled() + n.GetReleased())
	of = done + int(n.GetWaiting()+n.GetReady()+n.GetAssigned()+n.GetRunning()+n.GetRescuing())
	note = several(int(n.GetRunning()), "task") + " running"
	if bad := n.GetFailed() + n.GetCancelled(); bad > 0 {
		note += fmt.Sprintf(", %d failed or cancelled", bad)
	}
	return done, of, note
}

// graphError is the error for a graph that ended without success.
type graphError struct{ *millracev1.Graph }

// Error names the graph and its first failure.
func (e graphError) Error() string {
	text := fmt.Sprintf("graph g%d", e.GetGraphId())
	if e.GetName() != "" {
		text += fmt.Sprintf(" (%s)", e.GetName())
	}
	text += " " + strings.ToLower(short(e.GetState(), "GRAPH_STATE_"))
	if e.GetFirstError() != "" {
		text += ": " + e.GetFirstError()
	}
	return text
}
