package value

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

const (
	// maxNesting is the number of lists and maps that may be inside of each other. Most protobuf
	// libraries refuse messages that are nested more than 100 deep, and a map takes 3 levels.
	maxNesting = 30
	// maxAxes is the number of axes that a tensor may have, as in NumPy.
	maxAxes = 64

	maxEncoding = 64
	maxTypeName = 256
	// placesMultiple is the multiple of bytes at which the buffers of a table begin.
	placesMultiple = 8
)

// Fault is the first error that Check found in a header.
type Fault struct {
	// Field is the path of the field in an ObjectHead: "header", "frame_bytes[0]",
	// "header.list_value.values[3].tensor_value.shape[1]".
	Field string
	// Message says what is wrong with it, and gives the remedy.
	Message string
}

// Error is part of error.
func (f *Fault) Error() string { return f.Field + ": " + f.Message }

func faultf(field, format string, a ...any) *Fault {
	return &Fault{Field: field, Message: fmt.Sprintf(format, a...)}
}

// in returns the fault of a part as one of the whole; nil stays nil.
func (f *Fault) in(field string) *Fault {
	if f != nil {
		f.Field = strings.TrimSuffix(field+"."+f.Field, ".")
	}
	return f
}

// Check reports whether a header is a Value that every reader can decode with frames of the given
// sizes. The rules are those of value.proto: the elements of each tensor and the buffers of each
// table lie inside of their frames, each frame has a reader, and nothing refers to an input. A
// frame whose tensors have neither strides nor an offset has no bytes after them. An empty header
// is null.
//
// Check needs no memory but for the list of frames: a header of 16 MiB as messages would take some
// hundred MiB.
func Check(header []byte, frameBytes []uint64) *Fault {
	c := checker{frames: frameBytes}
	if len(frameBytes) > 0 {
		c.use = make([]use, len(frameBytes))
	}
	if fault := c.value(header, 0); fault != nil {
		return fault.in("header")
	}
	for i, u := range c.use {
		switch {
		case !u.used:
			return faultf(fmt.Sprintf("frame_bytes[%d]", i), "nothing in the header refers to this frame of %d bytes: leave it out, or describe it in the header", frameBytes[i])
		case !u.loose && u.reach < frameBytes[i]:
			return faultf(fmt.Sprintf("frame_bytes[%d]", i), "the frame has %d bytes, and its tensors only the first %d of them: correct shape, dtype or the size", frameBytes[i], u.reach)
		}
	}
	return nil
}

// checker checks one header.
type checker struct {
	frames []uint64
	use    []use // one for each frame
}

// use says what a header does with a frame.
type use struct {
	// reach is the end of the last element in the frame.
	reach uint64
	// loose: a tensor has strides or an offset, or the frame belongs to a table or a payload, so it
	// may have bytes that are no element.
	used, loose bool
}

// field is one field of a message.
type field struct {
	number protowire.Number
	kind   protowire.Type
	// varint is the value of a number, body the bytes of all other fields.
	varint uint64
	body   []byte
}

// next splits the first field off a message. ok is false if the bytes are no message.
func next(b []byte) (f field, rest []byte, ok bool) {
	number, kind, n := protowire.ConsumeTag(b)
	if n < 0 {
		return f, nil, false
	}
	f.number, f.kind, b = number, kind, b[n:]
	switch kind {
	case protowire.VarintType:
		f.varint, n = protowire.ConsumeVarint(b)
	case protowire.BytesType:
		f.body, n = protowire.ConsumeBytes(b)
	default:
		if n = protowire.ConsumeFieldValue(number, kind, b); n >= 0 {
			f.body = b[:n]
		}
	}
	if n < 0 {
		return f, nil, false
	}
	return f, b[n:], true
}

const noMessage = "it is no serialised millrace.v1.%s: serialise the message"

// kinds are the fields of Value.kind with their wire types.
var kinds = [...]struct {
	name string
	wire protowire.Type
}{
	1: {"null_value", protowire.VarintType}, 2: {"bool_value", protowire.VarintType}, 3: {"int_value", protowire.VarintType},
	4: {"double_value", protowire.Fixed64Type}, 5: {"string_value", protowire.BytesType}, 6: {"bytes_value", protowire.BytesType},
	7: {"list_value", protowire.BytesType}, 8: {"map_value", protowire.BytesType}, 9: {"tensor_value", protowire.BytesType},
	10: {"input", protowire.VarintType}, 11: {"opaque_value", protowire.BytesType}, 12: {"complex_value", protowire.BytesType},
	14: {"table_value", protowire.BytesType},
}

