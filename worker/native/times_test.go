package native

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// Each period of a task counts once, even if calls overlap.
func TestTimesOfATaskAddUp(t *testing.T) {
	zero := time.Unix(1000, 0)
	at := func(n time.Duration) time.Time { return zero.Add(n) }
	var b TimeBook
	b.Write(&Times{Known: at(0), Handed: at(1), Begun: at(3), Submitted: at(6), Worked: at(10), Stored: at(15)}, at(21))
	// It was submitted at 30, when the call before it and also its own work had ended.
	b.Write(&Times{Known: at(0), Handed: at(1), Begun: at(3), Submitted: at(30), Worked: at(29), Stored: at(35)}, at(41))
	want := &millracev1.NativeTimes{
		Attempts: 2, AdmissionTime: durationpb.New(1 + 1), QueueTime: durationpb.New(2 + 2), SubmissionTime: durationpb.New(3 + 27),
		DeviceTime: durationpb.New(4 + 0), StoreTime: durationpb.New(5 + 5), NotifyTime: durationpb.New(6 + 6),
	}
	if got := b.Read(); !proto.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
