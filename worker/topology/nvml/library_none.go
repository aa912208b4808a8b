//go:build !cgo || !linux

package nvml

import "fmt"

// Open returns the error that there is no NVML.
func Open(string) (*NVML, error) {
	return nil, fmt.Errorf("%w: this program was built without cgo, or not for Linux; build with CGO_ENABLED=1", ErrUnavailable)
}
