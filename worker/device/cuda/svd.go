package cuda

import (
	"context"
	"fmt"
	"math"
	"runtime"

	"github.com/millrace/millrace/internal/sharedlib"
	gpu "github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/worker/ops"
)

// tallRows is how many rows of u are computed at a time from the rows of q.
const tallRows = 8192

// svd factors x. u and vt are nil if only the singular values are wanted.
func (r *run) svd(ctx context.Context, x, u, sigma, vt *ops.Tensor) error {
	m, n := x.Shape[0], x.Shape[1]
	if m == 0 || n == 0 {
		return nil
	}
	f, err := r.newFactoring(x)
	if err != nil {
		return err
	}
	if m >= tallness*n {
		done, err := f.tallSVD(ctx, u, sigma, vt)
		if done || err != nil {
			return err
		}
		f.refused("the factors of r", "the polar decomposition of the whole")
	}
	largest, err := f.largest(ctx)
	if err != nil {
		return err
	}
	if !(largest <= math.MaxFloat64) {
		return ops.Failure(f.op, "the singular values would not converge: there is NaN or infinity in x")
	}
	if largest > 0 { // zeros have no polar decomposition
		if done, err := f.anySVD(ctx, true, u, sigma, vt); done || err != nil {
			return err
		}
		f.refused("the polar decomposition", "QR iterations")
	}
	_, err = f.anySVD(ctx, false, u, sigma, vt)
	return err
}

// largest returns the largest absolute value of x. With NaN or infinity, the routines for singular
// values may do anything.
func (f *factoring) largest(ctx context.Context) (float64, error) {
	kernel, err := f.device.linalgKernel("largest")
	if err != nil {
		return 0, err
	}
	place := &scratchMemory{}
	toWork, err := f.copier(f.x, byRows(f.x.Shape), place)
	if err != nil {
		return 0, err
	}
	bytes := uint64(8 * f.m * f.n)
	at, answer := f.pinned(8)
	err = f.submit(ctx, uploadBytes(f.x)+aligned(bytes)+aligned(8), func(s *submission) {
		place.at = s.take(bytes)
		found := s.take(8)
		s.memset(found, 0, 8)
		s.evaluate(toWork, 0)
		s.launch(kernel, min(blocksOf(f.m*f.n, threads), 4096), s.parameters().u64(place.at, uint64(f.m*f.n), found))
		s.copy(gpu.ToHost(at, found, 8))
	})
	return math.Float64frombits(le.Uint64(answer)), err
}

// routine is one of cuSOLVER's routines for the singular values of a column-major matrix that has
// at least as many rows as columns. gesvd uses QR iterations. gesvdp uses the polar decomposition:
// it is several times faster, but perturbs a nearly singular matrix, and reports by how much. Both
// destroy the matrix. left receives as many columns as the matrix has. right receives the right
// factor, a columns by columns matrix: column-major from gesvdp, row-major from gesvd.
//
// Without vectors there are only the values, and left and right are 0. Only gesvd can do that:
// gesvdp of cuSOLVER 12.0 answers CUSOLVER_STATUS_INTERNAL_ERROR, and its kernels then access
// memory that is not theirs. But gesvdp with vectors is also the faster way to the values alone:
// for 1000 x 1000 float64 on an H200 it takes 30.6 ms, and gesvd without vectors 65.4 ms. So the
// vectors that nobody wants are computed in scratch memory, and gesvd is for the matrices that
// gesvdp refuses, and for zeros.
type routine struct {
	f             *factoring
	polar         bool
	vectors       bool
	rows, columns int64
	workBytes     uint64 // on the device; the last infoBytes are for info
	hostWork      []byte
	infoAt        uint64
	info          []byte
	errorAt       uint64
	error         []byte
}

// newRoutine plans a routine. REQUIRES: vectors, if polar.
func (f *factoring) newRoutine(pinner *runtime.Pinner, polar, vectors bool, rows, columns int64) (*routine, error) {
	v := &routine{f: f, polar: polar, vectors: vectors, rows: rows, columns: columns}
	v.infoAt, v.info = f.pinned(8)
	v.errorAt, v.error = f.pinned(8)
	clear(v.error)
	if !polar {
		if err := narrow(f.op, rows, columns); err != nil {
			return nil, err
		}
		n, err := f.solver.workSize("cusolverDnDgesvd_bufferSize", uint64(rows), uint64(columns))
		v.workBytes = 8*n + infoBytes
		return v, err
	}
	var hostBytes uint64
	err := f.device.enter(func() error {
		arguments := append(v.polarArguments(0, 0, 0, 0), sharedlib.AddressOf(pinner, &v.workBytes), sharedlib.AddressOf(pinner, &hostBytes))
		return f.solver.call("cusolverDnXgesvdp_bufferSize", arguments...)
	})
	v.workBytes = aligned(v.workBytes) + infoBytes
	v.hostWork = make([]byte, hostBytes+1)
	pinner.Pin(&v.hostWork[0])
	return v, err
}

