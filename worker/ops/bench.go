package ops

import (
	"context"
	"encoding/binary"
	"math"
	"time"
	"unsafe"

	"github.com/millrace/millrace/worker/ops/simd"
)

func benchOps() []*Op {
	return []*Op{
		stampOp(),
		pointOp(),
		{
			Name:        "bench.noop",
			Processor:   true,
			Doc:         "Does nothing, with any arguments.",
			Variadic:    "args",
			VariadicDoc: "any values; their bytes are brought to the worker and not read",
			Open:        true,
			OpenDoc:     "any values",
			Result:      "null",
			Example:     Example{[]string{`{"key": "noop", "op": "bench.noop", "args": [1, "two"]}`}, "null"},
			ReadsNoData: true,
			plan: func(*call) (*Planned, error) {
				return scalar(func(context.Context) (any, error) { return nil, nil }), nil
			},
		},
		{
			Name:      "bench.sleep",
			Processor: true,
			Doc:       "Waits for a time without using a processor.",
			Details:   "The task keeps its slot while it waits. It ends at once when it is cancelled.",
			Params:    []Param{{Name: "seconds", Type: RealType, Required: true, Doc: "not negative"}},
			Result:    "null",
			Example:   Example{[]string{`{"key": "sleep", "op": "bench.sleep", "args": [0.05]}`}, "null"},
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
			Name:      "bench.spin",
			Processor: true,
			Doc:       "Keeps a processor busy for a time, or for a number of steps.",
			Details: "A step takes a few nanoseconds. On a GPU worker it is the processor that is busy, too: for a busy GPU " +
				"see bench.point.",
			Params: []Param{
				{Name: "seconds", Type: RealType, Doc: "not negative; give either `seconds` or `iterations`"},
				{Name: "iterations", Type: IntType, Doc: "the number of steps, not negative"},
			},
			Result:  "an int: the number of steps",
			Example: Example{[]string{`{"key": "spin", "op": "bench.spin", "kwargs": {"iterations": 1000}}`}, "1000"},
			plan:    planSpin,
		},
		{
			Name: "bench.bytes",
			Doc:  "Makes pseudo-random bytes.",
			Details: "They are the words of the Philox stream that array.random describes, one after the other, little endian. " +
				"They are the same on every device.",
			Params: []Param{
				{Name: "bytes", Type: IntType, Required: true, Doc: "the number of bytes, not negative"},
				{Name: "seed", Type: IntType, Default: int64(0), Doc: "of the stream; all 64 bits count"},
			},
			Result:  "a uint8 tensor with one axis",
			Example: Example{[]string{`{"key": "bytes", "op": "bench.bytes", "args": [4], "kwargs": {"seed": 7}}`}, "[45, 122, 96, 244]"},
			plan:    planBytes,
		},
		{
			Name:      "bench.checksum",
			Processor: true,
			ReadsOnce: true,
			Doc:       "Hashes the bytes of a tensor, in C order.",
			Details: "The hash is FNV-1a with 64-bit little-endian words in place of bytes. The last word is filled with zeros, " +
				"and the number of bytes is a further word.",
			Params: []Param{{Name: "x", Type: TensorType, Required: true, Doc: "of any dtype and shape"}},
			Result: "an int; `millrace get result` shows it as a text, because JSON's numbers are too short for it",
			Example: Example{[]string{
				`{"key": "checksum-x", "op": "bench.bytes", "args": [1000]}`,
				`{"key": "checksum", "op": "bench.checksum", "args": [{"input": "checksum-x"}]}`,
			}, `"-4438553740692319351"`},
			plan: func(c *call) (*Planned, error) {
				x := c.tensor("x")
				return scalar(func(ctx context.Context) (any, error) { return checksum(ctx, x) }), nil
			},
		},
		{
			Name:      "bench.fail",
			Processor: true,
			Doc:       "Fails with a message, always or in the first attempts of its task.",
			Details:   "The example fails once and is tried again, as `maxRetries` allows.",
			Params: []Param{
				{Name: "message", Type: StringType, Default: "failed as asked", Doc: "the text of the error"},
				{Name: "times", Type: IntType, Doc: "the number of attempts that fail; null means all of them"},
			},
			Result: "null, from an attempt that does not fail",
			Errors: []string{"OP_FAILED with the message: the op exists for this error"},
			Example: Example{[]string{
				`{"key": "fail", "op": "bench.fail", "args": ["no luck"], "kwargs": {"times": 1}, "options": {"maxRetries": 1}}`,
			}, "null"},
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
	seed := c.int("seed")
	return single(Uint8, []int64{n}, &Scattering{Seed: seed}, func(ctx context.Context, out *Tensor) error {
		words, r := n/8, simd.Random{Key: uint64(seed)}
		if words > 0 {
			if err := draw(ctx, out.base(), simd.DrawWords, r, 0, words); err != nil {
				return err
			}
		}
		var last [8]byte
		if err := draw(ctx, unsafe.Pointer(&last), simd.DrawWords, r, uint64(words), 1); err != nil {
			return err
		}
		copy(elements[byte](out)[8*words:], last[:])
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
