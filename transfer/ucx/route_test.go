package ucx

import (
	"errors"
	"os"
	"path/filepath"
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
	plain, here := &Context{}, &Context{slab: slab, nicDenied: denied, writesDenied: denied}
	open, bare := &Context{slab: slab}, &Context{slab: slab, slabDenied: denied, nicDenied: denied, writesDenied: denied}
	readable := &Context{slab: slab, writesDenied: denied}
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
		{"GPU to GPU, a reader that is only readable", readable, rdma, "rc_mlx5/a", "rc_mlx5:reader rc_mlx5:both"},
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
	const device, module, old = "class/infiniband/mlx5_0", "module/nvidia_peermem", "kernel/mm/memory_peers/nv_mem"
	for _, x := range []struct {
		sysfs     []string
		gpu       cuda.Attributes
		kernel    string
		ways, why string
	}{
		{[]string{device}, cuda.Attributes{DirectRDMA: true, DMABuf: true}, "5.12.0", "dma-buf", ""},
		{[]string{device}, cuda.Attributes{DirectRDMA: true, DMABuf: true}, "6.1.0-56-amd64", "dma-buf", ""},
		{[]string{device, module}, cuda.Attributes{DirectRDMA: true, DMABuf: true}, "6.1.0", "dma-buf nvidia_peermem", ""},
		{[]string{device, module}, cuda.Attributes{DirectRDMA: true}, "4.18.0", "nvidia_peermem", ""},
		{[]string{device, old}, cuda.Attributes{DirectRDMA: true}, "4.18.0", "nvidia_peermem", ""},
		{[]string{module}, cuda.Attributes{DirectRDMA: true, DMABuf: true}, "6.1.0", "", "no RDMA device"},
		{[]string{device, module}, cuda.Attributes{DMABuf: true}, "6.1.0", "", "no other device"},
		{[]string{device}, cuda.Attributes{DirectRDMA: true, DMABuf: true}, "5.11.22", "", "install Linux 5.12"},
		{[]string{device}, cuda.Attributes{DirectRDMA: true, DMABuf: true}, "", "", "install Linux 5.12"},
		{[]string{device}, cuda.Attributes{DirectRDMA: true}, "6.1.0", "", "nvidia_peermem"},
	} {
		sysfs := t.TempDir()
		for _, folder := range x.sysfs {
			if err := os.MkdirAll(filepath.Join(sysfs, folder), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		ways, err := NICWays(sysfs, x.kernel, x.gpu)
		if strings.Join(ways, " ") != x.ways || (err == nil) != (x.why == "") || err != nil && !strings.Contains(err.Error(), x.why) {
			t.Errorf("%+v: %q, %v", x, ways, err)
		}
	}
	if v := KernelRelease(); !strings.Contains(v, ".") {
		t.Errorf("the kernel is %q", v)
	}
}
