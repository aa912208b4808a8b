package cli

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/knadh/koanf/v2"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// eventsOf is a scheduler that answers ListEvents from a list, and begins a new life after each
// answer of the list.
type eventsOf struct {
	millracev1.SchedulerServiceClient
	answers []*millracev1.ListEventsResponse
	asked   []uint64
	end     func()
}

// ListEvents implements SchedulerServiceClient.
func (s *eventsOf) ListEvents(_ context.Context, r *millracev1.ListEventsRequest, _ ...grpc.CallOption) (*millracev1.ListEventsResponse, error) {
	s.asked = append(s.asked, r.GetAfterNumber())
	next := s.answers[0]
	if s.answers = s.answers[1:]; len(s.answers) == 0 {
		s.end()
	}
	return next, nil
}

// Events are printed in one line each. After a new life of the scheduler its first events follow.
func TestEventsAreFollowed(t *testing.T) {
	event := func(number uint64, worker, text string) *millracev1.Event {
		return &millracev1.Event{
			Number: number, Time: timestamppb.New(time.Now().Add(-time.Duration(number) * time.Hour)), Kind: "worker-lost",
			Severity: millracev1.EventSeverity_EVENT_SEVERITY_WARNING, Worker: worker, Text: text,
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	s := &eventsOf{end: cancel, answers: []*millracev1.ListEventsResponse{
		{Events: []*millracev1.Event{event(6, "w", "too old"), event(5, "w", "one\x1b"), event(4, "other", "not asked for")}, LastNumber: 7},
		{LastNumber: 1},
		{Events: []*millracev1.Event{event(1, "w", "after the start")}, LastNumber: 1},
		{LastNumber: 1},
	}}
	var out strings.Builder
	a := &app{out: &out, settings: &settings{Koanf: koanf.New(".")}}
	for name, value := range map[string]any{"follow": true, "timeout": time.Minute, "since": 330 * time.Minute, "worker": []string{"w"}} {
		if err := a.settings.Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.followEvents(ctx, s, time.Microsecond); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || !hasLine(lines[0], []string{"warning", "worker-lost", "w ", `one\u001b`}) || !strings.Contains(lines[1], "after the start") {
		t.Errorf("printed:\n%s", out.String())
	}
	if len(s.asked) != 4 || s.asked[1] != 7 || s.asked[2] != 0 || s.asked[3] != 1 {
		t.Errorf("asked for the events after %v", s.asked)
	}
	out.Reset()
	if err := printEvent(&out, event(3, "w", "x"), true); err != nil || !json.Valid([]byte(out.String())) {
		t.Errorf("%v: %s", err, out.String())
	}
}
