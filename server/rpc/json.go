package rpc

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"

	"google.golang.org/protobuf/types/known/structpb"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
)

// maxExactInt is the largest integer up to which every integer is exact as a JSON number (a
// double). Larger ones become strings.
const maxExactInt = 1 << 53

const (
	// maxJSONElements bounds the elements of one tensor that are shown.
	maxJSONElements = 1 << 20
	// maxValueLevels bounds the nesting of lists and maps. Each map is three nested messages, and
	// protobuf's readers in Python and C++ refuse more than 100 nested messages.
	maxValueLevels = 30
)

// errNotShown: the value is valid, but too large or too deep for JSON.
var errNotShown = errors.New("it is too large or too deep to be shown as JSON")

// valueJSON makes a value readable. Tensors become nested lists, complex numbers become [re, im],
// and numbers that JSON lacks (NaN, infinities, large integers) become strings.
func valueJSON(v *pb.Value) (*structpb.Value, error) { return valueJSONAt(v, 0) }

func valueJSONAt(v *pb.Value, level int) (*structpb.Value, error) {
	if level > maxValueLevels {
		return nil, errNotShown
	}
	switch kind := v.GetKind().(type) {
	case nil, *pb.Value_NullValue:
		return structpb.NewNullValue(), nil
	case *pb.Value_BoolValue:
		return structpb.NewBoolValue(kind.BoolValue), nil
	case *pb.Value_IntValue:
		return jsonInt(kind.IntValue), nil
	case *pb.Value_DoubleValue:
		return jsonFloat(kind.DoubleValue), nil
	case *pb.Value_StringValue:
		return structpb.NewStringValue(kind.StringValue), nil
	case *pb.Value_BytesValue:
		return structpb.NewStringValue(base64.StdEncoding.EncodeToString(kind.BytesValue)), nil
	case *pb.Value_ListValue:
		list := &structpb.ListValue{}
		for _, element := range kind.ListValue.GetValues() {
			converted, err := valueJSONAt(element, level+1)
			if err != nil {
				return nil, err
			}
			list.Values = append(list.Values, converted)
		}
		return structpb.NewListValue(list), nil
	case *pb.Value_MapValue:
		fields := &structpb.Struct{Fields: map[string]*structpb.Value{}}
		for name, element := range kind.MapValue.GetFields() {
			converted, err := valueJSONAt(element, level+1)
			if err != nil {
				return nil, err
			}
			fields.Fields[name] = converted
		}
		return structpb.NewStructValue(fields), nil
	case *pb.Value_TensorValue:
		return tensorJSON(kind.TensorValue, level)
	case *pb.Value_OpaqueValue:
		return opaqueJSON(kind.OpaqueValue), nil
	case *pb.Value_TableValue:
		t := kind.TableValue
		fields := map[string]*structpb.Value{"table": structpb.NewStringValue(t.GetTypeName())}
		describeColumns(fields, t.GetRows(), t.GetColumns(), t.GetColumnCount())
		return structpb.NewStructValue(&structpb.Struct{Fields: fields}), nil
	case *pb.Value_ComplexValue:
		return jsonComplex(kind.ComplexValue.GetReal(), kind.ComplexValue.GetImaginary()), nil
	case *pb.Value_Input:
		return nil, fmt.Errorf("it refers to input %d, which only arguments may", kind.Input)
	}
	return nil, fmt.Errorf("it holds a kind of value that is not known here: upgrade the scheduler")
}

// opaqueJSON names the type of a payload, and the rows and columns of a data frame.
func opaqueJSON(o *pb.Opaque) *structpb.Value {
	fields := map[string]*structpb.Value{"opaque": structpb.NewStringValue(o.GetTypeName())}
	if t := o.GetTable(); t != nil {
		describeColumns(fields, t.GetRows(), t.GetColumns(), t.GetColumnCount())
	}
	return structpb.NewStructValue(&structpb.Struct{Fields: fields})
}

// describeColumns adds the rows and columns of a table to its description.
func describeColumns(fields map[string]*structpb.Value, rows uint64, columns []*pb.Column, count uint32) {
	list := &structpb.ListValue{}
	for _, c := range columns {
		list.Values = append(list.Values, structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
			"name": structpb.NewStringValue(c.GetName()), "type": structpb.NewStringValue(c.GetType()),
		}}))
	}
	fields["rows"] = structpb.NewNumberValue(float64(rows))
	fields["columns"] = structpb.NewListValue(list)
	fields["columnCount"] = structpb.NewNumberValue(float64(count))
}

func jsonInt(n int64) *structpb.Value {
	if n > maxExactInt || n < -maxExactInt {
		return structpb.NewStringValue(strconv.FormatInt(n, 10))
	}
	return structpb.NewNumberValue(float64(n))
}