func (c *checker) value(b []byte, depth int) *Fault {
	if len(b) == 0 {
		return nil // null
	}
	f, rest, ok := next(b)
	switch {
	case !ok:
		return faultf("", noMessage, "Value")
	case int(f.number) >= len(kinds) || kinds[f.number].name == "":
		return faultf("", "a value of a kind that this version does not know (field %d): use a kind of value.proto", f.number)
	case f.kind != kinds[f.number].wire:
		return faultf("", noMessage, "Value")
	case len(rest) > 0:
		return faultf("", "bytes after its %s: a value has one kind", kinds[f.number].name)
	}
	name := kinds[f.number].name
	switch f.number {
	case 5:
		if !utf8.Valid(f.body) {
			return faultf(name, "it is no UTF-8: use bytes_value")
		}
	case 7:
		return c.list(f.body, depth+1).in(name)
	case 8:
		return c.fields(f.body, depth+1).in(name)
	case 9:
		return c.tensor(f.body).in(name)
	case 10:
		return faultf(name, "only the arguments of a task and the value of a dataset may refer to an input: write the data itself")
	case 11:
		return c.opaque(f.body).in(name)
	case 12:
		return each(f.body, "Complex", func(f field) *Fault {
			if f.number <= 2 && f.kind != protowire.Fixed64Type {
				return faultf("", noMessage, "Complex")
			}
			return nil
		}).in(name)
	case 14:
		return c.table(f.body).in(name)
	}
	return nil
}

// each calls do for each field of a message.
func each(b []byte, message string, do func(field) *Fault) *Fault {
	for len(b) > 0 {
		f, rest, ok := next(b)
		if !ok {
			return faultf("", noMessage, message)
		}
		if fault := do(f); fault != nil {
			return fault
		}
		b = rest
	}
	return nil
}

func tooDeep(depth int) *Fault {
	if depth <= maxNesting {
		return nil
	}
	return faultf("", "more than %d lists and maps are inside of each other: make the value flatter", maxNesting)
}

func (c *checker) list(b []byte, depth int) *Fault {
	if fault := tooDeep(depth); fault != nil {
		return fault
	}
	i := 0
	return each(b, "ListValue", func(f field) *Fault {
		switch {
		case f.number != 1:
			return nil
		case f.kind != protowire.BytesType:
			return faultf("", noMessage, "ListValue")
		}
		fault := c.value(f.body, depth)
		if fault != nil {
			fault = fault.in(fmt.Sprintf("values[%d]", i))
		}
		i++
		return fault
	})
}

func (c *checker) fields(b []byte, depth int) *Fault {
	if fault := tooDeep(depth); fault != nil {
		return fault
	}
	return each(b, "MapValue", func(f field) *Fault {
		switch {
		case f.number > 2:
			return nil
		case f.kind != protowire.BytesType:
			return faultf("", noMessage, "MapValue")
		case f.number == 2:
			if !utf8.Valid(f.body) {
				return faultf("order", "a key is no UTF-8: use another key")
			}
			return nil
		}
		var key, value []byte
		fault := each(f.body, "MapValue", func(f field) *Fault {
			if f.number <= 2 && f.kind != protowire.BytesType {
				return faultf("", noMessage, "MapValue")
			}
			switch f.number {
			case 1:
				key = f.body
			case 2:
				value = f.body
			}
			return nil
		})
		switch {
		case fault != nil:
			return fault
		case !utf8.Valid(key):
			return faultf("fields", "a key is no UTF-8: use another key")
		}
		if fault = c.value(value, depth); fault != nil {
			fault = fault.in(fmt.Sprintf("fields[%q]", key))
		}
		return fault
	})
}

// dtypes has the size and the alignment of the elements of each DType.
var dtypes = [...]struct{ size, align int64 }{1: {1, 1}, 2: {1, 1}, 3: {4, 4}, 4: {8, 8}, 5: {4, 4}, 6: {8, 8}, 7: {8, 4}, 8: {16, 8}}

// axes is a list of numbers of a tensor: its shape or its strides.
type axes struct {
	n      int
	number [maxAxes]int64
}

func (a *axes) list() []int64 { return a.number[:a.n] }

