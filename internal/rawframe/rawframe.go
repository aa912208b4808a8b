// Package rawframe is an Adapter: the two streaming messages of DataService that
// carry bulk bytes, encoded and decoded by hand over gRPC's pooled buffers.
//
// On the wire they are the ordinary protobuf messages ReadObjectsResponse and
// WriteObjectRequest, so that any gRPC client can take part. In memory the bytes
// of a sent chunk are those of the sender's slab, and the bytes of a received
// one stay in the transport's pooled buffers until they are copied, once, to
// where they belong: neither side ever holds an object twice.
//
// A server is made with ServerOptions and sends ReadResponse with
// stream.SendMsg; a client dials with DialOptions. All other messages pass
// through to the protobuf codec.
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
	// ChunkBytes is how much of a frame one message carries. Measured here over
	// 64 KiB to 4 MiB: smaller ones pay for messages, larger ones for caches.
	ChunkBytes = 1 << 20
	// MaxMessageBytes bounds a message: a head of 16 MiB, or a chunk of 4 MiB.
	MaxMessageBytes = 20 << 20
	// MaxHeadBytes bounds an ObjectHead: a message has room for it and for a chunk.
	MaxHeadBytes = MaxMessageBytes - 2<<20

	windowBytes = 16 << 20
	// Reads beyond the buffer go straight into the pooled buffers of the frames, so
	// that a large one only adds a copy.
	readBufferBytes  = 32 << 10
	writeBufferBytes = 256 << 10
)

// Message is the part that both messages have in common.
type Message struct {
	// Index of the object in the request; reads only.
	Index uint32
	// Head is set in the first message of an object.
	Head *millracev1.ObjectHead
	// Error ends an object; reads only.
	Error *millracev1.TaskError
	// Frame and Offset say where the bytes go.
	Frame  uint32
	Offset uint64
	// Data are the bytes. Who receives a message frees it.
	Data Payload
}

// ReadResponse is a ReadObjectsResponse.
type ReadResponse struct{ Message }

// WriteRequest is a WriteObjectRequest.
type WriteRequest struct{ Message }

// Field numbers of the two messages. Number 0 is one that the message lacks.
type numbers struct{ index, head, failure protowire.Number }

var (
	readNumbers  = numbers{index: 1, head: 2, failure: 3}
	writeNumbers = numbers{head: 1}
)

const (
	frameNumber  protowire.Number = 4
	offsetNumber protowire.Number = 5
	dataNumber   protowire.Number = 15
)

// Codec is a gRPC codec that knows ReadResponse and WriteRequest, and leaves
// everything else to the codec for protobuf.
type Codec struct{ next encoding.CodecV2 }

// NewCodec returns the codec.
func NewCodec() *Codec { return &Codec{next: encoding.GetCodecV2("proto")} }

// Name is part of encoding.CodecV2: on the wire this is protobuf.
func (c *Codec) Name() string { return "proto" }

// Marshal is part of encoding.CodecV2. It takes over the message's payload.
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
		b = protowire.AppendTag(b, frameNumber, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(m.Frame))
	}
	if m.Offset != 0 {
		b = protowire.AppendTag(b, offsetNumber, protowire.VarintType)
		b = protowire.AppendVarint(b, m.Offset)
	}
	if m.Data.n == 0 {
		m.Data.Free()
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	b = protowire.AppendTag(b, dataNumber, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(m.Data.n))
	if m.Data.skip != 0 || m.Data.buffers.Len() != m.Data.n {
		// It was received, and its buffers hold more than it.
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
		case number == dataNumber && kind == protowire.BytesType:
			m.Data.Free()
			m.Data, err = r.payload()
		case kind == protowire.VarintType:
			var v uint64
			v, err = r.varint()
			switch number {
			case frameNumber:
				m.Frame = uint32(v)
			case offsetNumber:
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

// ServerOptions make a gRPC server fit for bulk: this codec, and windows and
// buffers that do not stop a stream on a fast link.
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

// DialOptions are the client's side of ServerOptions.
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
