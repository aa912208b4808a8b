package web_test

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/millrace/millrace/memory/ledger"
	"github.com/millrace/millrace/worker/web"
)

func open(t *testing.T, c web.Config) *web.Port {
	t.Helper()
	p, err := web.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func get(t *testing.T, p *web.Port, path, host string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.Address()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Host = host
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
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

func names(text, pattern string) map[string]bool {
	found := map[string]bool{}
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		found[m[1]] = true
	}
	return found
}

// The metrics are those that docs/metrics.md lists.
func TestMetricsAreDocumented(t *testing.T) {
	p := open(t, web.Config{Address: "127.0.0.1:0", Worker: "host-0", Version: "1", Figures: func() web.Figures {
		return web.Figures{
			Tiers:     []ledger.TierState{{Name: "slab", SizeBytes: 100, UsedBytes: 40}, {Name: "disk", OutBytes: 7, Failed: errors.New("full")}},
			Paths:     []web.Path{{Name: "ucx", Succeeded: 2, Bytes: 30}},
			Executors: []web.Executor{{Kind: "python", Working: 1, Idle: 2}}, ExecutorDeaths: 3,
			NVLink: &web.Link{Received: 1 << 40, Sent: 5}, PCIe: &web.Link{Received: 7.5, Sent: 0},
			NetworkDevices: []web.NetworkDevice{{Name: "eth0", ReceivedBytes: 7, SentBytes: 0}, {Name: "mlx5_0:1", ReceivedBytes: 8, SentBytes: 9}},
		}
	}})
	_, body := get(t, p, "/metrics", "localhost")
	for _, line := range []string{
		`millrace_memory_used_bytes{tier="slab",worker="host-0"} 40`, `millrace_memory_written_bytes_total{tier="disk",worker="host-0"} 7`,
		`millrace_memory_failing{tier="disk",worker="host-0"} 1`, `millrace_transfer_received_bytes_total{path="ucx",worker="host-0"} 30`,
		`millrace_executor_processes{kind="python",state="idle",worker="host-0"} 2`, `millrace_executor_deaths_total{worker="host-0"} 3`,
		`millrace_gpu_nvlink_received_bytes_total{worker="host-0"} 1.099511627776e+12`, `millrace_gpu_nvlink_sent_bytes_total{worker="host-0"} 5`,
		`millrace_gpu_pcie_received_bytes_per_second{worker="host-0"} 7.5`, `millrace_gpu_pcie_sent_bytes_per_second{worker="host-0"} 0`,
		`millrace_network_received_bytes_total{device="eth0",worker="host-0"} 7`, `millrace_network_sent_bytes_total{device="eth0",worker="host-0"} 0`,
		`millrace_network_sent_bytes_total{device="mlx5_0:1",worker="host-0"} 9`,
	} {
		if !strings.Contains(body, line+"\n") {
			t.Errorf("no %s in\n%s", line, body)
		}
	}
	plain := open(t, web.Config{Address: "127.0.0.1:0", Worker: "host-0", Figures: func() web.Figures { return web.Figures{} }})
	if _, body := get(t, plain, "/metrics", "localhost"); strings.Contains(body, "millrace_gpu_") {
		t.Errorf("a worker without a GPU has\n%s", body)
	}
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## A worker's own port\n")
	section, _, _ = strings.Cut(section, "\n## ")
	live, docs := names(body, `(?m)^# TYPE (millrace_\w+)`), names(section, "`(millrace_\\w+)`")
	if !maps.Equal(live, docs) {
		t.Errorf("the port has %v,\nand docs/metrics.md %v", live, docs)
	}
	if !strings.Contains(body, "\ngo_goroutines ") || !strings.Contains(body, "\nprocess_cpu_seconds_total ") {
		t.Error("no metrics of the runtime or the process")
	}
}

// Without tokens, only requests of this host are answered.
func TestAPortWithoutTokensIsForThisHost(t *testing.T) {
	fine := func() error { return nil }
	c := web.Config{Address: "127.0.0.1:0", Hangs: fine, Unready: fine}
	if code, body := get(t, open(t, c), "/healthz", "evil.example"); code != http.StatusForbidden {
		t.Errorf("%d %s", code, body)
	}
	if p, err := web.Open(web.Config{Address: "0.0.0.0:0"}); err == nil {
		_ = p.Close()
		t.Error("a port that others can reach was opened without tokens")
	} else if !strings.Contains(err.Error(), "no token") {
		t.Error(err)
	}
	c.Guarded, c.Address = true, "0.0.0.0:0"
	if code, body := get(t, open(t, c), "/healthz", "w.example"); code != http.StatusOK {
		t.Errorf("%d %s", code, body)
	}
}

// Health and readiness say what is wrong.
func TestHealthTellsTheTrouble(t *testing.T) {
	p := open(t, web.Config{
		Address: "127.0.0.1:0", Hangs: func() error { return nil }, Unready: func() error { return errors.New("the worker leaves") },
	})
	if code, body := get(t, p, "/healthz", "localhost"); code != http.StatusOK || body != "ok\n" {
		t.Errorf("%d %q", code, body)
	}
	if code, body := get(t, p, "/readyz", "localhost"); code != http.StatusServiceUnavailable || body != "the worker leaves\n" {
		t.Errorf("%d %q", code, body)
	}
}
