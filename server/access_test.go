package server_test

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/access"
	"github.com/millrace/millrace/internal/access/accesstest"
	"github.com/millrace/millrace/server"
)

func TestTokensAndRoles(t *testing.T) {
	c := start(t, server.Config{Tokens: map[string]server.Role{
		"op": server.RoleOperator, "cl": server.RoleClient, "wo": server.RoleWorker, "ro": server.RoleReader,
	}})
	as := func(token string) context.Context {
		return metadata.AppendToOutgoingContext(timeout(t), "authorization", "Bearer "+token)
	}
	open := func(ctx context.Context) error {
		_, err := c.client.OpenClient(ctx, &pb.OpenClientRequest{})
		return err
	}
	list := func(ctx context.Context) error {
		_, err := c.client.ListGraphs(ctx, &pb.ListGraphsRequest{})
		return err
	}
	death := func(ctx context.Context) error {
		_, err := c.workers.ReportWorkerDeath(ctx, &workerv1.ReportWorkerDeathRequest{Name: "w"})
		return err
	}
	session := func(ctx context.Context) error {
		stream, err := c.workers.Session(ctx)
		if err != nil {
			return err
		}
		_ = stream.CloseSend()
		_, err = stream.Recv()
		return err
	}
	rebalance := func(ctx context.Context) error {
		stream, err := c.client.Rebalance(ctx, &pb.RebalanceRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	for _, test := range []struct {
		name, token string
		call        func(context.Context) error
		want        codes.Code
	}{
		{"client opens", "cl", open, codes.OK}, {"operator opens", "op", open, codes.OK},
		{"reader opens", "ro", open, codes.PermissionDenied}, {"worker opens", "wo", open, codes.PermissionDenied},
		{"reader lists", "ro", list, codes.OK}, {"worker lists", "wo", list, codes.PermissionDenied},
		{"wrong token", "xx", list, codes.Unauthenticated}, {"worker reports", "wo", death, codes.OK},
		{"client reports", "cl", death, codes.PermissionDenied}, {"client session", "cl", session, codes.PermissionDenied},
		{"operator rebalances", "op", rebalance, codes.OK}, {"client rebalances", "cl", rebalance, codes.PermissionDenied},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := test.call(as(test.token))
			if status.Code(err) != test.want {
				t.Fatalf("%v, want %v", err, test.want)
			}
			if err != nil {
				reason(t, err)
			}
		})
	}
	wantReason(t, list(timeout(t)), "UNAUTHENTICATED", "MILLRACE_TOKEN")
	_, err := c.client.Shutdown(as("cl"), &pb.ShutdownRequest{})
	wantReason(t, err, "PERMISSION_DENIED", "client")
	health, err := healthpb.NewHealthClient(c.conn).Check(timeout(t), &healthpb.HealthCheckRequest{Service: "millrace.v1.SchedulerService"})
	if err != nil || health.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health without a token: %v, %v", health, err)
	}
}

func TestOthersNeedATokenToReachTheScheduler(t *testing.T) {
	if _, err := server.New(server.Config{Address: "0.0.0.0:0"}); err == nil || !strings.Contains(err.Error(), "token") {
		t.Errorf("listening for everybody without a token: %v", err)
	}
}

func TestReflectionListsTheServices(t *testing.T) {
	c := start(t, server.Config{})
	ctx := timeout(t)
	stream, err := reflectionpb.NewServerReflectionClient(c.conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	response, err := stream.Recv()
	if err != nil || !strings.Contains(response.String(), "millrace.v1.SchedulerService") {
		t.Errorf("v1: %v, %v", response, err)
	}
	// The older service has the same messages on the wire.
	old, err := c.conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
	if err != nil {
		t.Fatal(err)
	}
	if err := old.SendMsg(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	answer := &reflectionpb.ServerReflectionResponse{}
	if err := old.RecvMsg(answer); err != nil || !strings.Contains(answer.String(), "millrace.worker.v1.WorkerService") {
		t.Errorf("v1alpha: %v, %v", answer, err)
	}
}

func TestNewerClientsAreRefused(t *testing.T) {
	c := start(t, server.Config{})
	for version, refused := range map[string]bool{"": false, "v1.0": false, "v1.1": true, "v2.0": true} {
		_, err := c.client.OpenClient(timeout(t), &pb.OpenClientRequest{ApiVersion: version})
		if refused {
			wantReason(t, err, "VERSION_TOO_NEW", version)
		} else if err != nil {
			t.Errorf("%q: %v", version, err)
		}
	}
}

func TestShutdownTellsWorkersAndWatchersAndEndsRun(t *testing.T) {
	c := start(t, server.Config{})
	ctx := timeout(t)
	w := c.join(c.conn, registration("w-0"), never)
	id := c.open(ctx)
	watch := c.watch(ctx, &pb.WatchRequest{ClientId: id, Graphs: true})
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.client.Shutdown(ctx, &pb.ShutdownRequest{Reason: "the test is over"}); err != nil {
		t.Fatal(err)
	}
	if message, err := watch.Recv(); err != nil || !message.GetDraining() {
		t.Errorf("watch: %v, %v", message, err)
	}
	<-w.done
	if !strings.Contains(w.last.GetStopReason(), "the test is over") {
		t.Errorf("worker's last message: %v", w.last)
	}
	err := <-c.stopped
	if err != nil {
		t.Errorf("Run: %v", err)
	}
	c.stopped <- nil
}

func TestEachCallIsForTheRolesOfTheTable(t *testing.T) {
	tokens := map[server.Role]string{}
	accepted := map[string]server.Role{}
	for _, role := range access.Roles() {
		tokens[role], accepted["of-"+string(role)] = "of-"+string(role), role
	}
	c := start(t, server.Config{Tokens: accepted})
	made := accesstest.Walk(t, strings.TrimPrefix(c.conn.Target(), "passthrough:///"), tokens,
		"millrace.v1.SchedulerService", "millrace.v1.CoordinationService", "millrace.v1.PluginService",
		"millrace.worker.v1.WorkerService", "millrace.worker.v1.PluginOrderService",
		"grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
	// The other calls are those of workers.
	if workers := len(access.Table()) - made; workers != 11 {
		t.Errorf("%d calls were made, and %d are of workers", made, workers)
	}
}
