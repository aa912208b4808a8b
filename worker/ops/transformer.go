package ops

import (
	"context"
	"slices"
	"sync"
	"unsafe"

	"github.com/millrace/millrace/worker/ops/simd"
)

// transformer executes the transforms of one call.
type transformer struct {
	ctx  context.Context //nolint:containedctx // it lives as long as the call
	fft  simd.FFT
	wide bool
	pool *scratchPool
	// each calls f for the pieces 0 to n-1, on one goroutine or on several.
	each func(n int, f func(piece int) error) error
}

func newTransformer(ctx context.Context, wide bool) *transformer {
	t := &transformer{ctx: ctx, wide: wide, pool: &scratchPool{ctx: ctx}, each: parallelOf(ctx)}
	switch set := simd.Best(); {
	case set != nil:
		t.fft = set.FFT(wide)
	case wide:
		t.fft = scalarFFT[float64]{}
	default:
		t.fft = scalarFFT[float32]{}
	}
	return t
}

func parallelOf(ctx context.Context) func(n int, f func(piece int) error) error {
	return func(n int, f func(piece int) error) error { return parallel(ctx, n, f) }
}

// serial returns a transformer that uses one goroutine.
func (t *transformer) serial() *transformer {
	one := *t
	one.each = func(n int, f func(piece int) error) error {
		for i := range n {
			if err := t.ctx.Err(); err != nil {
				return err
			}
			if err := f(i); err != nil {
				return err
			}
		}
		return nil
	}
	return &one
}

// scratchPool gives working memory to pieces that run at the same time, and takes it back for the
// next ones.
type scratchPool struct {
	ctx  context.Context //nolint:containedctx // it lives as long as the call
	lock sync.Mutex
	free map[int64][][]byte // by size
}

func (p *scratchPool) take(bytes int64) ([]byte, error) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if list := p.free[bytes]; len(list) > 0 {
		p.free[bytes] = list[:len(list)-1]
		return list[len(list)-1], nil
	}
	return scratchBytes(p.ctx, bytes)
}

func (p *scratchPool) put(b []byte) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.free == nil {
		p.free = map[int64][][]byte{}
	}
	p.free[int64(len(b))] = append(p.free[int64(len(b))], b)
}

// line is the place of complex or real numbers that lie step bytes apart. The imaginary parts lie
// part bytes behind the real parts; there are none if part is 0.
type line struct {
	at         unsafe.Pointer
	count      int
	step, part int64
}

func (l line) lines() simd.Lines {
	return simd.Lines{Count: int64(l.count), Step: l.step, Part: l.part, Lanes: 1}
}

// size is the number of bytes of a complex number, and half of it that of its parts.
func (t *transformer) size() int64 { return int64(complexBytes(t.wide)) }

func (t *transformer) contiguous(b []byte, n int) line {
	return line{at: slicePointer(b), count: n, step: t.size(), part: t.size() / 2}
}

// lineOf returns the place of the numbers along the only axis of x.
func (t *transformer) lineOf(x *Tensor) line {
	l := line{at: x.base(), count: int(x.Shape[0]), step: x.Strides[0]}
	if x.DType.kind() == complexKind {
		l.part = t.size() / 2
	}
	return l
}

// maxBufferBytes limits the two buffers of the lanes of a transform, so that they stay in a cache.
const maxBufferBytes = 1 << 20

// along transforms each lane of x along the axis. Lanes that lie side by side share a buffer,
// unless there are too few of them or they are too long.
func (t *transformer) along(out, x *Tensor, axis, n int, kind string, scale float64) error {
	from, to := axisLast(x, axis), axisLast(out, axis)
	joinAxes(from, to)
	group := from.NDim() - 2
	lanes, width := from.Shape[group], int64(t.fft.Lanes())
	short := 2*int64(n+1)*width*t.size() <= maxBufferBytes
	if radices, smooth := radicesOf(n); smooth && short && (lanes > width/2 || n <= shortLine) {
		return t.alongLanes(to, from, n, radices, kind, scale)
	}
	return t.alongLines(to, from, n, kind, scale)
}

