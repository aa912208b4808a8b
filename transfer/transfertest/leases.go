package transfertest

import "testing"

// NoLeases waits until the source has got its leases back.
func NoLeases(t *testing.T, objects *Objects) {
	t.Helper()
	noLeases(t, objects)
}
