package worker

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/worker/executor"
	"github.com/millrace/millrace/worker/workertest"
)

// orders is a scheduler that answers each call of FollowPlugins with the next of its lists, waits
// until that is carried out, and ends the call with an error.
type orders struct {
	workerv1.UnimplementedPluginOrderServiceServer
	lists chan []string
	ends  error
}

func (o *orders) FollowPlugins(stream grpc.BidiStreamingServer[workerv1.FollowPluginsRequest, workerv1.FollowPluginsResponse]) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	select {
	case names := <-o.lists:
		order := &workerv1.FollowPluginsResponse{}
		for i, name := range names {
			order.Plugins = append(order.Plugins, &millracev1.Plugin{Name: name, Version: uint64(i + 1)})
		}
		if err := stream.Send(order); err != nil {
			return err
		}
		_, err := stream.Recv() // it was carried out
		if err != nil {
			return err
		}
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
	return o.ends
}

// applied are lists of plugins that processes would have, by their names.
type applied chan []string

func (a applied) WantPlugins(list []executor.Plugin) {
	names := []string{}
	for _, p := range list {
		names = append(names, p.Name)
	}
	a <- names
}

func (a applied) ApplyPlugins(context.Context) map[uint64][]executor.Returned { return nil }

// follow lets a worker with these processes follow the plugins of a scheduler until the test ends.
func follow(t *testing.T, scheduler workerv1.PluginOrderServiceServer, processes processes) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	workerv1.RegisterPluginOrderServiceServer(server, scheduler)
	go func() { _ = server.Serve(listener) }() // it ends by Stop
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		(&pluginFollower{worker: "w", scheduler: conn, pools: processes, log: slog.New(slog.DiscardHandler)}).run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-ended })
}

// Processes keep their plugins when the scheduler stops, whatever it says at the end.
func TestPluginsAreKeptWhileTheSchedulerIsAway(t *testing.T) {
	for name, ends := range map[string]error{"an end": nil, "unavailable": status.Error(codes.Unavailable, "stopping"), "an error": status.Error(codes.Internal, "broken")} {
		t.Run(name, func(t *testing.T) {
			scheduler := &orders{lists: make(chan []string, 2), ends: ends}
			scheduler.lists <- []string{"environment"}
			scheduler.lists <- []string{"environment", "packages"}
			lists := make(applied, 10)
			follow(t, scheduler, lists)
			for _, want := range []int{1, 2} {
				select {
				case got := <-lists:
					if len(got) != want {
						t.Fatalf("the processes get the plugins %q, want %d", got, want)
					}
				case <-time.After(workertest.EventTimeout):
					t.Fatal("there is no further list")
				}
			}
		})
	}
}

// changing is a scheduler that orders two lists at once, and passes on the revisions that a worker
// reports.
type changing struct {
	workerv1.UnimplementedPluginOrderServiceServer
	reported chan uint64
}

func (c *changing) FollowPlugins(stream grpc.BidiStreamingServer[workerv1.FollowPluginsRequest, workerv1.FollowPluginsResponse]) error {
	for revision := range uint64(2) {
		if err := stream.Send(&workerv1.FollowPluginsResponse{Revision: revision + 1}); err != nil {
			return err
		}
	}
	for {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		if r.GetWorker() == "" {
			c.reported <- r.GetRevision()
		}
	}
}

// hanging are processes in which the setup of the first list returns when the second is wanted.
type hanging struct {
	lists  int
	second chan struct{}
}

func (h *hanging) WantPlugins([]executor.Plugin) {
	if h.lists++; h.lists == 2 {
		close(h.second)
	}
}

func (h *hanging) ApplyPlugins(ctx context.Context) map[uint64][]executor.Returned {
	select {
	case <-h.second:
	case <-ctx.Done():
	}
	return nil
}

// A list of plugins reaches the processes while an earlier one is carried out.
func TestPluginsAreOrderedWhileASetupRuns(t *testing.T) {
	scheduler := &changing{reported: make(chan uint64, 2)}
	follow(t, scheduler, &hanging{second: make(chan struct{})})
	for {
		select {
		case revision := <-scheduler.reported:
			if revision == 2 {
				return
			}
		case <-time.After(workertest.EventTimeout):
			t.Fatal("the second list was not carried out")
		}
	}
}
