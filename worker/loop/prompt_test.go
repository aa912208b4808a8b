package loop_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/workertest"
)

// promptShelf is a path that begins to fetch at once and then waits. It declares a long wait if
// long is set.
type promptShelf struct {
	shelf *shelf
	long  bool
	// waits gets one channel for each waiting fetch; the fetch ends with the error that the test
	// sends on it.
	waits chan chan error
}

func (p *promptShelf) Name() string              { return "prompt" }
func (p *promptShelf) Close() error              { return nil }
func (p *promptShelf) Prompt(transfer.Peer) bool { return true }

func (p *promptShelf) Capabilities() transfer.Capabilities { return transfer.Capabilities{Prompt: p} }

func (p *promptShelf) Fetch(ctx context.Context, _ transfer.Peer, refs []transfer.Ref, sink transfer.Sink) error {
	heads := make([]transfer.Head, len(refs))
	for i, r := range refs {
		heads[i] = p.shelf.head(r)
	}
	batch := sink.Capabilities().Batch
	placed, err := batch.PlaceBatch(ctx, 0, heads, nil)
	if err != nil || placed.Objects != len(refs) {
		return fmt.Errorf("%d of %d have places: %w", placed.Objects, len(refs), err)
	}
	left := time.Microsecond
	if p.long {
		left = transfer.Long
	}
	sink.Capabilities().Wait.Waits(left)
	outcome := make(chan error)
	p.waits <- outcome
	if err := <-outcome; err != nil {
		return err
	}
	for i, r := range refs {
		f := p.shelf.frame(r)
		copy(transfer.Region{Space: placed.Space, Frame: placed.Frames[i]}.Bytes(), p.shelf.slab.Bytes(f.Offset, f.Bytes))
	}
	batch.DoneBatch(0, len(refs))
	return nil
}

// fakeIndex records its calls in diary.
type fakeIndex struct {
	mu    sync.Mutex
	diary []string
}

func (x *fakeIndex) note(what string, ref transfer.Ref) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.diary = append(x.diary, fmt.Sprintf("%s %d", what, ref.Task))
	return true
}

func (x *fakeIndex) Publish(ref transfer.Ref, _ []byte, _ []memory.Frame) bool {
	return x.note("shown", ref)
}
func (x *fakeIndex) PublishArriving(ref transfer.Ref, _ []byte, _ []memory.Frame) bool {
	return x.note("arriving", ref)
}
func (x *fakeIndex) SetProgress(transfer.Ref, uint64)                  {}
func (x *fakeIndex) Complete(ref transfer.Ref) bool                    { return x.note("whole", ref) }
func (x *fakeIndex) Unpublish(ref transfer.Ref) bool                   { return x.note("unpublished", ref) }
func (x *fakeIndex) Readers(time.Time) (over func(now time.Time) bool) { return nil }
func (x *fakeIndex) Revoked() int                                      { return 0 }

func (x *fakeIndex) has(lines ...string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Equal(x.diary, lines)
}

// The goroutine that receives the messages of the scheduler also fetches. This delays neither other
// messages of the session nor another session.
func TestAFetchThatWaitsDoesNotKeepTheScheduler(t *testing.T) {
	scheduler := workertest.NewScheduler(t)
	path := &promptShelf{long: true, waits: make(chan chan error)}
	workerOf(t, scheduler, func(s *shelf) transfer.Path { path.shelf = s; return path }, nil)
	s := acceptWorker(t, scheduler)
	s.Assign(checksumOf(101, 1))
	first := <-path.waits
	s.Assign(checksumOf(102, 2))
	second := <-path.waits
	second <- nil
	value(t, s.Report(102, workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED))
	s.Break(errors.New("the network is gone"))
	<-s.Ended()
	again := acceptWorker(t, scheduler)
	again.Assign(checksumOf(103, 3))
	third := <-path.waits
	first <- nil
	value(t, again.Report(101, workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED))
	third <- nil
	value(t, again.Report(103, workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED))
}

// A short fetch is carried out before anything else is received. Arriving objects are published
// while the fetch waits, and removed if they do not arrive.
func TestArrivingObjectsAreShown(t *testing.T) {
	scheduler := workertest.NewScheduler(t)
	path, published := &promptShelf{waits: make(chan chan error)}, new(fakeIndex)
	workerOf(t, scheduler, func(s *shelf) transfer.Path { path.shelf = s; return path }, published)
	s := acceptWorker(t, scheduler)
	s.Assign(checksumOf(101, 1))
	outcome := <-path.waits
	if !published.has("arriving 1") {
		t.Errorf("while an object arrives: %v", published.diary)
	}
	outcome <- nil
	value(t, s.Report(101, workerv1.TaskOutcome_TASK_OUTCOME_SUCCEEDED))
	if !published.has("arriving 1", "whole 1") {
		t.Errorf("when it has arrived: %v", published.diary)
	}
	s.Assign(checksumOf(102, 2))
	outcome = <-path.waits
	outcome <- fmt.Errorf("%w: cut", transfer.ErrPeerLost)
	s.Report(102, workerv1.TaskOutcome_TASK_OUTCOME_INPUT_UNREACHABLE)
	if !published.has("arriving 1", "whole 1", "arriving 2", "unpublished 2") {
		t.Errorf("when another one has not: %v", published.diary)
	}
}
