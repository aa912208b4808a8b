package executor

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	executorv1 "github.com/millrace/millrace/gen/go/millrace/executor/v1"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/worker/lifecycle"
)

const (
	// partBytes is the approximate size at which a message to a process is split.
	partBytes = 8 << 20
	// maxItemBytes is the size limit of one item that cannot be divided: arguments, a header,
	// a function.
	maxItemBytes = maxMessageBytes - 1<<20
	// frameBytes and runBytes estimate the encoded sizes of a frame's location and of a run without
	// its arguments and inputs.
	frameBytes = 24
	runBytes   = 64
)

// tooLarge returns the error of a run that is too large to be sent to the process at all, nil if it
// can be sent. The limit exists because arguments and headers of inputs are sent in messages,
// whose size is limited. splitRuns: the process accepts a run that is split over several messages.
func tooLarge(r *Run, splitRuns bool) *millracev1.TaskError {
	if n := len(r.Arguments); n > maxItemBytes {
		return tooLargeError("its arguments have %d bytes, and %d can be sent to an executor: pass what is large as the result of a task, or scatter it", n, maxItemBytes)
	}
	if n := len(r.Function.GetPayload()); n > maxItemBytes {
		return tooLargeError("its function has %d bytes, and %d can be sent to an executor: pass what it captures as arguments", n, maxItemBytes)
	}
	for i, in := range r.Inputs {
		if n := len(in.GetHeader()); n > maxItemBytes {
			return tooLargeError("its input %d has a header of %d bytes, and %d can be sent to an executor: return arrays or bytes in place of lists", i, n, maxItemBytes)
		}
	}
	if n := messageSize(r); n > maxItemBytes && !splitRuns {
		return tooLargeError("its arguments and the headers of its %d inputs have %d bytes together, of which this executor can be sent %d: it does not say "+
			"that it understands split runs (ready.supports_split_runs)", len(r.Inputs), n, maxItemBytes)
	}
	return nil
}

func tooLargeError(format string, values ...any) *millracev1.TaskError {
	return &millracev1.TaskError{Reason: "TOO_LARGE", Message: "the task cannot be sent to its executor: " + fmt.Sprintf(format, values...)}
}

// messageSize estimates how many bytes a run takes in messages.
func messageSize(r *Run) int {
	n := runBytes + len(r.Arguments) + len(r.Key) + len(r.Namespace)
	for _, in := range r.Inputs {
		n += inputSize(in)
	}
	return n
}

func inputSize(in *executorv1.ExecutorInput) int {
	return 8 + len(in.GetHeader()) + frameBytes*len(in.GetFrames())
}

// splitRun splits a run by its inputs, so that a part with several inputs is not much larger than
// partBytes.
func splitRun(whole *executorv1.ExecutorRun) []*executorv1.ExecutorRun {
	inputs := whole.GetInputs()
	out := []*executorv1.ExecutorRun{whole}
	first, bytes := 0, runBytes+len(whole.GetArguments())
	for i, in := range inputs {
		n := inputSize(in)
		if bytes+n > partBytes && bytes > runBytes {
			last := out[len(out)-1]
			last.Inputs, last.MoreInputs = inputs[first:i:i], true
			out = append(out, &executorv1.ExecutorRun{TaskId: whole.GetTaskId(), Attempt: whole.GetAttempt()})
			first, bytes = i, runBytes
		}
		bytes += n
	}
	out[len(out)-1].Inputs = inputs[first:]
	return out
}

// parts splits a message into several that are not much larger than partBytes, unless a single item
// is larger. The fields that the executor handles first are in the first one.
// parts also computes and caches the sizes of the messages, for writePart.
func parts(m *executorv1.ToExecutor) []*executorv1.ToExecutor {
	if proto.Size(m) <= 2*partBytes {
		return []*executorv1.ToExecutor{m}
	}
	var out []*executorv1.ToExecutor
	part := &executorv1.ToExecutor{Hello: m.GetHello(), AttachSegments: m.GetAttachSegments()}
	bytes := 0
	take := func(n int) {
		if bytes += n; bytes > partBytes && bytes > n {
			out, part, bytes = append(out, part), new(executorv1.ToExecutor), n
		}
	}
	for _, x := range m.GetOps() {
		take(proto.Size(x))
		part.Ops = append(part.Ops, x)
	}
	for _, x := range m.GetFunctions() {
		take(len(x.GetPayload()) + 64)
		part.Functions = append(part.Functions, x)
	}
	for _, x := range m.GetRuns() {
		take(proto.Size(x))
		part.Runs = append(part.Runs, x)
	}
	for _, x := range m.GetAllocations() {
		take(proto.Size(x))
		part.Allocations = append(part.Allocations, x)
	}
	for _, x := range m.GetCalls() {
		take(proto.Size(x))
		part.Calls = append(part.Calls, x)
	}
	// All of these are small, and there are no more of them than of runs and functions.
	part.Cancellations, part.DetachSegments, part.Shutdown, part.DroppedFunctions = m.GetCancellations(), m.GetDetachSegments(), m.GetShutdown(), m.GetDroppedFunctions()
	part.ReleaseUnused = m.GetReleaseUnused()
	out = append(out, part)
	for _, x := range out {
		proto.Size(x)
	}
	return out
}

// refuses returns the result of a run that the process cannot accept, nil if it can.
func (p *process) refuses(r *Run) *Result {
	if !p.supportsSegments && len(r.Spaces) > 0 {
		return &Result{Ref: r.Ref, NoSegments: true}
	}
	if e := tooLarge(r, p.supportsSplitRuns); e != nil {
		out := failed(r, lifecycle.Failed, e)
		return &out
	}
	return nil
}
