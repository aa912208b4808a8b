package cuda

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/device/wire"
	"github.com/millrace/millrace/worker/ops"
)

// errHost says that the CPU has to compute this call.
var errHost = errors.New("cuda: not for kernels")

// hostWorkBytes limits one piece of working memory of a call that the CPU computes.
const hostWorkBytes = 4 << 30

// Prepare is part of device.Device.
func (d *Device) Prepare(call device.Call) (device.Prepared, error) {
	op, err := d.ops.Lookup(call.Op)
	if err != nil {
		return nil, wire.Failure(err)
	}
	args, err := wire.Arguments(call, d.slab, view)
	if err != nil {
		return nil, err
	}
	return &prepared{device: d, op: op, args: args, attempt: call.Attempt, cores: call.Cores, scratch: call.Scratch}, nil
}

type prepared struct {
	device  *Device
	op      *ops.Op
	args    ops.Args
	attempt int
	cores   func() int
	scratch device.Scratch
	// left is a run that Start has begun and left to Run, because the CPU has to compute the call.
	left *run
	// planned or wrong is set by plan.
	planned *ops.Planned
	wrong   error
}

// plan checks the arguments. It does so once and keeps the outcome.
func (p *prepared) plan() (*ops.Planned, error) {
	if p.planned == nil && p.wrong == nil {
		p.planned, p.wrong = p.op.Plan(p.args)
	}
	return p.planned, p.wrong
}

// OutputBytes is part of device.Prepared.
func (p *prepared) OutputBytes() []uint64 {
	planned, err := p.plan()
	if err != nil {
		return nil
	}
	total, ok := planned.OutputBytes()
	if !ok || total <= wire.InlineBytes {
		return nil
	}
	return []uint64{uint64(total)}
}

// Run is part of device.Prepared. Kernels cannot be interrupted: after their submission Run waits
// for them, and only then returns the context's error.
func (p *prepared) Run(ctx context.Context, alloc device.Allocator) (device.Result, error) {
	planned, err := p.plan()
	if err != nil {
		return device.Result{}, wire.Failure(err)
	}
	if r := p.left; r != nil {
		p.left = nil
		if err := p.onHost(ctx, r); err != nil {
			return device.Result{}, wire.Failure(err)
		}
		return r.Finish()
	}
	if err := ctx.Err(); err != nil {
		return device.Result{}, fmt.Errorf("%s: %w", p.op.Name, err)
	}
	if planned.Work == nil {
		result, err := p.unplanned(ctx, alloc)
		if err != nil {
			return device.Result{}, wire.Failure(err)
		}
		return result, nil
	}
	r, err := p.device.begin(ctx, p.op.Name)
	if err != nil {
		return device.Result{}, wire.Failure(err)
	}
	err = p.carry(ctx, r, alloc)
	if errors.Is(err, errHost) {
		err = p.onHost(ctx, r)
	}
	if err != nil {
		return device.Result{}, wire.Failure(err)
	}
	return r.Finish()
}

// Start is part of device.Starter.
func (p *prepared) Start(ctx context.Context, alloc device.Allocator) (device.Started, error) {
	planned, err := p.plan()
	if err != nil {
		return nil, wire.Failure(err)
	}
	if planned.Late {
		return nil, nil // the CPU reads the sizes of the outputs
	}
	switch planned.Work.(type) {
	case nil, *ops.FactoringQR, *ops.FactoringSVD, *ops.FactoringCholesky, *ops.Solving:
		return nil, nil // the CPU checks intermediate results
	case *ops.Contracting:
		return nil, nil // it may wait for memory
	}
	// Do not wait for a slot: perhaps all slots belong to calls that this caller has yet to finish.
	r, err := p.device.tryBegin(p.op.Name)
	if r == nil || err != nil {
		return nil, err
	}
	r.ahead = true
	err = p.carry(ctx, r, alloc)
	if errors.Is(err, errHost) {
		// The CPU may have to wait for memory, which calls of this caller may hold: Run does it.
		p.left = r
		return nil, nil
	}
	if err != nil {
		return nil, wire.Failure(err)
	}
	return r, nil
}

// unplanned runs an operation that has no kernels.
func (p *prepared) unplanned(ctx context.Context, alloc device.Allocator) (device.Result, error) {
	result, err := p.byProcessor(ctx, p.planned)
	if err != nil {
		return device.Result{}, err
	}
	out := wire.NewEncoder(p.device.slab, alloc, view, p.device.write)
	return out.Result(result)
}

// carry submits the work of a call. If that fails, it ends the run, unless the error is errHost:
// then onHost has to compute the outputs.
func (p *prepared) carry(ctx context.Context, r *run, alloc device.Allocator) error {
	err := p.carryIn(ctx, r, alloc)
	if err != nil && !errors.Is(err, errHost) {
		r.end()
	}
	return err
}

