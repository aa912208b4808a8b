// Package nvml is an Adapter: NVIDIA's management library, as topology.Library
// and as a source of health.
//
// go-nvml loads the library at run time and leaves it to the dynamic linker to find a
// function at its first call. A program that contains this package therefore starts
// where there is no driver if it is linked with -z lazy, as the Makefile does, and not
// under LD_BIND_NOW; and what a driver lacks must not be called: load asks for each
// function that is used. Without cgo, or without the library, Open says ErrUnavailable
// and why.
package nvml

import "errors"

// ErrUnavailable: NVML cannot be used here.
var ErrUnavailable = errors.New("nvml: unavailable")
