package sched

import (
	"fmt"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// All keys are in one segment. There are enough of them that it uses both ways to place keys, while
// it grows and while it shrinks.
func TestKeysAreFoundInSegmentsOfAllSizes(t *testing.T) {
	m := New(Config{})
	now := time.Unix(1, 0)
	m.Step(now, ClientOpened{Client: 1, TTL: time.Hour}, nil)
	var keys []string
	for i := 0; len(keys) < 2*fewSlots; i++ {
		if key := fmt.Sprint(i); hashKey(key)>>keySegShift == 7 {
			keys = append(keys, key)
		}
	}
	var tasks []ids.TaskID
	index := func() *keyIndex { return &m.namespaces[""].keys }
	found := func(from, to int) {
		t.Helper()
		for i, key := range keys[:to] {
			want := ids.TaskID(0)
			if i >= from {
				want = tasks[i]
			}
			if got := index().find(m, key, hashKey(key)); got != want {
				t.Fatalf("with %d slots: key %s is task %d, not %d", len(index().segments[7].slots), key, got, want)
			}
		}
	}
	for i := range keys {
		r, _, err := m.Submit(now, GraphSubmitted{Client: 1, Ops: []OpSpec{{Kind: OpNative, Name: "f"}}, Tasks: []TaskSpec{{Key: keys[i], Hold: true}}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if tasks = append(tasks, r.Tasks...); i%1024 == 1023 {
			found(0, len(tasks))
		}
	}
	if slots := len(index().segments[7].slots); slots <= fewSlots {
		t.Fatalf("the segment has %d slots: it never placed keys in the other way", slots)
	}
	last := len(tasks) - 8
	for i := 0; i < last; i += 1024 {
		m.Step(now, TasksReleased{Client: 1, Tasks: tasks[i:min(i+1024, last)]}, nil)
		found(min(i+1024, last), len(tasks))
	}
	if slots := len(index().segments[7].slots); slots > fewSlots {
		t.Errorf("the segment has %d slots for 8 keys", slots)
	}
}
