package rpc

import (
	"context"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/server/alarms"
)

func (s *schedulerService) ListAlarms(context.Context, *pb.ListAlarmsRequest) (*pb.ListAlarmsResponse, error) {
	out := new(pb.ListAlarmsResponse)
	if s.config.Alarms != nil {
		out.Alarms = convertAll(s.config.Alarms(), alarmTo)
	}
	return out, nil
}

func alarmTo(a alarms.Alarm) *pb.Alarm {
	return &pb.Alarm{
		AlarmId: a.ID, Kind: pb.AlarmKind(a.Kind), Severity: pb.AlarmSeverity(a.Severity), StartTime: timeTo(a.Since),
		Subject: a.Subject, Text: a.Text, Remedy: a.Remedy,
	}
}
