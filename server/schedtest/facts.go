package schedtest

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
)

// CompareLoaded loads rows into a new machine, and returns an error if its durable state is another
// one than that of a machine.
func CompareLoaded(m *sched.Machine, config sched.Config, now time.Time, rows []sched.Row) error {
	loaded := sched.New(config)
	loaded.SetTime(now)
	for _, r := range rows {
		loaded.Load(r)
	}
	loaded.Step(now, sched.Loaded{Restarts: 1}, nil)
	if err := loaded.Check(); err != nil {
		return err
	}
	want, got := Table(m), Table(loaded)
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if got[key] != want[key] {
			return fmt.Errorf("%s is %q, not %q", key, got[key], want[key])
		}
	}
	for _, key := range slices.Sorted(maps.Keys(got)) {
		if _, known := want[key]; !known {
			return fmt.Errorf("there is %s, %q", key, got[key])
		}
	}
	return nil
}

// Table describes the durable state of a machine.
func Table(m *sched.Machine) map[string]string {
	t := map[string]string{}
	keys := map[ids.TaskID]string{}
	name := func(id ids.TaskID) string { return fmt.Sprintf("%s %s", id, keys[id]) }
	for cursor, more := uint64(0), true; more; {
		cursor, more = m.Rows(cursor, func(r sched.Row) {
			switch r := r.(type) {
			case *sched.GraphPut:
				t["graph "+r.Graph.String()] = fmt.Sprint(r.Client, r.Name, r.Namespace, r.Retention, r.CreatedAt.UnixNano(), r.EndedAt.IsZero() || r.EndedAt.UnixNano() > 0, r.Dropped, r.Ops)
			case *sched.TasksPut:
				at := 0
				for _, task := range r.Tasks {
					keys[task.Task] = task.Key
					var options sched.Options
					if task.Options > 0 {
						options = r.Options[task.Options-1]
					}
					t["task "+name(task.Task)] = fmt.Sprint(r.Graph, r.Ops[task.Op], options, r.Inputs[at:at+int(task.Inputs)], task.Arguments, task.Position, task.Submitted, task.RunHold)
					at += int(task.Inputs)
				}
			case *sched.TasksEnded:
				for _, ref := range r.Tasks {
					text := fmt.Sprint(r.State, ref.Attempt)
					if r.Err != nil {
						text += r.Err.Reason + r.Err.Message
					}
					t["end of "+name(ref.Task)] = text
				}
			case *sched.DataPut:
				t["data of "+name(r.Task)] = fmt.Sprint(r.Bytes, r.Inline)
			case *sched.TaskTroubled:
				t["trouble of "+name(r.Task)] = fmt.Sprintf("%+v", *r)
			case *sched.HoldsPut:
				for _, id := range r.Tasks {
					t[fmt.Sprintf("%s holds %s", r.Holder, name(id))] = "yes"
				}
			case *sched.RequestPut:
				t["request "+r.Request+r.Client.String()+r.Namespace] = fmt.Sprint(r.Body, r.Graph, r.Tasks, r.Joined, r.Failed)
			case *sched.Counters:
			default:
				t[fmt.Sprintf("%T", r)] = "unexpected"
			}
		})
	}
	return t
}
