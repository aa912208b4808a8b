package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// mentions reports whether an error's text contains all of words.
func mentions(err error, words ...string) bool {
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			return false
		}
	}
	return true
}

func TestBadSubmissionsAreRefusedWithTheCause(t *testing.T) {
	c := shared.dial(t)
	noop := millrace.Native("bench.noop")
	hold := millrace.Hold()
	for _, tc := range []struct {
		name  string
		build func(g *millrace.GraphBuilder)
		is    error
		says  []string
	}{
		{"cycle", func(g *millrace.GraphBuilder) {
			g.Add("c1", noop, millrace.Args(millrace.Key("c3")), hold)
			g.Add("c2", noop, millrace.Args(millrace.Key("c1")))
			g.Add("c3", noop, millrace.Args(millrace.Key("c2")))
		}, millrace.ErrGraphHasCycle, []string{"c1", "c2", "c3"}},
		{"unknown input", func(g *millrace.GraphBuilder) {
			g.Add("u1", noop, millrace.Args(millrace.Key("nowhere")), hold)
		}, millrace.ErrUnknownInput, []string{"u1", "nowhere"}},
		{"duplicate key", func(g *millrace.GraphBuilder) {
			g.Add("d1", noop, millrace.Args(1), hold)
			g.Add("d1", noop, millrace.Args(2), hold)
		}, millrace.ErrDuplicateKey, []string{"d1"}},
		{"unknown op", func(g *millrace.GraphBuilder) {
			g.Add("o1", millrace.Native("array.matmull"), millrace.Args(), hold)
		}, millrace.ErrUnknownOp, []string{"array.matmull", "similar names are array.matmul"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := c.NewGraph(tc.name)
			g.Add("good-"+tc.name, noop, millrace.Args())
			tc.build(g)
			_, err := g.Submit(soon(t))
			if !errors.Is(err, tc.is) || !mentions(err, tc.says...) {
				t.Errorf("got %v; want %v, mentioning %q", err, tc.is, tc.says)
			}
			if task, err := c.Task(soon(t), "good-"+tc.name); !errors.Is(err, millrace.ErrUnknownTask) {
				t.Errorf("a task of the refused graph is known: %v, %v", task, err)
			}
		})
	}
}

