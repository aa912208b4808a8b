package cuda

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/millrace/millrace/internal/sharedlib"
	gpu "github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/worker/ops"
)

// Constants of the cuBLAS interface.
const (
	blasR32F, blasR64F, blasC32F, blasC64F = 0, 1, 4, 5
	blasCompute32F, blasCompute64F         = 68, 70
	blasCompute32FTF32                     = 77
	blasDefaultAlgorithm                   = ^uint64(0) // -1
	blasPlain, blasTransposed              = 0, 1
	blasLeft, blasUpper, blasNonUnit       = 0, 1, 0
)

const blasNotSupported = 15

// errUnsupported says that cuBLAS has no kernel for this product.
var errUnsupported = errors.New("CUBLAS_STATUS_NOT_SUPPORTED")

// blasWorkspace is the size of the workspace for cuBLAS, in bytes. cuBLAS recommends 32 MiB on
// Hopper.
const blasWorkspace = 64 << 20

// blas is cuBLAS on the compute stream. A call that puts work on the stream is a submission: the
// caller holds Device.submitting.
type blas struct {
	device    *Device
	lib       *library
	handle    uint64
	workspace *gpu.Scratch
}

// enter runs f, which calls a library, with the device's context current on the thread.
func (d *Device) enter(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := d.gpu.MakeCurrent(); err != nil {
		return err
	}
	return f()
}

func (d *Device) openBLAS() (*blas, error) {
	lib, err := d.finder.open("cublas", "cublasCreate_v2", "13", "12")
	if err != nil {
		d.logf("cuda: no cuBLAS: %v", err)
		return nil, err
	}
	b := &blas{device: d, lib: lib}
	if b.workspace, err = d.gpu.NewScratch(blasWorkspace, 0); err != nil {
		return nil, err
	}
	err = d.enter(func() error {
		var pinner runtime.Pinner
		defer pinner.Unpin()
		if err := b.call("cublasCreate_v2", sharedlib.AddressOf(&pinner, &b.handle)); err != nil {
			return err
		}
		if err := b.call("cublasSetStream_v2", b.handle, d.stream.Handle()); err != nil {
			return err
		}
		// cuBLAS asks for an alignment of 256 bytes.
		return b.call("cublasSetWorkspace_v2", b.handle, b.workspace.Pointer(0, blasWorkspace), blasWorkspace)
	})
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	d.logf("cuda: cuBLAS from %s", lib.file)
	return b, nil
}

func (d *Device) getBLAS() (*blas, error) { return d.blas.get(d.openBLAS) }

func (b *blas) call(function string, arguments ...uint64) error {
	r, err := b.lib.call(function, arguments...)
	if err == nil && r != 0 {
		err = fmt.Errorf("%s answers %d", function, r)
		if r == blasNotSupported {
			err = fmt.Errorf("%s: %w", function, errUnsupported)
		}
	}
	return err
}

// close also closes a blas whose opening failed; then there may be no handle.
func (b *blas) close() error {
	var err error
	if b.handle != 0 {
		err = b.device.enter(func() error { return b.call("cublasDestroy_v2", b.handle) })
	}
	if b.device.gpu.Health() != nil {
		err = nil
	}
	return errors.Join(err, b.workspace.Close())
}

// matrix is a row-major matrix or, if transposed, the transpose of one. distance is the number of
// elements from the start of one stored row to the start of the next.
type matrix struct {
	at         uint64
	transposed bool
	distance   int64
	next       int64 // elements from the start of one matrix of a batch to the next
}

func (m matrix) op() uint64 {
	if m.transposed {
		return blasTransposed
	}
	return blasPlain
}

// product describes c = factor*a*b + add*c for row-major matrices, for a batch of them. The
// elements of a row of c are contiguous, and c.distance is at least n. A batch of 0 or 1 is one
// product.
type product struct {
	dtype       ops.DType
	tf32        bool
	m, n, k     int64
	a, b, c     matrix
	batch       int64
	factor, add float64
}

// blasType returns the number of a type of floats in the interfaces of cuBLAS and cuSOLVER.
// REQUIRES: it is one.
func blasType(d ops.DType) uint64 {
	switch d {
	case ops.Float32:
		return blasR32F
	case ops.Complex64:
		return blasC32F
	case ops.Complex128:
		return blasC64F
	case ops.Float64:
		return blasR64F
	case ops.Invalid, ops.Bool, ops.Uint8, ops.Int32, ops.Int64:
	}
	panic(fmt.Sprintf("cuda: cuBLAS has no %v", d))
}

