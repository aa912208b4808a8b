// Command kmeans is an example: k-means (Lloyd's iterations) on generated points. It computes them
// by native operations, and on GPUs also by one CUDA kernel for a whole pass over the points.
//
//	MILLRACE_SCHEDULER_FILE=… kmeans [-points N] [-dimensions 16] [-clusters 32] [-iterations 10]
//
// The points lie in chunks on all workers. Centres and sums stay in the cluster during all
// iterations; the program fetches only the last ones.
//
// Point i belongs to cluster i mod k. It lies near the centre of that cluster and far from all
// others, so the right answer is known: the mean of the points of each cluster. If the result is
// that answer, the last line of the output starts with "ok".
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

//go:embed kernel.cu
var kernel string

// tolerance is the largest error of a centre's coordinate. Coordinates are in [0, 10); float32 has
// a precision of 24 bits, of which sums lose some.
const tolerance = 1e-4

func main() {
	var p problem
	flag.IntVar(&p.points, "points", 0, "number of points; default 8,000,000 on GPUs, 40,000 elsewhere")
	flag.IntVar(&p.dimensions, "dimensions", 16, "coordinates of each point")
	flag.IntVar(&p.clusters, "clusters", 32, "k; a divisor of the points of a chunk")
	flag.IntVar(&p.iterations, "iterations", 10, "passes over the points")
	flag.IntVar(&p.chunks, "chunks", 0, "number of chunks of the points; default 4 for each worker")
	flag.StringVar(&p.ways, "ways", "kernel,native", "the ways to compute, separated by commas; kernel needs GPUs")
	flag.IntVar(&p.repetitions, "repetitions", 3, "timed runs of each way, after one run that is not timed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, p); err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}

type problem struct {
	points, dimensions, clusters, iterations, chunks, repetitions int

	ways string
}

func run(ctx context.Context, p problem) (err error) {
	client, err := millrace.Dial(ctx, millrace.WithName("kmeans"))
	if err != nil {
		return fmt.Errorf("%w: is a cluster running (millrace up), and does MILLRACE_SCHEDULER_FILE name its file?", err)
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	workers, err := client.Workers(ctx, millracev1.WorkerState_WORKER_STATE_ACTIVE)
	if err != nil {
		return err
	}
	if len(workers) == 0 {
		return errors.New("the cluster has no active worker")
	}
	c := &cluster{problem: p, client: client, gpus: true}
	for _, w := range workers {
		c.names = append(c.names, w.GetName())
		c.gpus = c.gpus && w.GetDevice() == millracev1.DeviceKind_DEVICE_KIND_CUDA
	}
	slices.Sort(c.names)
	if c.points == 0 {
		if c.points = 40_000; c.gpus {
			c.points = 8_000_000
		}
	}
	if c.chunks == 0 {
		c.chunks = 4 * len(c.names)
	}
	if c.clusters < 1 || c.dimensions < 1 || c.iterations < 1 || c.repetitions < 1 || c.chunks < 1 {
		return errors.New("-clusters, -dimensions, -iterations, -repetitions and -chunks are at least 1")
	}
	if c.batches = 1; c.points/c.chunks > 1<<16 {
		c.batches = 256
	}
	// Each chunk has equally many points of each cluster.
	if c.rows = c.points / c.chunks / c.clusters / c.batches * c.clusters * c.batches; c.rows == 0 {
		return fmt.Errorf("-points %d: at least one for each of %d clusters in %d chunks", c.points, c.clusters, c.chunks)
	}
	c.points = c.rows * c.chunks
	return c.measure(ctx)
}

// cluster builds graphs. It keeps the first error of a submission, and submits nothing after it.
type cluster struct {
	problem
	client *millrace.Client
	names  []string
	gpus   bool
	rows   int // of each chunk
	// batches divide the rows of a chunk.
	batches int
	made    []*millrace.Future
	err     error
}

func (c *cluster) op(ctx context.Context, name string, args millrace.Arguments, options ...millrace.TaskOption) *millrace.Future {
	if c.err != nil {
		return nil
	}
	f, err := c.client.Submit(ctx, millrace.Native(name), args, options...)
	if err != nil {
		c.err = err
		return nil
	}
	c.made = append(c.made, f)
	return f
}

// release releases all results except those in but.
func (c *cluster) release(but ...*millrace.Future) {
	kept := c.made[:0]
	for _, f := range c.made {
		if slices.Contains(but, f) {
			kept = append(kept, f)
			continue
		}
		f.Release()
	}
	c.made = kept
}

func (c *cluster) measure(ctx context.Context) error {
	fmt.Printf("k-means of %d points in %d dimensions (%.3g GB of float32), %d clusters, %d iterations, %d chunks on %d workers\n",
		c.points, c.dimensions, float64(4*c.points*c.dimensions)/1e9, c.clusters, c.iterations, c.chunks, len(c.names))
	chunks, means, err := c.generate(ctx)
	if err != nil {
		return err
	}
	// One point of each cluster.
	first := c.op(ctx, "array.slice", millrace.Args(chunks[0]).With("stop", c.clusters))
	ways := []struct {
		flag, name string
		step       func(context.Context, *millrace.Future, *millrace.Future) *millrace.Future
	}{{"kernel", "CUDA kernel", c.kernelStep}, {"native", "native ops", c.nativeStep}}
	if !c.gpus {
		ways = ways[1:] // other workers have no such op
	}
	worst := 0.0
	for _, way := range ways {
		if !slices.Contains(strings.Split(c.ways, ","), way.flag) {
			continue
		}
		var times []time.Duration
		for range c.repetitions + 1 {
			began := time.Now()
			sums := make([]*millrace.Future, c.iterations)
			centres := first
			for i := range sums {
				sums[i], centres = c.iterate(ctx, chunks, centres, way.step)
			}
			difference, err := c.finish(ctx, sums, centres, means)
			times = append(times, time.Since(began))
			if err != nil {
				return fmt.Errorf("%s: %w", way.name, err)
			}
			if !(difference <= tolerance) {
				return fmt.Errorf("%s: a centre differs from the mean of its points by %.2g, more than %.0e", way.name, difference, tolerance)
			}
			worst = max(worst, difference)
			c.release(append(slices.Clone(chunks), first)...)
		}
		c.report(way.name, times, worst)
	}
	fmt.Printf("ok: largest difference of a centre to the mean of its points %.1e\n", worst)
	return nil
}

func (c *cluster) report(name string, times []time.Duration, difference float64) {
	first, warm := times[0], slices.Sorted(slices.Values(times[1:]))
	median := warm[len(warm)/2].Seconds()
	work := float64(c.points) * float64(c.iterations)
	fmt.Printf("%-12s %8.4f s [%.4f-%.4f], first %.3f, %.2f ms an iteration, %.1f GB/s, %.0f GFLOPS, differs by %.1e\n", name, median,
		warm[0].Seconds(), warm[len(warm)-1].Seconds(), first.Seconds(), 1e3*median/float64(c.iterations),
		work*float64(4*c.dimensions)/median/1e9, work*float64(3*c.clusters*c.dimensions)/median/1e9, difference)
}

// generate makes the points, and the means that are to be found.
func (c *cluster) generate(ctx context.Context) (chunks []*millrace.Future, means []float32, err error) {
	k, d := c.clusters, c.dimensions
	truth := c.op(ctx, "array.random", millrace.Args([]int{k, d}).With("seed", 1).With("dtype", "float32").With("high", 10.0))
	var parts []any
	for i := range c.chunks {
		noise := c.op(ctx, "array.random", millrace.Args([]int{c.rows / k, k, d}).With("seed", 2).With("dtype", "float32").
			With("distribution", "normal").With("offset", i*c.rows*d), millrace.WithWorkers(c.names[i*len(c.names)/c.chunks]))
		points := c.op(ctx, "array.map", millrace.Args("x0 * 0.25 + x1", noise, truth))
		chunks = append(chunks, c.op(ctx, "array.reshape", millrace.Args(points, []int{c.rows, d})))
		parts = append(parts, c.op(ctx, "array.reduce", millrace.Args(points, "sum").With("axes", []int{0}).With("dtype", "float64")))
	}
	mean := c.op(ctx, "array.map", millrace.Args(append([]any{fmt.Sprintf("(%s) / %d.0", sum(c.chunks), c.points/k)}, parts...)...).With("dtype", "float32"))
	if c.err == nil {
		means, err = c.floats(ctx, mean)
	}
	err = errors.Join(c.err, err)
	if err == nil {
		err = millrace.WaitAll(ctx, chunks...)
	}
	c.release(chunks...)
	return chunks, means, err
}

// sum is the expression that adds so many inputs.
func sum(n int) string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprint("x", i)
	}
	return strings.Join(names, " + ")
}

// iterate submits one pass over all points. step returns one matrix with a row for each centre: the
// sums of its points' coordinates, then the number of its points.
func (c *cluster) iterate(ctx context.Context, chunks []*millrace.Future, centres *millrace.Future,
	step func(context.Context, *millrace.Future, *millrace.Future) *millrace.Future,
) (sums, next *millrace.Future) {
	var parts []any
	for _, chunk := range chunks {
		parts = append(parts, step(ctx, chunk, centres))
	}
	k, d := c.clusters, c.dimensions
	sums = c.op(ctx, "array.map", millrace.Args(append([]any{sum(len(parts))}, parts...)...))
	totals := c.op(ctx, "array.slice", millrace.Args(sums).With("stop", []int{k, d}))
	counts := c.op(ctx, "array.slice", millrace.Args(sums).With("start", []int{0, d}).With("stop", []int{k, d + 1}))
	// A centre without points stays where it is.
	next = c.op(ctx, "array.map", millrace.Args("where(x1 > 0, x0 / maximum(x1, 1), x2)", totals, counts, centres).With("dtype", "float32"))
	return sums, next
}

// nativeStep assigns each point to the nearest centre and sums the points of each centre. It
// compares |x - c|² - |x|²; the second term is the same for all centres. A column of ones beside
// the points counts them. The sums are computed in batches, because matrix products divide their
// work by rows and columns of the result, and this result has few of either.
func (c *cluster) nativeStep(ctx context.Context, points, centres *millrace.Future) *millrace.Future {
	squares := c.op(ctx, "array.reduce", millrace.Args(c.op(ctx, "array.map", millrace.Args("x0 * x0", centres)), "sum").With("axes", []int{1}))
	products := c.op(ctx, "array.matmul", millrace.Args(points, c.op(ctx, "array.transpose", millrace.Args(centres))))
	scores := c.op(ctx, "array.map", millrace.Args("x1 - 2 * x0", products, squares))
	least := c.op(ctx, "array.reduce", millrace.Args(scores, "min").With("axes", []int{1}).With("keepdims", true))
	member := c.op(ctx, "array.map", millrace.Args("x0 == x1", scores, least).With("dtype", "float32"))
	ones := c.op(ctx, "array.full", millrace.Args([]int{c.rows, 1}, 1.0).With("dtype", "float32"))
	counted := c.op(ctx, "array.concat", millrace.Args(points, ones).With("axis", 1))
	batched := func(f *millrace.Future, columns int) *millrace.Future {
		return c.op(ctx, "array.reshape", millrace.Args(f, []int{c.batches, c.rows / c.batches, columns}))
	}
	members := c.op(ctx, "array.transpose", millrace.Args(batched(member, c.clusters)).With("axes", []int{0, 2, 1}))
	sums := c.op(ctx, "array.matmul", millrace.Args(members, batched(counted, c.dimensions+1)))
	return c.op(ctx, "array.reduce", millrace.Args(sums, "sum").With("axes", []int{0}).With("dtype", "float64"))
}

// threads of a block, and how many blocks each GPU is given.
const (
	threads = 256
	blocks  = 528
)

func (c *cluster) kernelStep(ctx context.Context, points, centres *millrace.Future) *millrace.Future {
	k, d := c.clusters, c.dimensions
	number := func(n int) map[string]any { return map[string]any{"dtype": "int32", "value": n} }
	outputs := []any{map[string]any{"dtype": "float64", "shape": []int{k, d + 1}}}
	shared := 8*k*(d+1) + 4*k*d
	return c.op(ctx, "cuda.kernel", millrace.Args(kernel, "assign", []int{min(blocks, (c.rows+threads-1)/threads)}, []int{threads}, outputs,
		points, centres, c.rows, number(d), number(k)).With("shared", shared).With("zero", true))
}

// finish waits for all iterations, and compares the centres with what is right.
func (c *cluster) finish(ctx context.Context, sums []*millrace.Future, centres *millrace.Future, means []float32) (float64, error) {
	if c.err != nil {
		return 0, c.err
	}
	show := term.IsTerminal(int(os.Stderr.Fd()))
	for i, f := range sums {
		if show {
			fmt.Fprintf(os.Stderr, "\riteration %d/%d", i, len(sums))
		}
		if err := f.Wait(ctx); err != nil {
			return 0, err
		}
	}
	if show {
		fmt.Fprint(os.Stderr, "\r                    \r")
	}
	found, err := c.floats(ctx, centres)
	if err != nil {
		return 0, err
	}
	worst := 0.0
	for i := range found {
		worst = max(worst, math.Abs(float64(found[i])-float64(means[i])))
	}
	return worst, nil
}

func (c *cluster) floats(ctx context.Context, f *millrace.Future) ([]float32, error) {
	a, err := f.Array(ctx)
	if err != nil {
		return nil, err
	}
	return millrace.Slice[float32](a)
}
