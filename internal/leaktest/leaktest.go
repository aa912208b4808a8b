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
	if code != 0 {
		return code
	}
	for limit := time.Now().Add(patience); goleak.Find() != nil && time.Now().Before(limit); {
	}
	return 0 // goleak reports the goroutines that are left.
}
