package sched

import "testing"

func TestItemCount(t *testing.T) {
	for n := range uint32(16) {
		if got := itemCountOf(n).number(); got != n {
			t.Errorf("%d became %d", n, got)
		}
	}
	for n := uint32(16); n < maxItems; n += n/7 + 1 {
		if got := itemCountOf(n).number(); got > n || got < n-n/8 {
			t.Errorf("%d became %d", n, got)
		}
	}
	if got := itemCountOf(maxItems - 1).number(); got != 15<<20 {
		t.Errorf("the largest became %d", got)
	}
}

func TestBytesOfItems(t *testing.T) {
	p := &task{output: 1001}
	for _, c := range []struct {
		e    edge
		want uint64
	}{
		{edge{}, 1001},
		{edge{count: itemCountOf(10)}, 1001},
		{edge{item: 3}, 1001},
		{edge{item: 3, count: itemCountOf(10)}, 101},
	} {
		if got := c.e.bytesOf(p); got != c.want {
			t.Errorf("item %d of %d: %d bytes, want %d", c.e.item, c.e.count.number(), got, c.want)
		}
	}
}
