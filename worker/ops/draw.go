package ops

import (
	"context"
	"math"
	"math/bits"
	"unsafe"

	"github.com/millrace/millrace/worker/ops/simd"
)

// drawLen is the number of words of a piece that one goroutine draws. It is even.
const drawLen = 1 << 15

// draw stores n elements: those of the words of the stream from first on. The bits do not depend on
// the instruction set, nor on the number of goroutines.
func draw(ctx context.Context, to unsafe.Pointer, d simd.Draw, r simd.Random, first uint64, n int64) error {
	size := drawnSize(d)
	return eachPiece(ctx, n, drawLen, func(from, end int64) error {
		drawPiece(simd.Best(), unsafe.Add(to, from*size), d, r, first+uint64(from), int(end-from))
		return nil
	})
}

// drawPiece draws with the kernels of set; nil: in Go.
func drawPiece(set *simd.Set, to unsafe.Pointer, d simd.Draw, r simd.Random, first uint64, n int) {
	if set == nil {
		drawPlain(to, d, &r, first, n)
		return
	}
	// Kernels compute whole blocks. The first word may be the odd one of its block.
	odd := int(first % 2)
	if odd != 0 {
		drawPlain(to, d, &r, first, 1)
	}
	if n > odd {
		r.Block = (first + 1) / 2
		set.Draw(d, &r, n-odd, unsafe.Add(to, int64(odd)*drawnSize(d)))
	}
}

// drawnSize returns the number of bytes of an element. Complex numbers are drawn as two elements.
func drawnSize(d simd.Draw) int64 {
	switch d {
	case simd.DrawUint8:
		return 1
	case simd.DrawInt32, simd.DrawUniformFloat32, simd.DrawNormalFloat32:
		return 4
	default:
		return 8
	}
}

// drawPlain is the definition of the numbers, which the kernels follow.
func drawPlain(to unsafe.Pointer, d simd.Draw, r *simd.Random, first uint64, n int) {
	words := wordSource{key: r.Key, first: first}
	switch d {
	case simd.DrawWords:
		drawEach(block[uint64](to, n), words, func(word uint64) uint64 { return word })
	case simd.DrawUint8:
		drawIntegers(block[uint8](to, n), words, r)
	case simd.DrawInt32:
		drawIntegers(block[int32](to, n), words, r)
	case simd.DrawInt64:
		drawIntegers(block[int64](to, n), words, r)
	case simd.DrawUniformFloat32:
		low, span := float32(r.Low), float32(float32(r.High)-float32(r.Low))
		drawEach(block[float32](to, n), words, func(word uint64) float32 {
			// The conversion keeps the compiler from fusing both steps, which would round only
			// once.
			return low + float32(span*(float32(word>>40)*0x1p-24))
		})
	case simd.DrawUniformFloat64:
		low, span := r.Low, float64(r.High-r.Low)
		drawEach(block[float64](to, n), words, func(word uint64) float64 {
			return low + float64(span*unitInterval(word))
		})
	case simd.DrawNormalFloat32:
		drawNormals(block[float32](to, n), words, r)
	case simd.DrawNormalFloat64:
		drawNormals(block[float64](to, n), words, r)
	}
}

// wordSource is the stream of a key from a word on.
type wordSource struct{ key, first uint64 }

// eachBlock calls visit with the two words of each block, and with the position of the even word
// among n elements. The position is -1 if the first element is an odd word; the last odd word may
// belong to no element.
func (s wordSource) eachBlock(n int, visit func(at int, even, odd uint64)) {
	stream := newPhiloxStream(int64(s.key))
	for at := -int(s.first % 2); at < n; at += 2 {
		even, odd := stream.block((s.first + uint64(at)) / 2)
		visit(at, even, odd)
	}
}

func drawEach[T any](d []T, words wordSource, f func(word uint64) T) {
	words.eachBlock(len(d), func(at int, even, odd uint64) {
		if at >= 0 {
			d[at] = f(even)
		}
		if at+1 < len(d) {
			d[at+1] = f(odd)
		}
	})
}

func drawIntegers[T integer](d []T, words wordSource, r *simd.Random) {
	drawEach(d, words, func(word uint64) T {
		high, _ := bits.Mul64(word, r.Values)
		return T(r.First + int64(high))
	})
}

