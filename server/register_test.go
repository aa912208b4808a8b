package server_test

import (
	"context"
	"strings"
	"testing"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/server"
)

// A registration may come in several messages; its inventory is the union of theirs.
func TestRegistrationInPieces(t *testing.T) {
	c := start(t, server.Config{})
	stream, err := workerv1.NewWorkerServiceClient(c.conn).Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := registration("w")
	const unknown = 1 << 40
	for i := range uint64(3) {
		r.Inventory, r.More = []*workerv1.Replica{{TaskId: unknown + i, Generation: 1, Bytes: 1}}, i < 2
		if err := stream.Send(&workerv1.SessionRequest{Register: r}); err != nil {
			t.Fatal(err)
		}
	}
	released := map[uint64]bool{}
	for len(released) < 3 {
		m, err := stream.Recv()
		if err != nil {
			t.Fatalf("released were %v: %v", released, err)
		}
		for _, o := range m.GetReleases() {
			released[o.GetTaskId()-unknown] = true
		}
	}
	// Further messages must be from the same worker.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if stream, err = workerv1.NewWorkerServiceClient(c.conn).Session(ctx); err != nil {
		t.Fatal(err)
	}
	r = registration("v")
	r.More = true
	for _, m := range []*workerv1.SessionRequest{{Register: r}, {Stats: &workerv1.WorkerStats{}}} {
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	if m, err := stream.Recv(); err == nil {
		t.Errorf("got %v", m)
	}
}

// Names are shown to people, also on terminals: a registration with control characters in a name is
// refused, and the error names the field.
func TestRegistrationWithControlCharacters(t *testing.T) {
	c := start(t, server.Config{})
	for field, change := range map[string]func(*workerv1.Registration){
		"name":               func(r *workerv1.Registration) { r.Name = "host\x1b[2J" },
		"incarnation":        func(r *workerv1.Registration) { r.Incarnation = "a\x00b" },
		"host":               func(r *workerv1.Registration) { r.Host = "line\nfeed" },
		"data_address":       func(r *workerv1.Registration) { r.DataAddress = "127.0.0.1:1\r" },
		"version":            func(r *workerv1.Registration) { r.Version = "\x7f" },
		"executors[0]":       func(r *workerv1.Registration) { r.Executors = []string{"py\tthon"} },
		"native_ops[0]":      func(r *workerv1.Registration) { r.NativeOps = []string{"array\x07sum"} },
		`resources["gpu\n"]`: func(r *workerv1.Registration) { r.Resources = map[string]float64{"gpu\n": 1} },
	} {
		stream, err := workerv1.NewWorkerServiceClient(c.conn).Session(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r := registration("w")
		change(r)
		if err := stream.Send(&workerv1.SessionRequest{Register: r}); err != nil {
			t.Fatal(err)
		}
		_, err = stream.Recv()
		if reason, _ := reason(t, err); reason != "INVALID_FIELD" || !strings.Contains(err.Error(), field+": it has control characters") {
			t.Errorf("%s: %v", field, err)
		}
	}
}
