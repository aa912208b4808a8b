package rpc

import (
	"fmt"
	"maps"
	"slices"

	"github.com/dustin/go-humanize"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/coord"
	"github.com/millrace/millrace/server/schedapi"
)

const (
	// mostStored bounds a serialised StoredValue, and the value of one SetMetadata.
	mostStored = 1 << 20
	// mostMetadata bounds the metadata of one answer.
	mostMetadata = MaxMessageBytes - 1<<20
	// defaultMessages is the number of messages that GetTopic returns at most.
	defaultMessages = 1000
)

// placed is a request with a client or a namespace.
type placed interface {
	GetClientId() uint64
	GetNamespace() string
}

func placeOf(r placed) schedapi.Place {
	return schedapi.Place{Client: ids.ClientID(r.GetClientId()), Namespace: r.GetNamespace()}
}

// storedFrom checks a value that is to be kept. field is its name in the request.
func storedFrom(field string, v *pb.StoredValue) (coord.Value, error) {
	value := v.GetValue()
	if value == nil {
		value = &pb.Value{}
	}
	if n := proto.Size(v); n > mostStored {
		return coord.Value{}, invalid(field, fmt.Sprintf("it has %s, and the limit is %s: scatter the data, and store the future (its key, in keys)",
			humanize.IBytes(uint64(n)), humanize.IBytes(mostStored)))
	}
	if path, why := unfit(value, uint32(len(v.GetKeys())), 0, true); why != "" {
		return coord.Value{}, invalid(field+".value"+path, why)
	}
	data, err := (proto.MarshalOptions{Deterministic: true}).Marshal(value)
	if err != nil {
		return coord.Value{}, invalid(field, err.Error())
	}
	return coord.Value{Data: data, Keys: v.GetKeys()}, nil
}

func storedTo(v *coord.Value) (*pb.StoredValue, error) {
	value := &pb.Value{}
	if err := proto.Unmarshal(v.Data, value); err != nil {
		return nil, fmt.Errorf("a stored value of %d bytes cannot be read: %w", len(v.Data), err)
	}
	return &pb.StoredValue{Value: value, Keys: v.Keys}, nil
}

func messageTo(m *coord.Message) (*pb.TopicMessage, error) {
	value, err := storedTo(&m.Value)
	if err != nil {
		return nil, err
	}
	return &pb.TopicMessage{Number: m.Number, Time: timeTo(m.At), Value: value}, nil
}

func topicTo(t coord.TopicPosition) *pb.TopicPosition {
	return &pb.TopicPosition{Name: t.Name, Number: t.Number}
}

// treeFrom converts a value to metadata: maps become subtrees.
func treeFrom(v *pb.Value) (coord.Tree, error) {
	fields, ok := v.GetKind().(*pb.Value_MapValue)
	if !ok {
		leaf, err := (proto.MarshalOptions{Deterministic: true}).Marshal(v)
		if leaf == nil {
			leaf = []byte{} // Null: nil would be a subtree.
		}
		return coord.Tree{Leaf: leaf}, err
	}
	var tree coord.Tree
	for _, name := range orderOf(fields.MapValue) {
		child, err := treeFrom(fields.MapValue.GetFields()[name])
		if err != nil {
			return coord.Tree{}, err
		}
		tree.Names, tree.Trees = append(tree.Names, name), append(tree.Trees, child)
	}
	return tree, nil
}

// orderOf returns the keys of a map in its order.
func orderOf(m *pb.MapValue) []string {
	sorted := slices.Sorted(maps.Keys(m.GetFields()))
	if slices.Equal(slices.Sorted(slices.Values(m.GetOrder())), sorted) {
		return m.GetOrder()
	}
	return sorted
}

func treeTo(t *coord.Tree) (*pb.Value, error) {
	if t.Leaf != nil {
		value := &pb.Value{}
		return value, proto.Unmarshal(t.Leaf, value)
	}
	m := &pb.MapValue{Fields: make(map[string]*pb.Value, len(t.Names))}
	for i, name := range t.Names {
		child, err := treeTo(&t.Trees[i])
		if err != nil {
			return nil, err
		}
		m.Fields[name] = child
	}
	if !slices.IsSorted(t.Names) {
		m.Order = t.Names
	}
	return &pb.Value{Kind: &pb.Value_MapValue{MapValue: m}}, nil
}

// metadataFrom checks a value that is to become metadata; nil stays nil.
func metadataFrom(v *pb.Value, levels int) (*coord.Tree, error) {
	if v == nil {
		return nil, nil //nolint:nilnil // it means that what is there is removed
	}
	if n := proto.Size(v); n > mostStored {
		return nil, invalid("value", fmt.Sprintf("it has %s, and the limit is %s: set its parts one by one, or use a variable or scattered data",
			humanize.IBytes(uint64(n)), humanize.IBytes(mostStored)))
	}
	// 0 keys: references to results are errors, since metadata keep none.
	if path, why := unfit(v, 0, levels, true); why != "" {
		return nil, invalid("value"+path, why)
	}
	tree, err := treeFrom(v)
	return &tree, err
}
