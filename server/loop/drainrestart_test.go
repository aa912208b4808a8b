package loop_test

import (
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/copies"
	"github.com/millrace/millrace/server/loop"
	"github.com/millrace/millrace/server/sched"
)

// drained returns the reason of a worker's drain; false: it has none.
func (s *start) drained(w *worker) (reason string, is bool) {
	s.t.Helper()
	snapshot, err := s.Snapshot(s.t.Context())
	s.must(err)
	if row := snapshot.Worker(w.Worker()); row.Drain != nil {
		return row.Drain.Reason, true
	}
	return "", false
}

// An order to drain a worker holds for its name until it is undone, whichever scheduler runs.
// (docs/running.md: orders to drain.)
func TestOrdersToDrainOutliveTheScheduler(t *testing.T) {
	s := fresh(t)
	w, other := s.join("w", nil), s.join("other", nil)
	s.must(s.DrainWorkers(t.Context(), sched.DrainOrdered{Workers: []ids.WorkerID{w.Worker(), other.Worker()}, Purpose: copies.DrainKeep, Reason: "a loud fan"}))
	s.must(s.UndoDrains(t.Context(), []string{"other"}))
	s = s.restart()
	w, other = s.join("w", w), s.join("other", other)
	if reason, drained := s.drained(w); !drained || reason != "a loud fan" {
		t.Errorf("after a restart the worker is drained: %t, because of %q", drained, reason)
	}
	if reason, drained := s.drained(other); drained {
		t.Errorf("a worker whose drain was undone is drained because of %q", reason)
	}
	s.must(s.UndoDrains(t.Context(), []string{"w"}))
	s = s.restart()
	if reason, drained := s.drained(s.join("w", w)); drained {
		t.Errorf("after the drain was undone, the worker is drained because of %q", reason)
	}
}

// A drained worker that has not come back since a restart of the scheduler is shown with its drain,
// until that is undone.
func TestAnAbsentWorkerIsShownWithItsDrain(t *testing.T) {
	s := begin(t, newDirectory(t), loop.Config{RestartGrace: time.Hour})
	w, other := s.join("w", nil), s.join("other", nil)
	s.must(s.DrainWorkers(t.Context(), sched.DrainOrdered{Workers: []ids.WorkerID{w.Worker()}, Purpose: copies.DrainKeep, Reason: "a loud fan"}))
	s = s.restart()
	if reason, drained := s.drained(w); !drained || reason != "a loud fan" {
		t.Errorf("the absent worker is drained: %t, because of %q", drained, reason)
	}
	if reason, drained := s.drained(other); drained {
		t.Errorf("a worker without an order is drained because of %q", reason)
	}
	s.must(s.UndoDrains(t.Context(), []string{"w"}))
	if reason, drained := s.drained(w); drained {
		t.Errorf("after the drain was undone, the absent worker is drained because of %q", reason)
	}
}
