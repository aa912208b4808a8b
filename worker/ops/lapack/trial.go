package lapack

import (
	"errors"
	"fmt"
	"math"
)

// try multiplies two matrices and factors one, and checks the results: a library whose routines
// have the right names may still take other arguments. The matrices are large enough for the
// kernels that a library has for this processor.
func (l *Library) try() error {
	const n = 24
	a, b := make([]float64, n*n), make([]float64, n*n)
	for i := range a {
		a[i], b[i] = math.Sin(float64(i)), math.Cos(float64(3*i))
	}
	ab := make([]float64, n*n)
	if err := l.multiply(a, b, ab, n); err != nil {
		return err
	}
	if !near(ab, product(a, b, n)) {
		return errors.New("DGEMM returned a wrong product")
	}
	u, vt, s := make([]float64, n*n), make([]float64, n*n), make([]float64, n)
	work, places := make([]float64, 16*n*n), make([]int64, 8*n)
	factored := append([]float64(nil), a...)
	info, err := l.Call("dgesdd", Letter('A'), Int(n), Int(n), Array(factored), Int(n), Array(s), Array(u), Int(n),
		Array(vt), Int(n), Array(work), Int(len(work)), Array(places), Info())
	if err != nil || info != 0 {
		return fmt.Errorf("DGESDD ended with info %d: %w", info, err)
	}
	for j, value := range s {
		for i := range n {
			u[i+j*n] *= value
		}
	}
	if !near(product(u, vt, n), a) {
		return errors.New("DGESDD returned factors of another matrix")
	}
	return nil
}

// multiply stores the product of two matrices of n rows.
func (l *Library) multiply(a, b, ab []float64, n int) error {
	_, err := l.Call("dgemm", Letter('N'), Letter('N'), Int(n), Int(n), Int(n), Float64(1), Array(a), Int(n),
		Array(b), Int(n), Float64(0), Array(ab), Int(n))
	return err
}

// product returns the product of two matrices of n rows.
func product(a, b []float64, n int) []float64 {
	ab := make([]float64, n*n)
	for j := range n {
		for k := range n {
			for i := range n {
				ab[i+j*n] += a[i+k*n] * b[k+j*n]
			}
		}
	}
	return ab
}

// near reports whether numbers of about 1 differ by rounding only. NaN is not near.
func near(a, b []float64) bool {
	for i := range a {
		if !(math.Abs(a[i]-b[i]) < 1e-10) {
			return false
		}
	}
	return true
}
