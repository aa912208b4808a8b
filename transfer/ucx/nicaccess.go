package ucx

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/memory/cuda"
)

// NICAccess returns nil if the RDMA devices of this host can be given the memory of a GPU, and the
// reason otherwise. Then the bytes of a slab there travel through rings of host memory.
func NICAccess(gpu cuda.Attributes) error {
	_, err := NICWays("/sys", KernelRelease(), gpu)
	return err
}

// leastKernel is the first version of Linux whose RDMA devices take a dma-buf.
var leastKernel = [2]int{5, 12}

// NICWays returns the ways by which the RDMA devices of a host can be given the memory of a GPU:
// "dma-buf", "nvidia_peermem". If there is none, the error has the reason and the remedy. sysfs is
// the directory in which the kernel describes devices, and kernel its release.
func NICWays(sysfs, kernel string, gpu cuda.Attributes) (ways []string, err error) {
	switch {
	case !hasRDMADevice(sysfs):
		return nil, errors.New("this host has no RDMA device")
	case !gpu.DirectRDMA:
		return nil, errors.New("the driver of the GPU gives its memory to no other device; that needs a data centre or professional GPU, which a virtual machine gets as a whole")
	}
	var version [2]int
	if _, err := fmt.Sscanf(kernel, "%d.%d", &version[0], &version[1]); err != nil {
		version = [2]int{} // not known, so too old
	}
	buffers := slices.Compare(version[:], leastKernel[:]) >= 0
	if gpu.DMABuf && buffers {
		ways = append(ways, "dma-buf")
	}
	// The second place is that of a module from before NVIDIA's driver had one.
	for _, module := range []string{"module/nvidia_peermem", "kernel/mm/memory_peers/nv_mem"} {
		if _, err := os.Stat(filepath.Join(sysfs, module)); err == nil {
			return append(ways, "nvidia_peermem"), nil
		}
	}
	switch {
	case len(ways) > 0:
		return ways, nil
	case gpu.DMABuf:
		return nil, fmt.Errorf("the kernel %s cannot pass the memory of GPUs to RDMA devices; load the kernel module nvidia_peermem, or install Linux %d.%d or newer", kernel, leastKernel[0], leastKernel[1])
	}
	return nil, errors.New("the driver of the GPU has no dma-buf; load the kernel module nvidia_peermem, or install the open kernel modules of the driver")
}

// hasRDMADevice says whether the host has an RDMA device.
func hasRDMADevice(sysfs string) bool {
	devices, err := os.ReadDir(filepath.Join(sysfs, "class/infiniband"))
	return err == nil && len(devices) > 0
}

// KernelRelease returns the release of the kernel, such as "6.1.0-56-amd64"; empty if it is not
// known.
func KernelRelease() string {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Release[:])
}
