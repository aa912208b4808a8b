package cuda

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/memory"
)

// Check tests whether a device still copies bytes correctly: it writes bytes to the device, copies
// them there, and reads them back. Its memory is allocated at the start, so that a device without
// free memory passes.
type Check struct {
	device  *Device
	scratch *Scratch

	mu     sync.Mutex
	rounds byte // makes the bytes of each check different; guarded by mu
}

// checkBytes is the number of bytes that a check copies.
const checkBytes = 256 << 10

// ErrNoAnswer: the device did not finish a check in time.
var ErrNoAnswer = errors.New("cuda: the device does not answer")

// NewCheck allocates the memory for checks.
func (d *Device) NewCheck() (*Check, error) {
	s, err := d.NewScratch(2*checkBytes, 0)
	if err != nil {
		return nil, err
	}
	return &Check{device: d, scratch: s}, nil
}

// Run does one check. An error that is not an *Error means that the bytes came back wrong, or that
// the check did not end within the time. In the second case its goroutine is blocked in the driver,
// and the process should end.
func (c *Check) Run(within time.Duration) error {
	done := make(chan error, 1)
	go func() { done <- c.run() }()
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return fmt.Errorf("%w: %s: no copy of %d bytes within %v", ErrNoAnswer, c.device.name, checkBytes, within)
	}
}

func (c *Check) run() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.device
	if err := d.Health(); err != nil {
		return err
	}
	c.rounds++
	sent, back := make([]byte, checkBytes), make([]byte, checkBytes)
	for i := range sent {
		sent[i] = byte(i)*31 + byte(i>>8) + c.rounds
	}
	from, to := c.scratch.Pointer(0, checkBytes), c.scratch.Pointer(checkBytes, checkBytes)
	if err := d.check("cuMemcpyHtoDAsync", d.api.write(d.context, d.control, from, sent)); err != nil {
		return err
	}
	if _, r := d.api.copyBatch(d.context, d.control, []Copy{OnDevice(to, from, checkBytes)}, 0); r != success {
		return d.check("cuMemcpyDtoDAsync", r)
	}
	if err := d.check("cuMemcpyDtoHAsync", d.api.read(d.context, d.control, back, to)); err != nil {
		return err
	}
	if want, got := memory.Checksum(0, sent), memory.Checksum(0, back); got != want {
		return fmt.Errorf("cuda: %s: %d bytes came back with checksum %08x, sent were %08x: its memory is not to be relied on", d.name, checkBytes, got, want)
	}
	return nil
}

// Close frees the memory.
// REQUIRES: no check is running.
func (c *Check) Close() error { return c.scratch.Close() }