// drawNormals computes two numbers from each block.
func drawNormals[T floating](d []T, words wordSource, r *simd.Random) {
	words.eachBlock(len(d), func(at int, even, odd uint64) {
		radius := normalRadius(even)
		sine, cosine := sincosTurn(odd)
		if at >= 0 {
			d[at] = T(r.Loc + float64(r.Scale*float64(radius*cosine)))
		}
		if at+1 < len(d) {
			d[at+1] = T(r.Loc + float64(r.Scale*float64(radius*sine)))
		}
	})
}

// unitInterval returns a float64 in [0, 1) made from a word's upper 53 bits.
func unitInterval(word uint64) float64 { return float64(word>>11) * 0x1p-53 }

// normalRadius returns sqrt(-2 ln(1-u)) for the u of a word, as each host computes it: every
// product is rounded before it is added to something. The kernel radius has the same steps. The
// logarithm is that of FreeBSD's e_log.c, which came with this notice:
//
// Copyright (C) 1993 by Sun Microsystems, Inc. All rights reserved. Developed at SunPro, a Sun
// Microsystems, Inc. business. Permission to use, copy, modify, and distribute this software is
// freely granted, provided that this notice is preserved.
func normalRadius(word uint64) float64 {
	x := math.Float64bits(float64(1<<53-word>>11) * 0x1p-53)
	// 1-u = (1+f) * 2^e, with 1+f from sqrt(1/2) to sqrt(2)
	const one, root = 0x3ff0000000000000, 0x3fe6a09e667f3bcd
	k := (x + (one - root)) >> 52
	f := math.Float64frombits(x-k<<52+one) - 1
	e := float64(int64(k) - 1023)
	s := f / (2 + f)
	s2 := s * s
	s4 := s2 * s2
	t1 := s2 * plus(6.666666666666735130e-01, s4, plus(2.857142874366239149e-01, s4,
		plus(1.818357216161805012e-01, s4, 1.479819860511658591e-01)))
	t2 := s4 * plus(3.999999999940941908e-01, s4, plus(2.222219843214978396e-01, s4, 1.531383769920937332e-01))
	half := 0.5 * f * f
	log := float64(e*6.93147180369123816490e-01) -
		((half - (float64(s*(half+(t1+t2))) + float64(e*1.90821492927058770002e-10))) - f)
	return math.Sqrt(-2 * log)
}

// sincosTurn returns sine and cosine of 2 pi u for the u of a word, as each host computes them. The
// polynomials are minimax polynomials in turns, within 2^-58 and 2^-64. The kernel sincos has the
// same steps.
func sincosTurn(word uint64) (sine, cosine float64) {
	// u = q/4 + v, with v from -1/8 to 1/8
	u := word >> 11
	q := (u + 1<<50) >> 51
	v := float64(int64(u-q<<51)) * 0x1p-53
	t := v * v
	s := float64(v*0x1.921fb54442d18p+2) + float64(v*plus(0x1.1a62633145c07p-52, t,
		plus(-0x1.4abbce625be47p+5, t, plus(0x1.466bc67758d85p+6, t, plus(-0x1.32d2cce3332ccp+6, t,
			plus(0x1.5078301b61792p+5, t, plus(-0x1.e300a6598bfb7p+3, t, 0x1.e403d056e4915p+1)))))))
	c := plus(1, t, plus(-0x1.3bd3cc9be45dep+4, t, plus(0x1.03c1f081b5ab0p+6, t, plus(-0x1.55d3c7e3c95bcp+6, t,
		plus(0x1.e1f50683b42d0p+5, t, plus(-0x1.a6d1ecb740509p+4, t, plus(0x1.f9cc6acff3cc6p+2, t, -0x1.b26fe86abf9f6p+0)))))))
	if q%2 != 0 {
		s, c = c, s
	}
	return flipped(s, q&2), flipped(c, (q+1)&2)
}

// flipped returns x with the other sign if two is 2, and x if it is 0.
func flipped(x float64, two uint64) float64 {
	return math.Float64frombits(math.Float64bits(x) ^ two<<62)
}

// plus returns c + x*rest, with the product rounded. It is a step of a polynomial.
func plus(c, x, rest float64) float64 { return c + float64(x*rest) }