// joinAxes joins neighbouring axes of both tensors, except the last one, if they can be walked with
// one stride in both. Afterwards there are at least two axes.
func joinAxes(a, b *Tensor) {
	for i := a.NDim() - 2; i > 0; i-- {
		if a.Strides[i-1] == a.Strides[i]*a.Shape[i] && b.Strides[i-1] == b.Strides[i]*b.Shape[i] {
			for _, t := range []*Tensor{a, b} {
				t.Shape, t.Strides = slices.Clone(t.Shape), without(t.Strides, i-1)
				t.Shape[i-1] *= t.Shape[i]
				t.Shape = without(t.Shape, i)
			}
		}
	}
	if a.NDim() == 1 {
		for _, t := range []*Tensor{a, b} {
			t.Shape, t.Strides = []int64{1, t.Shape[0]}, []int64{0, t.Strides[0]}
		}
	}
}

// alongLanes transforms groups of lanes, each in a buffer.
func (t *transformer) alongLanes(to, from *Tensor, n int, radices []int32, kind string, scale float64) error {
	length, half := n, n%2 == 0 && (kind == "rfft" || kind == "irfft")
	if half {
		length = n / 2
		radices, _ = radicesOf(length)
	}
	plan := cachedLanesPlan(length, radices, t.wide)
	var roots []byte
	if half {
		var err error
		if roots, err = foldRoots(t.ctx, length, t.wide); err != nil {
			return err
		}
	}
	group := from.NDim() - 2
	width := int64(t.fft.Lanes())
	groups := pieces(from.Shape[group], width)
	outer, err := countElements(from.Shape[:group])
	if err != nil {
		return err
	}
	// A piece takes some 100 microseconds.
	each := max(1, (1<<14)/(int64(n)*width))
	total := outer * groups
	buffer := int64(length+1) * width * t.size()
	return t.each(int(pieces(total, each)), func(piece int) error {
		room, err := t.pool.take(2 * buffer)
		if err != nil {
			return err
		}
		defer t.pool.put(room)
		for i := int64(piece) * each; i < min(int64(piece+1)*each, total); i++ {
			a, b := indexed(from, i/groups, group), indexed(to, i/groups, group)
			first := i % groups * width
			b.lanes = min(width, from.Shape[group]-first)
			a.lanes = b.lanes
			a.at, b.at = unsafe.Add(a.at, first*a.lane), unsafe.Add(b.at, first*b.lane)
			l := laneGroup{t: t, plan: plan, roots: roots, n: n, x: slicePointer(room), y: unsafe.Pointer(&room[buffer])}
			l.run(kind, b, a, scale)
		}
		return nil
	})
}

// lanesAt are some lanes of a tensor: its last axis, for neighbours along the axis before.
type lanesAt struct {
	at          unsafe.Pointer
	lanes, lane int64
	count, step int64
	part        int64
}

// indexed returns the lanes at an index of the axes before group, counted in C order.
func indexed(t *Tensor, index int64, group int) lanesAt {
	at := unsafe.Add(t.base(), leading{t.Shape[:group], t.Strides[:group]}.offset(index))
	l := lanesAt{at: at, lane: t.Strides[group], count: t.Shape[group+1], step: t.Strides[group+1]}
	if t.DType.kind() == complexKind {
		l.part = t.DType.Size() / 2
	}
	return l
}

func (l *lanesAt) lines(count int64, swap bool) *simd.Lines {
	return &simd.Lines{Count: count, Step: l.step, Lane: l.lane, Part: l.part, Lanes: l.lanes, Swap: int64(truth(swap))}
}

// laneGroup transforms lanes of n numbers in the buffers x and y. With roots, the plan is that of
// n/2 numbers.
type laneGroup struct {
	t     *transformer
	plan  *lanesPlan
	roots []byte
	n     int
	x, y  unsafe.Pointer
}

