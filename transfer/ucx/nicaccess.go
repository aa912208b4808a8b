package ucx

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/memory/cuda"
)

// rdmaDevices is the folder in which the kernel lists RDMA devices.
const rdmaDevices = "/sys/class/infiniband"

// NICAccess returns nil if the RDMA devices of this host can be given the memory of a GPU, and the
// reason otherwise. Then the bytes of a slab there travel through rings of host memory.
func NICAccess(gpu cuda.Attributes) error {
	_, peermem := os.Stat("/sys/module/nvidia_peermem")
	return nicAccess(hasRDMADevice(), gpu, peermem == nil, kernelVersion())
}

// nicAccess decides by what it is given: peermem says that the module nvidia_peermem is loaded, and
// kernel is the version of the kernel.
func nicAccess(rdma bool, gpu cuda.Attributes, peermem bool, kernel [2]int) error {
	buffers := kernel[0] > 5 || kernel[0] == 5 && kernel[1] >= 12
	switch {
	case !rdma:
		return errors.New("this host has no RDMA device")
	case !gpu.DirectRDMA:
		return errors.New("the driver of the GPU gives its memory to no other device")
	case peermem || gpu.DMABuf && buffers:
		return nil
	case gpu.DMABuf:
		return fmt.Errorf("the kernel %d.%d cannot pass the memory of GPUs to RDMA devices; load the kernel module nvidia_peermem, or install Linux 5.12 or newer", kernel[0], kernel[1])
	}
	return errors.New("the driver of the GPU has no dma-buf; load the kernel module nvidia_peermem, or install the open kernel modules of the driver")
}

// hasRDMADevice says whether the host has an RDMA device.
func hasRDMADevice() bool {
	devices, err := os.ReadDir(rdmaDevices)
	return err == nil && len(devices) > 0
}

// kernelVersion returns the first two numbers of the version of the kernel; 0 if they are unknown.
func kernelVersion() (v [2]int) {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return v
	}
	if _, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &v[0], &v[1]); err != nil {
		return [2]int{}
	}
	return v
}
