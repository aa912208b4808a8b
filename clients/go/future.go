package millrace

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// State is the state of a task.
type State = millracev1.TaskState

// The states, by short names. Queued exists in the client only: the scheduler has not acknowledged
// the task yet.
const (
	Queued    = millracev1.TaskState_TASK_STATE_UNSPECIFIED
	Waiting   = millracev1.TaskState_TASK_STATE_WAITING
	Ready     = millracev1.TaskState_TASK_STATE_READY
	Assigned  = millracev1.TaskState_TASK_STATE_ASSIGNED
	Running   = millracev1.TaskState_TASK_STATE_RUNNING
	Succeeded = millracev1.TaskState_TASK_STATE_SUCCEEDED
	Failed    = millracev1.TaskState_TASK_STATE_FAILED
	Cancelled = millracev1.TaskState_TASK_STATE_CANCELLED
	Released  = millracev1.TaskState_TASK_STATE_RELEASED
	Rescuing  = millracev1.TaskState_TASK_STATE_RESCUING
)

// Future refers to the result of a task, which may still be running. The cluster keeps the result
// until the Future is released or its Client is closed. The garbage collector does not release a
// Future: a cleanup function for each of a million futures would cost more than the futures
// themselves, which are allocated in blocks of hundreds.
type Future struct {
	client *Client
	key    string

	state atomic.Int32
	end   atomic.Pointer[outcome] // nil until the task has ended

	// The fields below are guarded by client.futures.mu.
	id       uint64 // 0 until the scheduler has acknowledged the task
	since    uint64 // the revision of the client's tasks after which every snapshot includes the task
	next     *Future
	wake     *waiters
	released bool
	// joinedFailure: the task had failed before it was submitted, and does not run again.
	joinedFailure bool
}

// outcome describes how a task ended. It does not change; a task that runs again gets another
// outcome.
type outcome struct {
	inline   []byte // a serialised Value; nil if the result must be fetched
	isInline bool
	bytes    uint64
	worker   uint32
	attempt  uint32
	err      error
}

// joined returns the outcome for a future whose submission joined the task after its failure, if
// failure is true.
func (o *outcome) joined(failure bool) *outcome {
	var e *TaskError
	if !failure || !errors.As(o.err, &e) {
		return o
	}
	marked, out := *e, *o
	marked.Joined, out.err = true, &marked
	return &out
}

// nullOutcome is the outcome of most tasks without a result. It is shared, which saves an
// allocation for each task.
var nullOutcome = &outcome{isInline: true, inline: []byte{fieldValueNull << 3, 0}}

// waiters are the channel and the queues that wait for one future.
type waiters struct {
	done   chan struct{} // closed by the table when the future ends; nil if Done was not called
	queues []*completions
}

// Key returns the key of the task.
func (f *Future) Key() string { return f.key }

// TaskID returns the scheduler's number of the task; 0 until the scheduler has acknowledged the
// task.
func (f *Future) TaskID() uint64 {
	f.client.futures.mu.Lock()
	defer f.client.futures.mu.Unlock()
	return f.id
}

// State returns the last known state of the task.
func (f *Future) State() State { return State(f.state.Load()) }

// String returns the key and the state.
func (f *Future) String() string { return fmt.Sprintf("Future(%s, %s)", f.key, stateName(f.State())) }

func stateName(s State) string {
	if s == Queued {
		return "QUEUED"
	}
	return strings.TrimPrefix(s.String(), "TASK_STATE_") // an unknown state is a number
}

// Done returns a channel that is closed when the task has ended.
func (f *Future) Done() <-chan struct{} {
	t := &f.client.futures
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.end.Load() != nil {
		return closedChan
	}
	if f.wake == nil {
		f.wake = new(waiters)
	}
	if f.wake.done == nil {
		f.wake.done = make(chan struct{})
	}
	return f.wake.done
}

var closedChan = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Wait waits until the task has ended. It returns nil if the task succeeded, and a *TaskError if it
// failed or was cancelled.
func (f *Future) Wait(ctx context.Context) error {
	_, err := f.wait(ctx)
	return err
}

func (f *Future) wait(ctx context.Context) (*outcome, error) {
	for {
		if end := f.end.Load(); end != nil {
			return end, end.err
		}
		select {
		case <-f.Done():
		case <-ctx.Done():
			return nil, fmt.Errorf("millrace: task %q is %s: %w", f.key, stateName(f.State()), context.Cause(ctx))
		}
	}
}

// Object is a result in its stored form: a value whose tensors and opaque parts may refer to frames
// by index.
type Object struct {
	// Value describes the result.
	Value *millracev1.Value
	// Frames holds the bytes to which Value refers.
	Frames [][]byte
}

