//go:build !cgo || !linux

package cuda

import "fmt"

func loadLibrary(string) (api, error) {
	return nil, fmt.Errorf("%w: this program was built without cgo, or not for Linux; build with CGO_ENABLED=1", ErrUnavailable)
}
