package cuda

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/millrace/millrace/internal/sharedlib"
	"github.com/millrace/millrace/worker/ops"
)

// Constants of the cuFFT interface.
const (
	fftC2C, fftR2C, fftC2R = 0x29, 0x2a, 0x2c
	fftZ2Z, fftD2Z, fftZ2D = 0x69, 0x6a, 0x6c
	fftForward, fftInverse = -1, 1
	// fftAxes is the largest number of axes of a plan.
	fftAxes = 3
)

// fftFunctions has the function that executes a plan, by the kind of the plan.
var fftFunctions = map[int]string{
	fftC2C: "cufftExecC2C", fftR2C: "cufftExecR2C", fftC2R: "cufftExecC2R",
	fftZ2Z: "cufftExecZ2Z", fftD2Z: "cufftExecD2Z", fftZ2D: "cufftExecZ2D",
}

// maxFFTPlans is the largest number of plans that are kept, unless more are in use. The tables of a
// plan take GPU memory outside of the slab.
const maxFFTPlans = 32

// fft is cuFFT on the compute stream.
type fft struct {
	device *Device
	lib    *library
	mu     sync.Mutex // guards plans, and the uses of each
	plans  []*fftPlan // the most recently used first
}

// fftShape is what a plan depends on. lengths are those of the transforms, without those behind the
// number of axes.
type fftShape struct {
	kind    int
	axes    int
	lengths [fftAxes]int64
	batch   int64
}

// fftPlan is a plan of cuFFT for a batch of transforms of contiguous arrays.
type fftPlan struct {
	fftShape
	handle    int32
	workBytes uint64
	uses      int // calls in progress that use it
}

func (d *Device) openFFT() (*fft, error) {
	lib, err := d.finder.open("cufft", "cufftCreate", "12", "11")
	if err != nil {
		d.logf("cuda: no cuFFT: %v", err)
		return nil, err
	}
	d.logf("cuda: cuFFT from %s", lib.file)
	return &fft{device: d, lib: lib}, nil
}

func (d *Device) getFFT() (*fft, error) { return d.fft.get(d.openFFT) }

func (f *fft) close() error {
	err := f.destroy(f.plans)
	if f.device.gpu.Health() != nil {
		return nil
	}
	return err
}

func (f *fft) destroy(plans []*fftPlan) error {
	return f.device.enter(func() error {
		var errs []error
		for _, p := range plans {
			errs = append(errs, f.lib.mustCall("cufftDestroy", uint64(p.handle)))
		}
		return errors.Join(errs...)
	})
}

// plan finds or makes a plan. The caller must call release when the call that uses it has ended.
func (f *fft) plan(shape fftShape) (*fftPlan, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.plans, func(p *fftPlan) bool { return p.fftShape == shape })
	if i < 0 {
		p := &fftPlan{fftShape: shape}
		if err := f.device.enter(func() error { return f.make(p) }); err != nil {
			return nil, err
		}
		i, f.plans = len(f.plans), append(f.plans, p)
	}
	p := f.plans[i]
	p.uses++
	f.plans = slices.Insert(slices.Delete(f.plans, i, i+1), 0, p)
	var unused []*fftPlan
	for i := len(f.plans) - 1; i > 0 && len(f.plans) > maxFFTPlans; i-- {
		if f.plans[i].uses == 0 {
			unused = append(unused, f.plans[i])
			f.plans = slices.Delete(f.plans, i, i+1)
		}
	}
	return p, f.destroy(unused)
}

func (f *fft) release(p *fftPlan) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p.uses--
}

// make creates the plan of cuFFT. REQUIRES: called within enter.
func (f *fft) make(p *fftPlan) error {
	var pinner runtime.Pinner
	defer pinner.Unpin()
	if err := f.lib.mustCall("cufftCreate", sharedlib.AddressOf(&pinner, &p.handle)); err != nil {
		return err
	}
	err := f.lib.mustCall("cufftSetAutoAllocation", uint64(p.handle), 0)
	if err == nil {
		// Without a description of their layout, the arrays are contiguous.
		err = f.lib.mustCall("cufftMakePlanMany64", uint64(p.handle), uint64(p.axes), sharedlib.AddressOf(&pinner, &p.lengths),
			0, 1, 0, 0, 1, 0, uint64(p.kind), uint64(p.batch), sharedlib.AddressOf(&pinner, &p.workBytes))
	}
	if err == nil {
		err = f.lib.mustCall("cufftSetStream", uint64(p.handle), f.device.stream.Handle())
	}
	if err != nil {
		err = fmt.Errorf("%d transforms of the lengths %v: %w", p.batch, p.lengths[:p.axes], err)
		return errors.Join(err, f.lib.mustCall("cufftDestroy", uint64(p.handle)))
	}
	return nil
}

