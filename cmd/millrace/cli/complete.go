package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

const (
	// completionPatience is the longest time that a user waits for names.
	completionPatience = 3 * time.Second
	// completionNames bounds the names of each kind.
	completionNames = 1000
)

// namer lists names that begin with a text. A tab divides a name from its description.
type namer func(ctx context.Context, s millracev1.SchedulerServiceClient, begun string) ([]string, error)

// completions makes the commands complete the names of what is in the cluster.
func (a *app) completions(root *cobra.Command) {
	arguments := map[string][]namer{
		"drain": {workerNames}, "retire": {workerNames}, "restart": {workerNames}, "rebalance": {workerNames}, "memory": {workerNames},
		"wait": {graphNames}, "cancel": {graphNames, taskKeys}, "retry": {graphNames, taskKeys}, "explain": {taskKeys},
	}
	flags := map[string]namer{"worker": workerNames, "graph": graphNumbers, "task": taskKeys}
	for _, cmd := range root.Commands() {
		if names := arguments[cmd.Name()]; names != nil {
			cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
				if len(args) > 0 && (cmd.Name() == "wait" || cmd.Name() == "explain") {
					return nil, cobra.ShellCompDirectiveNoFileComp
				}
				return a.complete(cmd, begun, names...)
			}
		}
		for flag, names := range flags {
			if cmd.Flags().Lookup(flag) != nil && cmd.Name() != "worker" && cmd.Name() != "up" {
				// It fails only for flags that the command does not have.
				_ = cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
					return a.complete(cmd, begun, names)
				})
			}
		}
	}
}

// completeTrace completes a graph and then a file.
func (a *app) completeTrace(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return a.complete(cmd, begun, graphNames)
}

// completeDescribe completes a kind and then a name.
func (a *app) completeDescribe(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	kinds := map[string]namer{"task": taskKeys, "graph": graphNames, "worker": workerNames, "dataset": datasetNames}
	if len(args) == 0 {
		return []string{"task", "graph", "worker", "dataset"}, cobra.ShellCompDirectiveNoFileComp
	}
	if names := kinds[args[0]]; names != nil && len(args) == 1 {
		return a.complete(cmd, begun, names)
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// complete asks the cluster for names. Without an answer there are none.
func (a *app) complete(cmd *cobra.Command, begun string, namers ...namer) (found []string, _ cobra.ShellCompDirective) {
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	settings, err := loadSettings(cmd)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	a.settings = settings
	// The shell has no place for an error.
	_ = a.callFor(ctx, completionPatience, func(ctx context.Context, _ *millrace.Client, s millracev1.SchedulerServiceClient) error {
		for _, names := range namers {
			some, err := names(ctx, s, begun)
			if err != nil {
				return err
			}
			for _, name := range some {
				if strings.HasPrefix(name, begun) && !strings.ContainsAny(name, "\r\n") {
					found = append(found, plainColumns(name))
				}
			}
		}
		return nil
	})
	return found, cobra.ShellCompDirectiveNoFileComp
}

// plainColumns is plain for a name with a description.
func plainColumns(text string) string {
	name, description, divided := strings.Cut(text, "\t")
	if !divided {
		return plain(name)
	}
	return plain(name) + "\t" + plain(description)
}

func workerNames(ctx context.Context, s millracev1.SchedulerServiceClient, _ string) (names []string, err error) {
	out, err := s.ListWorkers(ctx, &millracev1.ListWorkersRequest{PageSize: completionNames})
	for _, w := range out.GetWorkers() {
		names = append(names, w.GetName()+"\t"+strings.ToLower(short(w.GetState(), "WORKER_STATE_")))
	}
	return names, err
}

func graphNames(ctx context.Context, s millracev1.SchedulerServiceClient, _ string) (names []string, err error) {
	out, err := s.ListGraphs(ctx, &millracev1.ListGraphsRequest{PageSize: completionNames})
	for _, g := range out.GetGraphs() {
		names = append(names, strings.TrimRight(fmt.Sprintf("g%d\t%s %s", g.GetGraphId(), strings.ToLower(short(g.GetState(), "GRAPH_STATE_")), g.GetName()), " "))
	}
	return names, err
}

func graphNumbers(ctx context.Context, s millracev1.SchedulerServiceClient, begun string) ([]string, error) {
	names, err := graphNames(ctx, s, begun)
	for i, name := range names {
		names[i] = strings.TrimPrefix(name, "g")
	}
	return names, err
}

func taskKeys(ctx context.Context, s millracev1.SchedulerServiceClient, begun string) (names []string, err error) {
	out, err := s.ListTasks(ctx, &millracev1.ListTasksRequest{PageSize: completionNames, KeyPrefix: begun})
	for _, t := range out.GetTasks() {
		names = append(names, t.GetKey()+"\t"+strings.ToLower(short(t.GetState(), "TASK_STATE_")))
	}
	return names, err
}

func datasetNames(ctx context.Context, s millracev1.SchedulerServiceClient, _ string) (names []string, err error) {
	out, err := s.ListDatasets(ctx, &millracev1.ListDatasetsRequest{PageSize: completionNames})
	for _, d := range out.GetDatasets() {
		names = append(names, d.GetName())
	}
	return names, err
}
