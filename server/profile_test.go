package server_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/server"
)

// serveWorker serves calls of a worker until the test ends, and returns their address.
func serveWorker(t *testing.T, register func(*grpc.Server)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	workers, served := grpc.NewServer(), make(chan error, 1)
	register(workers)
	go func() { served <- workers.Serve(listener) }()
	t.Cleanup(func() {
		workers.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

// sampled answers as a worker with one process does, and keeps the requests and their tokens.
type sampled struct {
	pb.UnimplementedExecutorServiceServer
	calls []*pb.ProfileCall

	mu     sync.Mutex
	asked  []*pb.GetProfileRequest
	tokens []string
}

func (s *sampled) GetProfile(ctx context.Context, r *pb.GetProfileRequest) (*pb.GetProfileResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r)
	s.tokens = append(s.tokens, metadata.ValueFromIncomingContext(ctx, "authorization")...)
	return &pb.GetProfileResponse{Calls: s.calls, Samples: s.calls[0].GetSamples(), Interval: durationpb.New(10 * time.Millisecond)}, nil
}

// A graph is found as soon as its submission is acknowledged, before the next commit of the
// catalogue.
func TestTheProfileOfAGraphThatWasJustAccepted(t *testing.T) {
	c := start(t, server.Config{HTTPAddress: "127.0.0.1:0"})
	id := c.open(timeout(t))
	b := c.dashboard(t)
	for i := range 20 {
		submitted, err := c.client.SubmitBatch(timeout(t), &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id}, Tasks: noops(strconv.Itoa(i), 1)})
		if err != nil {
			t.Fatal(err)
		}
		if code, body := b.do(http.MethodGet, "/api/profile?graph="+strconv.FormatUint(submitted.GetGraphId(), 10), ""); code != http.StatusOK {
			t.Fatalf("submission %d: %d %s", i, code, body)
		}
	}
}

