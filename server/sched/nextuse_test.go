package sched_test

import (
	"slices"
	"testing"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
)

func TestNextUsesAreTheLowestRanksOfReaders(t *testing.T) {
	c := newCluster(1)
	tasks := c.submit([]sched.TaskSpec{{Key: "read"}, {Key: "late", Inputs: []string{"read"}}, {Key: "early", Inputs: []string{"read"}}})
	end := func(bytes uint64, which ...ids.TaskID) {
		for i := 0; i < len(c.pending[0]); i++ {
			if r := c.pending[0][i]; slices.Contains(which, r.Task) {
				c.pending[0] = slices.Delete(c.pending[0], i, i+1)
				i--
				r.OutputBytes = bytes
				c.step(sched.TasksReported{Worker: 1, Reports: []sched.Report{r}})
			}
		}
	}
	end(1<<20, tasks[0])
	var ranks []uint64
	for _, id := range tasks[1:] {
		c.m.AssignmentOf(id, &c.a)
		ranks = append(ranks, c.a.Rank)
	}
	want := []sched.NextUse{{Task: tasks[0], Generation: 1, Rank: slices.Min(ranks)}}
	if got := c.m.NextUses(1, nil); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	// The first reader has read the object. The reader's own result is too small to be listed.
	first := tasks[1+slices.Index(ranks, slices.Min(ranks))]
	end(100, first)
	want[0].Rank = slices.Max(ranks)
	if got := c.m.NextUses(1, nil); !slices.Equal(got, want) {
		t.Errorf("after one reader: got %v, want %v", got, want)
	}
	if got := c.m.NextUses(9, nil); len(got) != 0 {
		t.Errorf("of a worker that is not there: %v", got)
	}
}
