package cli

import (
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// call runs f with a connection that has no client lease.
func (a *app) call(cmd *cobra.Command, f func(context.Context, *millrace.Client, millracev1.SchedulerServiceClient) error) error {
	return a.callFor(cmd.Context(), a.settings.Duration("timeout"), f)
}

// callFor is call with a time limit; 0: none.
func (a *app) callFor(ctx context.Context, limit time.Duration, f func(context.Context, *millrace.Client, millracev1.SchedulerServiceClient) error) error {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	c, err := a.dial(ctx, millrace.WithoutLease())
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	return f(ctx, c, c.Scheduler())
}

func addTimeout(cmd *cobra.Command) {
	cmd.Flags().Duration("timeout", 30*time.Second, "longest wait for the answer")
}

func addCall(cmd *cobra.Command) {
	addTimeout(cmd)
	cmd.Flags().String("namespace", "", "namespace of keys; empty: default")
}

// number parses an id with its letter: t12, g3, w7, or the number alone.
func number(text string, letter byte) (uint64, bool) {
	n, err := strconv.ParseUint(strings.TrimPrefix(text, string(letter)), 10, 64)
	return n, err == nil && n > 0
}

func (a *app) get() *cobra.Command {
	kinds := []string{"graphs", "tasks", "workers", "clients", "datasets", "result", "ops"}
	cmd := &cobra.Command{
		Use: "get graphs|tasks|workers|clients|datasets, get result KEY, or get ops [NAME...]", Short: "List what there is, or print a small result",
		Long: `Lists what there is in the cluster, or prints a small result. "get ops" needs no cluster: it lists the native operations of
this program, and with names it prints all about each of them: arguments, result, errors, an example.`,
		Args: atLeast(1), ValidArgs: kinds,
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == "ops" || args[0] == "op" {
				return a.getOps(args[1:])
			}
			return a.call(cmd, func(ctx context.Context, _ *millrace.Client, s millracev1.SchedulerServiceClient) error {
				return a.list(ctx, s, args)
			})
		},
	}
	addCall(cmd)
	addOutput(cmd)
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
		return usageError{fmt.Errorf("get %s: `get result KEY`, `get ops [NAME...]`, or one of graphs, tasks, workers, clients, datasets", strings.Join(args, " "))}
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
	return usageError{fmt.Errorf("get %s: graphs, tasks, workers, clients, datasets, ops, or result KEY", kind)}
}

func (a *app) describe() *cobra.Command {
	cmd := &cobra.Command{
		Use: "describe task|graph|worker|dataset NAME", Short: "Tell everything about one thing", Args: exactly(2),
		Long: "Tells everything about a task (by key, or t12), a graph (g3), a worker (by name, or w7), or a dataset (its value: -o json).",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(cmd, func(ctx context.Context, _ *millrace.Client, s millracev1.SchedulerServiceClient) error {
				switch args[0] {
				case "task":
					request := &millracev1.GetTaskRequest{Task: byKey(args[1], a.settings.String("namespace")), History: true}
					out, err := s.GetTask(ctx, request)
					if n, ok := number(args[1], 't'); err != nil && ok {
						out, err = s.GetTask(ctx, &millracev1.GetTaskRequest{Task: byNumber(n), History: true})
					}
					if err != nil {
						return err
					}
					return a.print(out, func(w io.Writer, _ bool) { taskText(w, out.GetTask()) })
				case "graph":
					n, ok := number(args[1], 'g')
					if !ok {
						return usageError{fmt.Errorf("describe graph %s: a number, as in g3", args[1])}
					}
					out, err := s.GetGraph(ctx, &millracev1.GetGraphRequest{GraphId: n})
					if err != nil {
						return err
					}
					return a.print(out, func(w io.Writer, _ bool) {
						graphsTable(w, []*millracev1.Graph{out.GetGraph()}, true)
						row(w)
						row(w, "OP", "SUCCEEDED", "FAILED", "TO DO", "RUN TIME", "BYTES")
						for _, p := range out.GetGraph().GetOps() {
							c := p.GetCounts()
							row(w, p.GetOp(), c.GetSucceeded(), c.GetFailed(), c.GetWaiting()+c.GetReady()+c.GetAssigned()+c.GetRunning(), p.GetRunTime().AsDuration().Round(time.Microsecond), size(p.GetOutputBytes()))
						}
					})
				case "worker":
					out, err := s.GetWorker(ctx, &millracev1.GetWorkerRequest{Worker: workerRef(ctx, s, args[1])})
					if err != nil {
						return err
					}
					return a.print(out, func(w io.Writer, _ bool) { workerText(w, out.GetWorker()) })
				case "dataset":
					out, err := s.GetDataset(ctx, &millracev1.GetDatasetRequest{Name: args[1], Namespace: a.settings.String("namespace")})
					if err != nil {
						return err
					}
					return a.print(out, func(w io.Writer, _ bool) { datasetText(w, out.GetDataset()) })
				}
				return usageError{fmt.Errorf("describe %s: task, graph, worker or dataset", args[0])}
			})
		},
	}
	addCall(cmd)
	addOutput(cmd)
	return cmd
}

