package spin_test

import (
	"testing"
	"time"

	"github.com/millrace/millrace/internal/spin"
)

func TestLimitIsForShortWaits(t *testing.T) {
	p := spin.New(1600)
	for _, c := range []struct{ waited, want time.Duration }{{100, 1600}, {1601, 400}, {5000, 100}, {5000, 100}, {1600, 1600}} {
		if p.Waited(c.waited); p.Now() != c.want {
			t.Errorf("after a wait of %d: %d, want %d", c.waited, p.Now(), c.want)
		}
	}
	var none spin.Limit
	if none.Waited(1); none.Now() != 0 {
		t.Errorf("the zero value: %d", none.Now())
	}
}
