package peers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/workertest"
)

// Objects of a dead worker that are missing, or for which there is no room, do not prevent or delay
// the rescue of the others, and are reported at once.
func TestObjectsThatCannotBeRescuedDoNotHoldUpOthers(t *testing.T) {
	const objects, last = 1000, 999 // to wait for each would take longer than the limit below
	told := 0
	room := workertest.NewStore(t, 1<<20)
	p := New(Config{Store: room, Log: slog.New(slog.DiscardHandler), Tell: func(e Event, _ bool) {
		if x, failed := e.(Rescued); failed {
			told += len(x.failed)
		}
	}})
	ctx, cancel := context.WithTimeout(t.Context(), workertest.EventTimeout)
	defer cancel()
	// A task uses almost all of the memory.
	full, granted, err := room.Reserve(ledger.Holder{Kind: ledger.HolderTask, ID: 1000}, []uint64{1<<20 - 8<<10}, time.Time{}, nil)
	if !granted || err != nil {
		t.Fatal(err)
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for ctx.Err() == nil {
			room.Tick(time.Now())
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}()
	r := &rescuing{peers: p, peer: 9}
	for i := range objects {
		r.objects = append(r.objects, rescue{id: ledger.ObjectID{Task: ids.TaskID(i + 1), Generation: 1}})
	}
	head := transfer.Head{Header: []byte("head"), FrameBytes: []uint64{64 << 10}}
	for i := range last {
		if i%10 == 0 {
			r.Done(i, fmt.Errorf("object %d: %w", i, transfer.ErrNotHere))
			continue
		}
		into, err := r.Place(ctx, i, head)
		if err == nil || !errors.Is(err, ledger.ErrNoRoom) || len(into) > 0 {
			t.Fatalf("object %d has a place in a full slab: %v, %v", i, into, err)
		}
		r.Done(i, err)
	}
	if ctx.Err() != nil {
		t.Fatal("each object was waited for")
	}
	// All failures but those since the last wait are reported already.
	if told != last-1 {
		t.Errorf("%d of %d failures are told", told, last)
	}
	room.Release(full)
	if _, err := r.Place(ctx, last, head); err != nil {
		t.Errorf("there is room now: %v", err)
	}
	r.Done(last, nil)
	x := r.end(nil)
	if len(x.failed) != 0 || len(x.objects) != 1 || x.objects[0] != r.objects[last].id || r.copied != 1 || x.reason == "" {
		t.Errorf("it ended as %+v", x)
	}
	if _, here := room.Lookup(r.objects[last].id); !here {
		t.Error("the last object is not here")
	}
	cancel()
	<-stopped
}
