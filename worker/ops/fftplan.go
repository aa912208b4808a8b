package ops

import (
	"context"
	"math"
	"math/bits"
	"sync"
	"unsafe"

	"github.com/millrace/millrace/worker/ops/simd"
)

// maxRadix is the largest factor of a length that a pass of a transform can take.
const maxRadix = 13

// radicesOf returns the factors of the passes of a transform of that length, or false if the length
// has a larger prime factor.
func radicesOf(n int) (radices []int32, ok bool) {
	for _, r := range []int{4, 2, 3, 5, 7, 11, 13} {
		for n%r == 0 {
			radices, n = append(radices, int32(r)), n/r
		}
	}
	return radices, n == 1
}

// smoothFrom returns the least length from n on that has no prime factors but 2, 3 and 5.
func smoothFrom(n int) int {
	for ; ; n++ {
		rest := n
		for _, p := range []int{2, 3, 5} {
			for rest%p == 0 {
				rest /= p
			}
		}
		if rest == 1 {
			return n
		}
	}
}

// root returns exp(-2*pi*i*k/n), for n below 2^60. The angle that it takes the sine of is at most
// pi/4, so both parts are exact within about one unit in the last place.
func root(k, n uint64) complex128 {
	k %= n
	octant, rest := 8*k/n, 8*k%n
	if octant%2 == 1 {
		rest = n - rest
	}
	s, c := math.Sincos(math.Pi / 4 * (float64(rest) / float64(n)))
	if octant == 1 || octant == 2 || octant == 5 || octant == 6 {
		s, c = c, s
	}
	if octant >= 2 && octant < 6 {
		c = -c
	}
	if octant < 4 {
		s = -s
	}
	return complex(c, s)
}

// putComplex stores a complex number in the precision of a table.
func putComplex(table []byte, i int, wide bool, z complex128) {
	if wide {
		*(*complex128)(unsafe.Pointer(&table[16*i])) = z
	} else {
		*(*complex64)(unsafe.Pointer(&table[8*i])) = complex64(z)
	}
}

// complexBytes returns the size of a complex number.
func complexBytes(wide bool) int {
	if wide {
		return 16
	}
	return 8
}

// lanesPlan is a transform of all lanes of a buffer; see simd.FFT.
type lanesPlan struct {
	n       int
	radices []int32
	table   []byte
}

func (p *lanesPlan) run(f simd.FFT, x, y unsafe.Pointer) unsafe.Pointer {
	return f.Transform(x, y, p.radices, slicePointer(p.table), p.n)
}

func newLanesPlan(n int, radices []int32, wide bool) *lanesPlan {
	p := &lanesPlan{n: n, radices: radices}
	size, length := 0, n
	for _, r := range radices {
		length /= int(r)
		size += int(r)*int(r%2) + (int(r)-1)*length
	}
	p.table = heapBytes(int64(size * complexBytes(wide)))
	i, length := 0, n
	put := func(z complex128) {
		putComplex(p.table, i, wide, z)
		i++
	}
	for _, radix := range radices {
		r := int(radix)
		if r%2 == 1 {
			putRoots(p.table[i*complexBytes(wide):], r, wide)
			i += r
		}
		m := length / r
		for j := 0; j < m && m > 1; j++ {
			for k := 1; k < r; k++ {
				put(root(uint64(j*k), uint64(length)))
			}
		}
		length = m
	}
	return p
}

// putRoots stores the cosines and then the sines of 2*pi*k/r.
func putRoots(table []byte, r int, wide bool) {
	for k := range r {
		z := root(uint64(k), uint64(r))
		if wide {
			all := block[float64](slicePointer(table), 2*r)
			all[k], all[r+k] = real(z), -imag(z)
		} else {
			all := block[float32](slicePointer(table), 2*r)
			all[k], all[r+k] = float32(real(z)), float32(-imag(z))
		}
	}
}

