package bench

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	millrace "github.com/millrace/millrace/clients/go"
)

const (
	stencilWidth  = 64
	randomWindow  = 1000
	randomInputs  = 3
	randomSeed    = 1
	leastTreeSize = 3
)

// shapes build a graph of about n tasks of which the last ones are held. Keys begin with prefix.
var shapes = map[string]func(g *millrace.GraphBuilder, prefix string, n int){
	"merge":   merge,
	"tree":    tree,
	"stencil": stencil,
	"chain":   chain,
	"random":  random,
	"fanout":  fanout,
}

// Shapes returns the names of the graphs that Graph knows.
func Shapes() []string { return slices.Sorted(maps.Keys(shapes)) }

// Graph measures a graph with dependencies: building it, submitting it, and receiving the end of
// its last tasks.
func Graph(ctx context.Context, shape string, c TasksConfig) (TasksResult, error) {
	build, ok := shapes[shape]
	if !ok {
		return TasksResult{}, fmt.Errorf("bench graph: shape %q; one of %s", shape, strings.Join(Shapes(), ", "))
	}
	round := 0
	sizes := map[int]int{}
	out, err := measure(ctx, "graph", c, func(ctx context.Context, client *millrace.Client, n int) error {
		round++
		g := client.NewGraph(shape)
		build(g, "g"+strconv.Itoa(round)+"-", n)
		sizes[n] = g.Len()
		run, err := g.Submit(ctx)
		if err != nil {
			return err
		}
		if err := run.Wait(ctx); err != nil {
			return err
		}
		run.Release()
		return nil
	})
	if err != nil {
		return out, err
	}
	// The shape decides the exact number of tasks.
	ratio := float64(c.Tasks) / float64(sizes[c.Tasks])
	out.Tasks, out.Shape = sizes[c.Tasks], shape
	out.TasksPerSecond /= ratio
	out.Spread.Min /= ratio
	out.Spread.Max /= ratio
	out.SchedulerCPUPerTask *= ratio
	out.ClientCPUPerTask *= ratio
	out.PerTask = Micros(out.Seconds * 1e6 / float64(out.Tasks))
	return out, nil
}

func key(prefix string, i int) string { return prefix + strconv.Itoa(i) }

// merge makes n-1 independent tasks and one that needs all of them.
func merge(g *millrace.GraphBuilder, prefix string, n int) {
	all := make([]string, max(n-1, 1))
	for i := range all {
		all[i] = key(prefix, i)
		g.AddCall(all[i], noop, nil, false)
	}
	g.AddCall(prefix+"end", noop, all, true)
}

// tree makes a binary reduction.
func tree(g *millrace.GraphBuilder, prefix string, n int) {
	level := make([]string, (max(n, leastTreeSize)+1)/2)
	next := 0
	for i := range level {
		level[i] = key(prefix, next)
		next++
		g.AddCall(level[i], noop, nil, len(level) == 1)
	}
	for len(level) > 1 {
		var above []string
		for i := 0; i < len(level); i += 2 {
			if i+1 == len(level) {
				above = append(above, level[i])
				continue
			}
			k := key(prefix, next)
			next++
			g.AddCall(k, noop, level[i:i+2], len(level) == 2)
			above = append(above, k)
		}
		level = above
	}
}

// stencil makes steps of 64 tasks. Each task needs itself and its neighbours of the step before.
func stencil(g *millrace.GraphBuilder, prefix string, n int) {
	steps := max(n/stencilWidth, 1)
	last := make([]string, stencilWidth)
	for step := range steps {
		now := make([]string, stencilWidth)
		for i := range now {
			var inputs []string
			if step > 0 {
				inputs = last[max(i-1, 0):min(i+2, stencilWidth)]
			}
			now[i] = key(prefix, step*stencilWidth+i)
			g.AddCall(now[i], noop, inputs, step == steps-1)
		}
		last = now
	}
}

// chain makes tasks that need the one before each.
func chain(g *millrace.GraphBuilder, prefix string, n int) {
	var last []string
	for i := range n {
		k := key(prefix, i)
		g.AddCall(k, noop, last, i == n-1)
		last = []string{k}
	}
}

// random makes tasks that need up to 3 of the 1000 tasks before each. The tasks that no other one
// needs are held.
func random(g *millrace.GraphBuilder, prefix string, n int) {
	r := rand.New(rand.NewPCG(randomSeed, uint64(n)))
	inputs := make([][]string, n)
	needed := make([]bool, n)
	for i := 1; i < n; i++ {
		seen := map[int]bool{}
		for range 1 + r.IntN(randomInputs) {
			j := i - 1 - r.IntN(min(i, randomWindow))
			if !seen[j] {
				seen[j], needed[j] = true, true
				inputs[i] = append(inputs[i], key(prefix, j))
			}
		}
	}
	for i := range n {
		g.AddCall(key(prefix, i), noop, inputs[i], !needed[i])
	}
}

// fanout makes one task that n-1 others need.
func fanout(g *millrace.GraphBuilder, prefix string, n int) {
	root := []string{prefix + "root"}
	g.AddCall(root[0], noop, nil, n == 1)
	for i := range n - 1 {
		g.AddCall(key(prefix, i), noop, root, true)
	}
}
