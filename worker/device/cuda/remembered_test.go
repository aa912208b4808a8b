//go:build cgo && linux

package cuda

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/worker/ops"
)

// somewhere is device memory at any address.
type somewhere uint64

// Address is part of ops.Memory.
func (s somewhere) Address() uint64 { return uint64(s) }

// Size is part of ops.Memory.
func (somewhere) Size() int64 { return 1 << 40 }

// Read is part of ops.Memory.
func (somewhere) Read(int64, []byte) error { return errors.New("there is nothing") }

// laid draws a tensor. Its properties come from few values, so that many tensors are alike.
func laid(rt *rapid.T, dtype ops.DType, shape []int64) *ops.Tensor {
	t := &ops.Tensor{DType: dtype, Shape: shape, Offset: 8 * rapid.Int64Range(0, 2).Draw(rt, "offset")}
	if rapid.IntRange(0, 3).Draw(rt, "near") == 0 {
		t.Data = make([]byte, 8)
	} else {
		t.Far = somewhere(1<<20 + 16*rapid.Uint64Range(0, 100).Draw(rt, "page") + 4*rapid.Uint64Range(0, 1).Draw(rt, "within"))
	}
	t.Strides = ops.ContiguousStrides(dtype, shape)
	for i := range t.Strides {
		if rapid.IntRange(0, 5).Draw(rt, "stride") == 0 {
			t.Strides[i] *= rapid.Int64Range(-1, 2).Draw(rt, "times")
		}
	}
	return t
}

func shapes(rt *rapid.T) []int64 {
	return rapid.SliceOfN(rapid.SampledFrom([]int64{1, 4, 5, 64}), 0, 3).Draw(rt, "shape")
}

var fewTypes = []ops.DType{ops.Uint8, ops.Float32, ops.Complex128}

// TestCachedDecisionsEqualNewOnes checks that calls with the same key get the same
// decision.
func TestCachedDecisionsEqualNewOnes(t *testing.T) {
	b := onFake(t)
	mapOp, err := b.ops.Lookup("array.map")
	if err != nil {
		t.Fatal(err)
	}
	reduceOp, err := b.ops.Lookup("array.reduce")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]any{}
	same := 0
	look := func(rt *rapid.T, key []byte, decided any, err error) {
		if err != nil {
			decided = err.Error() // errors are never kept
		}
		before, ok := known[string(key)]
		if known[string(key)] = decided; !ok {
			return
		}
		same++
		if !reflect.DeepEqual(before, decided) {
			rt.Fatalf("%x: %+v, then %+v", key, before, decided)
		}
	}
	one := func(rt *rapid.T) {
		dtype := rapid.SampledFrom(fewTypes).Draw(rt, "dtype")
		shape := shapes(rt)
		switch rapid.IntRange(0, 2).Draw(rt, "kind") {
		case 0:
			x, y := laid(rt, dtype, shape), laid(rt, rapid.SampledFrom(fewTypes).Draw(rt, "other"), shape)
			scalar := rapid.SampledFrom([]any{1.5, int64(2), true}).Draw(rt, "scalar")
			expr := rapid.SampledFrom([]string{"x0+x1*x2", "x0", "where(x1 == x0, x2, 3)"}).Draw(rt, "expr")
			p, err := mapOp.Plan(ops.Args{Positional: []any{expr, planned(x), planned(y), scalar}})
			if err != nil {
				return // not defined for these types
			}
			w := p.Work.(*ops.Mapping)
			operands := []*ops.Tensor{laid(rt, p.Outputs[0].DType, p.Outputs[0].Shape), x, y, nil}
			decided, err := mapperOf(w.Program(), operands)
			look(rt, append(mapKey(nil, w.Program(), operands), 'm'), decided, err)
		case 1:
			x := laid(rt, dtype, shape)
			options := named{"op": rapid.SampledFrom([]string{"sum", "min", "mean", "count"}).Draw(rt, "op")}
			if len(shape) > 0 && rapid.Bool().Draw(rt, "one axis") {
				options["axes"] = rapid.Int64Range(0, int64(len(shape)-1)).Draw(rt, "axis")
			}
			p, err := reduceOp.Plan(ops.Args{Positional: []any{planned(x)}, Named: options})
			if err != nil {
				return
			}
			w := p.Work.(*ops.Reducing)
			w.X = x
			out := laid(rt, p.Outputs[0].DType, p.Outputs[0].Shape)
			decided, err := b.reducerOf(w, out)
			look(rt, append(reduceKey(nil, w, out), 'r'), decided, err)
		case 2:
			from, to := laid(rt, dtype, shape), laid(rt, dtype, shape)
			at := func(t *ops.Tensor) uint64 { return uint64(t.Offset) + rapid.Uint64Range(0, 40).Draw(rt, "at")*4 }
			fromAt, toAt := at(from), at(to)
			decided, err := b.decideMove(shape, from.Strides, to.Strides, dtype.Size(), fromAt, toAt)
			look(rt, append(moveKey(nil, shape, from.Strides, to.Strides, dtype.Size(), fromAt, toAt), 'c'), decided, err)
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		for range 50 {
			one(rt)
		}
	})
	if same < 100 {
		t.Errorf("only %d calls were like others", same)
	}
}

