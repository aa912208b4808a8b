package objindex

import (
	"testing"
	"time"

	"github.com/millrace/millrace/internal/monotonic"
)

func openTurns(t *testing.T, n int) []*Turn {
	t.Helper()
	file, err := newTurn()
	if err != nil {
		t.Fatal(err)
	}
	turns := make([]*Turn, n)
	for i := range turns {
		if turns[i], err = OpenTurn(file, uint64(i)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, turn := range turns {
			if err := turn.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := file.Close(); err != nil {
			t.Error(err)
		}
	})
	return turns
}

func TestATurnIsOnesUntilItEnds(t *testing.T) {
	turns := openTurns(t, 2)
	a, b := turns[0], turns[1]
	now := time.Unix(1_800_000_000, 0)
	at := func(ms int) time.Time { return now.Add(time.Duration(ms) * time.Millisecond) }
	if !a.Take(now, at(2)) {
		t.Fatal("a free turn was not to be had")
	}
	if b.Take(at(1), at(3)) {
		t.Error("two have the turn")
	}
	if !a.Take(at(1), at(3)) {
		t.Error("it was not prolonged")
	}
	if b.Take(at(2), at(4)) {
		t.Error("the turn ended when it had been prolonged")
	}
	a.Give()
	if !b.Take(at(2), at(4)) {
		t.Error("it was given, and was not to be had")
	}
	a.Give() // the second call does nothing
	if a.Take(at(3), at(5)) {
		t.Error("who had given the turn back gave that of another")
	}
	if !a.Take(at(5), at(6)) {
		t.Error("the turn of one who does not go on does not end")
	}
	b.Give() // after the token expired
	if b.Take(at(5), at(6)) {
		t.Error("a late end took the next one's turn away")
	}
}

// TestATurnEndsByTheClockThatNobodySets: a token must expire by the monotonic clock. Its holder may
// be dead, and the wall clock may be set back.
func TestATurnEndsByTheClockThatNobodySets(t *testing.T) {
	now := time.Now()
	ends := time.Duration(turnWord(now, 1)>>ownerBits) * turnUnit
	if off := ends - time.Duration(monotonic.Of(now)); off > turnUnit || off < -turnUnit {
		t.Errorf("it ends at %v, %v from now by that clock", ends, off)
	}
}

func TestOnlyOneOfManyHasTheTurn(t *testing.T) {
	turns := openTurns(t, 4)
	began := time.Now()
	var inside, both, rounds [4]int
	holder := make(chan struct{}, 1)
	done := make(chan int)
	for i, turn := range turns {
		go func() {
			for rounds[i] < 500 {
				if !turn.Take(began, began.Add(time.Hour)) {
					continue
				}
				select {
				case holder <- struct{}{}:
					inside[i]++
					<-holder
				default:
					both[i]++
				}
				rounds[i]++
				turn.Give()
			}
			done <- i
		}()
	}
	for range turns {
		if i := <-done; both[i] > 0 || inside[i] != 500 {
			t.Errorf("reader %d had the turn %d times, %d of them with another one", i, rounds[i], both[i])
		}
	}
}
