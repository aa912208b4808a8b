package cuda

import (
	"errors"
	"fmt"
	"slices"
)

var (
	// ErrUnavailable: there is no usable driver, or no GPU.
	ErrUnavailable = errors.New("cuda: unavailable")
	// ErrOutOfMemory: the device has no room for the allocation.
	ErrOutOfMemory = errors.New("cuda: out of device memory")
	// ErrTaken: other processes use so much of the device's memory that there is no room for the
	// slab.
	ErrTaken = errors.New("cuda: the device's memory is taken")
	// ErrUnhealthy: the device's context is lost, and with it the memory of this process on the
	// device. Only another process can use the device again.
	ErrUnhealthy = errors.New("cuda: device context is lost")
	// ErrPeerAccess: one GPU cannot access the memory of the other.
	ErrPeerAccess = errors.New("cuda: no peer access")
	// ErrNotShared: the driver does not let other processes map memory of the device.
	ErrNotShared = errors.New("cuda: memory of this device cannot be shared with other processes")
	// ErrIdentity: the mapped memory is not the requested slab.
	ErrIdentity = errors.New("cuda: not the slab that was announced")
	// ErrClosed: the object was closed.
	ErrClosed = errors.New("cuda: closed")
)

// Error is a failed call of the driver.
type Error struct {
	// Call is the driver's function or the step. Device is the GPU, "" before there is one.
	Call, Device string
	// Code is the CUresult, with CUDA's own name and text for it.
	Code       int
	Name, Text string
}

// Error names the call, the device and CUDA's error.
func (e *Error) Error() string {
	on := ""
	if e.Device != "" {
		on = " on " + e.Device
	}
	remedy := ""
	switch {
	case e.Sticky():
		remedy = "; the process must be replaced"
	case result(e.Code) == systemNotReady:
		remedy = "; the NVSwitches are not set up: look at nvidia-fabricmanager (systemctl status nvidia-fabricmanager)"
	case e.Is(ErrOutOfMemory):
		remedy = "; lower --device-memory-limit, or end what else uses the device"
	}
	return fmt.Sprintf("cuda: %s%s: %s (%d): %s%s", e.Call, on, e.Name, e.Code, e.Text, remedy)
}

// sticky are the codes after which every later call in the context fails with the same code. Other
// codes (999 unknown, 46 device unavailable, 100, 101, 201, 304) may mean the end of the context or
// may be temporary: the worker probes the device.
var sticky = []result{
	deinitialized, mpsConnection, mpsRPC, mpsClientEnded,
	eccUncorrectable, nvlinkError, contained, illegalAddress, launchTimeout, contextDestroyed, deviceAssert,
	stackError, illegalInstruction, misalignedAddress, invalidSpace, invalidPC, launchFailed, tensorLeak,
}

// Sticky says whether every later call in this process fails.
func (e *Error) Sticky() bool { return slices.Contains(sticky, result(e.Code)) }

// Is matches the sentinels of this package.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrOutOfMemory:
		return result(e.Code) == outOfMemory
	case ErrPeerAccess:
		return slices.Contains([]result{peerUnsupported, peerEnabled, peerNotEnabled, tooManyPeers}, result(e.Code))
	case ErrUnhealthy:
		return e.Sticky()
	default:
		return false
	}
}

func newError(a api, call, device string, r result) *Error {
	return &Error{Call: call, Device: device, Code: int(r), Name: a.errorName(r), Text: a.errorText(r)}
}
