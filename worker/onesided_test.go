package worker

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/ucx"
)

// reachOf is a host with the address 192.0.2.9, with RDMA devices or without.
func reachOf(rdma bool) func() hostReach {
	return func() hostReach {
		return hostReach{rdma: rdma, name: "node7", own: []net.Addr{
			&net.IPNet{IP: net.IPv4(127, 0, 0, 1), Mask: net.CIDRMask(8, 32)}, &net.IPNet{IP: net.IPv4(192, 0, 2, 9), Mask: net.CIDRMask(24, 32)},
		}}
	}
}

func TestOneSidedReadsAreTriedOnlyWhereTheyMayRead(t *testing.T) {
	const here, named, other = "127.0.0.1:7", "node7:7", "192.0.2.1:7"
	for name, tc := range map[string]struct {
		rdma bool
		o    *oneSided
		// want has the reason for each address that is refused.
		want map[string]error
	}{
		"host memory":                  {false, &oneSided{}, map[string]error{named: errNoRDMA, other: errNoRDMA}},
		"host memory and RDMA":         {true, &oneSided{}, nil},
		"host memory, chosen":          {false, &oneSided{chosen: true}, nil},
		"a GPU":                        {false, &oneSided{far: true}, map[string]error{here: errSameHost, named: errSameHost, other: errNoRDMA}},
		"a GPU and RDMA":               {true, &oneSided{far: true}, map[string]error{here: errSameHost, named: errSameHost}},
		"a GPU, chosen transports":     {false, &oneSided{far: true, chosen: true}, map[string]error{here: errSameHost, named: errSameHost}},
		"a GPU, by order of the user":  {false, &oneSided{far: true, forced: true}, nil},
		"host memory, user's order":    {false, &oneSided{forced: true}, nil},
		"host memory, RDMA and chosen": {true, &oneSided{chosen: true}, nil},
	} {
		tc.o.reach = reachOf(tc.rdma)
		for _, address := range []string{here, named, other} {
			if err := tc.o.promising(transfer.Peer{Address: address}); !errors.Is(err, tc.want[address]) {
				t.Errorf("%s: %s: %v, want %v", name, address, err, tc.want[address])
			}
		}
	}
	// One GPU at either end is enough.
	o := &oneSided{reach: reachOf(true)}
	if err := o.promising(transfer.Peer{Address: here, OnGPU: true}); !errors.Is(err, errSameHost) {
		t.Errorf("from a GPU to host memory of one host: %v", err)
	}
	if err := o.promising(transfer.Peer{Address: other, OnGPU: true}); err != nil {
		t.Errorf("from a GPU to host memory of another host: %v", err)
	}
}

