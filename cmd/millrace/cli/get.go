package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

func (a *app) get() *cobra.Command {
	kinds := []string{"graphs", "tasks", "workers", "clients", "datasets", "alarms", "result", "ops"}
	cmd := &cobra.Command{
		Use: "get graphs|tasks|workers|clients|datasets|alarms, get result KEY, or get ops [NAME...]", Short: "List what there is, or print a small result",
		Long: `Lists what there is in the cluster, or prints a small result. "get ops" needs no cluster: it lists the native operations of
this program, and with names it prints all about each of them: arguments, result, errors, an example.`,
		Args: atLeast(1), ValidArgs: kinds,
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == "ops" || args[0] == "op" {
				return a.getOps(args[1:])
			}
			return a.callAgain(cmd, func(ctx context.Context, _ *millrace.Client, s millracev1.SchedulerServiceClient) error {
				return a.list(ctx, s, args)
			})
		},
	}
	addCall(cmd)
	addOutput(cmd)
	addWatch(cmd)
	f := cmd.Flags()
	f.Int32("page-size", 0, "at most this many; 0: all")
	f.String("page-token", "", "from the page before")
	f.Uint64("graph", 0, "tasks: of this graph only")
	f.String("worker", "", "tasks: assigned to, or with their result on, this worker")
	f.StringSlice("state", nil, "graphs, tasks, workers: in these states only (RUNNING,FAILED)")
	f.Duration("wait", 0, "result: wait so long for it")
	return cmd
}

// states parses --state for an enum.
func states[E ~int32](a *app, prefix string, values map[string]int32) ([]E, error) {
	var out []E
	for _, name := range a.settings.Strings("state") {
		v, ok := values[prefix+strings.ToUpper(name)]
		if !ok {
			return nil, usageError{fmt.Errorf("--state %s: no such state", name)}
		}
		out = append(out, E(v))
	}
	return out, nil
}

// pages fetches all pages, or one page if a page size is given.
func pages(a *app, fetch func(size int32, token string) (next string, err error)) error {
	n, token := int32(a.settings.Int("page-size")), a.settings.String("page-token")
	for {
		size := n
		if size == 0 {
			size = 1000
		}
		next, err := fetch(size, token)
		if err != nil || next == "" || n != 0 {
			return err
		}
		token = next
	}
}

