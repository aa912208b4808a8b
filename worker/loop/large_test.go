package loop_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/loop"
	"github.com/millrace/millrace/worker/workertest"
)

// reluctant is a path that lends the objects of a shelf after it has given some other answers.
type reluctant struct {
	*shelf
	mu sync.Mutex
	// answers are the errors of the next requests, the first one next; forever: the last one stays.
	answers []error
	forever bool
	// asked counts the requests. needs says of each whether the objects were said to be needed.
	needs []bool
	// again gets an element at each request from the second on.
	again chan struct{}
}

// ofRequest marks an answer to the whole request, not about an object.
type ofRequest struct{ error }

func (o ofRequest) Unwrap() error { return o.error }

func (r *reluctant) Capabilities() transfer.Capabilities { return transfer.Capabilities{Borrow: r} }

func (r *reluctant) Lends(transfer.Peer) bool { return true }

func (r *reluctant) Borrow(_ context.Context, at transfer.Peer, refs []transfer.Ref, needs bool) ([]transfer.Loan, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.needs = append(r.needs, needs); len(r.needs) > 1 {
		select {
		case r.again <- struct{}{}:
		default:
		}
	}
	loans := make([]transfer.Loan, len(refs))
	if len(r.answers) == 0 {
		for i, ref := range refs {
			r.Lend(at, ref, &loans[i])
		}
		return loans, nil
	}
	answer := r.answers[0]
	if len(r.answers) > 1 || !r.forever {
		r.answers = r.answers[1:]
	}
	if whole := (ofRequest{}); errors.As(answer, &whole) {
		return nil, answer
	}
	for i := range loans {
		loans[i].Err = answer
	}
	return loans, nil
}

// slabBytes is the size of the slab of the workers in these tests.
const slabBytes = 128 << 20

// needsPeers returns an assignment that reads an object of the shelf. The object is said to be
// twice as large as the slab.
func needsPeers(task, object uint64) *workerv1.Assignment {
	a := checksumOf(task, object)
	a.Inputs[0].Bytes = 2 * slabBytes
	return a
}

func reluctantWorker(t *testing.T, wait time.Duration, forever bool, answers ...error) (*reluctant, *workertest.Session) {
	t.Helper()
	scheduler := workertest.NewScheduler(t)
	var path *reluctant
	workerOf(t, scheduler, func(s *shelf) transfer.Path {
		path = &reluctant{shelf: s, answers: answers, forever: forever, again: make(chan struct{}, 1)}
		return path
	}, nil, func(c *loop.Config) { c.MemoryWait = wait })
	return path, acceptWorker(t, scheduler)
}

// An input that is too large to be copied is asked for until it is lent: reasons that do not last
// are no reasons to fail.
func TestInputsThatCannotBeCopiedAreAskedForAgain(t *testing.T) {
	path, s := reluctantWorker(t, workertest.EventTimeout, false,
		transfer.ErrUnreachable, transfer.ErrUnreachable, ofRequest{context.DeadlineExceeded}, ofRequest{transfer.ErrStalled})
	s.Assign(needsPeers(1001, 1))
	if r := s.Report(1001); value(t, r) == 0 || r.GetFetchedBytes() != 0 {
		t.Errorf("%v", r)
	}
	// Only after the first answer is it known that a copy does not fit.
	if want := []bool{false, true, true, true, true}; !slices.Equal(path.needs, want) {
		t.Errorf("needed: %v, want %v", path.needs, want)
	}
	// However often it is borrowed, it is not copied.
	for task := uint64(1002); task < 1010; task++ {
		s.Assign(needsPeers(task, 1))
		if r := s.Report(task); r.GetFetchedBytes() != 0 || value(t, r) == 0 {
			t.Errorf("%v", r)
		}
	}
}

// A holder that is lost, or has lost the object, is a matter for the scheduler.
func TestLossOfInputsThatCannotBeCopiedIsReported(t *testing.T) {
	for _, x := range []struct {
		answer  error
		missing bool
	}{{transfer.ErrNotHere, true}, {ofRequest{transfer.ErrPeerLost}, false}} {
		_, s := reluctantWorker(t, workertest.EventTimeout, true, x.answer)
		s.Assign(needsPeers(1001, 1))
		r := s.Report(1001, workerv1.TaskOutcome_TASK_OUTCOME_INPUT_UNREACHABLE)
		u := r.GetUnreachable()
		if len(u) != 1 || u[0].GetTaskId() != 1 || slices.Equal(u[0].GetMissingAt(), []uint32{shelfPeer}) != x.missing || slices.Equal(u[0].GetFailedAt(), []uint32{shelfPeer}) == x.missing {
			t.Errorf("%v: %v", x.answer, r)
		}
	}
}

// A task fails if its inputs can be neither copied nor read in place, at once if no peer can lend
// them, and otherwise after the longest wait for memory. The error says why.
func TestInputsThatAreNeverLentFailTheTask(t *testing.T) {
	for _, x := range []struct {
		answer error
		wait   time.Duration
	}{{ofRequest{transfer.ErrUnreachable}, time.Hour}, {transfer.ErrUnreachable, 20 * time.Millisecond}} {
		_, s := reluctantWorker(t, x.wait, true, x.answer)
		s.Assign(needsPeers(1001, 1))
		e := s.Report(1001, workerv1.TaskOutcome_TASK_OUTCOME_FAILED).GetError()
		if e.GetReason() != "OUT_OF_MEMORY" || !strings.Contains(e.GetMessage(), "larger than the slab") || !strings.Contains(e.GetMessage(), "could not be read in place either: input 0") {
			t.Errorf("%v: %v", x.answer, e)
		}
	}
}

// A task that waits until its input is lent can be retracted and cancelled.
func TestATaskThatAsksAgainCanBeRetracted(t *testing.T) {
	path, s := reluctantWorker(t, time.Hour, true, transfer.ErrUnreachable)
	for task, order := range []*workerv1.SessionResponse{
		{Retractions: []*workerv1.AttemptRef{{TaskId: 1000, Attempt: 1}}}, {Cancellations: []*workerv1.AttemptRef{{TaskId: 1001, Attempt: 1}}},
	} {
		s.Assign(needsPeers(1000+uint64(task), 1))
		await(t, path.again, "the second request")
		await(t, path.again, "the third request")
		s.Send(order)
		s.Report(1000+uint64(task), workerv1.TaskOutcome_TASK_OUTCOME_RETRACTED, workerv1.TaskOutcome_TASK_OUTCOME_CANCELLED)
	}
}

// A kernel reads an input of any size in the mapped memory of a peer if it does not fit here, and
// asks again if the peer does not lend it at that moment.
func TestKernelsReadInPlaceWhatDoesNotFit(t *testing.T) {
	path, s := readingWorker(t)
	path.set(true, false)
	path.mu.Lock()
	path.makes = 65 << 20 // much, but it fits
	path.mu.Unlock()
	slice := needsPeers(1002, 2)
	slice.OpId, slice.Arguments = 3, workertest.Arguments(workertest.Input(0), []any{0}, []any{16})
	s.Assign(needsPeers(1001, 1), slice)
	s.Until("the second refusal", func() bool { return path.count("refused 1") > 1 })
	path.set(false, false)
	for task := uint64(1001); task < 1003; task++ {
		if r := s.Report(task, workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED); r.GetError() != nil || r.GetFetchedBytes() != 0 {
			t.Errorf("%v", r)
		}
	}
	for _, object := range []int{1, 2} {
		if path.happened("fetched %d", object) >= 0 {
			t.Errorf("object %d was fetched", object)
		}
	}
}
