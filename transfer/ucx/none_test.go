//go:build !cgo || !linux

package ucx_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer/transfertest"
	"github.com/millrace/millrace/transfer/ucx"
)

func TestWithoutCgoItSaysSo(t *testing.T) {
	_, err := ucx.Open(ucx.Config{Library: "libucp.so.0", Space: transfertest.Heap(make([]byte, 2*memory.HeaderBytes))})
	if !errors.Is(err, ucx.ErrUnavailable) || !strings.Contains(err.Error(), "without cgo") {
		t.Errorf("got %v", err)
	}
}
