package grpcpath

import (
	"bytes"
	"io"
	"testing"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// FuzzBareStream reads arbitrary bytes as the hello and the requests of a bare stream.
func FuzzBareStream(f *testing.F) {
	f.Add(appendHello(nil, "", "token"))
	if b, err := appendAsk(nil, &millracev1.ReadObjectsRequest{Objects: []*millracev1.ObjectRef{{TaskId: 1}}}); err == nil {
		f.Add(b[1:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if token, err := readToken(bytes.NewReader(b)); err == nil && len(token) > maxTokenBytes {
			t.Errorf("a token of %d bytes", len(token))
		}
		in := bytes.NewReader(b)
		if _, err := readAsk(in); err == nil && in.Len() == len(b) {
			t.Error("a request of nothing")
		}
		_, _ = io.Copy(io.Discard, in)
	})
}
