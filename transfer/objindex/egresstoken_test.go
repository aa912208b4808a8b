package objindex

import (
	"testing"
	"time"

	"github.com/millrace/millrace/internal/monotonic"
)

func openTokens(t *testing.T, n int) []*EgressToken {
	t.Helper()
	file, err := newEgressToken()
	if err != nil {
		t.Fatal(err)
	}
	tokens := make([]*EgressToken, n)
	for i := range tokens {
		if tokens[i], err = OpenEgressToken(file, uint64(i)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, token := range tokens {
			if err := token.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := file.Close(); err != nil {
			t.Error(err)
		}
	})
	return tokens
}

func TestATokenHasOneHolderUntilItExpires(t *testing.T) {
	tokens := openTokens(t, 2)
	a, b := tokens[0], tokens[1]
	now := time.Unix(1_800_000_000, 0)
	at := func(ms int) time.Time { return now.Add(time.Duration(ms) * time.Millisecond) }
	if !a.Acquire(now, at(2)) {
		t.Fatal("a free token was not given")
	}
	if b.Acquire(at(1), at(3)) {
		t.Error("two readers have the token")
	}
	if !a.Acquire(at(1), at(3)) {
		t.Error("it was not extended")
	}
	if b.Acquire(at(2), at(4)) {
		t.Error("the token expired although it had been extended")
	}
	a.Release()
	if !b.Acquire(at(2), at(4)) {
		t.Error("it was released, and was not given")
	}
	a.Release() // the second call does nothing
	if a.Acquire(at(3), at(5)) {
		t.Error("a reader that had released the token released that of another one")
	}
	if !a.Acquire(at(5), at(6)) {
		t.Error("the token of a holder that stopped does not expire")
	}
	b.Release() // after the token expired
	if b.Acquire(at(5), at(6)) {
		t.Error("a late release took the token of the next holder")
	}
}

// TestATokenExpiresByTheMonotonicClock: a token must expire by the monotonic clock. Its holder may
// be dead, and the wall clock may be set back.
func TestATokenExpiresByTheMonotonicClock(t *testing.T) {
	now := time.Now()
	ends := time.Duration(tokenWord(now, 1)>>ownerBits) * tokenUnit
	if off := ends - time.Duration(monotonic.Of(now)); off > tokenUnit || off < -tokenUnit {
		t.Errorf("it ends at %v, %v from now by that clock", ends, off)
	}
}

func TestOnlyOneReaderHasTheToken(t *testing.T) {
	tokens := openTokens(t, 4)
	began := time.Now()
	var inside, both, rounds [4]int
	holder := make(chan struct{}, 1)
	done := make(chan int)
	for i, token := range tokens {
		go func() {
			for rounds[i] < 500 {
				if !token.Acquire(began, began.Add(time.Hour)) {
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
				token.Release()
			}
			done <- i
		}()
	}
	for range tokens {
		if i := <-done; both[i] > 0 || inside[i] != 500 {
			t.Errorf("reader %d had the token %d times, %d of them with another one", i, rounds[i], both[i])
		}
	}
}
