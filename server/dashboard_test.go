package server_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/access"
	"github.com/millrace/millrace/server"
)

// browser is the part of a web browser that the dashboard needs.
type browser struct {
	t    *testing.T
	base string
	http *http.Client
	// header goes with every request.
	header http.Header
}

func newBrowser(t *testing.T, base string) *browser {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	return &browser{t: t, base: base, http: &http.Client{Jar: jar, Transport: transport}, header: http.Header{"X-Millrace": {"1"}}}
}

// dashboard opens a browser at the dashboard of a cluster.
func (c *cluster) dashboard(t *testing.T) *browser {
	t.Helper()
	return newBrowser(t, "http://"+c.server.HTTPAddress())
}

func (b *browser) send(method, path, body string) *http.Response {
	b.t.Helper()
	request, err := http.NewRequestWithContext(timeout(b.t), method, b.base+path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	request.Header = b.header.Clone()
	if host := request.Header.Get("Host"); host != "" {
		request.Host = host
	}
	response, err := b.http.Do(request)
	if err != nil {
		b.t.Fatal(err)
	}
	return response
}

// do returns the status and the body of an answer.
func (b *browser) do(method, path, body string) (int, string) {
	b.t.Helper()
	response := b.send(method, path, body)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// refusal returns the status and the reason of an answer.
func (b *browser) refusal(method, path, body string) (int, string) {
	b.t.Helper()
	code, text := b.do(method, path, body)
	var failure struct{ Code, Reason, Message string }
	if err := json.Unmarshal([]byte(text), &failure); err != nil || failure.Code == "" || failure.Message == "" {
		b.t.Fatalf("%s %s: %d without an error: %s", method, path, code, text)
	}
	return code, failure.Reason
}

func (b *browser) login(token string) int {
	b.t.Helper()
	code, _ := b.do(http.MethodPost, "/login", fmt.Sprintf(`{"token": %q}`, token))
	return code
}

// event is one server-sent event.
type event struct {
	name, id string
	data     []byte
}

// events reads a stream of events.
type events struct {
	t    *testing.T
	body *bufio.Reader
}

func (b *browser) stream(method, path, body string) *events {
	b.t.Helper()
	response := b.send(method, path, body)
	b.t.Cleanup(func() { response.Body.Close() })
	if kind := response.Header.Get("Content-Type"); response.StatusCode != http.StatusOK || kind != "text/event-stream" {
		text, _ := io.ReadAll(response.Body)
		b.t.Fatalf("%s: %d %s: %s", path, response.StatusCode, kind, text)
	}
	return &events{b.t, bufio.NewReader(response.Body)}
}

// next returns the next event; io.EOF at the end.
func (e *events) next() (event, error) {
	var got event
	for {
		line, err := e.body.ReadBytes('\n')
		if err != nil {
			return got, err
		}
		name, value, _ := bytes.Cut(bytes.TrimRight(line, "\n"), []byte(": "))
		switch string(name) {
		case "event":
			got.name = string(value)
		case "id":
			got.id = string(value)
		case "data":
			got.data = value
		case "":
			if got.data != nil {
				return got, nil
			}
		}
	}
}

// until reads events of one name until one is right.
func until[T any](e *events, name string, right func(T) bool) T {
	e.t.Helper()
	for {
		got, err := e.next()
		if err != nil {
			e.t.Fatalf("waiting for an event of %s: %v", name, err)
		}
		if got.name != name {
			continue
		}
		var decoded T
		if err := json.Unmarshal(got.data, &decoded); err != nil {
			e.t.Fatalf("%s: %v in %s", name, err, got.data)
		}
		if right(decoded) {
			return decoded
		}
	}
}

func TestCallsOfTheAPIAsJSON(t *testing.T) {
	c := start(t, server.Config{HTTPAddress: "127.0.0.1:0"})
	b := c.dashboard(t)
	const service = "/api/millrace.v1.SchedulerService/"
	code, body := b.do(http.MethodPost, service+"SubmitBatch", `{"tasks": [{"key": "a", "op": "bench.noop"}]}`)
	submitted := &pb.SubmitResponse{}
	if err := protojson.Unmarshal([]byte(body), submitted); code != http.StatusOK || err != nil || submitted.GetGraphId() == 0 {
		t.Fatalf("submit: %d %s, %v", code, body, err)
	}
	code, body = b.do(http.MethodPost, service+"GetTask", `{"task": {"key": "a"}}`)
	task := &pb.GetTaskResponse{}
	if err := protojson.Unmarshal([]byte(body), task); code != http.StatusOK || err != nil || task.GetTask().GetOp().GetName() != "bench.noop" {
		t.Errorf("task: %d %s, %v", code, body, err)
	}
	silent := registration("silent")
	silent.DataAddress = ""
	defer c.join(c.conn, silent, succeed).leave()
	for _, test := range []struct {
		path, body string
		code       int
		reason     string
	}{
		{"/api/workers/silent/millrace.v1.DataService/GetWorkerLog", `{}`, http.StatusServiceUnavailable, "UNKNOWN_WORKER"},
		{service + "GetTask", `{"task": {"key": "none"}}`, http.StatusNotFound, "UNKNOWN_TASK"},
		{service + "GetTask", `{"task": `, http.StatusBadRequest, "INVALID_FIELD"},
		{service + "GetTask", `{"tusk": {}}`, http.StatusBadRequest, "INVALID_FIELD"},
		{service + "GetTusk", `{}`, http.StatusNotImplemented, "UNIMPLEMENTED"},
		{service + "Submit", `{}`, http.StatusNotImplemented, "UNIMPLEMENTED"},
		{"/api/workers/none/millrace.v1.DataService/GetWorkerLog", `{}`, http.StatusNotFound, "UNKNOWN_WORKER"},
		{"/api/workers/none/millrace.v1.DataService/ReadObjects", `{}`, http.StatusNotImplemented, "UNIMPLEMENTED"},
		{service + "Watch", `{}`, http.StatusBadRequest, "INVALID_FIELD"},
	} {
		if code, reason := b.refusal(http.MethodPost, test.path, test.body); code != test.code || reason != test.reason {
			t.Errorf("%s %s: %d %s, want %d %s", test.path, test.body, code, reason, test.code, test.reason)
		}
	}
	watch := b.stream(http.MethodPost, service+"Watch", `{"graphs": true}`)
	got, err := watch.next()
	message := &pb.WatchResponse{}
	if err != nil || protojson.Unmarshal(got.data, message) != nil || len(message.GetGraphs()) != 1 {
		t.Errorf("watch: %s, %v", got.data, err)
	}
}

// Each call is for the roles of the table, also as JSON. The requests cannot be parsed, so that
// calls that are allowed do nothing.
func TestEachCallByHTTPIsForTheRolesOfTheTable(t *testing.T) {
	accepted := map[string]server.Role{}
	for _, role := range access.Roles() {
		accepted["of-"+string(role)] = role
	}
	c := start(t, server.Config{HTTPAddress: "127.0.0.1:0", Tokens: accepted})
	b := c.dashboard(t)
	made := 0
	for _, line := range access.Table() {
		if !strings.HasPrefix(line.Method, "/millrace.v1.") && !line.Open {
			continue
		}
		path := "/api" + line.Method
		ask := func(token string) int {
			if b.header.Del("Authorization"); token != "" {
				b.header.Set("Authorization", "Bearer "+token)
			}
			code, _ := b.refusal(http.MethodPost, path, `{"no such field": 1}`)
			return code
		}
		anonymous := ask("")
		if anonymous == http.StatusNotImplemented || !line.Open && ask("of-operator") == http.StatusNotImplemented {
			continue // It is a call of workers, or takes a stream of requests.
		}
		made++
		if wrong := ask("wrong"); line.Open != (anonymous == http.StatusBadRequest) || line.Open != (wrong == http.StatusBadRequest) || !line.Open && anonymous+wrong != 2*http.StatusUnauthorized {
			t.Errorf("%s: %d without a token, %d with a wrong one", path, anonymous, wrong)
		}
		for _, role := range access.Roles() {
			want := http.StatusForbidden
			if line.Open || access.Allowed(role, line.Method) {
				want = http.StatusBadRequest
			}
			if code := ask("of-" + string(role)); code != want {
				t.Errorf("%s by %s: %d, want %d", path, role, code, want)
			}
		}
	}
	if made < 50 {
		t.Errorf("the walk made only %d calls", made)
	}
	for path, method := range map[string]string{
		"/api/stream": pb.SchedulerService_Watch_FullMethodName, "/api/runs": pb.SchedulerService_ListTaskRuns_FullMethodName,
		"/api/samples": pb.SchedulerService_GetClusterInfo_FullMethodName, "/api/profile": pb.ExecutorService_GetProfile_FullMethodName,
		"/api/report": pb.SchedulerService_GetReport_FullMethodName, "/api/holders": pb.SchedulerService_GetTask_FullMethodName,
	} {
		for _, role := range append(access.Roles(), "stranger") {
			b.header.Set("Authorization", "Bearer of-"+string(role))
			want := http.StatusForbidden
			if access.Allowed(role, method) {
				want = http.StatusOK
			} else if role == "stranger" {
				want = http.StatusUnauthorized
			}
			response := b.send(http.MethodGet, path, "")
			response.Body.Close()
			if response.StatusCode != want {
				t.Errorf("%s by %s: %d, want %d", path, role, response.StatusCode, want)
			}
		}
	}
}

// A page that is not logged in learns why: nothing was shown, a cookie is old, or a token is wrong.
func TestAReasonForTheLogin(t *testing.T) {
	c := start(t, server.Config{HTTPAddress: "127.0.0.1:0", Tokens: map[string]server.Role{"secret": server.RoleOperator}})
	base := "http://" + c.server.HTTPAddress()
	_, port, _ := strings.Cut(c.server.HTTPAddress(), ":")
	for want, header := range map[string]http.Header{
		"missing": {},
		"ended":   {"Cookie": {"millrace_token_" + port + "=" + base64.RawURLEncoding.EncodeToString([]byte("old"))}},
		"refused": {"Authorization": {"Bearer wrong"}},
	} {
		b := newBrowser(t, base)
		b.header = header
		code, text := b.do(http.MethodGet, "/api/session", "")
		var failure struct {
			Reason   string
			Metadata struct{ Login string }
		}
		if err := json.Unmarshal([]byte(text), &failure); err != nil || code != http.StatusUnauthorized || failure.Reason != "UNAUTHENTICATED" || failure.Metadata.Login != want {
			t.Errorf("%s: %d %s", want, code, text)
		}
	}
}

func TestLoginByCookie(t *testing.T) {
	c := start(t, server.Config{HTTPAddress: "127.0.0.1:0", Tokens: map[string]server.Role{"secret": server.RoleOperator, "look": server.RoleReader}})
	// A proxy removes the prefix, as that of Jupyter does.
	target, err := url.Parse("http://" + c.server.HTTPAddress())
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(http.StripPrefix("/user/ann/proxy/8787", httputil.NewSingleHostReverseProxy(target)))
	defer proxy.Close()
	for _, base := range []string{"http://" + c.server.HTTPAddress(), proxy.URL + "/user/ann/proxy/8787"} {
		b := newBrowser(t, base)
		if code, reason := b.refusal(http.MethodGet, "/api/session", ""); code != http.StatusUnauthorized || reason != "UNAUTHENTICATED" {
			t.Errorf("session of a stranger: %d %s", code, reason)
		}
		if code := b.login("wrong"); code != http.StatusUnauthorized {
			t.Errorf("login with a wrong token: %d", code)
		}
		response := b.send(http.MethodPost, "/login", `{"token": "look"}`)
		response.Body.Close()
		cookies := response.Cookies()
		if response.StatusCode != http.StatusNoContent || len(cookies) != 1 || !cookies[0].HttpOnly || cookies[0].SameSite != http.SameSiteStrictMode || cookies[0].Secure || strings.Contains(cookies[0].Raw, "look") {
			t.Errorf("login: %d, %v", response.StatusCode, cookies)
		}
		code, body := b.do(http.MethodGet, "/api/session", "")
		var session struct {
			Role      string
			Tokens    bool
			ClusterID string `json:"cluster_id"`
			Life      string
		}
		if err := json.Unmarshal([]byte(body), &session); err != nil || code != http.StatusOK || session.Role != "read-only" || !session.Tokens || session.ClusterID != c.server.ID() || session.Life == "" {
			t.Errorf("session: %d %s", code, body)
		}
		if base != "http://"+c.server.HTTPAddress() {
			other, _ := url.Parse(proxy.URL + "/user/bob/")
			if shown := b.http.Jar.Cookies(other); len(shown) != 0 {
				t.Errorf("the cookie goes to other paths, too: %v", shown)
			}
		}
		if code, _ := b.do(http.MethodPost, "/api/millrace.v1.SchedulerService/ListGraphs", "{}"); code != http.StatusOK {
			t.Errorf("a call with the cookie: %d", code)
		}
		if code, reason := b.refusal(http.MethodPost, "/api/millrace.v1.SchedulerService/Shutdown", "{}"); code != http.StatusForbidden || reason != "PERMISSION_DENIED" {
			t.Errorf("shutdown by a reader: %d %s", code, reason)
		}
		if code, _ := b.do(http.MethodPost, "/logout", ""); code != http.StatusNoContent {
			t.Errorf("logout: %d", code)
		}
		if code, _ := b.refusal(http.MethodGet, "/api/session", ""); code != http.StatusUnauthorized {
			t.Errorf("session after the logout: %d", code)
		}
	}
}

// Pages of other sites can make a browser send requests, also with its cookie, but without our
// header.
func TestRequestsOfOtherSitesAreRefused(t *testing.T) {
	for name, tokens := range map[string]map[string]server.Role{"tokens": {"secret": server.RoleOperator}, "no tokens": nil} {
		t.Run(name, func(t *testing.T) {
			c := start(t, server.Config{HTTPAddress: "127.0.0.1:0", Tokens: tokens})
			b := c.dashboard(t)
			if code := b.login("secret"); code != http.StatusNoContent {
				t.Fatalf("login: %d", code)
			}
			b.header.Del("X-Millrace")
			for _, path := range []string{"/api/millrace.v1.SchedulerService/Shutdown", "/login", "/logout"} {
				if code, reason := b.refusal(http.MethodPost, path, "{}"); code != http.StatusForbidden || reason != "PERMISSION_DENIED" {
					t.Errorf("%s without the header: %d %s", path, code, reason)
				}
			}
			if code, _ := b.do(http.MethodGet, "/api/session", ""); code != http.StatusOK {
				t.Errorf("reading needs no header: %d", code)
			}
			b.header.Set("Authorization", "Bearer secret")
			if code, _ := b.do(http.MethodPost, "/api/millrace.v1.SchedulerService/ListGraphs", "{}"); code != http.StatusOK {
				t.Errorf("a program with its token: %d", code)
			}
		})
	}
}

// The name of another site may be made to point at this host. Without tokens, the Host header is
// all that tells its pages from ours.
func TestNamesThatPointHereAreRefusedWithoutTokens(t *testing.T) {
	c := start(t, server.Config{HTTPAddress: "127.0.0.1:0"})
	b := c.dashboard(t)
	for host, want := range map[string]int{
		"evil.example": http.StatusForbidden, "evil.example:8787": http.StatusForbidden, "192.0.2.1:80": http.StatusForbidden, "localhost.evil.example": http.StatusForbidden,
		"localhost": http.StatusOK, "localhost:9": http.StatusOK, "127.0.0.1": http.StatusOK, "127.1.2.3:80": http.StatusOK, "[::1]:80": http.StatusOK, "[::1]": http.StatusOK,
	} {
		b.header.Set("Host", host)
		for _, path := range []string{"/", "/api/session", "/metrics"} {
			if code, _ := b.do(http.MethodGet, path, ""); code != want {
				t.Errorf("%s of %s: %d, want %d", path, host, code, want)
			}
		}
	}
	if _, err := server.New(server.Config{Address: "127.0.0.1:0", HTTPAddress: "0.0.0.0:0"}); err == nil || !strings.Contains(err.Error(), "token") {
		t.Errorf("an HTTP port for everybody without a token: %v", err)
	}
}

// dataService answers as a worker does, and keeps the token of the last call.
type dataService struct {
	pb.UnimplementedDataServiceServer
	token atomic.Value
}

func (s *dataService) GetWorkerLog(ctx context.Context, _ *pb.GetWorkerLogRequest) (*pb.GetWorkerLogResponse, error) {
	s.token.Store(strings.Join(metadata.ValueFromIncomingContext(ctx, "authorization"), ","))
	return &pb.GetWorkerLogResponse{Lines: []*pb.LogLine{{Text: "hello"}}}, nil
}

func (s *dataService) FollowLogs(_ *pb.FollowLogsRequest, stream grpc.ServerStreamingServer[pb.FollowLogsResponse]) error {
	if err := stream.Send(&pb.FollowLogsResponse{}); err != nil {
		return err
	}
	<-stream.Context().Done() // The reader has left.
	return stream.Context().Err()
}

// executorService has one idle process.
type executorService struct {
	pb.UnimplementedExecutorServiceServer
}

func (executorService) DescribeExecutors(context.Context, *pb.DescribeExecutorsRequest) (*pb.DescribeExecutorsResponse, error) {
	return &pb.DescribeExecutorsResponse{Processes: []*pb.ExecutorProcess{{State: pb.ExecutorState_EXECUTOR_STATE_IDLE}}}, nil
}

// A page reads logs of workers by the scheduler, with its own token.
func TestCallsOfWorkersByHTTP(t *testing.T) {
	data := new(dataService)
	address := serveWorker(t, func(s *grpc.Server) {
		pb.RegisterDataServiceServer(s, data)
		pb.RegisterExecutorServiceServer(s, executorService{})
	})
	c := start(t, server.Config{HTTPAddress: "127.0.0.1:0", Tokens: map[string]server.Role{"secret": server.RoleOperator, "look": server.RoleReader, "work": server.RoleWorker}})
	r := registration("w 0/a")
	r.DataAddress = address
	ctx := metadata.AppendToOutgoingContext(timeout(t), "authorization", "Bearer work")
	session, err := c.workers.Session(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := session.Send(&workerv1.SessionRequest{Register: r}); err != nil {
		t.Fatal(err)
	}
	if _, err := session.Recv(); err != nil {
		t.Fatal(err)
	}
	b := c.dashboard(t)
	const path = "/api/workers/w%200%2Fa/millrace.v1.DataService/"
	if code, reason := b.refusal(http.MethodPost, path+"GetWorkerLog", "{}"); code != http.StatusUnauthorized || data.token.Load() != nil {
		t.Errorf("a stranger: %d %s, and the worker was called with %v", code, reason, data.token.Load())
	}
	if code := b.login("look"); code != http.StatusNoContent {
		t.Fatalf("login: %d", code)
	}
	code, body := b.do(http.MethodPost, path+"GetWorkerLog", "{}")
	if code != http.StatusOK || !strings.Contains(body, "hello") || data.token.Load() != "Bearer look" {
		t.Errorf("log: %d %s, with the token %v", code, body, data.token.Load())
	}
	if got, err := b.stream(http.MethodPost, path+"FollowLogs", "{}").next(); err != nil || got.data == nil {
		t.Errorf("follow: %s, %v", got.data, err)
	}
	const executors = "/api/workers/w%200%2Fa/millrace.v1.ExecutorService/"
	if code, body := b.do(http.MethodPost, executors+"DescribeExecutors", "{}"); code != http.StatusOK || !strings.Contains(body, "EXECUTOR_STATE_IDLE") {
		t.Errorf("executors: %d %s", code, body)
	}
	if code, reason := b.refusal(http.MethodPost, executors+"RestartExecutors", "{}"); code != http.StatusNotImplemented || reason != "UNIMPLEMENTED" {
		t.Errorf("a call that is not for pages: %d %s", code, reason)
	}
	if code, reason := b.refusal(http.MethodPost, path+"GetTaskLogs", "{}"); code != http.StatusNotImplemented || reason != "UNIMPLEMENTED" {
		t.Errorf("an error of the worker: %d %s", code, reason)
	}
}

type rowsEvent struct {
	Snapshot bool
	Rows     []map[string]any
	Removed  []any
}

func TestTheStreamShowsTheCluster(t *testing.T) {
	c := start(t, server.Config{HTTPAddress: "127.0.0.1:0"})
	ctx := timeout(t)
	b := c.dashboard(t)
	e := b.stream(http.MethodGet, "/api/stream?topics=summary,workers,graphs,runs,clients,datasets,alarms", "")
	until(e, "workers", func(r rowsEvent) bool { return r.Snapshot && len(r.Rows) == 0 })
	w := c.join(c.conn, registration("w-0"), succeed)
	until(e, "workers", func(r rowsEvent) bool { return len(r.Rows) == 1 && r.Rows[0]["name"] == "w-0" })
	id := c.open(ctx)
	watch := c.watch(ctx, &pb.WatchRequest{ClientId: id})
	submitted, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id, Name: "first"}, Tasks: noops("a", 10)})
	if err != nil {
		t.Fatal(err)
	}
	c.final(watch, submitted.GetTaskIds())
	type runsEvent struct {
		First, Next uint64
		Op, Columns []string
		Rows        [][]any
	}
	seen := 0
	until(e, "runs", func(r runsEvent) bool {
		for _, row := range r.Rows {
			seen++
			if int(row[0].(float64)) != seen || r.Op[int(row[2].(float64))] != "bench.noop" || row[3].(float64) != float64(w.id) || !strings.HasPrefix(row[14].(string), "a-") {
				t.Errorf("run %d is %v", seen, row)
			}
		}
		return seen == 10 && r.Next == 10
	})
	type summary struct {
		Tasks   map[string]uint64
		Workers map[string]uint64
		Groups  []struct {
			Op   string
			Done uint64
		}
		Slots uint64
	}
	until(e, "summary", func(s summary) bool {
		return s.Tasks["succeeded"] == 10 && s.Workers["active"] == 1 && s.Slots == 1 && len(s.Groups) == 1 && s.Groups[0].Op == "bench.noop" && s.Groups[0].Done == 10
	})
	// Each topic is read at times of its own: these may have been late.
	until(b.stream(http.MethodGet, "/api/stream?topics=graphs", ""), "graphs", func(r rowsEvent) bool { return len(r.Rows) == 1 && r.Rows[0]["name"] == "first" })
	until(b.stream(http.MethodGet, "/api/stream?topics=clients", ""), "clients", func(r rowsEvent) bool { return len(r.Rows) == 1 })
	// A page that is opened later gets all of it at once.
	late := b.stream(http.MethodGet, "/api/stream?topics=graphs,clients,runs&runs_after=7", "")
	until(late, "graphs", func(r rowsEvent) bool { return r.Snapshot && len(r.Rows) == 1 && r.Rows[0]["name"] == "first" })
	until(late, "clients", func(r rowsEvent) bool {
		return r.Snapshot && len(r.Rows) == 1 && r.Rows[0]["clientId"] != fmt.Sprint(id)
	})
	until(late, "runs", func(r runsEvent) bool { return r.First == 8 && len(r.Rows) == 3 && len(r.Columns) == 16 })
	if _, err := c.client.CloseClient(ctx, &pb.CloseClientRequest{ClientId: id}); err != nil {
		t.Fatal(err)
	}
	until(late, "clients", func(r rowsEvent) bool { return !r.Snapshot && len(r.Removed) == 1 })
	if code, reason := b.refusal(http.MethodGet, "/api/stream?topics=nothing", ""); code != http.StatusBadRequest || reason != "INVALID_FIELD" {
		t.Errorf("an unknown topic: %d %s", code, reason)
	}
	code, body := b.do(http.MethodGet, "/api/samples", "")
	var samples struct {
		Columns []string
		Rows    [][]float64
	}
	if err := json.Unmarshal([]byte(body), &samples); err != nil || code != http.StatusOK || len(samples.Rows) == 0 || len(samples.Rows[0]) != len(samples.Columns) {
		t.Errorf("samples: %d %s, %v", code, body, err)
	}
	// When the scheduler stops, the streams end.
	c.stop()
	for {
		if _, err := e.next(); err != nil {
			break
		}
	}
}

