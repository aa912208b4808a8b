package patience_test

import (
	"testing"
	"time"

	"github.com/millrace/millrace/internal/patience"
)

func TestPatienceIsForShortWaits(t *testing.T) {
	p := patience.New(1600)
	for _, c := range []struct{ waited, want time.Duration }{{100, 1600}, {1601, 400}, {5000, 100}, {5000, 100}, {1600, 1600}} {
		if p.Waited(c.waited); p.Now() != c.want {
			t.Errorf("after a wait of %d: %d, want %d", c.waited, p.Now(), c.want)
		}
	}
	var none patience.Patience
	if none.Waited(1); none.Now() != 0 {
		t.Errorf("without patience: %d", none.Now())
	}
}
