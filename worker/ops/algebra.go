package ops

import (
	"context"
	"math"
	"runtime"
	"unsafe"

	"gonum.org/v1/gonum/blas"

	"github.com/millrace/millrace/worker/ops/lapack"
)

// algebra computes with matrices of one type, by the library or in Go. Its methods are the routines
// of BLAS and LAPACK with that name, and take the same options. Matrices are column-major: element
// (i, j) of a lies at a[i+j*lda]. A call uses one processor, and its result does not depend on how
// many other calls run.
type algebra[T inexact] struct {
	lib    *lapack.Library // nil: in Go
	letter string          // the first of the routines' names
	// multiply is the matrix product of gonum, for row-major matrices.
	multiply func(ta, tb blas.Transpose, m, n, k int, alpha T, a []T, lda int, b []T, ldb int, beta T, c []T, ldc int)
	conj     func(T) T
	real     func(T) float64
	of       func(float64) T
	// size is |x|, or a norm of a complex x, by which pivots are compared.
	size func(T) float64
	// times is how often routines of the library are called, with arrays that move on by steps
	// elements after each call, in the order of their arguments. 0: once.
	times int
	steps [3]int
}

// repeated returns an algebra that carries each routine of BLAS out several times. A call must take
// a moment only. REQUIRES: there is a library.
func (l *algebra[T]) repeated(times int, steps ...int) *algebra[T] {
	r := *l
	r.times = times
	copy(r.steps[:], steps)
	return &r
}

// array returns an array argument: the one with that number.
func (l *algebra[T]) array(number int, a []T) lapack.Arg {
	var zero T
	return lapack.Array(a).Every(l.steps[number] * int(unsafe.Sizeof(zero)))
}

// call calls a routine of BLAS.
func (l *algebra[T]) call(routine string, arguments ...lapack.Arg) (err error) {
	if l.times > 0 {
		_, _, err = l.lib.Each(l.times, l.letter+routine, arguments...)
	} else {
		_, err = l.lib.Call(l.letter+routine, arguments...)
	}
	return err
}

// inexact are the types of linear algebra.
type inexact interface{ floating | complex_ }

func realAlgebra[T floating](ctx context.Context, letter string,
	multiply func(ta, tb blas.Transpose, m, n, k int, alpha T, a []T, lda int, b []T, ldb int, beta T, c []T, ldc int),
) *algebra[T] {
	return &algebra[T]{
		lib: envOf(ctx).Linalg, letter: letter, multiply: multiply,
		conj: func(x T) T { return x },
		real: func(x T) float64 { return float64(x) },
		of:   func(x float64) T { return T(x) },
		size: func(x T) float64 { return math.Abs(float64(x)) },
	}
}

func complexAlgebra[T complex_](ctx context.Context, letter string,
	multiply func(ta, tb blas.Transpose, m, n, k int, alpha T, a []T, lda int, b []T, ldb int, beta T, c []T, ldc int),
) *algebra[T] {
	return &algebra[T]{
		lib: envOf(ctx).Linalg, letter: letter, multiply: multiply,
		conj: func(x T) T { z := complex128(x); return T(complex(real(z), -imag(z))) },
		real: func(x T) float64 { return real(complex128(x)) },
		of:   func(x float64) T { return T(complex(x, 0)) },
		size: func(x T) float64 { z := complex128(x); return math.Abs(real(z)) + math.Abs(imag(z)) },
	}
}

func float64Algebra(ctx context.Context) *algebra[float64] {
	return realAlgebra(ctx, "d", blasInGo.Dgemm)
}

// linear are the operations on matrices of any of the types of linear algebra.
type linear interface {
	multiplyFloats(ctx context.Context, out *Tensor, w *Multiplying) error
	choleskyEach(ctx context.Context, x *Tensor) error
	solveEach(ctx context.Context, w *Solving, out *Tensor) error
}

// algebraOf returns the algebra of a type: float32, float64, complex64 or complex128.
func algebraOf(ctx context.Context, dtype DType) linear {
	switch dtype {
	case Float32:
		return realAlgebra(ctx, "s", blasInGo.Sgemm)
	case Float64:
		return float64Algebra(ctx)
	case Complex64:
		return complexAlgebra(ctx, "c", blasInGo.Cgemm)
	default:
		return complexAlgebra(ctx, "z", blasInGo.Zgemm)
	}
}

// piece is the number of operations between two checks of the context: they take at most some 0.1
// seconds.
func (l *algebra[T]) piece() float64 {
	if l.lib == nil {
		return 1e8
	}
	return 4e9
}

// These are the factors of products. They lie here because a complex factor is passed by its
// address, which must not be on a stack.
var (
	factors64  = [...]complex64{-1, 0, 1}
	factors128 = [...]complex128{-1, 0, 1}
)

