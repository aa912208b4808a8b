package sched

// keptWork bounds the capacity that a work list keeps between steps.
const keptWork = 1 << 14

// heap is a binary heap; pop returns the least element. container/heap would allocate for each
// value that goes in and for each that comes out. Ready tasks have their own queue type, because
// they mostly arrive in order.
type heap[T interface{ Before(other T) bool }] []T

func (q *heap[T]) push(x T) {
	h := append(*q, x)
	i := len(h) - 1
	for i > 0 && x.Before(h[(i-1)/2]) {
		h[i] = h[(i-1)/2]
		i = (i - 1) / 2
	}
	h[i] = x
	*q = h
}

// pop removes and returns the least element. An empty heap keeps no capacity beyond keptWork.
// REQUIRES: the heap is not empty.
func (q *heap[T]) pop() T {
	h := *q
	first, last := h[0], h[len(h)-1]
	if h = h[:len(h)-1]; len(h) == 0 {
		if cap(h) > keptWork {
			h = nil
		}
		*q = h
		return first
	}
	i := 0
	for c := 1; c < len(h); c = 2*i + 1 {
		if c+1 < len(h) && h[c+1].Before(h[c]) {
			c++
		}
		if !h[c].Before(last) {
			break
		}
		h[i] = h[c]
		i = c
	}
	h[i] = last
	*q = h
	return first
}
