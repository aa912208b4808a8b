package cuda

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"

	"github.com/millrace/millrace/internal/sharedlib"
	gpu "github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/worker/ops"
)

// Factorisations are computed in float64, as on the host.
//
// A tall matrix (with at least tallness times as many rows as columns) is factored by Cholesky,
// twice. The Gram matrix g = x'x = r'r gives q = x/r. The columns of q are orthonormal except for
// rounding errors, which grow with the square of x's condition number. A second pass on q, and the
// product of the two triangles, gives columns that are as orthonormal as those of Householder's
// method (Yamamoto and others, 2015), provided that q's Gram matrix was near the identity. This is
// checked: if it was not, or if a Gram matrix was not positive definite, the matrix is factored
// again with Householder's reflections (geqrf, orgqr). A GPU is fastest at products of matrices: at
// 100,000 x 1,000 this method takes a fraction of geqrf's time. With it, the diagonal of r is
// positive.
//
// The singular values of a tall matrix are those of r.
const (
	tallness = 4
	// nearIdentity is the largest distance of q'q from the identity at which the second pass gives
	// full accuracy.
	nearIdentity = 0.1
)

// Constants of the cuSOLVER interface.
const (
	solverUpper   = 1
	solverVector  = 1
	solverEconomy = 1
)

// solver is cuSOLVER on the compute stream.
type solver struct {
	device *Device
	lib    *library
	handle uint64
	params uint64
}

func (d *Device) openSolver() (*solver, error) {
	// cuSOLVER needs cuBLAS and finds the library that is already loaded.
	if _, err := d.getBLAS(); err != nil {
		return nil, err
	}
	lib, err := d.finder.open("cusolver", "cusolverDnCreate", "12", "11")
	if err != nil {
		d.logf("cuda: no cuSOLVER: %v", err)
		return nil, err
	}
	s := &solver{device: d, lib: lib}
	err = d.enter(func() error {
		var pinner runtime.Pinner
		defer pinner.Unpin()
		if err := s.call("cusolverDnCreate", sharedlib.AddressOf(&pinner, &s.handle)); err != nil {
			return err
		}
		if err := s.call("cusolverDnCreateParams", sharedlib.AddressOf(&pinner, &s.params)); err != nil {
			return err
		}
		return s.call("cusolverDnSetStream", s.handle, d.stream.Handle())
	})
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	d.logf("cuda: cuSOLVER from %s", lib.file)
	return s, nil
}

func (d *Device) getSolver() (*blas, *solver, error) {
	s, err := d.solver.get(d.openSolver)
	if err != nil {
		return nil, nil, err
	}
	b, err := d.getBLAS()
	return b, s, err
}

func (v *solver) call(function string, arguments ...uint64) error {
	return v.lib.mustCall(function, arguments...)
}

// close also closes a solver whose opening failed; then params or handle may be missing.
func (v *solver) close() error {
	err := v.device.enter(func() error {
		var errs []error
		if v.params != 0 {
			errs = append(errs, v.call("cusolverDnDestroyParams", v.params))
		}
		if v.handle != 0 {
			errs = append(errs, v.call("cusolverDnDestroy", v.handle))
		}
		return errors.Join(errs...)
	})
	if v.device.gpu.Health() != nil {
		return nil
	}
	return err
}

// workSize returns the size of a routine's workspace in elements. The routine stores it at its last
// argument, which workSize adds.
func (v *solver) workSize(function string, arguments ...uint64) (uint64, error) {
	var n int32
	err := v.device.enter(func() error {
		var pinner runtime.Pinner
		defer pinner.Unpin()
		return v.call(function, append(append([]uint64{v.handle}, arguments...), sharedlib.AddressOf(&pinner, &n))...)
	})
	if err == nil && n < 0 {
		err = fmt.Errorf("cuSOLVER's %s wants to work in 2^31 elements or more, which it cannot count; use chunks with fewer rows", strings.TrimSuffix(function, "_bufferSize"))
	}
	return uint64(max(n, 0)), err
}

