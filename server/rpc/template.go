package rpc

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/edge"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/text"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
	"github.com/millrace/millrace/server/templates"
)

// templated is the part of a submission that templates have.
type templated struct {
	namespace string
	// typed are the templates of SubmitRequest.templates so far. defined means that there was a
	// template of any form.
	typed   []*templates.Template
	defined bool
	groups  []instances
	missing []templates.Hash
	// plain is the number of tasks that are in no instance.
	plain int
}

// instances are instances of one template.
type instances struct {
	of   *templates.Template
	sent *pb.TemplateInstances
}

// hasTemplates reports whether a message defines templates or has instances of them.
func hasTemplates(part *pb.SubmitRequest) bool {
	return len(part.GetTemplates()) > 0 || len(part.GetPackedTemplates()) > 0 || len(part.GetTemplateInstances()) > 0
}

// addTemplates adds the templates and instances of a chunk of a submission, which has bytes so far.
// It returns the number of bytes that it has reserved: see room.
func (s *Server) addTemplates(ctx context.Context, whole *submission, part *pb.SubmitRequest, bytes int64) (more int64, err error) {
	if whole.templated == nil {
		namespace, err := s.namespaceOfClient(ctx, &whole.result.Graph)
		if err != nil {
			return 0, err
		}
		whole.templated = &templated{namespace: namespace}
	}
	t := whole.templated
	for _, sent := range part.GetTemplates() {
		where := fmt.Sprintf("templates[%d]", len(t.typed))
		packed, err := proto.MarshalOptions{Deterministic: true}.Marshal(sent)
		if err != nil {
			return 0, invalid(where, err.Error())
		}
		made, err := s.define(ctx, t.namespace, where, packed, sent)
		if err != nil {
			return 0, err
		}
		t.typed, t.defined = append(t.typed, made), true
	}
	for i, packed := range part.GetPackedTemplates() {
		if _, err := s.define(ctx, t.namespace, fmt.Sprintf("packed_templates[%d]", i), packed, nil); err != nil {
			return 0, err
		}
		t.defined = true
	}
	for i, sent := range part.GetTemplateInstances() {
		where := fmt.Sprintf("template_instances[%d]", i)
		of, err := s.templateOf(t, sent, where)
		if err != nil {
			return 0, err
		}
		if of == nil {
			continue // It is missing.
		}
		for k, in := range sent.GetInstances() {
			if err := check(of, in); err != nil {
				return 0, invalid(fmt.Sprintf("%s.instances[%d].%s", where, k, err.Object), err.Message)
			}
			made := instanceOf(sent, in)
			more += of.BytesOf(&made)
		}
		t.groups = append(t.groups, instances{of, sent})
	}
	if err := s.room(bytes, more); err != nil {
		return 0, err
	}
	return more, nil
}

// namespaceOfClient returns the namespace of a submission.
func (s *Server) namespaceOfClient(ctx context.Context, graph *sched.GraphSubmitted) (string, error) {
	if graph.Client == 0 {
		return graph.Namespace, nil
	}
	if c := s.scheduler.LastSnapshot().Client(graph.Client); c != nil {
		return c.Namespace, nil
	}
	snapshot, err := s.scheduler.Snapshot(ctx)
	if err != nil {
		return "", err
	}
	if c := snapshot.Client(graph.Client); c != nil {
		return c.Namespace, nil
	}
	return "", &sched.Error{Kind: sched.ErrUnknownClient, Object: graph.Client.String(), Message: fmt.Sprintf(
		"client %s is not known: its lease ended; open a new one and submit again", graph.Client)}
}

