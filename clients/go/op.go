package millrace

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// Op is the operation that a task runs.
type Op struct {
	kind millracev1.OpKind
	name string
}

// Native is an op that is built into workers: "array.matmul", "bench.noop".
func Native(name string) Op { return Op{millracev1.OpKind_OP_KIND_NATIVE, name} }

// Python is a Python function, given by its import path: "pkg.mod:fn".
func Python(path string) Op { return Op{millracev1.OpKind_OP_KIND_PYTHON_IMPORT, path} }

// Exec is an operation of a registered executor: the executor's name, a slash, and the executor's
// own name for the operation, as in "echo/upper".
func Exec(name string) Op { return Op{millracev1.OpKind_OP_KIND_EXEC, name} }

var dataOp = Op{kind: millracev1.OpKind_OP_KIND_DATA, name: "data"}

// String returns the op's name.
func (o Op) String() string { return o.name }

// TaskOption is a rule for running a task.
type TaskOption func(*taskOptions)

type taskOptions struct {
	key   string
	hold  bool
	rules millracev1.TaskOptions
	// workers are the texts that rules.Workers was made of.
	workers []string
	bad     error
}

// WithKey sets the key of the task. Equal keys mean the same task: submitting the key again with an
// equal body joins the existing task. If that task has failed, it runs again, unless a client holds
// it: then TaskError.Joined is true. Without WithKey the client generates a unique key.
func WithKey(key string) TaskOption { return func(o *taskOptions) { o.key = key } }

// Hold keeps the result of a task of a graph until its Future is released.
// Tasks from Submit are always held.
func Hold() TaskOption { return func(o *taskOptions) { o.hold = true } }

// WithPriority sets a priority: tasks of a higher priority run first. The default is 0.
func WithPriority(p int32) TaskOption { return func(o *taskOptions) { o.rules.Priority = p } }

// WithRetries repeats a task whose function failed up to n more times.
func WithRetries(n uint32) TaskOption { return func(o *taskOptions) { o.rules.MaxRetries = n } }

// WithRetryBackoff waits before the first retry; the wait doubles each time. The default is 100 ms.
func WithRetryBackoff(d time.Duration) TaskOption {
	return func(o *taskOptions) { o.rules.RetryBackoff = durationpb.New(d) }
}

// WithTimeout stops an attempt that runs longer than d.
func WithTimeout(d time.Duration) TaskOption {
	return func(o *taskOptions) {
		if d <= 0 {
			o.bad = fmt.Errorf("timeout %s is not positive", d)
			return
		}
		o.rules.Timeout = durationpb.New(d)
	}
}

// WithWorkers runs the task only on workers with these names, ids ("w3") or hosts.
func WithWorkers(names ...string) TaskOption {
	return func(o *taskOptions) { o.workers, o.rules.Workers = names, selectors(names) }
}

// selectors returns all that the texts may mean: a name, a host and, if it is of that form, an id.
func selectors(texts []string) []*millracev1.WorkerSelector {
	var all []*millracev1.WorkerSelector
	for _, text := range texts {
		all = append(all, &millracev1.WorkerSelector{By: &millracev1.WorkerSelector_Name{Name: text}},
			&millracev1.WorkerSelector{By: &millracev1.WorkerSelector_Host{Host: text}})
		if digits, ok := strings.CutPrefix(text, "w"); ok {
			if id, err := strconv.ParseUint(digits, 10, 32); err == nil && id > 0 {
				all = append(all, &millracev1.WorkerSelector{By: &millracev1.WorkerSelector_WorkerId{WorkerId: uint32(id)}})
			}
		}
	}
	return all
}

// WithPreferredWorkers runs the task on one of these workers if one of them is available and can
// fetch the task's inputs, else on any worker.
func WithPreferredWorkers(names ...string) TaskOption {
	return func(o *taskOptions) {
		o.workers, o.rules.Workers, o.rules.AllowOtherWorkers = names, selectors(names), true
	}
}

// WithResources sets the resources of a worker, besides slots, that the task occupies while it
// runs.
func WithResources(resources map[string]float64) TaskOption {
	return func(o *taskOptions) { o.rules.Resources = maps.Clone(resources) }
}

// WithSlots sets how many slots of a worker the task occupies. The default is 1.
func WithSlots(n uint32) TaskOption { return func(o *taskOptions) { o.rules.Slots = n } }

// WithOutputBytes sets an estimate of the result's size, for placement.
func WithOutputBytes(n uint64) TaskOption {
	return func(o *taskOptions) { o.rules.ExpectedOutputBytes = n }
}

// WithNoWait makes the task fail immediately with NO_WORKER_FITS if no worker of the cluster could
// ever run it.
func WithNoWait() TaskOption { return func(o *taskOptions) { o.rules.NoWait = true } }