// linePlan is a transform of one line of n numbers, in one of three ways:
//   - one, in one lane of a buffer: for short lines;
//   - columns and rows: the line is a matrix, whose columns are transformed in lanes, multiplied by
//     factors, and whose rows are then transformed in lanes (Bailey, "FFTs in external or
//     hierarchical memory", 1990);
//   - convolution: a length with a large prime factor becomes a convolution of a length without
//     (Bluestein, "A linear filtering approach to the computation of the DFT", 1968).
type linePlan struct {
	n    int
	wide bool
	one  *lanesPlan

	columns, rows *lanesPlan // of lengths whose product is n
	// fine has the roots of index k*lane of n, in the layout of a buffer. low and high have those
	// of the indices from 0 on, and of the multiples of len(low).
	fine      []byte
	low, high []complex128

	convolution *linePlan
	chirp       []byte // exp(-pi*i*k*k/n)
	// spectrum is the conjugate of the transform of the conjugate of the chirp, divided by the
	// length of the convolution.
	spectrum []byte
}

// shortLine is the length up to which a line is transformed in one lane.
const shortLine = 32

// newLinePlan plans a transform. ctx gives the working memory of large tables.
func newLinePlan(ctx context.Context, f simd.FFT, n int, wide bool) (*linePlan, error) {
	p := &linePlan{n: n, wide: wide}
	radices, smooth := radicesOf(n)
	if !smooth {
		return p, p.planConvolution(ctx, f)
	}
	first := int(math.Sqrt(float64(n)))
	for n%first != 0 {
		first--
	}
	if n <= shortLine || first < 4 {
		p.one = newLanesPlan(n, radices, wide)
		return p, nil
	}
	second := n / first
	radices, _ = radicesOf(first)
	p.columns = newLanesPlan(first, radices, wide)
	if p.rows = p.columns; second != first {
		radices, _ = radicesOf(second)
		p.rows = newLanesPlan(second, radices, wide)
	}
	size := complexBytes(wide)
	lanes := f.Lanes()
	p.fine = heapBytes(int64(first * lanes * size))
	for k := range first {
		for l := range lanes {
			z, at := root(uint64(k*l), uint64(n)), (2*k*lanes+l)*size/2
			if wide {
				*(*float64)(unsafe.Pointer(&p.fine[at])) = real(z)
				*(*float64)(unsafe.Pointer(&p.fine[at+8*lanes])) = imag(z)
			} else {
				*(*float32)(unsafe.Pointer(&p.fine[at])) = float32(real(z))
				*(*float32)(unsafe.Pointer(&p.fine[at+4*lanes])) = float32(imag(z))
			}
		}
	}
	step := 1 << (bits.Len(uint(n)) / 2)
	p.low, p.high = make([]complex128, step), make([]complex128, n/step+1)
	for i := range p.low {
		p.low[i] = root(uint64(i), uint64(n))
	}
	for i := range p.high {
		p.high[i] = root(uint64(i*step), uint64(n))
	}
	return p, nil
}

// coarse stores the roots of index k*column, for k up to the length of columns.
func (p *linePlan) coarse(table []byte, column int) {
	shift, mask, index := bits.Len(uint(len(p.low)))-1, len(p.low)-1, 0
	for k := range p.columns.n {
		putComplex(table, k, p.wide, p.high[index>>shift]*p.low[index&mask])
		if index += column; index >= p.n {
			index -= p.n
		}
	}
}

func (p *linePlan) planConvolution(ctx context.Context, f simd.FFT) error {
	n, m, size := p.n, smoothFrom(2*p.n-1), complexBytes(p.wide)
	var err error
	if p.convolution, err = newLinePlan(ctx, f, m, p.wide); err != nil {
		return err
	}
	if p.chirp, err = tableBytes(ctx, n*size); err != nil {
		return err
	}
	if p.spectrum, err = tableBytes(ctx, m*size); err != nil {
		return err
	}
	response, err := tableBytes(ctx, m*size)
	if err != nil {
		return err
	}
	t := transformer{ctx: ctx, fft: f, wide: p.wide, pool: &scratchPool{ctx: ctx}, each: parallelOf(ctx)}
	// The loop below sets the n numbers at the front and the n-1 at the end.
	gap := response[n*size : (m-n+1)*size]
	if err := t.stretches(m-2*n+1, func(i, j int) { clear(gap[i*size : j*size]) }); err != nil {
		return err
	}
	square, period := uint64(0), 2*uint64(n)
	for k := range n {
		if k%checkEvery == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		z := root(square, period)
		putComplex(p.chirp, k, p.wide, z)
		z = complex(real(z)/float64(m), -imag(z)/float64(m))
		putComplex(response, k, p.wide, z)
		if k > 0 {
			putComplex(response, m-k, p.wide, z)
		}
		square = (square + 2*uint64(k) + 1) % period
	}
	if err := t.line(p.convolution, t.contiguous(p.spectrum, m), t.contiguous(response, m), false, 1); err != nil {
		return err
	}
	return t.stretches(m, func(i, j int) {
		for k := i; k < j; k++ {
			if p.wide {
				z := (*complex128)(unsafe.Pointer(&p.spectrum[16*k]))
				*z = complex(real(*z), -imag(*z))
			} else {
				z := (*complex64)(unsafe.Pointer(&p.spectrum[8*k]))
				*z = complex(real(*z), -imag(*z))
			}
		}
	})
}

