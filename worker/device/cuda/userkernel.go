package cuda

import (
	"context"
	"errors"
	"fmt"

	gpu "github.com/millrace/millrace/memory/cuda"

	"github.com/millrace/millrace/worker/ops"
)

// userFlags are the flags for users' sources. Unlike compileFlags, they permit the contraction of
// products and sums, as nvcc does by default.
var userFlags = []string{"--std=c++17", "--device-as-default-execution-space"}

// freeShared is the size of dynamic shared memory that every kernel may use without a request to
// the driver.
const freeShared = 48 << 10

// userKernel runs a kernel of cuda.kernel.
func (r *run) userKernel(ctx context.Context, w *ops.Launching, outs []*ops.Tensor) error {
	bad := func(argument, format string, args ...any) error {
		return &ops.Error{Kind: ops.BadArgument, Op: r.op, Argument: argument, Reason: fmt.Sprintf(format, args...)}
	}
	if most := r.device.gpu.Info().Attributes.SharedBytes; uint64(w.SharedBytes) > most {
		return bad("shared", "%d bytes are more than the %d that a block of %v can have", w.SharedBytes, most, r.device.gpu)
	}
	f, release, err := r.device.code.user(w.Source, w.Entry)
	var refused *compileError
	var driver *gpu.Error
	switch {
	case errors.As(err, &refused):
		return bad("source", "does not compile:\n%s", refused.log)
	case errors.As(err, &driver) && driver.Name == "CUDA_ERROR_NOT_FOUND":
		return bad("entry", "the source has no kernel %s: is it declared extern \"C\" __global__?", w.Entry)
	case err != nil:
		return err
	}
	r.release = release
	if w.SharedBytes > freeShared {
		if err := f.AllowShared(w.SharedBytes); err != nil {
			return bad("shared", "%v", err)
		}
	}
	var need uint64
	moves := make([]*move, len(w.Arguments))
	for i, a := range w.Arguments {
		if a.Tensor == nil || a.Tensor.Len() == 0 {
			continue
		}
		need += uploadBytes(a.Tensor)
		if !a.Tensor.Contiguous() {
			moves[i], err = r.device.moveOf(a.Tensor, 0)
			if errors.Is(err, errHost) {
				return bad(fmt.Sprintf("inputs[%d]", i), "a view of %d axes, of which more than %d cannot be joined: array.map with the expression x0 makes it contiguous", len(a.Tensor.Shape), maxAxes)
			}
			if err != nil {
				return err
			}
			need += aligned(uint64(a.Tensor.Bytes()))
		}
	}
	err = r.submit(ctx, need, func(s *submission) {
		p := new(parameters) // not s.parameters(), which the copies in between use
		for i, a := range w.Arguments {
			switch {
			case a.Tensor == nil:
				p.raw(int(a.Scalar.DType.Size()), a.Scalar.Data)
			case moves[i] != nil:
				at := s.take(uint64(a.Tensor.Bytes()))
				s.move(moves[i], s.at(a.Tensor), at)
				p.u64(at)
			default:
				p.u64(s.at(a.Tensor))
			}
		}
		for _, out := range outs {
			p.u64(out.Far.Address())
			if w.Zero && out.Len() > 0 {
				s.memset(out.Far.Address(), 0, uint64(out.Bytes()))
			}
		}
		if len(p.bytes) > maxParameters {
			s.fail(bad("inputs", "%d bytes of parameters are more than the %d that a kernel can have", len(p.bytes), maxParameters))
			return
		}
		s.device.batch.Launch(gpu.Launch{
			Function: f, Grid: gpu.Dim(w.Grid), Block: gpu.Dim(w.Block), SharedBytes: w.SharedBytes, Parameters: p.bytes,
		})
	})
	r.about = r.op + ": kernel " + w.Entry
	if err != nil && errors.As(err, &driver) {
		return r.explain(err)
	}
	return err
}