func taskText(w io.Writer, t *millracev1.Task) {
	row(w, "task", fmt.Sprintf("t%d", t.GetTaskId()))
	row(w, "key", t.GetKey())
	row(w, "namespace", t.GetNamespace())
	row(w, "graph", fmt.Sprintf("g%d", t.GetGraphId()))
	row(w, "op", t.GetOp().GetName())
	row(w, "state", short(t.GetState(), "TASK_STATE_"))
	row(w, "attempt", t.GetAttempt())
	row(w, "worker", t.GetWorker())
	row(w, "replicas", strings.Join(t.GetReplicas(), " "))
	row(w, "size", size(t.GetOutputBytes()))
	row(w, "inputs", strings.Join(t.GetInputs(), " "))
	row(w, "holders", t.GetHolders())
	row(w, "run time", t.GetRunTime().AsDuration())
	row(w, "retries", t.GetRetriesUsed())
	row(w, "worker deaths", t.GetWorkerDeaths())
	if e := t.GetError(); e != nil {
		row(w, "error", e.GetReason()+": "+e.GetMessage())
		for _, line := range strings.Split(strings.TrimSpace(e.GetTraceback()), "\n") {
			row(w, "", line)
		}
	}
	for i, line := range t.GetHistory() {
		title := ""
		if i == 0 {
			title = "history"
		}
		row(w, title, line)
	}
	if log := strings.TrimSpace(t.GetLogTail()); log != "" {
		title := "output"
		for line := range strings.Lines(log) {
			row(w, title, strings.TrimRight(line, "\r\n"))
			title = ""
		}
	}
}

func datasetText(w io.Writer, d *millracev1.Dataset) {
	row(w, "dataset", d.GetName())
	row(w, "namespace", d.GetNamespace())
	row(w, "age", age(d.GetCreateTime()))
	row(w, "value", size(d.GetValueBytes()))
	row(w, "keys", d.GetKeyCount())
	for _, key := range d.GetKeys() {
		row(w, "", key)
	}
}

func workerText(w io.Writer, x *millracev1.Worker) {
	cells := workerCells(x)
	for i, name := range workerColumns {
		row(w, strings.ToLower(name), cells[i])
	}
	for _, o := range x.GetDrain().GetStaying() {
		row(w, "stays", fmt.Sprintf("%s (%s): %s", o.GetKey(), size(o.GetBytes()), o.GetReason()))
	}
	for _, d := range x.GetDeaths() {
		row(w)
		row(w, "death", age(d.GetEndTime())+" ago")
		row(w, "cause", d.GetCause())
		row(w, "incarnation", d.GetIncarnation())
		row(w, "pid", d.GetPid())
		row(w, "running", strings.Join(d.GetRunningKeys(), " "))
		for _, line := range strings.Split(strings.TrimSpace(d.GetLogTail()), "\n") {
			row(w, "log", line)
		}
	}
}

