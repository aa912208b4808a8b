package server_test

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/server"
	"github.com/millrace/millrace/server/journal"
	"github.com/millrace/millrace/server/templates"
)

// sums returns the report of a task whose result is the hash of its arguments and inputs, and notes
// the arguments by key.
func sums(mu *sync.Mutex, seen map[string][]byte) func(*workerv1.Assignment) *workerv1.TaskReport {
	return func(a *workerv1.Assignment) *workerv1.TaskReport {
		hash := sha256.New()
		hash.Write(a.GetArguments())
		for _, input := range a.GetInputs() {
			hash.Write(input.GetInlineResult())
			fmt.Fprint(hash, input.GetItem())
		}
		mu.Lock()
		seen[a.GetKey()] = a.GetArguments()
		mu.Unlock()
		result, _ := proto.Marshal(&pb.Value{Kind: &pb.Value_BytesValue{BytesValue: hash.Sum(nil)}})
		report := succeed(a)
		report.InlineResult, report.OutputBytes = result, uint64(len(result))
		return report
	}
}

// randomValue makes a value of any type that arguments can have, holes and inputs included.
func randomValue(r *rand.Rand, level int, inputs, holes int) *pb.Value {
	switch r.IntN(14) {
	case 0:
		return &pb.Value{Kind: &pb.Value_NullValue{}}
	case 1:
		return &pb.Value{Kind: &pb.Value_BoolValue{BoolValue: r.IntN(2) == 0}}
	case 2:
		return &pb.Value{Kind: &pb.Value_IntValue{IntValue: r.Int64() - r.Int64()}}
	case 3:
		return &pb.Value{Kind: &pb.Value_DoubleValue{DoubleValue: r.NormFloat64()}}
	case 4:
		return &pb.Value{Kind: &pb.Value_StringValue{StringValue: strings.Repeat("ä", r.IntN(100))}}
	case 5:
		return &pb.Value{Kind: &pb.Value_BytesValue{BytesValue: make([]byte, r.IntN(300))}}
	case 6:
		return &pb.Value{Kind: &pb.Value_ComplexValue{ComplexValue: &pb.Complex{Real: r.NormFloat64(), Imaginary: 1}}}
	case 7:
		return &pb.Value{Kind: &pb.Value_TensorValue{TensorValue: &pb.Tensor{Dtype: pb.DType_DTYPE_INT64, Shape: []int64{2}, Location: &pb.Tensor_InlineData{InlineData: make([]byte, 16)}}}}
	case 8:
		return &pb.Value{Kind: &pb.Value_OpaqueValue{OpaqueValue: &pb.Opaque{Encoding: "pickle5", Data: []byte("payload"), TypeName: "T"}}}
	case 9:
		return &pb.Value{} // Null, too.
	case 10:
		if level < 3 {
			list := &pb.ListValue{}
			for range r.IntN(4) {
				list.Values = append(list.Values, randomValue(r, level+1, inputs, holes))
			}
			return &pb.Value{Kind: &pb.Value_ListValue{ListValue: list}}
		}
	case 11:
		if level < 3 {
			mapped := &pb.MapValue{Fields: map[string]*pb.Value{}}
			for range r.IntN(4) {
				key := fmt.Sprint("k", r.IntN(100))
				mapped.Fields[key] = randomValue(r, level+1, inputs, holes)
				mapped.Order = append(mapped.Order, key)
			}
			return &pb.Value{Kind: &pb.Value_MapValue{MapValue: mapped}}
		}
	case 12:
		if inputs > 0 {
			return &pb.Value{Kind: &pb.Value_Input{Input: uint32(r.IntN(inputs))}}
		}
	}
	if holes > 0 {
		return &pb.Value{Kind: &pb.Value_Hole{Hole: uint32(r.IntN(holes))}}
	}
	return &pb.Value{Kind: &pb.Value_IntValue{IntValue: 7}}
}

