package ucx

import (
	"slices"
	"testing"
	"time"
)

// Times of RDMA connections that are chosen replace UCX's variables; rails are a default, which a
// variable of the user replaces.
func TestVariablesOfRDMA(t *testing.T) {
	timeout, retries, rails := [2]string{"UCX_RC_TIMEOUT", "1500000us"}, [2]string{"UCX_RC_RETRY_COUNT", "3"}, [2]string{"UCX_MAX_RMA_RAILS", "2"}
	c := Config{RCTimeout: 1500 * time.Millisecond, RCRetries: 3, Rails: 2}
	if chosen := c.chosen(); !slices.Equal(chosen, [][2]string{timeout, retries}) || !slices.Contains(c.environment(), rails) {
		t.Errorf("chosen %v, defaults %v", chosen, c.environment())
	}
	if chosen := (Config{}).chosen(); len(chosen) > 0 || slices.ContainsFunc(Config{}.environment(), func(v [2]string) bool { return v[0] == rails[0] }) {
		t.Errorf("nothing was chosen, and UCX gets %v", chosen)
	}
}
