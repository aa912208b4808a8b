package ops

import (
	"context"
	"encoding/binary"
	"math"
	"time"
)

func benchOps() []*Op {
	return []*Op{
		stampOp(),
		pointOp(),
		{
			Name:     "bench.noop",
			Doc:      "Does nothing with any arguments and returns null.",
			Variadic: "args",
			Open:     true,
			Blind:    true,
			plan: func(*call) (*Planned, error) {
				return scalar(func(context.Context) (any, error) { return nil, nil }), nil
			},
		},
		{
			Name:   "bench.sleep",
			Doc:    "Waits without using a processor, then returns null.",
			Params: []Param{{Name: "seconds", Type: RealType, Required: true}},
			plan: func(c *call) (*Planned, error) {
				d, err := duration(c, "seconds")
				if err != nil {
					return nil, err
				}
				return scalar(func(ctx context.Context) (any, error) {
					timer := time.NewTimer(d)
					defer timer.Stop()
					select {
					case <-ctx.Done():
						return nil, ctx.Err()
					case <-timer.C:
						return nil, nil
					}
				}), nil
			},
		},
		{
			Name: "bench.spin",
			Doc:  "Keeps a processor busy for a time, or for a number of steps of a few nanoseconds, and returns the number of steps.",
			Params: []Param{
				{Name: "seconds", Type: RealType},
				{Name: "iterations", Type: IntType},
			},
			plan: planSpin,
		},
		{
			Name: "bench.bytes",
			Doc: "Makes a uint8 tensor of pseudo-random bytes: those of the Philox stream that array.random describes, " +
				"word after word, little endian.",
			Params: []Param{
				{Name: "bytes", Type: IntType, Required: true},
				{Name: "seed", Type: IntType, Default: int64(0)},
			},
			plan: planBytes,
		},
		{
			Name: "bench.checksum",
			Once: true,
			Doc: "Hashes a tensor's bytes in C order to an int64: FNV-1a with 64-bit little-endian words in place of " +
				"bytes, the last one filled with zeros, and the number of bytes as a further word.",
			Params: []Param{{Name: "x", Type: TensorType, Required: true}},
			plan: func(c *call) (*Planned, error) {
				x := c.tensor("x")
				return scalar(func(ctx context.Context) (any, error) { return checksum(ctx, x) }), nil
			},
		},
		{
			Name: "bench.fail",
			Doc:  "Fails with a message: always, or in the first attempts of its task only, after which it returns null.",
			Params: []Param{
				{Name: "message", Type: StringType, Default: "failed as asked"},
				{Name: "times", Type: IntType, Doc: "attempts that fail; null means all"},
			},
			plan: func(c *call) (*Planned, error) {
				return scalar(func(ctx context.Context) (any, error) {
					if c.has("times") && int64(envOf(ctx).Attempt) > c.int("times") {
						return nil, nil
					}
					return nil, &Error{Kind: Failed, Op: c.op.Name, Reason: c.string("message")}
				}), nil
			},
		},
	}
}

func duration(c *call, name string) (time.Duration, error) {
	s := c.real(name)
	if !(s >= 0 && s < math.MaxInt64/float64(time.Second)) {
		return 0, c.bad(name, "%v is not a time from 0 to 292 years", s)
	}
	return time.Duration(s * float64(time.Second)), nil
}

func planSpin(c *call) (*Planned, error) {
	if c.has("seconds") == c.has("iterations") {
		return nil, c.bad("seconds", "give either seconds or iterations")
	}
	d, err := duration(c, "seconds")
	if err != nil {
		return nil, err
	}
	steps := int64(math.MaxInt64)
	if c.has("iterations") {
		if steps = c.int("iterations"); steps < 0 {
			return nil, c.bad("iterations", "%d is negative", steps)
		}
	}
	return scalar(func(ctx context.Context) (any, error) {
		start, state := time.Now(), uint64(1)
		for done := int64(0); ; {
			n := min(steps-done, 1<<12)
			for range n {
				state ^= state << 13
				state ^= state >> 7
				state ^= state << 17
			}
			done += n
			// The state is never zero. The test of it keeps the compiler from removing the loop.
			if done == steps || state == 0 || c.has("seconds") && time.Since(start) >= d {
				return done, nil
			}
			if err := ctx.Err(); err != nil {
				return nil, err
			}
		}
	}), nil
}

func planBytes(c *call) (*Planned, error) {
	n := c.int("bytes")
	if n < 0 {
		return nil, c.bad("bytes", "%d is negative", n)
	}
	stream := newPhiloxStream(c.int("seed"))
	return single(Uint8, []int64{n}, &Scattering{Seed: c.int("seed")}, func(ctx context.Context, out *Tensor) error {
		data := elements[byte](out)
		var last [16]byte
		for i := 0; i < len(data); i += 16 {
			if i%checkEvery == 0 {
				if err := ctx.Err(); err != nil {
					return err
				}
			}
			into := last[:]
			if len(data)-i >= 16 {
				into = data[i : i+16]
			}
			even, odd := stream.block(uint64(i / 16))
			binary.LittleEndian.PutUint64(into, even)
			binary.LittleEndian.PutUint64(into[8:], odd)
		}
		copy(data[len(data)&^15:], last[:])
		return nil
	}), nil
}

func checksum(ctx context.Context, x *Tensor) (any, error) {
	const prime = 0x100000001b3
	hash := uint64(0xcbf29ce484222325)
	data, err := inType(ctx, x, x.DType)
	if err != nil {
		return nil, err
	}
	all := data.raw()
	for i := 0; i < len(all); i += 8 {
		if i%checkEvery == 0 {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
		}
		var word uint64
		if len(all)-i >= 8 {
			word = binary.LittleEndian.Uint64(all[i:])
		} else {
			var tail [8]byte
			copy(tail[:], all[i:])
			word = binary.LittleEndian.Uint64(tail[:])
		}
		hash = (hash ^ word) * prime
	}
	return int64((hash ^ uint64(len(all))) * prime), nil
}
