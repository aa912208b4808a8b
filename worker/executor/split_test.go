package executor

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/proto"

	executorv1 "github.com/millrace/millrace/gen/go/millrace/executor/v1"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/worker/lifecycle"
)

// However much is queued, each message is within the limit. The messages contain the queued items
// in their order.
func TestMessagesToAnExecutorAreWithinTheLimit(t *testing.T) {
	sizes := []int{0, 1, 100, 60_000, 64 << 10, 1 << 20, partBytes - 1, partBytes, partBytes + 1, 20 << 20, 40 << 20}
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 2))
		blank := make([]byte, maxItemBytes)
		rest := 300 << 20
		some := func() []byte {
			n := sizes[r.IntN(len(sizes))]
			if rest -= n; rest < 0 {
				n = r.IntN(100)
			}
			return blank[:n]
		}
		whole := &executorv1.ToExecutor{AttachSegments: []*executorv1.ExecutorAttach{{SegmentId: 1}}, Shutdown: true, ReleaseUnused: true, DroppedFunctions: [][]byte{{1}}}
		for i := range r.IntN(3) {
			whole.Functions = append(whole.Functions, &millracev1.Function{Hash: []byte{byte(i)}, Payload: some()})
			whole.Ops = append(whole.Ops, &executorv1.OpDefinition{OpId: uint32(i)})
		}
		type sent struct {
			ref     lifecycle.Ref
			inputs  int
			headers int
			args    int
		}
		var want []sent
		for i := range 1 + r.IntN(40) {
			run := &Run{Ref: lifecycle.Ref{Task: ids.TaskID(i), Attempt: 1}, Arguments: some()}
			x := sent{ref: run.Ref, args: len(run.Arguments)}
			for range r.IntN(1 << r.IntN(10)) {
				header := some()
				run.Inputs = append(run.Inputs, &executorv1.ExecutorInput{Header: header, Frames: make([]*executorv1.FrameLocation, r.IntN(3))})
				x.inputs++
				x.headers += len(header)
			}
			if e := tooLarge(run, true); e != nil {
				t.Fatalf("seed %d: %v", seed, e)
			}
			want = append(want, x)
			whole.Runs = append(whole.Runs, splitRun(&executorv1.ExecutorRun{TaskId: uint64(i), Attempt: 1, Arguments: run.Arguments, Inputs: run.Inputs})...)
			whole.Cancellations = append(whole.Cancellations, &executorv1.AttemptRef{TaskId: uint64(i)})
		}
		var got []sent
		more := false
		functions, cancellations := 0, 0
		messages := parts(whole)
		for n, m := range messages {
			b, err := proto.MarshalOptions{UseCachedSize: true}.Marshal(m)
			if err != nil || len(b) > maxMessageBytes {
				t.Fatalf("seed %d: a message of %d bytes: %v", seed, len(b), err)
			}
			if len(m.GetAttachSegments()) > 0 != (n == 0) || m.GetShutdown() != (n == len(messages)-1) || m.GetReleaseUnused() != m.GetShutdown() || len(m.GetDroppedFunctions()) > 0 != m.GetShutdown() {
				t.Errorf("seed %d: message %d of %d attaches %v, and ends %v", seed, n, len(messages), m.GetAttachSegments(), m.GetShutdown())
			}
			if len(got) > 0 && len(m.GetFunctions())+len(m.GetOps()) > 0 {
				t.Errorf("seed %d: functions behind runs", seed)
			}
			functions += len(m.GetFunctions())
			cancellations += len(m.GetCancellations())
			for _, x := range m.GetRuns() {
				if !more {
					got = append(got, sent{ref: lifecycle.Ref{Task: ids.TaskID(x.GetTaskId()), Attempt: 1}})
				}
				last := &got[len(got)-1]
				last.args += len(x.GetArguments())
				last.inputs += len(x.GetInputs())
				for _, in := range x.GetInputs() {
					last.headers += len(in.GetHeader())
				}
				if last.ref.Task != ids.TaskID(x.GetTaskId()) {
					t.Errorf("seed %d: a piece of t%d behind %v", seed, x.GetTaskId(), last.ref)
				}
				more = x.GetMoreInputs()
			}
		}
		if more || len(got) != len(want) || functions != len(whole.GetFunctions()) || cancellations != len(want) {
			t.Fatalf("seed %d: %d runs of %d, %d functions, %d cancellations", seed, len(got), len(want), functions, cancellations)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("seed %d: sent %v, got %v", seed, want[i], got[i])
			}
		}
	}
	small := &executorv1.ToExecutor{Runs: []*executorv1.ExecutorRun{{TaskId: 1, Arguments: bytes.Repeat([]byte("x"), 100)}}}
	if p := parts(small); len(p) != 1 || p[0] != small {
		t.Error("a small message was divided")
	}
}
