package cuda

import (
	"context"
	"fmt"
	"math"

	gpu "github.com/millrace/millrace/memory/cuda"

	"github.com/millrace/millrace/worker/ops"
)

// taker copies elements of a tensor by their indices along an axis. See kernels/take.cuh.
type taker struct {
	x, indices *ops.Tensor
	word       int64 // the size in bytes of the unit that is copied
	length     int64 // of the axis
	stride     int64
	words      int64 // of the output
	// The axes of x before and behind the axis, after axes have been joined. The last one of inner
	// counts words.
	outer, outerBy []int64
	inner, innerBy []int64
	take, check    *gpu.Function
}

// planTake decides how to take elements. x has the axis, and is flat if all elements are selected
// among.
func (d *Device) planTake(x, indices *ops.Tensor, axis int, out *ops.Tensor) (*taker, error) {
	v := &taker{x: x, indices: indices, word: x.DType.Size(), length: x.Shape[axis], stride: x.Strides[axis]}
	var joined [][]int64
	v.outer, joined = joinAxes(x.Shape[:axis], x.Strides[:axis])
	v.outerBy = joined[0]
	v.inner, joined = joinAxes(x.Shape[axis+1:], x.Strides[axis+1:])
	v.innerBy = joined[0]
	if len(v.outer) > maxAxes || len(v.inner) > maxAxes {
		return nil, errHost
	}
	v.widen()
	v.words = out.Bytes() / v.word
	signature := fmt.Sprint("take", indices.DType, v.word, v.isWide(), len(v.outer), len(v.inner))
	source := func() string { return kernelText("prelude.cuh") + v.source() }
	var err error
	if v.take, err = d.code.kernel("take.cu", signature, "take", source); err != nil {
		return nil, err
	}
	v.check, err = d.code.kernel("take.cu", signature, "check", source)
	return v, err
}

// isWide reports whether the kernel needs 64 bits to count words and elements.
func (v *taker) isWide() bool { return max(v.words, v.length) > math.MaxInt32 }

// source returns the kernels and the definitions that they need.
func (v *taker) source() string {
	word := map[int64]string{1: "u8", 4: "u32", 8: "u64", 16: "sixteen"}[v.word]
	at := map[bool]string{false: "u32", true: "u64"}[v.isWide()]
	return fmt.Sprintf("struct alignas(16) sixteen {\n  u64 a, b;\n};\ntypedef %s word_t;\ntypedef %s index_t;\ntypedef %s at_t;\nenum { NO = %d, NI = %d };\n%s",
		word, cType(v.indices.DType.String()), at, len(v.outer), len(v.inner), kernelText("take.cuh"))
}

// widen makes the unit larger if contiguous elements are taken together.
func (v *taker) widen() {
	last := len(v.inner) - 1
	if v.inner[last] <= 1 || v.innerBy[last] != v.word {
		return
	}
	at := v.x.Offset
	if v.x.Far != nil {
		at += int64(v.x.Far.Address() % 16)
	} else {
		at = 0 // its copy on the device is aligned
	}
	for _, wide := range []int64{16, 8, 4} {
		if wide <= v.word {
			return
		}
		fits := at%wide == 0 && v.stride%wide == 0 && v.inner[last]*v.word%wide == 0
		for _, by := range v.outerBy {
			fits = fits && by%wide == 0
		}
		for _, by := range v.innerBy[:last] {
			fits = fits && by%wide == 0
		}
		if fits {
			v.inner[last] = v.inner[last] * v.word / wide
			v.innerBy[last], v.word = wide, wide
			return
		}
	}
}

// wrongBytes is the size of what the kernels store about an index that is out of the axis.
const wrongBytes = 16

func (r *run) take(ctx context.Context, w *ops.Taking, out *ops.Tensor) error {
	if w.Indices.Len() == 0 {
		return nil
	}
	x, axis := w.X, w.Axis
	need := uint64(0)
	var flat packed
	if axis < 0 {
		axis = 0
		all := *x
		if x.Len() > 0 {
			var err error
			if flat, err = r.device.pack(x); err != nil {
				return err
			}
			need += flat.scratchBytes(r.device)
			all.Far, all.Offset = &scratchMemory{}, 0
		}
		all.Shape, all.Strides = []int64{x.Len()}, []int64{x.DType.Size()}
		x = &all
	} else {
		need += uploadBytes(x) + r.device.rereadBytes(x)
	}
	indices, err := r.device.pack(w.Indices)
	if err != nil {
		return err
	}
	v, err := r.device.planTake(x, w.Indices, axis, out)
	if err != nil {
		return err
	}
	need += indices.scratchBytes(r.device) + aligned(wrongBytes)
	at, wrong := r.pinned(wrongBytes)
	clear(wrong)
	if err := r.submit(ctx, need, func(s *submission) {
		flag := s.take(wrongBytes)
		s.memset(flag, 0, wrongBytes)
		list := s.packed(indices)
		if out.Len() == 0 || x.Len() == 0 {
			s.launch(v.check, blocksOf(w.Indices.Len(), threads), s.parameters().u64(list, flag).i64(w.Indices.Len(), v.length))
		} else {
			var from uint64
			if w.Axis < 0 {
				from = s.packed(flat)
			} else {
				from = s.elementsOf(x, out)
			}
			s.launch(v.take, blocksOf(v.words, threads), s.parameters().u64(from, list, out.Far.Address(), flag).
				i64(v.words, w.Indices.Len(), slicesProduct(v.inner), v.length, v.stride).
				i64(v.outer...).i64(v.outerBy...).i64(v.inner...).i64(v.innerBy...))
		}
		s.copy(gpu.ToHost(at, flag, wrongBytes))
	}); err != nil {
		return err
	}
	return r.flagged(wrong, func() error { return outside(w, ^int64(le.Uint64(wrong[8:]))) })
}

// elementsOf returns the address of x. A tensor in the memory of a peer is copied first if elements
// are taken more than once.
func (s *submission) elementsOf(x, out *ops.Tensor) uint64 {
	if out.Len() > x.Len() {
		return s.reread(x)
	}
	return s.at(x)
}

// outside returns the error for the index at a position.
func outside(w *ops.Taking, position int64) error {
	near, err := onHost(w.Indices)
	if err != nil {
		return err
	}
	place, rest := make([]int64, len(near.Shape)), position
	for axis := len(near.Shape) - 1; axis >= 0; axis-- {
		place[axis], rest = rest%near.Shape[axis], rest/near.Shape[axis]
	}
	index, err := near.At(place...)
	if err != nil {
		return err
	}
	return w.Outside(position, index.(int64))
}
