package millrace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

func insecureOption() grpc.DialOption {
	return grpc.WithTransportCredentials(insecure.NewCredentials())
}

// eventTimeout is how long tests wait for an event that must happen.
const eventTimeout = 5 * time.Minute

func soon(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), eventTimeout)
	tb.Cleanup(cancel)
	return ctx
}

func TestSubmitReturnsValues(t *testing.T) {
	c := newFake(t).dial(t)
	ctx := soon(t)
	array, err := FromSlice([]int32{1, 2, 3, 4, 5, 6}, 2, 3)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []any{
		nil, true, int64(-3), 2.5, 1 + 2i, "text", []byte("raw"), []any{int64(1), "a", nil}, map[string]any{"x": int64(1), "y": []any{}}, array,
	} {
		f, err := c.Submit(ctx, Native("echo"), Args(want))
		if err != nil {
			t.Fatal(err)
		}
		got, err := f.Value(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %#v, want %#v", got, want)
		}
	}
}

// TestKeysDoNotShowTheLease: a client's number allows its user to release what the client holds,
// and every user of the cluster can list keys. So generated keys must not contain this number.
func TestKeysDoNotShowTheLease(t *testing.T) {
	cluster := newFake(t)
	seen := map[string]bool{}
	for range 3 {
		c := cluster.dial(t)
		for range 2 {
			f, err := c.Submit(soon(t), Native("echo"), Args(1))
			if err != nil {
				t.Fatal(err)
			}
			key := f.Key()
			if strings.Contains(key, strconv.FormatUint(c.ID(), 10)) {
				t.Errorf("key %s shows the number of its client, %d", key, c.ID())
			}
			if seen[key] {
				t.Errorf("key %s was made up twice", key)
			}
			seen[key] = true
		}
	}
}

