package transfertest

import "testing"

// NoLeases waits until all leases of the source have been released.
func NoLeases(t *testing.T, objects *Objects) {
	t.Helper()
	noLeases(t, objects)
}
