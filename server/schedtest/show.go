package schedtest

import (
	"fmt"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/copies"
	"github.com/millrace/millrace/server/sched"
)

// show executes the verbs that only read.
func (s *Script) show(a args) string {
	var b strings.Builder
	switch a.d.Cmd {
	case "deadline":
		if at, ok := s.M.NextDeadline(); ok {
			return fmt.Sprintf("in %s\n", at.Sub(s.now))
		}
		return "none\n"
	case "states", "list":
		f := sched.TaskFilter{State: sched.TaskState(a.number("state", 0)), Graph: ids.GraphID(a.number("graph", 0)),
			Op: a.text("op", ""), KeyPrefix: a.text("keys", ""), Worker: ids.WorkerID(a.number("worker", 0))}
		if a.d.HasArg("client") {
			f.Client = a.client()
		}
		tasks, next := s.M.Tasks(f, ids.TaskID(a.number("after", 0)), int(a.number("limit", 1000)))
		for i := range tasks {
			b.WriteString(formatTask(&tasks[i]) + "\n")
		}
		if next != 0 {
			b.WriteString("more\n")
		}
		if b.Len() == 0 {
			return "none\n"
		}
	case "task":
		info, ok := s.M.Task(s.task(a.first()))
		if !ok {
			return "unknown\n"
		}
		fmt.Fprintf(&b, "%s\n", formatTask(&info))
		fmt.Fprintf(&b, "inputs %v missing %d, needed %d times, holders %d\n", info.Inputs, info.MissingInputs, info.WaitingDependents, info.Holders)
		if info.Err != nil {
			attempts := ""
			if n := info.Err.Attempts; n > 1 {
				attempts = fmt.Sprintf(" of %d", n)
			}
			fmt.Fprintf(&b, "%s: %s (origin %s, worker %s, %s%s)\n", info.Err.Reason, info.Err.Message, info.Err.OriginKey, info.Err.Worker, info.Err.Attempt, attempts)
		}
		if info.Linalg != "" {
			fmt.Fprintf(&b, "computed with %s\n", info.Linalg)
		}
		if info.RetriesUsed+info.WorkerDeaths > 0 {
			fmt.Fprintf(&b, "retries %d, deaths %d\n", info.RetriesUsed, info.WorkerDeaths)
		}
	case "explain":
		e, ok := s.M.Explain(s.now, s.task(a.first()))
		if !ok {
			return "unknown\n"
		}
		fmt.Fprintf(&b, "%s: %s\n", e.Status, e.Text)
		for _, v := range e.Workers {
			fmt.Fprintf(&b, "  %s feasible %v %s queue %.4fs missing %d transfer %.4fs finish %.4fs\n", v.Name, v.Feasible, v.Reason, v.QueueSeconds, v.MissingBytes, v.TransferSeconds, v.FinishSeconds)
			for _, from := range v.Sources {
				fmt.Fprintf(&b, "    %d bytes from %s\n", from.Bytes, from.Worker)
			}
		}
	case "history":
		for _, l := range s.M.History(s.task(a.first())) {
			b.WriteString(l + "\n")
		}
	case "graph":
		g, ok := s.M.Graph(ids.GraphID(number(a.t, a.d, a.first())))
		if !ok {
			return "unknown\n"
		}
		fmt.Fprintf(&b, "%s %s client %s counts %v ended %v\n", g.Graph, g.Name, g.Client, g.Counts, !g.EndedAt.IsZero())
		if !g.ExpiresAt.IsZero() {
			fmt.Fprintf(&b, "expires in %s\n", g.ExpiresAt.Sub(s.now))
		}
		if g.FirstError != nil {
			fmt.Fprintf(&b, "first error %s of %s\n", g.FirstError.Reason, g.FirstError.OriginKey)
		}
		for _, p := range g.Ops {
			fmt.Fprintf(&b, "  %s %v run %s bytes %d\n", p.Name, p.Counts, p.RunTime, p.OutputBytes)
		}
	case "totals":
		t := s.M.Totals()
		fmt.Fprintf(&b, "tasks %d %v graphs %d clients %d workers %d ready %d inline %d\n", t.Tasks, t.Counts, t.Graphs, t.Clients, t.Workers, t.ReadyQueued, t.InlineBytes)
		fmt.Fprintf(&b, "submitted %d forgotten %d assigned %d succeeded %d failed %d cancelled %d retracted %d recomputed %d rescued %d stale %d\n",
			t.Submitted, t.Forgotten, t.Assigned, t.Succeeded, t.Failed, t.Cancelled, t.Retracted, t.Recomputed, t.Rescued, t.Stale)
	case "assignment":
		var as sched.Assignment
		if !s.M.AssignmentOf(s.task(a.first()), &as) {
			return "none\n"
		}
		fmt.Fprintf(&b, "%s %s op %s args %q slots %d timeout %s output %d\n", as.Key, as.Attempt, s.M.Op(as.Op).Name, as.Arguments, as.Slots, as.Timeout, as.ExpectedOutputBytes)
		for _, in := range as.Inputs {
			fmt.Fprintf(&b, "  %s %s %d bytes from %v inline %q", name(s.M, in.Task), in.Generation, in.Bytes, in.Holders, in.Inline)
			if in.Item != 0 {
				fmt.Fprintf(&b, " item %d of %d", in.Item-1, in.Count)
			}
			if in.Upstream != 0 {
				fmt.Fprintf(&b, " upstream %s", in.Upstream)
			}
			if in.Downstream {
				b.WriteString(" downstream")
			}
			b.WriteByte('\n')
		}
	case "worker-info":
		w, ok := s.M.Worker(ids.WorkerID(number(a.t, a.d, a.first())))
		if !ok {
			return "unknown\n"
		}
		fmt.Fprintf(&b, "%s %s %s slots %d assigned %d running %d objects %d finished %d memory %d of %d\n",
			w.Worker, w.Name, w.State, w.Slots, w.Assigned, w.Running, w.Objects, w.Finished, w.MemoryUsedBytes, w.MemoryBytes)
		if d := w.Drain; d != nil {
			fmt.Fprintf(&b, "drain to %s: %q", d.Purpose, d.Reason)
			if !d.Until.IsZero() {
				fmt.Fprintf(&b, " for %s more", d.Until.Sub(s.now))
			}
			fmt.Fprintf(&b, ", copied %d (%d bytes), remaining %d (%d bytes), staying %d (%d bytes)\n",
				d.CopiedObjects, d.CopiedBytes, d.RemainingObjects, d.RemainingBytes, d.StayingObjects, d.StayingBytes)
			for _, o := range d.Staying {
				fmt.Fprintf(&b, "  %s stays: %s\n", o.Key, o.Reason)
			}
		}
	case "rebalance-info":
		info := s.M.Rebalance()
		return formatRebalance(&info)
	case "update":
		u, ok := s.M.UpdateOf(s.task(a.first()))
		if !ok {
			return "unknown\n"
		}
		fmt.Fprintf(&b, "%s %d bytes inline %q worker %s generation %s\n", u.State, u.OutputBytes, u.Inline, u.Worker, u.Generation)
	case "held":
		s.M.HeldBy(a.client(), func(id ids.TaskID) { b.WriteString(name(s.M, id) + "\n") })
		fmt.Fprintf(&b, "%d\n", s.M.HeldCount(a.client()))
	default:
		a.d.Fatalf(a.t, "unknown verb %s", a.d.Cmd)
	}
	return b.String()
}

