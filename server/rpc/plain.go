package rpc

import pb "github.com/millrace/millrace/gen/go/millrace/v1"

// The rules in the protos are evaluated by reflection, which takes 2 to 3 µs for a task, half of what there is to do with a submission
// before its first task is assigned. Nearly all tasks are looked over in nanoseconds; the validator says what is wrong with the others.
const (
	plainKey  = 1024
	plainOp   = 512
	mostTasks = 100_000
)

// plain says that tasks break no rule of TaskSpec, nor of the list that they are in. It says so of none that do, and not of all
// others: characters are counted as bytes, and typed arguments have rules of their own.
func plain(tasks []*pb.TaskSpec) bool {
	if len(tasks) > mostTasks {
		return false
	}
	for _, t := range tasks {
		if n := len(t.GetKey()); n < 1 || n > plainKey || len(t.GetOp()) > plainOp || t.GetArguments() != nil {
			return false
		}
		for _, in := range t.GetInputs() {
			if n := len(in); n < 1 || n > plainKey {
				return false
			}
		}
	}
	return true
}

// withoutPlain calls check while the message has no tasks if they are plain.
func withoutPlain(message any, check func() error) error {
	var tasks *[]*pb.TaskSpec
	switch m := message.(type) {
	case *pb.SubmitRequest:
		tasks = &m.Tasks
	case *pb.SubmitBatchRequest:
		tasks = &m.Tasks
	}
	if tasks == nil || !plain(*tasks) {
		return check()
	}
	kept := *tasks
	*tasks = nil
	defer func() { *tasks = kept }()
	return check()
}