// foldRoots returns exp(-pi*i*k/h) for k to h/2.
func foldRoots(ctx context.Context, h int, wide bool) ([]byte, error) {
	size := (h/2 + 1) * complexBytes(wide)
	return keptTable(tableKey{"fold", h, 0, wide}, size, func() ([]byte, error) {
		b, err := tableBytes(ctx, size)
		for k := 0; k <= h/2 && err == nil; k++ {
			if putComplex(b, k, wide, root(uint64(k), 2*uint64(h))); k%checkEvery == 0 {
				err = ctx.Err()
			}
		}
		return b, err
	})
}

// cachedLanesPlan returns newLanesPlan, or the same plan as before.
func cachedLanesPlan(n int, radices []int32, wide bool) *lanesPlan {
	p, _ := keptTable(tableKey{"lanes", n, 0, wide}, 2*n*complexBytes(wide), func() (*lanesPlan, error) {
		return newLanesPlan(n, radices, wide), nil
	})
	return p
}

// cachedLinePlan returns newLinePlan, or the same plan as before.
func cachedLinePlan(ctx context.Context, f simd.FFT, n int, wide bool) (*linePlan, error) {
	bytes := 4 * int(math.Sqrt(float64(n))) * f.Lanes() * complexBytes(wide) // about
	if _, smooth := radicesOf(n); !smooth {
		bytes = 2 * smoothFrom(2*n) * complexBytes(wide)
	}
	return keptTable(tableKey{"line", n, f.Lanes(), wide}, bytes, func() (*linePlan, error) { return newLinePlan(ctx, f, n, wide) })
}

const (
	// maxTableBytes is the size up to which a table comes from the Go heap, and may be kept. Larger
	// ones are working memory of the call.
	maxTableBytes = 32 << 20
	// keptTableBytes limits the tables that are kept for further calls.
	keptTableBytes = 64 << 20
)

// tableBytes returns zeroed memory for a table.
func tableBytes(ctx context.Context, bytes int) ([]byte, error) {
	if bytes <= maxTableBytes {
		return heapBytes(int64(bytes)), nil
	}
	return scratchBytes(ctx, int64(bytes))
}

type tableKey struct {
	kind     string
	n, lanes int
	wide     bool
}

// keptTables are the tables of recent transforms.
var keptTables struct {
	lock   sync.Mutex
	tables map[tableKey]keptEntry
	bytes  int
	uses   int64
}

type keptEntry struct {
	table any
	bytes int
	used  int64
}

// keptTable returns the table of the key. If it is not kept, it makes it, and keeps it unless it is
// too large. Then the least recently used tables go.
func keptTable[T any](key tableKey, bytes int, build func() (T, error)) (T, error) {
	k := &keptTables
	k.lock.Lock()
	k.uses++
	if e, ok := k.tables[key]; ok {
		e.used = k.uses
		k.tables[key] = e
		k.lock.Unlock()
		return e.table.(T), nil
	}
	k.lock.Unlock()
	t, err := build()
	if err != nil || bytes > maxTableBytes {
		return t, err
	}
	k.lock.Lock()
	defer k.lock.Unlock()
	if _, ok := k.tables[key]; ok {
		return t, nil
	}
	if k.tables == nil {
		k.tables = map[tableKey]keptEntry{}
	}
	k.tables[key] = keptEntry{t, bytes, k.uses}
	for k.bytes += bytes; k.bytes > keptTableBytes; {
		oldest := key
		for other, e := range k.tables {
			if e.used < k.tables[oldest].used {
				oldest = other
			}
		}
		k.bytes -= k.tables[oldest].bytes
		delete(k.tables, oldest)
	}
	return t, nil
}
