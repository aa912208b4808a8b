package worker

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/ucx"
)

func TestOneSidedReadsAreTriedOnlyWhereTheyMayRead(t *testing.T) {
	none, some := filepath.Join(t.TempDir(), "infiniband"), t.TempDir()
	if err := os.Mkdir(filepath.Join(some, "mlx5_0"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		address, rdma string
		want          bool
	}{
		{"127.0.0.1:7", none, true},
		{"192.0.2.1:7", none, false},
		{"192.0.2.1:7", some, true},
		{"nonsense", none, false},
	} {
		if got := lookAtHost(tc.rdma).reaches(tc.address); got != tc.want {
			t.Errorf("%s with %s: %v", tc.address, tc.rdma, got)
		}
	}
}

// TestRefusedConnectionsOpenNothing: an open UCX context may listen on a port that asks for no
// token, and a connection reaches all of the slab. So only workers may connect, and malformed
// requests are refused before anything is opened.
func TestRefusedConnectionsOpenNothing(t *testing.T) {
	c := Config{Token: "cluster", AcceptTokens: []string{"task"}}
	o := &oneSided{config: ucx.Config{Library: filepath.Join(t.TempDir(), "libucp.so.0"), Source: struct{ transfer.Source }{}}, workers: workerTokens(c)}
	junk := &workerv1.ConnectRequest{Request: &workerv1.ConnectRequest_Reader{Reader: &workerv1.Endpoint{Version: "1.19.0", Address: bytes.Repeat([]byte{0xff}, 500), Token: 5}}}
	for name, tc := range map[string]struct {
		token   string
		request *workerv1.ConnectRequest
		want    codes.Code
	}{
		"a task":                 {"task", junk, codes.PermissionDenied},
		"nobody":                 {"", junk, codes.PermissionDenied},
		"a worker with junk":     {"cluster", junk, codes.FailedPrecondition},
		"a worker with nothing":  {"cluster", new(workerv1.ConnectRequest), codes.FailedPrecondition},
		"a connection given up":  {"cluster", &workerv1.ConnectRequest{Request: &workerv1.ConnectRequest_CloseToken{CloseToken: 5}}, codes.OK},
		"a connection asked for": {"cluster", &workerv1.ConnectRequest{Request: &workerv1.ConnectRequest_CheckToken{CheckToken: 5}}, codes.OK},
	} {
		ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs("authorization", "Bearer "+tc.token))
		response, err := o.accept(ctx, tc.request)
		if status.Code(err) != tc.want || response.GetEnded() != (tc.request.GetCheckToken() != 0) {
			t.Errorf("%s: %v, %v", name, response, err)
		}
		if o.tried {
			t.Errorf("%s: opens UCX", name)
		}
	}
}

func TestPortsThatAreUpAreNamedAsUCXDoes(t *testing.T) {
	rdma := t.TempDir()
	for port, state := range map[string]string{"mlx5_0/ports/1": "4: ACTIVE\n", "mlx5_1/ports/1": "1: DOWN\n", "mlx5_1/ports/2": "4: ACTIVE\n"} {
		dir := filepath.Join(rdma, port)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "state"), []byte(state), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := activePorts(rdma); !slices.Equal(got, []string{"mlx5_0:1", "mlx5_1:2"}) {
		t.Error(got)
	}
	for listen, want := range map[string]string{"127.0.0.1:0": "lo", "0.0.0.0:0": "", ":0": "", "192.0.2.1:0": ""} {
		t.Setenv("UCX_NET_DEVICES", "")
		if got := (Config{Listen: listen}).netDevices(); got != want {
			t.Errorf("%s: %q", listen, got)
		}
	}
}
