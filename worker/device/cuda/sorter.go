package cuda

import (
	"context"
	"fmt"

	gpu "github.com/millrace/millrace/memory/cuda"

	"github.com/millrace/millrace/worker/ops"
)

// sorter sorts lanes that lie one after the other in memory, each by itself. See kernels/sort.cuh.
type sorter struct {
	dtype         ops.DType
	lanes, length int64
	descending    bool
	// carries says that the passes carry the index of each element along with its key. Complex
	// numbers need it, since they have several keys.
	carries bool
	items   int64 // keys for each thread in a pass
	width   int64 // of sort_short
	// short sorts lanes in shared memory. If it is set, the other kernels are not.
	short                    *gpu.Function
	digits, bins, pass, pick *gpu.Function
}

const (
	// shortRoom is the shared memory of a block that sorts short lanes, in bytes. shortLanes is the
	// largest number of elements in it.
	shortRoom, shortLanes = 32 << 10, 8192
	// shortest is the smallest number of elements that such a block sorts. It sorts several lanes
	// that are shorter.
	shortest = 2048
	// longestLane is the largest number of elements of a lane that kernels sort: a word of a tile's
	// state has 30 bits for a number of elements.
	longestLane = 1<<30 - 1
	// digitValues is the number of values of a digit.
	digitValues = 256
)

func isComplex(d ops.DType) bool { return d == ops.Complex64 || d == ops.Complex128 }

// codeBytes is the size of a key: that of an element, or of a part of a complex number.
func (v *sorter) codeBytes() int64 {
	if isComplex(v.dtype) {
		return v.dtype.Size() / 2
	}
	return v.dtype.Size()
}

// planSort decides how to sort lanes. With order, the sorter returns the indices of the elements as
// well.
func (d *Device) planSort(dtype ops.DType, lanes, length int64, descending, order bool) (*sorter, error) {
	v := &sorter{dtype: dtype, lanes: lanes, length: length, descending: descending, carries: order || isComplex(dtype), items: 16, width: shortest}
	for v.width < length {
		v.width *= 2
	}
	if v.codeBytes() == 8 {
		v.items = 10
	}
	if !order && v.width <= min(shortLanes, shortRoom/dtype.Size()) {
		var err error
		v.short, err = v.kernel(d, "sort_short")
		return v, err
	}
	v.width = shortest
	if length > longestLane || v.lanes*v.tiles() > 1<<31 {
		return nil, errHost
	}
	for name, f := range map[string]**gpu.Function{"sort_digits": &v.digits, "sort_bins": &v.bins, "sort_pass": &v.pass, "sort_pick": &v.pick} {
		var err error
		if *f, err = v.kernel(d, name); err != nil {
			return nil, err
		}
	}
	return v, nil
}

func (v *sorter) kernel(d *Device, name string) (*gpu.Function, error) {
	return d.code.kernel("sort.cu", fmt.Sprint("sort", v.dtype, v.carries, v.width), name, func() string { return kernelText("prelude.cuh") + v.source() })
}

// source returns the kernels and the definitions that they need.
func (v *sorter) source() string {
	flag := map[bool]int{true: 1}
	return fmt.Sprintf("typedef %s in_t;\ntypedef %s code_t;\n#define COMPLEX_KEYS %d\n#define VALUES %d\nenum { ITEMS = %d, WIDTH = %d };\n%s",
		cType(v.dtype.String()), map[int64]string{1: "u8", 4: "u32", 8: "u64"}[v.codeBytes()], flag[isComplex(v.dtype)], flag[v.carries], v.items, v.width, kernelText("sort.cuh"))
}

// tiles is the number of tiles of a lane.
func (v *sorter) tiles() int64 {
	tile := threads * v.items
	return (v.length + tile - 1) / tile
}

// digitPass is a pass over all elements by one digit.
type digitPass struct {
	part   int32 // of complex numbers: which key
	shift  int32 // of the digit in the key
	digit  int32 // its number among the digits of all keys
	begins bool  // it is the first one of its key
}

func (v *sorter) passes() (passes []digitPass) {
	keys := []int64{v.codeBytes()}
	if isComplex(v.dtype) {
		keys = []int64{1, v.codeBytes(), v.codeBytes(), 1}
	}
	for part, bytes := range keys {
		for b := range bytes {
			passes = append(passes, digitPass{int32(part), int32(8 * b), int32(len(passes)), b == 0})
		}
	}
	return passes
}

// sortRoom has the addresses of the scratch memory of a sorter.
type sortRoom struct{ bins, state, values, keys, moreKeys, order uint64 }

