package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/perfetto"
)

const traceHelp = `Writes when and where the tasks of a graph ran to a file that https://ui.perfetto.dev and chrome://tracing open; without a
file name to millrace-GRAPH.json, with - to stdout.

Each worker is a process with one track for each slot: deserialise, run, publish. Above the slots are the times that tasks
waited for their inputs (fetch: from other workers; read from lower tiers: of their own worker, which had spilled them) and for
memory. Counters show the tasks that run and the bytes of results. All times are from the clock of the scheduler, in
microseconds since 1970. It has the attempts that have ended, as far as the scheduler keeps them: the latest ones of the
cluster, also those of released tasks. A scheduler that was started again with its journal keeps none that ended before; the file
then has a mark at the time of the restart.`

func (a *app) trace() *cobra.Command {
	cmd := &cobra.Command{
		Use: "trace g3 [FILE]", Short: "Write a file for ui.perfetto.dev: when and where the tasks of a graph ran", Long: traceHelp, Args: between(1, 2), ValidArgsFunction: a.completeTrace,
		RunE: func(cmd *cobra.Command, args []string) error {
			n, ok := number(args[0], 'g')
			if !ok {
				return usageError{fmt.Errorf("trace %s: a graph, as in g3", args[0])}
			}
			name := fmt.Sprintf("millrace-g%d.json", n)
			if len(args) > 1 {
				name = args[1]
			}
			return a.call(cmd, func(ctx context.Context, _ *millrace.Client, s millracev1.SchedulerServiceClient) error {
				return a.writeTrace(ctx, s, n, name)
			})
		},
	}
	addTimeout(cmd)
	return cmd
}

func (a *app) writeTrace(ctx context.Context, s millracev1.SchedulerServiceClient, id uint64, name string) error {
	trace, err := perfetto.Read(ctx, s, id)
	if err != nil {
		return err
	}
	if name == "-" {
		err = trace.Write(a.out)
	} else if err = createFile(name, trace.Write); err == nil {
		_, _ = fmt.Fprintf(a.out, "%s: %s; open it in https://ui.perfetto.dev\n", name, several(len(trace.Runs), "attempt"))
	}
	if err == nil && trace.Missing != "" {
		_, _ = fmt.Fprintln(a.err, trace.Missing)
	}
	return err
}

// createFile makes a file, or leaves none if write fails.
func createFile(name string, write func(io.Writer) error) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	err = errors.Join(write(file), file.Close())
	if err != nil {
		_ = os.Remove(name)
	}
	return err
}