func TestTheStreamTellsWhatHappened(t *testing.T) {
	c := start(t, server.Config{HTTPAddress: "127.0.0.1:0"})
	ctx := timeout(t)
	w := c.join(c.conn, registration("w-0"), func(a *workerv1.Assignment) *workerv1.TaskReport {
		report := succeed(a)
		report.Outcome, report.InlineResult = workerv1.TaskOutcome_TASK_OUTCOME_FAILED, nil
		report.Error = &pb.TaskError{Reason: "TASK_FAILED", Message: "no luck"}
		report.Slot, report.FetchNanos, report.WaitNanos, report.DeserializeNanos, report.PublishNanos, report.FetchedBytes = 1, 2_000_000, 3_000_000, 4_000_000, 5_000_000, 6
		report.LoadNanos = 7_000_000
		return report
	})
	type eventsEvent struct {
		Snapshot bool
		Rows     []struct{ Kind, Severity, Worker, Text string }
	}
	e := c.dashboard(t).stream(http.MethodGet, "/api/stream?topics=events", "")
	seen := map[string]string{}
	await := func(kind string) string {
		t.Helper()
		for seen[kind] == "" {
			until(e, "events", func(r eventsEvent) bool {
				for _, row := range r.Rows {
					if row.Kind == "graph-failed" && seen[row.Kind] != "" {
						t.Error("the failure of one graph is told twice")
					}
					seen[row.Kind] = row.Severity + " " + row.Worker + ": " + row.Text
				}
				return true
			})
		}
		return seen[kind]
	}
	await("worker-registered")
	submitted, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{Name: "doomed"}, Tasks: noops("a", 1)})
	if err != nil {
		t.Fatal(err)
	}
	if text := await("graph-failed"); !strings.HasPrefix(text, "error") || !strings.Contains(text, "doomed") || !strings.Contains(text, "no luck") {
		t.Errorf("graph %d: %s", submitted.GetGraphId(), text)
	}
	// A later change of the graph is no event.
	id := c.open(ctx)
	held, err := c.client.HoldTasks(ctx, &pb.HoldTasksRequest{ClientId: id, Tasks: &pb.TaskSet{Ids: submitted.GetTaskIds()}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.client.ReleaseGraph(ctx, &pb.ReleaseGraphRequest{GraphId: submitted.GetGraphId()}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.client.ReleaseTasks(ctx, &pb.ReleaseTasksRequest{ClientId: id, Tasks: &pb.TaskSet{Ids: held.GetTaskIds()}}); err != nil {
		t.Fatal(err)
	}
	for _, failure := range []string{"no space left on device", ""} {
		if err := w.stream.Send(&workerv1.SessionRequest{Stats: &workerv1.WorkerStats{SpillFailure: failure, ExecutorDeaths: 1, LastExecutorDeath: "signal 9"}}); err != nil {
			t.Fatal(err)
		}
	}
	if text := await("spill-failed"); !strings.Contains(text, "error w-0") || !strings.Contains(text, "no space left") {
		t.Error(text)
	}
	await("spill-mended")
	if text := await("executor-died"); !strings.Contains(text, "signal 9") {
		t.Error(text)
	}
	if _, err := c.workers.ReportWorkerDeath(ctx, &workerv1.ReportWorkerDeathRequest{Name: "w-0", Death: &pb.WorkerDeath{Incarnation: w.incarnation, Cause: "killed by the kernel"}}); err != nil {
		t.Fatal(err)
	}
	if text := await("worker-lost"); !strings.Contains(text, "killed by the kernel") {
		t.Error(text)
	}
	// The attempt is kept with the times of its phases.
	runs, err := c.client.ListTaskRuns(ctx, &pb.ListTaskRunsRequest{})
	if err != nil || len(runs.GetRuns()) != 1 {
		t.Fatalf("runs: %v, %v", runs, err)
	}
	r := runs.GetRuns()[0]
	if r.GetOp() != "bench.noop" || r.GetSlot() != 1 || r.GetWorkerId() != w.id || r.GetFetchTime().AsDuration() != 2*time.Millisecond ||
		r.GetWaitTime().AsDuration() != 3*time.Millisecond || r.GetLoadTime().AsDuration() != 7*time.Millisecond || r.GetDeserializeTime().AsDuration() != 4*time.Millisecond ||
		r.GetPublishTime().AsDuration() != 5*time.Millisecond || r.GetFetchedBytes() != 6 || r.GetGraphId() != submitted.GetGraphId() {
		t.Errorf("run: %v", r)
	}
	for graph, want := range map[uint64]int{r.GetGraphId(): 1, r.GetGraphId() + 1: 0} {
		if of, err := c.client.ListTaskRuns(ctx, &pb.ListTaskRunsRequest{GraphId: graph}); err != nil || len(of.GetRuns()) != want {
			t.Errorf("runs of graph %d: %v, %v", graph, of, err)
		}
	}
	listedEvents(ctx, t, c, submitted.GetGraphId())
}

// listedEvents checks the answers of ListEvents: all events, those after one of them, and the last.
func listedEvents(ctx context.Context, t *testing.T, c *cluster, failed uint64) {
	t.Helper()
	all, err := c.client.ListEvents(ctx, &pb.ListEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	number := uint64(0)
	for _, e := range all.GetEvents() {
		if e.GetTime() == nil || e.GetText() == "" || e.GetNumber() <= number {
			t.Errorf("event: %v", e)
		}
		if e.GetKind() == "graph-failed" && (e.GetGraphId() != failed || e.GetSeverity() != pb.EventSeverity_EVENT_SEVERITY_ERROR) {
			t.Errorf("event: %v", e)
		}
		if e.GetKind() == "worker-registered" && (e.GetWorker() != "w-0" || e.GetSeverity() != pb.EventSeverity_EVENT_SEVERITY_INFO) {
			t.Errorf("event: %v", e)
		}
		number = e.GetNumber()
	}
	if number < 5 || all.GetLastNumber() != number {
		t.Errorf("the last event is %d, and %d in the list", all.GetLastNumber(), number)
	}
	after, err := c.client.ListEvents(ctx, &pb.ListEventsRequest{AfterNumber: number - 2})
	if err != nil || len(after.GetEvents()) != 2 || after.GetEvents()[0].GetNumber() != number-1 {
		t.Errorf("after number %d: %v, %v", number-2, after, err)
	}
	last, err := c.client.ListEvents(ctx, &pb.ListEventsRequest{Limit: 1})
	if err != nil || len(last.GetEvents()) != 1 || last.GetEvents()[0].GetNumber() != number {
		t.Errorf("the last one: %v, %v", last, err)
	}
}

func TestOlderRunsAreRead(t *testing.T) {
	c := start(t, server.Config{HTTPAddress: "127.0.0.1:0"})
	ctx := timeout(t)
	c.join(c.conn, registration("w-0"), succeed)
	id := c.open(ctx)
	watch := c.watch(ctx, &pb.WatchRequest{ClientId: id})
	submitted, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: id}, Tasks: noops("a", 25)})
	if err != nil {
		t.Fatal(err)
	}
	c.final(watch, submitted.GetTaskIds())
	b := c.dashboard(t)
	page := func(query string) (numbers []int, before int) {
		t.Helper()
		code, body := b.do(http.MethodGet, "/api/runs?"+query, "")
		var got struct {
			Before int
			Rows   [][]any
		}
		if err := json.Unmarshal([]byte(body), &got); err != nil || code != http.StatusOK {
			t.Fatalf("%s: %d %s, %v", query, code, body, err)
		}
		for _, row := range got.Rows {
			numbers = append(numbers, int(row[0].(float64)))
		}
		return numbers, got.Before
	}
	want := 25
	for before, pages := 0, 0; pages == 0 || before != 0; pages++ {
		var numbers []int
		numbers, before = page(fmt.Sprintf("before=%d&limit=10&op=bench.noop&worker=w-0", before))
		for _, n := range numbers {
			if n != want {
				t.Fatalf("run %d, want %d", n, want)
			}
			want--
		}
	}
	if want != 0 {
		t.Errorf("%d runs are missing", want)
	}
	if others, _ := page("op=other"); others != nil {
		t.Errorf("runs of another op: %v", others)
	}
	if others, _ := page("worker=other"); others != nil {
		t.Errorf("runs of another worker: %v", others)
	}
	if one, more := page(fmt.Sprintf("task=%d", submitted.GetTaskIds()[3])); len(one) != 1 || more != 0 {
		t.Errorf("runs of a task: %v, more before %d", one, more)
	}
	for _, query := range []string{"limit=x", "task=x"} {
		if code, reason := b.refusal(http.MethodGet, "/api/runs?"+query, ""); code != http.StatusBadRequest || reason != "INVALID_FIELD" {
			t.Errorf("%s: %d %s", query, code, reason)
		}
	}
}
