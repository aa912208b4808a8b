// Package host is an Adapter: host memory as a worker's device, that is a slab together with the
// operations of worker/ops. The operations run in place on the slab. Results of at most
// wire.InlineBytes stay out of the slab: they are stored inside their header.
package host

import (
	"context"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/device/wire"
	"github.com/millrace/millrace/worker/ops"
	"github.com/millrace/millrace/worker/ops/lapack"
)

// Slab is a memory space that the CPU can address.
type Slab interface {
	memory.Space
	Close() error
}

// Device is host memory.
type Device struct {
	slab   Slab
	ops    *ops.Registry
	linalg *lapack.Loading
}

var _ device.Device = (*Device)(nil)

// New creates a device on the slab. The device closes the slab in Close. Operations of linear
// algebra call the library; nil: they are computed in pure Go.
func New(slab Slab, linalg *lapack.Loading) *Device {
	return &Device{slab: slab, ops: ops.NewRegistry(), linalg: linalg}
}

// Kind is part of device.Device.
func (d *Device) Kind() device.Kind { return device.Host }

// Space is part of device.Device.
func (d *Device) Space() memory.Space { return d.slab }

// Ops is part of device.Device.
func (d *Device) Ops() []string { return d.ops.Names() }

// Close is part of device.Device.
func (d *Device) Close() error { return d.slab.Close() }

// Prepare is part of device.Device.
func (d *Device) Prepare(call device.Call) (device.Prepared, error) {
	op, err := d.ops.Lookup(call.Op)
	if err != nil {
		return nil, wire.Failure(err)
	}
	args, err := wire.Arguments(call, d.slab, wire.InPlace)
	if err != nil {
		return nil, err
	}
	p := &prepared{slab: d.slab, env: ops.Env{Attempt: call.Attempt, Cores: call.Cores, Linalg: d.linalg.Loaded()}, scratch: call.Scratch}
	p.planned, p.wrong = op.Plan(args)
	return p, nil
}

type prepared struct {
	slab    memory.Space
	planned *ops.Planned
	// wrong is the reason why there is no plan; Run returns it.
	wrong   error
	env     ops.Env
	scratch device.Scratch
}

// Scratch is part of ops.Scratch: working memory in the slab.
func (p *prepared) Scratch(bytes int64) ([]byte, error) {
	f, err := p.scratch.Scratch(uint64(bytes))
	if err != nil {
		return nil, err
	}
	return p.slab.Bytes(f.Offset, f.Bytes), nil
}

// OutputBytes is part of device.Prepared.
func (p *prepared) OutputBytes() []uint64 {
	if p.wrong != nil {
		return nil
	}
	total, ok := p.planned.OutputBytes()
	if !ok || total <= wire.InlineBytes {
		return nil
	}
	return []uint64{uint64(total)}
}

// Run is part of device.Prepared.
func (p *prepared) Run(ctx context.Context, alloc device.Allocator) (device.Result, error) {
	if p.wrong != nil {
		return device.Result{}, wire.Failure(p.wrong)
	}
	out := wire.NewEncoder(p.slab, alloc, wire.InPlace, func(f memory.Frame, b []byte) error {
		copy(p.slab.Bytes(f.Offset, f.Bytes), b)
		return nil
	})
	env := p.env
	if p.scratch != nil {
		env.Scratch = p
	}
	result, err := p.planned.Run(ops.WithEnv(ctx, env), out.Allocate)
	if err != nil {
		return device.Result{}, wire.Failure(err)
	}
	encoded, err := out.Result(result)
	if err != nil {
		return device.Result{}, wire.Failure(err)
	}
	return encoded, nil
}
