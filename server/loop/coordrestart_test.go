package loop_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/server/coord"
	"github.com/millrace/millrace/server/loop"
	"github.com/millrace/millrace/server/schedapi"
)

// ask makes a call that must not be refused.
func (s *start) ask(at schedapi.Place, call coord.Call) coord.Answer {
	s.t.Helper()
	answer, err := s.Ask(s.t.Context(), at, call)
	s.must(err)
	return answer
}

func acquire(id, name string) coord.Call {
	return coord.Call{ID: id, Ask: coord.Acquire{Names: []string{name}, Limit: 1, Needed: 1}}
}

// notHeld fails the test unless an error says that a lock is not held.
func (s *start) notHeld(err error) {
	s.t.Helper()
	var refused *coord.Error
	if !errors.As(err, &refused) || refused.Kind != coord.ErrNotHeld {
		s.t.Errorf("the lock is given back with %v", err)
	}
}

// A lock that was acquired before a restart has one holder, who can give it back, while his lease
// lives. He is told again of it. (docs/running.md: locks and semaphores.)
func TestLocksOutliveTheScheduler(t *testing.T) {
	s := fresh(t)
	ctx := t.Context()
	a, b := s.open("a"), s.open("b")
	first := s.ask(schedapi.Place{Client: a}, acquire("1", "l"))
	s.ask(schedapi.Place{Client: a}, acquire("2", "m"))
	gone := s.open("gone")
	s.ask(schedapi.Place{Client: gone}, acquire("3", "n"))
	s.must(s.CloseClient(ctx, gone))
	s = s.restart()
	if answer := s.ask(schedapi.Place{Client: b}, acquire("1", "l")); answer.Met {
		t.Error("two clients hold a lock")
	}
	if again := s.ask(schedapi.Place{Client: a}, acquire("1", "l")); !again.Met || again.Fence != first.Fence {
		t.Errorf("the holder who asks again is told %+v, and was told %+v", again, first)
	}
	if answer := s.ask(schedapi.Place{Client: b}, acquire("3", "n")); !answer.Met {
		t.Error("the lock of a client that is gone is held")
	}
	s.must(s.ReleaseLocks(ctx, a, "1", []string{"l"}))
	s = s.restart()
	s.must(s.ReleaseLocks(ctx, a, "1", []string{"l"})) // The answer to the first call was lost.
	next := s.ask(schedapi.Place{Client: b}, acquire("4", "l"))
	if !next.Met || next.Fence <= first.Fence {
		t.Errorf("the next holder is told %+v, the first one %+v", next, first)
	}
	s.must(s.CloseClient(ctx, a))
	s = s.restart()
	s.notHeld(s.ReleaseLocks(ctx, s.open("a again"), "2", []string{"m"}))
	if answer := s.ask(schedapi.Place{Client: b}, acquire("5", "m")); !answer.Met {
		t.Error("the lock of a closed client is held")
	}
}

// A lease that ends after a restart takes its locks with it.
func TestALeaseThatEndsAfterARestartEndsItsLocks(t *testing.T) {
	s := fresh(t)
	short := s.openShort("short")
	b := s.open("b")
	s.ask(schedapi.Place{Client: short}, acquire("1", "l"))
	s = s.restart()
	call := acquire("2", "l")
	call.Wait = time.Hour
	if answer := s.ask(schedapi.Place{Client: b}, call); !answer.Met {
		t.Error("the lock is held")
	}
}

// Values, events and metadata are as they were, with the results that they hold.
func TestSharedValuesOutliveTheScheduler(t *testing.T) {
	s := fresh(t)
	ctx := t.Context()
	a := s.open("a")
	at := schedapi.Place{Client: a}
	s.submit(a, "k")
	put := func(id, text string) coord.Call {
		return coord.Call{ID: id, Wait: time.Hour, Ask: coord.PutInQueue{Name: "q", MaxSize: 3, Value: coord.Value{Data: []byte(text), Keys: []string{"k"}}}}
	}
	s.ask(at, put("p1", "1"))
	s.ask(at, put("p2", "2"))
	s.ask(at, put("p3", "3"))
	take := coord.Call{ID: "t", Ask: coord.TakeFromQueue{Name: "q", Most: 1}}
	taken := s.ask(at, take)
	s.must(s.SetVariable(ctx, at, "v", coord.Value{Data: []byte("v"), Keys: []string{"k"}}))
	s.must(s.SetEvent(ctx, at, "e", true))
	s.must(s.SetMetadata(ctx, at, []string{"a"}, &coord.Tree{Names: []string{"x", "b"}, Trees: []coord.Tree{{Leaf: []byte("1")}, {Leaf: []byte("2")}}}))
	last, err := s.PublishToTopic(ctx, at, "t", []coord.Value{{Data: []byte("m")}})
	s.must(err)
	b := s.open("b")
	s.must(s.CloseClient(ctx, a))
	at = schedapi.Place{Client: b}
	before := s.tasks()
	s = s.restart()
	s.same(before)
	if answer := s.ask(at, coord.Call{Ask: coord.ReadVariable{Name: "v"}}); len(answer.Values) != 1 || string(answer.Values[0].Data) != "v" || !slices.Equal(answer.Values[0].Keys, []string{"k"}) {
		t.Errorf("the variable is %+v", answer)
	}
	if answer := s.ask(at, coord.Call{Ask: coord.AwaitEvent{Name: "e"}}); !answer.Met {
		t.Error("the event is not set")
	}
	if tree, _, err := s.Metadata(ctx, at, []string{"a"}); err != nil || !slices.Equal(tree.Names, []string{"x", "b"}) || string(tree.Trees[1].Leaf) != "2" {
		t.Errorf("the metadata are %+v, %v", tree, err)
	}
	if answer := s.ask(at, coord.Call{Ask: coord.ReadTopic{Name: "t", Most: 10}}); len(answer.Messages) != 1 || answer.Number != last {
		t.Errorf("the topic has %+v", answer)
	}
	rest := s.ask(at, coord.Call{ID: "t2", Ask: coord.TakeFromQueue{Name: "q", Most: 10}})
	if len(rest.Values) != 2 || string(rest.Values[0].Data) != "2" || string(taken.Values[0].Data) != "1" {
		t.Errorf("after %s was taken, the queue has %+v", taken.Values[0].Data, rest.Values)
	}
}

