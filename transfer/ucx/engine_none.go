//go:build !cgo || !linux

package ucx

import "fmt"

func loadLibrary(string, [][2]string, [][2]string) (version, error) {
	return version{}, fmt.Errorf("%w: this program was built without cgo, or not for Linux; build with CGO_ENABLED=1", ErrUnavailable)
}

// newEngine is never called, because loadLibrary fails first.
func newEngine([][2]string) (engine, error) {
	_, err := loadLibrary("", nil, nil)
	return nil, err
}

// built says whether this program can load libraries.
const built = false