// factor returns an argument that is -1, 0 or 1.
func (l *algebra[T]) factor(x int) lapack.Arg {
	switch any(T(0)).(type) {
	case float32:
		return lapack.Float32(float32(x))
	case float64:
		return lapack.Float64(float64(x))
	case complex64:
		return lapack.Array(factors64[x+1:])
	default:
		return lapack.Array(factors128[x+1:])
	}
}

// gemm stores alpha*op(a)*op(b) + beta*c in c, which is m by n. alpha and beta are -1, 0 or 1.
func (l *algebra[T]) gemm(ta, tb byte, m, n, k, alpha int, a []T, lda int, b []T, ldb, beta int, c []T, ldc int) error {
	if l.lib == nil {
		// The transposed matrices are row-major, and c' = op(b)' op(a)'.
		l.multiply(blas.Transpose(tb), blas.Transpose(ta), n, m, k, l.of(float64(alpha)), b, ldb, a, lda, l.of(float64(beta)), c, ldc)
		return nil
	}
	err := l.call("gemm", lapack.Letter(ta), lapack.Letter(tb), lapack.Int(m), lapack.Int(n), lapack.Int(k),
		l.factor(alpha), l.array(0, a), lapack.Int(lda), l.array(1, b), lapack.Int(ldb), l.factor(beta), l.array(2, c), lapack.Int(ldc))
	keepAlive(a, b, c)
	return err
}

// gemv stores op(a)*x in y, where op(a) is m by n if trans is N, and otherwise its transpose.
// Elements of x are incx apart. REQUIRES: there is a library.
func (l *algebra[T]) gemv(trans byte, m, n int, a []T, lda int, x []T, incx int, beta int, y []T) error {
	err := l.call("gemv", lapack.Letter(trans), lapack.Int(m), lapack.Int(n), l.factor(1), l.array(0, a), lapack.Int(lda),
		l.array(1, x), lapack.Int(incx), l.factor(beta), l.array(2, y), lapack.Int(1))
	keepAlive(a, x, y)
	return err
}

// syrk stores op(a)*op(a)' + beta*c in the upper triangle of c, which is n by n; op(a) is n by k.
// Complex elements are not conjugated. REQUIRES: there is a library.
func (l *algebra[T]) syrk(trans byte, n, k int, a []T, lda, beta int, c []T, ldc int) error {
	_, err := l.lib.Call(l.letter+"syrk", lapack.Letter('U'), lapack.Letter(trans), lapack.Int(n), lapack.Int(k),
		l.factor(1), lapack.Array(a), lapack.Int(lda), l.factor(beta), lapack.Array(c), lapack.Int(ldc))
	keepAlive(a, c)
	return err
}

// trsm overwrites the m by n matrix b with the solution x of op(a)*x = b if the side is L, and of
// x*op(a) = b if it is R.
func (l *algebra[T]) trsm(side, uplo, trans, diag byte, m, n int, a []T, lda int, b []T, ldb int) error {
	if l.lib == nil {
		l.substitute(side == 'L', uplo == 'L', trans, diag == 'U', m, n, a, lda, b, ldb)
		return nil
	}
	err := l.call("trsm", lapack.Letter(side), lapack.Letter(uplo), lapack.Letter(trans), lapack.Letter(diag),
		lapack.Int(m), lapack.Int(n), l.factor(1), l.array(0, a), lapack.Int(lda), l.array(1, b), lapack.Int(ldb))
	keepAlive(a, b)
	return err
}

// substitute is trsm. It solves for one line of b after another: a row if left, else a column.
func (l *algebra[T]) substitute(left, lower bool, trans byte, unit bool, m, n int, a []T, lda int, b []T, ldb int) {
	lines, length, line, next := n, m, ldb, 1
	if left {
		lines, length, line, next = m, n, 1, ldb
	}
	direct := left == (trans == 'N')
	coefficient := func(i, k int) T {
		x := a[k+i*lda : k+i*lda+1]
		if direct {
			x = a[i+k*lda : i+k*lda+1]
		}
		if trans == 'C' {
			return l.conj(x[0])
		}
		return x[0]
	}
	for step := range lines {
		i := step
		if lower != direct {
			i = lines - 1 - step
		}
		for before := range step {
			k := before
			if lower != direct {
				k = lines - 1 - before
			}
			f := coefficient(i, k)
			for at := range length {
				b[i*line+at*next] -= f * b[k*line+at*next]
			}
		}
		if !unit {
			f := coefficient(i, i)
			for at := range length {
				b[i*line+at*next] /= f
			}
		}
	}
}