func (g *laneGroup) run(kind string, to, from lanesAt, scale float64) {
	f := g.t.fft
	switch kind {
	case "fft", "ifft":
		inverse := kind == "ifft"
		f.Gather(g.x, from.at, from.lines(min(from.count, int64(g.n)), inverse), g.n)
		f.Scatter(to.at, g.plan.run(f, g.x, g.y), to.lines(to.count, inverse), scale)
	case "rfft":
		var made unsafe.Pointer
		if count := min(from.count, int64(g.n)); g.roots == nil {
			f.Gather(g.x, from.at, from.lines(count, false), g.n)
			made = g.plan.run(f, g.x, g.y)
		} else {
			g.gatherPairs(from, count)
			made = g.plan.run(f, g.x, g.y)
			f.Unfold(made, slicePointer(g.roots), g.n/2, false)
		}
		f.Scatter(to.at, made, to.lines(to.count, false), scale)
	case "irfft":
		if g.roots == nil {
			f.Gather(g.x, from.at, from.lines(min(from.count, int64(g.n+1)/2), true), g.n)
			g.halveFirst()
			f.Scatter(to.at, g.plan.run(f, g.x, g.y), to.lines(to.count, true), 2*scale)
			return
		}
		h := g.n / 2
		f.Gather(g.x, from.at, from.lines(min(from.count, int64(h+1)), false), h+1)
		g.clearImaginary(0)
		g.clearImaginary(h)
		f.Fold(g.x, slicePointer(g.roots), h, false)
		g.scatterPairs(to, g.plan.run(f, g.x, g.y), scale)
	}
}

// gatherPairs copies pairs of real numbers as complex numbers.
func (g *laneGroup) gatherPairs(from lanesAt, count int64) {
	pairs := simd.Lines{Count: count / 2, Step: 2 * from.step, Lane: from.lane, Part: from.step, Lanes: from.lanes}
	h := g.n / 2
	g.t.fft.Gather(g.x, from.at, &pairs, h)
	if count%2 == 1 {
		single := simd.Lines{Count: 1, Step: from.step, Lane: from.lane, Lanes: from.lanes}
		g.t.fft.Gather(g.number(g.x, int(count/2)), unsafe.Add(from.at, (count-1)*from.step), &single, 1)
	}
}

// scatterPairs copies complex numbers as pairs of real numbers. The transform was that of fft, so
// number k of the inverse transform is number h-k.
func (g *laneGroup) scatterPairs(to lanesAt, made unsafe.Pointer, scale float64) {
	h := int64(g.n / 2)
	first := simd.Lines{Count: 1, Step: 2 * to.step, Lane: to.lane, Part: to.step, Lanes: to.lanes}
	g.t.fft.Scatter(to.at, made, &first, scale)
	if h > 1 {
		rest := first
		rest.Count, rest.Step = h-1, -2*to.step
		g.t.fft.Scatter(unsafe.Add(to.at, 2*(h-1)*to.step), g.number(made, 1), &rest, scale)
	}
}

// number returns the address of number k of a buffer.
func (g *laneGroup) number(buffer unsafe.Pointer, k int) unsafe.Pointer {
	return unsafe.Add(buffer, int64(k)*int64(g.t.fft.Lanes())*g.t.size())
}

func (g *laneGroup) clearImaginary(k int) {
	half := int64(g.t.fft.Lanes()) * g.t.size() / 2
	clear(block[byte](unsafe.Add(g.number(g.x, k), half), int(half)))
}

// halveFirst makes the first number real and halves it. The parts are exchanged.
func (g *laneGroup) halveFirst() {
	lanes := g.t.fft.Lanes()
	if g.t.wide {
		halveReal(block[float64](g.x, 2*lanes))
	} else {
		halveReal(block[float32](g.x, 2*lanes))
	}
}

func halveReal[R floating](parts []R) {
	lanes := len(parts) / 2
	clear(parts[:lanes])
	for i := lanes; i < 2*lanes; i++ {
		parts[i] /= 2
	}
}