func TestSameKeyWithAnotherBodyIsRefused(t *testing.T) {
	c := shared.dial(t)
	ctx := soon(t)
	submit := func(arg int) *millrace.Future {
		f, err := c.Submit(ctx, millrace.Python("builtins:abs"), millrace.Args(arg), millrace.WithKey("k"))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	first, same := submit(-4), submit(-4)
	for _, f := range []*millrace.Future{first, same} {
		if v, err := millrace.Get[int](ctx, f); err != nil || v != 4 {
			t.Errorf("%v, %v", v, err)
		}
	}
	if err := submit(-5).Wait(ctx); !errors.Is(err, millrace.ErrKeyConflict) || !mentions(err, "key k") {
		t.Errorf("another body: %v", err)
	}
}

func TestBadArgumentsNameTaskArgumentAndShapes(t *testing.T) {
	c := shared.dial(t)
	ctx := soon(t)
	left, err := c.Submit(ctx, millrace.Native("array.full"), millrace.Args([]int{2, 3}, 1.0))
	if err != nil {
		t.Fatal(err)
	}
	f, err := c.Submit(ctx, millrace.Native("array.matmul"), millrace.Args(left, left), millrace.WithKey("product"))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Wait(ctx); !errors.Is(err, millrace.ErrInvalidArgument) || !mentions(err, "product", "2", "3") {
		t.Errorf("shapes: %v", err)
	}
	if f, err = c.Submit(ctx, millrace.Native("array.reduce"), millrace.Args("text").With("op", "sum"), millrace.WithKey("reduced")); err != nil {
		t.Fatal(err)
	}
	if err := f.Wait(ctx); !errors.Is(err, millrace.ErrInvalidArgument) || !mentions(err, "reduced", "x") {
		t.Errorf("type: %v", err)
	}
}

func TestConstraintThatNobodyMeets(t *testing.T) {
	c := shared.dial(t)
	ctx := soon(t)
	need := millrace.WithResources(map[string]float64{"unobtainium": 1})
	f, err := c.Submit(ctx, millrace.Native("bench.noop"), millrace.Args(), need, millrace.WithKey("stuck"))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	why, err := c.Explain(ctx, "stuck")
	if err != nil || why.GetStatus() != millracev1.TaskStatus_TASK_STATUS_NO_WORKER_FITS || !strings.Contains(why.GetExplanation(), "unobtainium") {
		t.Errorf("explain: %v, %v", why, err)
	}
	if n, err := c.Cancel(ctx, f); err != nil || n != 1 {
		t.Errorf("cancel: %d, %v", n, err)
	}
	if err := f.Wait(ctx); !errors.Is(err, millrace.ErrTaskCancelled) {
		t.Errorf("cancelled: %v", err)
	}
	now, err := c.Submit(ctx, millrace.Native("bench.noop"), millrace.Args(), need, millrace.WithNoWait())
	if err != nil {
		t.Fatal(err)
	}
	if err := now.Wait(ctx); !errors.Is(err, millrace.ErrNoWorkerFits) {
		t.Errorf("no wait: %v", err)
	}
}

func TestResultTooLargeForTheSlab(t *testing.T) {
	c := shared.dial(t)
	f, err := c.Submit(soon(t), millrace.Native("bench.bytes"), millrace.Args(1<<30), millrace.WithKey("large"))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Wait(soon(t)); !errors.Is(err, millrace.ErrOutOfMemory) || !mentions(err, "large") {
		t.Errorf("%v", err)
	}
}

func TestPythonMistakes(t *testing.T) {
	c := shared.dial(t)
	ctx := soon(t)
	for _, tc := range []struct {
		name string
		op   string
		args millrace.Arguments
		is   error
		says []string
	}{
		{"no such module", "no_such_module:f", millrace.Args(), millrace.ErrFunctionNotFound, []string{"no_such_module"}},
		{"no such function", "math:no_such", millrace.Args(), millrace.ErrFunctionNotFound, []string{"no_such"}},
		{"exception", "statistics:mean", millrace.Args([]int{}), millrace.ErrPythonException, []string{"at least one data point", "Traceback", "statistics.py"}},
		{"executor killed", "os:abort", millrace.Args(), millrace.ErrExecutorDied, []string{"SIGABRT"}},
		{"executor exits", "os:_exit", millrace.Args(3), millrace.ErrExecutorDied, []string{"3"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f, err := c.Submit(ctx, millrace.Python(tc.op), tc.args)
			if err != nil {
				t.Fatal(err)
			}
			err = f.Wait(ctx)
			var te *millrace.TaskError
			if !errors.As(err, &te) || !mentions(err, tc.says...) || !errors.Is(err, tc.is) && !errors.Is(err, millrace.ErrPoisonTask) {
				t.Errorf("%v", err)
			}
		})
	}
	f, err := c.Submit(ctx, millrace.Python("math:sqrt"), millrace.Args(4))
	if err != nil {
		t.Fatal(err)
	}
	if v, err := millrace.Get[float64](ctx, f); err != nil || v != 2 {
		t.Errorf("after all that: %v, %v", v, err)
	}
}

func TestTokens(t *testing.T) {
	for name, options := range map[string][]millrace.Option{
		"missing": {millrace.WithAddress(shared.Address)},
		"wrong":   {millrace.WithAddress(shared.Address), millrace.WithToken("wrong")},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := millrace.Dial(soon(t), options...)
			if err == nil {
				_ = c.Close()
			}
			if !errors.Is(err, millrace.ErrUnauthenticated) {
				t.Errorf("%v", err)
			}
		})
	}
}

