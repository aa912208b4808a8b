package inbox_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/millrace/millrace/worker/inbox"
)

// woken says whether the owner is woken, and takes the signal.
func woken(b *inbox.Inbox) bool {
	select {
	case <-b.Woken():
		return true
	default:
		return false
	}
}

func TestTheOwnerGetsAllEventsInOrder(t *testing.T) {
	b := inbox.New()
	for i := range 3 {
		if n := b.Put(i); n != i+1 {
			t.Errorf("event %d is number %d of those that wait", i, n)
		}
	}
	if got := b.Take(); !slices.Equal(got, []any{0, 1, 2}) {
		t.Errorf("took %v", got)
	} else {
		b.Reuse(got)
	}
	if b.Waiting() {
		t.Error("events wait that were taken")
	}
	if n := b.Put(3); n != 1 {
		t.Errorf("the first event after Take is number %d", n)
	}
	if got := b.Take(); !slices.Equal(got, []any{3}) {
		t.Errorf("took %v", got)
	}
}

// The slice that the owner has taken is its own until Reuse, whatever is posted meanwhile.
func TestEventsThatArriveWhileTheOwnerWorksWait(t *testing.T) {
	b := inbox.New()
	for round := range 4 {
		b.Put(round)
		taken := b.Take()
		b.Put(-round)
		if !slices.Equal(taken, []any{round}) {
			t.Fatalf("round %d: the owner has %v", round, taken)
		}
		b.Reuse(taken)
		if got := b.Take(); !slices.Equal(got, []any{-round}) {
			t.Fatalf("round %d: then took %v", round, got)
		}
	}
}

func TestOnlyPostWakesTheOwner(t *testing.T) {
	b := inbox.New()
	if b.Put(1); woken(b) {
		t.Error("Put has woken the owner")
	}
	b.Post(2)
	b.Post(3)
	b.WakeOwner()
	if !woken(b) {
		t.Error("Post has not woken the owner")
	}
	if woken(b) {
		t.Error("there are two signals, and room for one")
	}
	if got := b.Take(); !slices.Equal(got, []any{1, 2, 3}) {
		t.Errorf("took %v", got)
	}
}

func TestTakeFirstLeavesTheRestInOrder(t *testing.T) {
	b := inbox.New()
	for i := range 6 {
		b.Put(i)
	}
	even := func(x any) bool { return x.(int)%2 == 0 }
	if got := b.TakeFirst(even); !slices.Equal(got, []any{0, 2, 4}) {
		t.Errorf("took %v first", got)
	}
	if got := b.TakeFirst(even); got != nil {
		t.Errorf("took %v, which were taken before", got)
	}
	b.Put(6)
	if got := b.Take(); !slices.Equal(got, []any{1, 3, 5, 6}) {
		t.Errorf("then took %v", got)
	}
}

// Goroutines post while the owner takes: each event comes once, those of one goroutine in order,
// and the owner is woken for the last.
func TestNothingIsLostBetweenGoroutines(t *testing.T) {
	const posters, each = 4, 1000
	type event struct{ poster, number int }
	b := inbox.New()
	var running sync.WaitGroup
	for p := range posters {
		running.Go(func() {
			for n := range each {
				b.Post(event{p, n})
			}
		})
	}
	var next [posters]int
	for total := 0; total < posters*each; {
		<-b.Woken() // a lost signal would end the test by its time limit
		batch := b.Take()
		total += len(batch)
		for _, x := range batch {
			e := x.(event)
			if e.number != next[e.poster] {
				t.Fatalf("poster %d sent %d, and %d was due", e.poster, e.number, next[e.poster])
			}
			next[e.poster]++
		}
		b.Reuse(batch)
	}
	running.Wait()
	if b.Waiting() {
		t.Error("more events wait than were posted")
	}
}
