package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"
	"sigs.k8s.io/yaml"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

const submitHelp = `Submits a graph from a file, as JSON or YAML. It is the request of SubmitBatch, with simpler tasks:

  name: example                 # of the graph, for people
  tasks:
  - key: a
    op: array.arange            # a native op, or a Python function: "package.module:function"
    args: [0, 10, 1]            # plain values
  - key: s
    op: array.reduce
    args: [{input: a}]          # the result of another task
                                # one item of it, if it is a list: {input: a, item: 0, count: 3}
    kwargs: {op: sum}
    options: {maxRetries: 2, timeout: 10s}   # TaskOptions

A "namespace" in the file wins over --namespace. Nothing of it runs unless all of it is right. The results of tasks that nothing in the file uses are kept for an hour.`

// graphFile is the content of a file for `submit`.
type graphFile struct {
	Name      string     `json:"name"`
	Namespace string     `json:"namespace"`
	RequestID string     `json:"requestId"`
	Tasks     []fileTask `json:"tasks"`
}

type fileTask struct {
	Key     string          `json:"key"`
	Op      string          `json:"op"`
	Args    []any           `json:"args"`
	Kwargs  map[string]any  `json:"kwargs"`
	Options json.RawMessage `json:"options"`
}

func durationOf(d time.Duration) *durationpb.Duration { return durationpb.New(d) }

func (a *app) submit() *cobra.Command {
	cmd := &cobra.Command{
		Use: "submit -f FILE", Short: "Submit a graph from a JSON or YAML file", Long: submitHelp, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			request, err := readGraph(a.settings.String("file"))
			if err != nil {
				return usageError{err}
			}
			if h := request.GetHeader(); h.GetNamespace() == "" {
				h.Namespace = a.settings.String("namespace")
			}
			return a.call(cmd, func(ctx context.Context, c *millrace.Client, s millracev1.SchedulerServiceClient) error {
				out, err := s.SubmitBatch(ctx, request)
				if err != nil {
					return err
				}
				if a.settings.Bool("wait") {
					if err := a.waitGraph(ctx, c, out.GetGraphId()); err != nil {
						return err
					}
					return failedBefore(request, out)
				}
				return a.print(out, func(w io.Writer, _ bool) {
					row(w, "graph", fmt.Sprintf("g%d", out.GetGraphId()))
					row(w, "tasks", len(out.GetTaskIds()))
					if n := len(out.GetFailedTaskIds()); n > 0 {
						row(w, "failed before", fmt.Sprintf("%d, held by a client: `millrace retry` runs them again", n))
					}
				})
			})
		},
	}
	cmd.Flags().StringP("file", "f", "", "the graph; - for standard input")
	cmd.Flags().Bool("wait", false, "wait until it has ended")
	_ = cmd.MarkFlagFilename("file", "json", "yaml", "yml")
	addCall(cmd)
	addOutput(cmd)
	return cmd
}

// oldFailureError is the error for a submission of tasks that had failed before, and do not run
// again because a client holds them. The graph of the submission does not have them, so its end
// does not tell.
type oldFailureError struct {
	key   string // of the first of them
	tasks int
}

// Error names a task and the remedy.
func (e oldFailureError) Error() string {
	return fmt.Sprintf("submit: %d of the tasks failed in an earlier submission, and a client holds them: %q first; \"millrace explain %s\" shows why, \"millrace retry %s\" runs it again",
		e.tasks, e.key, e.key, e.key)
}

// failedBefore returns an oldFailureError if tasks of a submission had failed before.
func failedBefore(request *millracev1.SubmitRequest, out *millracev1.SubmitResponse) error {
	failed := out.GetFailedTaskIds()
	for i, id := range out.GetTaskIds() {
		if slices.Contains(failed, id) {
			return oldFailureError{key: request.GetTasks()[i].GetKey(), tasks: len(failed)}
		}
	}
	return nil
}

