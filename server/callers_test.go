package server_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/access"
	"github.com/millrace/millrace/server"
	"github.com/millrace/millrace/server/journal"
)

var byRole = map[string]server.Role{
	"op": server.RoleOperator, "cl": server.RoleClient, "ta": server.RoleTask, "wo": server.RoleWorker, "ro": server.RoleReader,
}

func with(t *testing.T, token string) context.Context {
	t.Helper()
	return metadata.AppendToOutgoingContext(timeout(t), "authorization", "Bearer "+token)
}

// requests calls visit for each call of the scheduler that a role may make, with the descriptor of
// its request.
func requests(role server.Role, visit func(method string, request protoreflect.MessageDescriptor)) {
	for _, line := range access.Table() {
		name := strings.ReplaceAll(strings.TrimPrefix(line.Method, "/"), "/", ".")
		found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
		if err == nil && slices.Contains(line.Roles, role) && strings.HasPrefix(name, "millrace.v1.") &&
			!strings.Contains(name, ".DataService.") && !strings.Contains(name, ".ExecutorService.") {
			visit(line.Method, found.(protoreflect.MethodDescriptor).Input())
		}
	}
}

// try makes a call of any kind, and returns its error.
func try(ctx context.Context, conn *grpc.ClientConn, method string, request *dynamicpb.Message) error {
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(request); err != nil {
		return stream.RecvMsg(dynamicpb.NewMessage(request.Descriptor()))
	}
	_ = stream.CloseSend()
	return stream.RecvMsg(dynamicpb.NewMessage(request.Descriptor()))
}

// serving waits until the scheduler has read its journal.
func (c *cluster) serving() {
	c.t.Helper()
	watching, cancel := context.WithCancel(timeout(c.t))
	defer cancel() // An open watch would hold up the end of the scheduler.
	health, err := healthpb.NewHealthClient(c.conn).Watch(watching, &healthpb.HealthCheckRequest{})
	for err == nil {
		var state *healthpb.HealthCheckResponse
		if state, err = health.Recv(); state.GetStatus() == healthpb.HealthCheckResponse_SERVING {
			return
		}
	}
	c.t.Fatal(err)
}

// A client belongs to the token that has opened it, in every call that names a client, also after a
// restart of the scheduler.
func TestAClientBelongsToItsToken(t *testing.T) {
	directory := t.TempDir()
	begin := func() (*cluster, func()) {
		kept, err := journal.OpenDirectory(directory)
		if err != nil {
			t.Fatal(err)
		}
		c := start(t, server.Config{Tokens: byRole, Journal: kept})
		c.serving()
		return c, func() {
			c.stop()
			err := <-c.stopped
			c.stopped <- err
			if closing := kept.Close(); err != nil || closing != nil {
				t.Fatal(err, closing)
			}
		}
	}
	c, end := begin()
	theirs := c.open(with(t, "cl"))
	check := func(c *cluster) {
		t.Helper()
		tried := 0
		requests(server.RoleTask, func(method string, request protoreflect.MessageDescriptor) {
			made := dynamicpb.NewMessage(request)
			at := protoreflect.Message(made)
			if header := request.Fields().ByName("header"); header != nil {
				at = made.Mutable(header).Message()
			}
			field := at.Descriptor().Fields().ByName("client_id")
			if field == nil || request.Name() == "ListGraphsRequest" {
				return
			}
			tried++
			at.Set(field, protoreflect.ValueOfUint64(theirs))
			if err := try(with(t, "ta"), c.conn, method, made); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "another token") {
				t.Errorf("%s in the name of another's client: %v", method, err)
			}
		})
		if tried < 28 {
			t.Errorf("only %d calls were tried", tried)
		}
		for token, want := range map[string]codes.Code{"cl": codes.OK, "op": codes.OK, "ta": codes.PermissionDenied} {
			if _, err := c.client.RenewClient(with(t, token), &pb.RenewClientRequest{ClientId: theirs}); status.Code(err) != want {
				t.Errorf("renewed with token %s: %v", token, err)
			}
		}
	}
	check(c)
	end()
	c, end = begin()
	check(c)
	end()
}