// randomTemplate makes a template whose tasks need tasks before and after them, without a cycle.
func randomTemplate(r *rand.Rand) *pb.Template {
	template := &pb.Template{
		Ops:     []*pb.Op{{Kind: pb.OpKind_OP_KIND_NATIVE, Name: "array.sum"}, {Kind: pb.OpKind_OP_KIND_PYTHON_IMPORT, Name: "pkg.mod:fn"}},
		Options: []*pb.TaskOptions{{MaxRetries: 3}, {Priority: 2}},
	}
	for i := range r.IntN(4) {
		template.Values = append(template.Values, &pb.TemplateValue{Name: fmt.Sprint("hole", i)})
	}
	for i := range r.IntN(3) {
		template.Inputs = append(template.Inputs, fmt.Sprint("in", i))
	}
	names := slices.Clone(template.GetInputs())
	for i := range 1 + r.IntN(20) {
		task := &pb.TaskSpec{Key: fmt.Sprint("t", i), Hold: r.IntN(3) == 0, OptionsIndex: uint32(r.IntN(3))}
		if r.IntN(2) == 0 {
			task.Op = "bench.noop"
		} else {
			task.OpIndex = proto.Uint32(uint32(r.IntN(2)))
		}
		for range r.IntN(4) {
			if len(names) > 0 {
				task.Inputs = append(task.Inputs, names[r.IntN(len(names))])
			}
		}
		if len(task.Inputs) > 0 && r.IntN(4) == 0 {
			task.Items = []*pb.ItemInput{{Input: uint32(len(task.Inputs) - 1), Item: 3, Count: 5}}
		}
		if r.IntN(4) == 0 {
			task.PackedArguments = []byte("passed on unread")
		} else {
			task.Arguments = &pb.Arguments{Named: map[string]*pb.Value{}}
			for range r.IntN(4) {
				task.Arguments.Positional = append(task.Arguments.Positional, randomValue(r, 0, len(task.Inputs), len(template.Values)))
			}
			for range r.IntN(3) {
				task.Arguments.Named[fmt.Sprint("n", r.IntN(100))] = randomValue(r, 0, len(task.Inputs), len(template.Values))
			}
		}
		template.Tasks = append(template.Tasks, task)
		names = append(names, task.GetKey())
	}
	r.Shuffle(len(template.Tasks), func(i, j int) { template.Tasks[i], template.Tasks[j] = template.Tasks[j], template.Tasks[i] })
	return template
}

// filled returns a value with the holes filled.
func filled(v *pb.Value, values []*pb.Value) *pb.Value {
	switch kind := v.GetKind().(type) {
	case *pb.Value_Hole:
		return values[kind.Hole]
	case *pb.Value_ListValue:
		list := &pb.ListValue{}
		for _, element := range kind.ListValue.GetValues() {
			list.Values = append(list.Values, filled(element, values))
		}
		return &pb.Value{Kind: &pb.Value_ListValue{ListValue: list}}
	case *pb.Value_MapValue:
		mapped := &pb.MapValue{Fields: map[string]*pb.Value{}, Order: kind.MapValue.GetOrder()}
		for key, element := range kind.MapValue.GetFields() {
			mapped.Fields[key] = filled(element, values)
		}
		return &pb.Value{Kind: &pb.Value_MapValue{MapValue: mapped}}
	}
	return v
}

// plainly returns the tasks of an instance as a client would submit them without a template.
func plainly(template *pb.Template, prefix string, in *pb.TemplateInstance) []*pb.TaskSpec {
	names := map[string]string{}
	for i, name := range template.GetInputs() {
		names[name] = in.GetInputs()[i]
	}
	for _, task := range template.GetTasks() {
		names[task.GetKey()] = prefix + in.GetKey() + task.GetKey()
	}
	var tasks []*pb.TaskSpec
	for _, task := range template.GetTasks() {
		plain := proto.CloneOf(task)
		plain.Key = names[task.GetKey()]
		for i, name := range plain.GetInputs() {
			plain.Inputs[i] = names[name]
		}
		if a := plain.GetArguments(); a != nil {
			for i, v := range a.GetPositional() {
				a.Positional[i] = filled(v, in.GetValues())
			}
			for key, v := range a.GetNamed() {
				a.Named[key] = filled(v, in.GetValues())
			}
		}
		tasks = append(tasks, plain)
	}
	return tasks
}