// narrow refuses a matrix that has too many elements for the 32-bit counts of cuSOLVER's routines.
func narrow(op string, rows, columns int64) error {
	if rows > 0 && columns > math.MaxInt32/rows {
		return ops.Failure(op, "%d x %d are 2^31 elements or more, which cuSOLVER cannot count; use chunks with fewer rows", rows, columns)
	}
	return nil
}

// solverError converts the info value of a routine to an error.
func solverError(op, routine string, info uint32) error {
	if int32(info) < 0 {
		return fmt.Errorf("%s: %s refuses its argument %d", op, routine, -int32(info))
	}
	return ops.Failure(op, "%s did not converge: is there NaN or infinity in x?", routine)
}

// qr factors x. q may be nil: then only the upper triangular factor is wanted.
func (r *run) qr(ctx context.Context, x, q, upper *ops.Tensor) error {
	m, n := x.Shape[0], x.Shape[1]
	if m == 0 || n == 0 {
		return nil
	}
	f, err := r.newFactoring(x)
	if err != nil {
		return err
	}
	if m >= tallness*n {
		done, err := f.cholesky(ctx, q, upper, nil)
		if done || err != nil {
			return err
		}
		f.refused("Cholesky", "Householder's reflections")
	}
	return f.householder(ctx, q, upper)
}

// factoring is the state of the factorisation of one matrix.
type factoring struct {
	*run
	x      *ops.Tensor
	m, n   int64
	blas   *blas
	solver *solver
	// toWork copies x, row-major, to the memory at work.
	toWork *mapping
	work   *scratchMemory
	upper  *gpu.Function
	// refusal says why the method that was tried last is not suitable.
	refusal string
}

// refused logs that a method failed. It has cost time, and users ask where the time went.
func (f *factoring) refused(way, next string) {
	f.device.logf("cuda: %s of %d x %d: %s cannot be used: %s; %s is used instead", f.op, f.m, f.n, way, f.refusal, next)
}

func (r *run) newFactoring(x *ops.Tensor) (*factoring, error) {
	f := &factoring{run: r, x: x, m: x.Shape[0], n: x.Shape[1], work: &scratchMemory{}}
	if f.m > math.MaxInt32 || f.n > math.MaxInt32 {
		return nil, errHost
	}
	var err error
	if f.blas, f.solver, err = r.device.getSolver(); err != nil {
		return nil, err
	}
	f.upper, err = r.device.code.builtin("upper_float64")
	return f, err
}

// copier plans a conversion of a tensor to float64, with the given strides, to memory whose address
// is set later.
func (f *factoring) copier(x *ops.Tensor, strides []int64, to *scratchMemory) (*mapping, error) {
	return f.device.planMap(ops.Convert(ops.Float64, x), &ops.Tensor{DType: ops.Float64, Shape: x.Shape, Strides: strides, Far: to})
}

// storer plans the rounding of float64 results to the type of out. The results lie at from with the
// given strides.
func (f *factoring) storer(out *ops.Tensor, strides []int64, from *scratchMemory) (*mapping, error) {
	return f.device.planMap(ops.Convert(out.DType, &ops.Tensor{DType: ops.Float64, Shape: out.Shape, Strides: strides, Far: from}), out)
}

func byRows(shape []int64) []int64 { return ops.ContiguousStrides(ops.Float64, shape) }

// byColumns returns the strides of a column-major matrix with that many elements between columns.
func byColumns(distance int64) []int64 { return []int64{8, 8 * distance} }

// afterwards continues a submission when q and r have been computed: q is m by n, r is upper
// triangular and n by n. Both are row-major float64.
type afterwards func(s *submission, q, r uint64)

