// Package rawframe is an Adapter: it encodes and decodes by hand, over gRPC's pooled buffers, the
// two streaming messages of DataService that carry bulk bytes.
//
// On the wire they are the ordinary protobuf messages ReadObjectsResponse and WriteObjectRequest,
// so that any gRPC client can take part. In memory the bytes of a sent chunk are those of the
// sender's slab. The bytes of a received chunk stay in the transport's pooled buffers until they
// are copied, once, to their destination. So neither side ever holds an object twice.
//
// A server is created with ServerOptions and sends ReadResponse with stream.SendMsg. A client dials
// with DialOptions. All other messages are passed to the protobuf codec.
package rawframe

import (
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that this one wraps
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

const (
	// ChunkBytes is the number of frame bytes in one message. Measured here for 64 KiB to 4 MiB:
	// smaller chunks cost more messages, larger ones cause cache misses.
	ChunkBytes = 1 << 20
	// MaxMessageBytes bounds a message: a head and a chunk, with room to spare.
	MaxMessageBytes = 20 << 20
	// MaxHeadBytes bounds an ObjectHead: an object's header of 16 MiB, and the sizes of its frames.
	MaxHeadBytes = MaxMessageBytes - 2<<20

	windowBytes = 16 << 20
	// Reads beyond the buffer go directly into the pooled buffers of the frames, so a larger read
	// buffer would only add a copy.
	readBufferBytes  = 32 << 10
	writeBufferBytes = 256 << 10
)

// Message is the common part of both messages.
type Message struct {
	// Index is the number of the object in the request; only in reads.
	Index uint32
	// Head is set in the first message of an object.
	Head *millracev1.ObjectHead
	// Error ends an object; only in reads.
	Error *millracev1.TaskError
	// Frame and Offset are the destination of the bytes.
	Frame  uint32
	Offset uint64
	// Data has the bytes. The receiver of a message must free it.
	Data Payload
}

// ReadResponse is a ReadObjectsResponse.
type ReadResponse struct{ Message }

// WriteRequest is a WriteObjectRequest.
type WriteRequest struct{ Message }

// numbers has the field numbers of a message. 0 means that the message lacks the field.
type numbers struct{ index, head, failure, frame, offset, data protowire.Number }

var (
	readNumbers  = numbers{index: 1, head: 2, failure: 3, frame: 4, offset: 5, data: 6}
	writeNumbers = numbers{head: 1, frame: 2, offset: 3, data: 4}
)

// Codec is a gRPC codec that handles ReadResponse and WriteRequest and passes all other messages to
// the protobuf codec.
type Codec struct{ next encoding.CodecV2 }

// NewCodec returns the codec.
func NewCodec() *Codec { return &Codec{next: encoding.GetCodecV2("proto")} }

// Name is part of encoding.CodecV2. The format on the wire is protobuf.
func (c *Codec) Name() string { return "proto" }

// Marshal is part of encoding.CodecV2. It takes ownership of the message's payload.
func (c *Codec) Marshal(v any) (mem.BufferSlice, error) {
	switch v := v.(type) {
	case *ReadResponse:
		return v.marshal(readNumbers)
	case *WriteRequest:
		return v.marshal(writeNumbers)
	}
	return c.next.Marshal(v)
}

// Unmarshal is part of encoding.CodecV2.
func (c *Codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch v := v.(type) {
	case *ReadResponse:
		return v.unmarshal(data, readNumbers)
	case *WriteRequest:
		return v.unmarshal(data, writeNumbers)
	}
	return c.next.Unmarshal(data, v)
}

func (m *Message) marshal(n numbers) (mem.BufferSlice, error) {
	b := make([]byte, 0, 64)
	var err error
	if n.index != 0 && m.Index != 0 {
		b = protowire.AppendTag(b, n.index, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(m.Index))
	}
	if m.Head != nil {
		if b, err = appendMessage(b, n.head, m.Head); err != nil {
			return nil, err
		}
	}
	if n.failure != 0 && m.Error != nil {
		if b, err = appendMessage(b, n.failure, m.Error); err != nil {
			return nil, err
		}
	}
	if m.Frame != 0 {
		b = protowire.AppendTag(b, n.frame, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(m.Frame))
	}
	if m.Offset != 0 {
		b = protowire.AppendTag(b, n.offset, protowire.VarintType)
		b = protowire.AppendVarint(b, m.Offset)
	}
	if m.Data.n == 0 {
		m.Data.Free()
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	b = protowire.AppendTag(b, n.data, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(m.Data.n))
	if m.Data.skip != 0 || m.Data.buffers.Len() != m.Data.n {
		// The payload was received, and its buffers contain other bytes, too.
		own := make([]byte, m.Data.n)
		m.Data.CopyTo(own)
		m.Data.Free()
		return mem.BufferSlice{mem.SliceBuffer(b), mem.SliceBuffer(own)}, nil
	}
	out := append(mem.BufferSlice{mem.SliceBuffer(b)}, m.Data.buffers...)
	m.Data = Payload{}
	return out, nil
}

func appendMessage(b []byte, number protowire.Number, m proto.Message) ([]byte, error) {
	b = protowire.AppendTag(b, number, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(proto.Size(m)))
	b, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, m)
	if err != nil {
		return nil, fmt.Errorf("rawframe: encode field %d: %w", number, err)
	}
	return b, nil
}

func (m *Message) unmarshal(data mem.BufferSlice, n numbers) error {
	*m = Message{}
	r := reader{buffers: data}
	for !r.atEnd() {
		tag, err := r.varint()
		if err != nil {
			return err
		}
		number, kind := protowire.DecodeTag(tag)
		switch {
		case number == n.data && kind == protowire.BytesType:
			m.Data.Free()
			m.Data, err = r.payload()
		case kind == protowire.VarintType:
			var v uint64
			v, err = r.varint()
			switch number {
			case n.frame:
				m.Frame = uint32(v)
			case n.offset:
				m.Offset = v
			case n.index:
				m.Index = uint32(v)
			}
		case kind == protowire.BytesType && number == n.head:
			m.Head = new(millracev1.ObjectHead)
			err = r.message(m.Head)
		case kind == protowire.BytesType && number == n.failure:
			m.Error = new(millracev1.TaskError)
			err = r.message(m.Error)
		default:
			err = r.skip(kind)
		}
		if err != nil {
			m.Data.Free()
			return fmt.Errorf("rawframe: field %d: %w", number, err)
		}
	}
	return nil
}

// ServerOptions configures a gRPC server for bulk data: this codec, and windows and buffers that
// are large enough not to stop a stream on a fast link.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(NewCodec()),
		grpc.InitialWindowSize(windowBytes),
		grpc.InitialConnWindowSize(windowBytes),
		grpc.ReadBufferSize(readBufferBytes),
		grpc.WriteBufferSize(writeBufferBytes),
		grpc.MaxRecvMsgSize(MaxMessageBytes),
		grpc.MaxSendMsgSize(MaxMessageBytes),
	}
}

// DialOptions is the client's counterpart of ServerOptions.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(NewCodec()),
			grpc.MaxCallRecvMsgSize(MaxMessageBytes),
			grpc.MaxCallSendMsgSize(MaxMessageBytes),
		),
		grpc.WithInitialWindowSize(windowBytes),
		grpc.WithInitialConnWindowSize(windowBytes),
		grpc.WithReadBufferSize(readBufferBytes),
		grpc.WithWriteBufferSize(writeBufferBytes),
	}
}
