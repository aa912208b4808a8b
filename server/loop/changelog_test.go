package loop

import (
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/leaktest"
	"github.com/millrace/millrace/server/sched"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Patient{M: m}) }

func TestALogThatNobodyReadsIsBoundedByTheTasks(t *testing.T) {
	var log changeLog
	const tasks = 1000
	longest := 0
	for i := range 1_000_000 {
		log.add(ids.TaskID(i%tasks), sched.TaskRunning)
		if log.full() {
			log.trim(0)
		}
		longest = max(longest, len(log.entries))
	}
	if longest > leastChanges {
		t.Errorf("%d entries for %d tasks", longest, tasks)
	}
	last := map[ids.TaskID]uint64{}
	for _, change := range log.after(0) {
		last[change.task] = change.revision()
	}
	for task := range ids.TaskID(tasks) {
		if want := uint64(1_000_000-tasks) + uint64(task) + 1; last[task] != want {
			t.Fatalf("task %d: last change at revision %d, want %d", task, last[task], want)
		}
	}
}

func TestDeliveredChangesCanBeResumedForAWhile(t *testing.T) {
	var log changeLog
	for i := range 10 * leastChanges {
		log.add(ids.TaskID(i), sched.TaskSucceeded)
		if log.full() {
			log.trim(log.revision)
		}
	}
	if len(log.entries) > leastChanges || !log.canResume(log.revision-resumable) || log.canResume(1) {
		t.Errorf("%d entries, floor %d of %d", len(log.entries), log.floor, log.revision)
	}
}

// A reader that reads some changes from time to time ends with the last state of every task,
// whatever was trimmed between its reads.
func TestAReaderOfATrimmedLogMissesNoLastChange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var log changeLog
		state, seen := map[ids.TaskID]uint64{}, map[ids.TaskID]uint64{}
		cursor := uint64(0)
		read := func(limit int) {
			for _, change := range log.after(cursor) {
				if limit--; limit < 0 {
					return
				}
				cursor = change.revision()
				seen[change.task] = change.revision()
			}
		}
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0, 1:
				task := ids.TaskID(rapid.IntRange(0, 5).Draw(t, "task"))
				for range rapid.SampledFrom([]int{1, 1, 5, leastChanges}).Draw(t, "times") {
					log.add(task, sched.TaskRunning)
				}
				state[task] = log.revision
			case 2:
				log.trim(cursor)
			case 3:
				read(rapid.IntRange(0, 20).Draw(t, "limit"))
			}
			if !log.canResume(cursor) {
				t.Fatalf("the reader at %d cannot go on: floor %d", cursor, log.floor)
			}
		}
		read(1 << 30)
		for task, revision := range state {
			if seen[task] != revision {
				t.Fatalf("task %d changed last at %d, the reader saw %d", task, revision, seen[task])
			}
		}
	})
}