// add reads a field of a list of numbers, packed or not.
func (a *axes) add(f field, name string) *Fault {
	b := f.body
	switch f.kind {
	case protowire.VarintType:
		b = protowire.AppendVarint(nil, f.varint)
	case protowire.BytesType:
	default:
		return faultf("", noMessage, "Tensor")
	}
	for len(b) > 0 {
		v, n := protowire.ConsumeVarint(b)
		switch {
		case n < 0:
			return faultf("", noMessage, "Tensor")
		case a.n == maxAxes:
			return faultf(name, "it has more than %d axes: reshape the array", maxAxes)
		}
		a.number[a.n], b = int64(v), b[n:]
		a.n++
	}
	return nil
}

// described holds the fields of a millrace.v1.Tensor.
type described struct {
	dtype, offset, frame uint64
	shape, strides       axes
	framed, inlined      bool
	inline               int // size of inline_data in bytes
}

func (t *described) read(b []byte) *Fault {
	return each(b, "Tensor", func(f field) *Fault {
		wire := protowire.VarintType
		if f.number == 6 {
			wire = protowire.BytesType
		}
		switch {
		case f.number > 6:
			return nil
		case f.number == 2:
			return t.shape.add(f, "shape")
		case f.number == 3:
			return t.strides.add(f, "strides")
		case f.kind != wire:
			return faultf("", noMessage, "Tensor")
		}
		switch f.number {
		case 1:
			t.dtype = f.varint
		case 4:
			t.offset = f.varint
		case 5:
			t.frame, t.framed = f.varint&math.MaxUint32, true
		case 6:
			t.inline, t.inlined = len(f.body), true
		}
		return nil
	})
}

func (c *checker) tensor(b []byte) *Fault {
	var t described
	if fault := t.read(b); fault != nil {
		return fault
	}
	elements, fault := t.elements()
	if fault != nil {
		return fault
	}
	size := dtypes[t.dtype].size
	loose := t.strides.n > 0 || t.offset > 0
	switch {
	case t.framed && t.inlined:
		return faultf("inline_data", "the elements are in a frame, too: set one of both")
	case t.framed && t.frame >= uint64(len(c.frames)):
		return faultf("frame", "it is %d, and the object has %d frames: send the frame, or correct the index", t.frame, len(c.frames))
	case t.inlined && t.inline > maxInlineTensor:
		return faultf("inline_data", "it has %d bytes, at most %d are allowed: put the elements into a frame", t.inline, maxInlineTensor)
	case elements > 0 && !t.framed && !t.inlined:
		return faultf("frame", "neither frame nor inline_data is set, and the shape %v has %d elements: set one of both", t.shape.list(), elements)
	}
	room := uint64(t.inline)
	if t.framed {
		room = c.frames[t.frame]
	}
	var end uint64
	if elements > 0 {
		low, high, fault := t.extent(room)
		if fault != nil {
			return fault
		}
		if low < 0 {
			return faultf("strides", "the strides %v lead to byte %d of shape %v, before the beginning: set offset_bytes to the place of the first element",
				t.strides.list(), low, t.shape.list())
		}
		end = uint64(high + size)
		if end > room {
			return faultf("shape", "the shape %v with elements of %d bytes reaches to byte %d, and %s %d: correct shape, dtype or the size",
				t.shape.list(), size, end, t.location(), room)
		}
	}
	if t.inlined && !loose && end < room {
		return faultf("inline_data", "it has %d bytes, and the shape %v with elements of %d bytes needs %d: correct shape, dtype or the bytes",
			room, t.shape.list(), size, end)
	}
	if t.framed {
		u := &c.use[t.frame]
		u.used, u.loose, u.reach = true, u.loose || loose, max(u.reach, end)
	}
	return nil
}

// location names the place of the elements, for errors.
func (t *described) location() string {
	if t.framed {
		return fmt.Sprintf("frame %d has", t.frame)
	}
	return "inline_data has"
}

// elements checks what does not depend on the location, and returns the number of elements.
func (t *described) elements() (int64, *Fault) {
	if t.dtype == 0 || t.dtype >= uint64(len(dtypes)) {
		return 0, faultf("dtype", "%d is no element type: set one of the enum DType", int32(t.dtype))
	}
	if t.strides.n > 0 && t.strides.n != t.shape.n {
		return 0, faultf("strides", "%d strides for %d axes: give one for each axis, or none", t.strides.n, t.shape.n)
	}
	kind, elements, empty := dtypes[t.dtype], int64(1), false
	for i, n := range t.shape.list() {
		if n < 0 {
			return 0, faultf(fmt.Sprintf("shape[%d]", i), "%d is negative: give the length of the axis", n)
		}
		empty = empty || n == 0
	}
	if empty {
		return 0, nil
	}
	for _, n := range t.shape.list() {
		if elements > math.MaxInt64/kind.size/n {
			return 0, faultf("shape", "%v has more bytes than any memory: correct it", t.shape.list())
		}
		elements *= n
	}
	if t.offset%uint64(kind.align) != 0 {
		return 0, faultf("offset_bytes", "%d is not a multiple of %d bytes, the alignment of the elements: move the elements", t.offset, kind.align)
	}
	for i, stride := range t.strides.list() {
		if t.shape.number[i] > 1 && stride%kind.align != 0 {
			return 0, faultf(fmt.Sprintf("strides[%d]", i), "%d is not a multiple of %d bytes, the alignment of the elements: move the elements", stride, kind.align)
		}
	}
	return elements, nil
}

