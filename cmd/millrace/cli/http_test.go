package cli

import (
	"slices"
	"strings"
	"testing"
)

// Each worker of a command has an HTTP port of its own.
func TestWorkersHavePortsOfTheirOwn(t *testing.T) {
	for _, test := range []struct {
		address string
		workers int
		want    []string
		fault   string
	}{
		{"", 2, nil, ""},
		{"0.0.0.0:8790", 3, []string{"0.0.0.0:8790", "0.0.0.0:8791", "0.0.0.0:8792"}, ""},
		{"[::1]:0", 2, []string{"[::1]:0", "[::1]:0"}, ""},
		{"127.0.0.1:65535", 1, []string{"127.0.0.1:65535"}, ""},
		{"127.0.0.1:65535", 2, nil, "2 ports"},
	} {
		got, err := httpAddresses(test.address, test.workers)
		if !slices.Equal(got, test.want) || (err == nil) != (test.fault == "") || err != nil && !strings.Contains(err.Error(), test.fault) {
			t.Errorf("--metrics-listen %s with %d workers: %v, %v", test.address, test.workers, got, err)
		}
	}
}
