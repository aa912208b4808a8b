package catalog

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/leaktest"
	"github.com/millrace/millrace/server/schedapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Patient{M: m}) }

func graph(id int, state schedapi.GraphState) *schedapi.Graph {
	return &schedapi.Graph{ID: ids.GraphID(id), State: state, Namespace: "n", Name: fmt.Sprint("g", id)}
}

func TestASnapshotNeverChanges(t *testing.T) {
	c := New()
	c.Update(func(b *Batch) { b.PutGraph(graph(1, schedapi.GraphRunning)) })
	before := c.Snapshot()
	revision := c.Update(func(b *Batch) {
		b.PutGraph(graph(1, schedapi.GraphSucceeded))
		b.PutGraph(graph(2, schedapi.GraphRunning))
	})
	if got := before.Graph(1).State; got != schedapi.GraphRunning || before.Graph(2) != nil {
		t.Errorf("the snapshot changed: graph 1 is %v, graph 2 is %v", got, before.Graph(2))
	}
	after := c.Snapshot()
	if after.Graph(1).State != schedapi.GraphSucceeded || after.Revision() != revision || revision != before.Revision()+1 {
		t.Errorf("after: %v at revision %d, snapshot at %d", after.Graph(1), revision, after.Revision())
	}
	if got := c.Update(func(*Batch) {}); got != revision {
		t.Errorf("an empty batch moved the revision from %d to %d", revision, got)
	}
}

func TestPagesCoverEverythingOnceWhateverChangesBetween(t *testing.T) {
	c := New()
	c.Update(func(b *Batch) {
		for i := 1; i <= 300; i++ {
			g := graph(i, schedapi.GraphRunning)
			if i%3 == 0 {
				g.State = schedapi.GraphFailed
			}
			b.PutGraph(g)
		}
	})
	filter := schedapi.GraphFilter{States: []schedapi.GraphState{schedapi.GraphRunning}, Namespace: "n"}
	var got []ids.GraphID
	after := ids.GraphID(0)
	for more := true; more; {
		var rows []*schedapi.Graph
		rows, more = c.Snapshot().Graphs(filter, after, 7)
		for _, row := range rows {
			got = append(got, row.ID)
			after = row.ID
		}
		c.Update(func(b *Batch) { b.RemoveGraph(after) })
	}
	if len(got) != 200 {
		t.Fatalf("%d rows in pages, want 200", len(got))
	}
	for i := 1; i < len(got); i++ {
		if got[i] <= got[i-1] {
			t.Fatalf("row %d comes after %d", got[i], got[i-1])
		}
	}
	if rows, more := c.Snapshot().Graphs(schedapi.GraphFilter{Client: 5}, 0, 10); len(rows) != 0 || more {
		t.Errorf("graphs of a client without any: %v, %v", rows, more)
	}
}

func TestRowsAreFoundByNameAndListedInOrder(t *testing.T) {
	c := New()
	c.Update(func(b *Batch) {
		for id, name := range map[ids.WorkerID]string{1: "w", 2: "w", 3: "w-1", 300: "w"} {
			state := schedapi.WorkerLost
			if id == 300 || id == 3 {
				state = schedapi.WorkerActive
			}
			b.PutWorker(&schedapi.Worker{ID: id, Name: name, State: state})
		}
		b.PutDataset(&schedapi.Dataset{Namespace: "a", Name: "z"})
		b.PutDataset(&schedapi.Dataset{Namespace: "ab", Name: "a"})
		b.PutDataset(&schedapi.Dataset{Namespace: "a", Name: "zz"})
		b.PutClient(&schedapi.Client{ID: 9})
	})
	s := c.Snapshot()
	if w := s.WorkerByName("w"); w == nil || w.ID != 300 {
		t.Errorf("newest incarnation: %v", w)
	}
	if w := s.WorkerByName("nobody"); w != nil {
		t.Errorf("a worker that does not exist: %v", w)
	}
	if rows, _ := s.Workers(nil, 0, 10); len(rows) != 2 || rows[0].ID != 3 {
		t.Errorf("workers that are not lost: %v", rows)
	}
	if rows, _ := s.Workers([]schedapi.WorkerState{schedapi.WorkerLost}, 1, 10); len(rows) != 1 || rows[0].ID != 2 {
		t.Errorf("lost workers after 1: %v", rows)
	}
	var names []string
	namespace, name := "", ""
	for more := true; more; {
		var rows []*schedapi.Dataset
		rows, more = s.Datasets("", namespace, name, 1)
		for _, row := range rows {
			namespace, name = row.Namespace, row.Name
			names = append(names, namespace+"/"+name)
		}
	}
	if fmt.Sprint(names) != "[a/z a/zz ab/a]" {
		t.Errorf("datasets: %v", names)
	}
	if s.Client(9) == nil || s.Dataset("a", "zz") == nil || s.Dataset("a", "zzz") != nil {
		t.Error("look-ups by key")
	}
}