func (v *routine) polarArguments(a, values, left, right uint64) []uint64 {
	rows, columns := uint64(v.rows), uint64(v.columns)
	return []uint64{
		v.f.solver.handle, v.f.solver.params, solverVector, solverEconomy, rows, columns,
		blasR64F, a, rows, blasR64F, values, blasR64F, left, rows, blasR64F, right, columns, blasR64F,
	}
}

// infoBytes is the size of the part of a routine's work memory that is reserved for info.
const infoBytes = 256

// infoIn returns the address of the routine's info in its work memory.
func (v *routine) infoIn(work uint64) uint64 { return work + v.workBytes - infoBytes }

// call submits the routine. REQUIRES: called within enter; work has workBytes.
func (v *routine) call(a, values, left, right, work uint64) error {
	room, info := v.workBytes-infoBytes, v.infoIn(work)
	if v.polar {
		return v.f.solver.call("cusolverDnXgesvdp", append(v.polarArguments(a, values, left, right),
			work, room, addressOfBytes(v.hostWork), uint64(len(v.hostWork)-1), info, v.errorAt)...)
	}
	rows, columns, vectors := uint64(v.rows), uint64(v.columns), uint64('N')
	if v.vectors {
		vectors = 'S'
	}
	return v.f.solver.call("cusolverDnDgesvd", v.f.solver.handle, vectors, vectors, rows, columns, a, rows, values, left, rows, right, columns,
		work, room/8, 0, info)
}

// outcome returns false if another routine has to be tried.
func (v *routine) outcome() (bool, error) {
	info := le.Uint32(v.info)
	if v.polar {
		perturbed := math.Float64frombits(le.Uint64(v.error))
		v.f.refusal = fmt.Sprintf("gesvdp answers %d and has perturbed it by %.3g", int32(info), perturbed)
		return info == 0 && perturbed == 0, nil
	}
	if info != 0 {
		return false, solverError(v.f.op, "gesvd", info)
	}
	return true, nil
}

// tallSVD factors x = q*r and r = w*diag(s)*vt, and then computes u = q*w.
func (f *factoring) tallSVD(ctx context.Context, u, sigma, vt *ops.Tensor) (bool, error) {
	if u == nil {
		return f.tallValues(ctx, sigma)
	}
	m, n := f.m, f.n
	var pinner runtime.Pinner
	defer pinner.Unpin()
	v, err := f.newRoutine(&pinner, true, true, n, n)
	if err != nil {
		return false, err
	}
	var places [3]scratchMemory // of u, sigma, vt
	storeU, err := f.storer(u, byRows(u.Shape), &places[0])
	if err != nil {
		return false, err
	}
	storeS, err := f.storer(sigma, byRows(sigma.Shape), &places[1])
	if err != nil {
		return false, err
	}
	storeVT, err := f.storer(vt, byRows(vt.Shape), &places[2])
	if err != nil {
		return false, err
	}
	rows := min(m, tallRows)
	square, block := uint64(8*n*n), uint64(8*rows*n)
	inPlace := u.DType == ops.Float64
	q := (*ops.Tensor)(nil)
	if inPlace {
		q = u
	}
	done, err := f.cholesky(ctx, factors{q: q, after: func(s *submission, q, r uint64) {
		w, right, values := s.take(square), s.take(square), s.take(uint64(8*n))
		work, part := s.take(v.workBytes), s.take(block)
		// Read as column-major, r is its transpose. The left factors of the transpose are the right
		// factors of r. Read as row-major, they have the layout of vt.
		s.calls(func() error { return v.call(r, values, right, w, work) })
		s.copy(gpu.ToHost(v.infoAt, v.infoIn(work), 8))
		for row := int64(0); row < m; row += rows {
			count := min(rows, m-row)
			at := q + uint64(8*row*n)
			s.copy(gpu.OnDevice(part, at, uint64(8*count*n)))
			s.calls(func() error {
				return f.blas.multiply(product{
					dtype: ops.Float64, m: count, n: n, k: n, factor: 1,
					a: matrix{at: part, distance: n}, b: matrix{at: w, transposed: true, distance: n}, c: matrix{at: at, distance: n},
				})
			})
		}
		places[0].at, places[1].at, places[2].at = q, values, right
		if !inPlace {
			s.evaluate(storeU, 0)
		}
		s.evaluate(storeS, 0)
		s.evaluate(storeVT, 0)
	}, more: []uint64{square, square, uint64(8 * n), v.workBytes, block}})
	if !done || err != nil {
		return false, err
	}
	return v.outcome()
}

