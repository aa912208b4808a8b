package model

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
)

// Kind is the kind of a call.
type Kind uint8

// The kinds of calls, by the thing that they are about.
const (
	// Acquire takes a lock, Release gives it back, Holders reads who has it. LeaseEnds takes all
	// locks of a client: the lease was closed, or may have expired. Without an answer it may never
	// happen.
	Acquire Kind = iota + 1
	Release
	Holders
	LeaseEnds
	// Put appends a value, Take takes some, Withdraw gives up a Take or an Acquire whose caller was
	// not told, and Size reads the length.
	Put
	Take
	Withdraw
	Size
	// Set gives a variable a value, Get reads it, Delete forgets it.
	Set
	Get
	Delete
	// Submit submits a task and holds it, LetGo ends that. Look sees a task. Retry and Cancel are
	// those of any client.
	Submit
	LetGo
	Look
	Retry
	Cancel
	// WorkerGone says that the scheduler knows that a worker has ended, Lost that a worker or an
	// object was lost, so that tasks may run again.
	WorkerGone
	Lost
	// Open opens a stream of answers.
	Open
)

var kindNames = [...]string{"", "acquire", "release", "holders", "lease ends", "put", "take", "withdraw", "size", "set", "get", "delete",
	"submit", "let go", "look", "retry", "cancel", "worker gone", "lost", "open"}

// String is the name of the kind.
func (k Kind) String() string { return kindNames[k] }

// Call is what a client asks for.
type Call struct {
	Kind Kind
	// Name is that of the lock, the queue or the variable, or the key of the task.
	Name string
	// Client is the lease of the client, Request its name for an Acquire, a Take or a Put.
	Client, Request string
	// Limit is the number of holders of a lock, 0 being 1, or of values of a queue, 0 being any.
	Limit int
	// Most is the largest number of values of a Take.
	Most int
	// Value is that of a Put or a Set.
	Value string
	// Task is that of LetGo, Retry, Cancel and, if the client knows it, Look. Alone says of a
	// Submit that nothing but clients needs the task: no other task, no dataset.
	Task  uint64
	Alone bool
	// Stream names a stream of answers, in the order of the history.
	Stream string
	// Worker is that of WorkerGone.
	Worker uint64
}

// Answer is what the client was told.
type Answer struct {
	// Met says that the call got what it asked for. Otherwise a Put found no room, a Take no value,
	// an Acquire no free lock, a Get no value, a Release no lock, and a Look no task.
	Met bool
	// Fence is the number of an Acquire.
	Fence uint64
	// Values are those of a Take, or that of a Get.
	Values []string
	// Size is that of a queue, or the number of holders of a lock.
	Size int
	// Task is the number of the task that was submitted or seen.
	Task uint64
	// State is the state that a Look sees: one of the constants, or any other text if the task has
	// not ended. Reason is that of a failure.
	State, Reason string
	// Generation is the attempt that made the result, Value the result if the client has read it,
	// and Worker one that holds it; 0: none.
	Generation uint64
	Value      string
	Worker     uint64
	// Life is that of the cluster; 0: the answer does not say it.
	Life uint64
}

// The states of tasks that have ended.
const (
	Succeeded = "SUCCEEDED"
	Failed    = "FAILED"
	Cancelled = "CANCELLED"
)

// never is the time of an answer that never comes.
const never = math.MaxInt64

// Op is a call in a history.
type Op struct {
	Call   Call
	Answer Answer
	// began and ended are the numbers of the beginning and of the answer; never: there is none.
	began, ended int64
	history      *History
}

// History is what clients saw, in the order of a clock that counts their calls and answers. It may
// be used by several goroutines.
type History struct {
	mu    sync.Mutex
	clock int64
	ops   []*Op
}

// Begin notes that a call begins. A call that is repeated with one request id, until it is
// answered, is one call.
func (h *History) Begin(call Call) *Op {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clock++
	op := &Op{Call: call, began: h.clock, ended: never, history: h}
	h.ops = append(h.ops, op)
	return op
}

// End notes the answer to a call.
func (op *Op) End(answer Answer) {
	h := op.history
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clock++
	op.Answer, op.ended = answer, h.clock
}

// Drop takes a call out of the history: it was refused, and has changed nothing.
func (op *Op) Drop() {
	h := op.history
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = slices.DeleteFunc(h.ops, func(other *Op) bool { return other == op })
}

// Note notes something that has its answer at once.
func (h *History) Note(call Call, answer Answer) { h.Begin(call).End(answer) }

// Since is an answer that was perhaps given at any time since the beginning of another call, as
// those of a stream since it was opened.
func (h *History) Since(opened *Op, call Call, answer Answer) {
	op := h.Begin(call)
	op.began = opened.began
	op.End(answer)
}

// Len is the number of calls.
func (h *History) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.ops)
}

func (op *Op) answered() bool { return op.ended != never }

// String describes the call and its answer.
func (op *Op) String() string {
	var b strings.Builder
	c, a := &op.Call, &op.Answer
	fmt.Fprintf(&b, "%s %s %s", c.Client, c.Kind, c.Name)
	for _, part := range []struct {
		name, value string
	}{{"request", c.Request}, {"value", c.Value}, {"stream", c.Stream}} {
		if part.value != "" {
			fmt.Fprintf(&b, " %s=%s", part.name, part.value)
		}
	}
	for _, part := range []struct {
		name  string
		value uint64
	}{{"limit", uint64(c.Limit)}, {"most", uint64(c.Most)}, {"task", c.Task}, {"worker", c.Worker}} {
		if part.value != 0 {
			fmt.Fprintf(&b, " %s=%d", part.name, part.value)
		}
	}
	if !op.answered() {
		fmt.Fprintf(&b, " [%d, no answer]", op.began)
		return b.String()
	}
	fmt.Fprintf(&b, " [%d, %d] -> %s", op.began, op.ended, a.describe(c.Kind))
	return b.String()
}

func (a *Answer) describe(kind Kind) string {
	switch {
	case kind == Size || kind == Holders:
		return fmt.Sprint(a.Size)
	case !a.Met:
		return "no"
	case a.State != "":
		return fmt.Sprintf("%s %s task=%d generation=%d value=%q worker=%d", a.State, a.Reason, a.Task, a.Generation, a.Value, a.Worker)
	case a.Task != 0:
		return fmt.Sprintf("task=%d", a.Task)
	case a.Fence != 0:
		return fmt.Sprintf("fence=%d", a.Fence)
	case a.Values != nil:
		return fmt.Sprintf("%q", a.Values)
	default:
		return "ok"
	}
}
