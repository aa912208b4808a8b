package executor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	executorv1 "github.com/millrace/millrace/gen/go/millrace/executor/v1"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// Call is a function that processes call beside their runs.
type Call struct {
	// Op is the function; Function is its pickle, nil unless it is sent by value.
	Op       *millracev1.Op
	Function *millracev1.Function
	// Arguments is a serialised Arguments message without inputs.
	Arguments []byte
}

// Returned is the result of a call in one process.
type Returned struct {
	Slot, PID int
	// Header is the result as a serialised Value, empty for null; its frames are Frames.
	Header []byte
	Frames [][]byte
	// Error is the reason why the call failed, nil if it succeeded.
	Error *millracev1.TaskError
}

func (r *Returned) bytes() int {
	n := len(r.Header)
	for _, f := range r.Frames {
		n += len(f)
	}
	return n
}

// ErrNoKind says that a worker has no executor of a kind.
var ErrNoKind = errors.New("there is no such executor")

// calls are the calls that a process was sent and has not answered.
type calls struct {
	mu   sync.Mutex
	last uint64
	// open has a channel with room for the one answer of each call; nil when the process has ended.
	// Guarded by mu, as is last.
	open map[uint64]chan *executorv1.ExecutorReturn
}

// maxOpenCalls is the largest number of calls that a process may have to answer, also those whose
// caller has given up: the function of such a call still runs, and occupies a thread.
const maxOpenCalls = 1000

var (
	errEnded   = errors.New("it has just ended")
	errTooMany = fmt.Errorf("%d calls have not returned in it, also calls that were given up; wait for them, or restart its processes (RestartExecutors)", maxOpenCalls)
)

// add returns the number of a call that is about to be sent, and the channel of its answer.
func (c *calls) add() (number uint64, answer <-chan *executorv1.ExecutorReturn, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.open == nil:
		return 0, nil, errEnded
	case len(c.open) >= maxOpenCalls:
		return 0, nil, errTooMany
	}
	c.last++
	answered := make(chan *executorv1.ExecutorReturn, 1)
	c.open[c.last] = answered
	return c.last, answered, nil
}

// any reports whether a call has not returned.
func (c *calls) any() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open) > 0
}

// answer passes on an answer. Numbers of no open call are ignored.
func (c *calls) answer(r *executorv1.ExecutorReturn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if answered := c.open[r.GetCallId()]; answered != nil {
		delete(c.open, r.GetCallId())
		answered <- r
	}
}

// end answers all open calls with an error, and refuses further ones.
func (c *calls) end(e *millracev1.TaskError) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for number, answered := range c.open { // order-free: each has a channel of its own
		answered <- &executorv1.ExecutorReturn{CallId: number, Error: e}
	}
	c.open = nil
}

// Call calls a function in each process of a kind that runs tasks, or with one in one of them, and
// returns the results by slot. It starts a process if there is none. A process that fails or dies
// has an error in its result. The error is the context's, or ErrNoKind, or the reason why no
// process could be started. With noWait, it returns when the calls are queued.
func (p *Pools) Call(ctx context.Context, kind string, c *Call, one, noWait bool) ([]Returned, error) {
	slots := p.slots[kind]
	if len(slots) == 0 {
		return nil, fmt.Errorf("%w: %q; there are: %s", ErrNoKind, kind, strings.Join(p.Kinds(), ", "))
	}
	processes := p.ready(kind)
	if len(processes) == 0 {
		started, err := slots[0].await(ctx)
		if err != nil {
			return nil, err
		}
		processes = append(processes, started)
	}
	if one {
		processes = processes[:1]
	}
	answers := make([]<-chan *executorv1.ExecutorReturn, len(processes))
	results := make([]Returned, len(processes))
	for i, to := range processes {
		results[i] = Returned{Slot: to.slot.index, PID: to.pid()}
		answers[i], results[i].Error = to.call(c)
	}
	for i, from := range processes {
		if noWait || answers[i] == nil {
			continue
		}
		select {
		case r := <-answers[i]:
			results[i].Header, results[i].Frames, results[i].Error = r.GetHeader(), r.GetFrames(), r.GetError()
		case <-ctx.Done():
			return nil, fmt.Errorf("the function has not returned in process %d: %w", from.pid(), context.Cause(ctx))
		}
	}
	return results, nil
}

// ready returns the processes of a kind that can take runs, by slot.
func (p *Pools) ready(kind string) (list []*process) {
	for _, s := range p.slots[kind] {
		s.mu.Lock()
		if s.process != nil {
			list = append(list, s.process)
		}
		s.mu.Unlock()
	}
	return list
}

// await returns the slot's process. If there is none, it starts one and waits until it is ready.
func (s *slot) await(ctx context.Context) (*process, error) {
	s.mu.Lock()
	if p := s.process; p != nil {
		s.mu.Unlock()
		return p, nil
	}
	came := make(chan started, 1)
	s.awaiting = append(s.awaiting, came)
	s.mu.Unlock()
	s.wake()
	select {
	case x := <-came:
		return x.process, x.err
	case <-s.pools.closing:
		return nil, errors.New("the worker is leaving")
	case <-ctx.Done():
		return nil, fmt.Errorf("executor: no process of kind %q was ready: %w", s.kind, context.Cause(ctx))
	}
}

// started is a process that is ready, or the reason why there is none.
type started struct {
	process *process
	err     error
}

// settleAwaiting answers all that wait for a process of the slot. REQUIRES: mu is held.
func (s *slot) settleAwaiting(x started) {
	for _, came := range s.awaiting {
		came <- x
	}
	s.awaiting = nil
}

// call sends a call to the process, and returns the channel of its answer, or the reason why it was
// not sent. REQUIRES: the process is ready.
func (p *process) call(c *Call) (answer <-chan *executorv1.ExecutorReturn, refused *millracev1.TaskError) {
	m := &executorv1.ExecutorCall{Op: c.Op, Function: c.Function, Arguments: c.Arguments}
	if !p.supportsCalls {
		return nil, &millracev1.TaskError{Reason: "UNIMPLEMENTED", Message: fmt.Sprintf(
			"the executor %q takes no calls beside its runs: it does not say that it understands them (ready.supports_calls)", p.kind)}
	}
	if size := proto.Size(m); size > maxItemBytes {
		return nil, tooLargeError("the function and its arguments have %d bytes, and %d can be sent: let it read what is large from a file or an object", size, maxItemBytes)
	}
	var err error
	if m.CallId, answer, err = p.calls.add(); err != nil {
		reason := "EXECUTOR_DIED"
		if errors.Is(err, errTooMany) {
			reason = "EXECUTOR_ERROR"
		}
		return nil, &millracev1.TaskError{Reason: reason, Message: fmt.Sprintf("the executor process (%s, pid %d) takes no call: %v", p.kind, p.pid(), err)}
	}
	p.slot.mu.Lock()
	to := p.queue()
	to.Calls = append(to.Calls, m)
	p.slot.mu.Unlock()
	return answer, nil
}
