package ops

import (
	"context"
	"encoding/binary"
	"fmt"
)

// A point of a Task Bench graph is the task at (step, point). It checks that each input is the
// output of the expected point, computes for a while and fills its own output with its step and
// point. See Slaughter et al., "Task Bench: a parameterized benchmark for evaluating parallel
// runtime performance", SC20; this is its kernel compute_bound.
const (
	// pairBytes is the size of a pair of step and point, each an int64, little endian. An output
	// repeats the pair.
	pairBytes = 16
	// pointLanes is how many numbers one iteration multiplies and adds to, on the host.
	pointLanes = 64
)

func pointOp() *Op {
	return &Op{
		Name:      "bench.point",
		ReadsOnce: true,
		Doc:       "Runs a task of the benchmark Task Bench: checks its inputs, computes for a while, and fills its result.",
		Details: "An iteration multiplies and adds 64 numbers; on a GPU every thread of the grid does so. The result repeats the " +
			"pair of step and point, each an int64, little endian. On a GPU a wrong input does not fail the task: its result " +
			"is all ones, and so are the results of all points after it.",
		Params: []Param{
			{Name: "step", Type: IntType, Required: true, Doc: "the step of the task, from 0"},
			{Name: "point", Type: IntType, Required: true, Doc: "the place of the task in its step"},
			{Name: "from", Type: IntsType, Required: true, Doc: "the points of the step before that the inputs are, in their order"},
			{Name: "iterations", Type: IntType, Required: true, Doc: "the amount of work, not negative"},
			{Name: "bytes", Type: IntType, Required: true, Doc: "the size of the result: a multiple of 16, at least 16"},
		},
		Variadic:    "inputs",
		VariadicDoc: "results of bench.point",
		Result:      "a uint8 tensor with one axis",
		Errors:      []string{"OP_FAILED on the host if an input is not the result of its point: the text names the first wrong byte"},
		Example: Example{[]string{
			`{"key": "point-0", "op": "bench.point", "args": [0, 3, [], 10, 16]}`,
			`{"key": "point", "op": "bench.point", "args": [1, 3, [3], 10, 16, {"input": "point-0"}]}`,
		}, "[1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]"},
		plan: planPoint,
	}
}

func planPoint(c *call) (*Planned, error) {
	w := &Pointing{Step: c.int("step"), Point: c.int("point"), Iterations: c.int("iterations"), From: c.ints("from")}
	n := c.int("bytes")
	switch {
	case n < pairBytes || n%pairBytes != 0:
		return nil, c.bad("bytes", "%d is not a multiple of %d", n, pairBytes)
	case w.Iterations < 0:
		return nil, c.bad("iterations", "%d is negative", w.Iterations)
	case len(w.From) != len(c.rest):
		return nil, c.bad("from", "%d points for %d inputs", len(w.From), len(c.rest))
	}
	for i, v := range c.rest {
		x, err := c.tensorAt("inputs", i, v)
		if err != nil {
			return nil, err
		}
		if x.DType != Uint8 || x.Bytes() < pairBytes || x.Bytes()%pairBytes != 0 || !x.Contiguous() {
			return nil, c.bad(ordinal("inputs", i), "it is no result of bench.point: %s of %d bytes", x.DType, x.Bytes())
		}
		w.Inputs = append(w.Inputs, x)
	}
	return single(Uint8, []int64{n}, w, func(ctx context.Context, out *Tensor) error {
		for i, x := range w.Inputs {
			if err := checkPairs(x.raw(), w.Step-1, w.From[i]); err != nil {
				return &Error{Kind: Failed, Op: c.op.Name, Argument: ordinal("inputs", i), Reason: err.Error()}
			}
		}
		if err := compute(ctx, w.Iterations); err != nil {
			return err
		}
		data := elements[byte](out)
		for i := 0; i < len(data); i += pairBytes {
			binary.LittleEndian.PutUint64(data[i:], uint64(w.Step))
			binary.LittleEndian.PutUint64(data[i+8:], uint64(w.Point))
		}
		return nil
	}), nil
}

func checkPairs(data []byte, step, point int64) error {
	for i := 0; i < len(data); i += pairBytes {
		s, p := int64(binary.LittleEndian.Uint64(data[i:])), int64(binary.LittleEndian.Uint64(data[i+8:]))
		if s != step || p != point {
			return fmt.Errorf("byte %d is of point %d of step %d; it should be point %d of step %d", i, p, s, point, step)
		}
	}
	return nil
}

// compute multiplies and adds. Its duration is measured, so the compiler must not optimise it away.
func compute(ctx context.Context, iterations int64) error {
	var lanes [pointLanes]float64
	for i := range lanes {
		lanes[i] = 1.2345 + float64(i)
	}
	for done := int64(0); done < iterations; {
		if err := ctx.Err(); err != nil {
			return err
		}
		for n := min(iterations-done, 1<<14); n > 0; n-- {
			for i := range lanes {
				lanes[i] = lanes[i]*0.9999 + 0.0001
			}
			done++
		}
	}
	if lanes[0] < 0 { // never
		return fmt.Errorf("ops: bench.point computed %v", lanes[0])
	}
	return nil
}