// tallValues computes the singular values of r, which are those of x. The vectors of r, n by n,
// exist in scratch memory only.
func (f *factoring) tallValues(ctx context.Context, sigma *ops.Tensor) (bool, error) {
	n := f.n
	var pinner runtime.Pinner
	defer pinner.Unpin()
	v, err := f.newRoutine(&pinner, true, true, n, n)
	if err != nil {
		return false, err
	}
	values := &scratchMemory{}
	store, err := f.storer(sigma, byRows(sigma.Shape), values)
	if err != nil {
		return false, err
	}
	square := uint64(8 * n * n)
	done, err := f.cholesky(ctx, factors{onlyR: true, after: func(s *submission, _, r uint64) {
		values.at = s.take(uint64(8 * n))
		left, right, work := s.take(square), s.take(square), s.take(v.workBytes)
		s.calls(func() error { return v.call(r, values.at, left, right, work) })
		s.copy(gpu.ToHost(v.infoAt, v.infoIn(work), 8))
		s.evaluate(store, 0)
	}, more: []uint64{uint64(8 * n), square, square, v.workBytes}})
	if !done || err != nil {
		return false, err
	}
	return v.outcome()
}

// anySVD factors any matrix in one step. It factors x or its transpose, column-major: the one that
// has no more columns than rows. The polar decomposition makes the vectors also if
// nobody wants them.
func (f *factoring) anySVD(ctx context.Context, polar bool, u, sigma, vt *ops.Tensor) (bool, error) {
	m, n := f.m, f.n
	k, long := min(m, n), max(m, n)
	wide, wanted := n >= m, u != nil
	vectors := wanted || polar
	place, values, left, right := &scratchMemory{}, &scratchMemory{}, &scratchMemory{}, &scratchMemory{}
	layout := byColumns(m)
	if wide {
		layout = byRows(f.x.Shape)
	}
	toWork, err := f.copier(f.x, layout, place)
	if err != nil {
		return false, err
	}
	var pinner runtime.Pinner
	defer pinner.Unpin()
	v, err := f.newRoutine(&pinner, polar, vectors, long, k)
	if err != nil {
		return false, err
	}
	need := uploadBytes(f.x) + aligned(uint64(8*m*n)) + aligned(uint64(8*k)) + aligned(v.workBytes)
	var storeU, storeVT *mapping
	if vectors {
		need += aligned(uint64(8*m*n)) + aligned(uint64(8*k*k))
	}
	if wanted {
		if storeU, storeVT, err = f.vectorStorers(polar, u, vt, left, right); err != nil {
			return false, err
		}
	}
	storeS, err := f.storer(sigma, byRows(sigma.Shape), values)
	if err != nil {
		return false, err
	}
	if err := f.submit(ctx, need, func(s *submission) {
		place.at, values.at = s.take(uint64(8*m*n)), s.take(uint64(8*k))
		work := s.take(v.workBytes)
		if vectors {
			left.at, right.at = s.take(uint64(8*m*n)), s.take(uint64(8*k*k))
		}
		s.evaluate(toWork, 0)
		s.calls(func() error { return v.call(place.at, values.at, left.at, right.at, work) })
		s.copy(gpu.ToHost(v.infoAt, v.infoIn(work), 8))
		s.evaluate(storeS, 0)
		if wanted {
			s.evaluate(storeU, 0)
			s.evaluate(storeVT, 0)
		}
	}); err != nil {
		return false, err
	}
	return v.outcome()
}

// vectorStorers plans the conversion of the vectors of anySVD to u and vt.
func (f *factoring) vectorStorers(polar bool, u, vt *ops.Tensor, left, right *scratchMemory) (storeU, storeVT *mapping, err error) {
	k := min(f.m, f.n)
	wide := f.n >= f.m
	rightAs := byRows([]int64{k, k})
	if polar == wide { // u is the right factor of the transpose; vt is the transpose of x's
		rightAs = byColumns(k)
	}
	if wide {
		storeU, err = f.storer(u, rightAs, right)
	} else {
		storeU, err = f.storer(u, byColumns(f.m), left)
	}
	if err != nil {
		return nil, nil, err
	}
	if wide {
		storeVT, err = f.storer(vt, byRows(vt.Shape), left)
	} else {
		storeVT, err = f.storer(vt, rightAs, right)
	}
	return storeU, storeVT, err
}
