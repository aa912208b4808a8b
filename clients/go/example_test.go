package millrace_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	millrace "github.com/millrace/millrace/clients/go"
	"github.com/millrace/millrace/clients/go/tables"
)

// The examples find their cluster by MILLRACE_ADDRESS and MILLRACE_TOKEN,
// or by MILLRACE_SCHEDULER_FILE; `millrace up` prints both.
func Example() {
	ctx := context.Background()
	c, err := millrace.Dial(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = c.Close() }()

	f, err := c.Submit(ctx, millrace.Native("array.arange"), millrace.Args(0, 10, 1))
	if err != nil {
		log.Fatal(err)
	}
	sum, err := c.Submit(ctx, millrace.Native("array.reduce"), millrace.Args(f).With("op", "sum"))
	if err != nil {
		log.Fatal(err)
	}
	v, err := millrace.Get[float64](ctx, sum)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(v)
	// Output: 45
}

// Python functions are called by import path; any worker with a Python executor runs them.
func ExamplePython() {
	ctx := context.Background()
	c, err := millrace.Dial(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = c.Close() }()

	f, err := c.Submit(ctx, millrace.Python("statistics:fmean"), millrace.Args([]float64{1, 2, 6}),
		millrace.WithRetries(2), millrace.WithTimeout(time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	mean, err := millrace.Get[float64](ctx, f)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(mean)
}

func ExampleClient_NewGraph() {
	ctx := context.Background()
	c, err := millrace.Dial(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = c.Close() }()

	g := c.NewGraph("sum of squares")
	var parts []any
	expression := "x0"
	for i := range 4 {
		part := g.Add("", millrace.Native("array.arange"), millrace.Args(10*i, 10*i+10, 1))
		square := g.Add("", millrace.Native("array.map"), millrace.Args("x0*x0", part))
		parts = append(parts, g.Add("", millrace.Native("array.reduce"), millrace.Args(square).With("op", "sum")))
		if i > 0 {
			expression += fmt.Sprintf("+x%d", i)
		}
	}
	total := g.Add("", millrace.Native("array.map"), millrace.Args(append([]any{expression}, parts...)...), millrace.Hold())
	run, err := g.Submit(ctx)
	if err != nil {
		log.Fatal(err)
	}
	sum, err := millrace.Get[int](ctx, run.Future(total))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(run.Tasks, "tasks:", sum)
	// Output: 13 tasks: 20540
}

func ExampleClient_Scatter() {
	ctx := context.Background()
	c, err := millrace.Dial(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = c.Close() }()

	matrix, err := millrace.FromSlice([]float64{1, 2, 3, 4}, 2, 2)
	if err != nil {
		log.Fatal(err)
	}
	m, err := c.Scatter(ctx, matrix)
	if err != nil {
		log.Fatal(err)
	}
	square, err := c.Submit(ctx, millrace.Native("array.matmul"), millrace.Args(m, m))
	if err != nil {
		log.Fatal(err)
	}
	a, err := square.Array(ctx)
	if err != nil {
		log.Fatal(err)
	}
	elements, err := millrace.Slice[float64](a)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(a, elements)
	// Output: float64[2, 2] [7 10 15 22]
}

// A task that needs one part of a list gets only the bytes of this part.
func ExampleFuture_Item() {
	ctx := context.Background()
	c, err := millrace.Dial(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = c.Close() }()

	matrix, err := millrace.FromSlice([]float64{3, 0, 0, 4}, 2, 2)
	if err != nil {
		log.Fatal(err)
	}
	svd, err := c.Submit(ctx, millrace.Native("array.svd"), millrace.Args(matrix))
	if err != nil {
		log.Fatal(err)
	}
	// The result is the list [U, S, V].
	sum, err := c.Submit(ctx, millrace.Native("array.reduce"), millrace.Args(svd.Item(1, 3)).With("op", "sum"))
	if err != nil {
		log.Fatal(err)
	}
	v, err := millrace.Get[float64](ctx, sum)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(v)
	// Output: 7
}

func ExampleGather() {
	ctx := context.Background()
	c, err := millrace.Dial(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = c.Close() }()

	calls := func(yield func(millrace.Arguments) bool) {
		for i := range 5 {
			if !yield(millrace.Args("x0*x0+1", i)) {
				return
			}
		}
	}
	futures, err := c.Map(ctx, millrace.Native("array.map"), calls)
	if err != nil {
		log.Fatal(err)
	}
	results, err := millrace.Gather[int](ctx, futures...)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(results)
	c.Release(futures...)
	// Output: [1 2 5 10 17]
}

func ExampleTaskError() {
	ctx := context.Background()
	c, err := millrace.Dial(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = c.Close() }()

	f, err := c.Submit(ctx, millrace.Native("bench.fail"), millrace.Args("as asked"), millrace.WithKey("doomed"))
	if err != nil {
		log.Fatal(err)
	}
	err = f.Wait(ctx)
	var failed *millrace.TaskError
	if errors.As(err, &failed) {
		fmt.Println(failed.Key, failed.Worker, errors.Is(err, millrace.ErrTaskFailed), errors.Is(err, millrace.ErrTaskCancelled))
	}
	// Output: doomed host-0 true false
}

// A template is a graph with holes: it is defined once, and each run sends only what fills them.
func ExampleClient_NewTemplate() {
	ctx := context.Background()
	c, err := millrace.Dial(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = c.Close() }()

	b := c.NewTemplate("squares")
	n := b.Value("n", millrace.TypeInt)
	numbers := b.Add("numbers", millrace.Native("array.arange"), millrace.Args(0, n, 1))
	squares := b.Add("squares", millrace.Native("array.map"), millrace.Args("x0*x0", numbers))
	b.Add("sum", millrace.Native("array.reduce"), millrace.Args(squares).With("op", "sum"), millrace.Hold())
	template, err := b.Template()
	if err != nil {
		log.Fatal(err)
	}
	run, err := template.Run(ctx, millrace.Instance{Values: []any{3}}, millrace.Instance{Values: []any{6}})
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range run.Futures() {
		sum, err := millrace.Get[float64](ctx, f)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(sum)
	}
	// Output:
	// 5
	// 55
}

// A table of Arrow is scattered, an operation selects rows of it, and the result is read in place.
func ExampleTable() {
	ctx := context.Background()
	c, err := millrace.Dial(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = c.Close() }()

	schema := arrow.NewSchema([]arrow.Field{{Name: "name", Type: arrow.BinaryTypes.String}, {Name: "n", Type: arrow.PrimitiveTypes.Int64}}, nil)
	rows := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer rows.Release()
	rows.Field(0).(*array.StringBuilder).AppendValues([]string{"a", "b", "c", "d"}, nil)
	rows.Field(1).(*array.Int64Builder).AppendValues([]int64{1, 2, 3, 4}, nil)

	t, err := tables.New(rows.NewRecordBatch())
	if err != nil {
		log.Fatal(err)
	}
	data, err := c.Scatter(ctx, t)
	if err != nil {
		log.Fatal(err)
	}
	part, err := c.Submit(ctx, millrace.Native("table.slice"), millrace.Args(data, -3, 2))
	if err != nil {
		log.Fatal(err)
	}
	got, err := millrace.Get[millrace.Table](ctx, part)
	if err != nil {
		log.Fatal(err)
	}
	batch, err := tables.Read(got)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(got, batch.Column(0), batch.Column(1))
	// Output: table[2 rows, 2 columns] ["b" "c"] [2 3]
}
