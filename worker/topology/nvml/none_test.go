//go:build !cgo || !linux

package nvml

import (
	"errors"
	"strings"
	"testing"
)

func TestWithoutCgoItSaysSo(t *testing.T) {
	if _, err := Open(""); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "without cgo") {
		t.Errorf("got %v", err)
	}
}