func (p *prepared) carryIn(ctx context.Context, r *run, alloc device.Allocator) (err error) {
	r.planned, r.frames, r.out = p.planned, p.scratch, wire.NewEncoder(p.device.slab, alloc, view, p.device.write)
	if r.outs = r.first.list[:]; len(p.planned.Outputs) != len(r.outs) {
		r.outs = make([]*ops.Tensor, len(p.planned.Outputs))
	}
	for i := range r.outs { // there are none if the call is Late
		want := &p.planned.Outputs[i]
		if r.outs[i], err = r.output(i, want); err != nil {
			return fmt.Errorf("%s: output of %v, shape %v: %w", p.op.Name, want.DType, want.Shape, err)
		}
	}
	return r.carryOut(ctx, p.planned.Work, r.outs)
}

// Done is part of device.Started.
func (r *run) Done() bool {
	if !r.open {
		return true
	}
	if !r.over {
		done, err := r.event.Query()
		r.over = done && err == nil
		return done || err != nil // Finish returns the error
	}
	return true
}

// Header is part of device.Started.
func (r *run) Header() []byte {
	if !r.open || len(r.out.Frames()) != len(r.outs) {
		return nil // some tensors are stored in the header, which is not known yet
	}
	if r.made.Header == nil {
		made, err := r.out.Result(r.planned.Result(r.outs))
		if err != nil {
			return nil // Finish returns the error
		}
		r.made = made
	}
	return r.made.Header
}

// Finish is part of device.Started.
func (r *run) Finish() (device.Result, error) {
	defer r.end()
	if r.open {
		var err error
		if !r.over {
			err = r.wait()
		}
		if err == nil && r.flag != nil {
			err = checkFlag(r.flag, r.negative)
		}
		if err != nil {
			return device.Result{}, wire.Failure(r.explain(err))
		}
	}
	if r.made.Header != nil {
		return r.made, nil
	}
	r.takeSmall(r.outs)
	result, err := r.out.Result(r.planned.Result(r.outs))
	if err != nil {
		return device.Result{}, wire.Failure(err)
	}
	return result, nil
}

// byProcessor computes the result of an operation without kernels on the CPU.
func (p *prepared) byProcessor(ctx context.Context, planned *ops.Planned) (any, error) {
	ctx = p.withEnv(ctx)
	if p.op.ReadsNoData {
		return planned.Run(ctx, ops.NewTensor)
	}
	args, err := argsOnHost(p.args)
	if err != nil {
		return nil, err
	}
	return p.op.Run(ctx, args, ops.NewTensor)
}

// withEnv returns a context that carries the ops.Env of the call.
func (p *prepared) withEnv(ctx context.Context) context.Context {
	env := ops.Env{Attempt: p.attempt, Cores: p.cores, Linalg: p.device.linalg.Loaded()}
	if p.scratch != nil {
		env.Scratch = p
	}
	return ops.WithEnv(ctx, env)
}

// Scratch is part of ops.Scratch: working memory of a call that the CPU computes. The CPU cannot
// write to the slab, so the memory comes from the Go heap. A frame of the same size in the slab,
// which stays unused, counts it against the worker's memory limit, as the frames of the inputs and
// of the result count their copies on the heap.
func (p *prepared) Scratch(bytes int64) ([]byte, error) {
	if bytes > hostWorkBytes {
		return nil, fmt.Errorf("the CPU computes this call and may use %d bytes of its memory at a time; use smaller chunks", int64(hostWorkBytes))
	}
	if _, err := p.scratch.Scratch(uint64(bytes)); err != nil {
		return nil, err
	}
	room, err := ops.NewTensor(ops.Uint8, []int64{bytes})
	if err != nil {
		return nil, err
	}
	return room.Data, nil
}

// onHost computes the outputs of a run on the CPU and copies them to the device. If that fails, it
// ends the run.
func (p *prepared) onHost(ctx context.Context, r *run) error {
	err := ctx.Err()
	if err == nil {
		err = p.onHostInto(ctx, r)
	}
	if err != nil {
		r.end()
	}
	return err
}

// lateOutputs allocates the outputs of a call whose sizes the CPU has found.
func (r *run) lateOutputs(made []*ops.Tensor) error {
	for i, t := range made {
		out, err := r.output(i, &ops.Output{DType: t.DType, Shape: t.Shape})
		if err != nil {
			return fmt.Errorf("%s: output of %v, shape %v: %w", r.op, t.DType, t.Shape, err)
		}
		r.outs = append(r.outs, out)
	}
	return nil
}

func (p *prepared) onHostInto(ctx context.Context, r *run) error {
	args, err := argsOnHost(p.args)
	if err != nil {
		return err
	}
	var made []*ops.Tensor
	if _, err := p.op.Run(p.withEnv(ctx), args, func(dtype ops.DType, shape []int64) (*ops.Tensor, error) {
		t, err := ops.NewTensor(dtype, shape)
		made = append(made, t)
		return t, err
	}); err != nil {
		return err
	}
	if p.planned.Late {
		if err := r.lateOutputs(made); err != nil {
			return err
		}
	}
	for i, t := range made {
		switch to := r.outs[i].Far.(type) {
		case *far:
			if err := p.device.slab.WriteFrom(to.frame.Offset, t.Data); err != nil {
				return err
			}
		case *small:
			copy(to.bytes, t.Data)
		}
	}
	return nil
}
