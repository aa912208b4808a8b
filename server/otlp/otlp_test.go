package otlp

import (
	"maps"
	"net/url"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	tracepb "go.opentelemetry.io/proto/slim/otlp/trace/v1"
)

// Only headers that follow W3C Trace Context name a parent.
func TestParentsAreReadAsW3CSays(t *testing.T) {
	const trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	for header, want := range map[string]struct{ ok, sampled bool }{
		"00-" + trace + "-" + span + "-01":                    {true, true},
		"00-" + trace + "-" + span + "-00":                    {true, false},
		"00-" + trace + "-" + span + "-03":                    {true, true},
		"01-" + trace + "-" + span + "-01-more":               {true, true},
		"01-" + trace + "-" + span + "-01more":                {},
		"00-" + trace + "-" + span + "-01-more":               {},
		"ff-" + trace + "-" + span + "-01":                    {},
		"00-" + strings.ToUpper(trace) + "-" + span + "-01":   {},
		"00-" + strings.Repeat("0", 32) + "-" + span + "-01":  {},
		"00-" + trace + "-" + strings.Repeat("0", 16) + "-01": {},
		"00-" + trace + "-" + span:                            {},
		"00_" + trace + "-" + span + "-01":                    {},
		"00-" + trace + "-" + strings.Repeat("g", 16) + "-01": {},
		"":                         {},
		strings.Repeat("\xff", 55): {},
	} {
		p, ok := parseParent(header, "a=b")
		if ok != want.ok || p.sampled != want.sampled || ok && p.state != "a=b" {
			t.Errorf("%q: %+v, %v", header, p, ok)
		}
	}
	if p, ok := parseParent("00-"+trace+"-"+span+"-01", strings.Repeat("a", stateBytes+1)); !ok || p.state != "" {
		t.Errorf("a long state: %+v, %v", p, ok)
	}
}

func TestEndpointsAreURLs(t *testing.T) {
	for _, c := range []struct {
		text       string
		protocol   Protocol
		tracesOnly bool
		want       string
		by         Protocol
	}{
		{"http://host:4317", "", false, "http://host:4317", GRPC},
		{"https://host:4318", "", false, "https://host:4318/v1/traces", HTTP},
		{"http://host:4318/base/", "", false, "http://host:4318/base/v1/traces", HTTP},
		{"http://host:4318/base", "", true, "http://host:4318/base", HTTP},
		{"http://host:4318", GRPC, false, "http://host:4318", GRPC},
		{"https://host/x", HTTP, false, "https://host/x/v1/traces", HTTP},
		{"https://host/x", "", false, "", ""},
		{"http://host:4318", "http/json", false, "", ""},
		{"host:4317", "", false, "", ""},
		{"ftp://host", "", false, "", ""},
		{"http://", "", false, "", ""},
	} {
		u, by, err := ParseEndpoint(c.text, c.protocol, c.tracesOnly)
		if (err == nil) != (c.want != "") || err == nil && (u.String() != c.want || by != c.by) {
			t.Errorf("%s by %q: %v, %q, %v", c.text, c.protocol, u, by, err)
		}
	}
}

func TestPairsArePercentEncoded(t *testing.T) {
	got, err := ParsePairs(" api-key=a%20b%2Cc , x=1=2,")
	if err != nil || !maps.Equal(got, map[string]string{"api-key": "a b,c", "x": "1=2"}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"key", "=value", "a=%zz"} {
		if got, err := ParsePairs(bad); err == nil {
			t.Errorf("%s: %v", bad, got)
		}
	}
}

// Of a large graph, a bounded and even choice of attempts has spans.
func TestSomeAttemptsOfLargeGraphsAreShown(t *testing.T) {
	spans := map[uint64]int{}
	n := 0
	for i := uint64(1); i <= 1_000_000; i++ {
		if shown(i) {
			n++
		}
		spans[i] = n
	}
	if spans[1000] != 1000 || spans[2000] != 1500 || spans[4000] != 2000 || spans[1_000_000] > 7000 || spans[1_000_000] <= spans[600_000] {
		t.Errorf("%d, %d, %d, %d, %d", spans[1000], spans[2000], spans[4000], spans[600_000], spans[1_000_000])
	}
}

// Spans that the collector does not take in time are dropped and counted.
func TestSpansAreDroppedRatherThanKept(t *testing.T) {
	metrics := prometheus.NewRegistry()
	e, err := New(Config{Endpoint: &url.URL{Scheme: "http", Host: "127.0.0.1:1"}, Protocol: GRPC}, nil, metrics)
	if err != nil {
		t.Fatal(err)
	}
	defer e.sender.release()
	e.offer(make([]*tracepb.Span, queuedSpans+3))
	families, err := metrics.Gather()
	if err != nil || len(e.sender.queue) != queuedSpans {
		t.Fatalf("%d spans wait; %v", len(e.sender.queue), err)
	}
	for _, m := range families[0].GetMetric() {
		want := 0.0
		if m.GetLabel()[0].GetValue() == dropped {
			want = 3
		}
		if m.GetCounter().GetValue() != want {
			t.Errorf("%v, want %v", m, want)
		}
	}
}
