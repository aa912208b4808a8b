package rawframe

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// split cuts bytes into buffers at random places, including empty ones.
func split(t *rapid.T, b []byte) (out mem.BufferSlice) {
	for len(b) > 0 {
		n := rapid.IntRange(0, len(b)).Draw(t, "cut")
		if n > 0 && rapid.IntRange(0, 3).Draw(t, "small") > 0 {
			n = min(n, 5)
		}
		piece := bytes.Clone(b[:n])
		b = b[n:]
		out = append(out, mem.SliceBuffer(piece))
	}
	return out
}

func head(t *rapid.T) *millracev1.ObjectHead {
	if !rapid.Bool().Draw(t, "has head") {
		return nil
	}
	return &millracev1.ObjectHead{
		Object:     &millracev1.ObjectRef{TaskId: rapid.Uint64().Draw(t, "task"), Generation: rapid.Uint32().Draw(t, "generation")},
		Header:     rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "header"),
		FrameBytes: rapid.SliceOfN(rapid.Uint64(), 0, 4).Draw(t, "frames"),
	}
}

func TestReadResponseIsProtobufOnTheWire(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		codec := NewCodec()
		want := &millracev1.ReadObjectsResponse{
			Index: rapid.Uint32().Draw(t, "index"), Head: head(t), Frame: rapid.Uint32().Draw(t, "frame"),
			Offset: rapid.Uint64().Draw(t, "offset"), Data: rapid.SliceOfN(rapid.Byte(), 0, 3000).Draw(t, "data"),
		}
		if rapid.Bool().Draw(t, "has error") {
			want.Error = &millracev1.TaskError{Reason: "R", Message: "m"}
		}
		var out Outgoing
		m := &ReadResponse{Message{Index: want.GetIndex(), Head: want.GetHead(), Error: want.GetError(), Frame: want.GetFrame(), Offset: want.GetOffset(), Data: out.Payload(want.GetData())}}
		encoded, err := codec.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var got millracev1.ReadObjectsResponse
		if err := proto.Unmarshal(encoded.Materialize(), &got); err != nil || !proto.Equal(&got, want) {
			t.Fatalf("%v: %v is not %v", err, &got, want)
		}
		encoded.Free()
		select {
		case <-out.Drained():
		default:
			t.Fatal("a sent payload is still pending")
		}
		// The reverse: any encoding that protobuf produces, in any number of buffers.
		wire, err := proto.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		// An unknown field of each kind must be skipped.
		wire = append(wire, 0xa0, 0x06, 0x05, 0xa9, 0x06, 1, 2, 3, 4, 5, 6, 7, 8, 0xb2, 0x06, 0x02, 9, 9, 0xbd, 0x06, 1, 2, 3, 4)
		var back ReadResponse
		if err := codec.Unmarshal(split(t, wire), &back); err != nil {
			t.Fatal(err)
		}
		data := make([]byte, back.Data.Len())
		back.Data.CopyTo(data)
		back.Data.Free()
		again := &millracev1.ReadObjectsResponse{Index: back.Index, Head: back.Head, Error: back.Error, Frame: back.Frame, Offset: back.Offset, Data: data}
		if !proto.Equal(again, want) {
			t.Fatalf("%v is not %v", again, want)
		}
	})
}

func TestWriteRequestIsProtobufOnTheWire(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		codec := NewCodec()
		want := &millracev1.WriteObjectRequest{Head: head(t), Frame: rapid.Uint32().Draw(t, "frame"), Offset: 7, Data: rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "data")}
		wire, err := proto.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var m WriteRequest
		if err := codec.Unmarshal(split(t, wire), &m); err != nil {
			t.Fatal(err)
		}
		data := make([]byte, m.Data.Len())
		m.Data.CopyTo(data)
		m.Data.Free()
		var out Outgoing
		encoded, err := codec.Marshal(&WriteRequest{Message{Head: m.Head, Frame: m.Frame, Offset: m.Offset, Data: out.Payload(data)}})
		if err != nil {
			t.Fatal(err)
		}
		var got millracev1.WriteObjectRequest
		if err := proto.Unmarshal(encoded.Materialize(), &got); err != nil || !proto.Equal(&got, want) {
			t.Fatalf("%v: %v is not %v", err, &got, want)
		}
	})
}

func TestGarbageIsAnError(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		garbage := rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "garbage")
		var m ReadResponse
		ours := NewCodec().Unmarshal(split(t, garbage), &m)
		m.Data.Free()
		// This codec must accept each input that protobuf accepts, except groups. Protobuf refuses
		// more, such as text that is not UTF-8.
		if err := proto.Unmarshal(garbage, &millracev1.ReadObjectsResponse{}); err == nil && ours != nil {
			// Groups are the only valid wire type that this codec does not skip.
			for _, b := range garbage {
				if b&7 == 3 {
					return
				}
			}
			t.Fatalf("protobuf takes %x, and we say %v", garbage, ours)
		}
	})
}

func TestLentBytesAreCountedUntilTheyAreFree(t *testing.T) {
	var out Outgoing
	data := make([]byte, 1<<20)
	m := &ReadResponse{Message{Data: out.Payload(data)}}
	encoded, err := NewCodec().Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	part := encoded[1].Slice(10, 20)
	drained := out.Drained()
	encoded.Free()
	select {
	case <-drained:
		t.Fatal("a part is still in use")
	default:
	}
	part.Free()
	<-drained
	if m.Data.Len() != 0 {
		t.Error("the payload was not taken over")
	}
	<-out.Drained()
}
