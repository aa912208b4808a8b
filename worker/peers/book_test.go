package peers

import (
	"testing"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/worker/lifecycle"
)

// The book has the last fetches, oldest first, and returns no more of them than the limit.
func TestFetchBookHasTheLastOnes(t *testing.T) {
	b := new(book)
	if got := b.last(10); len(got) > 0 {
		t.Fatalf("an empty book has %v", got)
	}
	const written = bookedFetches + 44
	for i := range written {
		b.write(&fetchTimes{first: lifecycle.Object{Task: ids.TaskID(i + 1)}, objects: 1, wanted: time.Unix(0, 0), usable: time.Duration(i)})
		if i == 2 {
			if got := b.last(10); len(got) != 3 || got[0].GetTaskId() != 1 || got[2].GetTaskId() != 3 {
				t.Fatalf("three fetches are %v", got)
			}
		}
	}
	for _, limit := range []int{0, 1, 10, bookedFetches, 10_000} {
		got := b.last(limit)
		if len(got) != min(limit, bookedFetches) {
			t.Fatalf("%d fetches of %d asked for", len(got), limit)
		}
		for i, f := range got {
			if want := uint64(written - len(got) + i + 1); f.GetTaskId() != want || f.GetUsableAfter().AsDuration() != time.Duration(want-1) {
				t.Fatalf("fetch %d of %d is %v, want that of t%d", i, limit, f, want)
			}
		}
	}
}