// alongLines transforms one line after the other, or several at the same time.
func (t *transformer) alongLines(to, from *Tensor, n int, kind string, scale float64) error {
	length, half := n, n%2 == 0 && (kind == "rfft" || kind == "irfft")
	if half {
		length = n / 2
	}
	plan, err := cachedLinePlan(t.ctx, t.fft, length, t.wide)
	if err != nil {
		return err
	}
	var roots []byte
	if half {
		if roots, err = foldRoots(t.ctx, length, t.wide); err != nil {
			return err
		}
	}
	last := from.NDim() - 1
	count, err := countElements(from.Shape[:last])
	if err != nil {
		return err
	}
	one := t
	if count > 1 {
		one = t.serial()
	}
	work := func(i int) error {
		l := lineRun{t: one, plan: plan, roots: roots, n: n}
		return l.run(kind, t.lineOf(subtensor(to, last, int64(i))), t.lineOf(subtensor(from, last, int64(i))), scale)
	}
	if count > 1 {
		return t.each(int(count), work)
	}
	return work(0)
}

// lineRun transforms one line of n numbers. With roots the plan is that of n/2 numbers.
type lineRun struct {
	t     *transformer
	plan  *linePlan
	roots []byte
	n     int
}

func (r *lineRun) run(kind string, to, from line, scale float64) error {
	t := r.t
	if kind == "fft" || kind == "ifft" {
		from.count = min(from.count, r.n)
		return t.line(r.plan, to, from, kind == "ifft", scale)
	}
	room, err := t.pool.take(int64(r.n+2) * t.size())
	if err != nil {
		return err
	}
	defer t.pool.put(room)
	if kind == "rfft" {
		return r.real(to, from, room, scale)
	}
	h := r.n/2 + 1
	if r.roots == nil {
		h = (r.n + 1) / 2
	}
	from.count = min(from.count, h)
	part := t.contiguous(room, h)
	t.copyLine(part, from, false)
	setImaginary(room, 0, t.wide)
	if r.roots == nil {
		halveNumber(room, t.wide)
		to.part = 0
		return t.line(r.plan, to, part, true, 2*scale)
	}
	setImaginary(room, h-1, t.wide)
	t.fft.Fold(slicePointer(room), slicePointer(r.roots), h-1, true)
	part.count = h - 1
	return t.line(r.plan, line{at: to.at, count: h - 1, step: 2 * to.step, part: to.step}, part, true, scale)
}

// real computes the first half of the transform of real numbers.
func (r *lineRun) real(to, from line, room []byte, scale float64) error {
	t := r.t
	from.count = min(from.count, r.n)
	if r.roots == nil {
		made := t.contiguous(room, r.n)
		if err := t.line(r.plan, made, from, false, scale); err != nil {
			return err
		}
		made.count = to.count
		t.copyLine(to, made, false)
		return nil
	}
	h := r.n / 2
	pairs := line{at: from.at, count: from.count / 2, step: 2 * from.step, part: from.step}
	if from.count%2 == 1 { // the last number has no partner
		padded := t.contiguous(room, h)
		t.copyLine(padded, pairs, false)
		t.copyLine(line{at: unsafe.Add(padded.at, int64(pairs.count)*t.size()), count: 1, step: t.size(), part: t.size() / 2},
			line{at: unsafe.Add(from.at, int64(from.count-1)*from.step), count: 1, step: from.step}, false)
		pairs = padded
	}
	made := t.contiguous(room, h)
	if to.step == t.size() {
		made.at = to.at
	}
	if err := t.line(r.plan, made, pairs, false, scale); err != nil {
		return err
	}
	t.fft.Unfold(made.at, slicePointer(r.roots), h, true)
	if made.at != to.at {
		made.count = to.count
		t.copyLine(to, made, false)
	}
	return nil
}

// setImaginary sets the imaginary part of number k to zero.
func setImaginary(b []byte, k int, wide bool) {
	size := complexBytes(wide)
	clear(b[k*size+size/2 : (k+1)*size])
}

