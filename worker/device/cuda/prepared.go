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
	return &prepared{device: d, op: op, args: args, attempt: call.Attempt}, nil
}

type prepared struct {
	device  *Device
	op      *ops.Op
	args    ops.Args
	attempt int
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
	if err := p.carry(ctx, r, alloc); err != nil {
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
	switch planned.Work.(type) {
	case nil, *ops.FactoringQR, *ops.FactoringSVD:
		return nil, nil // the CPU checks intermediate results
	}
	// Do not wait for a slot: perhaps all slots belong to calls that this caller has yet to finish.
	r, err := p.device.tryBegin(p.op.Name)
	if r == nil || err != nil {
		return nil, err
	}
	r.ahead = true
	if err := p.carry(ctx, r, alloc); err != nil {
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

// carry submits the work of a call. If that fails, it ends the run.
func (p *prepared) carry(ctx context.Context, r *run, alloc device.Allocator) error {
	err := p.carryIn(ctx, r, alloc)
	if err != nil {
		r.end()
	}
	return err
}

func (p *prepared) carryIn(ctx context.Context, r *run, alloc device.Allocator) (err error) {
	r.planned, r.out = p.planned, wire.NewEncoder(p.device.slab, alloc, view, p.device.write)
	if r.outs = r.first.list[:]; len(p.planned.Outputs) != len(r.outs) {
		r.outs = make([]*ops.Tensor, len(p.planned.Outputs))
	}
	for i := range r.outs {
		want := &p.planned.Outputs[i]
		if r.outs[i], err = r.output(i, want); err != nil {
			return fmt.Errorf("%s: output of %v, shape %v: %w", p.op.Name, want.DType, want.Shape, err)
		}
	}
	err = r.carryOut(ctx, p.planned.Work, r.outs)
	if errors.Is(err, errHost) {
		err = p.onHost(ctx, p.planned, r.outs)
	}
	return err
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
	ctx = ops.WithEnv(ctx, ops.Env{Attempt: p.attempt})
	if p.op.Blind {
		return planned.Run(ctx, ops.NewTensor)
	}
	args, err := argsOnHost(p.args)
	if err != nil {
		return nil, err
	}
	return p.op.Run(ctx, args, ops.NewTensor)
}

// onHost computes the outputs on the CPU and copies them to the device.
func (p *prepared) onHost(ctx context.Context, planned *ops.Planned, outs []*ops.Tensor) error {
	args, err := argsOnHost(p.args)
	if err != nil {
		return err
	}
	var made []*ops.Tensor
	if _, err := p.op.Run(ops.WithEnv(ctx, ops.Env{Attempt: p.attempt}), args, func(dtype ops.DType, shape []int64) (*ops.Tensor, error) {
		t, err := ops.NewTensor(dtype, shape)
		made = append(made, t)
		return t, err
	}); err != nil {
		return err
	}
	for i, t := range made {
		switch to := outs[i].Far.(type) {
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
