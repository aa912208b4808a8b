// Package accesstest is Test support: it makes every call of a server with every role.
package accesstest

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/internal/access"
)

// Walk makes every call of these services of the server at an address, with the token of each role,
// with a wrong one and without one, and checks that it is allowed or refused as the table says.
// No request can be parsed, so calls that are allowed do nothing. It returns their number.
func Walk(t *testing.T, address string, tokens map[access.Role]string, services ...string) (made int) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, line := range access.Table() {
		for _, service := range services {
			if !strings.HasPrefix(line.Method, "/"+service+"/") {
				continue
			}
			made++
			for _, role := range access.Roles() {
				want := parsed
				if !line.Open && !access.Allowed(role, line.Method) {
					want = codes.PermissionDenied
				}
				check(t, conn, line.Method, string(role), tokens[role], want)
			}
			want := codes.Unauthenticated
			if line.Open {
				want = parsed
			}
			check(t, conn, line.Method, "a stranger", "wrong", want)
			check(t, conn, line.Method, "nobody", "", want)
		}
	}
	return made
}

// parsed is the status of a call that is allowed, since its request cannot be parsed.
const parsed = codes.Internal

// check makes a call.
func check(t *testing.T, conn *grpc.ClientConn, method, who, token string, want codes.Code) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method, grpc.ForceCodec(junk{}))
	if err == nil {
		_ = stream.SendMsg(struct{}{}) // RecvMsg returns the error, also of the next line.
		_ = stream.CloseSend()
		err = stream.RecvMsg(new(struct{}))
	}
	if status.Code(err) != want {
		t.Errorf("%s by %s: %v; want %v", method, who, err, want)
	}
}

// junk encodes every request so that it cannot be parsed.
type junk struct{}

// Marshal is part of encoding.Codec.
func (junk) Marshal(any) ([]byte, error) { return []byte{0xff}, nil }

// Unmarshal is part of encoding.Codec.
func (junk) Unmarshal([]byte, any) error { return nil }

// Name is part of encoding.Codec.
func (junk) Name() string { return "proto" }