// halveNumber halves the real part of the first number.
func halveNumber(b []byte, wide bool) {
	if wide {
		*(*float64)(unsafe.Pointer(&b[0])) /= 2
	} else {
		*(*float32)(unsafe.Pointer(&b[0])) /= 2
	}
}

// between returns the numbers from to to-1 of a line, of which it may have fewer.
func (l line) between(from, to int) line {
	to = min(to, l.count)
	if l.count = max(to-from, 0); l.count > 0 {
		l.at = unsafe.Add(l.at, int64(from)*l.step)
	}
	return l
}

// copyLine copies the numbers of a line. Numbers that from lacks are zero.
func (t *transformer) copyLine(to, from line, swap bool) {
	if t.wide {
		copyNumbers[float64](to, from, swap)
	} else {
		copyNumbers[float32](to, from, swap)
	}
}

func copyNumbers[R floating](to, from line, swap bool) {
	for k := range int64(to.count) {
		var z [2]R
		if k < int64(from.count) {
			p := unsafe.Add(from.at, k*from.step)
			if z[0] = *(*R)(p); from.part != 0 {
				z[1] = *(*R)(unsafe.Add(p, from.part))
			}
		}
		if swap {
			z[0], z[1] = z[1], z[0]
		}
		p := unsafe.Add(to.at, k*to.step)
		if *(*R)(p) = z[0]; to.part != 0 {
			*(*R)(unsafe.Add(p, to.part)) = z[1]
		}
	}
}

// line transforms a line. Numbers that from lacks are zero. inverse exchanges the parts before and
// afterwards. to may be the memory of from.
func (t *transformer) line(p *linePlan, to, from line, inverse bool, scale float64) error {
	switch {
	case p.one != nil:
		return t.lineInOneLane(p, to, from, inverse, scale)
	case p.columns != nil:
		return t.lineAsMatrix(p, to, from, inverse, scale)
	}
	return t.lineByConvolution(p, to, from, inverse, scale)
}

func (t *transformer) lineInOneLane(p *linePlan, to, from line, inverse bool, scale float64) error {
	buffer := int64(p.n) * int64(t.fft.Lanes()) * t.size()
	room, err := t.pool.take(2 * buffer)
	if err != nil {
		return err
	}
	defer t.pool.put(room)
	in, out := from.lines(), to.lines()
	in.Swap, out.Swap, out.Count = int64(truth(inverse)), int64(truth(inverse)), int64(p.n)
	t.fft.Gather(slicePointer(room), from.at, &in, p.n)
	t.fft.Scatter(to.at, p.one.run(t.fft, slicePointer(room), unsafe.Pointer(&room[buffer])), &out, scale)
	return nil
}

// groupsEach is the number of groups of lanes that a piece transforms.
func groupsEach(length, lanes int) int { return max(1, (1<<15)/(length*lanes)) }

