package server_test

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/server"
	"github.com/millrace/millrace/server/alarms"
	"github.com/millrace/millrace/server/journal"
	"github.com/millrace/millrace/server/otlp"
	"github.com/millrace/millrace/server/schedapi"
	"github.com/millrace/millrace/server/web"
)

// scrape reads the metrics.
func scrape(ctx context.Context, t *testing.T, c *cluster) string {
	t.Helper()
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
	return string(body)
}

// Each metric is in docs/metrics.md, and each metric of docs and rules exists. The rules and
// dashboards name pages that exist, and each kind of alarm has one.
func TestMetricsAreDocumented(t *testing.T) {
	files, err := journal.OpenDirectory(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = files.Close() })
	traces := &otlp.Config{Endpoint: &url.URL{Scheme: "http", Host: "127.0.0.1:1"}, Protocol: otlp.GRPC}
	c := start(t, server.Config{HTTPAddress: "127.0.0.1:0", Journal: files, Traces: traces})
	c.serving()
	r := registration("gpu-0")
	r.Gpu = &pb.Gpu{Uuid: "GPU-1"}
	w := c.join(c.conn, r, never)
	if err := w.stream.Send(&workerv1.SessionRequest{Stats: &workerv1.WorkerStats{
		GpuHealth: &pb.GpuHealth{Celsius: 40},
		Tiers:     []*pb.MemoryTier{{Name: "slab", SizeBytes: 100, UsedBytes: 40}, {Name: "disk", SizeBytes: 1000, UsedBytes: 10, WrittenBytes: 70}},
		Routes:    []*pb.Route{{PeerWorkerId: 9, Peer: "b", Path: pb.TransferPath_TRANSFER_PATH_UCX, State: pb.RouteState_ROUTE_STATE_OPEN, ReceivedBytes: 5, ConnectBytesPerSecond: 7}},
	}}); err != nil {
		t.Fatal(err)
	}
	ctx := timeout(t)
	var body string
	for !strings.Contains(body, `millrace_worker_memory_used_bytes{tier="disk",worker="gpu-0"} 10`) && ctx.Err() == nil {
		runtime.Gosched()
		body = scrape(ctx, t, c)
	}
	live := names(body, `(?m)^# TYPE (millrace_\w+)`)
	several := prometheus.NewRegistry()
	several.MustRegister(web.PeerMetrics(twoPeers{}))
	figures, err := several.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range figures {
		live[f.GetName()] = true
	}
	// Without an ended attempt these have no series.
	for _, name := range []string{"attempts_total", "run_seconds", "queue_seconds", "transfer_seconds"} {
		live["millrace_task_"+name] = true
	}
	// Package worker/web tests the section about workers' own ports.
	before, after, _ := strings.Cut(read(t, "../docs/metrics.md"), "\n## A worker's own port\n")
	_, after, _ = strings.Cut(after, "\n## ")
	docs := names(before+after, "`(millrace_\\w+)`")
	for name := range live {
		if !docs[name] {
			t.Errorf("docs/metrics.md lacks %s", name)
		}
	}
	for name := range docs {
		if !live[name] {
			t.Errorf("docs/metrics.md has %s, which does not exist", name)
		}
	}
	suffix := regexp.MustCompile(`_(bucket|count|sum)$`)
	for _, file := range []string{"../deploy/prometheus/millrace.rules.yml", "../deploy/grafana/millrace.json"} {
		text := read(t, file)
		for name := range names(text, `(millrace_\w+)`) {
			if !live[name] && !live[suffix.ReplaceAllString(name, "")] {
				t.Errorf("%s uses %s, which does not exist", file, name)
			}
		}
		for page := range names(text, `(docs/runbooks/\w+\.md)`) {
			read(t, "../"+page)
		}
	}
	for _, kind := range alarms.Kinds() {
		read(t, "../docs/runbooks/"+kind.String()+".md")
	}
	if n := strings.Count(body, "\ngrpc_server_"); n > 50 {
		t.Errorf("%d series of gRPC", n)
	}
}

type unasked = schedapi.Peers

// twoPeers are two schedulers, of which this one leads.
type twoPeers struct{ unasked }

func (twoPeers) Own() schedapi.OwnPeer { return schedapi.OwnPeer{Leads: true} }

func (twoPeers) Seen() []schedapi.Peer { return []schedapi.Peer{{Address: "a:1"}} }

func names(text, pattern string) map[string]bool {
	found := map[string]bool{}
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		found[m[1]] = true
	}
	return found
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Error(err)
	}
	return string(text)
}
