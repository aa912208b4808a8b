package loop

import (
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// runTimes are the times at which an attempt of a native operation reached each stage; zero if it
// did not.
type runTimes struct {
	// known: all inputs are made. handed: the attempt was handed to a slot.
	known, handed time.Time
	// begun, submitted, worked and stored are set by the slot.
	begun, submitted, worked, stored time.Time
}

// timeBook sums up the durations of the stages of native operations.
type timeBook struct {
	mu sync.Mutex
	// attempts and sums are guarded by mu.
	attempts uint64
	sums     [6]time.Duration
}

// write adds an attempt whose result was published at told. A stage that began before the previous
// one ended counts only from then.
func (b *timeBook) write(t *runTimes, told time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.attempts++
	at := t.known
	for i, next := range [...]time.Time{t.handed, t.begun, t.submitted, t.worked, t.stored, told} {
		b.sums[i] += max(next.Sub(at), 0)
		if next.After(at) {
			at = next
		}
	}
}

func (b *timeBook) read() *millracev1.NativeTimes {
	b.mu.Lock()
	defer b.mu.Unlock()
	return &millracev1.NativeTimes{
		Attempts: b.attempts, AdmissionTime: durationpb.New(b.sums[0]), QueueTime: durationpb.New(b.sums[1]), SubmissionTime: durationpb.New(b.sums[2]),
		DeviceTime: durationpb.New(b.sums[3]), StoreTime: durationpb.New(b.sums[4]), NotifyTime: durationpb.New(b.sums[5]),
	}
}
