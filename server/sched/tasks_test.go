package sched

import (
	"fmt"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
)

// If a filter selects few of very many tasks, one call reads a bounded number of tasks, and all
// calls together find all matches.
func TestListsOfFewAmongManyTasksTakeTurns(t *testing.T) {
	m := New(Config{})
	now := time.Unix(1, 0)
	m.Step(now, ClientOpened{Client: 1, TTL: time.Hour}, nil)
	const tasks = 3*visitedTasks + 100
	event := GraphSubmitted{Client: 1, Ops: []OpSpec{{Kind: OpNative, Name: "f"}}}
	for i := range tasks {
		key := fmt.Sprint("task-", i)
		if i == tasks-50 || i == tasks-10 || i == 7 {
			key = fmt.Sprint("rare-", i)
		}
		event.Tasks = append(event.Tasks, TaskSpec{Key: key, Hold: true})
	}
	r, _, err := m.Submit(now, event, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, filter := range map[string]TaskFilter{"of all": {KeyPrefix: "rare-"}, "of a graph": {KeyPrefix: "rare-", Graph: r.Graph}} {
		var found []string
		calls := 0
		for after := ids.TaskID(0); ; {
			calls++
			some, next := m.Tasks(filter, after, 2)
			for i := range some {
				found = append(found, some[i].Key)
			}
			if next != 0 && next-after > visitedTasks+blockTasks {
				t.Errorf("%s: a call went from %d to %d", name, after, next)
			}
			if after = next; after == 0 {
				break
			}
		}
		if want := fmt.Sprintf("[rare-7 rare-%d rare-%d]", tasks-50, tasks-10); fmt.Sprint(found) != want || calls != 4 {
			t.Errorf("%s: %v in %d calls, want %s in 4", name, found, calls, want)
		}
	}
}