// cholesky factors a tall matrix. done is false if the matrix is too close to singular; then x is
// unchanged, refusal says why, and another method can be tried. Either of q and r may be nil if it
// is not wanted; after, if it is given, takes both factors. more are the sizes of the scratch
// memory that after takes.
func (f *factoring) cholesky(ctx context.Context, q, r *ops.Tensor, after afterwards, more ...uint64) (done bool, err error) {
	m, n := f.m, f.n
	bytes := uint64(8 * n * n)
	if err := narrow(f.op, n, n); err != nil {
		return false, err
	}
	lwork, err := f.solver.workSize("cusolverDnDpotrf_bufferSize", solverUpper, uint64(n), 8, uint64(n))
	if err != nil {
		return false, err
	}
	off, err := f.device.code.builtin("off_float64")
	if err != nil {
		return false, err
	}
	need := uploadBytes(f.x) + aligned(uint64(8*m*n)) + 5*aligned(bytes) + aligned(8*lwork) + aligned(24)
	for _, extra := range more {
		need += aligned(extra)
	}
	place, triangle := &scratchMemory{}, &scratchMemory{}
	if f.toWork, err = f.copier(f.x, byRows(f.x.Shape), place); err != nil {
		return false, err
	}
	var store, storeR *mapping
	inPlace := q != nil && q.DType == ops.Float64
	if q != nil && !inPlace {
		if store, err = f.storer(q, byRows(q.Shape), place); err != nil {
			return false, err
		}
	}
	if r != nil {
		if storeR, err = f.storer(r, byRows(r.Shape), triangle); err != nil {
			return false, err
		}
	}
	// Two info values of potrf, and the distance from the identity. They lie on the device, since
	// kernels that access them many times would wait for the CPU's memory.
	answersAt, answers := f.pinned(24)
	err = f.submit(ctx, need, func(s *submission) {
		if inPlace {
			place.at = q.Far.Address()
		} else {
			place.at = s.take(uint64(8 * m * n))
		}
		var grams, uppers [2]uint64
		for i := range grams {
			grams[i], uppers[i] = s.take(bytes), s.take(bytes)
		}
		triangle.at = s.take(bytes)
		work, flags := s.take(8*lwork), s.take(24)
		s.memset(flags, 0, 24)
		s.evaluate(f.toWork, 0)
		// Read as column-major, x is n by m: all the following calls work on its transpose.
		one := [1]float64{1}
		for i := range grams {
			s.calls(func() error {
				return f.blas.multiply(product{
					dtype: ops.Float64, m: n, n: n, k: m, factor: 1,
					a: matrix{at: place.at, transposed: true, distance: n}, b: matrix{at: place.at, distance: n}, c: matrix{at: grams[i], distance: n},
				})
			})
			if i == 1 {
				s.launch(off, blocksOf(n*n, threads), s.parameters().u64(grams[i], flags+16).i64(n))
			}
			s.calls(func() error {
				var pinner runtime.Pinner
				defer pinner.Unpin()
				if err := f.solver.call("cusolverDnDpotrf", f.solver.handle, solverUpper, uint64(n), grams[i], uint64(n), work, lwork, flags+8*uint64(i)); err != nil {
					return err
				}
				return f.divideBy(grams[i], place.at, 0, n, sharedlib.AddressOf(&pinner, &one[0]))
			})
			s.launch(f.upper, blocksOf(n*n, threads), s.parameters().u64(grams[i], uppers[i]).i64(n, n, n))
		}
		s.calls(func() error {
			return f.blas.multiply(product{
				dtype: ops.Float64, m: n, n: n, k: n, factor: 1,
				a: matrix{at: uppers[1], distance: n}, b: matrix{at: uppers[0], distance: n}, c: matrix{at: triangle.at, distance: n},
			})
		})
		if store != nil {
			s.evaluate(store, 0)
		}
		if storeR != nil {
			s.evaluate(storeR, 0)
		}
		if after != nil {
			after(s, place.at, triangle.at)
		}
		s.copy(gpu.ToHost(answersAt, flags, 24))
	})
	if err != nil {
		return false, err
	}
	first, second, far := le.Uint32(answers), le.Uint32(answers[8:]), math.Float64frombits(le.Uint64(answers[16:]))
	switch {
	case first != 0 || second != 0:
		f.refusal = fmt.Sprintf("potrf says that the Gram matrix is not positive definite from column %d, that of q from column %d", first, second)
	case !(far <= nearIdentity):
		f.refusal = fmt.Sprintf("the Gram matrix of q is as far as %.3g from the identity", far)
	default:
		return true, nil
	}
	return false, nil
}