func formatRebalance(i *copies.RebalanceInfo) string {
	var b strings.Builder
	fmt.Fprintf(&b, "rebalance %d: planned %d (%d bytes), moved %d (%d bytes), failed %d (%d bytes), done %v\n",
		i.Number, i.PlannedObjects, i.PlannedBytes, i.MovedObjects, i.MovedBytes, i.FailedObjects, i.FailedBytes, i.Done)
	for _, w := range i.Workers {
		fmt.Fprintf(&b, "  %s %s: %d bytes, then %d, at first %d, staying %d, of %d\n", w.Worker, w.Name, w.HeldBytes, w.PlannedBytes, w.InitialBytes, w.StayingBytes, w.MemoryBytes)
	}
	for _, f := range i.Failures {
		fmt.Fprintf(&b, "  %s (%d bytes) from %s to %s: %s\n", f.Key, f.Bytes, f.From, f.To, f.Reason)
	}
	return b.String()
}

func formatTask(t *sched.TaskInfo) string {
	text := fmt.Sprintf("%s %s %s", t.Key, t.State, t.Attempt)
	if t.Worker != 0 {
		text += " at " + t.Worker.String()
	}
	if t.State == sched.TaskRescuing {
		text += fmt.Sprintf(" %d bytes", t.OutputBytes)
	}
	if t.State == sched.TaskSucceeded {
		text += fmt.Sprintf(" %d bytes on %v", t.OutputBytes, t.Replicas)
		if t.Inline {
			text += " and inline"
		}
		if t.RunTime > 0 {
			text += " in " + t.RunTime.Round(time.Microsecond).String()
		}
	}
	return text
}
