package cuda

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/worker/ops"
)

// maxSteps is the largest number of steps for which a slot has room for the flags of all.
const maxSteps = 100

// contract carries out the steps of w one behind the other. Tensors that only later steps read lie
// in frames of the slab, which count as working memory of the call.
func (r *run) contract(ctx context.Context, w *ops.Contracting, out *ops.Tensor) error {
	if len(w.Steps) > 1 && r.frames == nil || len(w.Steps) > maxSteps {
		return errHost
	}
	err := r.steps(ctx, w, out)
	if err != nil && r.open {
		// The frames must not be used again before the steps that were submitted have ended.
		err = errors.Join(err, r.wait())
	}
	r.ahead, r.open = false, false
	return err
}

func (r *run) steps(ctx context.Context, w *ops.Contracting, out *ops.Tensor) error {
	registers := slices.Clone(w.Operands)
	for i, step := range w.Steps {
		to := out
		if r.ahead = i < len(w.Steps)-1; r.ahead { // only the last step waits, for all of them
			var err error
			if to, err = r.intermediate(step.Output); err != nil {
				return err
			}
		}
		if err := r.carryOut(ctx, step.Work(registers), []*ops.Tensor{to}); err != nil {
			return err
		}
		registers = append(registers, to)
	}
	return nil
}

// intermediate returns a tensor in a frame that belongs to the call.
func (r *run) intermediate(want ops.Output) (*ops.Tensor, error) {
	f, err := r.frames.Scratch(uint64(max(want.Bytes(), 1)))
	if err != nil {
		return nil, fmt.Errorf("%s: working memory of %v, shape %v: %w", r.op, want.DType, want.Shape, err)
	}
	return &ops.Tensor{
		DType: want.DType, Shape: want.Shape, Strides: ops.ContiguousStrides(want.DType, want.Shape),
		Far: &far{r.device.slab, f, r.device.slab.Pointer(f.Offset, f.Bytes)},
	}, nil
}
