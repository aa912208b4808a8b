package millrace

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	// Registers the codec that wireCodec falls back to.
	_ "google.golang.org/grpc/encoding/proto"
)

// wireMessage is a request that was encoded while it was built. It is sent without a copy,
// so it must not change until the call has ended.
type wireMessage [][]byte

// wireDecoder is a response that decodes its own bytes; data is only valid during the call.
type wireDecoder interface {
	decodeWire(data []byte) error
}

// wireCodec speaks protobuf. Messages of the hot paths are encoded and decoded by hand, all others
// by the library.
type wireCodec struct{}

// Name implements encoding.CodecV2: for the server this is plain protobuf.
func (wireCodec) Name() string { return "proto" }

// Marshal implements encoding.CodecV2.
func (wireCodec) Marshal(v any) (mem.BufferSlice, error) {
	if parts, ok := v.(wireMessage); ok {
		out := make(mem.BufferSlice, 0, len(parts))
		for _, p := range parts {
			if len(p) > 0 {
				out = append(out, mem.SliceBuffer(p))
			}
		}
		return out, nil
	}
	return encoding.GetCodecV2("proto").Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (wireCodec) Unmarshal(data mem.BufferSlice, v any) error {
	switch m := v.(type) {
	case wireDecoder:
		buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
		defer buf.Free()
		return m.decodeWire(buf.ReadOnlyData())
	case proto.Message:
		buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
		defer buf.Free()
		return proto.Unmarshal(buf.ReadOnlyData(), m)
	}
	return encoding.GetCodecV2("proto").Unmarshal(data, v)
}

func appendTag(b []byte, field protowire.Number, kind protowire.Type) []byte {
	return protowire.AppendTag(b, field, kind)
}

func appendBytesField(b []byte, field protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), v)
}

func appendStringField(b []byte, field protowire.Number, v string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), v)
}

func appendVarintField(b []byte, field protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

// openMessage begins a length-delimited field of unknown size; closeMessage inserts the size.
// closeMessage takes the start that openMessage returned. For sizes below 128 bytes, the usual
// case, no bytes are moved.
func openMessage(b []byte, field protowire.Number) (out []byte, start int) {
	b = append(appendTag(b, field, protowire.BytesType), 0)
	return b, len(b)
}

func closeMessage(b []byte, start int) []byte {
	size := len(b) - start
	if size < 0x80 {
		b[start-1] = byte(size)
		return b
	}
	n := protowire.SizeVarint(uint64(size))
	for range n - 1 {
		b = append(b, 0)
	}
	copy(b[start-1+n:], b[start:start+size])
	protowire.AppendVarint(b[:start-1], uint64(size))
	return b
}
