package native

import (
	"errors"
	"strings"
	"testing"

	"github.com/millrace/millrace/worker/device"
)

// A panic caused by a client's request fails its task; the error names the place of the panic.
func TestPanicsOfADeviceFailOneTask(t *testing.T) {
	_, err := guarded(func() (device.Result, error) {
		var sizes []int
		return device.Result{Header: make([]byte, sizes[3])}, nil
	})
	var failed *device.Error
	if !errors.As(err, &failed) || failed.Reason != "INTERNAL" || !strings.Contains(failed.Message, "index out of range") || !strings.Contains(failed.Message, "guarded_test.go") {
		t.Errorf("got %v", err)
	}
	if _, err := guarded(func() (int, error) { return 1, errors.New("as ever") }); err == nil || err.Error() != "as ever" {
		t.Errorf("got %v", err)
	}
	defer func() {
		if recover() == nil {
			t.Error("the worker goes on with broken books")
		}
	}()
	// The call does not return.
	_, _ = guarded(func() (int, error) { panic(errors.New("ledger: object t1/a1 counts 2 leases and has 1")) })
}
