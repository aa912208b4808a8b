package server_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/server"
	"github.com/millrace/millrace/server/journal"
)

// gated is the directory of a journal that is read a second time only once the gate is open: the
// first reading finds out to which cluster it belongs.
type gated struct {
	*journal.Directory
	gate  chan struct{}
	first sync.Once
}

func (g *gated) Read(name string) ([]byte, error) {
	waits := true
	g.first.Do(func() { waits = false })
	if waits {
		<-g.gate
	}
	return g.Directory.Read(name)
}

// A scheduler says that it is ready after it has read its journal, and not before. If it cannot
// read it, it ends, even if somebody watches its health.
func TestASchedulerIsReadyWhenItHasReadItsJournal(t *testing.T) {
	directory := func() *journal.Directory {
		t.Helper()
		d, err := journal.OpenDirectory(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.Close() }) // its file was only read
		return d
	}
	written := directory()
	begun := make(chan struct{})
	c := start(t, server.Config{Journal: written, Ready: func() error { close(begun); return nil }})
	<-begun
	for range 10 {
		c.open(timeout(t))
	}
	for _, damaged := range []bool{false, true} {
		g := &gated{Directory: directory(), gate: make(chan struct{})}
		if err := os.CopyFS(g.Path(), os.DirFS(written.Path())); err != nil {
			t.Fatal(err)
		}
		if damaged {
			segments, err := filepath.Glob(filepath.Join(g.Path(), "*.log"))
			if err != nil || len(segments) != 1 {
				t.Fatal(segments, err)
			}
			data, err := os.ReadFile(segments[0])
			if err != nil {
				t.Fatal(err)
			}
			data[len(data)/2] ^= 0x55
			if err := os.WriteFile(segments[0], data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		ready := make(chan struct{})
		s, err := server.New(server.Config{Address: "127.0.0.1:0", Journal: g, Ready: func() error { close(ready); return nil }})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		conn := dial(t, s.Address())
		defer conn.Close()
		watch, err := healthpb.NewHealthClient(conn).Watch(timeout(t), &healthpb.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		state, err := watch.Recv()
		if err != nil || state.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
			t.Fatalf("while the journal is read, health is %v, %v", state, err)
		}
		if _, err := pb.NewSchedulerServiceClient(conn).GetClusterInfo(timeout(t), &pb.GetClusterInfoRequest{}); err == nil {
			t.Error("while the journal is read, a call is answered")
		} else {
			wantReason(t, err, "SCHEDULER_STARTING", "reads its journal")
		}
		select {
		case <-ready:
			t.Error("it is ready before it has read its journal")
		default:
		}
		close(g.gate)
		if damaged {
			if err := <-ended; err == nil || !strings.Contains(err.Error(), "damaged") {
				t.Errorf("with a damaged journal it ends with %v", err)
			}
			select {
			case <-ready:
				t.Error("it is ready with a damaged journal")
			default:
			}
			continue
		}
		<-ready
		for state.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			if state, err = watch.Recv(); err != nil {
				t.Fatal(err)
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("it ends with %v", err)
		}
	}
}