func TestChangesResumeByRevision(t *testing.T) {
	c := New()
	everything := schedapi.Selection{Graphs: true, Workers: true, Datasets: true}
	first := c.Update(func(b *Batch) {
		b.PutGraph(graph(1, schedapi.GraphRunning))
		b.PutGraph(graph(2, schedapi.GraphRunning))
		b.PutWorker(&schedapi.Worker{ID: 1})
		b.PutDataset(&schedapi.Dataset{Namespace: "n", Name: "d"})
	})
	if changes := c.Snapshot().Changes(everything, 0); !changes.Snapshot || len(changes.Graphs) != 2 || changes.Revision != first {
		t.Errorf("from the beginning: %+v", changes)
	}
	if changes := c.Snapshot().Changes(everything, first); !changes.Empty() || changes.Snapshot {
		t.Errorf("nothing new: %+v", changes)
	}
	second := c.Update(func(b *Batch) {
		b.PutGraph(graph(2, schedapi.GraphFailed))
		b.RemoveGraph(1)
		b.RemoveGraph(1)
		b.RemoveWorker(1)
		b.RemoveDataset("n", "d")
		b.RemoveClient(4)
	})
	changes := c.Snapshot().Changes(everything, first)
	if len(changes.Graphs) != 1 || changes.Graphs[0].ID != 2 || fmt.Sprint(changes.RemovedGraphs, changes.RemovedWorkers, changes.RemovedDatasets) != "[g1] [w1] [d]" {
		t.Errorf("since the first: %+v", changes)
	}
	if some := c.Snapshot().Changes(schedapi.Selection{Graphs: true, GraphIDs: []ids.GraphID{7}}, first); !some.Empty() {
		t.Errorf("changes of other graphs: %+v", some)
	}
	c.Update(func(b *Batch) { b.PutDataset(&schedapi.Dataset{Namespace: "n", Name: "d"}) })
	if changes := c.Snapshot().Changes(everything, first); len(changes.RemovedDatasets) != 0 || len(changes.Datasets) != 1 {
		t.Errorf("a dataset that is back: %+v", changes)
	}
	if changes := c.Snapshot().Changes(everything, second+100); !changes.Snapshot {
		t.Errorf("a revision of another life: %+v", changes)
	}
}

func TestRemovalsThatAreForgottenForceASnapshot(t *testing.T) {
	c := New()
	all := schedapi.Selection{Graphs: true}
	start := c.Update(func(b *Batch) { b.PutGraph(graph(1, schedapi.GraphRunning)) })
	id := 10
	var middle uint64
	for range 3 {
		for range 2 {
			middle = c.Update(func(b *Batch) {
				for i := range 1000 {
					b.PutGraph(graph(id+i, schedapi.GraphRunning))
				}
			})
			c.Update(func(b *Batch) {
				for i := range 1000 {
					b.RemoveGraph(ids.GraphID(id + i))
				}
			})
			id += 1000
		}
	}
	if changes := c.Snapshot().Changes(all, start); !changes.Snapshot || len(changes.Graphs) != 1 {
		t.Errorf("after 6000 removals: snapshot %v with %d graphs", changes.Snapshot, len(changes.Graphs))
	}
	if changes := c.Snapshot().Changes(all, middle); changes.Snapshot || len(changes.RemovedGraphs) != 1000 {
		t.Errorf("the last removals: snapshot %v with %d removals", changes.Snapshot, len(changes.RemovedGraphs))
	}
}

func TestWaitWakesOnSelectedTablesOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New()
		woken := make(chan error, 1)
		wait := func(selection schedapi.Selection) {
			snapshot := c.Snapshot()
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			go func() {
				defer cancel()
				woken <- snapshot.Wait(ctx, selection)
			}()
			synctest.Wait()
		}
		wait(schedapi.Selection{Graphs: true, Datasets: true})
		c.Update(func(b *Batch) { b.PutWorker(&schedapi.Worker{ID: 1}) })
		synctest.Wait()
		select {
		case err := <-woken:
			t.Fatalf("woken by a worker: %v", err)
		default:
		}
		c.Update(func(b *Batch) { b.PutGraph(graph(1, schedapi.GraphRunning)) })
		if err := <-woken; err != nil {
			t.Errorf("a graph changed: %v", err)
		}
		wait(schedapi.Selection{Workers: true})
		if err := <-woken; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("nothing changed: %v", err)
		}
	})
}

// BenchmarkCommit measures a typical commit of a busy scheduler: a graph, four workers and a
// client.
func BenchmarkCommit(b *testing.B) {
	c := New()
	b.ReportAllocs()
	for i := range b.N {
		c.Update(func(batch *Batch) {
			batch.PutGraph(graph(1, schedapi.GraphRunning))
			for w := range 4 {
				batch.PutWorker(&schedapi.Worker{ID: ids.WorkerID(w + 1), Name: "w", FinishedTasks: uint64(i)})
			}
			batch.PutClient(&schedapi.Client{ID: 1})
		})
	}
}
