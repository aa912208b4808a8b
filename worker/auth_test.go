package worker

import (
	"log/slog"
	"net"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/transfer/grpcpath"
)

// refused returns the subject and the reason of an error.
func refused(t *testing.T, err error) (object, reason string) {
	t.Helper()
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.GetMetadata()["object"], info.GetReason()
		}
	}
	return "", ""
}

// TestAPanicOfTheDataServiceFailsOneCall: a panic in one call must not end the worker,
// because its memory holds the results of other tasks.
func TestAPanicOfTheDataServiceFailsOneCall(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	checks, err := checking(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(checks...)
	millracev1.RegisterDataServiceServer(server, &grpcpath.Server{Logs: func(id ids.TaskID) (string, bool) {
		if id == 13 {
			panic("thirteen" + strings.Repeat("!", 1<<20))
		}
		return "cut in the middle of \xe2\x96", true
	}})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	client := millracev1.NewDataServiceClient(conn)
	_, err = client.GetTaskLogs(t.Context(), &millracev1.GetTaskLogsRequest{TaskId: 13})
	if _, reason := refused(t, err); status.Code(err) != codes.Internal || reason != "INTERNAL" || !strings.Contains(err.Error(), "thirteen") {
		t.Errorf("%v with %q", err, reason)
	}
	_, err = client.DescribeMemory(t.Context(), new(millracev1.DescribeMemoryRequest))
	if _, reason := refused(t, err); status.Code(err) != codes.Unimplemented || reason != "UNIMPLEMENTED" {
		t.Errorf("%v with %q", err, reason)
	}
	// The validation rules of the protos apply here as well, and the error names the field.
	stream, err := client.ReadObjects(t.Context(), &millracev1.ReadObjectsRequest{Parts: 17, Objects: []*millracev1.ObjectRef{{TaskId: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	if field, reason := refused(t, err); field != "parts" || reason != "INVALID_FIELD" {
		t.Errorf("17 parts: %v", err)
	}
	logs, err := client.GetTaskLogs(t.Context(), &millracev1.GetTaskLogsRequest{TaskId: 1})
	if err != nil || logs.GetText() != "cut in the middle of \uFFFD" {
		t.Errorf("%q, %v", logs.GetText(), err)
	}
}