// room takes scratch memory by the function take. order is 0 if the caller has no memory for it.
func (v *sorter) room(take func(bytes uint64) uint64, order uint64) (m sortRoom) {
	if v.short != nil {
		return m
	}
	n := uint64(v.lanes * v.length)
	m.bins, m.state, m.order = take(v.binsBytes()), take(v.stateBytes()), order
	if v.codeBytes() > 1 || isComplex(v.dtype) {
		m.keys = take(n * uint64(v.codeBytes()))
	}
	if v.carries {
		m.values = take(4 * n)
		if order == 0 {
			m.order = take(4 * n)
		}
	}
	if isComplex(v.dtype) {
		m.moreKeys = take(n * uint64(v.codeBytes()))
	}
	return m
}

func (v *sorter) binsBytes() uint64 {
	return uint64(v.lanes) * uint64(len(v.passes())) * 4 * digitValues
}

// stateBytes is the size of the number of the next tile, and of the states of the tiles.
func (v *sorter) stateBytes() uint64 { return scratchAlign + uint64(v.lanes*v.tiles())*4*digitValues }

// scratchBytes is the scratch memory that submission.sort takes.
func (v *sorter) scratchBytes(order bool) (need uint64) {
	given := uint64(0)
	if order {
		given = 1
	}
	v.room(func(n uint64) uint64 { need += aligned(n); return 0 }, given)
	return need
}

// flip is what the keys are changed by: all of their bits if the order is descending.
func (v *sorter) flip() uint64 {
	if v.descending {
		return ^uint64(0)
	}
	return 0
}

// sort sorts the elements at from to the address to. The index of each element in its lane, as an
// u32, is stored at order, unless order is 0.
func (s *submission) sort(v *sorter, from, to, order uint64) {
	if v.short != nil {
		width := int64(1)
		for width < v.length {
			width *= 2
		}
		blocks := blocksOf(v.lanes, v.width/width)
		s.launchGrid(v.short, gpu.Dim{uint32(min(blocks, maxBlocks))}, uint32(v.width/8),
			s.parameters().u64(from, to).i64(v.lanes).u64(v.flip()).i32(int32(v.length), int32(width)))
		if blocks > maxBlocks {
			s.fail(fmt.Errorf("cuda: %s: %d blocks are more than a grid has", s.op, blocks))
		}
		return
	}
	m := v.room(s.take, order)
	s.memset(m.bins, 0, v.binsBytes())
	// Enough blocks to give each multiprocessor eight of them.
	perLane := min(v.tiles(), max(1, int64(8*s.device.gpu.Info().Attributes.Multiprocessors)/v.lanes))
	s.launch(v.digits, uint64(v.lanes*perLane), s.parameters().u64(from, m.bins).i64(v.length).i32(int32(v.tiles()), int32(perLane)).u64(v.flip()))
	passes := v.passes()
	s.launch(v.bins, uint64(v.lanes)*uint64(len(passes)), s.parameters().u64(m.bins))
	var keys, values uint64 // of the pass before
	for i, p := range passes {
		s.memset(m.state, 0, v.stateBytes())
		last := i == len(passes)-1
		toKeys, toValues := to, m.order
		if (len(passes)-i)%2 == 0 {
			toKeys, toValues = m.keys, m.values
		}
		if isComplex(v.dtype) {
			if p.begins {
				keys = 0
			}
			toKeys = 0
			if !last && !passes[i+1].begins {
				toKeys = m.keys
				if keys == m.keys {
					toKeys = m.moreKeys
				}
			}
		}
		if !v.carries {
			toValues = 0
		}
		s.launch(v.pass, uint64(v.lanes*v.tiles()), s.parameters().u64(from, keys, values, toKeys, toValues, m.bins, m.state, m.state+scratchAlign).
			i64(v.length).u64(v.flip()).i32(int32(v.tiles()), p.part, p.shift, p.digit, int32(map[bool]int{true: 1}[last])))
		keys, values = toKeys, toValues
	}
	if isComplex(v.dtype) {
		n := v.lanes * v.length
		s.launch(v.pick, blocksOf(n, threads), s.parameters().u64(from, m.order, to).i64(n, v.length))
	}
}

func (r *run) sort(ctx context.Context, w *ops.Sorting, out *ops.Tensor) error {
	if out.Len() == 0 {
		return nil
	}
	x, to, length := w.X, out, out.Len()
	if w.Axis >= 0 {
		x, to, length = axisLast(w.X, w.Axis), axisLast(out, w.Axis), out.Shape[w.Axis]
	}
	elements, err := r.device.pack(x)
	if err != nil {
		return err
	}
	v, err := r.device.planSort(x.DType, x.Len()/length, length, w.Descending, false)
	if err != nil {
		return err
	}
	back, err := r.device.unpack(to)
	if err != nil {
		return err
	}
	need := elements.scratchBytes(r.device) + v.scratchBytes(false)
	if back != nil {
		need += aligned(uint64(out.Bytes()))
	}
	return r.submit(ctx, need, func(s *submission) {
		from, at := s.packed(elements), out.Far.Address()
		if back != nil {
			at = s.take(uint64(out.Bytes()))
		}
		s.sort(v, from, at, 0)
		if back != nil {
			s.move(back, at, out.Far.Address())
		}
	})
}