// raw returns a gRPC connection to the scheduler, without the client library.
func raw(t *testing.T) (context.Context, millracev1.SchedulerServiceClient) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+shared.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return metadata.AppendToOutgoingContext(soon(t), "authorization", "Bearer "+shared.Token), millracev1.NewSchedulerServiceClient(conn)
}

func TestNewerClientIsRefused(t *testing.T) {
	ctx, s := raw(t)
	_, err := s.OpenClient(ctx, &millracev1.OpenClientRequest{ApiVersion: "v1.99"})
	if status.Code(err) != codes.FailedPrecondition || !mentions(err, "v1.99") {
		t.Errorf("%v", err)
	}
}

func TestMessageOverTheLimit(t *testing.T) {
	ctx, s := raw(t)
	_, err := s.SubmitBatch(ctx, &millracev1.SubmitRequest{Tasks: []*millracev1.TaskSpec{{Key: "k", Op: "bench.noop", PackedArguments: make([]byte, 300<<20)}}})
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("%v", status.Code(err))
	}
}

// TestHalfASubmission: a stream that breaks leaves no task; the same request, sent again, is
// applied once.
func TestHalfASubmission(t *testing.T) {
	ctx, s := raw(t)
	header := &millracev1.SubmitHeader{Namespace: namespace(t), RequestId: "half-a-submission"}
	tasks := []*millracev1.TaskSpec{{Key: "one", Op: "bench.noop"}, {Key: "two", Op: "bench.noop", Inputs: []string{"one"}}}
	broken, cancel := context.WithCancel(ctx)
	stream, err := s.Submit(broken)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&millracev1.SubmitRequest{Header: header, Tasks: tasks[:1]}); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := stream.RecvMsg(new(millracev1.SubmitResponse)); status.Code(err) != codes.Canceled {
		t.Errorf("broken: %v", err)
	}
	if _, err := s.GetTask(ctx, &millracev1.GetTaskRequest{Task: &millracev1.TaskRef{Task: &millracev1.TaskRef_Key{Key: "one"}, Namespace: namespace(t)}}); status.Code(err) != codes.NotFound {
		t.Errorf("a task of half a submission: %v", err)
	}
	var first *millracev1.SubmitResponse
	for range 2 {
		out, err := s.SubmitBatch(ctx, &millracev1.SubmitRequest{Header: header, Tasks: tasks})
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = out
		} else if out.GetGraphId() != first.GetGraphId() || fmt.Sprint(out.GetTaskIds()) != fmt.Sprint(first.GetTaskIds()) {
			t.Errorf("the second time: %v, the first: %v", out, first)
		}
	}
}