// A call whose answer the scheduler took with it gets the same answer from the next one: a value is
// neither lost nor put twice. (docs/running.md: queues.)
func TestCallsAboutQueuesAreRepeatedAfterARestart(t *testing.T) {
	s := fresh(t)
	at := schedapi.Place{Client: s.open("a")}
	put := coord.Call{ID: "p", Wait: time.Hour, Ask: coord.PutInQueue{Name: "q", Value: coord.Value{Data: []byte("1")}}}
	take := coord.Call{ID: "t", Wait: time.Hour, Ask: coord.TakeFromQueue{Name: "q", Most: 10}}
	s.ask(at, put)
	s = s.restart()
	s.ask(at, put)
	for range 2 {
		if answer := s.ask(at, take); len(answer.Values) != 1 || string(answer.Values[0].Data) != "1" {
			t.Errorf("taken is %+v", answer)
		}
		s = s.restart()
	}
	if info, err := s.Queue(t.Context(), at, "q"); err != nil || info.Size != 0 {
		t.Errorf("the queue is %+v, %v", info, err)
	}
}

// A value whose record the disk refuses is in the queue all the same. The client, which was told of
// an error, repeats the call with its id: the value is not put twice.
func TestAPutThatTheDiskRefusesIsRepeatedOnce(t *testing.T) {
	s := fresh(t)
	at := schedapi.Place{Client: s.open("a")}
	put := coord.Call{ID: "p", Wait: time.Hour, Ask: coord.PutInQueue{Name: "q", Value: coord.Value{Data: []byte("1")}}}
	s.directory.breakNow(errDisk)
	_, err := s.Ask(t.Context(), at, put)
	var refused *schedapi.Error
	if !errors.As(err, &refused) || refused.Kind != schedapi.ErrJournal {
		t.Errorf("with a full disk a value is put with %v", err)
	}
	s.mend()
	_, err = s.Ask(t.Context(), at, put)
	s.must(err)
	if info, err := s.Queue(t.Context(), at, "q"); err != nil || info.Size != 1 {
		t.Errorf("the queue is %+v, %v", info, err)
	}
}

// Nobody is told of a value in a queue, of a holder of a lock or of a topic before that is durable:
// a scheduler that was killed would not know of them.
func TestReadsOfSharedStateWaitForTheDisk(t *testing.T) {
	d := newDirectory(t)
	s := begin(t, d, loop.Config{})
	at := schedapi.Place{Client: s.open("a")}
	stuck := make(chan struct{})
	goOn := sync.OnceFunc(func() { close(stuck) })
	defer goOn()
	d.mu.Lock()
	d.stuck = stuck
	d.mu.Unlock()
	var group sync.WaitGroup
	for _, change := range []func() error{
		func() error {
			_, err := s.Ask(t.Context(), at, coord.Call{ID: "p", Ask: coord.PutInQueue{Name: "q", Value: coord.Value{Data: []byte("1")}}})
			return err
		},
		func() error { _, err := s.Ask(t.Context(), at, acquire("l", "l")); return err },
		func() error {
			_, err := s.PublishToTopic(t.Context(), at, "t", []coord.Value{{Data: []byte("1")}})
			return err
		},
	} {
		before := s.Journal().Waiting
		group.Go(func() {
			if err := change(); err != nil {
				t.Error(err)
			}
		})
		s.until("the change waits for the disk", func(schedapi.Reader) bool { return s.Journal().Waiting > before })
	}
	reads := func(ctx func() context.Context) (seen []int, errs []error) {
		queue, err := s.Queue(ctx(), at, "q")
		lock, failed := s.Semaphore(ctx(), at, "l")
		topics, refused := s.Topics(ctx(), at)
		return []int{queue.Size, len(lock.Holders), len(topics)}, []error{err, failed, refused}
	}
	// A read waits for as long as the disk does, and this is no time for which it must last.
	seen, errs := reads(func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	})
	for i, err := range errs {
		if err == nil {
			t.Errorf("read %d sees %d before that is durable", i, seen[i])
		}
	}
	goOn()
	group.Wait()
	if seen, errs := reads(t.Context); errors.Join(errs...) != nil || !slices.Equal(seen, []int{1, 1, 1}) {
		t.Errorf("behind the disk the reads see %v, %v", seen, errs)
	}
}
