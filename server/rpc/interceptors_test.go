package rpc

import (
	"context"
	"testing"

	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
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
