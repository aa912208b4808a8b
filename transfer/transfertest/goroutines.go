package transfertest

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Goroutines runs tests for goleak.VerifyTestMain, and gives what they left more time
// to end than goleak does: that is less than half a second.
type Goroutines struct{ *testing.M }

// Run runs the tests.
func (g Goroutines) Run() int {
	code := g.M.Run()
	if code == 0 {
		_ = NoGoroutines() // goleak says what is left
	}
	return code
}

// NoGoroutines waits until all goroutines but the caller's have ended; its error says
// which have not.
func NoGoroutines() error {
	limit := time.Now().Add(Patience)
	err := goleak.Find()
	for err != nil && time.Now().Before(limit) {
		err = goleak.Find() // which waits for some of a second
	}
	return err
}
