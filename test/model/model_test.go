package model_test

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/test/model"
)

// history is a history that a test writes by hand.
type history struct{ model.History }

func (h *history) call(client string, call model.Call) *model.Op {
	call.Client = client
	if call.Name == "" {
		call.Name = "x"
	}
	return h.Begin(call)
}

// done is a call that is answered before another one begins.
func (h *history) done(client string, call model.Call, answer model.Answer) {
	h.call(client, call).End(answer)
}

var (
	yes = model.Answer{Met: true}
	no  = model.Answer{}
)

func acquire(request string) model.Call { return model.Call{Kind: model.Acquire, Request: request} }
func release(request string) model.Call { return model.Call{Kind: model.Release, Request: request} }
func fence(n uint64) model.Answer       { return model.Answer{Met: true, Fence: n} }
func put(value string) model.Call {
	return model.Call{Kind: model.Put, Request: "put " + value, Value: value}
}
func take(request string) model.Call      { return model.Call{Kind: model.Take, Request: request} }
func taken(values ...string) model.Answer { return model.Answer{Met: true, Values: values} }
func set(value string) model.Call         { return model.Call{Kind: model.Set, Value: value} }
func withdraw(request string) model.Call  { return model.Call{Kind: model.Withdraw, Request: request} }
func submit() model.Call                  { return model.Call{Kind: model.Submit, Alone: true} }
func succeeded(generation uint64, value string) model.Answer {
	return model.Answer{Met: true, Task: 7, State: model.Succeeded, Generation: generation, Value: value}
}

var (
	get       = model.Call{Kind: model.Get}
	size      = model.Call{Kind: model.Size}
	look      = model.Call{Kind: model.Look, Task: 7}
	known     = model.Answer{Met: true, Task: 7}
	leaseEnds = model.Call{Kind: model.LeaseEnds}
	failed    = model.Answer{Met: true, Task: 7, State: model.Failed, Reason: "R"}
	letGo     = model.Call{Kind: model.LetGo, Task: 7}
)

