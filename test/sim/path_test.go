package sim

import (
	"container/heap"
	"testing"
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
