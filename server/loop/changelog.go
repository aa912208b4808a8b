package loop

import (
	"slices"
	"sort"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
)

const (
	// resumable is the number of delivered changes that are kept, so that a stream that reconnects
	// can resume.
	resumable = 16384
	// leastChanges is the length at which a log is trimmed for the first time.
	leastChanges = 4 * resumable
)

// changeLog lists a client's task changes in order. Undelivered entries are bounded by the number
// of tasks, because trim keeps only the last change of each task. Delivered entries are bounded by
// resumable.
type changeLog struct {
	entries []change
	// revision is that of the last change. floor is the oldest revision after which a stream can
	// resume: every later change is in entries.
	revision, floor uint64
	limit           int
}

type change struct {
	task ids.TaskID
	// stamp is revision<<8 | state.
	stamp uint64
}

func (c change) revision() uint64       { return c.stamp >> 8 }
func (c change) state() sched.TaskState { return sched.TaskState(c.stamp & 0xff) }

func (g *changeLog) add(task ids.TaskID, state sched.TaskState) {
	g.revision++
	g.entries = append(g.entries, change{task, g.revision<<8 | uint64(state)})
}

func (g *changeLog) full() bool { return len(g.entries) >= max(g.limit, leastChanges) }

// canResume reports whether every change after a revision is still in the log.
func (g *changeLog) canResume(after uint64) bool { return after >= g.floor && after <= g.revision }

// after returns the changes after a revision, oldest first.
func (g *changeLog) after(revision uint64) []change {
	i := sort.Search(len(g.entries), func(i int) bool { return g.entries[i].revision() > revision })
	return g.entries[i:]
}

// trim drops the oldest delivered changes. If more than resumable changes are undelivered, it keeps
// only the last one of each task among them.
func (g *changeLog) trim(delivered uint64) {
	pending := g.after(delivered)
	old := g.entries[:len(g.entries)-len(pending)]
	if drop := len(old) - resumable; drop > 0 {
		g.floor = old[drop-1].revision()
		old = old[drop:]
	}
	kept := slices.Clone(old)
	if len(pending) > resumable {
		last := make(map[ids.TaskID]uint64, len(pending))
		for _, c := range pending {
			last[c.task] = c.revision()
		}
		for _, c := range pending {
			if last[c.task] == c.revision() {
				kept = append(kept, c)
			}
		}
	} else {
		kept = append(kept, pending...)
	}
	g.entries = kept
	g.limit = 2 * len(kept)
}
