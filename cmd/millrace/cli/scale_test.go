package cli

import (
	"slices"
	"strings"
	"testing"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// Scale retires the workers that hold the least, and says by which commands there are more.
func TestScaleChoosesTheEmptiestWorkers(t *testing.T) {
	const active, drained, disconnected = millracev1.WorkerState_WORKER_STATE_ACTIVE, millracev1.WorkerState_WORKER_STATE_DRAINED, millracev1.WorkerState_WORKER_STATE_DISCONNECTED
	workers := []*millracev1.Worker{
		{WorkerId: 1, State: active, MemoryUsedBytes: 5}, {WorkerId: 2, State: active, MemoryUsedBytes: 1, SpilledBytes: 9}, {WorkerId: 3, State: active, MemoryUsedBytes: 7},
		{WorkerId: 4, State: active, MemoryUsedBytes: 5, AssignedTasks: 1},
		{WorkerId: 5, State: disconnected}, {WorkerId: 6, State: drained, Name: "away", Drain: &millracev1.WorkerDrain{Purpose: millracev1.DrainPurpose_DRAIN_PURPOSE_KEEP}},
		{WorkerId: 7, State: drained, Name: "ending", Drain: &millracev1.WorkerDrain{Purpose: millracev1.DrainPurpose_DRAIN_PURPOSE_RETIRE}},
	}
	refs, err := leaving(workers, 1, "host:1")
	var ids []uint32
	for _, r := range refs {
		ids = append(ids, r.GetId())
	}
	if err != nil || !slices.Equal(ids, []uint32{1, 4, 3}) {
		t.Errorf("%v %v", ids, err)
	}
	if refs, err := leaving(workers, 4, "host:1"); len(refs) != 0 || err != nil {
		t.Errorf("%v %v", refs, err)
	}
	_, err = leaving(workers, 6, "host:1")
	if err == nil {
		t.Fatal("two workers were started")
	}
	for _, want := range []string{"4 active workers", "`millrace worker host:1 --workers 2`", "`millrace drain --undo away`", "cluster.scale(6)"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %s", err, want)
		}
	}
	if _, err := leaving(workers[:4], 5, "host:1"); err == nil || strings.Contains(err.Error(), "--undo") {
		t.Errorf("without drained workers: %v", err)
	}
}