// Field numbers of SubmitRequest, TaskSpec and Op.
const (
	fieldSubmitHeader  = 1
	fieldSubmitOps     = 2
	fieldSubmitOptions = 4
	fieldSubmitTasks   = 5
	fieldSpecKey       = 1
	fieldSpecOpIndex   = 3
	fieldSpecInputs    = 4
	fieldSpecArguments = 5
	fieldSpecPacked    = 6
	fieldSpecOptions   = 7
	fieldSpecHold      = 8
	fieldSpecItems     = 9
	fieldItemInput     = 1
	fieldItemItem      = 2
	fieldItemCount     = 3
	fieldOpKind        = 1
	fieldOpName        = 2
)

// tables assign numbers to the distinct ops and options of one submission or template.
// encoded holds the ops and options fields, ready to be sent.
type tables struct {
	template bool // encoded is a part of a Template, not of a SubmitRequest
	ops      map[Op]uint32
	last     Op // the op of the last call, usually also that of the next
	lastAt   uint32
	options  map[string]uint32
	encoded  []byte
}

// fields returns the numbers of the fields of ops and options.
func (t *tables) fields() (ops, options protowire.Number) {
	if t.template {
		return fieldTemplateOps, fieldTemplateOptions
	}
	return fieldSubmitOps, fieldSubmitOptions
}

func (t *tables) op(op Op) uint32 {
	if t.ops != nil && op == t.last {
		return t.lastAt
	}
	i, ok := t.ops[op]
	if !ok {
		if t.ops == nil {
			t.ops = make(map[Op]uint32)
		}
		i = uint32(len(t.ops))
		t.ops[op] = i
		var start int
		field, _ := t.fields()
		t.encoded, start = openMessage(t.encoded, field)
		t.encoded = appendVarintField(t.encoded, fieldOpKind, uint64(op.kind))
		t.encoded = appendStringField(t.encoded, fieldOpName, op.name)
		t.encoded = closeMessage(t.encoded, start)
	}
	t.last, t.lastAt = op, i
	return i
}

// option returns the number of encoded options, counted from 1; 0 for the defaults.
func (t *tables) option(encoded []byte) uint32 {
	if len(encoded) == 0 {
		return 0
	}
	i, ok := t.options[string(encoded)]
	if !ok {
		if t.options == nil {
			t.options = make(map[string]uint32)
		}
		i = uint32(len(t.options)) + 1
		t.options[string(encoded)] = i
		_, field := t.fields()
		t.encoded = appendBytesField(t.encoded, field, encoded)
	}
	return i
}

// encode returns the rules as a TaskOptions message; empty if they are the defaults.
func (o *taskOptions) encode() ([]byte, error) {
	if o.bad != nil {
		return nil, o.bad
	}
	for _, name := range slices.Sorted(maps.Keys(o.rules.GetResources())) {
		if v := o.rules.GetResources()[name]; v < 0 || math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("resource %s: impossible amount %v", name, v)
		}
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(&o.rules)
}

// specFields are the numbers of the fields in which a message has its tasks, and a task its
// arguments.
type specFields struct{ tasks, arguments protowire.Number }

// appendSpec appends one task of a submission.
func appendSpec(b []byte, key string, op uint32, inputs []string, items []inputItem, packed []byte, options uint32, hold bool) []byte {
	return appendTask(b, specFields{fieldSubmitTasks, fieldSpecPacked}, key, op, inputs, items, packed, options, hold)
}

// appendTask appends one task of a submission or a template.
func appendTask(b []byte, fields specFields, key string, op uint32, inputs []string, items []inputItem, packed []byte, options uint32, hold bool) []byte {
	size := 1 + protowire.SizeBytes(len(key)) + 1 + protowire.SizeVarint(uint64(op))
	for _, in := range inputs {
		size += 1 + protowire.SizeBytes(len(in))
	}
	if len(packed) > 0 {
		size += 1 + protowire.SizeBytes(len(packed))
	}
	if options != 0 {
		size += 1 + protowire.SizeVarint(uint64(options))
	}
	if hold {
		size += 2
	}
	for _, it := range items {
		size += 1 + protowire.SizeBytes(it.size())
	}
	b = protowire.AppendVarint(appendTag(b, fields.tasks, protowire.BytesType), uint64(size))
	b = appendStringField(b, fieldSpecKey, key)
	b = appendVarintField(b, fieldSpecOpIndex, uint64(op))
	for _, in := range inputs {
		b = appendStringField(b, fieldSpecInputs, in)
	}
	if len(packed) > 0 {
		b = appendBytesField(b, fields.arguments, packed)
	}
	if options != 0 {
		b = appendVarintField(b, fieldSpecOptions, uint64(options))
	}
	if hold {
		b = appendVarintField(b, fieldSpecHold, 1)
	}
	for _, it := range items {
		b = protowire.AppendVarint(appendTag(b, fieldSpecItems, protowire.BytesType), uint64(it.size()))
		b = appendVarintField(b, fieldItemInput, uint64(it.input))
		b = appendVarintField(b, fieldItemItem, uint64(it.item))
		b = appendVarintField(b, fieldItemCount, uint64(it.count))
	}
	return b
}