// The profile of a graph is the sum of those of the workers that answer, of its ops while it ran.
func TestProfilesByHTTP(t *testing.T) {
	line := strings.Repeat("x", 1000)
	workers := &sampled{calls: []*pb.ProfileCall{
		{Samples: 7, Name: "f", File: "f.py", FirstLine: 1, Line: 2, Text: line},
		{Caller: 1, Samples: 3, Name: "g", File: "f.py", FirstLine: 5, Line: 6, Text: "return 1"},
	}}
	address := serveWorker(t, func(s *grpc.Server) { pb.RegisterExecutorServiceServer(s, workers) })
	c := start(t, server.Config{HTTPAddress: "127.0.0.1:0"})
	for _, name := range []string{"a", "b"} {
		r := registration(name)
		r.DataAddress = address
		c.join(c.conn, r, succeed)
	}
	c.join(c.conn, registration("silent"), succeed) // nothing listens at its address
	id := c.open(timeout(t))
	watch := c.watch(timeout(t), &pb.WatchRequest{ClientId: id})
	submitted, err := c.client.SubmitBatch(timeout(t), &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id}, Tasks: noops("a", 3)})
	if err != nil {
		t.Fatal(err)
	}
	c.final(watch, submitted.GetTaskIds())
	b := c.dashboard(t)
	b.header.Set("Authorization", "Bearer mine")
	code, body := b.do(http.MethodGet, "/api/profile?graph="+strconv.FormatUint(submitted.GetGraphId(), 10), "")
	var got struct {
		Samples, Workers uint64
		IntervalMS       float64  `json:"interval_ms"`
		MissingWorkers   int      `json:"missing_workers"`
		Columns          []string `json:"columns"`
		Rows             [][]any
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil || code != http.StatusOK {
		t.Fatalf("%d %s, %v", code, body, err)
	}
	if got.Samples != 14 || got.Workers != 2 || got.MissingWorkers != 1 || got.IntervalMS != 10 || len(got.Rows) != 2 || len(got.Rows[0]) != len(got.Columns) {
		t.Fatalf("%s", body)
	}
	if outer, inner := got.Rows[0], got.Rows[1]; outer[0] != 0.0 || outer[1] != 14.0 || outer[2] != "f" || inner[0] != 1.0 || inner[1] != 6.0 || inner[5] != "return 1" {
		t.Errorf("%v, %v", outer, inner)
	}
	if text := got.Rows[0][5].(string); len(text) > 210 {
		t.Errorf("a line of %d bytes", len(text))
	}
	if asked := workers.asked[0]; !slices.Equal(asked.GetOps(), []string{"bench.noop"}) || asked.GetStartTime() == nil || workers.tokens[0] != "Bearer mine" {
		t.Errorf("the workers were asked for %v with the token %s", asked, workers.tokens[0])
	}
	if code, body := b.do(http.MethodGet, "/api/profile?op=f&op=g&start=1.5&end=9", ""); code != http.StatusOK {
		t.Errorf("%d %s", code, body)
	}
	if asked := workers.asked[2]; !slices.Equal(asked.GetOps(), []string{"f", "g"}) || asked.GetStartTime().AsTime().UnixMilli() != 1500 || asked.GetEndTime().GetSeconds() != 9 {
		t.Errorf("the workers were asked for %v", asked)
	}
	code, body = b.do(http.MethodGet, "/api/trace?graph="+strconv.FormatUint(submitted.GetGraphId(), 10), "")
	if code != http.StatusOK || !json.Valid([]byte(body)) || strings.Count(body, `"cat":"task"`) != 3 {
		t.Errorf("the file for Perfetto: %d %s", code, body)
	}
	if code, reason := b.refusal(http.MethodGet, "/api/trace?graph=77", ""); code != http.StatusNotFound {
		t.Errorf("the file of a graph without attempts: %d %s", code, reason)
	}
	for query, want := range map[string]int{"graph=77": http.StatusNotFound, "graph=x": http.StatusBadRequest, "start=x": http.StatusBadRequest, "end=NaN": http.StatusBadRequest} {
		if code, reason := b.refusal(http.MethodGet, "/api/profile?"+query, ""); code != want {
			t.Errorf("%s: %d %s, want %d", query, code, reason, want)
		}
	}
}

// A report needs no other file, and no text ends its data. It is made without an HTTP port, too.
func TestReportIsOneFile(t *testing.T) {
	c := start(t, server.Config{})
	if _, err := c.client.SubmitBatch(timeout(t), &pb.SubmitRequest{Tasks: noops("a</script><script>", 3)}); err != nil {
		t.Fatal(err)
	}
	report, err := c.client.GetReport(timeout(t), &pb.GetReportRequest{Title: "</script><b>", Code: "<!-- </script>", EndTime: timestamppb.New(time.Unix(1<<40, 0))})
	if err != nil {
		t.Fatal(err)
	}
	html := string(report.GetHtml())
	if n := strings.Count(html, "<script"); n != 2 || strings.Count(html, "</script") != 2 || strings.Contains(html, "<!--") {
		t.Errorf("%d scripts begin, %d end, and there are %d comments", n, strings.Count(html, "</script"), strings.Count(html, "<!--"))
	}
	for _, reference := range []string{`src="`, `href="app`, `@import`} {
		if at := strings.Index(html, reference); at >= 0 {
			t.Errorf("it refers to another file: %s", html[at:at+100])
		}
	}
	_, behind, _ := strings.Cut(html, `id="frozen">`)
	text, _, _ := strings.Cut(behind, "</script>")
	var kept struct {
		Title string
		Tasks map[string][]struct{ Key string }
	}
	if err := json.Unmarshal([]byte(text), &kept); err != nil || kept.Title != "</script><b>" || len(kept.Tasks["1"]) != 3 {
		t.Errorf("%+v, %v", kept, err)
	}
}