// execute submits the transforms of a plan. work has workBytes. REQUIRES: called within enter, with
// Device.submitting held.
func (f *fft) execute(p *fftPlan, inverse bool, from, to, work uint64) error {
	if err := f.lib.mustCall("cufftSetWorkArea", uint64(p.handle), work); err != nil {
		return err
	}
	direction := int64(fftForward)
	if inverse {
		direction = fftInverse
	}
	arguments := []uint64{uint64(p.handle), from, to}
	if p.kind == fftC2C || p.kind == fftZ2Z {
		arguments = append(arguments, uint64(direction))
	}
	return f.lib.mustCall(fftFunctions[p.kind], arguments...)
}

// transforming is the state of one call of array.fft. It transforms along up to fftAxes axes at a
// time.
type transforming struct {
	*run
	fft   *fft
	work  *ops.Transforming
	out   *ops.Tensor
	steps []*fftStep
	// store copies the result of the last step to the output; scale multiplies it. If both are nil,
	// the last step stores the output.
	store *move
	scale *mapping
}

// fftStep transforms along the last axes of a contiguous array.
type fftStep struct {
	plan    *fftPlan
	inverse bool
	// The elements are read from x if they have the order that cuFFT needs. Otherwise they are
	// copied or converted to from. Zeros come behind them if they are fewer (padded).
	x         *ops.Tensor
	from, to  *ops.Tensor
	read      bool
	copy      *move
	convert   *mapping
	padded    bool
	imaginary *mapping // sets imaginary parts to zero; nil: there are none to set
}

func (r *run) transform(ctx context.Context, w *ops.Transforming, out *ops.Tensor) error {
	if out.Len() == 0 {
		return nil
	}
	f, err := r.device.getFFT()
	if err != nil {
		return err
	}
	v := &transforming{run: r, fft: f, work: w, out: out}
	r.release = func() {
		for _, step := range v.steps {
			f.release(step.plan)
		}
	}
	result, err := v.planSteps()
	if err != nil {
		return err
	}
	if err := v.planEnd(result); err != nil {
		return err
	}
	return r.submit(ctx, v.scratchBytes(), v.submit)
}

// planSteps plans the steps and returns the result of the last one, with the axes in the order of
// the output.
func (v *transforming) planSteps() (*ops.Tensor, error) {
	w := v.work
	axes, last := slices.Clone(w.Axes), w.Axes[len(w.Axes)-1]
	others := axes[:len(axes)-1]
	slices.Sort(others)
	x := w.X
	var err error
	switch w.Kind {
	case "rfft": // the first step makes complex numbers
		n := max(0, len(others)-(fftAxes-1))
		if x, err = v.step(x, fftR2C, append(slices.Clone(others[n:]), last)); err != nil {
			return nil, err
		}
		axes = others[:n]
	case "irfft":
		axes = others
	default:
		slices.Sort(axes)
	}
	for n := len(axes); n > 0; n = len(axes) {
		if x, err = v.step(x, fftC2C, axes[max(0, n-fftAxes):]); err != nil {
			return nil, err
		}
		axes = axes[:max(0, n-fftAxes)]
	}
	if w.Kind == "irfft" { // the last step makes real numbers
		return v.step(x, fftC2R, []int{last})
	}
	return x, nil
}

// single reports whether the numbers have single precision.
func (v *transforming) single() bool {
	return v.out.DType == ops.Complex64 || v.out.DType == ops.Float32
}

// types returns the real and the complex type of the transforms.
func (v *transforming) types() (realType, complexType ops.DType) {
	if v.single() {
		return ops.Float32, ops.Complex64
	}
	return ops.Float64, ops.Complex128
}