// TestInstancesOfATemplateAreThePlainSubmission: random graphs have the same tasks and results,
// whether they are submitted plainly or as instances of a template, with typed and with packed
// values.
func TestInstancesOfATemplateAreThePlainSubmission(t *testing.T) {
	c := start(t, server.Config{})
	ctx := timeout(t)
	var mu sync.Mutex
	seen := map[uint64][]byte{} // The arguments of each task that has run.
	var checks []func()
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		template := randomTemplate(r)
		group := &pb.TemplateInstances{KeyPrefix: "run-", TemplateIndex: new(uint32)}
		outside := noops("outside", 3)
		plain := &pb.SubmitRequest{Ops: template.GetOps(), Options: template.GetOptions(), Tasks: noops("outside", 3)}
		for i := range 1 + r.IntN(3) {
			in := &pb.TemplateInstance{Key: fmt.Sprint(i, "-")}
			for range template.GetValues() {
				in.Values = append(in.Values, randomValue(r, 0, 0, 0))
			}
			for range template.GetInputs() {
				in.Inputs = append(in.Inputs, outside[r.IntN(len(outside))].GetKey())
			}
			group.Instances = append(group.Instances, in)
			plain.Tasks = append(plain.Tasks, plainly(template, group.GetKeyPrefix(), in)...)
		}
		instances := &pb.SubmitRequest{Templates: []*pb.Template{template}, Tasks: outside, TemplateInstances: []*pb.TemplateInstances{group}}
		if seed%2 == 1 {
			packed, err := proto.Marshal(template)
			if err != nil {
				t.Fatal(err)
			}
			hash := sha256.Sum256(packed)
			instances.Templates, instances.PackedTemplates = nil, [][]byte{packed}
			group.TemplateIndex, group.TemplateHash = nil, hash[:]
			for _, in := range group.GetInstances() {
				for _, v := range in.GetValues() {
					packed, err := proto.MarshalOptions{Deterministic: true}.Marshal(v)
					if err != nil {
						t.Fatal(err)
					}
					in.PackedValues = append(in.PackedValues, packed)
				}
				in.Values = nil
			}
		}
		type made struct {
			tasks   []*pb.Task
			args    map[string][]byte
			results map[string]string
		}
		// submit submits the tasks, and returns a function that waits for their results.
		submit := func(namespace string, request *pb.SubmitRequest, listed int) func() made {
			opened, err := c.client.OpenClient(ctx, &pb.OpenClientRequest{Namespace: namespace, LeaseTtl: durationpb.New(testTimeout)})
			if err != nil {
				t.Fatal(err)
			}
			id := opened.GetClient().GetClientId()
			watch := c.watch(ctx, &pb.WatchRequest{ClientId: id})
			request.Header = &pb.SubmitHeader{ClientId: id, RequestId: "once"}
			answer, err := c.client.SubmitBatch(ctx, request)
			if err != nil {
				t.Fatalf("seed %d, %s: %v", seed, namespace, err)
			}
			again, err := c.client.SubmitBatch(ctx, request)
			if err != nil || again.GetGraphId() != answer.GetGraphId() || !slices.Equal(again.GetTaskIds(), answer.GetTaskIds()) {
				t.Fatalf("seed %d, %s: the repeated request is answered %v (%v), the first one %v", seed, namespace, again, err, answer)
			}
			if len(answer.GetTaskIds()) != listed {
				t.Fatalf("seed %d, %s: %d numbers are listed, want %d", seed, namespace, len(answer.GetTaskIds()), listed)
			}
			list, err := c.client.ListTasks(ctx, &pb.ListTasksRequest{GraphId: answer.GetGraphId(), PageSize: 1000})
			if err != nil {
				t.Fatal(err)
			}
			m := made{args: map[string][]byte{}, results: map[string]string{}}
			numbers := map[string]uint64{}
			for _, task := range list.GetTasks() {
				numbers[task.GetKey()] = task.GetTaskId()
				task.TaskId, task.GraphId, task.CreateTime, task.Namespace = 0, 0, nil, ""
				m.tasks = append(m.tasks, task)
			}
			at := 0
			held := map[string]uint64{}
			for i, task := range plain.GetTasks() {
				if task.GetHold() {
					held[task.GetKey()] = numbers[task.GetKey()]
				} else if i >= len(outside) && listed < len(plain.GetTasks()) {
					continue
				}
				if answer.GetTaskIds()[at] != numbers[task.GetKey()] {
					t.Errorf("seed %d, %s: number %d is not that of task %q", seed, namespace, at, task.GetKey())
				}
				at++
			}
			instances := []uint64{}
			for _, r := range answer.GetInstanceTaskIds() {
				for i := range r.GetCount() {
					instances = append(instances, r.GetFirst()+i)
				}
			}
			if listed < len(plain.GetTasks()) {
				var want []uint64
				for _, task := range plain.GetTasks()[len(outside):] {
					want = append(want, numbers[task.GetKey()])
				}
				if !slices.Equal(instances, want) {
					t.Errorf("seed %d: the instances have the numbers %v, want %v", seed, instances, want)
				}
			}
			return func() made {
				c.final(watch, slices.Collect(maps.Values(held)))
				for key := range held {
					result, err := c.client.GetResult(ctx, &pb.GetResultRequest{Task: &pb.TaskRef{Task: &pb.TaskRef_Key{Key: key}, Namespace: namespace}})
					if err != nil {
						t.Fatal(err)
					}
					m.results[key] = string(result.GetValue().GetBytesValue())
				}
				mu.Lock()
				defer mu.Unlock()
				for key, number := range numbers {
					if arguments, ran := seen[number]; ran {
						m.args[key] = arguments
					}
				}
				return m
			}
		}
		held := len(outside)
		for _, task := range plain.GetTasks()[len(outside):] {
			if task.GetHold() {
				held++
			}
		}
		wanted := submit(fmt.Sprint("plain", seed), plain, len(plain.GetTasks()))
		instantiated := submit(fmt.Sprint("template", seed), instances, held)
		checks = append(checks, func() {
			want, got := wanted(), instantiated()
			if !slices.EqualFunc(got.tasks, want.tasks, func(a, b *pb.Task) bool { return proto.Equal(a, b) }) {
				t.Fatalf("seed %d: tasks\n%v, want\n%v", seed, got.tasks, want.tasks)
			}
			// A task that no held one needs may not have run when the held ones have ended.
			for key, arguments := range want.args {
				if others, ran := got.args[key]; ran && string(others) != string(arguments) {
					t.Fatalf("seed %d: task %q has the arguments\n%q, want\n%q", seed, key, others, arguments)
				}
			}
			if !maps.Equal(got.results, want.results) || len(got.results) == 0 {
				t.Fatalf("seed %d: other results", seed)
			}
		})
	}
	// One worker runs the tasks of all graphs: before it joins, all tasks are listed as they wait.
	texts := map[string][]byte{}
	run := sums(&mu, texts)
	c.join(c.conn, registration("w"), func(a *workerv1.Assignment) *workerv1.TaskReport {
		mu.Lock()
		seen[a.GetTaskId()] = a.GetArguments()
		mu.Unlock()
		return run(a)
	})
	for _, check := range checks {
		check()
	}
}