// trsmColumns is the largest number of columns for which cuBLAS's own triangular solver is used.
// For more columns, most of the work is turned into products, which run several times faster.
const trsmColumns = 256

// divideBy replaces the columns in [from, to) of x, which is row-major, by those of x/r. The
// columns before from are done already. r is upper triangular and column-major.
func (f *factoring) divideBy(r, x uint64, from, to int64, one uint64) error {
	n := f.n
	if to-from <= trsmColumns {
		return f.blas.call("cublasDtrsm_v2_64", f.blas.handle, blasLeft, blasUpper, blasTransposed, blasNonUnit, uint64(to-from), uint64(f.m),
			one, r+uint64(8*from*(n+1)), uint64(n), x+uint64(8*from), uint64(n))
	}
	middle := from + (to-from+1)/2
	if err := f.divideBy(r, x, from, middle, one); err != nil {
		return err
	}
	if err := f.blas.multiply(product{
		dtype: ops.Float64, m: f.m, n: to - middle, k: middle - from, factor: -1, add: 1,
		a: matrix{at: x + uint64(8*from), distance: n}, b: matrix{at: r + uint64(8*(middle*n+from)), transposed: true, distance: n},
		c: matrix{at: x + uint64(8*middle), distance: n},
	}); err != nil {
		return err
	}
	return f.divideBy(r, x, middle, to, one)
}

// householder factors any matrix by reflections. q may be nil if it is not wanted.
func (f *factoring) householder(ctx context.Context, q, r *ops.Tensor) error {
	m, n := f.m, f.n
	k := min(m, n)
	if err := narrow(f.op, m, n); err != nil {
		return err
	}
	place, triangle := &scratchMemory{}, &scratchMemory{}
	// Column-major, as LAPACK needs them.
	toWork, err := f.copier(f.x, byColumns(m), place)
	if err != nil {
		return err
	}
	var storeQ *mapping
	if q != nil {
		if storeQ, err = f.storer(q, byColumns(m), place); err != nil {
			return err
		}
	}
	storeR, err := f.storer(r, byRows(r.Shape), triangle)
	if err != nil {
		return err
	}
	lwork, err := f.solver.workSize("cusolverDnDgeqrf_bufferSize", uint64(m), uint64(n), 8, uint64(m))
	if err != nil {
		return err
	}
	more, err := f.solver.workSize("cusolverDnDorgqr_bufferSize", uint64(m), uint64(k), uint64(k), 8, uint64(m), 8)
	if err != nil {
		return err
	}
	lwork = max(lwork, more)
	infoAt, info := f.pinned(16)
	need := uploadBytes(f.x) + aligned(uint64(8*m*n)) + aligned(uint64(8*k*n)) + aligned(uint64(8*k)) + aligned(8*lwork) + aligned(16)
	if err := f.submit(ctx, need, func(s *submission) {
		place.at = s.take(uint64(8 * m * n))
		triangle.at = s.take(uint64(8 * k * n))
		tau, work, flags := s.take(uint64(8*k)), s.take(8*lwork), s.take(16)
		s.memset(flags, 0, 16)
		s.evaluate(toWork, 0)
		s.calls(func() error {
			return f.solver.call("cusolverDnDgeqrf", f.solver.handle, uint64(m), uint64(n), place.at, uint64(m), tau, work, lwork, flags)
		})
		s.launch(f.upper, blocksOf(k*n, threads), s.parameters().u64(place.at, triangle.at).i64(k, n, m))
		if q != nil {
			s.calls(func() error {
				return f.solver.call("cusolverDnDorgqr", f.solver.handle, uint64(m), uint64(k), uint64(k), place.at, uint64(m), tau, work, lwork, flags+8)
			})
			s.evaluate(storeQ, 0)
		}
		s.evaluate(storeR, 0)
		s.copy(gpu.ToHost(infoAt, flags, 16))
	}); err != nil {
		return err
	}
	for i, routine := range []string{"geqrf", "orgqr"} {
		if v := le.Uint32(info[8*i:]); v != 0 {
			return solverError(f.op, routine, v)
		}
	}
	return nil
}
