package server_test

import (
	"runtime"
	"strings"
	"testing"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/server"
)

// An error of a GPU becomes an alarm with a remedy, for clients and for Prometheus.
func TestAlarmsReachClients(t *testing.T) {
	c := start(t, server.Config{HTTPAddress: "127.0.0.1:0"})
	r := registration("gpu-0")
	r.Gpu = &pb.Gpu{Uuid: "GPU-1"}
	w := c.join(c.conn, r, never)
	if err := w.stream.Send(&workerv1.SessionRequest{Stats: &workerv1.WorkerStats{
		GpuHealth: &pb.GpuHealth{Xids: 1, LastEvent: "Xid 79"},
		Tiers:     []*pb.MemoryTier{{Name: "slab", SizeBytes: 100, UsedBytes: 40}, {Name: "disk", SizeBytes: 1000, UsedBytes: 10, WrittenBytes: 70}},
	}}); err != nil {
		t.Fatal(err)
	}
	ctx := timeout(t)
	var alarm *pb.Alarm
	for alarm == nil && ctx.Err() == nil {
		runtime.Gosched()
		list, err := c.client.ListAlarms(ctx, &pb.ListAlarmsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if len(list.GetAlarms()) > 0 {
			alarm = list.GetAlarms()[0]
		}
	}
	if alarm.GetAlarmId() != "gpu_error/gpu-0" || alarm.GetKind() != pb.AlarmKind_ALARM_KIND_GPU_ERROR || alarm.GetSeverity() != pb.AlarmSeverity_ALARM_SEVERITY_CRITICAL ||
		!strings.Contains(alarm.GetText(), "Xid 79") || !strings.Contains(alarm.GetRemedy(), "millrace drain gpu-0") || alarm.GetStartTime() == nil {
		t.Errorf("alarm: %v", alarm)
	}
}