// TestTemplatesOutliveARestart: random templates that were defined before a restart make the same
// tasks as the plain submission after it.
func TestTemplatesOutliveARestart(t *testing.T) {
	directory := func() *journal.Directory {
		t.Helper()
		d, err := journal.OpenDirectory(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.Close() }) // It was only read.
		return d
	}
	ctx := timeout(t)
	first, second := directory(), directory()
	ready := make(chan struct{})
	before := start(t, server.Config{Journal: first, NativeOps: []string{"bench.noop", "array.sum"}, Ready: func() error { close(ready); return nil }})
	<-ready
	type definition struct {
		template *pb.Template
		hash     []byte
	}
	var defined []definition
	for seed := range uint64(20) {
		template := randomTemplate(rand.New(rand.NewPCG(seed, 1)))
		packed, hash := packedTemplate(t, template)
		answer, err := before.client.SubmitBatch(ctx, &pb.SubmitRequest{PackedTemplates: [][]byte{packed}})
		if err != nil || answer.GetGraphId() != 0 {
			t.Fatalf("seed %d: %v, %v", seed, answer, err)
		}
		defined = append(defined, definition{template, hash})
	}
	// All definitions that were answered are on the disk.
	if err := os.CopyFS(second.Path(), os.DirFS(first.Path())); err != nil {
		t.Fatal(err)
	}
	ready = make(chan struct{})
	c := start(t, server.Config{Journal: second, Ready: func() error { close(ready); return nil }})
	<-ready
	var mu sync.Mutex
	seen := map[string][]byte{}
	c.join(c.conn, registration("w-0"), sums(&mu, seen))
	for seed, d := range defined {
		template := d.template
		r := rand.New(rand.NewPCG(uint64(seed), 2))
		in := &pb.TemplateInstance{}
		for range template.GetValues() {
			in.Values = append(in.Values, randomValue(r, 0, 0, 0))
		}
		outside := noops("outside", 1)
		for range template.GetInputs() {
			in.Inputs = append(in.Inputs, outside[0].GetKey())
		}
		plain := &pb.SubmitRequest{Ops: template.GetOps(), Options: template.GetOptions(), Tasks: append(noops("outside", 1), plainly(template, "", in)...)}
		instance := &pb.SubmitRequest{Tasks: outside, TemplateInstances: []*pb.TemplateInstances{{TemplateHash: d.hash, Instances: []*pb.TemplateInstance{in}}}}
		var made [2]map[string][]byte
		for i, request := range []*pb.SubmitRequest{instance, plain} {
			mu.Lock()
			clear(seen)
			mu.Unlock()
			opened, err := c.client.OpenClient(ctx, &pb.OpenClientRequest{Namespace: []string{"default", "other"}[i]})
			if err != nil {
				t.Fatal(err)
			}
			id := opened.GetClient().GetClientId()
			for _, task := range request.GetTasks() {
				task.Hold = true
			}
			request.Header = &pb.SubmitHeader{ClientId: id}
			watch := c.watch(ctx, &pb.WatchRequest{ClientId: id})
			answer, err := c.client.SubmitBatch(ctx, request)
			if err != nil || len(answer.GetMissingTemplates()) > 0 {
				t.Fatalf("seed %d: %v, missing %x", seed, err, answer.GetMissingTemplates())
			}
			c.final(watch, answer.GetTaskIds())
			mu.Lock()
			made[i] = maps.Clone(seen)
			mu.Unlock()
			if _, err := c.client.CloseClient(ctx, &pb.CloseClientRequest{ClientId: id}); err != nil {
				t.Fatal(err)
			}
		}
		for key, arguments := range made[0] {
			if string(made[1][key]) != string(arguments) {
				t.Fatalf("seed %d: task %q has the arguments\n%q, want\n%q", seed, key, arguments, made[1][key])
			}
		}
	}
}