// multiply submits a product. REQUIRES: called within enter, with no other submission at the same
// time.
func (b *blas) multiply(p product) error {
	var pinner runtime.Pinner
	defer pinner.Unpin()
	// Each of alpha and beta is an array of two numbers: the real part, and an imaginary part of
	// zero. For a real type, cuBLAS reads the first number only.
	var alpha, beta uint64
	f32 := [2][2]float32{{float32(p.factor)}, {float32(p.add)}}
	f64 := [2][2]float64{{p.factor}, {p.add}}
	kind, compute := blasType(p.dtype), uint64(blasCompute64F)
	if p.dtype == ops.Float32 || p.dtype == ops.Complex64 {
		compute = blasCompute32F
		if p.tf32 {
			compute = blasCompute32FTF32
		}
		alpha, beta = sharedlib.AddressOf(&pinner, &f32[0]), sharedlib.AddressOf(&pinner, &f32[1])
	} else {
		alpha, beta = sharedlib.AddressOf(&pinner, &f64[0]), sharedlib.AddressOf(&pinner, &f64[1])
	}
	u := func(n int64) uint64 { return uint64(n) }
	// cuBLAS expects column-major matrices and sees the transpose of each of ours. The product of
	// the transposed factors, in reverse order, is the transposed product.
	if p.batch <= 1 {
		return b.call("cublasGemmEx_64", b.handle, p.b.op(), p.a.op(), u(p.n), u(p.m), u(p.k), alpha,
			p.b.at, kind, u(p.b.distance), p.a.at, kind, u(p.a.distance), beta, p.c.at, kind, u(p.c.distance), compute, blasDefaultAlgorithm)
	}
	err := b.call("cublasGemmStridedBatchedEx_64", b.handle, p.b.op(), p.a.op(), u(p.n), u(p.m), u(p.k), alpha,
		p.b.at, kind, u(p.b.distance), u(p.b.next), p.a.at, kind, u(p.a.distance), u(p.a.next), beta,
		p.c.at, kind, u(p.c.distance), u(p.c.next), u(p.batch), compute, blasDefaultAlgorithm)
	if !errors.Is(err, errUnsupported) {
		return err
	}
	// cuBLAS does not support every stride, for example not a stride of zero between complex
	// matrices: submit the products of the batch one by one.
	size := p.dtype.Size()
	for range p.batch {
		one := p
		one.batch = 1
		if err := b.multiply(one); err != nil {
			return err
		}
		p.a.at, p.b.at, p.c.at = p.a.at+uint64(p.a.next*size), p.b.at+uint64(p.b.next*size), p.c.at+uint64(p.c.next*size)
	}
	return nil
}

// calls runs f, which calls libraries, in order with the launches: it first submits the launches
// that were collected before.
func (s *submission) calls(f func() error) {
	s.flush()
	if s.err == nil {
		s.err = s.device.enter(f)
	}
}

func (r *run) multiply(ctx context.Context, w *ops.Multiplying, out *ops.Tensor) error {
	if out.Len() == 0 {
		return nil
	}
	if w.Inner == 0 {
		return r.submit(ctx, 0, func(s *submission) { s.memset(out.Far.Address(), 0, uint64(out.Bytes())) })
	}
	var b *blas
	var integers *gpu.Function
	var err error
	if isInteger(out.DType) {
		integers, err = r.device.code.builtin("product_" + out.DType.String())
	} else {
		b, err = r.device.getBLAS()
	}
	if err != nil {
		return err
	}
	need := uploadBytes(w.A, w.B)
	size := out.DType.Size()
	copied := [2]bool{}
	for i, x := range []*ops.Tensor{w.A, w.B} {
		if _, ok := blasForm(x, size); x.DType != out.DType || !ok {
			copied[i] = true
			need += aligned(uint64(x.Len() * size))
		}
	}
	batch := slicesProduct(w.Batch)
	var prepare [2]*mapping
	scratch := [2]*scratchMemory{{}, {}}
	operands := [2]*ops.Tensor{w.A, w.B}
	for i, x := range operands {
		if !copied[i] {
			continue
		}
		to := &ops.Tensor{DType: out.DType, Shape: x.Shape, Strides: ops.ContiguousStrides(out.DType, x.Shape), Far: scratch[i]}
		if prepare[i], err = r.device.planMap(ops.Convert(out.DType, x), to); err != nil {
			return err
		}
		operands[i] = to
	}
	return r.submit(ctx, need, func(s *submission) {
		var at [2]uint64
		for i, x := range operands {
			if prepare[i] != nil {
				scratch[i].at = s.take(uint64(x.Bytes()))
				s.evaluate(prepare[i], 0)
			}
			at[i] = s.at(x)
		}
		if integers != nil {
			s.fail(eachProduct(w, operands, at, out, batch, func(p product) error { return s.integerProduct(integers, p) }))
			return
		}
		s.calls(func() error { return eachProduct(w, operands, at, out, batch, b.multiply) })
	})
}