func (t *transformer) lineAsMatrix(p *linePlan, to, from line, inverse bool, scale float64) error {
	size, width := t.size(), t.fft.Lanes()
	middle, err := t.pool.take(int64(p.n) * size)
	if err != nil {
		return err
	}
	defer t.pool.put(middle)
	if from.count < p.n {
		padded := t.contiguous(middle, p.n)
		t.copyLine(padded, from, false)
		from = padded
	}
	first, second := p.columns.n, p.rows.n
	buffer := int64(max(first, second)) * int64(width) * size
	// groups calls f for groups of lanes, with working memory for two buffers and a table.
	groups := func(lanes, length int, f func(from int, x, y unsafe.Pointer, table []byte)) error {
		each := groupsEach(length, width) * width
		return t.each(pieces(lanes, each), func(piece int) error {
			room, err := t.pool.take(2*buffer + int64(first)*size)
			if err != nil {
				return err
			}
			defer t.pool.put(room)
			for lane := piece * each; lane < min((piece+1)*each, lanes); lane += width {
				f(lane, slicePointer(room), unsafe.Pointer(&room[buffer]), room[2*buffer:])
			}
			return nil
		})
	}
	matrix := slicePointer(middle)
	if err := groups(second, first, func(column int, x, y unsafe.Pointer, table []byte) {
		lanes := int64(min(width, second-column))
		in := simd.Lines{Count: int64(first), Step: int64(second) * from.step, Lane: from.step, Part: from.part, Lanes: lanes, Swap: int64(truth(inverse))}
		t.fft.Gather(x, unsafe.Add(from.at, int64(column)*from.step), &in, first)
		x = p.columns.run(t.fft, x, y)
		p.coarse(table, column)
		t.fft.Turn(x, slicePointer(table), slicePointer(p.fine), first)
		out := simd.Lines{Count: int64(first), Step: int64(second) * size, Lane: size, Part: size / 2, Lanes: lanes}
		t.fft.Scatter(unsafe.Add(matrix, int64(column)*size), x, &out, 1)
	}); err != nil {
		return err
	}
	return groups(first, second, func(row int, x, y unsafe.Pointer, _ []byte) {
		lanes := int64(min(width, first-row))
		in := simd.Lines{Count: int64(second), Step: size, Lane: int64(second) * size, Part: size / 2, Lanes: lanes}
		t.fft.Gather(x, unsafe.Add(matrix, int64(row)*int64(second)*size), &in, second)
		out := simd.Lines{Count: int64(second), Step: int64(first) * to.step, Lane: to.step, Part: to.part, Lanes: lanes, Swap: int64(truth(inverse))}
		t.fft.Scatter(unsafe.Add(to.at, int64(row)*to.step), p.rows.run(t.fft, x, y), &out, scale)
	})
}

func (t *transformer) lineByConvolution(p *linePlan, to, from line, inverse bool, scale float64) error {
	m := p.convolution.n
	room, err := t.pool.take(2 * int64(m) * t.size())
	if err != nil {
		return err
	}
	defer t.pool.put(room)
	a, b := t.contiguous(room, m), t.contiguous(room[int64(m)*t.size():], m)
	a.count = p.n
	err = t.stretches(p.n, func(i, j int) {
		t.copyLine(a.between(i, j), from.between(i, j), inverse)
		t.multiply(a, p.chirp, i, j, false)
	})
	if err != nil {
		return err
	}
	if err := t.line(p.convolution, b, a, false, 1); err != nil {
		return err
	}
	a.count = m
	if err := t.stretches(m, func(i, j int) { t.multiply(b, p.spectrum, i, j, true) }); err != nil {
		return err
	}
	if err := t.line(p.convolution, a, b, false, 1); err != nil {
		return err
	}
	to.count = p.n
	return t.stretches(p.n, func(i, j int) {
		t.multiply(a, p.chirp, i, j, true)
		if scale != 1 {
			t.scaleLine(a.between(i, j), scale)
		}
		t.copyLine(to.between(i, j), a.between(i, j), inverse)
	})
}

// stretches calls f for the numbers 0 to n-1 of a line, in stretches of checkEvery. Between them it
// looks whether the call was cancelled. A pass over a long line spends most of its time on pages
// of working memory that it touches first.
func (t *transformer) stretches(n int, f func(from, to int)) error {
	return t.each((n+checkEvery-1)/checkEvery, func(piece int) error {
		f(piece*checkEvery, min((piece+1)*checkEvery, n))
		return nil
	})
}

// multiply multiplies numbers of a contiguous line by those of a table.
func (t *transformer) multiply(l line, table []byte, from, to int, conjugate bool) {
	offset := int64(from) * t.size()
	at := unsafe.Add(l.at, offset)
	t.fft.Multiply(at, at, unsafe.Pointer(&table[offset]), to-from, conjugate)
}

// scaleLine multiplies a contiguous line by a factor.
func (t *transformer) scaleLine(l line, factor float64) {
	if t.wide {
		scaleNumbers(block[float64](l.at, 2*l.count), factor)
	} else {
		scaleNumbers(block[float32](l.at, 2*l.count), float32(factor))
	}
}

func scaleNumbers[R floating](numbers []R, factor R) {
	for i := range numbers {
		numbers[i] *= factor
	}
}
