package rpc

import pb "github.com/millrace/millrace/gen/go/millrace/v1"

// The rules in the protos are evaluated by reflection. That takes 2 to 3 µs per task, which is
// half of the work on a submission before its first task is assigned. plain checks nearly all
// tasks in nanoseconds; the validator checks the others and produces the errors.
const (
	plainKey  = 1024
	plainOp   = 512
	plainItem = 1<<24 - 1
	mostTasks = 100_000
)

// plain reports whether the tasks surely break no rule of TaskSpec, nor of the list that they are
// in. It may return false for valid tasks, because it counts bytes instead of characters, and typed
// arguments have rules of their own.
func plain(tasks []*pb.TaskSpec) bool {
	if len(tasks) > mostTasks {
		return false
	}
	for _, t := range tasks {
		if n := len(t.GetKey()); n < 1 || n > plainKey {
			return false
		}
		if n := len(t.GetOp()); n > plainOp || (n > 0) == (t.OpIndex != nil) {
			return false
		}
		if t.GetArguments() != nil {
			return false
		}
		for _, in := range t.GetInputs() {
			if n := len(in); n < 1 || n > plainKey {
				return false
			}
		}
		for _, it := range t.GetItems() {
			if it.GetItem() > plainItem {
				return false
			}
		}
	}
	return true
}

// withoutPlain calls check. If all tasks of the message are plain, check sees the message without
// them.
func withoutPlain(message any, check func() error) error {
	m, ok := message.(*pb.SubmitRequest)
	if !ok || !plain(m.GetTasks()) {
		return check()
	}
	kept := m.Tasks
	m.Tasks = nil
	defer func() { m.Tasks = kept }()
	return check()
}
