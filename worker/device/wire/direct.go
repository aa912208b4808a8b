package wire

import (
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/worker/ops"
)

// For small tasks, decoding into protobuf messages takes a good part of the total time: one message
// for each value, and one more for its kind. Therefore values of the usual kinds are decoded from
// the bytes without messages. The unusual cases (maps, payloads of a language, unknown or repeated
// fields, malformed bytes) are left to the protobuf decoder, whose result is decisive: see unusual.

// unusual is returned in place of "ok": the bytes must be decoded as a message. Nothing else was
// decided about them.
const unusual = false

// maxDepth is the largest nesting depth of lists that is decoded directly.
const maxDepth = 64

// directly decodes a millrace.v1.Arguments.
func (d *decoder) directly(b []byte) (args ops.Args, ok bool) {
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 || kind != protowire.BytesType {
			return args, unusual
		}
		body, size := protowire.ConsumeBytes(b[n:])
		if size < 0 {
			return args, unusual
		}
		b = b[n+size:]
		switch field {
		case 1: // positional
			x, ok, err := d.direct(body, nil)
			if !ok || err != nil {
				return args, unusual // only the message decoder names the argument in errors
			}
			if args.Positional == nil {
				args.Positional = make([]any, 0, 1+fields(b, 1))
			}
			args.Positional = append(args.Positional, x)
		case 2: // named
			name, value, ok := entry(body)
			if !ok {
				return args, unusual
			}
			x, ok, err := d.direct(value, nil)
			if _, twice := args.Named[name]; !ok || err != nil || twice {
				return args, unusual
			}
			if args.Named == nil {
				args.Named = make(map[string]any)
			}
			args.Named[name] = x
		default:
			return args, unusual
		}
	}
	return args, true
}

// fields counts how often the wanted field occurs in b. It stops at the first unusual field; the
// count is only used as a capacity.
func fields(b []byte, wanted protowire.Number) (count int) {
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 || kind != protowire.BytesType {
			break
		}
		_, size := protowire.ConsumeBytes(b[n:])
		if size < 0 {
			break
		}
		b = b[n+size:]
		if field == wanted {
			count++
		}
	}
	return count
}

// entry decodes an entry of a map of values.
func entry(b []byte) (name string, value []byte, ok bool) {
	seen := 0
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 || kind != protowire.BytesType || seen > 1 || int(field) != seen+1 {
			return "", nil, unusual
		}
		body, size := protowire.ConsumeBytes(b[n:])
		if size < 0 {
			return "", nil, unusual
		}
		b = b[n+size:]
		if seen++; field == 1 {
			if !utf8.Valid(body) {
				return "", nil, unusual
			}
			name = string(body)
		} else {
			value = body
		}
	}
	return name, value, seen == 2
}

// direct decodes a millrace.v1.Value that has at most one field.
func (d *decoder) direct(b []byte, at *place) (x any, ok bool, err error) {
	if len(b) == 0 {
		return nil, true, nil
	}
	field, kind, n := protowire.ConsumeTag(b)
	if n < 0 {
		return nil, unusual, nil
	}
	b = b[n:]
	switch kind {
	case protowire.VarintType:
		v, n := protowire.ConsumeVarint(b)
		if n != len(b) {
			return nil, unusual, nil
		}
		switch field {
		case 1: // null_value
			return nil, true, nil
		case 2: // bool_value
			return protowire.DecodeBool(v), true, nil
		case 3: // int_value
			return protowire.DecodeZigZag(v), true, nil
		case 10: // input
			if at != nil || v > math.MaxUint32 {
				return nil, unusual, nil
			}
			x, err = d.input(uint32(v))
			return x, true, err
		}
	case protowire.Fixed64Type:
		if v, n := protowire.ConsumeFixed64(b); n == len(b) && field == 4 { // double_value
			return math.Float64frombits(v), true, nil
		}
	case protowire.BytesType:
		body, n := protowire.ConsumeBytes(b)
		if n != len(b) {
			return nil, unusual, nil
		}
		switch field {
		case 5: // string_value
			return string(body), utf8.Valid(body), nil
		case 6: // bytes_value
			return append([]byte{}, body...), true, nil
		case 7: // list_value
			return d.directList(body, at)
		case 9: // tensor_value
			var t described
			if !t.read(body, at.room()) {
				return nil, unusual, nil
			}
			x, err = d.build(&t, at)
			return x, true, err
		}
	}
	return nil, unusual, nil
}