func TestGetConverts(t *testing.T) {
	c := newFake(t).dial(t)
	ctx := soon(t)
	submit := func(v any) *Future {
		f, err := c.Submit(ctx, Native("echo"), Args(v))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	if got, err := Get[uint8](ctx, submit(200)); err != nil || got != 200 {
		t.Errorf("uint8: %v, %v", got, err)
	}
	if _, err := Get[int8](ctx, submit(200)); err == nil {
		t.Error("200 must not become an int8")
	}
	if got, err := Get[[]float64](ctx, submit([]any{1, 2.5})); err != nil || !slices.Equal(got, []float64{1, 2.5}) {
		t.Errorf("list: %v, %v", got, err)
	}
	if got, err := Get[map[string][]int](ctx, submit(map[string]any{"a": []int{1, 2}})); err != nil || !reflect.DeepEqual(got, map[string][]int{"a": {1, 2}}) {
		t.Errorf("map: %v, %v", got, err)
	}
	a, err := FromSlice([]float64{7})
	if err != nil {
		t.Fatal(err)
	}
	a.Shape = []int{}
	if got, err := Get[float64](ctx, submit(a)); err != nil || got != 7 {
		t.Errorf("0-d array: %v, %v", got, err)
	}
	if _, err := Get[int](ctx, submit("text")); err == nil {
		t.Error("text must not become an int")
	}
	if got, err := Get[any](ctx, submit(nil)); err != nil || got != nil {
		t.Errorf("null: %v, %v", got, err)
	}
}

func TestCallsQueuedMeanwhileTravelTogether(t *testing.T) {
	fake := newFake(t)
	fake.gate = make(chan struct{})
	c := fake.dial(t)
	ctx := soon(t)
	var futures []*Future
	for i := range 1000 {
		f, err := c.Submit(ctx, Native("echo"), Args(i))
		if err != nil {
			t.Fatal(err)
		}
		futures = append(futures, f)
	}
	close(fake.gate)
	got, err := Gather[int](ctx, futures...)
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range got {
		if v != i {
			t.Fatalf("result %d is %d", i, v)
		}
	}
	if len(fake.batches) > 2 {
		t.Errorf("1000 calls took %d submissions: %v", len(fake.batches), fake.batches)
	}
}

func TestRefusedTaskDoesNotHarmOthers(t *testing.T) {
	fake := newFake(t)
	fake.gate = make(chan struct{})
	c := fake.dial(t)
	ctx := soon(t)
	var good []*Future
	var bad, below *Future
	for i := range 50 {
		op := Native("echo")
		if i == 31 {
			op = Native("no.such.op")
		}
		f, err := c.Submit(ctx, op, Args(i))
		if err != nil {
			t.Fatal(err)
		}
		if i == 31 {
			bad = f
			if below, err = c.Submit(ctx, Native("echo"), Args(bad)); err != nil {
				t.Fatal(err)
			}
			continue
		}
		good = append(good, f)
	}
	close(fake.gate)
	if err := c.Flush(ctx); !errors.Is(err, ErrUnknownOp) {
		t.Errorf("flush: %v", err)
	}
	if err := WaitAll(ctx, good...); err != nil {
		t.Errorf("a good task: %v", err)
	}
	if err := bad.Wait(ctx); !errors.Is(err, ErrUnknownOp) {
		t.Errorf("bad task: %v", err)
	}
	if err := below.Wait(ctx); !errors.Is(err, ErrUnknownOp) {
		t.Errorf("task below it: %v", err)
	}
}

func TestLostAnswerIsAppliedOnce(t *testing.T) {
	fake := newFake(t)
	fake.dropSubmits = 2
	c := fake.dial(t)
	ctx := soon(t)
	f, err := c.Submit(ctx, Native("echo"), Args("x"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Get[string](ctx, f); err != nil || got != "x" {
		t.Fatalf("%v, %v", got, err)
	}
	if !slices.Equal(fake.batches, []int{1}) {
		t.Errorf("submissions: %v", fake.batches)
	}
}

func TestWatchReconnects(t *testing.T) {
	fake := newFake(t)
	c := fake.dial(t)
	ctx := soon(t)
	first, err := c.Submit(ctx, Native("echo"), Args(1))
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	fake.mu.Lock()
	old := fake.breakWatch
	fake.breakWatch = make(chan struct{})
	fake.mu.Unlock()
	close(old)
	second, err := c.Submit(ctx, Native("echo"), Args(2))
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Wait(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestTaskErrors(t *testing.T) {
	c := newFake(t).dial(t)
	ctx := soon(t)
	f, err := c.Submit(ctx, Python("m:f"), Args(), WithKey("k"))
	if err != nil {
		t.Fatal(err)
	}
	f.Release()
	if err := f.Wait(ctx); !errors.Is(err, ErrReleased) {
		t.Errorf("released: %v", err)
	}
	f, err = c.Submit(ctx, Native("fail"), Args(), WithKey("bad"))
	if err != nil {
		t.Fatal(err)
	}
	err = f.Wait(ctx)
	var te *TaskError
	if !errors.As(err, &te) || te.Key != "bad" || te.Worker != "host-0" || te.Traceback == "" {
		t.Fatalf("%#v", err)
	}
	if !errors.Is(err, ErrTaskFailed) || !errors.Is(err, ErrPythonException) || errors.Is(err, ErrTaskCancelled) || errors.Is(err, ErrInputFailed) {
		t.Errorf("%v matches the wrong sentinels", err)
	}
	if f.State() != Failed {
		t.Errorf("state %v", f.State())
	}
}

func TestWaitEndsWithContextAndClose(t *testing.T) {
	c := newFake(t).dial(t)
	f, err := c.Submit(soon(t), Native("never"), Args())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := f.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("deadline: %v", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- f.Wait(context.Background()) }()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	if _, err := c.Submit(soon(t), Native("echo"), Args(1)); !errors.Is(err, ErrClosed) {
		t.Errorf("submit after close: %v", err)
	}
}

func TestSameKeyTwiceIsOneTask(t *testing.T) {
	fake := newFake(t)
	c := fake.dial(t)
	ctx := soon(t)
	a, err := c.Submit(ctx, Native("echo"), Args(1), WithKey("k"))
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	b, err := c.Submit(ctx, Native("echo"), Args(1), WithKey("k"))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	if a.TaskID() != b.TaskID() {
		t.Errorf("tasks %d and %d", a.TaskID(), b.TaskID())
	}
	a.Release()
	if ids := c.futures.forget(nil); ids != nil {
		t.Errorf("forget of nothing: %v", ids)
	}
	if got := c.futures.forget([]*Future{b}); !slices.Equal(got, []uint64{b.TaskID()}) {
		t.Errorf("the last future gives the task up, got %v", got)
	}
}

func TestGraphs(t *testing.T) {
	for _, n := range []int{10, 25_000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			fake := newFake(t)
			c := fake.dial(t)
			ctx := soon(t)
			g := c.NewGraph("test")
			var last Key
			for i := range n {
				if last == "" {
					last = g.Add("", Native("bench.noop"), Args())
				} else if i%2 == 0 {
					last = g.Add("", Native("bench.noop"), Args(last, last, i))
				} else {
					key := fmt.Sprint("k", i)
					g.AddCall(key, Native("bench.noop"), []string{string(last)}, false)
					last = Key(key)
				}
			}
			last = g.Add("end", Native("echo"), Args(n), Hold())
			run, err := g.Submit(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := run.Wait(ctx); err != nil {
				t.Fatal(err)
			}
			if got, err := Get[int](ctx, run.Future(last)); err != nil || got != n {
				t.Errorf("%v, %v", got, err)
			}
			if len(fake.batches) != 1 || fake.batches[0] != n+1 {
				t.Errorf("submissions: %v", fake.batches)
			}
			run.Release()
		})
	}
}

func TestGraphMistakes(t *testing.T) {
	c := newFake(t).dial(t)
	ctx := soon(t)
	if _, err := c.NewGraph("g").Submit(ctx); err == nil {
		t.Error("an empty graph was accepted")
	}
	g := c.NewGraph("g")
	g.Add("a", Native("echo"), Args(1))
	if _, err := g.Submit(ctx); err == nil {
		t.Error("a graph that keeps nothing was accepted")
	}
	g = c.NewGraph("g")
	g.Add("a", Native("echo"), Args(make(chan int)), Hold())
	if _, err := g.Submit(ctx); err == nil {
		t.Error("a channel was accepted as an argument")
	}
	g = c.NewGraph("g")
	g.Add("a", Native("echo"), Args(Key("nowhere")), Hold())
	if _, err := g.Submit(ctx); !errors.Is(err, ErrUnknownInput) {
		t.Errorf("unknown input: %v", err)
	}
}

func TestFarResultsAndScatter(t *testing.T) {
	c := newFake(t).dial(t)
	ctx := soon(t)
	var futures []*Future
	for range 5 {
		f, err := c.Submit(ctx, Native("far"), Args())
		if err != nil {
			t.Fatal(err)
		}
		futures = append(futures, f)
	}
	got, err := Gather[[]float64](ctx, futures...)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range got {
		if !slices.Equal(g, []float64{1, 2, 3}) {
			t.Errorf("%v", g)
		}
	}
	numbers := make([]float64, 300_000)
	for i := range numbers {
		numbers[i] = float64(i)
	}
	a, err := FromSlice(numbers, 3, 100_000)
	if err != nil {
		t.Fatal(err)
	}
	f, err := c.Scatter(ctx, a)
	if err != nil {
		t.Fatal(err)
	}
	back, err := f.Array(ctx)
	if err != nil || !reflect.DeepEqual(back, a) {
		t.Errorf("array %v came back as %v, %v", a, back, err)
	}
	dst := make([]byte, len(a.Data))
	if back, err = f.ArrayInto(ctx, dst); err != nil || !reflect.DeepEqual(back, a) || &back.Data[0] != &dst[0] {
		t.Errorf("array into: %v, %v", back, err)
	}
	if _, err := f.ArrayInto(ctx, dst[:10]); err == nil {
		t.Error("a destination of 10 bytes was enough")
	}
	s, err := c.Scatter(ctx, map[string]any{"a": 1})
	if err != nil {
		t.Fatal(err)
	}
	if v, err := s.Value(ctx); err != nil || !reflect.DeepEqual(v, map[string]any{"a": int64(1)}) {
		t.Errorf("scattered map: %v, %v", v, err)
	}
}

func TestSlicesOfNumbersAreScatteredAsArrays(t *testing.T) {
	c := newFake(t).dial(t)
	ctx := soon(t)
	numbers := make([]float64, 5_000_000) // 40 MB: encoded as a list of values, it would exceed the largest message
	numbers[4_999_999] = 7
	f, err := c.Scatter(ctx, numbers)
	if err != nil {
		t.Fatal(err)
	}
	if back, err := Get[[]float64](ctx, f); err != nil || !slices.Equal(back, numbers) {
		t.Errorf("%d numbers came back as %d, %v", len(numbers), len(back), err)
	}
	for _, value := range []any{[]int{1, -2}, []int64{1, -2}} {
		f, err := c.Scatter(ctx, value)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := Get[[]int64](ctx, f); err != nil || !slices.Equal(back, []int64{1, -2}) {
			t.Errorf("%T came back as %v, %v", value, back, err)
		}
	}
	words := make([]string, 20)
	for i := range words {
		words[i] = strings.Repeat("x", 1<<20)
	}
	if _, err := c.Scatter(ctx, words); err == nil || !strings.Contains(err.Error(), "21.0 MB") || !strings.Contains(err.Error(), "scatter parts") {
		t.Errorf("a value of 21 MB that is no Array: %v", err)
	}
}

func TestArgumentsThatCannotBeSentAreRefusedByTheCall(t *testing.T) {
	c := newFake(t).dial(t)
	ctx := soon(t)
	var none *Future
	for _, args := range []Arguments{Args(none), Args([]*Future{none}), Args(map[string]any{"a": []any{none}})} {
		if _, err := c.Submit(ctx, Native("echo"), args); err == nil || !strings.Contains(err.Error(), "nil *Future") {
			t.Errorf("a nil future: %v", err)
		}
	}
	if _, err := c.Submit(ctx, Native("echo"), Args(make([]float64, 5_000_000))); err == nil || !strings.Contains(err.Error(), "Scatter") {
		t.Errorf("40 MB of numbers as an argument: %v", err)
	}
	if f, err := c.Submit(ctx, Native("echo"), Args(1)); err != nil {
		t.Error(err)
	} else if v, err := f.Value(ctx); err != nil || v != int64(1) {
		t.Errorf("the next call: %v, %v", v, err)
	}
}

func TestAFullSchedulerIsAskedAgain(t *testing.T) {
	cluster := newFake(t)
	cluster.full = 2
	c := cluster.dial(t)
	f, err := c.Submit(soon(t), Native("echo"), Args(1))
	if err != nil {
		t.Fatal(err)
	}
	if v, err := f.Value(soon(t)); err != nil || v != int64(1) {
		t.Errorf("%v, %v", v, err)
	}
	cluster.mu.Lock()
	cluster.full = 1 << 20
	cluster.mu.Unlock()
	short := cluster.dial(t, WithRetryTimeout(time.Millisecond))
	if f, err = short.Submit(soon(t), Native("echo"), Args(2)); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Value(soon(t)); !errors.Is(err, ErrSchedulerFull) {
		t.Errorf("%v", err)
	}
}

// TestSnapshotInSeveralMessages: a task that is not in the first part of a snapshot still exists.
func TestSnapshotInSeveralMessages(t *testing.T) {
	cluster := newFake(t)
	cluster.inParts = true
	c := cluster.dial(t)
	var calls []Arguments
	for i := range 20 {
		calls = append(calls, Args(i))
	}
	futures, err := c.Map(soon(t), Native("echo"), slices.Values(calls))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range futures {
		for f.State() == Queued {
			runtime.Gosched()
		}
	}
	cluster.notify()
	for i, f := range futures {
		if v, err := f.Value(soon(t)); err != nil || v != int64(i) {
			t.Errorf("task %d: %v, %v", i, v, err)
		}
	}
}

func TestAsCompletedYieldsAll(t *testing.T) {
	c := newFake(t).dial(t)
	ctx := soon(t)
	calls := func(yield func(Arguments) bool) {
		for i := range 100 {
			if !yield(Args(i)) {
				return
			}
		}
	}
	futures, err := c.Map(ctx, Native("echo"), calls)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for f, err := range AsCompleted(ctx, futures...) {
		if f == nil || err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 100 {
		t.Errorf("%d of 100", n)
	}
	stuck, err := c.Submit(ctx, Native("never"), Args())
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	for f, err := range AsCompleted(short, stuck) {
		if f != nil || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, %v", f, err)
		}
	}
}

func TestFindCluster(t *testing.T) {
	file := filepath.Join(t.TempDir(), "s.json")
	if err := os.WriteFile(file, []byte(`{"id":"x","address":"h:1","token":"secret"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, address, token, file, envAddress, envToken, envFile string
		wantAddress, wantToken                                    string
		fails                                                     bool
	}{
		{name: "argument wins", address: "a:1", token: "t", envAddress: "b:1", envToken: "u", wantAddress: "a:1", wantToken: "t"},
		{name: "environment", envAddress: "b:1", envToken: "u", envFile: file, wantAddress: "b:1", wantToken: "u"},
		{name: "file argument before environment", file: file, envAddress: "b:1", envToken: "u", wantAddress: "h:1", wantToken: "secret"},
		{name: "file in environment", envFile: file, wantAddress: "h:1", wantToken: "secret"},
		{name: "nothing", fails: true},
		{name: "missing file", file: file + "x", fails: true},
		{name: "scheme", address: "tcp://a:1", wantAddress: "a:1"},
		{name: "no port", address: "a", fails: true},
		{name: "control characters", address: "\x1b:1", fails: true},
		{name: "port in the environment", envAddress: "a:99999", fails: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv(EnvAddress, tc.envAddress)
			t.Setenv(EnvToken, tc.envToken)
			t.Setenv(EnvSchedulerFile, tc.envFile)
			address, token, err := findCluster(tc.address, tc.token, tc.file)
			if (err != nil) != tc.fails || address != tc.wantAddress || token != tc.wantToken {
				t.Errorf("%q, %q, %v", address, token, err)
			}
		})
	}
}

// The error for a wrong scheduler file names the file.
func TestWrongSchedulerFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "s.json")
	for text, want := range map[string]string{
		"":                        "it is empty",
		"hello":                   "it is not the JSON of a scheduler",
		"{}":                      `it has no "address"`,
		`{"address":"h:99999"}`:   `the port "99999"`,
		`{"address":"\u001b[2J"}`: `"\x1b[2J" is not an address`,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadSchedulerFile(file); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestResultsThatAreGoneWithTheLease: a result that was not fetched yet is gone, too, and its error
// names the cause. A result that came with its update is still there.
func TestResultsThatAreGoneWithTheLease(t *testing.T) {
	f := newFake(t)
	c := f.dial(t)
	table := &c.futures
	far, inline := &Future{client: c, key: "far"}, &Future{client: c, key: "inline"}
	table.bind([]*Future{far, inline}, []uint64{5, 6}, 1, nil)
	table.update([]taskUpdate{{id: 5, state: Succeeded, end: &outcome{bytes: 1 << 20}}, {id: 6, state: Succeeded, end: nullOutcome}})
	table.failAll(fmt.Errorf("%w (the scheduler was started anew)", ErrLeaseLost))
	ctx := soon(t)
	if _, err := far.Result(ctx); !errors.Is(err, ErrLeaseLost) || !strings.Contains(err.Error(), "started anew") || far.State() != Failed {
		t.Errorf("the result that was not fetched: %v, %s", err, far)
	}
	if _, err := inline.Result(ctx); err != nil {
		t.Errorf("the result that is here: %v", err)
	}
}

// TestSnapshotOlderThanTheTask: the first message of a Watch may have been made before a submission
// whose answer arrived earlier than this message.
func TestSnapshotOlderThanTheTask(t *testing.T) {
	var table futureTable
	table.init()
	f := &Future{key: "k"}
	table.bind([]*Future{f}, []uint64{1}, 5, nil)
	table.snapshot(nil, 5)
	if f.end.Load() != nil {
		t.Fatal("a snapshot of revision 5 ended a task of revision 5")
	}
	table.snapshot(nil, 6)
	if end := f.end.Load(); end == nil || !errors.Is(end.err, ErrLeaseLost) {
		t.Fatal("a snapshot of revision 6 without the task did not end it")
	}
}

// TestAnOldFailureSaysSo: a future whose submission joined a failed task says that the failure is
// older than the submission, until the task runs again.
func TestAnOldFailureSaysSo(t *testing.T) {
	var table futureTable
	table.init()
	table.begin()
	defer table.end()
	failed := func(id uint64) []taskUpdate {
		return []taskUpdate{{id: id, state: Failed, failure: &millracev1.TaskError{Reason: "BOOM", Message: "it fails"}}}
	}
	joined := func(f *Future) bool {
		end := f.end.Load()
		if end == nil {
			t.Fatalf("%s has not failed", f.key)
		}
		var e *TaskError
		if !errors.As(end.err, &e) || e.Reason != "BOOM" {
			t.Fatalf("%s: %v", f.key, end.err)
		}
		if strings.Contains(e.Error(), "before this submission") != e.Joined {
			t.Errorf("%s: %v", f.key, e)
		}
		return e.Joined
	}
	fresh, early, late, again := &Future{key: "fresh"}, &Future{key: "early"}, &Future{key: "late"}, &Future{key: "late"}
	table.update(failed(2)) // arrives before the answer to the submission
	table.bind([]*Future{fresh, early, late}, []uint64{1, 2, 3}, 5, []uint64{2, 3})
	table.update(failed(1))
	table.update(failed(3))
	table.bind([]*Future{again}, []uint64{3}, 6, []uint64{3})
	if joined(fresh) || !joined(early) || !joined(late) || !joined(again) {
		t.Errorf("%v %v %v %v", fresh, early, late, again)
	}
	table.update(failed(2))
	if !joined(early) {
		t.Error("the same failure, told again, is said to be new")
	}
	table.update([]taskUpdate{{id: 2, state: Failed, failure: &millracev1.TaskError{Reason: "BOOM", Attempt: 2}}})
	if joined(early) {
		t.Error("the failure of a later attempt is said to be old")
	}
	table.update([]taskUpdate{{id: 3, state: Waiting}})
	table.update(failed(3))
	if joined(late) || joined(again) {
		t.Error("the retried task is said to be old")
	}
	// Retry was called, and the stream leaves out the states between the two failures.
	before := []*outcome{early.end.Load()}
	table.forgetJoined([]*Future{early})
	table.revive([]*Future{early}, before)
	table.update(failed(2))
	if joined(early) {
		t.Error("a failure after a retry is said to be old")
	}
}
