package rpc

import (
	"context"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/server/schedapi"
)

func (s *schedulerService) ListEvents(_ context.Context, r *pb.ListEventsRequest) (*pb.ListEventsResponse, error) {
	all := s.scheduler.Events(0)
	out := new(pb.ListEventsResponse)
	if len(all) == 0 {
		return out, nil
	}
	out.LastNumber = all[len(all)-1].Number
	for len(all) > 0 && all[0].Number <= r.GetAfterNumber() {
		all = all[1:]
	}
	if n := int(r.GetLimit()); n > 0 && n < len(all) {
		all = all[len(all)-n:]
	}
	out.Events = convertAll(all, eventTo)
	return out, nil
}

func eventTo(e schedapi.Event) *pb.Event {
	return &pb.Event{
		Number: e.Number, Time: timeTo(e.Time), Kind: string(e.Kind), Severity: severityTo(e.Severity), Worker: e.Worker, GraphId: uint64(e.Graph), Text: e.Text,
	}
}

func severityTo(s schedapi.Severity) pb.EventSeverity {
	switch s {
	case schedapi.SeverityInfo:
		return pb.EventSeverity_EVENT_SEVERITY_INFO
	case schedapi.SeverityWarning:
		return pb.EventSeverity_EVENT_SEVERITY_WARNING
	case schedapi.SeverityError:
		return pb.EventSeverity_EVENT_SEVERITY_ERROR
	}
	return pb.EventSeverity_EVENT_SEVERITY_UNSPECIFIED
}
