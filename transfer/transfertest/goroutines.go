package transfertest

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Goroutines runs tests for goleak.VerifyTestMain. It gives leftover goroutines more time to end
// than goleak does: goleak waits less than half a second.
type Goroutines struct{ *testing.M }

// Run runs the tests.
func (g Goroutines) Run() int {
	code := g.M.Run()
	if code == 0 {
		_ = NoGoroutines() // goleak reports the goroutines that are left
	}
	return code
}

// NoGoroutines waits until all goroutines except the caller's have ended. Its error lists those
// that have not. The options say which ones may stay.
func NoGoroutines(options ...goleak.Option) error {
	limit := time.Now().Add(Patience)
	err := goleak.Find(options...)
	for err != nil && time.Now().Before(limit) {
		err = goleak.Find(options...) // waits for a fraction of a second
	}
	return err
}
