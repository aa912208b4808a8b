package loop

import (
	"slices"
	"sort"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
)

const (
	// resumable is how many delivered changes are kept for streams that come back.
	resumable = 16384
	// leastChanges is the length at which a log is first trimmed.
	leastChanges = 4 * resumable
)

// changeLog is the order in which a client's tasks changed. What has not been delivered is bounded by the number of
// tasks (only the last change of each is kept when the log is trimmed), what has been by resumable.
type changeLog struct {
	entries []change
	// revision of the last change, and the oldest that can be resumed after: every later change is in entries.
	revision, floor uint64
	limit           int
}

type change struct {
	task ids.TaskID
	// stamp is the revision, shifted by 8 bits, and the state.
	stamp uint64
}

func (c change) revision() uint64       { return c.stamp >> 8 }
func (c change) state() sched.TaskState { return sched.TaskState(c.stamp & 0xff) }

func (g *changeLog) add(task ids.TaskID, state sched.TaskState) {
	g.revision++
	g.entries = append(g.entries, change{task, g.revision<<8 | uint64(state)})
}

func (g *changeLog) full() bool { return len(g.entries) >= max(g.limit, leastChanges) }

// canResume says that every change after a revision is known.
func (g *changeLog) canResume(after uint64) bool { return after >= g.floor && after <= g.revision }

// after returns the changes after a revision, oldest first.
func (g *changeLog) after(revision uint64) []change {
	i := sort.Search(len(g.entries), func(i int) bool { return g.entries[i].revision() > revision })
	return g.entries[i:]
}

// trim drops old delivered changes, and all but the last change of each task among the others.
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
