package worker

import (
	"os"
	"path/filepath"
	"testing"
)

func TestLanesAreTriedOnlyWhereTheyMayRead(t *testing.T) {
	none, some := filepath.Join(t.TempDir(), "infiniband"), t.TempDir()
	if err := os.Mkdir(filepath.Join(some, "mlx5_0"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		address, rdma string
		want          bool
	}{
		{"127.0.0.1:7", none, true},
		{"192.0.2.1:7", none, false},
		{"192.0.2.1:7", some, true},
		{"nonsense", none, false},
	} {
		if got := look(tc.rdma).laneTo(tc.address); got != tc.want {
			t.Errorf("%s with %s: %v", tc.address, tc.rdma, got)
		}
	}
}