// Schedulers with bugs have these histories. "": a scheduler without bugs can have it.
func TestEachBugIsFound(t *testing.T) {
	for _, test := range []struct {
		name, want string
		run        func(h *history)
	}{
		{"a lock goes from one to the next", "", func(h *history) {
			h.done("a", acquire("1"), fence(1))
			b := h.call("b", acquire("2"))
			h.done("c", acquire("3"), no)
			h.done("a", release("1"), yes)
			b.End(fence(2))
			h.done("a", release("1"), no)
		}},
		{"a lock has two holders after a restart", `lock "x"`, func(h *history) {
			h.done("a", acquire("1"), fence(1))
			h.done("b", acquire("2"), fence(2))
			h.done("a", release("1"), yes)
		}},
		{"a semaphore has two holders", "", func(h *history) {
			for i, client := range []string{"a", "b"} {
				h.done(client, model.Call{Kind: model.Acquire, Request: "1", Limit: 2}, fence(uint64(i+1)))
			}
			h.done("c", model.Call{Kind: model.Acquire, Request: "1", Limit: 2}, no)
		}},
		{"a semaphore has one holder too many", `lock "x"`, func(h *history) {
			for i, client := range []string{"a", "b", "c"} {
				h.done(client, model.Call{Kind: model.Acquire, Request: "1", Limit: 2}, fence(uint64(i+1)))
			}
		}},
		{"a fencing number is given twice", `lock "x"`, func(h *history) {
			h.done("a", acquire("1"), fence(1))
			h.done("a", release("1"), yes)
			h.done("b", acquire("2"), fence(1))
		}},
		{"a lock that was released is held", `lock "x"`, func(h *history) {
			h.done("a", acquire("1"), fence(1))
			h.done("a", release("1"), yes)
			h.done("b", acquire("2"), no)
		}},
		{"a lock is lost", `lock "x"`, func(h *history) {
			h.done("a", acquire("1"), fence(1))
			h.done("a", release("1"), no)
		}},
		{"a lock is lost with the lease", "", func(h *history) {
			h.done("a", acquire("1"), fence(1))
			h.call("a", leaseEnds)
			h.done("b", acquire("2"), fence(2))
			h.done("a", release("1"), no)
		}},
		{"a lock is held after the end of the lease", `lock "x"`, func(h *history) {
			h.done("a", acquire("1"), fence(1))
			h.done("a", leaseEnds, yes)
			h.done("b", acquire("2"), no)
		}},
		{"one who was never told holds a lock", "", func(h *history) {
			h.call("a", acquire("1"))
			h.done("b", acquire("2"), no)
			h.done("a", withdraw("1"), yes)
			h.done("b", acquire("3"), fence(2))
		}},
		{"a call that was given up holds a lock", `lock "x"`, func(h *history) {
			a := h.call("a", acquire("1"))
			a.End(no)
			h.done("a", withdraw("1"), yes)
			h.done("b", acquire("2"), no)
		}},
		{"a queue keeps the order", "", func(h *history) {
			h.done("a", put("1"), yes)
			h.done("b", put("2"), yes)
			h.done("c", take("1"), taken("1"))
			h.done("c", size, model.Answer{Size: 1})
			h.done("d", take("1"), taken("2"))
			h.done("d", take("2"), no)
		}},
		{"a value is delivered twice after a restart", `queue "x"`, func(h *history) {
			h.done("a", put("1"), yes)
			h.done("b", take("1"), taken("1"))
			h.done("c", take("1"), taken("1"))
		}},
		{"a value that was put is lost", `queue "x"`, func(h *history) {
			h.done("a", put("1"), yes)
			h.done("b", take("1"), no)
		}},
		{"a value is put twice", `queue "x"`, func(h *history) {
			h.done("a", put("1"), yes)
			h.done("b", size, model.Answer{Size: 2})
		}},
		{"values change their order", `queue "x"`, func(h *history) {
			h.done("a", put("1"), yes)
			h.done("a", put("2"), yes)
			h.done("b", take("1"), taken("2"))
		}},
		{"a full queue accepts a value", `queue "x"`, func(h *history) {
			h.done("a", model.Call{Kind: model.Put, Value: "1", Limit: 1}, yes)
			h.done("a", model.Call{Kind: model.Put, Value: "2", Limit: 1}, yes)
		}},
		{"one who was never told takes a value with him", "", func(h *history) {
			h.done("a", put("1"), yes)
			h.done("a", put("2"), yes)
			h.call("b", take("1"))
			h.done("c", take("1"), taken("2"))
			h.done("b", withdraw("1"), yes)
			h.done("c", take("2"), taken("1"))
		}},
		{"a value that was put without an answer appears late", "", func(h *history) {
			h.call("a", put("1"))
			h.done("b", take("1"), no)
			h.done("b", take("2"), taken("1"))
		}},
		{"a variable keeps its value", "", func(h *history) {
			h.done("a", get, no)
			h.done("a", set("1"), yes)
			h.call("b", set("2"))
			h.done("a", get, taken("1"))
			h.done("a", get, taken("2"))
		}},
		{"a variable goes back", `variable "x"`, func(h *history) {
			h.done("a", set("1"), yes)
			h.done("a", set("2"), yes)
			h.done("b", get, taken("1"))
		}},
		{"a variable goes back to what nobody was told", `variable "x"`, func(h *history) {
			h.done("a", set("1"), yes)
			h.call("b", set("2"))
			h.done("a", get, taken("2"))
			h.done("a", get, taken("1"))
		}},
		{"a variable that was deleted has a value", `variable "x"`, func(h *history) {
			h.done("a", set("1"), yes)
			h.done("a", model.Call{Kind: model.Delete}, yes)
			h.done("b", get, taken("1"))
		}},
		{"a task ends once", "", func(h *history) {
			h.done("a", submit(), known)
			h.done("a", look, model.Answer{Met: true, Task: 7, State: "RUNNING"})
			h.done("b", look, succeeded(1, "v"))
			h.done("a", letGo, yes)
			h.done("a", look, no)
		}},
		{"a result is made twice", "made twice", func(h *history) {
			h.done("a", look, succeeded(1, ""))
			h.done("a", look, succeeded(4097, ""))
		}},
		{"a result is made again after a loss", "", func(h *history) {
			h.done("", model.Call{Kind: model.Lost}, yes)
			h.done("a", look, succeeded(1, "v"))
			h.done("a", look, succeeded(2, "w"))
		}},
		{"a result of a dead incarnation comes late", "an older generation", func(h *history) {
			h.done("", model.Call{Kind: model.Lost}, yes)
			h.done("a", look, succeeded(2, ""))
			h.done("b", look, succeeded(1, ""))
		}},
		{"one generation has two values", "two values", func(h *history) {
			h.done("a", look, succeeded(1, "v"))
			h.done("b", look, succeeded(1, "w"))
		}},
		{"a worker that is gone holds a result", "worker 3 is gone", func(h *history) {
			h.done("", model.Call{Kind: model.WorkerGone, Worker: 3}, yes)
			h.done("a", look, model.Answer{Met: true, Task: 7, State: model.Succeeded, Generation: 1, Worker: 3})
		}},
		{"a failure is seen before its record is durable", "", func(h *history) {
			h.done("a", look, failed)
			h.done("a", look, succeeded(4097, ""))
		}},
		{"a failure does not survive", "did not survive", func(h *history) {
			h.done("a", look, failed)
			h.done("b", set("1"), yes)
			h.done("a", look, succeeded(4097, ""))
		}},
		{"a failure is retried", "", func(h *history) {
			h.done("a", look, failed)
			h.done("b", set("1"), yes)
			h.done("b", model.Call{Kind: model.Retry, Task: 7}, yes)
			h.done("a", look, succeeded(2, ""))
		}},
		{"a submission is lost", "is not known", func(h *history) {
			h.done("a", submit(), known)
			h.done("a", look, no)
		}},
		{"a task that was released is there after a restart", "after all have released it", func(h *history) {
			h.done("a", submit(), known)
			h.done("a", letGo, yes)
			h.done("b", look, known)
		}},
		{"a task is there while another client holds it", "", func(h *history) {
			h.done("a", submit(), known)
			h.done("b", submit(), known)
			h.done("a", letGo, yes)
			h.done("b", look, known)
			h.done("b", leaseEnds, yes)
			h.done("b", look, no)
		}},
		{"a number is given twice", "two tasks", func(h *history) {
			h.done("a", model.Call{Kind: model.Submit, Name: "x"}, known)
			h.done("a", model.Call{Kind: model.Submit, Name: "y"}, known)
		}},
		{"an answer comes from another life", "another life", func(h *history) {
			h.done("a", look, model.Answer{Met: true, Life: 1})
			h.done("a", look, model.Answer{Met: true, Life: 2})
		}},
		{"a stream goes back", "an older generation", func(h *history) {
			opened := h.call("a", model.Call{Kind: model.Open})
			h.done("", model.Call{Kind: model.Lost}, yes)
			for _, generation := range []uint64{2, 1} {
				h.Since(opened, model.Call{Kind: model.Look, Stream: "s"}, succeeded(generation, ""))
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var h history
			test.run(&h)
			err := h.Check()
			switch {
			case test.want == "" && err != nil:
				t.Errorf("it is refused: %v", err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("it is said to be %v, not %q", err, test.want)
			}
		})
	}
}
