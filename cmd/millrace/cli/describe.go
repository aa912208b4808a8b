package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

func (a *app) describe() *cobra.Command {
	cmd := &cobra.Command{
		Use: "describe task|graph|worker|dataset NAME", Short: "Tell everything about one thing", Args: exactly(2), ValidArgsFunction: a.completeDescribe,
		Long: "Tells everything about a task (by key, or t12), a graph (g3), a worker (by name, or w7), or a dataset (its value: -o json).",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.callAgain(cmd, func(ctx context.Context, _ *millrace.Client, s millracev1.SchedulerServiceClient) error {
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
	addWatch(cmd)
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
	row(w, "inputs", inputsText(t))
	row(w, "holders", t.GetHolders())
	row(w, "run time", t.GetRunTime().AsDuration())
	if start := t.GetStartTime(); start != nil {
		row(w, "running for", age(start))
	}
	if library := t.GetLinearAlgebra(); library != "" {
		row(w, "computed with", library)
	}
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

// inputsText lists the inputs of a task; key[3] is item 3 of the result of key.
func inputsText(t *millracev1.Task) string {
	names := slices.Clone(t.GetInputs())
	for _, it := range t.GetItems() {
		if i := int(it.GetInput()); i < len(names) {
			names[i] += fmt.Sprintf("[%d]", it.GetItem())
		}
	}
	return strings.Join(names, " ")
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
	if file := x.GetLinearAlgebra().GetFile(); file != "" {
		row(w, "library file", file)
	}
	linkRows(w, x)
	for _, p := range peersOf(x) {
		row(w, "reads "+p.Source, laneText(&p))
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