func jsonFloat(f float64) *structpb.Value {
	switch {
	case math.IsNaN(f):
		return structpb.NewStringValue("NaN")
	case math.IsInf(f, 1):
		return structpb.NewStringValue("Infinity")
	case math.IsInf(f, -1):
		return structpb.NewStringValue("-Infinity")
	}
	return structpb.NewNumberValue(f)
}

func jsonComplex(re, im float64) *structpb.Value {
	return structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{jsonFloat(re), jsonFloat(im)}})
}

// elementBytes is the size of one element.
func elementBytes(dtype pb.DType) int64 {
	switch dtype {
	case pb.DType_DTYPE_BOOL, pb.DType_DTYPE_UINT8:
		return 1
	case pb.DType_DTYPE_INT32, pb.DType_DTYPE_FLOAT32:
		return 4
	case pb.DType_DTYPE_INT64, pb.DType_DTYPE_FLOAT64, pb.DType_DTYPE_COMPLEX64:
		return 8
	case pb.DType_DTYPE_COMPLEX128:
		return 16
	case pb.DType_DTYPE_UNSPECIFIED:
	}
	return 0
}

func elementJSON(dtype pb.DType, b []byte) *structpb.Value {
	float32At := func(i int) float64 { return float64(math.Float32frombits(binary.LittleEndian.Uint32(b[i:]))) }
	float64At := func(i int) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(b[i:])) }
	switch dtype {
	case pb.DType_DTYPE_BOOL:
		return structpb.NewBoolValue(b[0] != 0)
	case pb.DType_DTYPE_UINT8:
		return structpb.NewNumberValue(float64(b[0]))
	case pb.DType_DTYPE_INT32:
		return structpb.NewNumberValue(float64(int32(binary.LittleEndian.Uint32(b))))
	case pb.DType_DTYPE_INT64:
		return jsonInt(int64(binary.LittleEndian.Uint64(b)))
	case pb.DType_DTYPE_FLOAT32:
		return jsonFloat(float32At(0))
	case pb.DType_DTYPE_FLOAT64:
		return jsonFloat(float64At(0))
	case pb.DType_DTYPE_COMPLEX64:
		return jsonComplex(float32At(0), float32At(4))
	case pb.DType_DTYPE_COMPLEX128:
		return jsonComplex(float64At(0), float64At(8))
	case pb.DType_DTYPE_UNSPECIFIED:
	}
	return structpb.NewNullValue()
}

// tensorJSON reads a tensor's elements. The sender may be faulty or hostile, so it checks that
// every element lies within the data.
func tensorJSON(t *pb.Tensor, level int) (*structpb.Value, error) {
	size := elementBytes(t.GetDtype())
	if size == 0 {
		return nil, fmt.Errorf("a tensor has the element type %v", t.GetDtype())
	}
	strides := t.GetStrides()
	if len(strides) == 0 {
		strides = make([]int64, len(t.GetShape()))
		step := size
		for axis := len(strides) - 1; axis >= 0; axis-- {
			strides[axis] = step
			step *= max(min(t.GetShape()[axis], maxJSONElements), 1)
		}
	}
	if len(strides) != len(t.GetShape()) {
		return nil, fmt.Errorf("a tensor has %d axes and %d strides", len(t.GetShape()), len(strides))
	}
	// Broadcast axes (stride 0) could make a short message expand without limit.
	elements := int64(1)
	for _, length := range t.GetShape() {
		if length < 0 {
			return nil, fmt.Errorf("a tensor has the shape %v: lengths are 0 or more", t.GetShape())
		}
		elements = min(elements*min(max(length, 1), maxJSONElements+1), maxJSONElements+1)
	}
	if elements > maxJSONElements || level+len(strides) > maxValueLevels {
		return nil, errNotShown
	}
	return tensorAxis(t, strides, 0, int64(t.GetOffsetBytes()), size)
}

func tensorAxis(t *pb.Tensor, strides []int64, axis int, offset, size int64) (*structpb.Value, error) {
	if axis == len(strides) {
		data := t.GetInlineData()
		if offset < 0 || offset > int64(len(data))-size {
			return nil, fmt.Errorf("a tensor of shape %v has an element at byte %d of %d", t.GetShape(), offset, len(data))
		}
		return elementJSON(t.GetDtype(), data[offset:]), nil
	}
	list := &structpb.ListValue{}
	for i := range t.GetShape()[axis] {
		element, err := tensorAxis(t, strides, axis+1, offset+i*strides[axis], size)
		if err != nil {
			return nil, err
		}
		list.Values = append(list.Values, element)
	}
	return structpb.NewListValue(list), nil
}
