// Package reference is an Adapter to people and their tools: it describes the native operations of
// the registry, as values for JSON, as text for a terminal, and as the page docs/ops.md.
package reference

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/millrace/millrace/worker/ops"
)

// Op describes an operation.
type Op struct {
	Name string `json:"name"`
	// Doc is one sentence. Details has further paragraphs, with an empty line between them.
	Doc     string `json:"doc"`
	Details string `json:"details"`
	// Signature is a call in written form. Parameters behind "*" are given by name.
	Signature  string      `json:"signature"`
	Parameters []Parameter `json:"parameters"`
	Result     string      `json:"result"`
	// Devices are the kinds of workers that have the operation: host, cuda.
	Devices []string `json:"devices"`
	// Processor: the processor computes it on workers with a GPU, too.
	Processor bool `json:"processor"`
	// Libraries are those of CUDA that workers with a GPU need for it, as in libNAME.so.
	Libraries []string `json:"libraries"`
	Errors    []string `json:"errors"`
	Example   Example  `json:"example"`
}

// Parameter describes one parameter, or a group of them.
type Parameter struct {
	Name     string   `json:"name"`
	Type     ops.Type `json:"type"`
	Required bool     `json:"required"`
	// Default is in the form in which a caller gives it.
	Default any    `json:"default"`
	Doc     string `json:"doc"`
	// Group says that the parameter stands for any number of arguments; empty: for one.
	Group Group `json:"group,omitempty"`
	// defaultText is the default in written form; empty: there is none.
	defaultText string
}

// Group is a kind of further arguments.
type Group string

// The groups: further positional arguments, and further named ones.
const (
	Positional Group = "positional"
	Named      Group = "named"
)

// Example is a graph that the user can submit.
type Example struct {
	// Graph is in the form that `millrace submit` reads. Its last task calls the operation.
	Graph json.RawMessage `json:"graph"`
	// Result is that of the last task; nil: it depends on the machine.
	Result json.RawMessage `json:"result,omitempty"`
	// text is the graph with one task a line.
	text string
}

// groups is the order of the names' first parts on the page and in lists.
var groups = []string{"array", "table", "core", "cuda", "bench"}

// All returns the operations of all devices.
func All() []Op {
	host, gpu := ops.NewRegistry(), ops.NewRegistry(ops.CUDAKernel())
	var all []Op
	for _, name := range gpu.Names() {
		op, err := gpu.Lookup(name)
		if err != nil {
			panic(err) // it is one of the names
		}
		devices := []string{"cuda"}
		if slices.Contains(host.Names(), name) {
			devices = []string{"host", "cuda"}
		}
		all = append(all, describe(op, devices))
	}
	slices.SortStableFunc(all, func(a, b Op) int { return groupOf(a.Name) - groupOf(b.Name) })
	return all
}

func groupOf(name string) int {
	first, _, _ := strings.Cut(name, ".")
	return slices.Index(groups, first)
}

// Lookup finds operations by name. The error for an unknown name lists similar names.
func Lookup(names ...string) ([]Op, error) {
	var found []Op
	all := All()
	for _, name := range names {
		i := slices.IndexFunc(all, func(o Op) bool { return o.Name == name })
		if i < 0 {
			_, err := ops.NewRegistry(ops.CUDAKernel()).Lookup(name)
			return nil, err
		}
		found = append(found, all[i])
	}
	return found, nil
}

func describe(op *ops.Op, devices []string) Op {
	out := Op{
		Name: op.Name, Doc: op.Doc, Details: op.Details, Signature: op.Signature(), Result: op.Result, Devices: devices, Processor: op.Processor,
		Parameters: []Parameter{}, Libraries: append([]string{}, op.Libraries...), Errors: append([]string{}, op.Errors...),
		Example: Example{text: graph(op.Example.Tasks)},
	}
	for _, p := range op.Params {
		one := Parameter{Name: p.Name, Type: p.Type, Required: p.Required, Default: p.Default, Doc: p.Doc, defaultText: "`" + p.DefaultText() + "`"}
		if p.Required {
			one.defaultText = "required"
		}
		out.Parameters = append(out.Parameters, one)
	}
	if op.Variadic != "" {
		out.Parameters = slices.Insert(out.Parameters, op.Positional(), Parameter{Name: op.Variadic, Type: ops.AnyType, Doc: op.VariadicDoc, Group: Positional})
	}
	if op.Open {
		out.Parameters = append(out.Parameters, Parameter{Name: "named", Type: ops.AnyType, Doc: op.OpenDoc, Group: Named})
	}
	out.Example.Graph = json.RawMessage(out.Example.text)
	if op.Example.Result != "" {
		out.Example.Result = json.RawMessage(op.Example.Result)
	}
	return out
}

// graph joins tasks to a graph as JSON.
func graph(tasks []string) string {
	return "{\"tasks\": [\n  " + strings.Join(tasks, ",\n  ") + "\n]}"
}

// RunsOn says in words where the operation runs.
func (o *Op) RunsOn() string {
	switch {
	case !slices.Contains(o.Devices, "host"):
		return "GPU"
	case o.Processor:
		return "processor"
	}
	return "host, GPU"
}

// place is RunsOn with the conditions.
func (o *Op) place() string {
	if o.Processor {
		return "the processor, also of a worker with a GPU"
	}
	var libraries []string
	for _, l := range o.Libraries {
		libraries = append(libraries, "`lib"+l+"`")
	}
	if len(libraries) == 0 {
		return o.RunsOn()
	}
	return o.RunsOn() + ", with " + strings.Join(libraries, ", ")
}

// written returns the parameter as in the signature.
func (p *Parameter) written() string {
	switch p.Group {
	case Positional:
		return "*" + p.Name
	case Named:
		return "**" + p.Name
	}
	return p.Name
}