// workerRef names a worker in a request. A text like w7 is a number, unless a worker has that name.
func workerRef(ctx context.Context, s millracev1.SchedulerServiceClient, text string) *millracev1.WorkerRef {
	named := &millracev1.WorkerRef{Worker: &millracev1.WorkerRef_Name{Name: text}}
	n, ok := number(text, 'w')
	if !ok || text[0] != 'w' || n > math.MaxUint32 {
		return named
	}
	if _, err := s.GetWorker(ctx, &millracev1.GetWorkerRequest{Worker: named, View: millracev1.WorkerView_WORKER_VIEW_BASIC}); err == nil {
		return named
	}
	return &millracev1.WorkerRef{Worker: &millracev1.WorkerRef_Id{Id: uint32(n)}}
}

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

// named returns the tasks and graphs that arguments name: g3 is a graph; t5 is a task, unless a
// task has that key; all else are keys.
func (a *app) named(ctx context.Context, s millracev1.SchedulerServiceClient, args []string) (tasks *millracev1.TaskSet, graphs []uint64) {
	tasks = &millracev1.TaskSet{Namespace: a.settings.String("namespace")}
	for _, name := range args {
		if n, ok := number(name, 'g'); ok && name[0] == 'g' {
			graphs = append(graphs, n)
		} else if n, ok := number(name, 't'); ok && name[0] == 't' && !known(ctx, s, tasks.GetNamespace(), name) {
			tasks.Ids = append(tasks.Ids, n)
		} else {
			tasks.Keys = append(tasks.Keys, name)
		}
	}
	return tasks, graphs
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

func byKey(key, namespace string) *millracev1.TaskRef {
	return &millracev1.TaskRef{Task: &millracev1.TaskRef_Key{Key: key}, Namespace: namespace}
}

func byNumber(n uint64) *millracev1.TaskRef {
	return &millracev1.TaskRef{Task: &millracev1.TaskRef_Id{Id: n}}
}

// statusWord returns the name of a status without its prefix.
func statusWord(s millracev1.TaskStatus) string {
	return strings.TrimPrefix(s.String(), "TASK_STATUS_")
}

func estimate(d *durationpb.Duration) string { return fmt.Sprintf("%.3f s", d.AsDuration().Seconds()) }

// known reports whether a task has the key.
func known(ctx context.Context, s millracev1.SchedulerServiceClient, namespace, key string) bool {
	_, err := s.GetTask(ctx, &millracev1.GetTaskRequest{Task: byKey(key, namespace)})
	return status.Code(err) != codes.NotFound
}

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
	g, err := c.WaitGraph(ctx, id)
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

// reachedAs returns the address at which a process can be reached: a process that listens on all
// addresses is reached at the host of the other address.
func reachedAs(address, other string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil || !unspecified(host) {
		return address
	}
	if host, _, err = net.SplitHostPort(other); err != nil {
		return address
	}
	return net.JoinHostPort(host, port)
}

func (a *app) status() *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "Sum up the cluster", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.call(cmd, func(ctx context.Context, c *millrace.Client, s millracev1.SchedulerServiceClient) error {
				out, err := s.GetClusterInfo(ctx, &millracev1.GetClusterInfoRequest{})
				if err != nil {
					return err
				}
				x := out.GetCluster()
				return a.print(out, func(w io.Writer, _ bool) {
					row(w, "cluster", x.GetClusterId())
					row(w, "version", x.GetVersion())
					row(w, "up", age(x.GetStartTime()))
					row(w, "http", reachedAs(x.GetHttpAddress(), c.Address()))
					row(w, "workers", x.GetActiveWorkers())
					row(w, "slots", x.GetTotalSlots())
					row(w, "memory", size(x.GetMemoryUsedBytes())+" of "+size(x.GetMemoryLimitBytes()))
					row(w, "clients", x.GetClients())
					t := x.GetTasks()
					row(w, "tasks", fmt.Sprintf("%d waiting, %d ready, %d assigned, %d running, %d succeeded, %d failed, %d cancelled", t.GetWaiting(), t.GetReady(), t.GetAssigned(), t.GetRunning(), t.GetSucceeded(), t.GetFailed(), t.GetCancelled()))
				})
			})
		},
	}
	addCall(cmd)
	addOutput(cmd)
	return cmd
}
