package millrace

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"slices"
	"testing"
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

func TestScatterReturnsWhenTheSchedulerKnows(t *testing.T) {
	fake := newFake(t)
	c := fake.dial(t)
	ctx := soon(t)
	f, err := c.Scatter(ctx, "text")
	if err != nil {
		t.Fatal(err)
	}
	if f.State() != Succeeded {
		t.Errorf("state %s, want SUCCEEDED", f.State())
	}
}

func TestScatterGoesToAnotherWorkerIfOneDiesBeforeItReports(t *testing.T) {
	fake := newFake(t)
	fake.loseWrites = 2
	c := fake.dial(t)
	ctx := soon(t)
	want, err := FromSlice([]float64{1, 2, 3})
	if err != nil {
		t.Fatal(err)
	}
	f, err := c.Scatter(ctx, want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := f.Array(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Data, want.Data) {
		t.Errorf("got %v, want %v", got, want)
	}
	fake.mu.Lock()
	defer fake.mu.Unlock()
	if fake.writes != 3 {
		t.Errorf("%d writes, want 3", fake.writes)
	}
}

// The object was released a moment ago, and the worker is about to drop it.
func TestScatterWritesAgainWhatTheWorkerStillHas(t *testing.T) {
	fake := newFake(t)
	fake.hasWrites = 2
	c := fake.dial(t)
	f, err := c.Scatter(soon(t), "text")
	if err != nil {
		t.Fatal(err)
	}
	if f.State() != Succeeded {
		t.Errorf("state %s, want SUCCEEDED", f.State())
	}
	fake.mu.Lock()
	defer fake.mu.Unlock()
	if fake.writes != 3 {
		t.Errorf("%d writes, want 3", fake.writes)
	}
}

// A lost object is known by its key as long as a future of it is held. Scattering the value again
// sends the bytes again.
func TestLostDataMayBeScatteredAgain(t *testing.T) {
	fake := newFake(t)
	c := fake.dial(t)
	ctx := soon(t)
	lost, err := c.Scatter(ctx, "text", WithKey("k"))
	if err != nil {
		t.Fatal(err)
	}
	fake.mu.Lock()
	fake.queue = append(fake.queue, &millracev1.TaskUpdate{TaskId: lost.TaskID(), State: Failed, Generation: 1,
		Error: &millracev1.TaskError{Reason: "OBJECT_LOST", Message: "no worker holds it", OriginKey: "k"}})
	fake.mu.Unlock()
	fake.notify()
	for lost.State() != Failed {
		if err := ctx.Err(); err != nil {
			t.Fatal(err)
		}
		runtime.Gosched()
	}
	if err := lost.Wait(ctx); !errors.Is(err, ErrObjectLost) {
		t.Fatalf("lost: %v", err)
	}
	again, err := c.Scatter(ctx, "text", WithKey("k"))
	if err != nil {
		t.Fatal(err)
	}
	if again.State() != Succeeded {
		t.Errorf("state %s, want SUCCEEDED", stateName(again.State()))
	}
	fake.mu.Lock()
	defer fake.mu.Unlock()
	if fake.writes != 2 {
		t.Errorf("%d writes, want 2", fake.writes)
	}
}

func TestScatterThatNobodyReportsEndsWithItsContext(t *testing.T) {
	fake := newFake(t)
	fake.loseWrites = 1 << 30
	c := fake.dial(t)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := c.Scatter(ctx, "text"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want the context's", err)
	}
}

// A large object is read in parts, over as many connections. If a part is missing, the whole object
// is read again.
func TestLargeObjectsComeInParts(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	f := newFake(t)
	c := f.dial(t)
	c.data.partBytes = 10_000
	content := make([]uint8, 35_000)
	for i := range content {
		content[i] = uint8(i * 7)
	}
	a, err := FromSlice(content)
	if err != nil {
		t.Fatal(err)
	}
	future, err := c.Scatter(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	back, err := future.Array(t.Context())
	if err != nil || !bytes.Equal(back.Data, a.Data) {
		t.Fatalf("other bytes came back: %v", err)
	}
	into := make([]byte, len(content))
	if _, err := future.ArrayInto(t.Context(), into); err != nil || !bytes.Equal(into, content) {
		t.Fatalf("other bytes came into the slice: %v", err)
	}
	f.mu.Lock()
	slices.Sort(f.parts)
	got := slices.Clone(f.parts)
	f.mu.Unlock()
	if !slices.Equal(got, []uint32{0, 0, 1, 1, 2, 2}) {
		t.Errorf("parts %v were read", got)
	}
	// One of the parts is missing at the next request.
	f.mu.Lock()
	f.missPart = 2
	f.mu.Unlock()
	if back, err = future.Array(t.Context()); err != nil || !bytes.Equal(back.Data, a.Data) {
		t.Fatalf("other bytes came back after a part was missing: %v", err)
	}
	if _, err := future.ArrayInto(t.Context(), into[:100]); err == nil {
		t.Error("there is room in a slice that is too small")
	}
}

// The reason why a large object was not read is returned, even if an object behind it was read.
func TestPartsThatAreMissingAreTold(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	f := newFake(t)
	c := f.dial(t)
	c.data.partBytes = 10_000
	a, err := FromSlice(make([]uint8, 35_000))
	if err != nil {
		t.Fatal(err)
	}
	future, err := c.Scatter(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	workers, err := c.Workers(t.Context())
	if err != nil || len(workers) != 1 {
		t.Fatalf("%d workers, %v", len(workers), err)
	}
	got := make([]Object, 2)
	refs := []*millracev1.ObjectRef{{TaskId: 1 << 40}, {TaskId: future.TaskID()}}
	bad, err := c.read(t.Context(), workers[0].GetDataAddress(), refs, []uint64{35_000, 35_000}, got, nil)
	if err != nil || got[0].Value != nil || got[1].Value == nil || bad == nil || bad.Reason != "OBJECT_NOT_HERE" {
		t.Errorf("%v, read %v and %v: %v", err, got[0].Value, got[1].Value != nil, bad)
	}
}

// A scheduler that is slow to list its workers delays what is scattered, and nothing that is
// fetched. Several calls wait for one list.
func TestASlowListOfWorkersDelaysNoFetch(t *testing.T) {
	f := newFake(t)
	c := f.dial(t)
	far, err := c.Submit(soon(t), Native("far"), Args())
	if err != nil {
		t.Fatal(err)
	}
	if err := far.Wait(soon(t)); err != nil {
		t.Fatal(err)
	}
	f.list = make(chan struct{})
	ctx, cancel := context.WithCancel(soon(t))
	defer cancel()
	failed := make(chan error, 2)
	picks := func() {
		_, err := c.data.pick(ctx, nil, nil)
		failed <- err
	}
	go picks()
	<-f.list
	go picks()
	read := make(chan error, 1)
	go func() {
		_, err := far.Array(soon(t))
		read <- err
	}()
	select {
	case err := <-read:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(eventTimeout):
		t.Error("a fetch waits for the list of workers")
	}
	answered := time.Now()
	<-f.list
	for ended := 0; ended < cap(failed); {
		select {
		case err := <-failed:
			if ended++; err != nil {
				t.Error(err)
			}
		case <-f.list:
			// A call that began late rightly asks, if the list was old by then.
			if time.Since(answered) <= workersFresh {
				t.Error("each of two calls asked for the list")
			}
			<-f.list
		}
	}
}

// A call that waits for another one's list ends with its own context.
func TestWaitingForAListEndsWithItsContext(t *testing.T) {
	f := newFake(t)
	c := f.dial(t)
	f.list = make(chan struct{})
	first := make(chan error, 1)
	go func() {
		_, err := c.data.pick(soon(t), nil, nil)
		first <- err
	}()
	<-f.list
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	second := make(chan error, 1)
	go func() {
		_, err := c.data.pick(ctx, nil, nil)
		second <- err
	}()
	select {
	case err := <-second:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	case <-time.After(eventTimeout):
		t.Error("it waits on")
	}
	<-f.list
	if err := <-first; err != nil {
		t.Error(err)
	}
}
