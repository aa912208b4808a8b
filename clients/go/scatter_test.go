package millrace

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"
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
