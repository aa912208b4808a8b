package ops

import (
	"unsafe"

	"github.com/millrace/millrace/worker/ops/simd"
)

// scalarFFT are the steps of transforms in Go, with one lane: the numbers of a buffer lie one
// behind the other. R is the precision.
type scalarFFT[R floating] struct{}

func (scalarFFT[R]) Lanes() int { return 1 }

// complexes returns n complex numbers, each as its two parts.
func complexes[R floating](p unsafe.Pointer, n int) [][2]R { return block[[2]R](p, n) }

func at[R floating](p unsafe.Pointer, offset int64) *R { return (*R)(unsafe.Add(p, offset)) }

func (scalarFFT[R]) Gather(to, from unsafe.Pointer, g *simd.Lines, n int) {
	out := complexes[R](to, n)
	clear(out[g.Count:])
	for k := range g.Count {
		x := [2]R{*at[R](from, k*g.Step)}
		if g.Part != 0 {
			x[1] = *at[R](from, k*g.Step+g.Part)
		}
		if g.Swap != 0 {
			x[0], x[1] = x[1], x[0]
		}
		out[k] = x
	}
}

func (scalarFFT[R]) Scatter(to, from unsafe.Pointer, g *simd.Lines, factor float64) {
	scale := R(factor)
	for k, x := range complexes[R](from, int(g.Count)) {
		if g.Swap != 0 {
			x[0], x[1] = x[1], x[0]
		}
		*at[R](to, int64(k)*g.Step) = x[0] * scale
		if g.Part != 0 {
			*at[R](to, int64(k)*g.Step+g.Part) = x[1] * scale
		}
	}
}

func times[R floating](a, b [2]R) [2]R {
	return [2]R{a[0]*b[0] - a[1]*b[1], a[0]*b[1] + a[1]*b[0]}
}

func (scalarFFT[R]) Turn(x, coarse, fine unsafe.Pointer, n int) {
	w, f := complexes[R](coarse, n), complexes[R](fine, n)
	for k, a := range complexes[R](x, n) {
		complexes[R](x, n)[k] = times(a, times(f[k], w[k]))
	}
}

func (scalarFFT[R]) Multiply(to, a, b unsafe.Pointer, n int, conjugate bool) {
	out, y := complexes[R](to, n), complexes[R](b, n)
	for k, x := range complexes[R](a, n) {
		if conjugate {
			x[1] = -x[1]
		}
		out[k] = times(x, y[k])
	}
}

func (scalarFFT[R]) Unfold(x, roots unsafe.Pointer, h int, _ bool) {
	z := complexes[R](x, h+1)
	z[h] = z[0]
	for k, w := range complexes[R](roots, h/2+1) {
		a, b := z[k], z[h-k]
		e := [2]R{(a[0] + b[0]) / 2, (a[1] - b[1]) / 2}
		t := times([2]R{(a[1] + b[1]) / 2, (b[0] - a[0]) / 2}, w)
		z[h-k] = [2]R{e[0] - t[0], t[1] - e[1]}
		z[k] = [2]R{e[0] + t[0], e[1] + t[1]}
	}
}

func (scalarFFT[R]) Fold(x, roots unsafe.Pointer, h int, _ bool) {
	z := complexes[R](x, h+1)
	for k, w := range complexes[R](roots, h/2+1) {
		a, b := z[k], z[h-k]
		e := [2]R{a[0] + b[0], a[1] - b[1]}
		o := times([2]R{a[0] - b[0], a[1] + b[1]}, [2]R{w[0], -w[1]})
		z[h-k] = [2]R{e[0] + o[1], o[0] - e[1]}
		z[k] = [2]R{e[0] - o[1], e[1] + o[0]}
	}
}

func (scalarFFT[R]) Transform(x, y unsafe.Pointer, radices []int32, table unsafe.Pointer, n int) unsafe.Pointer {
	run, length := 1, n
	for _, radix := range radices {
		r := int(radix)
		m := length / r
		roots, twiddles := passTables[R](table, r, m)
		scalarPass(complexes[R](x, n), complexes[R](y, n), roots, twiddles, run, m, r)
		table = unsafe.Add(table, (len(roots)+len(twiddles))*int(unsafe.Sizeof([2]R{})))
		run, length = run*r, m
		x, y = y, x
	}
	return x
}

// passTables returns the parts of a table for one pass. An odd radix has r cosines and then r
// sines.
func passTables[R floating](table unsafe.Pointer, r, m int) (roots, twiddles [][2]R) {
	if r%2 == 1 {
		roots = complexes[R](table, r)
		table = unsafe.Add(table, r*int(unsafe.Sizeof([2]R{})))
	}
	if m > 1 {
		twiddles = complexes[R](table, (r-1)*m)
	}
	return roots, twiddles
}

// scalarPass is one pass of Stockham's algorithm: x has run transforms of length r*m, interleaved.
func scalarPass[R floating](x, y, roots, twiddles [][2]R, run, m, r int) {
	var a [maxRadix][2]R
	for j := range m {
		for q := range run {
			for k := range r {
				a[k] = x[q+run*(j+m*k)]
			}
			butterfly(a[:r], roots)
			to := q + run*r*j
			y[to] = a[0]
			for k := 1; k < r; k++ {
				if m > 1 {
					a[k] = times(a[k], twiddles[(r-1)*j+k-1])
				}
				y[to+run*k] = a[k]
			}
		}
	}
}

// butterfly transforms a few numbers.
func butterfly[R floating](a, roots [][2]R) {
	switch len(a) {
	case 2:
		x, y := a[0], a[1]
		a[0], a[1] = [2]R{x[0] + y[0], x[1] + y[1]}, [2]R{x[0] - y[0], x[1] - y[1]}
		return
	case 4:
		s, t := [2]R{a[0][0] + a[2][0], a[0][1] + a[2][1]}, [2]R{a[1][0] + a[3][0], a[1][1] + a[3][1]}
		u, v := [2]R{a[0][0] - a[2][0], a[0][1] - a[2][1]}, [2]R{a[1][0] - a[3][0], a[1][1] - a[3][1]}
		a[0], a[2] = [2]R{s[0] + t[0], s[1] + t[1]}, [2]R{s[0] - t[0], s[1] - t[1]}
		a[1], a[3] = [2]R{u[0] + v[1], u[1] - v[0]}, [2]R{u[0] - v[1], u[1] + v[0]}
		return
	}
	oddButterfly(a, block[R](slicePointer(roots), 2*len(a)))
}

// oddButterfly transforms an odd number of numbers: pairs of numbers have conjugate factors.
func oddButterfly[R floating](a [][2]R, roots []R) {
	r, first := len(a), a[0]
	var sum, difference [maxRadix/2 + 1][2]R
	for k := 1; k <= r/2; k++ {
		x, y := a[k], a[r-k]
		sum[k], difference[k] = [2]R{x[0] + y[0], x[1] + y[1]}, [2]R{x[0] - y[0], x[1] - y[1]}
		a[0] = [2]R{a[0][0] + sum[k][0], a[0][1] + sum[k][1]}
	}
	for p := 1; p <= r/2; p++ {
		s, d := first, [2]R{}
		for k := 1; k <= r/2; k++ {
			c, i := roots[k*p%r], roots[r+k*p%r]
			s = [2]R{s[0] + sum[k][0]*c, s[1] + sum[k][1]*c}
			d = [2]R{d[0] + difference[k][0]*i, d[1] + difference[k][1]*i}
		}
		a[p], a[r-p] = [2]R{s[0] + d[1], s[1] - d[0]}, [2]R{s[0] - d[1], s[1] + d[0]}
	}
}
