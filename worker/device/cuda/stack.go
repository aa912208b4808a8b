package cuda

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"

	"github.com/millrace/millrace/internal/sharedlib"
	gpu "github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/worker/ops"
)

// Several matrices are factored by one call, each by a few multiprocessors, or one after the other,
// each by as many as it can keep busy. One call is faster for small matrices, and for many of
// middle size: on an H200, 200 systems of 256 rows, float64, take 2.7 ms by one call, and of 257
// rows 112 ms one after the other; 20 take 1.6 and 11.3 ms.
const (
	// smallMatrix is the number of rows up to which two or more are factored by one call.
	smallMatrix = 256
	// middleMatrix is the number of rows up to which manyMatrices or more are.
	middleMatrix = 1024
	manyMatrices = 8
)

// factoredTogether says whether one call factors that many matrices.
func factoredTogether(rows, count int64) bool {
	return count > 1 && rows <= smallMatrix || count >= manyMatrices && rows <= middleMatrix
}

// stack is a number of square matrices, column-major and one behind the other, that are factored in
// place: in their own type, as on the host.
type stack struct {
	*run
	blas     *blas
	solver   *solver
	dtype    ops.DType
	n, count int64
	together bool // one call factors all matrices
	// workBytes and hostWork are the working memory of one factorisation.
	workBytes uint64
	hostWork  []byte
	failures  *gpu.Function
	addresses *gpu.Function
	failureAt uint64 // in pinned memory
	failure   []byte
	// The addresses within a submission: of the matrices, of the first failure, and of the info
	// values.
	at, first, infos uint64
}

// newStack plans the factorisation of count matrices of n rows by one of cuSOLVER's routines.
// options are the routine's arguments before the matrix; pinner keeps its working memory in place.
func (r *run) newStack(pinner *runtime.Pinner, dtype ops.DType, n, count int64, routine string, options ...uint64) (*stack, error) {
	if n > math.MaxInt32 || count > math.MaxInt32 {
		return nil, errHost
	}
	k := &stack{run: r, dtype: dtype, n: n, count: count, together: r.device.together(n, count)}
	var err error
	if k.blas, k.solver, err = r.device.getSolver(); err != nil {
		return nil, err
	}
	if k.failures, err = r.device.linalgKernel("failures"); err != nil {
		return nil, err
	}
	if k.addresses, err = r.device.linalgKernel("addresses"); err != nil {
		return nil, err
	}
	k.failureAt, k.failure = r.pinned(8)
	if k.together {
		return k, nil
	}
	var hostBytes uint64
	err = r.device.enter(func() error {
		arguments := slices.Concat(k.arguments(options, 0), []uint64{blasType(dtype), sharedlib.AddressOf(pinner, &k.workBytes), sharedlib.AddressOf(pinner, &hostBytes)})
		return k.solver.call(routine+"_bufferSize", arguments...)
	})
	k.hostWork = make([]byte, hostBytes+1)
	pinner.Pin(&k.hostWork[0])
	return k, err
}

// linalgKernel finds one of the kernels of linalg.cuh.
func (d *Device) linalgKernel(name string) (*gpu.Function, error) {
	return d.code.kernel("linalg.cu", "", name, func() string { return kernelText("prelude.cuh") + kernelText("linalg.cuh") })
}

// letter is the first one of the names of routines for the type.
func (k *stack) letter() string {
	return map[ops.DType]string{ops.Float32: "S", ops.Float64: "D", ops.Complex64: "C", ops.Complex128: "Z"}[k.dtype]
}

func (k *stack) matrixBytes() uint64 { return uint64(k.n * k.n * k.dtype.Size()) }

// arguments returns the first arguments of a routine that factors the matrix at an address.
func (k *stack) arguments(options []uint64, at uint64) []uint64 {
	return slices.Concat([]uint64{k.solver.handle, k.solver.params}, options, []uint64{uint64(k.n), blasType(k.dtype), at, uint64(k.n)})
}

// scratchBytes is the scratch memory that take takes.
func (k *stack) scratchBytes() uint64 {
	return aligned(uint64(k.count)*k.matrixBytes()) + aligned(k.workBytes) + k.infoBytes() + 2*aligned(uint64(8*k.count)) + aligned(uint64(8*k.n*k.count))
}

// infoBytes is the size of the info values, of the first failure, and of an info value of the
// solution.
func (k *stack) infoBytes() uint64 { return aligned(uint64(4*k.count)) + aligned(8) + aligned(4) }

// take takes the memory for the matrices and for all that take part in their factorisation, except
// the working memory.
func (k *stack) take(s *submission) {
	k.at = s.take(uint64(k.count) * k.matrixBytes())
	k.first, k.infos = s.take(8), s.take(uint64(4*k.count))
	s.memset(k.first, 0xff, 8)
	s.memset(k.infos, 0, uint64(4*k.count))
}