// planned returns a tensor of the same type and shape that passes the checks of operations.
func planned(x *ops.Tensor) *ops.Tensor {
	return &ops.Tensor{DType: x.DType, Shape: x.Shape, Strides: ops.ContiguousStrides(x.DType, x.Shape), Far: somewhere(1 << 20)}
}

func TestOnlyDecisionsAreRemembered(t *testing.T) {
	var r remembered[int]
	asked := 0
	ask := func(key string, answer int, err error) int {
		got, _ := r.get([]byte(key), func() (int, error) {
			asked++
			return answer, err
		})
		return got
	}
	if ask("a", 1, nil); ask("a", 2, nil) != 1 || asked != 1 {
		t.Errorf("asked %d times", asked)
	}
	if ask("b", 1, errHost); ask("b", 2, nil) != 2 || asked != 3 {
		t.Errorf("an error was kept, or asked %d times", asked)
	}
	_, _ = r.get([]byte("c"), func() (int, error) {
		r.drop()
		return 1, nil
	})
	if ask("c", 2, nil) != 2 || ask("a", 3, nil) != 3 {
		t.Error("a decision was kept in spite of a drop")
	}
	large := fmt.Sprintf("%*d", maxKey+1, 1)
	if ask(large, 1, nil); ask(large, 2, nil) != 2 {
		t.Error("a large key was kept")
	}
	for i := range 3 * maxRemembered {
		ask(fmt.Sprint(i), i, nil)
	}
	if n := len(r.plans); n == 0 || n > maxRemembered {
		t.Errorf("%d decisions are kept", n)
	}
}

// TestACallThatComesAgainIsLaunchedAlike checks that repeated calls are launched in the same way as
// the first: with the same kernels, grids and parameters.
func TestACallThatComesAgainIsLaunchedAlike(t *testing.T) {
	b := onFake(t)
	for range slotCount - 1 { // small results get the same addresses each time
		slot := <-b.slots.free
		defer func() { b.slots.free <- slot }()
	}
	g := golden(t)[0]
	alike := 0
	for i := 0; i < len(g.Cases); i += 151 {
		c := &g.Cases[i]
		if needsLibrary(t, c.Op) {
			continue
		}
		var first []string
		var firstErr error
		for round := range 3 {
			b.reset()
			args := g.args(t, c)
			if i%2 != 0 {
				for k, v := range args.Positional {
					if x, ok := v.(*ops.Tensor); ok {
						args.Positional[k] = b.onDevice(t, x)
					}
				}
			}
			before := fake.Launches.Load()
			got, err := b.call(t.Context(), c.Op, args)
			var seen []string
			if x, ok := got.(*ops.Tensor); ok {
				seen = append(seen, fmt.Sprint(x.DType, x.Shape, x.Strides, x.Offset))
			}
			for _, l := range fake.Launched(before) {
				seen = append(seen, fmt.Sprintf("%s %v %v %d %x", l.Name(), l.Grid, l.Block, l.SharedBytes, l.Parameters[:min(int(l.ParameterBytes), len(l.Parameters))]))
			}
			if round == 0 {
				first, firstErr = seen, err
				continue
			}
			if fmt.Sprint(err) != fmt.Sprint(firstErr) || !slices.Equal(seen, first) {
				t.Fatalf("case %d: %s %s %v: at first %v %v, in round %d %v %v", i, c.Op, c.Args, c.Named, first, firstErr, round, seen, err)
			}
			alike += len(seen)
		}
	}
	if alike < 50 {
		t.Errorf("only %d launches were compared", alike)
	}
}
