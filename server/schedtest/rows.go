package schedtest

import (
	"fmt"
	"strings"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
)

// formatRow formats a row as text, with the names of its tasks.
func formatRow(r sched.Row, name func(ids.TaskID) string) string {
	names := func(tasks []ids.TaskID) string {
		list := make([]string, len(tasks))
		for i, id := range tasks {
			list[i] = name(id)
		}
		return strings.Join(list, " ")
	}
	switch r := r.(type) {
	case *sched.GraphPut:
		return fmt.Sprintf("row graph %s of %s", r.Graph, r.Client)
	case *sched.GraphEnded:
		return fmt.Sprintf("row graph %s ended", r.Graph)
	case *sched.GraphDropped:
		return fmt.Sprintf("row graph %s dropped", r.Graph)
	case *sched.GraphDeleted:
		return fmt.Sprintf("row graph %s deleted", r.Graph)
	case *sched.TasksPut:
		return formatTasks(r, name)
	case *sched.TasksEnded:
		line := "row " + r.State.String()
		for _, ref := range r.Tasks {
			line += fmt.Sprintf(" %s %s", name(ref.Task), ref.Attempt)
		}
		if r.Err != nil {
			line += ": " + r.Err.Reason
		}
		return line
	case *sched.DataPut:
		return fmt.Sprintf("row data of %s: %d bytes, %q", name(r.Task), r.Bytes, r.Inline)
	case *sched.TaskTroubled:
		return fmt.Sprintf("row trouble of %s: %d retries, %d deaths, %d kills, %d early, %d reschedules, causes %q", name(r.Task), r.Retries, r.Deaths, r.Kills, r.Early, r.Reschedules, r.Causes)
	case *sched.TasksForgotten:
		return "row forgotten " + names(r.Tasks)
	case *sched.RunHoldsPut:
		return "row runs " + names(r.Tasks)
	case *sched.HoldsPut:
		return fmt.Sprintf("row %s holds %s", r.Holder, names(r.Tasks))
	case *sched.HoldsDeleted:
		return fmt.Sprintf("row %s releases %s", r.Holder, names(r.Tasks))
	case *sched.HolderDeleted:
		return fmt.Sprintf("row %s is gone", r.Holder)
	case *sched.RequestPut:
		return fmt.Sprintf("row request %s of %s: %s", r.Request, r.Client, names(r.Tasks))
	}
	return fmt.Sprintf("row %T", r)
}

// formatTasks formats tasks with their ops and inputs: "a data; b op < a l[2/4]".
func formatTasks(r *sched.TasksPut, name func(ids.TaskID) string) string {
	var list []string
	inputs := r.Inputs
	for _, t := range r.Tasks {
		line := t.Key + " " + r.Ops[t.Op].Name
		if r.Ops[t.Op].Kind == sched.OpData {
			line = t.Key + " data"
		}
		for i, in := range inputs[:t.Inputs] {
			if i == 0 {
				line += " <"
			}
			line += " " + name(in.Task)
			if in.Item != 0 {
				line += fmt.Sprintf("[%d/%d]", in.Item-1, in.Count)
			}
		}
		inputs = inputs[t.Inputs:]
		if t.RunHold {
			line += " runs"
		}
		list = append(list, line)
	}
	return fmt.Sprintf("row tasks of %s: %s", r.Graph, strings.Join(list, "; "))
}
