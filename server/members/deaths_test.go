package members

import (
	"fmt"
	"testing"
	"time"
)

func TestTheNamesThatDiedLongestAgoAreForgotten(t *testing.T) {
	m, now := New(Config{}), time.Unix(0, 0)
	died := func(name string, incarnation int) {
		m.Step(now, Died{Name: name, Death: Death{Incarnation: fmt.Sprint(incarnation)}}, nil)
	}
	for i := range deadNames {
		died(fmt.Sprint(i), i)
	}
	died("0", deadNames) // The name that died first is the one that died last, too.
	for i := range 2 {
		died(fmt.Sprint(deadNames+i), deadNames+i)
	}
	for name, want := range map[string]int{"0": 2, "1": 0, "2": 0, "3": 1, fmt.Sprint(deadNames + 1): 1} {
		if n := len(m.Deaths(name)); n != want {
			t.Errorf("%d deaths of %s are remembered, want %d", n, name, want)
		}
	}
	if n := len(m.deaths.byName); n != deadNames || len(m.deaths.order) != n {
		t.Errorf("%d names are remembered, in a list of %d, want %d", n, len(m.deaths.order), deadNames)
	}
}