func (d *decoder) directList(b []byte, at *place) (x any, ok bool, err error) {
	if d.depth == maxDepth {
		return nil, unusual, nil
	}
	d.depth++
	defer func() { d.depth-- }()
	list := make([]any, 0, fields(b, 1))
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 || kind != protowire.BytesType || field != 1 {
			return nil, unusual, nil
		}
		body, size := protowire.ConsumeBytes(b[n:])
		if size < 0 {
			return nil, unusual, nil
		}
		b = b[n+size:]
		x, ok, err := d.direct(body, at)
		if !ok || err != nil {
			return nil, ok, err
		}
		list = append(list, x)
	}
	return list, true, nil
}

// described is a decoded millrace.v1.Tensor.
type described struct {
	dtype          ops.DType
	shape, strides []int64
	offset         uint64
	// inline or frame is the location of the data, if located is true. framed says which one.
	located bool
	inline  []byte
	frame   uint32
	framed  bool
}

// read decodes b into a description that must be empty.
func (t *described) read(b []byte, room *decoded) bool {
	var seen [7]bool
	ok := false
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 || field < 1 || int(field) >= len(seen) || seen[field] {
			return unusual
		}
		seen[field] = true
		b = b[n:]
		switch {
		case kind == protowire.VarintType && (field == 1 || field == 4 || field == 5):
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return unusual
			}
			b = b[n:]
			switch field {
			case 1: // dtype
				if v > uint64(ops.Complex128) {
					return unusual
				}
				t.dtype = ops.DType(v)
			case 4: // offset_bytes
				t.offset = v
			case 5: // frame
				if v > math.MaxUint32 || t.located {
					return unusual
				}
				t.frame, t.framed, t.located = uint32(v), true, true
			}
		case kind == protowire.BytesType && (field == 2 || field == 3 || field == 6):
			body, n := protowire.ConsumeBytes(b)
			if n < 0 {
				return unusual
			}
			b = b[n:]
			switch field {
			case 2: // shape
				if t.shape, ok = packed(body, room.list(ofShape, varints(body))); !ok {
					return unusual
				}
			case 3: // strides
				if t.strides, ok = packed(body, room.list(ofStrides, varints(body))); !ok {
					return unusual
				}
			case 6: // inline_data
				if t.located {
					return unusual
				}
				// NB: an allocation of its own, as C functions may get its address. It is
				// aligned for its size, which is a multiple of that of the elements.
				t.inline, t.located = append([]byte{}, body...), true
			}
		default:
			return unusual
		}
	}
	return true
}

// varints counts the varints in b.
func varints(b []byte) (n int) {
	for _, c := range b {
		if c < 0x80 {
			n++
		}
	}
	return n
}

// packed decodes a list of varints and appends them to out.
func packed(b []byte, out []int64) (_ []int64, ok bool) {
	for len(b) > 0 {
		v, n := protowire.ConsumeVarint(b)
		if n < 0 {
			return nil, unusual
		}
		out, b = append(out, int64(v)), b[n:]
	}
	return out, true
}

// describe converts the message to a description.
func describe(t *millracev1.Tensor) described {
	out := described{dtype: ops.DType(t.GetDtype()), shape: t.GetShape(), strides: t.GetStrides(), offset: t.GetOffsetBytes()}
	switch l := t.GetLocation().(type) {
	case *millracev1.Tensor_InlineData:
		out.inline, out.located = l.InlineData, true
	case *millracev1.Tensor_Frame:
		out.frame, out.framed, out.located = l.Frame, true, true
	}
	return out
}