// Result waits for the task and returns its result in its stored form. It fetches the result from a
// worker, unless the result is small.
func (f *Future) Result(ctx context.Context) (Object, error) {
	end, err := f.wait(ctx)
	if err != nil {
		return Object{}, err
	}
	if end.isInline {
		v := new(millracev1.Value)
		if err := proto.Unmarshal(end.inline, v); err != nil {
			return Object{}, fmt.Errorf("millrace: result of task %q: %w", f.key, err)
		}
		return Object{Value: v}, nil
	}
	objects, err := f.client.fetch(ctx, []*Future{f}, nil)
	if err != nil {
		return Object{}, err
	}
	return objects[0], nil
}

// Value waits for the task and returns its result as a Go value: nil, bool, int64, float64,
// complex128, string, []byte, []any, map[string]any, Array, or Opaque.
func (f *Future) Value(ctx context.Context) (any, error) {
	if end := f.end.Load(); end == nullOutcome {
		return nil, nil
	}
	o, err := f.Result(ctx)
	if err != nil {
		return nil, err
	}
	v, err := goValue(o.Value, o.Frames)
	if err != nil {
		return nil, fmt.Errorf("result of task %q: %w", f.key, err)
	}
	return v, nil
}

// Array waits for the task and returns its result, which must be an array.
func (f *Future) Array(ctx context.Context) (Array, error) { return Get[Array](ctx, f) }

// ArrayInto is like Array, but writes the elements to the beginning of dst, which must be large
// enough. The returned Array shares dst. A contiguous array is read from the connection directly
// into dst.
func (f *Future) ArrayInto(ctx context.Context, dst []byte) (Array, error) {
	end, err := f.wait(ctx)
	if err != nil {
		return Array{}, err
	}
	if end.isInline {
		a, err := f.Array(ctx)
		if err != nil {
			return Array{}, err
		}
		if len(a.Data) > len(dst) {
			return Array{}, fmt.Errorf("millrace: result of task %q has %d bytes, the destination %d", f.key, len(a.Data), len(dst))
		}
		a.Data = dst[:copy(dst, a.Data)]
		return a, nil
	}
	objects, err := f.client.fetch(ctx, []*Future{f}, dst)
	if err != nil {
		return Array{}, err
	}
	v, err := goValue(objects[0].Value, objects[0].Frames)
	if err != nil {
		return Array{}, fmt.Errorf("result of task %q: %w", f.key, err)
	}
	return convert[Array](f.key, v)
}

// Release gives up the result: the cluster may free it as soon as nothing else needs it.
// A task that has not started, and that is not needed otherwise, never runs.
// Waits on the Future end with ErrReleased.
func (f *Future) Release() { f.client.releaseFutures([]*Future{f}) }

// Cancel stops the task and all tasks that need its result.
func (f *Future) Cancel(ctx context.Context) error {
	_, err := f.client.Cancel(ctx, f)
	return err
}

// completions is a queue of futures that ended, for one AsCompleted.
type completions struct {
	mu    sync.Mutex
	ended []*Future
	bell  chan struct{} // holds a token while ended is not empty
}

func (q *completions) push(f *Future) {
	q.mu.Lock()
	q.ended = append(q.ended, f)
	q.mu.Unlock()
	select {
	case q.bell <- struct{}{}:
	default:
	}
}

func (q *completions) take() []*Future {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := q.ended
	q.ended = nil
	return out
}

// AsCompleted yields the futures in the order in which they end, each with its error.
// When ctx ends, it yields a nil Future with the context's error, and stops.
func AsCompleted(ctx context.Context, futures ...*Future) iter.Seq2[*Future, error] {
	return func(yield func(*Future, error) bool) {
		q := &completions{bell: make(chan struct{}, 1)}
		for _, f := range futures {
			f.client.futures.subscribe(f, q)
		}
		for left := len(futures); left > 0; {
			select {
			case <-ctx.Done():
				yield(nil, fmt.Errorf("millrace: %d of %d tasks have not ended: %w", left, len(futures), context.Cause(ctx)))
				return
			case <-q.bell:
			}
			for _, f := range q.take() {
				left--
				var err error
				if end := f.end.Load(); end != nil {
					err = end.err
				}
				if !yield(f, err) {
					return
				}
			}
		}
	}
}

// WaitAll waits until all tasks have ended, and returns the first error in the order of futures.
func WaitAll(ctx context.Context, futures ...*Future) error {
	var first error
	for _, f := range futures {
		if err := f.Wait(ctx); err != nil {
			if ctx.Err() != nil {
				return err
			}
			if first == nil {
				first = err
			}
		}
	}
	return first
}
