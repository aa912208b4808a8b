package ops

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"unsafe"

	"github.com/millrace/millrace/worker/ops/simd"
)

const (
	// pieceBytes is the number of bytes of the largest operand, or of the result, that a processor
	// computes at a time.
	pieceBytes = 256 << 10
	// fewElements is the number of elements up to which the Go kernels are faster than a call of C.
	fewElements = 128
	// skew is the number of bytes between the blocks of two registers. Blocks at the same distance
	// from multiples of 4096 would slow each other down.
	skew = 64 + 128
)

// evaluation is the run of a program over whole tensors.
type evaluation struct {
	*program
	inputs []*Tensor
	out    *Tensor
	// readers are at the first element of the inputs. They are nil for inputs without tensors and
	// for those whose elements are all the same.
	readers []*reader
	// vectors: all instructions run in package simd.
	vectors bool
	// block is the number of elements of a block, piece that of the pieces.
	block, piece int64
	set          *simd.Set

	mu         sync.Mutex // guards workspaces
	workspaces []*workspace
}

// workspace is the memory of one goroutine: a block for each register that needs one.
type workspace struct {
	blocks []complex128
	// ptrs has the block of each register, or nil for registers that are read and written in place.
	ptrs      []unsafe.Pointer
	registers []simd.Register
	readers   []*reader
}

// mapProgram runs a program over whole tensors. Inputs broadcast to the shape of out, which is
// contiguous and has the type of the program's result. An input may be out itself.
func mapProgram(p *program, ctx context.Context, out *Tensor, inputs []*Tensor) error {
	n := out.Len()
	if n == 0 {
		return nil
	}
	e := newEvaluation(p, out, inputs)
	if n <= e.piece {
		if err := ctx.Err(); err != nil {
			return err
		}
		w, err := e.newWorkspace(n)
		if err != nil {
			return err
		}
		defer w.free()
		return e.compute(w, 0, n)
	}
	defer e.freeWorkspaces()
	return eachPiece(ctx, n, e.piece, func(begin, end int64) error {
		w, err := e.workspace()
		if err != nil {
			return err
		}
		err = e.compute(w, begin, end)
		e.giveBack(w)
		return err
	})
}

func newEvaluation(p *program, out *Tensor, inputs []*Tensor) *evaluation {
	e := &evaluation{program: p, inputs: inputs, out: out, readers: make([]*reader, len(inputs)), set: simd.Best()}
	inPlace := true
	for i, in := range inputs {
		if in == nil {
			continue
		}
		if r := newReader(in.broadcastTo(out.Shape)); !r.constant() {
			e.readers[i] = r
			inPlace = inPlace && r.direct()
		} else {
			inPlace = false
		}
	}
	n := out.Len()
	e.vectors = p.steps != nil && (n > fewElements || !p.exact)
	e.block = blockLen
	largest := int64(1)
	for _, r := range p.registers {
		largest = max(largest, r.dtype.Size())
	}
	e.piece = pieceBytes / largest
	if inPlace && len(p.registers) == p.inputs+1 {
		e.block = e.piece
	}
	return e
}

// workspace returns a free workspace, or another one.
func (e *evaluation) workspace() (*workspace, error) {
	e.mu.Lock()
	if last := len(e.workspaces) - 1; last >= 0 {
		w := e.workspaces[last]
		e.workspaces = e.workspaces[:last]
		e.mu.Unlock()
		return w, nil
	}
	e.mu.Unlock()
	return e.newWorkspace(e.piece)
}

func (e *evaluation) giveBack(w *workspace) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.workspaces = append(e.workspaces, w)
}

func (e *evaluation) freeWorkspaces() {
	for _, w := range e.workspaces {
		w.free()
	}
}

// newWorkspace returns a workspace for pieces of at most n elements. Constants fill their blocks.
func (e *evaluation) newWorkspace(n int64) (*workspace, error) {
	length := min(n, e.block)
	w := &workspace{ptrs: make([]unsafe.Pointer, len(e.registers))}
	var bytes int64
	offsets := make([]int64, len(e.registers))
	for i, r := range e.registers {
		offsets[i] = -1
		if i == e.program.out || i < len(e.inputs) && (e.inputs[i] == nil || e.readers[i] != nil && e.readers[i].direct()) {
			continue
		}
		offsets[i] = bytes
		bytes += (length*r.dtype.Size()+15)/16*16 + skew
	}
	w.blocks = newBlocks(bytes)
	for i, r := range e.registers {
		if offsets[i] < 0 {
			continue
		}
		w.ptrs[i] = unsafe.Pointer(&w.blocks[offsets[i]/16])
		size := r.dtype.Size()
		switch {
		case r.value != nil:
			one := &Tensor{DType: r.dtype, Data: block[byte](w.ptrs[i], int(size))}
			if err := putScalar(one, r.value); err != nil {
				return nil, err
			}
			repeat(w.ptrs[i], length, size)
		case i < len(e.inputs) && e.readers[i] == nil:
			copyRun(w.ptrs[i], e.inputs[i].base(), 1, size, size)
			repeat(w.ptrs[i], length, size)
		}
	}
	if e.vectors {
		w.registers = make([]simd.Register, len(e.registers))
	}
	w.readers = make([]*reader, len(e.readers))
	for i, r := range e.readers {
		if r != nil && !r.direct() {
			w.readers[i] = r.clone()
		}
	}
	return w, nil
}

