package rpc

import (
	"fmt"

	"github.com/dustin/go-humanize"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/schedapi"
)

const (
	// mostDatasetValue bounds the serialised value of a dataset, mostDatasetKeys the sum of its
	// keys' sizes. Together they fit into one message (MaxMessageBytes).
	mostDatasetValue = 1 << 20
	mostDatasetKeys  = 32 << 20
	// mostInlineTensor bounds one tensor inside of a value: see Tensor.inline_data.
	mostInlineTensor = 64 << 10
)

// datasetTo converts a dataset for a list, without its keys and its value.
func datasetTo(d *schedapi.Dataset) *pb.Dataset {
	return &pb.Dataset{
		Name: d.Name, Namespace: d.Namespace, KeyCount: uint32(len(d.Keys)), ValueBytes: uint64(len(d.Value)),
		CreateTime: timeTo(d.CreatedAt), Revision: d.Revision,
	}
}

// wholeDatasetTo converts a dataset with all that it holds.
func wholeDatasetTo(d *schedapi.Dataset) (*pb.Dataset, error) {
	value := &pb.Value{}
	if err := proto.Unmarshal(d.Value, value); err != nil {
		return nil, fmt.Errorf("the value of dataset %q in namespace %q: %w", d.Name, d.Namespace, err)
	}
	whole := datasetTo(d)
	whole.Keys, whole.Value = d.Keys, value
	return whole, nil
}

// datasetFrom checks a dataset that is to be published.
func datasetFrom(r *pb.PublishDatasetRequest) (schedapi.DatasetSpec, error) {
	spec := schedapi.DatasetSpec{
		Client: ids.ClientID(r.GetClientId()), Namespace: namespaceOf(r.GetNamespace()), Name: r.GetName(),
		Keys: r.GetKeys(), Replace: r.GetReplace(),
	}
	bytes := 0
	for _, key := range r.GetKeys() {
		bytes += len(key)
	}
	if bytes > mostDatasetKeys {
		return spec, invalid("keys", fmt.Sprintf("dataset %q: its keys have %s, and the limit is %s: publish it in parts, or use shorter keys",
			r.GetName(), humanize.IBytes(uint64(bytes)), humanize.IBytes(mostDatasetKeys)))
	}
	value := r.GetValue()
	if value == nil {
		value = allInputs(len(r.GetKeys()))
	}
	if n := proto.Size(value); n > mostDatasetValue {
		return spec, invalid("value", fmt.Sprintf("dataset %q: its value has %s, and the limit is %s: scatter the data, and publish references to the results",
			r.GetName(), humanize.IBytes(uint64(n)), humanize.IBytes(mostDatasetValue)))
	}
	if path, why := unfit(value, uint32(len(r.GetKeys())), 0, false); why != "" {
		return spec, invalid("value"+path, fmt.Sprintf("dataset %q: %s", r.GetName(), why))
	}
	var err error
	if spec.Value, err = (proto.MarshalOptions{Deterministic: true}).Marshal(value); err != nil {
		return spec, invalid("value", err.Error())
	}
	return spec, nil
}

// allInputs returns the list of the first n inputs.
func allInputs(n int) *pb.Value {
	list := &pb.ListValue{Values: make([]*pb.Value, n)}
	for i := range n {
		list.Values[i] = &pb.Value{Kind: &pb.Value_Input{Input: uint32(i)}}
	}
	return &pb.Value{Kind: &pb.Value_ListValue{ListValue: list}}
}

// unfit finds a part of a value that the scheduler cannot keep for others: see
// PublishDatasetRequest.value. opaque allows payloads that not every reader can read. It returns
// the path of the part and the reason; none if there is no such part.
func unfit(v *pb.Value, keys uint32, level int, opaque bool) (path, why string) {
	if level > maxValueLevels {
		return "", fmt.Sprintf("more than %d lists and maps are inside of each other: make the value flatter", maxValueLevels)
	}
	switch kind := v.GetKind().(type) {
	case *pb.Value_Input:
		if kind.Input >= keys {
			return "", fmt.Sprintf("it refers to key %d, but there are %d keys (counted from 0)", kind.Input, keys)
		}
	case *pb.Value_ListValue:
		for i, element := range kind.ListValue.GetValues() {
			if path, why := unfit(element, keys, level+1, opaque); why != "" {
				return fmt.Sprintf("[%d]%s", i, path), why
			}
		}
	case *pb.Value_MapValue:
		for name, element := range kind.MapValue.GetFields() {
			if path, why := unfit(element, keys, level+1, opaque); why != "" {
				return fmt.Sprintf("[%q]%s", name, path), why
			}
		}
	case *pb.Value_TensorValue:
		t := kind.TensorValue
		if _, framed := t.GetLocation().(*pb.Tensor_Frame); framed {
			return "", "a value that the scheduler keeps has no frames: put the elements into inline_data, or scatter the array and refer to its key"
		}
		if n := len(t.GetInlineData()); n > mostInlineTensor {
			return "", fmt.Sprintf("an array of %s is inline, and the limit is %s: scatter it and refer to its key",
				humanize.IBytes(uint64(n)), humanize.IBytes(mostInlineTensor))
		}
	case *pb.Value_TableValue:
		for _, b := range kind.TableValue.GetBuffers() {
			if b.GetBytes() > 0 && len(kind.TableValue.GetInlineData()) == 0 {
				return "", "a value that the scheduler keeps has no frames: put the buffers into inline_data, or scatter the table and refer to its key"
			}
		}
		if n := len(kind.TableValue.GetInlineData()); n > mostInlineTensor {
			return "", fmt.Sprintf("a table of %s is inline, and the limit is %s: scatter it and refer to its key",
				humanize.IBytes(uint64(n)), humanize.IBytes(mostInlineTensor))
		}
	case *pb.Value_OpaqueValue:
		if opaque && len(kind.OpaqueValue.GetFrames()) == 0 {
			return "", ""
		}
		if opaque {
			return "", "a value that the scheduler keeps has no frames: put the payload into data, or scatter it and refer to its key"
		}
		return "", fmt.Sprintf("a payload of encoding %q is not readable in every language: scatter the object and refer to its key",
			kind.OpaqueValue.GetEncoding())
	}
	return "", ""
}