// define keeps a template, unless it is kept already. sent is its message; nil: packed is not read
// yet.
func (s *Server) define(ctx context.Context, namespace, where string, packed []byte, sent *pb.Template) (*templates.Template, error) {
	hash := templates.Hash(sha256.Sum256(packed))
	if known := s.scheduler.Template(namespace, hash); known != nil {
		return known, nil
	}
	if sent == nil {
		sent = &pb.Template{}
		if err := proto.Unmarshal(packed, sent); err != nil {
			return nil, invalid(where, fmt.Sprintf("it is no serialised Template: %v", err))
		}
		if field := badOptions(sent.GetOptions()); field != "" {
			return nil, invalid(where+"."+field, "it is no duration: seconds and nanoseconds have one sign, nanoseconds are below a second")
		}
		if err := s.validator.Validate(sent); err != nil {
			field, words := edge.Violation(err)
			return nil, invalid(where+"."+field, words)
		}
	}
	made, err := compile(sent, s.scheduler.NativeOps())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	made.Hash = hash
	if made, err = s.scheduler.DefineTemplate(ctx, namespace, made); err != nil {
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	return made, nil
}

// compile checks a template, and brings it into the form from which its instances are made.
func compile(sent *pb.Template, native []string) (*templates.Template, error) {
	content := newSubmission(native)
	content.holes = uint32(len(sent.GetValues()))
	err := content.add(&pb.SubmitRequest{Ops: sent.GetOps(), Functions: sent.GetFunctions(), Options: sent.GetOptions(), Tasks: sent.GetTasks()})
	if err != nil {
		return nil, err
	}
	graph := &content.result.Graph
	made := &templates.Template{
		Ops: graph.Ops, Used: content.used, Options: graph.Options, Functions: content.result.Functions,
		Tasks: make([]templates.Task, len(graph.Tasks)), Inputs: sent.GetInputs(),
	}
	for _, v := range sent.GetValues() {
		made.Values = append(made.Values, templates.Value{Name: v.GetName(), Type: int32(v.GetType())})
	}
	names := make(map[string]templates.Input, len(graph.Tasks)+len(made.Inputs))
	for i := range graph.Tasks {
		key := graph.Tasks[i].Key
		if _, taken := names[key]; taken {
			return nil, &sched.Error{Kind: sched.ErrDuplicateKey, Object: key, Message: fmt.Sprintf(
				"key %s is used by two tasks of the template; give each task a key of its own", key)}
		}
		names[key] = templates.Input(i)
	}
	for i, name := range made.Inputs {
		if _, taken := names[name]; taken {
			return nil, invalid(fmt.Sprintf("inputs[%d]", i), fmt.Sprintf("%q is already the name of a task or of a hole for inputs: use another one", name))
		}
		names[name] = templates.Hole(i)
	}
	for i := range graph.Tasks {
		spec := &graph.Tasks[i]
		task := &made.Tasks[i]
		*task = templates.Task{Key: spec.Key, Op: spec.Op, Options: spec.Options, Items: spec.Items, Arguments: spec.Arguments, Hold: spec.Hold}
		for k, name := range spec.Inputs {
			input, known := names[name]
			if !known {
				return nil, invalid(fmt.Sprintf("tasks[%d].inputs[%d]", i, k), fmt.Sprintf(
					"task %q needs %q, which is neither a task of the template nor one of its %d holes for inputs: add it to the template's inputs", spec.Key, name, len(made.Inputs)))
			}
			task.Inputs = append(task.Inputs, input)
		}
		if typed := sent.GetTasks()[i].GetArguments(); hasHole(typed) {
			if task.Pieces, err = piecesOf(typed); err != nil {
				return nil, invalid(fmt.Sprintf("tasks[%d].arguments", i), err.Error())
			}
			task.Arguments = nil
		}
	}
	made.Seal()
	return made, nil
}

// templateOf returns the template of instances; nil if it is missing.
func (s *Server) templateOf(t *templated, sent *pb.TemplateInstances, where string) (*templates.Template, error) {
	if sent.TemplateIndex != nil {
		if int(sent.GetTemplateIndex()) >= len(t.typed) {
			return nil, invalid(where+".template_index", fmt.Sprintf("it is %d, but the submission has carried %d templates so far (counted from 0): send the template first, or give its hash",
				sent.GetTemplateIndex(), len(t.typed)))
		}
		return t.typed[sent.GetTemplateIndex()], nil
	}
	hash := templates.Hash{}
	if len(sent.GetTemplateHash()) != len(hash) {
		return nil, invalid(where+".template_hash", fmt.Sprintf("a hash has %d bytes, this has %d", len(hash), len(sent.GetTemplateHash())))
	}
	copy(hash[:], sent.GetTemplateHash())
	of := s.scheduler.Template(t.namespace, hash)
	if of == nil && !slices.Contains(t.missing, hash) {
		t.missing = append(t.missing, hash)
	}
	return of, nil
}

// check checks an instance, and serialises its values. The Object of the error is the field.
func check(of *templates.Template, in *pb.TemplateInstance) *schedapi.Error {
	bad := func(field, message string, args ...any) *schedapi.Error {
		return &schedapi.Error{Object: field, Message: fmt.Sprintf("instance %q: ", in.GetKey()) + fmt.Sprintf(message, args...)}
	}
	if len(in.GetValues()) > 0 && len(in.GetPackedValues()) > 0 {
		return bad("values", "packed_values are set, too: set one of both")
	}
	for i, v := range in.GetValues() {
		if wrong := (references{}).bad(v); wrong != "" {
			return bad(fmt.Sprintf("values[%d]", i), "%s", holeOf(of, i)+"a value can have no inputs and no holes: "+wrong)
		}
		packed, err := proto.MarshalOptions{Deterministic: true}.Marshal(v)
		if err != nil {
			return bad(fmt.Sprintf("values[%d]", i), "%v", err)
		}
		in.PackedValues = append(in.PackedValues, packed)
	}
	in.Values = nil
	if got, want := len(in.GetPackedValues()), len(of.Values); got != want {
		names := make([]string, want)
		for i := range of.Values {
			names[i] = nameOf(of.Values[i].Name, i)
		}
		return bad("values", "it has %d values, and the template has %d holes in arguments%s", got, want, listed(names))
	}
	for i, packed := range in.GetPackedValues() {
		kind, _, n := protowire.ConsumeTag(packed)
		switch want := of.Values[i].Type; {
		case n < 0 && len(packed) > 0:
			return bad(fmt.Sprintf("packed_values[%d]", i), "%sit is no serialised Value", holeOf(of, i))
		case kind == fieldInput || kind == fieldHole:
			return bad(fmt.Sprintf("packed_values[%d]", i), "%sa value can have no inputs and no holes", holeOf(of, i))
		case n < 0:
			kind = protowire.Number(pb.ValueType_VALUE_TYPE_NULL) // An empty Value is null.
			fallthrough
		default:
			if want != 0 && int32(kind) != want {
				return bad(fmt.Sprintf("values[%d]", i), "%sit takes values of type %s, and this is of type %s", holeOf(of, i), typeName(want), typeName(int32(kind)))
			}
		}
	}
	if got, want := len(in.GetInputs()), len(of.Inputs); got != want {
		return bad("inputs", "it has %d inputs, and the template has %d holes for inputs%s", got, want, listed(of.Inputs))
	}
	return nil
}

// Numbers of the fields of Value that instances may not have.
const (
	fieldInput = 10
	fieldHole  = 13
)

func typeName(kind int32) string {
	return strings.TrimPrefix(pb.ValueType(kind).String(), "VALUE_TYPE_")
}

// nameOf returns the name of a hole, or its number.
func nameOf(name string, index int) string {
	if name == "" {
		return strconv.Itoa(index)
	}
	return name
}

// holeOf names a hole, and a task that has it, for the beginning of an error.
func holeOf(of *templates.Template, i int) string {
	if i >= len(of.Values) {
		return ""
	}
	v := of.Values[i]
	if v.Task == "" {
		return fmt.Sprintf("hole %q: ", nameOf(v.Name, i))
	}
	return fmt.Sprintf("hole %q of task %q: ", nameOf(v.Name, i), v.Task)
}

// mostListed is the number of holes that an error lists.
const mostListed = 10

// listed returns names for the end of an error.
func listed(names []string) string {
	if len(names) == 0 {
		return ""
	}
	some := make([]string, 0, mostListed)
	for _, name := range names[:min(len(names), mostListed)] {
		some = append(some, text.Cut(name, keptName/mostListed))
	}
	if len(names) > mostListed {
		some = append(some, "...")
	}
	return ": " + strings.Join(some, ", ")
}

func instanceOf(group *pb.TemplateInstances, in *pb.TemplateInstance) templates.Instance {
	return templates.Instance{Prefix: group.GetKeyPrefix(), Key: in.GetKey(), Values: in.GetPackedValues(), Inputs: in.GetInputs()}
}

// early returns the answer to a submission that the scheduler need not see: templates are missing,
// or it only defines some. Nil for all others.
func (s *submission) early() *pb.SubmitResponse {
	t := s.templated
	if t == nil {
		return nil
	}
	if len(t.missing) > 0 {
		return &pb.SubmitResponse{MissingTemplates: hashesTo(t.missing), TemplateHashes: s.hashes()}
	}
	if t.defined && len(t.groups) == 0 && len(s.result.Graph.Tasks) == 0 {
		return &pb.SubmitResponse{TemplateHashes: s.hashes()}
	}
	return nil
}

// hashes returns the hashes of the typed templates.
func (s *submission) hashes() [][]byte {
	if s.templated == nil {
		return nil
	}
	return hashesTo(convertAll(s.templated.typed, func(t *templates.Template) ids.FunctionHash { return t.Hash }))
}

// expand adds the tasks of all instances.
func (s *submission) expand() error {
	t := s.templated
	if t == nil {
		return nil
	}
	graph := &s.result.Graph
	t.plain = len(graph.Tasks)
	total := t.plain
	for _, g := range t.groups {
		total += len(g.of.Tasks) * len(g.sent.GetInstances())
	}
	graph.Tasks = slices.Grow(graph.Tasks, total-t.plain)
	type place struct{ ops, options uint32 }
	places := map[*templates.Template]place{}
	expansion := templates.Expansion{}
	for _, g := range t.groups {
		at, known := places[g.of]
		if !known {
			at = place{uint32(len(graph.Ops)), uint32(len(graph.Options))}
			places[g.of] = at
			for _, op := range g.of.Ops {
				// The native ops may have changed since the definition.
				if op.Kind == sched.OpNative {
					if err := s.checkNative(op.Name); err != nil {
						return err
					}
				}
			}
			graph.Ops, graph.Options = append(graph.Ops, g.of.Ops...), append(graph.Options, g.of.Options...)
			s.used = append(s.used, g.of.Used...)
		}
		for _, sent := range g.sent.GetInstances() {
			in := instanceOf(g.sent, sent)
			first := len(graph.Tasks)
			graph.Tasks = expansion.Append(graph.Tasks, g.of, &in, at.ops, at.options)
			if err := checkExpanded(g.of, &in, graph.Tasks[first:]); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkExpanded checks those limits of the tasks of an instance that depend on its keys and values.
func checkExpanded(of *templates.Template, in *templates.Instance, tasks []sched.TaskSpec) error {
	long := len(in.Prefix)+len(in.Key)+of.Longest() > plainKey
	large := of.BytesOf(in) > mostAssigned
	for i := 0; i < len(tasks) && (long || large); i++ {
		spec := &tasks[i]
		if n := utf8.RuneCountInString(spec.Key); n > plainKey {
			return invalid("template_instances.key_prefix", fmt.Sprintf("instance %q: the key of task %q has %d characters with its prefix, the limit is %d",
				in.Key, of.Tasks[i].Key, n, plainKey))
		}
		if len(spec.Arguments)+inputBytes*len(spec.Inputs) > mostAssigned {
			return invalid("template_instances.values", fmt.Sprintf("instance %q: task %q has arguments of %s and %d inputs, more than one assignment can carry (%s, an input counts %d bytes): scatter large arguments",
				in.Key, spec.Key, humanize.IBytes(uint64(len(spec.Arguments))), len(spec.Inputs), humanize.IBytes(mostAssigned), inputBytes))
		}
	}
	return nil
}

// bring adds those of the missing functions to a submission that its templates have. It reports
// whether there are any.
func (s *submission) bring(to *schedapi.Submission, missing []ids.FunctionHash) bool {
	if s.templated == nil {
		return false
	}
	before := len(to.Functions)
	for i, g := range s.templated.groups {
		if i > 0 && g.of == s.templated.groups[i-1].of {
			continue
		}
		for _, f := range g.of.Functions {
			if slices.Contains(missing, f.Hash) {
				to.Functions = append(to.Functions, f)
			}
		}
	}
	return len(to.Functions) > before
}

// listed returns the numbers that the answer to a submission lists: those of the tasks that are in
// no instance, and of the held tasks of instances.
func (s *submission) listed(tasks []ids.TaskID) []ids.TaskID {
	t := s.templated
	if t == nil || len(tasks) == 0 {
		return tasks
	}
	list := slices.Clone(tasks[:t.plain])
	rest := tasks[t.plain:]
	for _, g := range t.groups {
		for range g.sent.GetInstances() {
			for _, i := range g.of.Held() {
				list = append(list, rest[i])
			}
			rest = rest[len(g.of.Tasks):]
		}
	}
	return list
}

// ranges returns the numbers of all tasks of instances.
func (s *submission) ranges(tasks []ids.TaskID) []*pb.TaskIdRange {
	if s.templated == nil || len(tasks) == 0 {
		return nil
	}
	var ranges []*pb.TaskIdRange
	for _, id := range tasks[s.templated.plain:] {
		if n := len(ranges); n > 0 && ranges[n-1].GetFirst()+ranges[n-1].GetCount() == uint64(id) {
			ranges[n-1].Count++
		} else {
			ranges = append(ranges, &pb.TaskIdRange{First: uint64(id), Count: 1})
		}
	}
	return ranges
}
