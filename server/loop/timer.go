package loop

import (
	"container/heap"
	"time"
)

// timers is a queue of closures, earliest first. Timers are never cancelled: a closure checks
// whether it is still needed, and sets its next timer itself.
type timers struct{ queue timerQueue }

type timer struct {
	at  time.Time
	run func(at time.Time)
}

func (t *timers) at(when time.Time, run func(at time.Time)) {
	heap.Push(&t.queue, timer{when, run})
}

func (t *timers) next() (time.Time, bool) {
	if len(t.queue) == 0 {
		return time.Time{}, false
	}
	return t.queue[0].at, true
}

func (t *timers) pop() func(time.Time) { return heap.Pop(&t.queue).(timer).run }

type timerQueue []timer

func (q timerQueue) Len() int           { return len(q) }
func (q timerQueue) Less(i, j int) bool { return q[i].at.Before(q[j].at) }
func (q timerQueue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *timerQueue) Push(x any)        { *q = append(*q, x.(timer)) }
func (q *timerQueue) Pop() any {
	old := *q
	last := old[len(old)-1]
	old[len(old)-1] = timer{}
	*q = old[:len(old)-1]
	return last
}