// pair is a template of two tasks with a hole of each kind.
func pair() *pb.Template {
	return &pb.Template{
		Values: []*pb.TemplateValue{{Name: "rate", Type: pb.ValueType_VALUE_TYPE_DOUBLE}},
		Inputs: []string{"table"},
		Tasks: []*pb.TaskSpec{
			{Key: "scaled", Op: "array.sum", Inputs: []string{"table"}, Arguments: &pb.Arguments{Positional: []*pb.Value{{Kind: &pb.Value_Input{}}, {Kind: &pb.Value_Hole{}}}}},
			{Key: "sum", Op: "array.sum", Inputs: []string{"scaled"}, Hold: true},
		},
	}
}

func packedTemplate(t *testing.T, template *pb.Template) (packed, hash []byte) {
	t.Helper()
	packed, err := proto.Marshal(template)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(packed)
	return packed, sum[:]
}

func TestUnknownTemplatesAreAskedForAndNothingIsAccepted(t *testing.T) {
	c := start(t, server.Config{Templates: templates.Limits{Templates: 2, Bytes: 1 << 20, AllBytes: 1 << 20}})
	ctx := timeout(t)
	c.join(c.conn, registration("w-0"), succeed)
	id := c.open(ctx)
	packed, hash := packedTemplate(t, pair())
	rate := &pb.Value{Kind: &pb.Value_DoubleValue{DoubleValue: 2}}
	request := func(key string) *pb.SubmitRequest {
		return &pb.SubmitRequest{
			Header: &pb.SubmitHeader{ClientId: id, RequestId: key}, Tasks: noops(key, 1),
			TemplateInstances: []*pb.TemplateInstances{{TemplateHash: hash, Instances: []*pb.TemplateInstance{{Key: key, Values: []*pb.Value{rate}, Inputs: []string{noops(key, 1)[0].GetKey()}}}}},
		}
	}
	missing := func(answer *pb.SubmitResponse, err error) {
		t.Helper()
		if err != nil || len(answer.GetMissingTemplates()) != 1 || string(answer.GetMissingTemplates()[0]) != string(hash) || len(answer.GetTaskIds()) != 0 {
			t.Fatalf("an unknown template: %v, %v", answer, err)
		}
	}
	accepted := func(answer *pb.SubmitResponse, err error) {
		t.Helper()
		if err != nil || len(answer.GetMissingTemplates()) != 0 || len(answer.GetTaskIds()) != 2 {
			t.Fatalf("a known template: %v, %v", answer, err)
		}
	}
	missing(c.client.SubmitBatch(ctx, request("a")))
	if tasks, err := c.client.ListTasks(ctx, &pb.ListTasksRequest{}); err != nil || len(tasks.GetTasks()) != 0 {
		t.Fatalf("tasks: %v, %v", tasks, err)
	}
	with := request("a")
	with.PackedTemplates = [][]byte{packed}
	first, err := c.client.SubmitBatch(ctx, with)
	accepted(first, err)
	accepted(c.client.SubmitBatch(ctx, request("b")))

	// Another namespace has templates of its own.
	detached := request("a")
	detached.Header = &pb.SubmitHeader{Namespace: "other"}
	missing(c.client.SubmitBatch(ctx, detached))

	// Two others displace it. A repeated request has the same answer all the same.
	for i := range 2 {
		other := pair()
		other.Tasks[0].Key = fmt.Sprint("other", i)
		other.Tasks[1].Inputs[0] = other.Tasks[0].Key
		answer, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Templates: []*pb.Template{other}})
		if err != nil || len(answer.GetTemplateHashes()) != 1 || answer.GetGraphId() != 0 {
			t.Fatalf("a definition alone: %v, %v", answer, err)
		}
	}
	missing(c.client.SubmitBatch(ctx, request("a")))
	if again, err := c.client.SubmitBatch(ctx, with); err != nil || again.GetGraphId() != first.GetGraphId() || !slices.Equal(again.GetTaskIds(), first.GetTaskIds()) {
		t.Errorf("the request again: %v (%v), want %v", again, err, first)
	}

	// In a stream, the definition may come in an earlier chunk.
	stream, err := c.client.Submit(ctx)
	if err != nil {
		t.Fatal(err)
	}
	streamed := request("c")
	for _, part := range []*pb.SubmitRequest{
		{Header: streamed.GetHeader(), Templates: []*pb.Template{pair()}}, {TemplateInstances: streamed.GetTemplateInstances()}, {Tasks: streamed.GetTasks()},
	} {
		if err := stream.Send(part); err != nil {
			t.Fatal(err)
		}
	}
	accepted(stream.CloseAndRecv())
}

