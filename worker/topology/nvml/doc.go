// Package nvml is an Adapter: NVIDIA's management library, as topology.Library
// and as a source of health.
//
// It is the only package that imports go-nvml, whose symbols are bound when they
// are first called: a program that contains it must not be linked with -z now,
// or it would not start where there is no driver. Without cgo, or without the
// library, Open says ErrUnavailable and why.
package nvml

import "errors"

// ErrUnavailable: NVML cannot be used here.
var ErrUnavailable = errors.New("nvml: unavailable")
