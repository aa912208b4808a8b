package peers

import (
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/worker/lifecycle"
)

// bookedFetches is the number of fetches that are remembered.
const bookedFetches = 256

// fetchTimes are the statistics of one fetch. The durations count from wanted.
type fetchTimes struct {
	first   lifecycle.Object
	peer    ids.WorkerID
	objects int
	bytes   uint64
	// readBy is the task that read the object in place at the peer; 0: the object was fetched.
	readBy                         ids.TaskID
	wanted                         time.Time
	begun, placed, arrived, usable time.Duration
}

// book remembers the last fetches.
type book struct {
	mu sync.Mutex
	// ring and written are guarded by mu. written counts all fetches ever recorded; ring has the
	// last bookedFetches.
	ring    [bookedFetches]fetchTimes
	written int
}

func (b *book) write(t *fetchTimes) {
	b.mu.Lock()
	b.ring[b.written%bookedFetches] = *t
	b.written++
	b.mu.Unlock()
}

// last returns at most limit fetches, oldest first.
func (b *book) last(limit int) (out []*millracev1.MemoryFetch) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := b.written - min(limit, b.written, bookedFetches); i < b.written; i++ {
		t := &b.ring[i%bookedFetches]
		out = append(out, &millracev1.MemoryFetch{
			TaskId: uint64(t.first.Task), Generation: uint32(t.first.Generation), ObjectCount: uint32(t.objects), ObjectBytes: t.bytes,
			PeerWorkerId: uint32(t.peer), ReadByTaskId: uint64(t.readBy), CreateTime: timestamppb.New(t.wanted),
			BegunAfter: reached(t.begun), PlacedAfter: reached(t.placed), ArrivedAfter: reached(t.arrived), UsableAfter: reached(t.usable),
		})
	}
	return out
}

// reached converts a duration; nil if it is 0, since the fetch did not reach that step.
func reached(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// Last returns at most limit of the last fetches, oldest first. It may be called from any
// goroutine.
func (p *Peers) Last(limit int) []*millracev1.MemoryFetch { return p.fetches.last(limit) }

// Usable records the fetch whose last outcomes were handled.
func (p *Peers) Usable(o Outcomes) {
	if o.times != nil {
		o.times.usable = time.Since(o.times.wanted)
		p.fetches.write(o.times)
	}
}
