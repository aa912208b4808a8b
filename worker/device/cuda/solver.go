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
// If only r is wanted, the second pass is still necessary: the error of the first triangle grows
// with the square of the condition number. But the final q is not computed, and the first one, x/r,
// is computed and used some rows at a time.
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

// qr factors x. q is nil if only the triangle is wanted.
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
		done, err := f.cholesky(ctx, factors{q: q, r: upper, onlyR: q == nil})
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
	upper  *gpu.Function
	// refusal says why the method that was tried last is not suitable.
	refusal string
}

// refused logs that a method failed. It has cost time, and users ask where the time went.
func (f *factoring) refused(way, next string) {
	f.device.logf("cuda: %s of %d x %d: %s cannot be used: %s; %s is used instead", f.op, f.m, f.n, way, f.refusal, next)
}

func (r *run) newFactoring(x *ops.Tensor) (*factoring, error) {
	f := &factoring{run: r, x: x, m: x.Shape[0], n: x.Shape[1]}
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
// triangular and n by n, and the identity if the factors cannot be used. Both are row-major
// float64. q is 0 if it was not wanted.
type afterwards func(s *submission, q, r uint64)

// factors are the outputs of a factorisation by Cholesky. The function after, if there is one,
// takes both; then they may also be nil.
type factors struct {
	q, r *ops.Tensor
	// onlyR: q is not wanted. Then it is computed some rows at a time, since the second pass needs
	// it, and never stored.
	onlyR bool
	after afterwards
	// more are the sizes of the scratch memory that after takes.
	more []uint64
}

// rowsBytes is the size of the part of q that exists at a time if q is not wanted. Parts of that
// size are large enough for a GPU to be busy with one.
const rowsBytes = 256 << 20

// rows are some of the rows of x. copy converts them to float64, row-major.
type rows struct {
	x     *ops.Tensor
	count int64
	copy  *mapping
}

// divided returns the parts of x that are factored one after the other; they are copied to place.
func (f *factoring) divided(whole bool, place *scratchMemory) ([]rows, error) {
	each := f.m
	if !whole && f.x.Far != nil {
		each = min(each, max(rowsBytes/(8*f.n), 1024))
	}
	var parts []rows
	for from := int64(0); from < f.m; from += each {
		x := *f.x
		x.Shape = []int64{min(each, f.m-from), f.n}
		x.Offset += from * x.Strides[0]
		toPlace, err := f.copier(&x, byRows(x.Shape), place)
		if err != nil {
			return nil, err
		}
		parts = append(parts, rows{&x, x.Shape[0], toPlace})
	}
	return parts, nil
}

// readable returns the rows as they are, if cuBLAS can read them.
func (f *factoring) readable(x *ops.Tensor) (matrix, bool) {
	form, ok := blasForm(x, 8)
	if !ok || x.DType != ops.Float64 || x.Far == nil || f.device.remote(x) {
		return matrix{}, false
	}
	form.at = x.Far.Address() + uint64(x.Offset)
	return form, true
}

// gram adds x'x of a number of rows to add*g.
func (f *factoring) gram(x matrix, count int64, g uint64, add float64) error {
	left := x
	left.transposed = !x.transposed
	return f.blas.multiply(product{
		dtype: ops.Float64, m: f.n, n: f.n, k: count, factor: 1, add: add, a: left, b: x, c: matrix{at: g, distance: f.n},
	})
}

// cholesky factors a tall matrix. done is false if the matrix is too close to singular; then x is
// unchanged, refusal says why, and another method can be tried.
func (f *factoring) cholesky(ctx context.Context, want factors) (done bool, err error) {
	n := f.n
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
	var usable *gpu.Function
	if want.after != nil {
		if usable, err = f.device.linalgKernel("usable"); err != nil {
			return false, err
		}
	}
	place, triangle := &scratchMemory{}, &scratchMemory{}
	parts, err := f.divided(!want.onlyR, place)
	if err != nil {
		return false, err
	}
	placeBytes := uint64(8 * n * parts[0].count)
	need := uploadBytes(f.x) + aligned(placeBytes) + 5*aligned(bytes) + aligned(8*lwork) + aligned(24)
	if want.onlyR {
		need += uploadBytes(f.x) // the second pass copies x again
	}
	for _, extra := range want.more {
		need += aligned(extra)
	}
	var store, storeR *mapping
	inPlace := want.q != nil && want.q.DType == ops.Float64
	if want.q != nil && !inPlace {
		if store, err = f.storer(want.q, byRows(want.q.Shape), place); err != nil {
			return false, err
		}
	}
	if want.r != nil {
		if storeR, err = f.storer(want.r, byRows(want.r.Shape), triangle); err != nil {
			return false, err
		}
	}
	// Two info values of potrf, and the distance from the identity. They lie on the device, since
	// kernels that access them many times would wait for the CPU's memory.
	answersAt, answers := f.pinned(24)
	err = f.submit(ctx, need, func(s *submission) {
		if inPlace {
			place.at = want.q.Far.Address()
		} else {
			place.at = s.take(placeBytes)
		}
		var grams, uppers [2]uint64
		for i := range grams {
			grams[i], uppers[i] = s.take(bytes), s.take(bytes)
		}
		triangle.at = s.take(bytes)
		work, flags := s.take(8*lwork), s.take(24)
		s.memset(flags, 0, 24)
		// Read as column-major, x is n by m: all the following calls work on its transpose.
		for pass := range grams {
			for i, part := range parts {
				x, direct := f.readable(part.x)
				if pass > 0 || !want.onlyR || !direct {
					x = matrix{at: place.at, distance: n}
					if pass == 0 || want.onlyR {
						s.evaluate(part.copy, 0)
					}
				}
				s.calls(func() error {
					if pass > 0 && want.onlyR {
						if err := f.divide(place.at, part.count, grams[0]); err != nil {
							return err
						}
					}
					return f.gram(x, part.count, grams[pass], float64(min(i, 1)))
				})
			}
			if pass > 0 {
				s.launch(off, blocksOf(n*n, threads), s.parameters().u64(grams[pass], flags+16).i64(n))
			}
			s.calls(func() error {
				err := f.solver.call("cusolverDnDpotrf", f.solver.handle, solverUpper, uint64(n), grams[pass], uint64(n), work, lwork, flags+8*uint64(pass))
				if err != nil || want.onlyR {
					return err
				}
				return f.divide(place.at, f.m, grams[pass])
			})
			s.launch(f.upper, blocksOf(n*n, threads), s.parameters().u64(grams[pass], uppers[pass]).i64(n, n, n))
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
		if want.after != nil {
			s.launch(usable, blocksOf(n*n, threads), s.parameters().u64(triangle.at, uint64(n), flags).f64(nearIdentity))
			q := place.at
			if want.onlyR {
				q = 0
			}
			want.after(s, q, triangle.at)
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

// divide replaces a number of rows of n elements at x by those of x/r. r is upper triangular and
// column-major.
func (f *factoring) divide(x uint64, count int64, r uint64) error {
	var pinner runtime.Pinner
	defer pinner.Unpin()
	one := [1]float64{1}
	return f.divideColumns(r, x, count, 0, f.n, sharedlib.AddressOf(&pinner, &one[0]))
}

// divideColumns is divide for the columns in [from, to). The columns before from are done already.
func (f *factoring) divideColumns(r, x uint64, count, from, to int64, one uint64) error {
	n := f.n
	if to-from <= trsmColumns {
		return f.blas.call("cublasDtrsm_v2_64", f.blas.handle, blasLeft, blasUpper, blasTransposed, blasNonUnit, uint64(to-from), uint64(count),
			one, r+uint64(8*from*(n+1)), uint64(n), x+uint64(8*from), uint64(n))
	}
	middle := from + (to-from+1)/2
	if err := f.divideColumns(r, x, count, from, middle, one); err != nil {
		return err
	}
	if err := f.blas.multiply(product{
		dtype: ops.Float64, m: count, n: to - middle, k: middle - from, factor: -1, add: 1,
		a: matrix{at: x + uint64(8*from), distance: n}, b: matrix{at: r + uint64(8*(middle*n+from)), transposed: true, distance: n},
		c: matrix{at: x + uint64(8*middle), distance: n},
	}); err != nil {
		return err
	}
	return f.divideColumns(r, x, count, middle, to, one)
}

// householder factors any matrix by reflections. q is nil if only the triangle is wanted.
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
	storeR, err := f.storer(r, byRows(r.Shape), triangle)
	if err != nil {
		return err
	}
	lwork, err := f.solver.workSize("cusolverDnDgeqrf_bufferSize", uint64(m), uint64(n), 8, uint64(m))
	if err != nil {
		return err
	}
	var storeQ *mapping
	if q != nil {
		if storeQ, err = f.storer(q, byColumns(m), place); err != nil {
			return err
		}
		more, err := f.solver.workSize("cusolverDnDorgqr_bufferSize", uint64(m), uint64(k), uint64(k), 8, uint64(m), 8)
		if err != nil {
			return err
		}
		lwork = max(lwork, more)
	}
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
