// Package host is an Adapter: host memory as a worker's device, that is a slab
// together with the operations of worker/ops. They run in place on it; results of a few hundred bytes stay out of it, inside
// their header.
package host

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/worker/device"
	"github.com/millrace/millrace/worker/ops"
)

// inlineBytes is up to which size the tensors of a result lie in its header: a
// frame costs a block of the slab, books and a second message.
const inlineBytes = 1024

// Slab is a space that the processor can address.
type Slab interface {
	memory.Space
	Close() error
}

// Device is host memory.
type Device struct {
	slab Slab
	ops  *ops.Registry
}

var _ device.Device = (*Device)(nil)

// New makes a device of the slab, which it closes at its own end.
func New(slab Slab) *Device { return &Device{slab: slab, ops: ops.NewRegistry()} }

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
		return nil, failure(err)
	}
	p := &prepared{slab: d.slab, op: op, attempt: call.Attempt}
	if len(call.Arguments) == 0 {
		return p, nil
	}
	var arguments millracev1.Arguments
	if err := proto.Unmarshal(call.Arguments, &arguments); err != nil {
		return nil, &device.Error{Reason: "INVALID_ARGUMENT", Message: fmt.Sprintf("%s: the arguments are not a millrace.v1.Arguments message: %v", call.Op, err)}
	}
	c := decoder{slab: d.slab, inputs: call.Inputs, decoded: make([]any, len(call.Inputs)), known: make([]bool, len(call.Inputs))}
	if p.args, err = c.arguments(&arguments); err != nil {
		return nil, &device.Error{Reason: "INVALID_ARGUMENT", Message: fmt.Sprintf("%s: %v", call.Op, err)}
	}
	return p, nil
}

type prepared struct {
	slab    memory.Space
	op      *ops.Op
	args    ops.Args
	attempt int
}

// OutputBytes is part of device.Prepared.
func (p *prepared) OutputBytes() []uint64 {
	if len(p.args.Positional) == 0 && len(p.args.Named) == 0 {
		return nil
	}
	total, ok := p.op.OutputBytes(p.args)
	if !ok || total <= inlineBytes {
		return nil
	}
	return []uint64{uint64(total)}
}

// Run is part of device.Prepared.
func (p *prepared) Run(ctx context.Context, alloc device.Allocator) (device.Result, error) {
	out := encoder{slab: p.slab, alloc: alloc}
	result, err := p.op.Run(ops.WithAttempt(ctx, p.attempt), p.args, out.allocate)
	if err != nil {
		return device.Result{}, failure(err)
	}
	if result == nil {
		return device.Result{Header: nullHeader}, nil
	}
	value, err := out.value(result)
	if err != nil {
		return device.Result{}, failure(err)
	}
	header, err := proto.Marshal(value)
	if err != nil {
		return device.Result{}, failure(err)
	}
	return device.Result{Header: header, Frames: out.frames}, nil
}

// failure puts an error into the terms of the API. Those of memory and of
// contexts stay what they are.
func failure(err error) error {
	if errors.Is(err, device.ErrNoRoom) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	var e *ops.Error
	reason := "OP_FAILED"
	if errors.As(err, &e) {
		switch e.Kind {
		case ops.UnknownOp:
			reason = "FUNCTION_NOT_FOUND"
		case ops.BadArgument:
			reason = "INVALID_ARGUMENT"
		case ops.Failed:
		}
	}
	return &device.Error{Reason: reason, Message: err.Error()}
}
