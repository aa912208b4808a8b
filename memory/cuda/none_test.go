//go:build !cgo || !linux

package cuda_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/millrace/millrace/memory/cuda"
)

func TestWithoutCgoItSaysSo(t *testing.T) {
	_, err := cuda.Load(cuda.Config{})
	if !errors.Is(err, cuda.ErrUnavailable) || !strings.Contains(err.Error(), "without cgo") {
		t.Errorf("got %v", err)
	}
}
