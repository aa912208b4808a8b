package rpc

import (
	"crypto/sha256"
	"fmt"
	"strings"

	"github.com/dustin/go-humanize"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/functions"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// submission assembles the chunks of one submission.
type submission struct {
	native []string // known native ops
	result schedapi.Submission
	// opOf maps the submission's op table to the machine's. named holds the ops that tasks gave by
	// name.
	opOf  []uint32
	named map[string]uint32
	// used reports for each of the machine's ops whether a task refers to it.
	used []bool
	// holes is the number of holes in arguments, if this is the content of a template.
	holes uint32
	// templated is the part that templates have; nil: none has come yet.
	templated *templated
}

func newSubmission(native []string) *submission {
	return &submission{native: native, named: map[string]uint32{}}
}

func (s *submission) begin(header *pb.SubmitHeader) {
	graph := &s.result.Graph
	graph.Client = ids.ClientID(header.GetClientId())
	graph.Graph = ids.GraphID(header.GetGraphId())
	graph.Name = header.GetName()
	graph.Namespace = namespaceOf(header.GetNamespace())
	graph.RequestID = header.GetRequestId()
	graph.Retention = defaultRetention
	if header.GetRetention() != nil {
		graph.Retention = header.GetRetention().AsDuration()
	}
}

const (
	// defaultSubmission bounds one submission. All submissions whose chunks are still arriving are
	// bounded by submissionsUnderWay times that. This memory is outside of the scheduler's own
	// budget, which counts accepted submissions only.
	defaultSubmission   = 1 << 30
	submissionsUnderWay = 4
	// taskBytes is the approximate size of a task without its texts and arguments.
	taskBytes = 128
)

// chunkBytes is the approximate memory of a chunk until the submission is accepted.
func chunkBytes(part *pb.SubmitRequest) int64 {
	bytes := 0
	for _, op := range part.GetOps() {
		bytes += taskBytes + len(op.GetName())
	}
	for _, f := range part.GetFunctions() {
		bytes += taskBytes + len(f.GetPayload())
	}
	for _, o := range part.GetOptions() {
		bytes += taskBytes + proto.Size(o)
	}
	for _, task := range part.GetTasks() {
		bytes += taskBytes + len(task.GetKey()) + len(task.GetPackedArguments())
		if task.GetArguments() != nil {
			bytes += proto.Size(task.GetArguments())
		}
		for _, input := range task.GetInputs() {
			bytes += itemBytes/4 + len(input)
		}
	}
	for _, t := range part.GetTemplates() {
		bytes += proto.Size(t)
	}
	for _, t := range part.GetPackedTemplates() {
		bytes += len(t)
	}
	for _, g := range part.GetTemplateInstances() {
		for _, in := range g.GetInstances() {
			bytes += taskBytes + len(in.GetKey())
			for _, v := range in.GetPackedValues() {
				bytes += itemBytes/4 + len(v)
			}
		}
	}
	return int64(bytes)
}

// room reserves memory for a submission that has bytes so far and grows by more. The caller must
// release all of it at the end.
func (s *Server) room(bytes, more int64) error {
	most := s.config.SubmissionBytes
	if bytes+more > most {
		return invalid("tasks", fmt.Sprintf("a submission may have %s, this one has more: submit it in several, which may refer to each other's tasks by key",
			humanize.IBytes(uint64(most))))
	}
	if s.submitting.Add(more) > submissionsUnderWay*most {
		s.submitting.Add(-more)
		return &schedapi.Error{Kind: schedapi.ErrSchedulerFull, Message: fmt.Sprintf(
			"submissions of %s are on their way already: try again in a moment, or in smaller ones", humanize.IBytes(uint64(submissionsUnderWay*most)))}
	}
	return nil
}

func (s *submission) add(part *pb.SubmitRequest) error {
	graph := &s.result.Graph
	for _, op := range part.GetOps() {
		spec, err := s.op(op)
		if err != nil {
			return fmt.Errorf("ops[%d]: %w", len(s.opOf), err)
		}
		s.opOf = append(s.opOf, uint32(len(graph.Ops)))
		graph.Ops = append(graph.Ops, spec)
		s.used = append(s.used, false)
	}
	for _, f := range part.GetFunctions() {
		hash := ids.FunctionHash(f.GetHash())
		if sha256.Sum256(f.GetPayload()) != hash {
			return invalid("functions", fmt.Sprintf("function %s: the hash is not the SHA-256 of the payload", hash))
		}
		s.result.Functions = append(s.result.Functions, functions.Function{Hash: hash, Payload: f.GetPayload(), Language: f.GetLanguage()})
	}
	for _, options := range part.GetOptions() {
		graph.Options = append(graph.Options, optionsFrom(options))
	}
	if graph.Tasks == nil {
		graph.Tasks = make([]sched.TaskSpec, 0, len(part.GetTasks()))
	}
	for _, task := range part.GetTasks() {
		spec, err := s.task(task)
		if err != nil {
			return err
		}
		graph.Tasks = append(graph.Tasks, spec)
	}
	return nil
}

// end returns the whole submission, with the list of functions that its tasks need. An empty
// submission without a client or graph is refused: it would create a detached graph that stays for
// an hour.
func (s *submission) end() (schedapi.Submission, error) {
	if err := s.expand(); err != nil {
		return s.result, err
	}
	if g := &s.result.Graph; len(g.Tasks) == 0 && g.Client == 0 && g.Graph == 0 {
		return s.result, invalid("tasks", "there are none: submit one at least")
	}
	needed := map[ids.FunctionHash]bool{}
	for i, op := range s.result.Graph.Ops {
		if s.used[i] && op.Kind == sched.OpPythonPickle && !needed[op.Function] {
			needed[op.Function] = true
			s.result.Needed = append(s.result.Needed, op.Function)
		}
	}
	return s.result, nil
}

const (
	// mostAssigned is the largest part of an assignment message (MaxMessageBytes) that one task may
	// use. inputBytes is the approximate part of each of its inputs.
	mostAssigned = 60 << 20
	inputBytes   = 40
)

func (s *submission) task(task *pb.TaskSpec) (sched.TaskSpec, error) {
	where := func(field, message string, args ...any) error {
		return invalid(fmt.Sprintf("tasks[%d].%s", len(s.result.Graph.Tasks), field),
			fmt.Sprintf("task %q: ", task.GetKey())+fmt.Sprintf(message, args...))
	}
	spec := sched.TaskSpec{
		Key: task.GetKey(), Options: task.GetOptionsIndex(), Inputs: task.GetInputs(), Hold: task.GetHold(),
		Arguments: task.GetPackedArguments(),
	}
	for _, it := range task.GetItems() {
		spec.Items = append(spec.Items, sched.ItemInput{Input: it.GetInput(), Item: ids.Item(it.GetItem()) + 1, Count: it.GetCount()})
	}
	switch index := task.GetOpIndex(); {
	case task.GetOp() != "":
		op, err := s.opByName(task.GetOp())
		if err != nil {
			return spec, fmt.Errorf("task %q: %w", task.GetKey(), err)
		}
		spec.Op = op
	case int(index) >= len(s.opOf):
		return spec, where("op_index", "it is %d, but the submission has carried %d ops so far: send the op first, or give the op by name",
			index, len(s.opOf))
	default:
		spec.Op = s.opOf[index]
	}
	s.used[spec.Op] = true
	if int(task.GetOptionsIndex()) > len(s.result.Graph.Options) {
		return spec, where("options_index", "it is %d (counted from 1), but the submission has carried %d options so far: send the options first",
			task.GetOptionsIndex(), len(s.result.Graph.Options))
	}
	if typed := task.GetArguments(); typed != nil {
		if bad := (references{uint32(len(task.GetInputs())), s.holes}).badArguments(typed); bad != "" {
			return spec, where("arguments", "%s", bad)
		}
		packed, err := proto.MarshalOptions{Deterministic: true}.Marshal(typed)
		if err != nil {
			return spec, where("arguments", "%v", err)
		}
		spec.Arguments = packed
	}
	if len(spec.Arguments)+inputBytes*len(spec.Inputs) > mostAssigned {
		field := "packed_arguments"
		switch {
		case len(spec.Arguments) < inputBytes*len(spec.Inputs):
			field = "inputs"
		case task.GetArguments() != nil:
			field = "arguments"
		}
		return spec, where(field, "arguments of %s and %d inputs are more than one assignment can carry (%s, an input counts %d bytes): scatter large arguments, and sum up many inputs in steps",
			humanize.IBytes(uint64(len(spec.Arguments))), len(spec.Inputs), humanize.IBytes(mostAssigned), inputBytes)
	}
	return spec, nil
}

// opByName returns the index of an op that a task gives by name, for people who type JSON. A colon
// in the name makes it a Python import path.
func (s *submission) opByName(name string) (uint32, error) {
	if index, known := s.named[name]; known {
		return index, nil
	}
	op := &pb.Op{Kind: pb.OpKind_OP_KIND_NATIVE, Name: name}
	if strings.Contains(name, ":") {
		op.Kind = pb.OpKind_OP_KIND_PYTHON_IMPORT
	}
	spec, err := s.op(op)
	if err != nil {
		return 0, err
	}
	index := uint32(len(s.result.Graph.Ops))
	s.result.Graph.Ops = append(s.result.Graph.Ops, spec)
	s.used = append(s.used, false)
	s.named[name] = index
	return index, nil
}

// op checks an op against the rules of its kind.
func (s *submission) op(op *pb.Op) (sched.OpSpec, error) {
	spec := sched.OpSpec{Kind: sched.OpKind(op.GetKind()), Name: op.GetName()}
	if pickled := spec.Kind == sched.OpPythonPickle; pickled != (len(op.GetFunction()) > 0) {
		return spec, invalid("function", "it is the SHA-256 of a pickled function: set it for PYTHON_PICKLE, and for nothing else")
	} else if pickled {
		if len(op.GetFunction()) != len(spec.Function) {
			return spec, invalid("function", fmt.Sprintf("a hash has 32 bytes, this has %d", len(op.GetFunction())))
		}
		spec.Function = ids.FunctionHash(op.GetFunction())
		return spec, nil
	}
	switch spec.Kind {
	case sched.OpNative:
		return spec, s.checkNative(spec.Name)
	case sched.OpPythonImport:
		if module, function, ok := strings.Cut(spec.Name, ":"); !ok || module == "" || function == "" {
			return spec, invalid("name", fmt.Sprintf("%q is no import path: write it as \"package.module:function\"", spec.Name))
		}
	case sched.OpExec:
		if executor, _, ok := strings.Cut(spec.Name, "/"); !ok || executor == "" {
			return spec, invalid("name", fmt.Sprintf("%q names no executor: write it as \"executor/what\"", spec.Name))
		}
	case sched.OpData, sched.OpPythonPickle:
	}
	return spec, nil
}
