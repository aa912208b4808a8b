package rpc

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/leader"
)

// TestCallsNeedTheLead: what a scheduler has read while another one may lead is not told. A call
// that may change something does not begin then: if it changes nothing, it tells of what was read,
// too. One that was carried out is answered: most schedulers have it, and its caller would repeat
// it.
func TestCallsNeedTheLead(t *testing.T) {
	begun := false
	handler := func(context.Context, any) (any, error) {
		begun = true
		return "read", nil
	}
	lost := func(context.Context) error { return leader.Refusal("b:1") }
	leads := func(context.Context) error { return nil }
	const reads, changes, other = "reads", "changes", "other"
	for method, kind := range map[string]string{
		pb.CoordinationService_GetVariable_FullMethodName:   reads,
		pb.SchedulerService_GetTask_FullMethodName:          reads,
		pb.SchedulerService_ListGraphs_FullMethodName:       reads,
		pb.CoordinationService_SetVariable_FullMethodName:   changes,
		pb.CoordinationService_TakeFromQueue_FullMethodName: changes,
		pb.SchedulerService_OpenClient_FullMethodName:       changes,
		pb.SchedulerService_ListPeers_FullMethodName:        other, // It says who leads.
		healthpb.Health_Check_FullMethodName:                other,
	} {
		info := &grpc.UnaryServerInfo{FullMethod: method}
		begun = false
		out, err := current(lost)(t.Context(), nil, info, handler)
		if _, refused := leader.Refused(err); refused != (kind != other) || refused != (out == nil) || begun != (kind != changes) {
			t.Errorf("%s without the lead: begun: %v, %v, %v", method, begun, out, err)
		}
		for _, check := range []func(context.Context) error{leads, nil} {
			if out, err := current(check)(t.Context(), nil, info, handler); out != "read" || err != nil {
				t.Errorf("%s with the lead: %v, %v", method, out, err)
			}
		}
	}
}

// messages is a stream that counts what is sent.
type messages struct {
	grpc.ServerStream
	sent int
}

func (*messages) Context() context.Context { return context.Background() }
func (m *messages) SendMsg(any) error      { m.sent++; return nil }

// TestStreamsNeedTheLead: a stream of what was read ends before the first message that another
// scheduler may contradict, whatever its handler returns.
func TestStreamsNeedTheLead(t *testing.T) {
	for method, reads := range map[string]bool{
		pb.SchedulerService_Watch_FullMethodName:      true,
		pb.SchedulerService_Rebalance_FullMethodName:  false,
		workerv1.WorkerService_Session_FullMethodName: false,
	} {
		info := &grpc.StreamServerInfo{FullMethod: method}
		const led = 2
		for _, alone := range []bool{true, false} {
			asked := 0
			leads := func(context.Context) error {
				if asked++; asked > led {
					return leader.Refusal("b:1")
				}
				return nil
			}
			if alone {
				leads = nil
			}
			to, want := &messages{}, 3
			if reads && !alone {
				want = led
			}
			err := currentStream(leads)(nil, to, info, func(_ any, stream grpc.ServerStream) error {
				for range 3 {
					if stream.SendMsg(nil) != nil {
						break
					}
				}
				return nil
			})
			if _, refused := leader.Refused(err); refused != (want == led) || to.sent != want {
				t.Errorf("%s, alone: %v: %d messages, want %d; %v", method, alone, to.sent, want, err)
			}
		}
	}
}
