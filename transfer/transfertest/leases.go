package transfertest

import (
	"testing"
	"time"
)

// NoLeases waits until all leases of the source have been released. That may take a little longer
// than the reader's last byte.
func NoLeases(t *testing.T, objects *Objects) {
	t.Helper()
	limit := time.Now().Add(Patience)
	for objects.Leases() > 0 {
		if time.Now().After(limit) {
			t.Fatalf("%d leases are left", objects.Leases())
		}
		// The source gives no notice; this only waits, it does not synchronise.
		select {
		case <-time.After(time.Millisecond):
		case <-t.Context().Done():
			return
		}
	}
}