func TestFunctionsOfATemplateTravelWithIt(t *testing.T) {
	c := start(t, server.Config{})
	ctx := timeout(t)
	w := c.joinSeen(c.conn, registration("w-0"), succeed, make(chan *workerv1.SessionResponse, 100))
	id := c.open(ctx)
	watch := c.watch(ctx, &pb.WatchRequest{ClientId: id})
	payload := []byte("a pickled function")
	sum := sha256.Sum256(payload)
	template := &pb.Template{
		Functions: []*pb.Function{{Hash: sum[:], Payload: payload}},
		Ops:       []*pb.Op{{Kind: pb.OpKind_OP_KIND_PYTHON_PICKLE, Name: "f", Function: sum[:]}},
		Tasks:     []*pb.TaskSpec{{Key: "t", OpIndex: new(uint32), Hold: true}},
	}
	packed, hash := packedTemplate(t, template)
	functions := 0
	for i := range 3 {
		request := &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id},
			TemplateInstances: []*pb.TemplateInstances{{TemplateHash: hash, Instances: []*pb.TemplateInstance{{Key: fmt.Sprint(i)}}}}}
		if i == 0 {
			request.PackedTemplates = [][]byte{packed}
		}
		answer, err := c.client.SubmitBatch(ctx, request)
		if err != nil || len(answer.GetTaskIds()) != 1 {
			t.Fatalf("instance %d: %v, %v", i, answer, err)
		}
		c.final(watch, answer.GetTaskIds())
		// The scheduler forgets the function with its last task, but the template has it.
		if _, err := c.client.ReleaseTasks(ctx, &pb.ReleaseTasksRequest{ClientId: id, Tasks: &pb.TaskSet{Ids: answer.GetTaskIds()}}); err != nil {
			t.Fatal(err)
		}
		for assigned := false; !assigned; {
			message := <-w.seen
			functions += len(message.GetFunctions())
			assigned = len(message.GetAssignments()) > 0
		}
	}
	if functions != 3 {
		t.Errorf("the worker was sent %d functions, want 3", functions)
	}
	// Without its function, the template is known and the function is missing.
	template.Functions, template.Tasks[0].Key = nil, "u"
	answer, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id}, Templates: []*pb.Template{template},
		TemplateInstances: []*pb.TemplateInstances{{TemplateIndex: new(uint32), Instances: []*pb.TemplateInstance{{}}}}})
	if err != nil || len(answer.GetMissingFunctions()) != 1 || len(answer.GetTaskIds()) != 0 {
		t.Errorf("without its function: %v, %v", answer, err)
	}
}