// TestAFetchDoesNotWaitForUCX: UCX hangs on some devices when it is opened.
func TestAFetchDoesNotWaitForUCX(t *testing.T) {
	o := &oneSided{reach: reachOf(true), path: ucx.PathConfig{StallTimeout: time.Millisecond}, closed: true}
	other := transfer.Peer{Address: "192.0.2.1:7"}
	o.mu.Lock() // UCX is being opened
	if err := o.eligible(t.Context(), other); !errors.Is(err, transfer.ErrStalled) {
		t.Errorf("while UCX is opened: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(io.EOF)
	if err := o.eligible(ctx, other); !errors.Is(err, io.EOF) {
		t.Errorf("for a fetch that was given up: %v", err)
	}
	o.mu.Unlock()
	o.path.StallTimeout = time.Minute
	if err := o.eligible(t.Context(), other); !errors.Is(err, transfer.ErrPeerLost) {
		t.Errorf("after that: %v", err)
	}
}

// TestWithoutUCXTheReasonIsShown: the reason is what topo shows for pairs that read in streams.
func TestWithoutUCXTheReasonIsShown(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "libucp.so.0")
	slab, err := host.NewSlab(1<<20, memory.Identity{Nonce: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer slab.Close()
	o := &oneSided{reach: reachOf(true), config: ucx.Config{Library: missing, Space: slab}, log: slog.New(slog.DiscardHandler)}
	if err := o.eligible(t.Context(), transfer.Peer{Address: "192.0.2.1:7"}); err == nil || !unreachable(err) || !strings.Contains(err.Error(), missing+": no such file") {
		t.Error(err)
	}
}

func TestHostsAreLookedAt(t *testing.T) {
	none, some := filepath.Join(t.TempDir(), "infiniband"), t.TempDir()
	if err := os.Mkdir(filepath.Join(some, "mlx5_0"), 0o700); err != nil {
		t.Fatal(err)
	}
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if lookAtHost(none).rdma || !lookAtHost(some).rdma {
		t.Error("RDMA devices are not found by their directory")
	}
	for address, want := range map[string]bool{"127.0.0.1:7": true, name + ":7": false, "192.0.2.1:7": false, "nonsense": false, ":7": false, "elsewhere.example:7": false} {
		if got := lookAtHost(none).here(address); got != want {
			t.Errorf("%s: %v", address, got)
		}
	}
	if l := lookAtHost(none); !l.named(name+":7") || l.named("elsewhere.example:7") || l.named(":7") || l.named(name) {
		t.Errorf("the name of this host is %s", l.name)
	}
}

// TestReadersThatGainNothingOpenNothing: a source does not open UCX for a reader that UCX would
// reach over TCP only.
func TestReadersThatGainNothingOpenNothing(t *testing.T) {
	reader := &workerv1.Endpoint{Version: "1.19.0", Address: []byte("junk"), Token: 5}
	for name, tc := range map[string]struct {
		o    *oneSided
		rdma bool
		from string
		want codes.Code // FailedPrecondition: it looks at the request
	}{
		"another host":                    {&oneSided{}, false, "192.0.2.1", codes.Unimplemented},
		"another host, RDMA":              {&oneSided{}, true, "192.0.2.1", codes.FailedPrecondition},
		"another host, chosen transports": {&oneSided{chosen: true}, false, "192.0.2.1", codes.FailedPrecondition},
		"another host, --protocol ucx":    {&oneSided{forced: true}, false, "192.0.2.1", codes.FailedPrecondition},
		"another host, a GPU":             {&oneSided{far: true}, false, "192.0.2.1", codes.Unimplemented},
		"another host, a GPU and RDMA":    {&oneSided{far: true}, true, "192.0.2.1", codes.FailedPrecondition},
		"this host":                       {&oneSided{}, false, "127.0.0.1", codes.FailedPrecondition},
		"this host, a GPU":                {&oneSided{far: true}, false, "192.0.2.9", codes.FailedPrecondition},
	} {
		tc.o.reach = reachOf(tc.rdma)
		tc.o.config = ucx.Config{Library: filepath.Join(t.TempDir(), "libucp.so.0"), Source: struct{ transfer.Source }{}}
		ctx := peer.NewContext(context.Background(), &peer.Peer{Addr: &net.TCPAddr{IP: net.ParseIP(tc.from), Port: 7}})
		_, err := tc.o.accept(ctx, &workerv1.ConnectRequest{Request: &workerv1.ConnectRequest_Reader{Reader: reader}})
		if status.Code(err) != tc.want || tc.o.tried {
			t.Errorf("%s: %v, opened %v", name, err, tc.o.tried)
		}
	}
}

func TestPathsOfEachProtocol(t *testing.T) {
	for _, tc := range []struct {
		protocol, inHost, onGPU string
	}{
		{ProtocolAuto, "borrow ucx grpc", "ipc pinned ucx grpc"},
		{ProtocolIPC, "", "ipc pinned grpc"},
		{ProtocolBorrow, "borrow", "grpc"},
		{ProtocolUCX, "ucx grpc", "ucx grpc"},
		{ProtocolGRPC, "grpc", "grpc"},
	} {
		for far, want := range map[bool]string{false: tc.inHost, true: tc.onGPU} {
			if tc.protocol == ProtocolIPC && !far {
				continue // refused: see ErrNoIPC
			}
			var taken []string
			for _, path := range []string{"ipc", "pinned", "borrow", "ucx", "grpc"} {
				if (path == "borrow" || far || path == "ucx" || path == "grpc") && (Config{Protocol: tc.protocol}).takes(path, far) {
					taken = append(taken, path)
				}
			}
			if got := strings.Join(taken, " "); got != want {
				t.Errorf("%s, on a GPU %v: %s, want %s", tc.protocol, far, got, want)
			}
		}
	}
}

// TestRefusedConnectionsOpenNothing: an open UCX context may listen on a port that asks for no
// token. So malformed requests are refused before anything is opened.
func TestRefusedConnectionsOpenNothing(t *testing.T) {
	o := &oneSided{config: ucx.Config{Library: filepath.Join(t.TempDir(), "libucp.so.0"), Source: struct{ transfer.Source }{}}}
	junk := &workerv1.ConnectRequest{Request: &workerv1.ConnectRequest_Reader{Reader: &workerv1.Endpoint{Version: "1.19.0", Address: bytes.Repeat([]byte{0xff}, 500), Token: 5}}}
	for name, tc := range map[string]struct {
		request *workerv1.ConnectRequest
		want    codes.Code
	}{
		"junk":                   {junk, codes.FailedPrecondition},
		"nothing":                {new(workerv1.ConnectRequest), codes.FailedPrecondition},
		"a connection given up":  {&workerv1.ConnectRequest{Request: &workerv1.ConnectRequest_CloseToken{CloseToken: 5}}, codes.OK},
		"a connection asked for": {&workerv1.ConnectRequest{Request: &workerv1.ConnectRequest_CheckToken{CheckToken: 5}}, codes.OK},
	} {
		response, err := o.accept(t.Context(), tc.request)
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
}

func TestDevicesOfUCX(t *testing.T) {
	const both = "mlx5_0:1,mlx5_1:1"
	for name, tc := range map[string]struct {
		c           Config
		environment string
		devices     string
		rails       int
	}{
		"loopback":                           {Config{Listen: "127.0.0.1:0"}, "", "lo", 0},
		"all addresses":                      {Config{Listen: "0.0.0.0:0"}, "", "", 0},
		"any address":                        {Config{Listen: ":0"}, "", "", 0},
		"an address of nobody":               {Config{Listen: "192.0.2.1:0"}, "", "", 0},
		"a GPU on loopback":                  {Config{Listen: "127.0.0.1:0", UCX: UCX{Near: both}}, "", "lo", 0},
		"a GPU":                              {Config{Listen: "0.0.0.0:0", UCX: UCX{Near: "mlx5_0:1"}}, "", "mlx5_0:1", 0},
		"a GPU with two rails":               {Config{Listen: "0.0.0.0:0", UCX: UCX{Near: both}}, "", both, 2},
		"a GPU, at a name":                   {Config{Listen: "node7:0", UCX: UCX{Near: both}}, "", both, 2},
		"a GPU, at an address of nobody":     {Config{Listen: "192.0.2.1:0", UCX: UCX{Near: both}}, "", both, 2},
		"a GPU, devices by a flag":           {Config{Listen: "0.0.0.0:0", UCX: UCX{Near: both, NetDevices: "mlx5_2:1"}}, "", "mlx5_2:1", 0},
		"a GPU, devices by the environment":  {Config{Listen: "0.0.0.0:0", UCX: UCX{Near: both}}, "mlx5_2:1", "", 0},
		"devices by both: the flag is first": {Config{Listen: "127.0.0.1:0", UCX: UCX{NetDevices: "mlx5_3:1"}}, "mlx5_2:1", "mlx5_3:1", 0},
	} {
		t.Setenv("UCX_NET_DEVICES", tc.environment)
		if got := tc.c.ucxConfig(nil, nil); got.NetDevices != tc.devices || got.Rails != tc.rails {
			t.Errorf("%s: %q, %d rails; want %q, %d", name, got.NetDevices, got.Rails, tc.devices, tc.rails)
		}
	}
}

func TestTimesOfRDMAReachUCX(t *testing.T) {
	c := Config{Name: "w", Scheduler: "s:1", UCX: UCX{RCTimeout: 2 * time.Second, RCRetries: 5}}
	c, err := c.validated()
	if u := c.ucxConfig(nil, nil); err != nil || u.RCTimeout != 2*time.Second || u.RCRetries != 5 {
		t.Errorf("%v, %v, %d", err, u.RCTimeout, u.RCRetries)
	}
	for _, tc := range []struct {
		c    Config
		flag string
	}{
		{Config{UCX: UCX{RCTimeout: time.Microsecond}}, "--ucx-rc-timeout"}, {Config{UCX: UCX{RCTimeout: time.Hour}}, "--ucx-rc-timeout"},
		{Config{UCX: UCX{RCTimeout: -1}}, "--ucx-rc-timeout"}, {Config{UCX: UCX{RCRetries: 8}}, "--ucx-rc-retries"}, {Config{UCX: UCX{RCRetries: -1}}, "--ucx-rc-retries"},
	} {
		tc.c.Name, tc.c.Scheduler = "w", "s:1"
		if _, err := tc.c.validated(); err == nil || !strings.Contains(err.Error(), tc.flag) {
			t.Errorf("%v, %d: %v", tc.c.UCX.RCTimeout, tc.c.UCX.RCRetries, err)
		}
	}
}
