package cli

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vbauerster/mpb/v8"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// seen is a writer that closes done when both texts are written at once.
type seen struct {
	texts [2]string
	once  sync.Once
	done  chan struct{}
}

func (s *seen) Write(p []byte) (int, error) {
	if strings.Contains(string(p), s.texts[0]) && strings.Contains(string(p), s.texts[1]) {
		s.once.Do(func() { close(s.done) })
	}
	return len(p), nil
}

// A bar shows the progress that it was told, also when the total changes.
func TestBarsShowTheProgress(t *testing.T) {
	out := &seen{texts: [2]string{"2/3", "1 task running"}, done: make(chan struct{})}
	tell, stop := (&app{err: out}).bar("wait g1", mpb.WithAutoRefresh())
	defer stop()
	tell(1, 2, "2 tasks running")
	tell(2, 3, "1 task running")
	select {
	case <-out.done:
	case <-time.After(5 * time.Minute):
		t.Error("the bar does not show it")
	}
}

func TestProgressSaysWhatIsLeft(t *testing.T) {
	drain := func(tasks uint32, remaining, staying uint64) *millracev1.Worker {
		return &millracev1.Worker{AssignedTasks: tasks, Drain: &millracev1.WorkerDrain{RemainingObjects: remaining, RemainingBytes: remaining * 1000, StayingObjects: staying}}
	}
	for want, pending := range map[string][]*millracev1.Worker{
		"3 tasks to end, 5 results (4.9 KiB) to copy":               {drain(1, 2, 0), drain(2, 3, 0)},
		"1 result cannot be copied, see `millrace describe worker`": {drain(0, 0, 1)},
		"2 workers to end": {drain(0, 0, 0), drain(0, 0, 0)},
	} {
		if got := drainNote(pending); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	gone := drain(0, 0, 0)
	gone.State = millracev1.WorkerState_WORKER_STATE_DISCONNECTED
	var table strings.Builder
	drainTable(&table, []*millracev1.Worker{gone})
	if _, last, _ := strings.Cut(table.String(), "\n"); strings.ContainsAny(strings.TrimPrefix(last, "w0"), "0123456789") || !strings.HasSuffix(last, "\t\t\t\t\n") {
		t.Errorf("a worker that is away has figures: %q", last)
	}
	counts := &millracev1.TaskCounts{Waiting: 3, Ready: 1, Running: 2, Succeeded: 5, Failed: 1, Released: 7}
	done, of, note := graphProgress(counts)
	if line := progressLine("wait g3", done, of, 12*time.Second, note); line != "wait g3: 13 of 19 after 12 s: 2 tasks running, 1 failed or cancelled" {
		t.Error(line)
	}
	if line := progressLine("rebalance", 1, 2, 5*time.Second, ""); line != "rebalance: 1 of 2 after 5 s" {
		t.Error(line)
	}
}
