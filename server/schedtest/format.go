package schedtest

import (
	"fmt"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
)

// formatEffect formats an effect as text, with the name of its task.
func formatEffect(m *sched.Machine, e sched.Effect, name func(ids.TaskID) string) string {
	task := name(e.Task)
	switch e.Kind {
	case sched.EffectAssign:
		line := fmt.Sprintf("assign %s %s to %s", task, e.Attempt, e.Worker)
		var a sched.Assignment
		if m.AssignmentOf(e.Task, &a) {
			separator := " before "
			for _, in := range a.Inputs {
				if in.Pending {
					line += separator + name(in.Task)
					separator = " "
				}
			}
		}
		return line
	case sched.EffectRetract:
		return fmt.Sprintf("retract %s %s from %s", task, e.Attempt, e.Worker)
	case sched.EffectCancel:
		return fmt.Sprintf("cancel %s %s at %s", task, e.Attempt, e.Worker)
	case sched.EffectRelease:
		return fmt.Sprintf("release %s %s at %s", task, e.Attempt, e.Worker)
	case sched.EffectNotify:
		return fmt.Sprintf("notify %s: %s %s", e.Client, task, e.State)
	case sched.EffectClientExpired:
		return fmt.Sprintf("expired %s", e.Client)
	case sched.EffectGraphChanged:
		if e.Failed {
			return fmt.Sprintf("changed %s, failed", e.Graph)
		}
		return fmt.Sprintf("changed %s", e.Graph)
	case sched.EffectGraphRemoved:
		return fmt.Sprintf("removed %s", e.Graph)
	case sched.EffectFunctionUnused:
		return fmt.Sprintf("unused %s", e.Function.String()[:8])
	case sched.EffectRescue:
		return fmt.Sprintf("rescue %s %s of %s by %s", task, e.Attempt, e.Dead, e.Worker)
	case sched.EffectUnmap:
		return fmt.Sprintf("unmap %s at %s", e.Dead, e.Worker)
	case sched.EffectDrained:
		return fmt.Sprintf("drained %s", e.Worker)
	case sched.EffectKeep:
		return fmt.Sprintf("keep %s %s at %s", task, e.Attempt, e.Worker)
	case sched.EffectRetire:
		return fmt.Sprintf("retire %s", e.Worker)
	case sched.EffectRestart:
		return fmt.Sprintf("restart %s", e.Worker)
	case sched.EffectWorkerChanged:
		info, _ := m.Worker(e.Worker)
		return fmt.Sprintf("changed %s: %s", e.Worker, info.State)
	case sched.EffectRebalanceEnded:
		return "rebalance ended"
	case sched.EffectAccept:
		return fmt.Sprintf("accept %s %s at %s", task, e.Attempt, e.Worker)
	case sched.EffectFreeSlot:
		return fmt.Sprintf("free slot of %s %s at %s", task, e.Attempt, e.Worker)
	case sched.EffectOrdersChanged:
		return fmt.Sprintf("orders %+v", m.ChangedOrders())
	case sched.EffectTaskForgotten:
		return fmt.Sprintf("forgotten %s", task)
	}
	return fmt.Sprintf("unknown effect %d", e.Kind)
}

func name(m *sched.Machine, id ids.TaskID) string {
	if info, ok := m.Task(id); ok {
		return info.Key
	}
	return id.String()
}