const (
	productTile = 16
	maxGridEdge = 65535
)

// integerProduct launches a kernel of builtin.cu, in pieces that fit into a grid.
// REQUIRES: the rows of c follow each other without gaps, factor is 1, add is 0 and batch is not 0.
func (s *submission) integerProduct(f *gpu.Function, p product) error {
	strides := func(m matrix) (row, column int64) {
		if m.transposed {
			return 1, m.distance
		}
		return m.distance, 1
	}
	aRow, aColumn := strides(p.a)
	bRow, bColumn := strides(p.b)
	size := p.dtype.Size()
	const rows = maxGridEdge * productTile
	for done := int64(0); done < p.batch; done += maxGridEdge {
		batch := min(p.batch-done, maxGridEdge)
		for i := int64(0); i < p.m; i += rows {
			m := min(p.m-i, rows)
			s.launchGrid(f, gpu.Dim{uint32((p.n + productTile - 1) / productTile), uint32((m + productTile - 1) / productTile), uint32(batch)}, threads,
				s.parameters().u64(
					p.a.at+uint64((done*p.a.next+i*aRow)*size), p.b.at+uint64(done*p.b.next*size), p.c.at+uint64((done*p.c.next+i*p.n)*size),
				).i64(m, p.n, p.k, aRow, aColumn, bRow, bColumn, p.a.next, p.b.next, p.c.next))
		}
	}
	return nil
}

// scratchMemory is an ops.Memory whose address is set when the work is submitted.
type scratchMemory struct{ at uint64 }

// Address is part of ops.Memory.
func (m *scratchMemory) Address() uint64 { return m.at }

// Size is part of ops.Memory.
func (m *scratchMemory) Size() int64 { return 1 << 62 }

// Read is part of ops.Memory.
func (m *scratchMemory) Read(int64, []byte) error {
	return errors.New("cuda: the processor cannot read scratch memory")
}

func slicesProduct(list []int64) int64 {
	n := int64(1)
	for _, x := range list {
		n *= x
	}
	return n
}

// blasForm describes the matrices of the last two axes in the form that cuBLAS takes, without their
// address and next. It returns false if cuBLAS cannot take them. size is that of an element.
func blasForm(t *ops.Tensor, size int64) (matrix, bool) {
	n := len(t.Shape)
	transposed, distance, ok := ops.Leading(t.Shape[n-2], t.Shape[n-1], t.Strides[n-2], t.Strides[n-1], size)
	for _, s := range t.Strides[:n-2] {
		ok = ok && s%size == 0
	}
	return matrix{transposed: transposed, distance: int64(distance)}, ok
}

// eachProduct divides the product into batches whose matrices are a constant stride apart, and
// calls visit for each batch.
func eachProduct(w *ops.Multiplying, operands [2]*ops.Tensor, at [2]uint64, out *ops.Tensor, batch int64, visit func(product) error) error {
	size := out.DType.Size()
	p := product{dtype: out.DType, tf32: w.TF32, m: w.Rows, n: w.Columns, k: w.Inner, batch: 1, factor: 1}
	var strides [2][]int64
	for i, x := range operands {
		form, _ := blasForm(x, size)
		form.at = at[i]
		if i == 0 {
			p.a = form
		} else {
			p.b = form
		}
		strides[i] = make([]int64, len(w.Batch))
		skip := len(w.Batch) - (len(x.Shape) - 2)
		for axis, n := range x.Shape[:len(x.Shape)-2] {
			if n != 1 {
				strides[i][skip+axis] = x.Strides[axis]
			}
		}
	}
	p.c = matrix{at: out.Far.Address() + uint64(out.Offset), distance: w.Columns}
	if batch == 1 {
		return visit(p)
	}
	each := w.Rows * w.Columns * size
	outStrides := make([]int64, len(w.Batch))
	for i, step := len(w.Batch)-1, each; i >= 0; i-- {
		outStrides[i] = step
		step *= w.Batch[i]
	}
	shape, joined := joinAxes(w.Batch, strides[0], strides[1], outStrides)
	last := len(shape) - 1
	p.batch = shape[last]
	p.a.next, p.b.next, p.c.next = joined[0][last]/size, joined[1][last]/size, joined[2][last]/size
	index := make([]int64, last)
	for {
		q := p
		for i, x := range index {
			q.a.at += uint64(x * joined[0][i])
			q.b.at += uint64(x * joined[1][i])
			q.c.at += uint64(x * joined[2][i])
		}
		if err := visit(q); err != nil {
			return err
		}
		axis := last - 1
		for ; axis >= 0; axis-- {
			if index[axis]++; index[axis] < shape[axis] {
				break
			}
			index[axis] = 0
		}
		if axis < 0 {
			return nil
		}
	}
}
