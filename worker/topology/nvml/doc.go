// Package nvml is an Adapter: NVIDIA's management library, as topology.Library
// and as a source of health.
//
// The library is loaded at run time and its functions are found by their names, so
// that a program that contains this package starts where there is no driver, and
// needs no special linking. Without cgo, or without the library, Open says
// ErrUnavailable and why.
package nvml

import "errors"

// ErrUnavailable: NVML cannot be used here.
var ErrUnavailable = errors.New("nvml: unavailable")