// list stores the addresses of count matrices that are step bytes apart, and returns where.
func (k *stack) list(s *submission, first, step uint64) uint64 {
	to := s.take(uint64(8 * k.count))
	s.launch(k.addresses, blocksOf(k.count, threads), s.parameters().u64(to, uint64(k.count), first, step))
	return to
}

// each calls f for each matrix, with its number.
func (k *stack) each(s *submission, f func(i uint64) error) {
	s.calls(func() error {
		for i := range uint64(k.count) {
			if err := f(i); err != nil {
				return err
			}
		}
		return nil
	})
}

// one submits the factorisation of matrix i by a routine.
func (k *stack) one(routine string, i, work uint64, options []uint64, more ...uint64) error {
	return k.solver.call(routine, slices.Concat(k.arguments(options, k.at+i*k.matrixBytes()), more,
		[]uint64{blasType(k.dtype), work, k.workBytes, addressOfBytes(k.hostWork), uint64(len(k.hostWork) - 1), k.infos + 4*i})...)
}

// report finds the first failure and copies it to the CPU's memory.
func (k *stack) report(s *submission) {
	s.launch(k.failures, blocksOf(k.count, threads), s.parameters().u64(k.infos, uint64(k.count), k.first))
	s.copy(gpu.ToHost(k.failureAt, k.first, 8))
}

// outcome returns the first failure: the number of the matrix, and of the row. A negative info is
// an error of ours.
func (k *stack) outcome(routine string, failed func(matrix, row int64) error) error {
	failure := le.Uint64(k.failure)
	if failure == math.MaxUint64 {
		return nil
	}
	if info := int32(failure); info < 0 {
		return fmt.Errorf("%s: %s refuses its argument %d", k.op, routine, -info)
	}
	return failed(int64(failure>>32), int64(uint32(failure))-1)
}

// lowerFactors factors the matrices of w.X. Read as column-major, a matrix in row order is its
// transpose; the upper triangular factor of the transpose, read in row order again, is the lower
// triangular factor of the matrix.
func (r *run) lowerFactors(ctx context.Context, w *ops.FactoringCholesky, out *ops.Tensor) error {
	if out.Len() == 0 {
		return nil
	}
	n := out.Shape[len(out.Shape)-1]
	var pinner runtime.Pinner
	defer pinner.Unpin()
	upper := []uint64{solverUpper}
	k, err := r.newStack(&pinner, out.DType, n, out.Len()/(n*n), "cusolverDnXpotrf", upper...)
	if err != nil {
		return err
	}
	lower, err := r.device.linalgKernel("lower_" + out.DType.String())
	if err != nil {
		return err
	}
	place := &scratchMemory{}
	copied, err := r.device.planMap(ops.Convert(out.DType, w.X), &ops.Tensor{DType: out.DType, Shape: out.Shape, Strides: out.Strides, Far: place})
	if err != nil {
		return err
	}
	if err := r.submit(ctx, copied.scratchBytes(r.device)+k.scratchBytes(), func(s *submission) {
		k.take(s)
		place.at = k.at
		s.evaluate(copied, 0)
		if k.together {
			matrices := k.list(s, k.at, k.matrixBytes())
			s.calls(func() error {
				return k.solver.call("cusolverDn"+k.letter()+"potrfBatched", k.solver.handle, solverUpper, uint64(n), matrices, uint64(n), k.infos, uint64(k.count))
			})
		} else {
			work := s.take(k.workBytes)
			k.each(s, func(i uint64) error { return k.one("cusolverDnXpotrf", i, work, upper) })
		}
		s.launch(lower, blocksOf(out.Len(), threads), s.parameters().u64(k.at, uint64(n), uint64(out.Len()), k.first))
		k.report(s)
		s.store(out, k.at)
	}); err != nil {
		return err
	}
	return k.outcome("potrf", func(matrix, row int64) error { return ops.NotPositive(w.X, matrix, row) })
}

// store copies a result from scratch memory.
func (s *submission) store(out *ops.Tensor, from uint64) {
	if _, small := out.Far.(*small); small {
		s.copy(gpu.ToHost(out.Far.Address(), from, uint64(out.Bytes())))
		return
	}
	s.copy(gpu.OnDevice(out.Far.Address(), from, uint64(out.Bytes())))
}

