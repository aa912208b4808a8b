package lifecycle_test

import (
	"testing"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/worker/lifecycle"
)

func TestALargeAttemptAsksTheNextHolderInEachRound(t *testing.T) {
	// Worker 1 is unknown, 2 is known and does not lend, 3 lends.
	of := func(id ids.WorkerID) (known, lends bool) { return id != 1, id == 3 }
	for _, c := range []struct {
		holders []ids.WorkerID
		round   int
		large   bool
		want    ids.WorkerID
	}{
		{nil, 0, true, 0},
		{[]ids.WorkerID{1}, 0, true, 0},
		{[]ids.WorkerID{1, 2}, 0, false, 0},
		{[]ids.WorkerID{1, 2, 3}, 0, false, 3},
		{[]ids.WorkerID{1, 2, 3}, 0, true, 2},
		{[]ids.WorkerID{1, 2, 3}, 2, true, 3},
		{[]ids.WorkerID{1, 2, 3}, 3, true, 2},
	} {
		if got := lifecycle.Lender(c.holders, c.round, c.large, of); got != c.want {
			t.Errorf("holders %v, round %d, large %v: asks %v, want %v", c.holders, c.round, c.large, got, c.want)
		}
	}
}
