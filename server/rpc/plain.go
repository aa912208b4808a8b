package rpc

import (
	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
)

// The rules in the protos are evaluated by reflection. That takes 2 to 3 µs per task, which is
// half of the work on a submission before its first task is assigned. plain checks nearly all
// tasks in nanoseconds; the validator checks the others and produces the errors.
const (
	plainKey  = 1024
	plainOp   = 512
	plainItem = 1<<24 - 1
	mostTasks = 100_000
	mostHoles = 10_000
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

// plainInstances is plain for instances of templates. Typed values are not plain.
func plainInstances(groups []*pb.TemplateInstances) bool {
	if len(groups) > mostTasks {
		return false
	}
	for _, g := range groups {
		if n := len(g.GetInstances()); n < 1 || n > mostTasks || len(g.GetKeyPrefix()) > plainKey {
			return false
		}
		if n := len(g.GetTemplateHash()); n > len(ids.FunctionHash{}) || (n > 0) == (g.TemplateIndex != nil) {
			return false
		}
		for _, in := range g.GetInstances() {
			if len(in.GetKey()) > plainKey || len(in.GetValues()) > 0 || len(in.GetPackedValues()) > mostHoles || len(in.GetInputs()) > mostHoles {
				return false
			}
			for _, key := range in.GetInputs() {
				if n := len(key); n < 1 || n > plainKey {
					return false
				}
			}
		}
	}
	return true
}

// withoutPlain calls check. If all tasks of the message are plain, check sees the message without
// them, and likewise without its instances of templates.
func withoutPlain(message any, check func() error) error {
	m, ok := message.(*pb.SubmitRequest)
	if !ok {
		return check()
	}
	tasks, instances := m.Tasks, m.TemplateInstances
	defer func() { m.Tasks, m.TemplateInstances = tasks, instances }()
	if plain(tasks) {
		m.Tasks = nil
	}
	if plainInstances(instances) {
		m.TemplateInstances = nil
	}
	return check()
}