// potrf overwrites the upper triangle of a with the factor u of a = u'u, where u' is the conjugate
// transpose. An info of more than 0 is the number of the first leading minor that is not positive.
func (l *algebra[T]) potrf(n int, a []T, lda int) (info int, err error) {
	if l.lib != nil {
		info, err = l.lib.Call(l.letter+"potrf", lapack.Letter('U'), lapack.Int(n), lapack.Array(a), lapack.Int(lda), lapack.Info())
		keepAlive(a)
		if info != 0 || err != nil {
			return info, err
		}
		for j := range n { // not every library looks for NaN
			if d := l.real(a[j+j*lda]); !(d > 0) {
				return j + 1, nil
			}
		}
		return 0, nil
	}
	for j := range n {
		column := a[j*lda : j*lda+j+1]
		for i := range j {
			other, sum := a[i*lda:i*lda+i+1], column[i]
			for k := range i {
				sum -= l.conj(other[k]) * column[k]
			}
			column[i] = sum / other[i]
		}
		d := l.real(column[j])
		for _, x := range column[:j] {
			d -= l.real(l.conj(x) * x)
		}
		if !(d > 0) {
			return j + 1, nil
		}
		column[j] = l.of(math.Sqrt(d))
	}
	return 0, nil
}

// potrfEach is potrf for several matrices of n rows, which follow each other, and clears the other
// triangles. It returns the number of the first matrix whose info is more than 0.
// REQUIRES: there is a library.
func (l *algebra[T]) potrfEach(n int, a []T) (matrix, info int, err error) {
	var zero T
	done, info, err := l.lib.Each(len(a)/(n*n), l.letter+"potrf",
		lapack.Letter('U'), lapack.Int(n), lapack.Array(a).Every(n*n*int(unsafe.Sizeof(zero))), lapack.Int(n), lapack.Info())
	keepAlive(a)
	if err != nil {
		return 0, 0, err
	}
	for m := range done {
		one := a[m*n*n : (m+1)*n*n]
		for j := range n { // not every library looks for NaN
			if !(l.real(one[j+j*n]) > 0) {
				return m, j + 1, nil
			}
		}
		clearAbove(n, one)
	}
	return done, info, nil
}

// getrfEach is getrf for several matrices of n rows, which follow each other. It returns the number
// of the first matrix whose info is more than 0.
// REQUIRES: there is a library.
func (l *algebra[T]) getrfEach(n int, a []T, pivots []int) (matrix, info int, err error) {
	var zero T
	clear(pivots)
	matrix, info, err = l.lib.Each(len(a)/(n*n), l.letter+"getrf", lapack.Int(n), lapack.Int(n),
		lapack.Array(a).Every(n*n*int(unsafe.Sizeof(zero))), lapack.Int(n), lapack.Array(pivots).Every(n*int(unsafe.Sizeof(n))), lapack.Info())
	keepAlive(a)
	runtime.KeepAlive(pivots)
	for m := range matrix {
		unpack(pivots[m*n : (m+1)*n])
	}
	return matrix, info, err
}

// getrf factors the m by n matrix a, m >= n, into a unit lower and an upper triangular matrix, with
// its rows exchanged: row i with row pivots[i], one after the other, counted from 0. An info of
// more than 0 is the number of the first column whose pivot is 0.
func (l *algebra[T]) getrf(m, n int, a []T, lda int, pivots []int) (info int, err error) {
	if l.lib != nil {
		clear(pivots[:n])
		info, err = l.lib.Call(l.letter+"getrf", lapack.Int(m), lapack.Int(n), lapack.Array(a), lapack.Int(lda), lapack.Array(pivots), lapack.Info())
		keepAlive(a)
		runtime.KeepAlive(pivots)
		unpack(pivots[:n])
		return info, err
	}
	for j := range n {
		column, best := a[j*lda:j*lda+m], j
		for i := j + 1; i < m; i++ {
			if l.size(column[i]) > l.size(column[best]) {
				best = i
			}
		}
		pivots[j] = best
		if column[best] == 0 {
			if info == 0 {
				info = j + 1
			}
			continue
		}
		for k := range n {
			a[j+k*lda], a[best+k*lda] = a[best+k*lda], a[j+k*lda]
		}
		for i := j + 1; i < m; i++ {
			column[i] /= column[j]
		}
		for k := j + 1; k < n; k++ {
			to, f := a[k*lda:k*lda+m], a[j+k*lda]
			for i := j + 1; i < m; i++ {
				to[i] -= column[i] * f
			}
		}
	}
	return info, nil
}

// unpack converts the pivots that a library has stored, which count from 1, in integers of 32 or of
// 64 bits. Integers of 32 bits fill only the first half: the second one lies in the upper half of
// the first element, and is not 0.
func unpack(pivots []int) {
	narrow := pivots[0]>>32 != 0
	for i := len(pivots) - 1; i >= 0; i-- {
		if narrow {
			pivots[i] = pivots[i/2] >> (32 * (i % 2)) & math.MaxUint32
		}
		pivots[i]--
	}
}

func keepAlive[T any](arrays ...[]T) {
	for _, a := range arrays {
		runtime.KeepAlive(unsafe.SliceData(a))
	}
}