// lengthOf returns the length of the transform along an axis.
func (v *transforming) lengthOf(axis int) int64 {
	return v.work.Lengths[slices.Index(v.work.Axes, axis)]
}

// step plans a step along the axes of x, the last of which becomes the innermost one. It returns
// the step's result with the axes in the order of x.
func (v *transforming) step(x *ops.Tensor, kind int, axes []int) (*ops.Tensor, error) {
	var order []int // of the axes in memory
	for axis := range x.Shape {
		if !slices.Contains(axes, axis) {
			order = append(order, axis)
		}
	}
	order = append(order, axes...)
	inner := axes[len(axes)-1]
	before, after := slices.Clone(x.Shape), slices.Clone(x.Shape)
	shape := fftShape{kind: kind, axes: len(axes), batch: 1}
	for i, axis := range axes {
		n := v.lengthOf(axis)
		shape.lengths[i], before[axis], after[axis] = n, n, n
	}
	realType, complexType := v.types()
	from, to := complexType, complexType
	half := v.lengthOf(inner)/2 + 1
	switch kind {
	case fftR2C:
		from, after[inner] = realType, half
	case fftC2R:
		to, before[inner] = realType, half
	}
	if !v.single() {
		shape.kind += fftZ2Z - fftC2C
	}
	for _, axis := range order[:len(order)-len(axes)] {
		shape.batch *= x.Shape[axis]
	}
	s := &fftStep{inverse: v.work.Kind == "ifft" || v.work.Kind == "irfft"}
	s.from, s.to = inMemory(from, before, order), inMemory(to, after, order)
	if err := v.planInput(s, x, order, kind); err != nil {
		return nil, err
	}
	var err error
	if s.plan, err = v.fft.plan(shape); err != nil {
		return nil, err
	}
	v.steps = append(v.steps, s)
	result := &ops.Tensor{DType: to, Shape: after, Strides: make([]int64, len(after)), Far: s.to.Far}
	for i, axis := range order {
		result.Strides[axis] = s.to.Strides[i]
	}
	return result, nil
}

// inMemory returns a contiguous tensor in scratch memory with the axes in that order.
func inMemory(dtype ops.DType, shape []int64, order []int) *ops.Tensor {
	ordered := permuted(shape, order)
	return &ops.Tensor{DType: dtype, Shape: ordered, Strides: ops.ContiguousStrides(dtype, ordered), Far: &scratchMemory{}}
}

func permuted(list []int64, order []int) []int64 {
	out := make([]int64, len(order))
	for i, axis := range order {
		out[i] = list[axis]
	}
	return out
}

// planInput decides how the elements of x get to the memory from which a step reads.
func (v *transforming) planInput(s *fftStep, x *ops.Tensor, order []int, kind int) error {
	view := *x
	view.Shape, view.Strides = permuted(x.Shape, order), permuted(x.Strides, order)
	for i, n := range s.from.Shape {
		view.Shape[i] = min(view.Shape[i], n)
	}
	s.x = &view
	s.padded = !slices.Equal(view.Shape, s.from.Shape)
	// NB: transforms to real numbers overwrite their input.
	_, ours := x.Far.(*scratchMemory)
	s.read = x.Far != nil && !v.device.remote(x) && x.DType == s.from.DType && !s.padded && view.Contiguous() &&
		(x.Far.Address()+uint64(x.Offset))%16 == 0 && (ours || kind != fftC2R)
	if s.read {
		s.from = &view
	}
	var err error
	part := *s.from
	part.Shape = view.Shape
	switch {
	case s.read || view.Len() == 0:
	case x.DType == part.DType:
		at := uint64(8) // for a tensor in host memory: its upload aligns element zero to 16 bytes
		if x.Far != nil {
			at = x.Far.Address() + uint64(x.Offset)
		}
		s.copy, err = v.device.planMove(view.Shape, view.Strides, part.Strides, part.DType.Size(), at, 0)
	default:
		s.convert, err = v.device.planMap(ops.Convert(part.DType, &view), &part)
	}
	if err != nil || kind != fftC2R {
		return err
	}
	return v.planImaginary(s)
}

