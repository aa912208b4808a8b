package worker

import (
	"log/slog"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/transfer/grpcpath"
)

// TestAPanicOfTheDataServiceFailsOneCall: the worker has the results of others in its memory.
func TestAPanicOfTheDataServiceFailsOneCall(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(recovering(slog.New(slog.DiscardHandler))...)
	millracev1.RegisterDataServiceServer(server, &grpcpath.Server{Logs: func(id ids.TaskID) (string, bool) {
		if id == 13 {
			panic("thirteen")
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
	if _, err := client.GetTaskLogs(t.Context(), &millracev1.GetTaskLogsRequest{TaskId: 13}); status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "thirteen") {
		t.Error(err)
	}
	logs, err := client.GetTaskLogs(t.Context(), &millracev1.GetTaskLogsRequest{TaskId: 1})
	if err != nil || logs.GetText() != "cut in the middle of \uFFFD" {
		t.Errorf("%q, %v", logs.GetText(), err)
	}
}
