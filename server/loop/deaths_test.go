package loop

import (
	"fmt"
	"testing"

	"github.com/millrace/millrace/server/schedapi"
)

func TestTheOldestDeathsAreForgottenFirst(t *testing.T) {
	l := New(Config{})
	for i := range deadNames + 3 {
		l.recordDeath(fmt.Sprint(i), schedapi.Death{Incarnation: fmt.Sprint(i), Cause: "it died"})
	}
	if n := len(l.workers.deaths); n != deadNames || len(l.workers.dead) != n {
		t.Errorf("%d names are remembered, want %d", n, deadNames)
	}
	if l.workers.deaths["2"] != nil || l.workers.deaths["3"] == nil || l.workers.deaths[fmt.Sprint(deadNames+2)] == nil {
		t.Error("not the oldest ones were forgotten")
	}
}
