package server_test

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/server"
	"github.com/millrace/millrace/server/web"
)

func TestTheHTTPPortShowsHealthMetricsAndStatus(t *testing.T) {
	c := start(t, server.Config{HTTPAddress: "127.0.0.1:0", Tokens: map[string]server.Role{"secret": server.RoleOperator}})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(path, token string) (int, string) {
		t.Helper()
		request, err := http.NewRequestWithContext(timeout(t), http.MethodGet, "http://"+c.server.HTTPAddress()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(body)
	}
	ctx := metadata.AppendToOutgoingContext(timeout(t), "authorization", "Bearer secret")
	if _, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Tasks: noops("a", 3)}); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/": "<!doctype html>", "/status": "<!doctype html>", "/healthz": "ok", "/readyz": "ok", "/metrics": `millrace_tasks{state="ready"} 3`,
	} {
		if code, body := get(path, ""); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d without %q:\n%s", path, code, want, body)
		}
	}
	if _, body := get("/metrics", ""); !strings.Contains(body, `grpc_server_handled_total{grpc_code="OK",grpc_method="SubmitBatch"`) {
		t.Errorf("no metrics of calls:\n%s", body)
	}
	if code, _ := get("/api/v1/status", "wrong"); code != http.StatusUnauthorized {
		t.Errorf("status with a wrong token: %d", code)
	}
	code, body := get("/api/v1/status", "secret")
	var status web.Status
	if err := json.Unmarshal([]byte(body), &status); code != http.StatusOK || err != nil || status.Tasks["ready"] != 3 || status.ClusterID != c.server.ID() {
		t.Errorf("status %d: %s (%v)", code, body, err)
	}
}

// Profiles are for operators, and only if they are asked for.
func TestOperatorsGetProfiles(t *testing.T) {
	tokens := map[string]server.Role{"op": server.RoleOperator, "cl": server.RoleClient}
	on := start(t, server.Config{HTTPAddress: "127.0.0.1:0", Tokens: tokens, Profiles: true})
	off := start(t, server.Config{HTTPAddress: "127.0.0.1:0", Tokens: tokens})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, test := range []struct {
		name, token, path string
		at                *cluster
		code              int
		text              string
	}{
		{"the index", "op", "/debug/pprof/", on, http.StatusOK, "goroutine"},
		{"a profile", "op", "/debug/pprof/goroutine?debug=1", on, http.StatusOK, "goroutine profile: total"},
		{"no token", "", "/debug/pprof/heap", on, http.StatusUnauthorized, "UNAUTHENTICATED"},
		{"a client", "cl", "/debug/pprof/heap", on, http.StatusForbidden, "PERMISSION_DENIED"},
		{"not asked for", "op", "/debug/pprof/heap", off, http.StatusNotFound, ""},
	} {
		request, err := http.NewRequestWithContext(timeout(t), http.MethodGet, "http://"+test.at.server.HTTPAddress()+test.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+test.token)
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || response.StatusCode != test.code || !strings.Contains(string(body), test.text) {
			t.Errorf("%s: %d, want %d with %q: %v\n%s", test.name, response.StatusCode, test.code, test.text, err, body)
		}
	}
}

func TestSpilledBytesAreShown(t *testing.T) {
	c := start(t, server.Config{HTTPAddress: "127.0.0.1:0"})
	w := c.join(c.conn, registration("spiller"), never)
	if err := w.stream.Send(&workerv1.SessionRequest{Stats: &workerv1.WorkerStats{
		SpilledBytes: 4096, SpillWrittenBytes: 8192, SpillReadBytes: 2048, SpillFailure: "no space left on device",
		Tiers: []*pb.MemoryTier{{Name: "slab", SizeBytes: 100}, {Name: "disk", SizeBytes: 1 << 20, UsedBytes: 4096, WrittenBytes: 8192, ReadBytes: 2048}},
	}}); err != nil {
		t.Fatal(err)
	}
	ctx := timeout(t)
	for c.worker("spiller").GetSpilledBytes() == 0 && ctx.Err() == nil {
		runtime.Gosched()
	}
	got := c.worker("spiller")
	if got.GetSpilledBytes() != 4096 || got.GetSpillWrittenBytes() != 8192 || got.GetSpillReadBytes() != 2048 || got.GetSpillFailure() != "no space left on device" {
		t.Errorf("worker: %v", got)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.server.HTTPAddress()+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`millrace_worker_memory_used_bytes{tier="disk",worker="spiller"} 4096`, `millrace_worker_memory_written_bytes_total{tier="disk",worker="spiller"} 8192`,
		`millrace_worker_memory_read_bytes_total{tier="disk",worker="spiller"} 2048`, `millrace_worker_spill_failing{worker="spiller"} 1`,
	} {
		if !strings.Contains(string(body), line+"\n") {
			t.Errorf("no %s in\n%s", line, body)
		}
	}
}

// With HTTPAnyPort, a port that is in use is replaced; without it, it is an error.
func TestHTTPPortInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	address := taken.Addr().String()
	c := start(t, server.Config{HTTPAddress: address, HTTPAnyPort: true})
	if c.server.HTTPAddress() == address {
		t.Errorf("HTTP is served at %s, which is in use", address)
	}
	response, err := http.Get("http://" + c.server.HTTPAddress() + "/healthz")
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("healthz: %v, %v", response, err)
	}
	_ = response.Body.Close()
	if _, err := server.New(server.Config{Address: "127.0.0.1:0", HTTPAddress: address}); err == nil || !strings.Contains(err.Error(), address) {
		t.Errorf("New: %v, want an error that names %s", err, address)
	}
}
