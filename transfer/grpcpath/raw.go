package grpcpath

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/rawframe"
)

// Between our own programs, objects travel as a bare byte stream on the same port as gRPC, but
// without HTTP/2. grpc-go cuts its data into frames of 16 KiB, and copies each byte in user space
// once at the sender and up to twice at the receiver; that was a third of the CPU time of a fetch.
// A bare stream is written from the slab and read into the slab.
//
// A connection begins with rawMagic, and the length (2 bytes) and bytes of the token. The server
// answers with rawMagic if it accepts the token, and otherwise closes the connection. Then the
// client sends requests: rawAsk, and the length (4 bytes) and bytes of a ReadObjectsRequest. While
// it waits for an answer it also sends rawPing from time to time. The server answers with records:
// the length of a message and the length of the data that follows it (4 bytes each), a
// ReadObjectsResponse without data, and the data. The data may go on in the next frames, and in the
// objects that follow, if records with their heads came before. So many small objects need few
// system calls. A record with two zero lengths ends the answer. Numbers are little-endian.
const (
	// rawMagic differs from any first bytes of HTTP/2 or TLS.
	rawMagic = "MILLRAW1"
	// notifyMagic replaces rawMagic on connections for Server.Notify (completion notifications),
	// and has the same length. After the answer to it, the protocol is that of Server.Notify.
	notifyMagic = "MILLNTF1"

	// maxTokenBytes bounds the token, because its sender is not authenticated yet.
	maxTokenBytes = 4 << 10

	rawPing byte = 0
	rawAsk  byte = 1

	recordBytes = 8
	// rawChunkBytes is the most data that a record carries. Records of 32 MiB take as much CPU time
	// for the same data, and smaller ones take more.
	rawChunkBytes = 4 << 20
	// rawCopyBytes: less data than this is copied behind its header and sent together with other
	// records.
	rawCopyBytes = 16 << 10
	// rawFlushBytes is the amount of copied data at which it is sent.
	rawFlushBytes = 64 << 10
)

// appendHello encodes the beginning of a connection.
func appendHello(b []byte, magic, token string) []byte {
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(token)))
	return append(b, token...)
}

// readToken reads the token, which follows rawMagic.
func readToken(r io.Reader) (string, error) {
	var n [2]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return "", err
	}
	length := binary.LittleEndian.Uint16(n[:])
	if length > maxTokenBytes {
		return "", fmt.Errorf("a token of %d bytes; at most %d are allowed", length, maxTokenBytes)
	}
	token := make([]byte, length)
	_, err := io.ReadFull(r, token)
	return string(token), err
}

func appendAsk(b []byte, request *millracev1.ReadObjectsRequest) ([]byte, error) {
	b = append(b, rawAsk)
	b = binary.LittleEndian.AppendUint32(b, uint32(proto.Size(request)))
	return proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, request)
}

// readAsk reads a request, which follows rawAsk.
func readAsk(r io.Reader) (*millracev1.ReadObjectsRequest, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > rawframe.MaxMessageBytes {
		return nil, fmt.Errorf("a request of %d bytes; at most %d are allowed", n, rawframe.MaxMessageBytes)
	}
	// The buffer grows with the data that arrives, not with the announced length.
	var b bytes.Buffer
	if _, err := io.CopyN(&b, r, int64(n)); err != nil {
		return nil, err
	}
	request := new(millracev1.ReadObjectsRequest)
	return request, proto.Unmarshal(b.Bytes(), request)
}

// rawWriter writes records. When write returns, it no longer refers to data: the data was written
// or copied.
type rawWriter struct {
	conn    net.Conn
	codec   *rawframe.Codec
	pending []byte
	// reader limits how long each write may wait for the reader. held interrupts a write that keeps
	// buffers for too long.
	reader, held *silence
}

func newRawWriter(conn net.Conn, reader *silence) *rawWriter {
	interrupt := func() { _ = conn.SetWriteDeadline(time.Unix(1, 0)) } // it fails if the connection is closed
	return &rawWriter{conn: conn, codec: rawframe.NewCodec(), reader: reader, held: newSilence(holdFor, holdFor, interrupt)}
}

func (w *rawWriter) write(m rawframe.Message, park func(), data ...[]byte) error {
	encoded, err := w.codec.Marshal(&rawframe.ReadResponse{Message: m})
	if err != nil {
		return err
	}
	size := 0
	for _, d := range data {
		size += len(d)
	}
	w.pending = binary.LittleEndian.AppendUint32(w.pending, uint32(encoded.Len()))
	w.pending = binary.LittleEndian.AppendUint32(w.pending, uint32(size))
	for _, b := range encoded {
		w.pending = append(w.pending, b.ReadOnlyData()...)
	}
	encoded.Free()
	if park != nil {
		give := park
		park = func() { // for the data that is not written yet, besides what flush has
			for i := range data {
				data[i] = slices.Clone(data[i])
			}
			give()
		}
	}
	for len(data) > 0 {
		n := 0
		for n < len(data) && len(data[n]) >= rawCopyBytes {
			n++
		}
		large := data[:n]
		data = data[n:]
		if n == 0 {
			w.pending = append(w.pending, data[0]...)
			data = data[1:]
		}
		if n > 0 || len(w.pending) >= rawFlushBytes {
			if err := w.flush(large, park); err != nil {
				return err
			}
		}
	}
	if len(w.pending) < rawFlushBytes {
		return nil
	}
	return w.flush(nil, nil)
}

// end writes the record that ends an answer.
func (w *rawWriter) end() error {
	w.pending = append(w.pending, make([]byte, recordBytes)...)
	return w.flush(nil, nil)
}

// flush writes the pending bytes and data.
func (w *rawWriter) flush(data [][]byte, park func()) error {
	w.reader.begin()
	defer w.reader.end()
	if park != nil {
		w.held.begin()
		defer w.held.end()
	}
	rest := append(net.Buffers{w.pending}, data...)
	_, err := rest.WriteTo(w.conn)
	for errors.Is(err, os.ErrDeadlineExceeded) {
		if park != nil {
			for i := range rest {
				rest[i] = bytes.Clone(rest[i])
			}
			w.held.end()
			park()
			park = nil
		}
		if err = w.conn.SetWriteDeadline(time.Time{}); err == nil {
			_, err = rest.WriteTo(w.conn)
		}
	}
	w.pending = w.pending[:0]
	return err
}

// rawReader reads records.
type rawReader struct {
	in    *bufio.Reader
	codec *rawframe.Codec
	head  []byte
}

var errRecord = errors.New("a record is longer than allowed")

// next reads a record except for its data; n is the length of the data, which follows. It returns
// io.EOF at the end of the answer.
func (r *rawReader) next(m *rawframe.ReadResponse) (n int, err error) {
	var lengths [recordBytes]byte
	if _, err := io.ReadFull(r.in, lengths[:]); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF // only an empty record is a regular end
		}
		return 0, err
	}
	head, data := binary.LittleEndian.Uint32(lengths[:4]), binary.LittleEndian.Uint32(lengths[4:])
	switch {
	case head == 0 && data == 0:
		return 0, io.EOF
	case head > rawframe.MaxMessageBytes || data > rawChunkBytes:
		return 0, errRecord
	case uint32(cap(r.head)) < head:
		r.head = make([]byte, head)
	}
	if _, err := io.ReadFull(r.in, r.head[:head]); err != nil {
		return 0, err
	}
	return int(data), r.codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(r.head[:head])}, m)
}
