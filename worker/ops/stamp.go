package ops

import (
	"context"
	"encoding/binary"
	"fmt"
)

// A stamped tensor identifies its bytes in every word: a reader that receives the bytes of another
// object, of another generation, or a mixture, detects this. Words have 64 bits, little endian. The
// first three are the key, the generation (the number of the attempt that made it) and the number
// of bytes. The others are a hash of the key, the generation and their own index. Bytes at the end
// that do not fill a word are zero.
const (
	stampHead  = 3
	stampBytes = 8 * (stampHead + 1)
)

func stampOp() *Op {
	return &Op{
		Name:      "bench.stamp",
		Processor: true,
		ReadsOnce: true,
		Doc:       "Makes bytes of which every word tells where it belongs, after a check that the inputs are whole.",
		Details: "It is for tests that move many bytes while things break. Words have 64 bits, little endian. The first three are " +
			"the key, the number of the attempt, and the number of bytes. Each other word is a hash of the key, the attempt and " +
			"its own index. So a mixture of two objects, and a part of another object, are found.",
		Params: []Param{
			{Name: "key", Type: IntType, Required: true, Doc: "the key of the result"},
			{Name: "bytes", Type: IntType, Required: true, Doc: "the size of the result, at least 32"},
			{Name: "keys", Type: IntsType, Required: true, Doc: "the keys of the inputs, in their order; an empty list if there are none"},
		},
		Variadic:    "inputs",
		VariadicDoc: "results of bench.stamp",
		Result:      "a uint8 tensor with one axis",
		Errors:      []string{"OP_FAILED if an input is not the whole result of its key: the text names the first wrong byte"},
		Example: Example{[]string{
			`{"key": "stamp-1", "op": "bench.stamp", "args": [1, 1000, []]}`,
			`{"key": "stamp", "op": "bench.stamp", "args": [2, 32, [1], {"input": "stamp-1"}]}`,
		}, "[2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0, 0, 0, 0, 0, 0, 55, 188, 188, 115, 170, 213, 24, 53]"},
		plan: planStamp,
	}
}

func planStamp(c *call) (*Planned, error) {
	key, n, keys := uint64(c.int("key")), c.int("bytes"), c.ints("keys")
	if n < stampBytes {
		return nil, c.bad("bytes", "%d is less than the %d that every stamp has", n, stampBytes)
	}
	if len(keys) != len(c.rest) {
		return nil, c.bad("keys", "%d keys for %d inputs", len(keys), len(c.rest))
	}
	inputs := make([]*Tensor, len(keys))
	for i, v := range c.rest {
		var err error
		if inputs[i], err = c.tensorAt("inputs", i, v); err != nil {
			return nil, err
		}
	}
	return single(Uint8, []int64{n}, nil, func(ctx context.Context, out *Tensor) error {
		for i, x := range inputs {
			data, err := inType(ctx, x, Uint8)
			if err != nil {
				return err
			}
			if err := checkStamp(data.raw(), uint64(keys[i])); err != nil {
				return &Error{Kind: Failed, Op: c.op.Name, Argument: ordinal("inputs", i), Reason: err.Error()}
			}
		}
		stamp(elements[byte](out), key, uint64(envOf(ctx).Attempt))
		return nil
	}), nil
}

func stampWord(key, generation, index uint64) uint64 {
	x := key*0x9e3779b97f4a7c15 ^ generation*0xbf58476d1ce4e5b9 ^ index*0x94d049bb133111eb
	x ^= x >> 31
	x *= 0xd6e8feb86659fd93
	return x ^ x>>32
}

// stamp fills data, which has at least stampBytes bytes.
func stamp(data []byte, key, generation uint64) {
	for i, word := range []uint64{key, generation, uint64(len(data))} {
		binary.LittleEndian.PutUint64(data[8*i:], word)
	}
	i := stampHead
	for ; 8*i+8 <= len(data); i++ {
		binary.LittleEndian.PutUint64(data[8*i:], stampWord(key, generation, uint64(i)))
	}
	clear(data[8*i:])
}

func checkStamp(data []byte, key uint64) error {
	if len(data) < stampBytes {
		return fmt.Errorf("%d bytes are too few for a stamp", len(data))
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(data[8*i:]) }
	generation := word(1)
	if word(0) != key || word(2) != uint64(len(data)) {
		return fmt.Errorf("wrong bytes: they are stamped with key %d, generation %d, %d bytes; it should be key %d, %d bytes",
			word(0), generation, word(2), key, len(data))
	}
	i := stampHead
	for ; 8*i+8 <= len(data); i++ {
		if got := word(i); got != stampWord(key, generation, uint64(i)) {
			return fmt.Errorf("wrong bytes: word %d of %d is %#x, which is not of key %d, generation %d", i, len(data)/8, got, key, generation)
		}
	}
	for _, b := range data[8*i:] {
		if b != 0 {
			return fmt.Errorf("wrong bytes: the last ones are not of key %d", key)
		}
	}
	return nil
}
