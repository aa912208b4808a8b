package sim

import (
	"container/heap"
	"testing"
	"time"
)

// A loan ends with its borrower, even if it was broken before.
func TestABrokenLoanEndsWithItsBorrower(t *testing.T) {
	w := &world{}
	l := &loan{lender: &process{w: w, lent: map[*loan]bool{}}, borrower: &process{w: w}, broken: true}
	l.lender.lent[l] = true
	l.renew()
	if len(l.lender.lent) != 1 {
		t.Error("the loan of a living borrower has ended by itself")
	}
	l.borrower.dead = true
	for len(w.queue) > 0 {
		heap.Pop(&w.queue).(entry).run()
	}
	if len(l.lender.lent) > 0 {
		t.Error("the lender still has a loan of a dead borrower")
	}
}

// The bytes of a dead lender are protected if the lease held when it died: a lender that was
// suspended for longer than the lease may have freed them before.
func TestALoanOfADeadLenderHeldIfItsLeaseDid(t *testing.T) {
	w := &world{}
	over := time.Time{}.Add(leaseTime)
	for _, c := range []struct {
		died time.Time
		held bool
	}{{over.Add(-1), true}, {over, false}, {over.Add(time.Second), false}} {
		l := &loan{lender: &process{w: w, dead: true, died: c.died}, borrower: &process{w: w}, until: over, garbled: !c.held}
		if held := l.end(); held != c.held {
			t.Errorf("a lender that died %v after the end of the lease: held is %v", c.died.Sub(over), held)
		}
	}
}
