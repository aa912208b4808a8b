package server

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/leader"
	"github.com/millrace/millrace/server/members"
)

// TestWorkersMayStayWithALeaderThatHangs: a worker notices after a while that its leader hangs, and
// only then its time to come back to the next one begins.
func TestWorkersMayStayWithALeaderThatHangs(t *testing.T) {
	for restart, want := range map[time.Duration]time.Duration{ // order-free: all are checked
		0:           members.DefaultRestartGrace + leader.PingAfter + leader.PingTimeout,
		time.Minute: time.Minute + leader.PingAfter + leader.PingTimeout,
	} {
		if got := takeoverGrace(restart); got != want {
			t.Errorf("after a grace of %s: %s, want %s", restart, got, want)
		}
	}
}

// TestPagesNeedTheLead: the HTTP port tells what all schedulers share only if this one leads. Open
// streams end, and what is about this process stays.
func TestPagesNeedTheLead(t *testing.T) {
	var lost atomic.Bool
	s, err := New(Config{Address: "127.0.0.1:0", HTTPAddress: "127.0.0.1:0", leading: &leading{restored: func() {}, release: func() {}, leads: func(context.Context) error {
		if lost.Load() {
			return leader.Refusal("b:1")
		}
		return nil
	}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	done := make(chan error, 1)
	running, stop := context.WithCancel(ctx)
	go func() { done <- s.Run(running) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	open := func(path string) *http.Response {
		t.Helper()
		method, body := http.MethodGet, ""
		if strings.HasPrefix(path, "/api/millrace") {
			method, body = http.MethodPost, "{}"
		}
		request, err := http.NewRequestWithContext(ctx, method, "http://"+s.HTTPAddress()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-Millrace", "1")
		answer, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	get := func(path string) (int, string) {
		t.Helper()
		answer := open(path)
		defer func() { _ = answer.Body.Close() }() // All of it was read.
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(text)
	}
	shared := []string{
		"/readyz", "/api/v1/status", "/api/session", "/api/runs", "/api/samples", "/api/report", "/api/profile", "/api/millrace.v1.SchedulerService/ListGraphs",
	}
	own := []string{"/", "/healthz", "/metrics", "/api/millrace.v1.SchedulerService/ListPeers"}
	for _, path := range shared {
		if code, text := get(path); code != http.StatusOK {
			t.Errorf("%s of a leader: %d, %s", path, code, text)
		}
	}
	stream := open("/api/stream")
	events := bufio.NewReader(stream.Body)
	for line := ""; !strings.HasPrefix(line, "data:"); {
		if line, err = events.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	lost.Store(true)
	for _, path := range shared {
		if code, text := get(path); code != http.StatusServiceUnavailable || !strings.Contains(text, "NOT_LEADER") {
			t.Errorf("%s, when another scheduler may lead: %d, %s", path, code, text)
		}
	}
	for _, path := range own {
		if _, text := get(path); strings.Contains(text, "NOT_LEADER") {
			t.Errorf("%s, when another scheduler may lead: %s", path, text)
		}
	}
	if _, err := io.Copy(io.Discard, events); err == nil || ctx.Err() != nil {
		t.Errorf("the stream goes on: %v, %v", err, ctx.Err())
	}
	_ = stream.Body.Close() // It has ended.
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	cancel()
}