// The number of a lease gives the right to act in its name, so lists do not show it.
func TestListsDoNotShowTheNumbersOfLeases(t *testing.T) {
	c := start(t, server.Config{Tokens: byRole})
	state := pb.NewCoordinationServiceClient(c.conn)
	leases := map[uint64]bool{}
	for range 3 {
		id := c.open(with(t, "ta"))
		leases[id] = true
		if _, err := c.client.SubmitBatch(with(t, "ta"), &pb.SubmitRequest{
			Header: &pb.SubmitHeader{ClientId: id, RequestId: strconv.FormatUint(id, 10)}, Tasks: noops(strconv.FormatUint(id, 10), 1),
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := state.Acquire(with(t, "ta"), &pb.AcquireRequest{ClientId: id, RequestId: "r", Names: []string{"lock"}, Limit: 3}); err != nil {
			t.Fatal(err)
		}
	}
	for _, token := range []string{"op", "cl", "ta", "ro"} {
		seen := map[uint64]int{}
		for page := ""; ; {
			r, err := c.client.ListClients(with(t, token), &pb.ListClientsRequest{PageSize: 1, PageToken: page})
			if err != nil {
				t.Fatal(err)
			}
			for _, client := range r.GetClients() {
				seen[client.GetClientId()]++
			}
			if page = r.GetNextPageToken(); page == "" {
				break
			}
		}
		graphs, err := c.client.ListGraphs(with(t, token), &pb.ListGraphsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range graphs.GetGraphs() {
			seen[g.GetClientId()]++
			one, err := c.client.GetGraph(with(t, token), &pb.GetGraphRequest{GraphId: g.GetGraphId()})
			if err != nil {
				t.Fatal(err)
			}
			seen[one.GetGraph().GetClientId()]++
		}
		watched, err := c.watch(with(t, token), &pb.WatchRequest{Graphs: true}).Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range watched.GetGraphs() {
			seen[g.GetClientId()]++
		}
		lock, err := state.GetSemaphore(with(t, token), &pb.GetSemaphoreRequest{Name: "lock"})
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range lock.GetHolderClientIds() {
			seen[id]++
		}
		for id, times := range seen {
			if leases[id] != (token == "op") || times != 5 || id == 0 {
				t.Errorf("token %s sees client %d %d times; it is a lease: %t", token, id, times, leases[id])
			}
		}
		if len(seen) != 3 {
			t.Errorf("token %s sees %d clients", token, len(seen))
		}
	}
}

// Reads of readers neither wait, nor act for a client, nor compute.
func TestReadersOnlyRead(t *testing.T) {
	c := start(t, server.Config{Tokens: byRole})
	theirs := c.open(with(t, "cl"))
	tried := 0
	requests(server.RoleReader, func(method string, request protoreflect.MessageDescriptor) {
		for name, value := range map[protoreflect.Name]protoreflect.Value{
			"client_id": protoreflect.ValueOfUint64(theirs), "request_id": protoreflect.ValueOfString("r"),
			"wait": protoreflect.ValueOfMessage(durationpb.New(1).ProtoReflect()),
		} {
			field := request.Fields().ByName(name)
			if field == nil || request.Name() == "ListGraphsRequest" {
				continue
			}
			tried++
			made := dynamicpb.NewMessage(request)
			made.Set(field, value)
			if err := try(with(t, "ro"), c.conn, method, made); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), string(name)) {
				t.Errorf("%s with %s: %v", method, name, err)
			}
		}
	})
	if tried < 12 {
		t.Errorf("only %d fields were tried", tried)
	}
	state := pb.NewCoordinationServiceClient(c.conn)
	if r, err := state.GetVariable(with(t, "ro"), &pb.GetVariableRequest{Name: "x"}); err != nil || r.GetFound() {
		t.Errorf("a variable: %v, %v", r, err)
	}
	if r, err := state.GetEvent(with(t, "ro"), &pb.GetEventRequest{Name: "x"}); err != nil || r.GetSet() {
		t.Errorf("an event: %v, %v", r, err)
	}
	if _, err := state.GetTopic(with(t, "ro"), &pb.GetTopicRequest{Name: "x"}); err != nil {
		t.Errorf("a topic: %v", err)
	}
}