// solveSystems factors the matrix of each system and solves the systems. A matrix that all systems
// have in common is factored once.
func (r *run) solveSystems(ctx context.Context, w *ops.Solving, out *ops.Tensor) error {
	if out.Len() == 0 {
		return nil
	}
	n, size := w.Rows, out.DType.Size()
	batch, right := slicesProduct(w.Batch), w.Columns
	matrices := w.Batch
	if w.A.Len() == n*n { // the right-hand sides of all systems are those of one
		batch, right, matrices = 1, batch*right, make([]int64, len(w.Batch))
		for i := range matrices {
			matrices[i] = 1
		}
	}
	var pinner runtime.Pinner
	defer pinner.Unpin()
	k, err := r.newStack(&pinner, out.DType, n, batch, "cusolverDnXgetrf", uint64(n))
	if err != nil {
		return err
	}
	if right > math.MaxInt32 {
		return errHost
	}
	aPlace, xPlace := &scratchMemory{}, &scratchMemory{}
	left, err := r.device.planMap(ops.Convert(out.DType, w.A), columnMajor(out.DType, matrices, n, n, aPlace))
	if err != nil {
		return err
	}
	solutions := columnMajor(out.DType, w.Batch, n, w.Columns, xPlace)
	sides, err := r.device.planMap(ops.Convert(out.DType, w.B), solutions)
	if err != nil {
		return err
	}
	var store *mapping
	if w.Columns > 1 { // a single column lies in the order of the output
		result := *out
		result.Shape = solutions.Shape
		result.Strides = ops.ContiguousStrides(out.DType, result.Shape)
		if store, err = r.device.planMap(ops.Convert(out.DType, solutions), &result); err != nil {
			return err
		}
	}
	need := left.scratchBytes(r.device) + sides.scratchBytes(r.device) + k.scratchBytes() + aligned(uint64(out.Len()*size))
	if err := r.submit(ctx, need, func(s *submission) {
		k.take(s)
		aPlace.at, xPlace.at = k.at, s.take(uint64(out.Len()*size))
		s.evaluate(left, 0)
		s.evaluate(sides, 0)
		k.solveAt(s, xPlace.at, right)
		k.report(s)
		if store != nil {
			s.evaluate(store, 0)
		} else {
			s.store(out, xPlace.at)
		}
	}); err != nil {
		return err
	}
	return k.outcome("getrf", func(matrix, column int64) error { return ops.Singular(w.A, number(w, matrix), column) })
}

// columnMajor returns an empty tensor of column-major matrices.
func columnMajor(dtype ops.DType, leading []int64, rows, columns int64, at *scratchMemory) *ops.Tensor {
	shape := slices.Concat(leading, []int64{columns, rows})
	strides := ops.ContiguousStrides(dtype, shape)
	last := len(shape) - 1
	shape[last], shape[last-1] = shape[last-1], shape[last]
	strides[last], strides[last-1] = strides[last-1], strides[last]
	return &ops.Tensor{DType: dtype, Shape: shape, Strides: strides, Far: at}
}

// number returns the number among the matrices of w.A of the matrix of a system, by its number.
func number(w *ops.Solving, system int64) int64 {
	leading := w.A.Shape[:len(w.A.Shape)-2]
	of, step := int64(0), int64(1)
	for i := len(leading) - 1; i >= 0; i-- {
		axis := len(w.Batch) - len(leading) + i
		if leading[i] > 1 {
			of += system % w.Batch[axis] * step
		}
		system /= w.Batch[axis]
		step *= leading[i]
	}
	return of
}

// solveAt factors the matrices and replaces the right-hand sides at x, which are columns, by the
// solutions. There are that many for each matrix.
func (k *stack) solveAt(s *submission, x uint64, right int64) {
	n := uint64(k.n)
	bytes := n * uint64(right*k.dtype.Size())
	pivots := s.take(8 * n * uint64(k.count))
	if k.together {
		matrices, sides := k.list(s, k.at, k.matrixBytes()), k.list(s, x, bytes)
		s.calls(func() error {
			if err := k.blas.call("cublas"+k.letter()+"getrfBatched", k.blas.handle, n, matrices, n, pivots, k.infos, uint64(k.count)); err != nil {
				return err
			}
			var pinner runtime.Pinner
			defer pinner.Unpin()
			var refused int32
			err := k.blas.call("cublas"+k.letter()+"getrsBatched", k.blas.handle, blasPlain, n, uint64(right), matrices, n, pivots, sides, n,
				sharedlib.AddressOf(&pinner, &refused), uint64(k.count))
			if err == nil && refused != 0 {
				err = fmt.Errorf("%s: getrsBatched refuses its argument %d", k.op, -refused)
			}
			return err
		})
		return
	}
	work, info := s.take(k.workBytes), s.take(4)
	k.each(s, func(i uint64) error {
		each := pivots + 8*n*i
		if err := k.one("cusolverDnXgetrf", i, work, []uint64{n}, each); err != nil {
			return err
		}
		return k.solver.call("cusolverDnXgetrs", k.solver.handle, k.solver.params, blasPlain, n, uint64(right), blasType(k.dtype), k.at+i*k.matrixBytes(), n,
			each, blasType(k.dtype), x+i*bytes, n, info)
	})
}
