package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// addOutput adds the flag -o to a command.
func addOutput(cmd *cobra.Command) {
	cmd.Flags().StringP("output", "o", "table", "table, wide, json or yaml")
	cmd.Flags().Bool("json", false, "the same as -o json")
}

func (a *app) format() (string, error) {
	if a.settings.Bool("json") {
		return "json", nil
	}
	switch f := a.settings.String("output"); f {
	case "table", "wide", "json", "yaml":
		return f, nil
	default:
		return "", usageError{fmt.Errorf("-o %s: table, wide, json or yaml", f)}
	}
}

// print shows a message as JSON or YAML, or calls table for people; wide asks for all columns.
func (a *app) print(m proto.Message, table func(w io.Writer, wide bool)) error {
	return printAs(a, protojson.MarshalOptions{Multiline: true, Indent: "  ", EmitDefaultValues: true}.Marshal, m, table)
}

// printAs is print with a function that makes JSON of a value.
func printAs[T any](a *app, marshal func(T) ([]byte, error), v T, table func(w io.Writer, wide bool)) error {
	f, err := a.format()
	if err != nil {
		return err
	}
	if f == "table" || f == "wide" {
		w := tabwriter.NewWriter(a.out, 0, 8, 2, ' ', 0)
		table(w, f == "wide")
		return w.Flush()
	}
	text, err := marshal(v)
	if err == nil && f == "yaml" {
		text, err = yaml.JSONToYAML(text)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(a.out, strings.TrimRight(string(text), "\n"))
	return err
}

// rpcExitCode returns the exit code for the error of a call.
func rpcExitCode(err error) int {
	code := codes.Unknown
	var refused *millrace.Error
	if errors.As(err, &refused) {
		code = refused.Code
	} else if s, ok := status.FromError(err); ok {
		code = s.Code()
	}
	switch code {
	case codes.NotFound:
		return exitNotFound
	case codes.Unavailable:
		return exitUnreachable
	case codes.Unauthenticated, codes.PermissionDenied:
		return exitUnauthenticated
	case codes.DeadlineExceeded:
		return exitTimeout
	case codes.InvalidArgument:
		return exitUsage
	default:
		return exitFailed
	}
}

// row writes a line of a table. Any user may have chosen the text of a cell, so it is escaped: see
// plain.
func row(w io.Writer, cells ...any) {
	text := make([]string, len(cells))
	for i, c := range cells {
		text[i] = plain(fmt.Sprint(c))
	}
	_, _ = fmt.Fprintln(w, strings.Join(text, "\t"))
}

func anys(texts []string) []any {
	cells := make([]any, len(texts))
	for i, t := range texts {
		cells[i] = t
	}
	return cells
}

// short removes the prefix of an enum's name: TASK_STATE_WAITING becomes WAITING.
func short(e fmt.Stringer, prefix string) string { return strings.TrimPrefix(e.String(), prefix) }

func size(n uint64) string { return humanize.IBytes(n) }

func age(t interface{ AsTime() time.Time }) string {
	at := t.AsTime()
	if at.Unix() <= 0 {
		return "-"
	}
	return time.Since(at).Round(time.Second).String()
}

func death(w *millracev1.Worker) string {
	if len(w.GetDeaths()) == 0 {
		return "-"
	}
	d := w.GetDeaths()[0]
	text := d.GetCause()
	if s := d.GetSignal(); s != "" && !strings.Contains(text, s) {
		text += " (" + s + ")"
	}
	return fmt.Sprintf("%s, %s ago", text, age(d.GetEndTime()))
}

// spilled describes the bytes on disk, and the reason if the worker cannot write there.
func spilled(w *millracev1.Worker) string {
	text := size(w.GetSpilledBytes())
	if why := w.GetSpillFailure(); why != "" {
		text += " (fails: " + why + ")"
	}
	return text
}

// workerColumns are the columns of wide lists.
var workerColumns = append([]string{
	"ID", "NAME", "STATE", "DRAIN", "HOST", "PID", "DEVICE", "SLOTS", "ASSIGNED", "FINISHED", "OBJECTS", "MEMORY", "LIMIT", "RSS", "SPILLED", "IN", "OUT", "AGE",
	"DEATHS", "LAST DEATH", "EXECUTOR DEATHS", "LAST EXECUTOR DEATH", "ADDRESS", "VERSION", "LINEAR ALGEBRA", "READS BY",
}, gpuColumns...)

func workerCells(x *millracev1.Worker) []any {
	return append([]any{
		fmt.Sprintf("w%d", x.GetWorkerId()), x.GetName(), short(x.GetState(), "WORKER_STATE_"), drainCell(x), x.GetHost(), x.GetPid(), short(x.GetDevice(), "DEVICE_KIND_"),
		x.GetSlots(), x.GetAssignedTasks(), x.GetFinishedTasks(), x.GetObjects(), size(x.GetMemoryUsedBytes()), size(x.GetMemoryLimitBytes()), size(x.GetRssBytes()),
		spilled(x), size(x.GetReceivedBytes()), size(x.GetSentBytes()), age(x.GetCreateTime()),
		x.GetDeathCount(), death(x), x.GetExecutorDeaths(), cmp.Or(x.GetLastExecutorDeath(), "-"), x.GetDataAddress(), x.GetVersion(), cmp.Or(x.GetLinearAlgebra().GetLibrary(), "-"), laneCell(x),
	}, gpuCells(x)...)
}

// drainCell describes the drain of a worker, and the results that it still has to hand over.
func drainCell(x *millracev1.Worker) string {
	text, d := drainPurpose(x), x.GetDrain()
	if d.GetRemainingObjects() > 0 {
		text += fmt.Sprintf(" (remaining %s, staying %s)", results(d.GetRemainingObjects(), d.GetRemainingBytes()), results(d.GetStayingObjects(), d.GetStayingBytes()))
	}
	return text
}

func workersTable(w io.Writer, workers []*millracev1.Worker, wide bool) {
	if wide {
		row(w, anys(workerColumns)...)
		for _, x := range workers {
			row(w, workerCells(x)...)
		}
		return
	}
	row(w, "ID", "NAME", "STATE", "SLOTS", "ASSIGNED", "FINISHED", "MEMORY", "LIMIT", "DEATHS", "AGE")
	for _, x := range workers {
		row(w, fmt.Sprintf("w%d", x.GetWorkerId()), x.GetName(), short(x.GetState(), "WORKER_STATE_"), x.GetSlots(), x.GetAssignedTasks(), x.GetFinishedTasks(),
			size(x.GetMemoryUsedBytes()), size(x.GetMemoryLimitBytes()), x.GetDeathCount(), age(x.GetCreateTime()))
	}
}

func graphsTable(w io.Writer, graphs []*millracev1.Graph, wide bool) {
	header := []any{"ID", "NAME", "STATE", "WAITING", "READY", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED", "RELEASED", "AGE"}
	if wide {
		header = append(header, "NAMESPACE", "CLIENT", "FIRST ERROR")
	}
	row(w, header...)
	for _, g := range graphs {
		c := g.GetCounts()
		cells := []any{fmt.Sprintf("g%d", g.GetGraphId()), g.GetName(), short(g.GetState(), "GRAPH_STATE_"), c.GetWaiting(), c.GetReady(), c.GetAssigned() + c.GetRunning(), c.GetSucceeded(), c.GetFailed(), c.GetCancelled(), c.GetReleased(), age(g.GetCreateTime())}
		if wide {
			cells = append(cells, g.GetNamespace(), g.GetClientId(), g.GetFirstError())
		}
		row(w, cells...)
	}
}

func tasksTable(w io.Writer, tasks []*millracev1.Task, wide bool) {
	header := []any{"ID", "KEY", "OP", "STATE", "WORKER", "SIZE", "RUN TIME"}
	if wide {
		header = append(header, "GRAPH", "ATTEMPT", "REPLICAS", "HOLDERS", "NAMESPACE", "INPUTS", "ERROR")
	}
	row(w, header...)
	for _, t := range tasks {
		cells := []any{fmt.Sprintf("t%d", t.GetTaskId()), t.GetKey(), t.GetOp().GetName(), short(t.GetState(), "TASK_STATE_"), t.GetWorker(), size(t.GetOutputBytes()), t.GetRunTime().AsDuration()}
		if wide {
			cells = append(cells, fmt.Sprintf("g%d", t.GetGraphId()), t.GetAttempt(), strings.Join(t.GetReplicas(), ","), t.GetHolders(), t.GetNamespace(), inputCell(t), t.GetError().GetMessage())
		}
		row(w, cells...)
	}
}

// inputCell counts the inputs of a task, and those of which it needs one item only.
func inputCell(t *millracev1.Task) string {
	if n := len(t.GetItems()); n > 0 {
		return fmt.Sprintf("%d (%d items)", t.GetInputCount(), n)
	}
	return fmt.Sprint(t.GetInputCount())
}