func TestBadTemplatesAndInstancesAreRefusedAndSayWhy(t *testing.T) {
	c := start(t, server.Config{SubmissionBytes: 8 << 20, Templates: templates.Limits{Templates: 100, Bytes: 1 << 20, AllBytes: 2 << 20}})
	ctx := timeout(t)
	c.join(c.conn, registration("w-0"), never)
	id := c.open(ctx)
	changed := func(change func(*pb.Template)) *pb.Template {
		template := pair()
		change(template)
		return template
	}
	define := func(template *pb.Template) error {
		_, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id}, Templates: []*pb.Template{template}})
		packed, _ := packedTemplate(t, template)
		_, again := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id}, PackedTemplates: [][]byte{packed}})
		if (err == nil) != (again == nil) {
			t.Errorf("typed: %v, packed: %v", err, again)
		}
		return err
	}
	group := func(change func(*pb.TemplateInstances, *pb.TemplateInstance)) *pb.TemplateInstances {
		in := &pb.TemplateInstance{Key: "i-", Values: []*pb.Value{{Kind: &pb.Value_DoubleValue{DoubleValue: 1}}}, Inputs: []string{"known"}}
		g := &pb.TemplateInstances{TemplateIndex: new(uint32), Instances: []*pb.TemplateInstance{in}}
		change(g, in)
		return g
	}
	submit := func(template *pb.Template, groups ...*pb.TemplateInstances) error {
		_, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id}, Templates: []*pb.Template{template}, TemplateInstances: groups})
		return err
	}
	instance := func(change func(*pb.TemplateInstances, *pb.TemplateInstance)) error {
		return submit(pair(), group(change))
	}
	asIs := func(*pb.TemplateInstances, *pb.TemplateInstance) {}
	if _, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id}, Tasks: []*pb.TaskSpec{{Key: "known", Op: "bench.noop", Hold: true}}}); err != nil {
		t.Fatal(err)
	}
	hole := func(i uint32) *pb.Arguments {
		return &pb.Arguments{Positional: []*pb.Value{{Kind: &pb.Value_Hole{Hole: i}}}}
	}
	deep := &pb.Value{Kind: &pb.Value_Hole{}}
	for range 31 {
		deep = &pb.Value{Kind: &pb.Value_ListValue{ListValue: &pb.ListValue{Values: []*pb.Value{deep}}}}
	}
	for _, test := range []struct {
		name   string
		err    error
		reason string
		words  []string
	}{
		{"no task", define(changed(func(t *pb.Template) { t.Tasks = nil })), "INVALID_FIELD", []string{"templates[0].tasks"}},
		{"unknown input", define(changed(func(t *pb.Template) { t.Inputs = nil })), "INVALID_FIELD", []string{"tasks[0].inputs[0]", `"scaled"`, `"table"`}},
		{"unknown hole", define(changed(func(t *pb.Template) { t.Values = nil })), "INVALID_FIELD", []string{"tasks[0].arguments", `"scaled"`, "hole 0"}},
		{"duplicate key", define(changed(func(t *pb.Template) { t.Tasks[1].Key = "scaled" })), "DUPLICATE_KEY", []string{"scaled"}},
		{"name of a task", define(changed(func(t *pb.Template) { t.Inputs = append(t.Inputs, "sum") })), "INVALID_FIELD", []string{"inputs[1]", `"sum"`}},
		{"unknown op", define(changed(func(t *pb.Template) { t.Tasks[1].Op = "array.matmull" })), "UNKNOWN_OP", []string{"array.matmul"}},
		{"op index", define(changed(func(t *pb.Template) { t.Tasks[1].Op, t.Tasks[1].OpIndex = "", new(uint32) })), "INVALID_FIELD", []string{"tasks[1].op_index", `"sum"`}},
		{"call with holes", define(changed(func(t *pb.Template) { t.Tasks[0].Arguments.Call = &pb.Opaque{Data: []byte("p")} })), "INVALID_FIELD", []string{"tasks[0].arguments", "call"}},
		{"31 levels", define(changed(func(t *pb.Template) { t.Tasks[0].Arguments.Positional[1] = deep })), "INVALID_FIELD", []string{"tasks[0].arguments", "30"}},
		{"too large", define(changed(func(t *pb.Template) { t.Tasks[1].PackedArguments = make([]byte, 2<<20) })), "INVALID_FIELD", []string{"2.0 MiB", "1.0 MiB"}},
		{"bad duration", define(changed(func(t *pb.Template) {
			t.Options = []*pb.TaskOptions{{Timeout: &durationpb.Duration{Seconds: 1, Nanos: -5}}}
		})), "INVALID_FIELD", []string{"options[0].timeout"}},
		{"hole outside of templates", func() error {
			_, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id}, Tasks: []*pb.TaskSpec{{Key: "h", Op: "bench.noop", Arguments: hole(0)}}})
			return err
		}(), "INVALID_FIELD", []string{"tasks[0].arguments", `"h"`, "hole 0"}},

		{"no value", instance(func(_ *pb.TemplateInstances, in *pb.TemplateInstance) { in.Values = nil }), "INVALID_FIELD", []string{`"i-"`, "0 values", "1 holes", "rate"}},
		{"two values", instance(func(_ *pb.TemplateInstances, in *pb.TemplateInstance) { in.Values = append(in.Values, in.Values[0]) }), "INVALID_FIELD", []string{"2 values", "1 holes"}},
		{"type", instance(func(_ *pb.TemplateInstances, in *pb.TemplateInstance) {
			in.Values[0] = &pb.Value{Kind: &pb.Value_StringValue{StringValue: "1"}}
		}), "INVALID_FIELD", []string{"values[0]", `"rate"`, `"scaled"`, "DOUBLE", "STRING"}},
		{"null", instance(func(_ *pb.TemplateInstances, in *pb.TemplateInstance) { in.Values[0] = &pb.Value{} }), "INVALID_FIELD", []string{`"rate"`, "NULL"}},
		{"a value that is an input", instance(func(_ *pb.TemplateInstances, in *pb.TemplateInstance) {
			in.Values[0] = &pb.Value{Kind: &pb.Value_Input{}}
		}), "INVALID_FIELD", []string{`"rate"`, `"scaled"`, "inputs"}},
		{"a packed value that is a hole", instance(func(_ *pb.TemplateInstances, in *pb.TemplateInstance) {
			packed, _ := proto.Marshal(&pb.Value{Kind: &pb.Value_Hole{}})
			in.Values, in.PackedValues = nil, [][]byte{packed}
		}), "INVALID_FIELD", []string{`"rate"`, "holes"}},
		{"garbage", instance(func(_ *pb.TemplateInstances, in *pb.TemplateInstance) {
			in.Values, in.PackedValues = nil, [][]byte{{0xff}}
		}), "INVALID_FIELD", []string{`"rate"`, "no serialised Value"}},
		{"both forms", instance(func(_ *pb.TemplateInstances, in *pb.TemplateInstance) { in.PackedValues = [][]byte{{}} }), "INVALID_FIELD", []string{"packed_values"}},
		{"no input", instance(func(_ *pb.TemplateInstances, in *pb.TemplateInstance) { in.Inputs = nil }), "INVALID_FIELD", []string{"0 inputs", "1 holes", "table"}},
		{"empty input", instance(func(_ *pb.TemplateInstances, in *pb.TemplateInstance) { in.Inputs[0] = "" }), "INVALID_FIELD", []string{"template_instances[0].instances[0].inputs[0]"}},
		{"an input that is not there", instance(func(_ *pb.TemplateInstances, in *pb.TemplateInstance) { in.Inputs[0] = "nowhere" }), "UNKNOWN_INPUT", []string{"i-scaled", "nowhere"}},
		{"the same key twice", submit(pair(), group(asIs), group(asIs)), "DUPLICATE_KEY", []string{"i-scaled"}},
		{"long keys", instance(func(g *pb.TemplateInstances, _ *pb.TemplateInstance) { g.KeyPrefix = strings.Repeat("ä", 1020) }), "INVALID_FIELD", []string{"key_prefix", `"scaled"`, "1024"}},
		{"index", instance(func(g *pb.TemplateInstances, _ *pb.TemplateInstance) { g.TemplateIndex = proto.Uint32(1) }), "INVALID_FIELD", []string{"template_index"}},
		{"short hash", instance(func(g *pb.TemplateInstances, _ *pb.TemplateInstance) {
			g.TemplateIndex, g.TemplateHash = nil, []byte("short")
		}), "INVALID_FIELD", []string{"template_hash", "32 bytes"}},
		{"no template", instance(func(g *pb.TemplateInstances, _ *pb.TemplateInstance) { g.TemplateIndex = nil }), "INVALID_FIELD", []string{"template_instances[0]", "template_hash, template_index"}},
		{"cycle", submit(changed(func(t *pb.Template) { t.Tasks[0].Inputs[0] = "sum" }), group(asIs)), "GRAPH_HAS_CYCLE", []string{"i-scaled", "i-sum"}},
		{"more than a submission", instance(func(g *pb.TemplateInstances, in *pb.TemplateInstance) {
			for i := range 30_000 {
				more := proto.CloneOf(in)
				more.Key = fmt.Sprint(i)
				g.Instances = append(g.Instances, more)
			}
		}), "INVALID_FIELD", []string{"8.0 MiB"}},
		{"another client", func() error {
			_, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: 99}, Templates: []*pb.Template{pair()}, TemplateInstances: []*pb.TemplateInstances{group(asIs)}})
			return err
		}(), "UNKNOWN_CLIENT", nil},
	} {
		t.Run(test.name, func(t *testing.T) { wantReason(t, test.err, test.reason, test.words...) })
	}
	// The body of a task counts, whichever way it comes.
	if err := instance(asIs); err != nil {
		t.Fatal(err)
	}
	wantReason(t, instance(func(_ *pb.TemplateInstances, in *pb.TemplateInstance) {
		in.Values[0] = &pb.Value{Kind: &pb.Value_DoubleValue{DoubleValue: 2}}
	}), "KEY_CONFLICT", "i-scaled")
	tasks, err := c.client.ListTasks(ctx, &pb.ListTasksRequest{})
	if err != nil || len(tasks.GetTasks()) != 3 {
		t.Errorf("tasks after refused submissions: %v, %v", tasks, err)
	}
}
