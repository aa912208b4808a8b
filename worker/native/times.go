package native

import (
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// Times are the times at which an attempt of a native operation reached each stage; zero if it
// did not.
type Times struct {
	// Known: all inputs are made. Handed: the attempt was handed to a slot.
	Known, Handed time.Time
	// Begun, Submitted, Worked and Stored are set by the slot.
	Begun, Submitted, Worked, Stored time.Time
}

// TimeBook sums up the durations of the stages of native operations.
type TimeBook struct {
	mu sync.Mutex
	// attempts and sums are guarded by mu.
	attempts uint64
	sums     [6]time.Duration
}

// Write adds an attempt whose result was published at told. A stage that began before the previous
// one ended counts only from then.
func (b *TimeBook) Write(t *Times, told time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.attempts++
	at := t.Known
	for i, next := range [...]time.Time{t.Handed, t.Begun, t.Submitted, t.Worked, t.Stored, told} {
		b.sums[i] += max(next.Sub(at), 0)
		if next.After(at) {
			at = next
		}
	}
}

// Read returns the sums.
func (b *TimeBook) Read() *millracev1.NativeTimes {
	b.mu.Lock()
	defer b.mu.Unlock()
	return &millracev1.NativeTimes{
		Attempts: b.attempts, AdmissionTime: durationpb.New(b.sums[0]), QueueTime: durationpb.New(b.sums[1]), SubmissionTime: durationpb.New(b.sums[2]),
		DeviceTime: durationpb.New(b.sums[3]), StoreTime: durationpb.New(b.sums[4]), NotifyTime: durationpb.New(b.sums[5]),
	}
}
