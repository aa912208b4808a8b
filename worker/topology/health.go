package topology

import (
	"fmt"
	"slices"
)

// EventKind is what happened to a GPU.
type EventKind int

// The kinds. An Xid is what the driver reports to the kernel's log; ECC an error
// of memory that could not be corrected.
const (
	Xid EventKind = iota
	ECC
)

// Event is something that NVML tells of a GPU.
type Event struct {
	// UUID is the GPU's, "" for all of them.
	UUID string
	// Instances are the UUIDs of the MIG instances that it is about, if the GPU is cut up.
	Instances []string
	Kind      EventKind
	// Xid is the number of one.
	Xid uint64
}

// Of says whether it is about a device, which may be a MIG instance, and names it. What is about all of them
// is not: each asks its own device.
func (e Event) Of(uuid string) bool {
	return e.UUID != "" && (e.UUID == uuid || slices.Contains(e.Instances, uuid))
}

// Fatal says whether work on the GPU must end. An Xid that a program's own fault
// causes kills that program's context only.
func (e Event) Fatal() bool {
	if e.Kind != Xid {
		return true
	}
	switch e.Xid {
	case 13, 31, 43, 45, 68, 109:
		return false
	default:
		return true
	}
}

// String is for people.
func (e Event) String() string {
	gpu := e.UUID
	if gpu == "" {
		gpu = "all GPUs"
	}
	if e.Kind != Xid {
		return gpu + ": a memory error that ECC could not correct"
	}
	text := map[uint64]string{
		13: "a program's kernel failed", 31: "a program used an address that is not mapped", 43: "a program's work was stopped",
		45: "a program's work was cleaned up", 48: "a memory error that ECC could not correct", 63: "rows of memory were remapped",
		64: "rows of memory could not be remapped", 68: "video processor", 74: "NVLink error", 79: "the GPU has fallen off the bus",
		94: "a contained memory error", 95: "an uncontained memory error", 109: "a context switch timed out", 119: "the GPU's own processor does not answer",
		120: "the GPU's own processor failed",
	}[e.Xid]
	if text == "" {
		text = "see NVIDIA's catalogue of Xid errors"
	}
	return fmt.Sprintf("%s: Xid %d: %s", gpu, e.Xid, text)
}

// Sample is the state of a GPU at one time. What the driver does not tell is 0.
type Sample struct {
	UsedBytes, TotalBytes uint64
	// UtilizationPercent is of kernels, MemoryPercent of the memory's bandwidth.
	UtilizationPercent, MemoryPercent int
	ClockMHz, MemoryClockMHz          int
	// Throttled names the reasons for a lower clock.
	Throttled []string
	Watts     float64
	Celsius   int
	// CorrectedECC and UncorrectedECC count since the driver was loaded.
	CorrectedECC, UncorrectedECC uint64
	Processes                    []Process
}

// Process uses the GPU.
type Process struct {
	PID       int
	UsedBytes uint64
}

// Foreign are the processes that are not among ours.
func (s Sample) Foreign(ours ...int) (list []Process) {
	for _, p := range s.Processes {
		mine := false
		for _, pid := range ours {
			mine = mine || pid == p.PID
		}
		if !mine {
			list = append(list, p)
		}
	}
	return list
}