func readGraph(name string) (*millracev1.SubmitRequest, error) {
	if name == "" {
		return nil, errors.New("submit: -f FILE is missing (- for standard input)")
	}
	text, err := readFile(name, mostGraph, true)
	if err != nil {
		return nil, err
	}
	var g graphFile
	if err := yaml.UnmarshalStrict(text, &g); err != nil {
		return nil, fmt.Errorf("%s: %w", name, undecoded(err))
	}
	if len(g.Tasks) == 0 {
		return nil, fmt.Errorf("%s: no tasks", name)
	}
	out := &millracev1.SubmitRequest{Header: &millracev1.SubmitHeader{Name: g.Name, Namespace: g.Namespace, RequestId: g.RequestID}}
	for i, t := range g.Tasks {
		where := fmt.Sprintf("%s: tasks[%d] (%s)", name, i, t.Key)
		arguments := new(millracev1.Arguments)
		spec := &millracev1.TaskSpec{Key: t.Key, Op: t.Op, Arguments: arguments}
		for j, v := range t.Args {
			x, err := value(v, spec)
			if err != nil {
				return nil, fmt.Errorf("%s: args[%d]: %w", where, j, err)
			}
			arguments.Positional = append(arguments.Positional, x)
		}
		for _, k := range slices.Sorted(maps.Keys(t.Kwargs)) { // sorted, so that equal files give equal tasks
			x, err := value(t.Kwargs[k], spec)
			if err != nil {
				return nil, fmt.Errorf("%s: kwargs.%s: %w", where, k, err)
			}
			if arguments.Named == nil {
				arguments.Named = map[string]*millracev1.Value{}
			}
			arguments.Named[k] = x
		}
		if len(t.Options) > 0 {
			o := new(millracev1.TaskOptions)
			if err := protojson.Unmarshal(t.Options, o); err != nil {
				return nil, fmt.Errorf("%s: options: %w", where, err)
			}
			out.Options = append(out.Options, o)
			spec.OptionsIndex = uint32(len(out.Options))
		}
		out.Tasks = append(out.Tasks, spec)
	}
	return out, nil
}

// value converts plain JSON into a Value. {"input": "key"} becomes an input of the task, and with
// "item", and maybe "count", one item of an input.
func value(v any, spec *millracev1.TaskSpec) (*millracev1.Value, error) {
	switch v := v.(type) {
	case nil:
		return &millracev1.Value{Kind: &millracev1.Value_NullValue{}}, nil
	case bool:
		return &millracev1.Value{Kind: &millracev1.Value_BoolValue{BoolValue: v}}, nil
	case string:
		return &millracev1.Value{Kind: &millracev1.Value_StringValue{StringValue: v}}, nil
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
			return &millracev1.Value{Kind: &millracev1.Value_IntValue{IntValue: int64(v)}}, nil
		}
		return &millracev1.Value{Kind: &millracev1.Value_DoubleValue{DoubleValue: v}}, nil
	case []any:
		list := new(millracev1.ListValue)
		for i, item := range v {
			x, err := value(item, spec)
			if err != nil {
				return nil, fmt.Errorf("[%d]: %w", i, err)
			}
			list.Values = append(list.Values, x)
		}
		return &millracev1.Value{Kind: &millracev1.Value_ListValue{ListValue: list}}, nil
	case map[string]any:
		if in, ok, err := readInput(v); err != nil {
			return nil, err
		} else if ok {
			return &millracev1.Value{Kind: &millracev1.Value_Input{Input: in.addTo(spec)}}, nil
		}
		m := &millracev1.MapValue{Fields: map[string]*millracev1.Value{}}
		for _, k := range slices.Sorted(maps.Keys(v)) {
			x, err := value(v[k], spec)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", k, err)
			}
			m.Fields[k] = x
		}
		return &millracev1.Value{Kind: &millracev1.Value_MapValue{MapValue: m}}, nil
	}
	return nil, fmt.Errorf("a %T is no value", v)
}

// fileInput is an input of a task: the result of the task key or, with item, one item of it.
type fileInput struct {
	key  string
	item *millracev1.ItemInput
}

// readInput reads a map that stands for an input. ok is false if it is an ordinary map.
func readInput(v map[string]any) (in fileInput, ok bool, err error) {
	in.key, ok = v["input"].(string)
	if !ok || len(v) == 1 {
		return in, ok, nil
	}
	item, isItem := v["item"]
	count, counted := v["count"]
	if !isItem || len(v) > 3 || len(v) == 3 && !counted {
		return in, false, nil
	}
	in.item = new(millracev1.ItemInput)
	if in.item.Item, err = small("item of input "+in.key, item); err == nil && counted {
		in.item.Count, err = small("count of input "+in.key, count)
	}
	return in, true, err
}

// small reads an index or a length. what names it.
func small(what string, v any) (uint32, error) {
	n, ok := v.(float64)
	if !ok || n < 0 || n >= 1<<24 || n != math.Trunc(n) {
		return 0, fmt.Errorf("%s: %v is no whole number from 0 to %d", what, v, 1<<24-1)
	}
	return uint32(n), nil
}

// addTo returns the index of the input in a task, and adds it if the task does not have it yet.
func (in *fileInput) addTo(spec *millracev1.TaskSpec) uint32 {
	items := spec.GetItems()
	for i, key := range spec.GetInputs() {
		var known *millracev1.ItemInput
		if len(items) > 0 && int(items[0].GetInput()) == i {
			known, items = items[0], items[1:]
		}
		if key == in.key && (known == nil) == (in.item == nil) && known.GetItem() == in.item.GetItem() {
			return uint32(i)
		}
	}
	i := uint32(len(spec.GetInputs()))
	spec.Inputs = append(spec.Inputs, in.key)
	if in.item != nil {
		in.item.Input = i
		spec.Items = append(spec.Items, in.item)
	}
	return i
}
