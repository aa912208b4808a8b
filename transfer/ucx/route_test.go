package ucx

import (
	"errors"
	"strings"
	"testing"

	hostv1 "github.com/millrace/millrace/gen/go/millrace/host/v1"
	"github.com/millrace/millrace/memory/cuda"
)

// TestRoutesStageWhatTheTransportCannotReach lists, for each kind of pair, at which ends the routes
// are staged, the most direct first.
func TestRoutesStageWhatTheTransportCannotReach(t *testing.T) {
	denied := errors.New("no")
	key := []byte{1}
	host, gpu := offer{key: key}, offer{key: key, ringKey: key, device: new(hostv1.DeviceMemory)}
	rdma, unregistered := gpu, offer{ringKey: key}
	rdma.rdma = true
	slab := new(cuda.Slab)
	plain, here := &Context{}, &Context{slab: slab, nicDenied: denied}
	open, bare := &Context{slab: slab}, &Context{slab: slab, slabDenied: denied, nicDenied: denied}
	for _, x := range []struct {
		name       string
		c          *Context
		o          offer
		transports string
		want       string
	}{
		{"host to host", plain, host, "rc_mlx5/a tcp/b", "rc_mlx5:"},
		{"host to host by message", plain, host, "tcp/b", "tcp:"},
		{"GPU to GPU of one host", here, gpu, "posix/m cma/m cuda_ipc/c", "cuda_ipc: cma:both"},
		{"GPU to GPU, both open", open, rdma, "rc_mlx5/a", "rc_mlx5: rc_mlx5:both"},
		{"GPU to GPU, an open source", here, rdma, "rc_mlx5/a", "rc_mlx5:reader rc_mlx5:both"},
		{"GPU to GPU, an open reader", open, gpu, "dc_mlx5/a", "dc_mlx5:source dc_mlx5:both"},
		{"GPU to GPU, none open", here, gpu, "rc_verbs/a", "rc_verbs:both"},
		{"GPU to GPU by message", open, rdma, "tcp/b", "tcp:both"},
		{"GPU to GPU, unregistered", bare, gpu, "cma/m cuda_ipc/c", "cma:both"},
		{"host to GPU", here, host, "rc_mlx5/a", "rc_mlx5:reader"},
		{"host to an open GPU", open, host, "rc_mlx5/a", "rc_mlx5: rc_mlx5:reader"},
		{"an open GPU to host", plain, rdma, "rc_mlx5/a", "rc_mlx5: rc_mlx5:source"},
		{"GPU to host on one host", plain, rdma, "xpmem/m cuda_ipc/c", "xpmem:source"},
		{"an unregistered GPU to host", plain, unregistered, "rc_mlx5/a", "rc_mlx5:source"},
	} {
		x.c.version = version{1, 19, 0}
		var got []string
		for _, r := range x.c.routes(x.o, strings.Fields(x.transports)) {
			got = append(got, r.description.Transport+":"+r.description.Staged)
			if r.staged() && r.description.Why == "" {
				t.Errorf("%s: %s does not say why it is staged", x.name, r.description)
			}
		}
		if s := strings.Join(got, " "); s != x.want {
			t.Errorf("%s: %s, want %s", x.name, s, x.want)
		}
	}
}

func TestNetworkDevicesGetTheMemoryOfSomeGPUs(t *testing.T) {
	for _, x := range []struct {
		rdma    bool
		gpu     cuda.Attributes
		peermem bool
		kernel  [2]int
		why     string
	}{
		{true, cuda.Attributes{DirectRDMA: true, DMABuf: true}, false, [2]int{5, 12}, ""},
		{true, cuda.Attributes{DirectRDMA: true, DMABuf: true}, false, [2]int{6, 1}, ""},
		{true, cuda.Attributes{DirectRDMA: true}, true, [2]int{4, 18}, ""},
		{false, cuda.Attributes{DirectRDMA: true, DMABuf: true}, true, [2]int{6, 1}, "no RDMA device"},
		{true, cuda.Attributes{DMABuf: true}, true, [2]int{6, 1}, "no other device"},
		{true, cuda.Attributes{DirectRDMA: true, DMABuf: true}, false, [2]int{5, 11}, "install Linux 5.12"},
		{true, cuda.Attributes{DirectRDMA: true}, false, [2]int{6, 1}, "nvidia_peermem"},
	} {
		err := nicAccess(x.rdma, x.gpu, x.peermem, x.kernel)
		if (err == nil) != (x.why == "") || err != nil && !strings.Contains(err.Error(), x.why) {
			t.Errorf("%+v: %v", x, err)
		}
	}
	if v := kernelVersion(); v[0] < 3 {
		t.Errorf("the kernel is %v", v)
	}
}