// planImaginary plans to set imaginary parts to zero: those of the first element of each transform,
// and of the element n/2 if the length n is even. They do not count, but cuFFT may use them.
func (v *transforming) planImaginary(s *fftStep) error {
	last := len(s.from.Shape) - 1
	n := v.lengthOf(v.work.Axes[len(v.work.Axes)-1])
	realType, complexType := v.types()
	parts := *s.from
	parts.DType, parts.Offset = realType, s.from.Offset+realType.Size()
	parts.Shape, parts.Strides = slices.Clone(parts.Shape), slices.Clone(parts.Strides)
	parts.Shape[last], parts.Strides[last] = 2-n%2, n/2*complexType.Size()
	zero, err := ops.Scalar(realType, 0.0)
	if err != nil {
		return err
	}
	s.imaginary, err = v.device.planMap(ops.Convert(realType, zero), &parts)
	return err
}

// planEnd decides how the result of the last step gets to the output.
func (v *transforming) planEnd(result *ops.Tensor) error {
	var err error
	if result.Contiguous() {
		v.steps[len(v.steps)-1].to.Far, result = v.out.Far, v.out
	}
	if v.work.Scale == 1 {
		if result != v.out {
			v.store, err = v.device.planMove(v.out.Shape, result.Strides, v.out.Strides, v.out.DType.Size(), 0, v.out.Far.Address())
		}
		return err
	}
	// The parts of complex numbers are multiplied each by itself: infinity times 0 must not occur.
	op, err := v.device.ops.Lookup("array.map")
	if err != nil {
		return err
	}
	planned, err := op.Plan(ops.Args{Positional: []any{"x0*x1", partsOf(result), v.work.Scale}})
	if err != nil {
		return err
	}
	v.scale, err = v.device.planMap(planned.Work.(*ops.Mapping), partsOf(v.out))
	return err
}

// partsOf returns a view of complex numbers as pairs of real ones.
func partsOf(t *ops.Tensor) *ops.Tensor {
	view := *t
	switch t.DType {
	case ops.Complex64:
		view.DType = ops.Float32
	case ops.Complex128:
		view.DType = ops.Float64
	case ops.Invalid, ops.Bool, ops.Uint8, ops.Int32, ops.Int64, ops.Float32, ops.Float64:
		return t
	}
	view.Shape, view.Strides = append(slices.Clone(t.Shape), 2), append(slices.Clone(t.Strides), view.DType.Size())
	return &view
}

// scratchBytes is the scratch memory that submit takes.
func (v *transforming) scratchBytes() (need uint64) {
	for _, step := range v.steps {
		if !step.read {
			need += aligned(uint64(step.from.Bytes()))
		}
		if step.copy != nil {
			need += uploadBytes(step.x)
		}
		for _, m := range []*mapping{step.convert, step.imaginary} {
			if m != nil {
				need += m.scratchBytes(v.device)
			}
		}
		if step.to.Far != v.out.Far {
			need += aligned(uint64(step.to.Bytes()))
		}
		need += aligned(step.plan.workBytes)
	}
	return need
}

func (v *transforming) submit(s *submission) {
	for _, step := range v.steps {
		if !step.read {
			step.from.Far.(*scratchMemory).at = s.take(uint64(step.from.Bytes()))
		}
		if step.padded {
			s.memset(step.from.Far.Address(), 0, uint64(step.from.Bytes()))
		}
		if step.copy != nil {
			s.move(step.copy, s.at(step.x), step.from.Far.Address())
		}
		for _, m := range []*mapping{step.convert, step.imaginary} {
			if m != nil {
				s.evaluate(m, 0)
			}
		}
		if room, ok := step.to.Far.(*scratchMemory); ok {
			room.at = s.take(uint64(step.to.Bytes()))
		}
		from, to := step.from.Far.Address()+uint64(step.from.Offset), step.to.Far.Address()
		work := s.take(step.plan.workBytes)
		s.calls(func() error { return v.fft.execute(step.plan, step.inverse, from, to, work) })
	}
	last := v.steps[len(v.steps)-1]
	switch {
	case v.scale != nil:
		s.evaluate(v.scale, 0)
	case v.store != nil:
		s.move(v.store, last.to.Far.Address(), v.out.Far.Address())
	}
}