func (a *app) list(ctx context.Context, s millracev1.SchedulerServiceClient, args []string) error {
	kind := args[0]
	if want := map[bool]int{true: 2, false: 1}[kind == "result"]; len(args) != want {
		return usageError{fmt.Errorf("get %s: `get result KEY`, `get ops [NAME...]`, or one of graphs, tasks, workers, clients, datasets, alarms", strings.Join(args, " "))}
	}
	namespace := a.settings.String("namespace")
	switch kind {
	case "graphs", "graph":
		in, err := states[millracev1.GraphState](a, "GRAPH_STATE_", millracev1.GraphState_value)
		if err != nil {
			return err
		}
		out := new(millracev1.ListGraphsResponse)
		err = pages(a, func(size int32, token string) (string, error) {
			r, err := s.ListGraphs(ctx, &millracev1.ListGraphsRequest{PageSize: size, PageToken: token, States: in, Namespace: namespace})
			out.Graphs, out.NextPageToken = append(out.Graphs, r.GetGraphs()...), r.GetNextPageToken()
			return r.GetNextPageToken(), err
		})
		if err != nil {
			return err
		}
		return a.print(out, func(w io.Writer, wide bool) { graphsTable(w, out.GetGraphs(), wide) })
	case "tasks", "task":
		in, err := states[millracev1.TaskState](a, "TASK_STATE_", millracev1.TaskState_value)
		if err != nil {
			return err
		}
		var worker *millracev1.WorkerRef
		if name := a.settings.String("worker"); name != "" {
			worker = workerRef(ctx, s, name)
		}
		out := new(millracev1.ListTasksResponse)
		err = pages(a, func(size int32, token string) (string, error) {
			r, err := s.ListTasks(ctx, &millracev1.ListTasksRequest{
				PageSize: size, PageToken: token, States: in, Namespace: namespace,
				GraphId: uint64(a.settings.Int64("graph")), Worker: worker,
			})
			out.Tasks, out.NextPageToken = append(out.Tasks, r.GetTasks()...), r.GetNextPageToken()
			return r.GetNextPageToken(), err
		})
		if err != nil {
			return err
		}
		return a.print(out, func(w io.Writer, wide bool) { tasksTable(w, out.GetTasks(), wide) })
	case "workers", "worker":
		in, err := states[millracev1.WorkerState](a, "WORKER_STATE_", millracev1.WorkerState_value)
		if err != nil {
			return err
		}
		// Only the table for people shows few fields.
		view := millracev1.WorkerView_WORKER_VIEW_FULL
		if f, err := a.format(); err == nil && f == "table" {
			view = millracev1.WorkerView_WORKER_VIEW_BASIC
		}
		out := new(millracev1.ListWorkersResponse)
		err = pages(a, func(size int32, token string) (string, error) {
			r, err := s.ListWorkers(ctx, &millracev1.ListWorkersRequest{PageSize: size, PageToken: token, States: in, View: view})
			out.Workers, out.NextPageToken = append(out.Workers, r.GetWorkers()...), r.GetNextPageToken()
			return r.GetNextPageToken(), err
		})
		if err != nil {
			return err
		}
		return a.print(out, func(w io.Writer, wide bool) { workersTable(w, out.GetWorkers(), wide) })
	case "clients", "client":
		out := new(millracev1.ListClientsResponse)
		err := pages(a, func(size int32, token string) (string, error) {
			r, err := s.ListClients(ctx, &millracev1.ListClientsRequest{PageSize: size, PageToken: token})
			out.Clients, out.NextPageToken = append(out.Clients, r.GetClients()...), r.GetNextPageToken()
			return r.GetNextPageToken(), err
		})
		if err != nil {
			return err
		}
		return a.print(out, func(w io.Writer, _ bool) {
			row(w, "ID", "NAME", "NAMESPACE", "ORIGIN", "HOLDS", "AGE", "LAST SEEN")
			for _, c := range out.GetClients() {
				row(w, fmt.Sprintf("c%d", c.GetClientId()), c.GetName(), c.GetNamespace(), c.GetOrigin(), c.GetHeldTasks(), age(c.GetCreateTime()), age(c.GetLastSeenTime()))
			}
		})
	case "datasets", "dataset":
		out := new(millracev1.ListDatasetsResponse)
		err := pages(a, func(size int32, token string) (string, error) {
			r, err := s.ListDatasets(ctx, &millracev1.ListDatasetsRequest{PageSize: size, PageToken: token, Namespace: namespace})
			out.Datasets, out.NextPageToken = append(out.Datasets, r.GetDatasets()...), r.GetNextPageToken()
			return r.GetNextPageToken(), err
		})
		if err != nil {
			return err
		}
		return a.print(out, func(w io.Writer, _ bool) {
			row(w, "NAME", "NAMESPACE", "KEYS", "VALUE", "AGE")
			for _, d := range out.GetDatasets() {
				row(w, d.GetName(), d.GetNamespace(), d.GetKeyCount(), size(d.GetValueBytes()), age(d.GetCreateTime()))
			}
		})
	case "alarms", "alarm":
		return a.getAlarms(ctx, s)
	case "result":
		request := &millracev1.GetResultRequest{Task: byKey(args[1], namespace)}
		if d := a.settings.Duration("wait"); d > 0 {
			request.Wait = durationOf(d)
		}
		out, err := s.GetResult(ctx, request)
		if err != nil {
			return err
		}
		return a.print(out, func(w io.Writer, _ bool) {
			if out.GetJson() == nil {
				_, _ = fmt.Fprintln(w, "the result is too large, or nested too deeply, to be shown: read it with a client")
				return
			}
			text, err := out.GetJson().MarshalJSON()
			if err != nil {
				text = []byte(err.Error())
			}
			_, _ = fmt.Fprintln(w, plain(string(text)))
		})
	}
	return usageError{fmt.Errorf("get %s: graphs, tasks, workers, clients, datasets, alarms, ops, or result KEY; see also `millrace events`, `millrace logs`, `millrace topo`", kind)}
}