// smallBlock is the size of a small workspace in elements of 16 bytes: 64 KiB. Larger ones are not
// kept.
const smallBlock = 4 << 10

// freeBlocks has memory for the blocks of small workspaces. Its content is arbitrary.
var freeBlocks = sync.Pool{New: func() any { return new([smallBlock]complex128) }}

// newBlocks returns memory that is aligned for every type, with arbitrary content.
func newBlocks(bytes int64) []complex128 {
	if all, ok := freeBlocks.Get().(*[smallBlock]complex128); ok && bytes <= int64(unsafe.Sizeof(*all)) {
		return all[:]
	}
	return make([]complex128, bytes/16)
}

func (w *workspace) free() {
	if len(w.blocks) == smallBlock {
		freeBlocks.Put((*[smallBlock]complex128)(w.blocks))
	}
}

// repeat fills n elements of size bytes with the first of them.
func repeat(p unsafe.Pointer, n, size int64) {
	all := block[byte](p, int(n*size))
	for done := int(size); done < len(all); done *= 2 {
		copy(all[done:], all[:done])
	}
}

// compute computes the elements from begin to end.
func (e *evaluation) compute(w *workspace, begin, end int64) error {
	for i, r := range w.readers {
		if r != nil {
			r.seek(e.readers[i], begin)
		}
	}
	var err error
	if e.vectors {
		err = e.vectorPiece(w, begin, end)
	} else {
		err = e.plainPiece(w, begin, end)
	}
	if errors.Is(err, simd.ErrNegativePower) {
		return errNegativePower
	}
	return err
}

// vectorPiece is compute with the kernels of package simd.
func (e *evaluation) vectorPiece(w *workspace, begin, end int64) error {
	for i, reg := range e.registers {
		size := reg.dtype.Size()
		switch {
		case i == e.program.out:
			w.registers[i] = simd.InPlace(unsafe.Add(e.out.base(), begin*size), e.block*size)
		case w.ptrs[i] != nil && i < len(e.inputs) && w.readers[i] != nil:
			r := w.readers[i]
			w.registers[i] = simd.Gathered(w.ptrs[i], r.at, r.axes, size)
		case w.ptrs[i] == nil && i < len(e.inputs) && e.readers[i] != nil:
			w.registers[i] = simd.InPlace(unsafe.Add(e.readers[i].at, begin*size), e.block*size)
		default:
			w.registers[i] = simd.InPlace(w.ptrs[i], 0)
		}
	}
	err := e.set.Run(e.steps, w.registers, end-begin, e.block)
	runtime.KeepAlive(e)
	runtime.KeepAlive(w)
	return err
}

// plainPiece is compute for programs of which an instruction needs a Go kernel, and for few
// elements.
func (e *evaluation) plainPiece(w *workspace, begin, end int64) error {
	n := end - begin
	var few [8]unsafe.Pointer
	ptrs := append(few[:0], w.ptrs...)
	for done := int64(0); done < n; done += e.block {
		m := min(n-done, e.block)
		for i, r := range e.readers {
			switch {
			case r == nil:
			case r.direct():
				ptrs[i] = unsafe.Add(r.at, (begin+done)*r.size)
			default:
				w.readers[i].read(ptrs[i], m)
			}
		}
		// Before the last instruction, the result's register may hold temporary values. These can
		// be stored in the output itself, since they have its type.
		ptrs[e.program.out] = unsafe.Add(e.out.base(), (begin+done)*e.out.DType.Size())
		for i := range e.code {
			if err := e.code[i].compute(int(m), n > fewElements, ptrs); err != nil {
				return err
			}
		}
	}
	return nil
}

// compute runs one instruction. many: the call of C is worth its time.
func (in *instruction) compute(n int, many bool, ptrs []unsafe.Pointer) error {
	r := regs{ptrs[in.registers[0]], ptrs[in.registers[1]], ptrs[in.registers[2]], ptrs[in.registers[3]]}
	if in.vector.Exists() && (many || !in.vector.Exact) {
		return in.vector.Call(n, r[0], r[1], r[2], r[3])
	}
	return in.run(n, r)
}