// extent returns the positions of the first bytes of the lowest and of the highest element.
// REQUIRES: t has elements.
func (t *described) extent(room uint64) (low, high int64, fault *Fault) {
	if t.offset >= room || room > math.MaxInt64 {
		return 0, 0, faultf("offset_bytes", "the first element lies at byte %d, and %s %d bytes: correct the offset or the size", t.offset, t.location(), room)
	}
	low, high = int64(t.offset), int64(t.offset)
	step := dtypes[t.dtype].size
	for i := t.shape.n - 1; i >= 0; i-- {
		last, stride := t.shape.number[i]-1, step
		if t.strides.n > 0 {
			stride = t.strides.number[i]
		} else {
			step *= t.shape.number[i]
		}
		if last == 0 {
			continue
		}
		if stride > int64(room)/last || stride < -int64(room)/last {
			return 0, 0, faultf("shape", "axis %d of shape %v reaches outside: %s %d bytes: correct shape, strides, dtype or the size", i, t.shape.list(), t.location(), room)
		}
		low += min(0, last*stride)
		high += max(0, last*stride)
		if low < -math.MaxInt64/2 || high > math.MaxInt64/2 {
			return 0, 0, faultf("shape", "axis %d of shape %v reaches outside: %s %d bytes: correct shape, strides, dtype or the size", i, t.shape.list(), t.location(), room)
		}
	}
	return low, high, nil
}

func (c *checker) opaque(b []byte) *Fault {
	var encoding []byte
	var data bool
	var frames int
	missing, highest := int64(-1), int64(-1)
	// numbers reads a list of numbers, packed or not.
	numbers := func(f field, do func(v uint64)) *Fault {
		b := f.body
		switch f.kind {
		case protowire.VarintType:
			b = protowire.AppendVarint(nil, f.varint)
		case protowire.BytesType:
		default:
			return faultf("", noMessage, "Opaque")
		}
		for len(b) > 0 {
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return faultf("", noMessage, "Opaque")
			}
			do(v & math.MaxUint32)
			b = b[n:]
		}
		return nil
	}
	fault := each(b, "Opaque", func(f field) *Fault {
		if (f.number <= 2 || f.number == 4) && f.kind != protowire.BytesType {
			return faultf("", noMessage, "Opaque")
		}
		switch f.number {
		case 1:
			if encoding = f.body; !utf8.Valid(encoding) || utf8.RuneCount(encoding) > maxEncoding {
				return faultf("encoding", "it is no UTF-8 of at most %d characters: name the encoding, such as pickle5", maxEncoding)
			}
		case 2:
			data = len(f.body) > 0
		case 3:
			return numbers(f, func(v uint64) {
				if frames++; v >= uint64(len(c.frames)) {
					missing = int64(v)
					return
				}
				c.use[v] = use{used: true, loose: true}
			})
		case 4:
			if !utf8.Valid(f.body) || utf8.RuneCount(f.body) > maxTypeName {
				return faultf("type_name", "it is no UTF-8 of at most %d characters: shorten it", maxTypeName)
			}
		case 5:
			return numbers(f, func(v uint64) { highest = max(highest, int64(v)) })
		}
		return nil
	})
	switch {
	case fault != nil:
		return fault
	case missing >= 0:
		return faultf("frames", "it names frame %d, and the object has %d frames: send the frame, or correct the index", missing, len(c.frames))
	case len(encoding) == 0:
		return faultf("encoding", "it is empty: name the encoding, such as pickle5")
	case !data && frames == 0:
		return faultf("data", "the payload has neither data nor frames: set one of both")
	case highest >= int64(frames):
		return faultf("device_frames", "it has position %d, and the payload has %d frames: correct the position", highest, frames)
	}
	return nil
}
