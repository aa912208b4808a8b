package peers

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	hostmemory "github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/store"
)

// The outcomes of fetched objects are the same whether a path handles the objects one by one or in
// a batch: objects with one frame, with two, without any, one that is larger than its reservation,
// one that is here already, one for which there is no room at all, and two that were dropped here
// while runs read them.
func TestObjectsThatArriveTogetherEndAsEachAloneDoes(t *testing.T) {
	const held, outgrown, tooLarge, dropped, droppedHeader, count = 3, 5, 7, 9, 10, 12
	sizes := func(i int) []uint64 {
		switch i {
		case 2, droppedHeader:
			return nil
		case outgrown:
			return []uint64{2000, 3000}
		case tooLarge:
			return []uint64{1 << 30}
		default:
			return []uint64{100, 50}[:1+i%2]
		}
	}
	outcome := func(together bool) (told []string, end func()) {
		slab, err := hostmemory.NewSlab(1<<20, memory.Identity{})
		if err != nil {
			t.Fatal(err)
		}
		s, err := store.New(slab, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		end = func() { s.Close(); _ = slab.Close() } // no other process maps it
		tell := func(e Event, _ bool) {
			for _, x := range e.(Outcomes).Events {
				text := fmt.Sprintf("%+v", x)
				if at := strings.Index(text, "Message:"); at > 0 {
					text = text[:at]
				}
				told = append(told, text)
			}
		}
		p := New(Config{Store: s, Tell: tell, Log: slog.New(slog.DiscardHandler)})
		f := &fetch{peers: p, heads: make([]transfer.Head, count), open: count}
		reserve := func(holder uint64, n uint64) ledger.ReservationID {
			r, err := s.ReserveWait(t.Context(), ledger.Holder{Kind: ledger.HolderTask, ID: holder}, []uint64{n}, 0)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		for i := range count {
			f.order.Objects = append(f.order.Objects, lifecycle.FetchObject{Object: lifecycle.Object{Task: ids.TaskID(i + 1), Generation: 1}})
			f.reservations = append(f.reservations, reserve(uint64(i+1), 256))
		}
		other := reserve(99, 256)
		if _, err := s.Allocate(other, f.object(held), 100); err != nil {
			t.Fatal(err)
		}
		if err := s.Seal(f.object(held), []byte("before")); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Allocate(other, f.object(dropped), 100); err != nil {
			t.Fatal(err)
		}
		if err := s.Seal(f.object(dropped), []byte("before")); err != nil {
			t.Fatal(err)
		}
		long := bytes.Repeat([]byte{1}, store.LargeHeader)
		if err := s.PutSmall(f.object(droppedHeader), long); err != nil {
			t.Fatal(err)
		}
		for _, i := range []int{dropped, droppedHeader} {
			if _, ok := s.Queue(f.object(i), 1000, 1, 0); !ok || !s.Drop(f.object(i)) {
				t.Fatalf("object %d was not here", i)
			}
		}
		var heads []transfer.Head
		for i := range count {
			heads = append(heads, transfer.Head{Ref: transfer.Ref{Task: ids.TaskID(i + 1), Generation: 1}, Header: []byte(fmt.Sprint("head ", i)), FrameBytes: sizes(i)})
		}
		heads[droppedHeader].Header = long
		for first := 0; first < count; {
			if !together {
				regions, err := f.Place(t.Context(), first, heads[first])
				if err == nil && len(regions) != len(sizes(first)) {
					t.Errorf("object %d has %d places", first, len(regions))
				}
				f.Done(first, err)
				first++
				continue
			}
			placed, err := f.PlaceBatch(t.Context(), first, heads[first:], nil)
			frames := placed.Frames
			for i := first; i < first+placed.Objects; i++ {
				for _, n := range sizes(i) {
					if frames[0].Bytes != n {
						t.Errorf("object %d: a place of %d bytes for %d", i, frames[0].Bytes, n)
					}
					frames = frames[1:]
				}
			}
			if placed.Objects > 0 {
				f.DoneBatch(first, placed.Objects)
			}
			if first += placed.Objects; err != nil {
				f.Done(first, err)
				first++
			} else if placed.Objects == 0 {
				t.Fatal("no object has a place, and there is no error")
			}
		}
		for i := range count {
			o, ok := s.Lookup(f.object(i))
			here := i == held || i == dropped || i == droppedHeader
			if i != tooLarge && (!ok || !here && string(o.Header) != fmt.Sprint("head ", i)) {
				t.Errorf("object %d: %v, %q", i, ok, o.Header)
			}
		}
		return told, end
	}
	each, end := outcome(false)
	defer end()
	all, endAll := outcome(true)
	defer endAll()
	if strings.Join(each, "\n") != strings.Join(all, "\n") || len(each) != count {
		t.Errorf("each alone:\n%s\ntogether:\n%s", strings.Join(each, "\n"), strings.Join(all, "\n"))
	}
}
