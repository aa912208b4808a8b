// Package nvml is an Adapter: NVIDIA's management library, as topology.Library and as a source of
// health events.
//
// go-nvml loads the library at run time, and the dynamic linker resolves a function at its first
// call. Therefore a program with this package starts on a machine without a driver only if it is
// linked with -z lazy, as the Makefile does, and LD_BIND_NOW is not set. Functions that a driver
// lacks must not be called: load checks each function that is used. Without cgo, or without the
// library, Open returns ErrUnavailable with the reason.
package nvml

import "errors"

// ErrUnavailable says that NVML cannot be used on this machine.
var ErrUnavailable = errors.New("nvml: unavailable")
