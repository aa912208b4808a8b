// Package leaktest is Test support: it gives goroutines that tests leave behind time to end.
package leaktest

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is the longest time that goroutines get.
const patience = 5 * time.Minute

// Patient runs tests for goleak.VerifyTestMain. goleak itself waits for less than half a second,
// which a busy machine exceeds.
type Patient struct{ *testing.M }

// Run runs the tests.
func (p Patient) Run() int {
	code := p.M.Run()
	if code == 0 {
		_ = Find() // goleak reports the goroutines that are left
	}
	return code
}

// Find waits until all goroutines except the caller's have ended. Its error lists those that have
// not. The options say which ones may stay.
func Find(options ...goleak.Option) error {
	limit := time.Now().Add(patience)
	err := goleak.Find(options...)
	for err != nil && time.Now().Before(limit) {
		err = goleak.Find(options...) // waits for a fraction of a second
	}
	return err
}
