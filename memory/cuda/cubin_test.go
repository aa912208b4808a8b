package cuda

import (
	"bytes"
	"testing"
)

// Kernels can read a peer's memory in place only where the gather kernel exists: each device with
// NVLink has one.
func TestEachDeviceHasAGatherKernel(t *testing.T) {
	for capability, elf := range map[[2]int]bool{
		{8, 0}: true, {8, 6}: true, {8, 9}: true, {9, 0}: true, {10, 0}: true, {10, 3}: true, {12, 0}: false, {13, 0}: false,
	} {
		code, err := cubinFor(capability[0], capability[1])
		if err != nil || bytes.HasPrefix(code, []byte("\x7fELF")) != elf || !elf && !bytes.Contains(code, []byte(".entry millrace_gather")) {
			t.Errorf("%v: %d bytes, %v", capability, len(code), err)
		}
	}
	if _, err := cubinFor(7, 0); err == nil {
		t.Error("there is one for a device that is too old")
	}
}