func TestTwoClientsSubmitTheSameKeyAtOnce(t *testing.T) {
	const tasks = 200
	clients := []*millrace.Client{shared.dial(t, millrace.WithName("a")), shared.dial(t, millrace.WithName("b"))}
	var wg sync.WaitGroup
	futures := make([][]*millrace.Future, len(clients))
	ctx := soon(t)
	for i, c := range clients {
		wg.Go(func() {
			for n := range tasks {
				f, err := c.Submit(ctx, millrace.Native("array.full"), millrace.Args([]int{1}, n), millrace.WithKey(fmt.Sprint("same-", n)))
				if err != nil {
					t.Error(err)
					return
				}
				futures[i] = append(futures[i], f)
			}
			if err := millrace.WaitAll(ctx, futures[i]...); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	for n := range tasks {
		if a, b := futures[0][n].TaskID(), futures[1][n].TaskID(); a != b {
			t.Fatalf("key %d is task %d and task %d", n, a, b)
		}
	}
	// The second client still has the results that the first one releases.
	clients[0].Release(futures[0]...)
	if got, err := millrace.Gather[[]int64](ctx, futures[1]...); err != nil || got[7][0] != 7 {
		t.Errorf("%v", err)
	}
}

// TestAFailedKeyIsSubmittedAgain: it runs again, unless a client holds the failure; then the error
// says that it is older than the submission.
func TestAFailedKeyIsSubmittedAgain(t *testing.T) {
	ctx := soon(t)
	first, second := shared.dial(t, millrace.WithName("a")), shared.dial(t, millrace.WithName("b"))
	failing := func(c *millrace.Client) (*millrace.Future, *millrace.TaskError) {
		t.Helper()
		f, err := c.Submit(ctx, millrace.Python("os:listdir"), millrace.Args("/no/such/folder"), millrace.WithKey("listing"))
		if err != nil {
			t.Fatal(err)
		}
		var failure *millrace.TaskError
		if err := f.Wait(ctx); !errors.As(err, &failure) {
			t.Fatalf("it ended with %v", err)
		}
		return f, failure
	}
	held, failure := failing(first)
	if failure.Joined {
		t.Errorf("the first: %v", failure)
	}
	joined, failure := failing(second)
	if !failure.Joined || joined.TaskID() != held.TaskID() {
		t.Errorf("while the first client holds it: %v", failure)
	}
	if again, failure := failing(first); !failure.Joined {
		t.Errorf("the same client: %v", failure)
	} else {
		again.Release()
	}
	held.Release()
	if err := first.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if n, err := second.Retry(ctx, joined); err != nil || n != 1 {
		t.Fatalf("retried %d, %v", n, err)
	}
	joined.Release()
	for range 20 {
		fresh, failure := failing(second)
		fresh.Release()
		if failure.Joined {
			t.Fatalf("after all have released it: %v", failure)
		}
	}
}

func TestTimeoutStopsTheFunction(t *testing.T) {
	c := shared.dial(t)
	for _, op := range []millrace.Op{millrace.Native("bench.sleep"), millrace.Python("time:sleep")} {
		f, err := c.Submit(soon(t), op, millrace.Args(60.0), millrace.WithTimeout(200*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Wait(soon(t)); !errors.Is(err, millrace.ErrTimeout) {
			t.Errorf("%s: %v", op, err)
		}
	}
}

func TestCommandExitCodes(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("tasks:\n- key: a\n  op: python:no\n  args: [1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"done", []string{"status"}, 0, ""},
		{"unknown command", []string{"frobnicate"}, 2, "frobnicate"},
		{"unknown flag", []string{"status", "--nope"}, 2, "nope"},
		{"unknown benchmark", []string{"bench", "frobnicate"}, 2, "frobnicate"},
		{"too few arguments", []string{"get"}, 2, "written as `millrace get "},
		{"too few names", []string{"cancel"}, 2, "written as `millrace cancel "},
		{"a file without its flag", []string{"submit", bad}, 2, "takes flags only"},
		{"no such worker", []string{"memory", "nobody"}, 3, "error: there is no worker"},
		{"bad file", []string{"submit", "-f", bad}, 2, "bad.yaml"},
		{"no such task", []string{"describe", "task", "no-such-task"}, 3, "error: there is no task with the key no-such-task"},
		{"no such number to cancel", []string{"cancel", "t999999999"}, 3, "t999999999"},
		{"nobody there", []string{"status", "--address", "127.0.0.1:1", "--timeout", "2s"}, 4, "127.0.0.1:1"},
		{"wrong token", []string{"status", "--address", shared.Address, "--token", "wrong"}, 5, "token"},
		{"result not ready", []string{"get", "result", "no-such-key"}, 3, "no-such-key"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out, errs, code := shared.command(t, "", tc.args...)
			if code != tc.code || !strings.Contains(errs, tc.says) {
				t.Errorf("millrace %s: exit code %d, want %d\n%s%s", strings.Join(tc.args, " "), code, tc.code, out, errs)
			}
		})
	}
}
