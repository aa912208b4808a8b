//go:build !cgo || !linux

package nvml

import (
	"context"
	"fmt"

	"github.com/millrace/millrace/worker/topology"
)

// NVML is never made in this build.
type NVML struct{}

// Open says that there is no NVML.
func Open(string) (*NVML, error) {
	return nil, fmt.Errorf("%w: this program was built without cgo, or not for Linux; build with CGO_ENABLED=1", ErrUnavailable)
}

// Report is part of topology.Library.
func (*NVML) Report() (topology.Report, error) { return topology.Report{}, ErrUnavailable }

// Sample returns nothing.
func (*NVML) Sample(string) (topology.Sample, error) { return topology.Sample{}, ErrUnavailable }

// Watch ends at once.
func (*NVML) Watch(context.Context, func(topology.Event)) error { return ErrUnavailable }

// Close does nothing.
func (*NVML) Close() error { return nil }
