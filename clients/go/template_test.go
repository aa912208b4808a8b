package millrace

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// dialReal connects to the cluster of the examples.
func dialReal(t *testing.T, options ...Option) *Client {
	t.Helper()
	c, err := Dial(soon(t), append([]Option{WithNamespace(strings.ReplaceAll(t.Name(), "/", "-"))}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// shape is what a GraphBuilder and a TemplateBuilder have in common.
type shape interface {
	Add(key string, op Op, args Arguments, options ...TaskOption) Key
}

// randomShape adds tasks that put lists together out of values and other tasks.
func randomShape(r *rand.Rand, to shape, prefix string, values []any, inputs []Key) {
	names := slices.Clone(inputs)
	for i := range 3 + r.IntN(12) {
		var args []any
		for range 1 + r.IntN(3) {
			switch r.IntN(4) {
			case 0:
				args = append(args, values[r.IntN(len(values))])
			case 1:
				args = append(args, []any{i, values[r.IntN(len(values))], map[string]any{"b": values[r.IntN(len(values))], "a": "x"}})
			case 2:
				args = append(args, names[r.IntN(len(names))])
			default:
				args = append(args, float64(i))
			}
		}
		var options []TaskOption
		if r.IntN(2) == 0 || i == 0 {
			options = append(options, Hold())
		}
		if r.IntN(3) == 0 {
			options = append(options, WithRetries(2))
		}
		names = append(names, to.Add(fmt.Sprint(prefix, "t", i), Native("core.list"), Args(args...), options...))
	}
}

// TestTemplatesComputeWhatGraphsCompute: the same random graphs, plainly and as instances of a
// template, have the same results on a real cluster.
func TestTemplatesComputeWhatGraphsCompute(t *testing.T) {
	c := dialReal(t)
	ctx := soon(t)
	in, err := c.Submit(ctx, Native("core.list"), Args("outside"))
	if err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(10) {
		given := [][]any{{1, "ä", nil}, {2.5, []any{true, nil}, []byte("b")}, {map[string]any{"k": 1}, complex(1, 2), -3}}
		b := c.NewTemplate(fmt.Sprint("random ", seed))
		holes := []any{b.Value("x", TypeAny), b.Value("y", TypeAny), b.Value("z", TypeAny)}
		randomShape(rand.New(rand.NewPCG(seed, 0)), b, "", holes, []Key{b.Input("in")})
		template, err := b.Template()
		if err != nil {
			t.Fatal(err)
		}
		var instances []Instance
		for i := range given {
			instance := Instance{Values: given[i], Inputs: []any{in}}
			if seed%2 == 1 && i > 0 {
				instance.Key, instance.Inputs[0] = fmt.Sprint("own", seed, i, "/"), Key(in.Key())
			}
			instances = append(instances, instance)
		}
		run, err := template.Run(ctx, instances...)
		if err != nil {
			t.Fatal(err)
		}
		if run.Tasks != len(given)*template.Len() || run.ID == 0 {
			t.Errorf("seed %d: %+v", seed, run)
		}
		for i := range given {
			g := c.NewGraph("plain")
			randomShape(rand.New(rand.NewPCG(seed, 0)), g, fmt.Sprint("plain", seed, i), given[i], []Key{Key(in.Key())})
			plain, err := g.Submit(ctx)
			if err != nil {
				t.Fatal(err)
			}
			got := run.Instance(i)
			if len(got) != len(plain.Futures()) {
				t.Fatalf("seed %d: %d futures, want %d", seed, len(got), len(plain.Futures()))
			}
			for k, f := range plain.Futures() {
				want, err := f.Value(ctx)
				if err != nil {
					t.Fatal(err)
				}
				if v, err := got[k].Value(ctx); err != nil || fmt.Sprint(v) != fmt.Sprint(want) {
					t.Fatalf("seed %d, %s: %v (%v), want %v", seed, got[k], v, err, want)
				}
				if i > 0 && seed%2 == 1 && !strings.HasPrefix(got[k].Key(), instances[i].Key+"t") {
					t.Errorf("key %q of instance %q", got[k].Key(), instances[i].Key)
				}
			}
			plain.Release()
		}
		if err := run.Wait(ctx); err != nil {
			t.Error(err)
		}
		run.Release()
	}
}

// TestATemplateIsSentAgainIfTheSchedulerLostIt: other templates displace it.
func TestATemplateIsSentAgainIfTheSchedulerLostIt(t *testing.T) {
	c := dialReal(t)
	ctx := soon(t)
	b := c.NewTemplate("lost")
	b.Add("t", Native("core.list"), Args(b.Value("x", TypeInt)), Hold())
	template, err := b.Template()
	if err != nil {
		t.Fatal(err)
	}
	for round := range 2 {
		run, err := template.Run(ctx, Instance{Values: []any{round}}, Instance{Values: []any{7}})
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []int{round, 7} {
			if got, err := Get[[]int](ctx, run.Instance(i)[0]); err != nil || !slices.Equal(got, []int{want}) {
				t.Errorf("round %d, instance %d: %v, %v", round, i, got, err)
			}
		}
		request := &millracev1.SubmitRequest{Header: &millracev1.SubmitHeader{ClientId: c.ID()}}
		for i := range 1000 {
			other := &millracev1.Template{Tasks: []*millracev1.TaskSpec{{Key: fmt.Sprint(round, "-", i), Op: "bench.noop"}}}
			request.Templates = append(request.Templates, other)
		}
		if _, err := c.Scheduler().SubmitBatch(ctx, request); err != nil {
			t.Fatal(err)
		}
		probe := &millracev1.SubmitRequest{Header: request.GetHeader(), TemplateInstances: []*millracev1.TemplateInstances{{TemplateHash: template.hash[:], Instances: []*millracev1.TemplateInstance{{}}}}}
		if out, err := c.Scheduler().SubmitBatch(ctx, probe); err != nil || len(out.GetMissingTemplates()) != 1 {
			t.Fatalf("the template is still known: %v, %v", out, err)
		}
	}
}

// TestManyInstancesTravelInChunks: the message is larger than a chunk.
func TestManyInstancesTravelInChunks(t *testing.T) {
	c := dialReal(t)
	ctx := soon(t)
	b := c.NewTemplate("wide")
	b.Add("t", Native("bench.noop"), Args(b.Value("x", TypeString)), Hold())
	template, err := b.Template()
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 1<<20)
	instances := make([]Instance, 9)
	for i := range instances {
		instances[i].Values = []any{long}
	}
	run, err := template.Run(ctx, instances...)
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Wait(ctx); err != nil || len(run.Futures()) != len(instances) {
		t.Errorf("%d futures, %v", len(run.Futures()), err)
	}
}

// The library reads a template that the client has encoded by hand.
func TestTheEncodedTemplateIsOneOfTheAPI(t *testing.T) {
	c := newFake(t).dial(t)
	b := c.NewTemplate("api")
	x, in := b.Value("x", TypeDouble), b.Input("in")
	first := b.Add("", Native("array.map"), Args("x0*2", in).With("scale", []any{x}), WithRetries(3))
	b.Add("end", Python("m:f"), Args(first, first.Item(1, 3)), Hold())
	template, err := b.Template()
	if err != nil {
		t.Fatal(err)
	}
	got := &millracev1.Template{}
	if err := proto.Unmarshal(template.packed, got); err != nil {
		t.Fatal(err)
	}
	packed, err := proto.Marshal(&millracev1.Arguments{Positional: []*millracev1.Value{{Kind: &millracev1.Value_Input{}}, {Kind: &millracev1.Value_Input{Input: 1}}}})
	if err != nil {
		t.Fatal(err)
	}
	want := &millracev1.Template{
		Ops:     []*millracev1.Op{{Kind: millracev1.OpKind_OP_KIND_NATIVE, Name: "array.map"}, {Kind: millracev1.OpKind_OP_KIND_PYTHON_IMPORT, Name: "m:f"}},
		Options: []*millracev1.TaskOptions{{MaxRetries: 3}},
		Tasks: []*millracev1.TaskSpec{
			{Key: "0", OpIndex: new(uint32), Inputs: []string{"in"}, OptionsIndex: 1, Arguments: &millracev1.Arguments{
				Positional: []*millracev1.Value{{Kind: &millracev1.Value_StringValue{StringValue: "x0*2"}}, {Kind: &millracev1.Value_Input{}}},
				Named: map[string]*millracev1.Value{"scale": {Kind: &millracev1.Value_ListValue{ListValue: &millracev1.ListValue{
					Values: []*millracev1.Value{{Kind: &millracev1.Value_Hole{}}}}}}},
			}},
			{Key: "end", OpIndex: proto.Uint32(1), Inputs: []string{"0", "0"}, PackedArguments: packed, Hold: true, Items: []*millracev1.ItemInput{{Input: 1, Item: 1, Count: 3}}},
		},
		Values: []*millracev1.TemplateValue{{Name: "x", Type: TypeDouble}},
		Inputs: []string{"in"},
	}
	if !proto.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestTemplateMistakes(t *testing.T) {
	c := dialReal(t)
	ctx := soon(t)
	future, err := c.Submit(ctx, Native("bench.noop"), Args())
	if err != nil {
		t.Fatal(err)
	}
	other := c.NewTemplate("other").Value("x", TypeAny)
	for name, build := range map[string]func(*TemplateBuilder){
		"no tasks":              func(*TemplateBuilder) {},
		"keeps no result":       func(b *TemplateBuilder) { b.Add("t", Native("bench.noop"), Args()) },
		"add an Input":          func(b *TemplateBuilder) { b.Add("t", Native("bench.noop"), Args(future), Hold()) },
		"template that made it": func(b *TemplateBuilder) { b.Add("t", Native("bench.noop"), Args(other), Hold()) },
		"type chan int":         func(b *TemplateBuilder) { b.Add("t", Native("bench.noop"), Args(make(chan int)), Hold()) },
	} {
		b := c.NewTemplate("t")
		build(b)
		if _, err := b.Template(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := c.Submit(ctx, Native("bench.noop"), Args(other)); err == nil || !strings.Contains(err.Error(), "Hole") {
		t.Errorf("a hole outside of its template: %v", err)
	}
	b := c.NewTemplate("good")
	b.Add("t", Native("bench.noop"), Args(b.Value("x", TypeInt), b.Input("in")), Hold())
	template, err := b.Template()
	if err != nil {
		t.Fatal(err)
	}
	good := Instance{Values: []any{1}, Inputs: []any{future}}
	for words, instance := range map[string]Instance{
		"0 values":     {Inputs: good.Inputs},
		"0 inputs":     {Values: good.Values},
		"a *Future or": {Values: good.Values, Inputs: []any{1}},
		"nil *Future":  {Values: good.Values, Inputs: []any{(*Future)(nil)}},
		"not allowed":  {Values: []any{future}, Inputs: good.Inputs},
	} {
		if _, err := template.Run(ctx, good, instance); err == nil || !strings.Contains(err.Error(), words) || !strings.Contains(err.Error(), "instance 1") {
			t.Errorf("%s: %v", words, err)
		}
	}
	if _, err := template.Run(ctx, good, Instance{Values: []any{"text"}, Inputs: good.Inputs}); !errors.Is(err, ErrInvalidField) || !strings.Contains(err.Error(), `hole "x" of task "t"`) {
		t.Errorf("a value of another type: %v", err)
	}
	if _, err := template.Run(ctx, Instance{Values: good.Values, Inputs: []any{Key("nowhere")}}); !errors.Is(err, ErrUnknownInput) {
		t.Errorf("an unknown input: %v", err)
	}
	if run, err := template.Run(ctx); err != nil || len(run.Futures()) != 0 {
		t.Errorf("no instance: %v, %v", run, err)
	}
	if run, err := template.Run(ctx, good); err != nil || run.Wait(ctx) != nil {
		t.Errorf("a good one: %v, %v", run, err)
	}
}
