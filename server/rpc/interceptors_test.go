package rpc

import (
	"context"
	"testing"

	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/leader"
)

// TestReadsNeedTheLead: what a scheduler has read while another one may lead is not told. A call
// that was carried out is answered: most schedulers have it, and its caller would repeat it.
func TestReadsNeedTheLead(t *testing.T) {
	handler := func(context.Context, any) (any, error) { return "read", nil }
	lost := func(context.Context) error { return leader.Refusal("b:1") }
	leads := func(context.Context) error { return nil }
	for method, reads := range map[string]bool{
		pb.CoordinationService_GetVariable_FullMethodName: true,
		pb.SchedulerService_GetTask_FullMethodName:        true,
		pb.SchedulerService_ListGraphs_FullMethodName:     true,
		pb.CoordinationService_SetVariable_FullMethodName: false,
		pb.SchedulerService_OpenClient_FullMethodName:     false,
		pb.SchedulerService_ListPeers_FullMethodName:      false, // It says who leads.
	} {
		info := &grpc.UnaryServerInfo{FullMethod: method}
		out, err := current(lost)(t.Context(), nil, info, handler)
		if _, refused := leader.Refused(err); refused != reads || refused != (out == nil) {
			t.Errorf("%s without the lead: %v, %v", method, out, err)
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
