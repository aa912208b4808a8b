package web

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/edge"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/schedapi"
	"github.com/millrace/millrace/server/web/stream"
)

const (
	// reportBytes bounds a report, which travels in one message.
	reportBytes = 60_000_000
	// reportTasks bounds the tasks of all graphs in a report.
	reportTasks = 5000
	// reportProfiles bounds the graphs, and the functions, that have a profile of their own.
	reportProfiles = 8
	// reportWorkers bounds the workers whose logs and memory a report has.
	reportWorkers = 32
	// reportsAtOnce bounds the reports that are made at the same time, since each takes memory.
	reportsAtOnce = 2
	// reportPolicy lets a report make no request.
	reportPolicy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
)

// frozen is the JSON in a report, which the page reads in place of the scheduler's answers.
type frozen struct {
	Time  time.Time `json:"time"`
	Start time.Time `json:"start"`
	End   time.Time `json:"end"`
	Title string    `json:"title"`
	Code  string    `json:"code"`
	// Session is that of a reader.
	Session  map[string]any             `json:"session"`
	Topics   map[string]json.RawMessage `json:"topics"`
	Runs     json.RawMessage            `json:"runs"`
	Samples  json.RawMessage            `json:"samples"`
	Tasks    map[string]json.RawMessage `json:"tasks"`    // by graph
	Logs     map[string]json.RawMessage `json:"logs"`     // by worker; "": the scheduler
	Memory   map[string]json.RawMessage `json:"memory"`   // by worker
	Profiles map[string]profileAnswer   `json:"profiles"` // by "graph=N", "op=NAME", or "": all
}

// reportPage is the page of reports, in front of the data and behind it. All files are inside of
// it.
var reportPage = sync.OnceValue(func() [2]string {
	read := func(name string) string {
		text, err := assets.ReadFile("assets/" + name)
		if err != nil {
			panic(err) // The files are part of the binary.
		}
		return string(text)
	}
	page := read("index.html")
	names, err := fs.ReadDir(assets, "assets")
	if err != nil {
		panic(err) // The files are part of the binary.
	}
	for _, file := range names {
		name := file.Name()
		switch path.Ext(name) {
		case ".css":
			page = strings.Replace(page, `<link rel="stylesheet" href="`+name+`">`, "<style>"+read(name)+"</style>", 1)
		case ".js":
			// These texts would end a script, or change how its end is found.
			text := strings.NewReplacer("</script", `<\/script`, "<!--", `<\!--`).Replace(read(name))
			page = strings.Replace(page, `<script type="module" src="`+name+`"></script>`, `<script type="module">`+text+"</script>", 1)
		}
	}
	page = strings.Replace(page, "<head>", `<head><meta http-equiv="Content-Security-Policy" content="`+reportPolicy+`">`, 1)
	front, behind, _ := strings.Cut(page, `<div id="app">`)
	return [2]string{front + `<script type="application/json" id="frozen">`, `</script><div id="app">` + behind}
})

// Report returns a report. The token of the caller is in the outgoing metadata of ctx.
func (s *Site) Report(ctx context.Context, r *pb.GetReportRequest) ([]byte, error) {
	select {
	case s.reports <- struct{}{}:
		defer func() { <-s.reports }()
	case <-ctx.Done():
		return nil, edge.Refusal(codes.DeadlineExceeded, "DEADLINE_EXCEEDED", fmt.Sprintf("%d other reports are being made: wait for them", cap(s.reports)), nil)
	}
	start, end := reportTime(r, time.Now())
	// The report has all that was acknowledged before it was asked for.
	if _, err := s.config.Scheduler.Snapshot(ctx); err != nil {
		return nil, err
	}
	seen, err := s.hub.Freeze(ctx, start, end)
	if err != nil {
		return nil, err
	}
	cluster := s.config.Scheduler.Cluster()
	data := frozen{
		Time: time.Now().UTC(), Start: start.UTC(), End: end.UTC(), Title: r.GetTitle(), Code: r.GetCode(),
		Session: map[string]any{
			"role": "read-only", "tokens": false, "version": s.config.Version, "cluster_id": cluster.ID,
			"life": strconv.FormatUint(cluster.Life, 10), "start_time": cluster.StartedAt.UTC(),
		},
		Topics: seen.Topics, Runs: seen.Runs, Samples: seen.Samples,
		Tasks: map[string]json.RawMessage{}, Logs: map[string]json.RawMessage{}, Memory: map[string]json.RawMessage{}, Profiles: map[string]profileAnswer{},
	}
	if err := s.reportTasks(ctx, &data, seen.Graphs); err != nil {
		return nil, err
	}
	s.reportWorkers(ctx, &data)
	s.reportProfiles(ctx, &data, seen)
	text, err := json.Marshal(data) // It writes "<" as an escape, so that no text ends the script.
	if err != nil {
		return nil, err
	}
	page := reportPage()
	html := bytes.Join([][]byte{[]byte(page[0]), text, []byte(page[1])}, nil)
	if len(html) > reportBytes {
		return nil, edge.Refusal(codes.ResourceExhausted, "TOO_LARGE", fmt.Sprintf("the report has %d bytes, and %d are allowed: choose a shorter time", len(html), reportBytes), nil)
	}
	return html, nil
}

// reportTime returns the time of a report: between 1970 and now.
func reportTime(r *pb.GetReportRequest, now time.Time) (start, end time.Time) {
	start, end = time.Unix(0, 0), now
	if given := r.GetEndTime(); given != nil && given.AsTime().Before(end) {
		end = latest(given.AsTime(), start)
	}
	if given := r.GetStartTime(); given != nil && given.AsTime().Before(end) {
		start = latest(given.AsTime(), start)
	} else if given != nil {
		start = end
	}
	return start, end
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// reportTasks adds the tasks of graphs, the newest graphs first.
func (s *Site) reportTasks(ctx context.Context, data *frozen, graphs []ids.GraphID) error {
	api, left := pb.NewSchedulerServiceClient(s.config.API), reportTasks
	for _, id := range graphs {
		var tasks []json.RawMessage
		request := &pb.ListTasksRequest{GraphId: uint64(id), PageSize: 1000}
		for left > 0 {
			page, err := api.ListTasks(ctx, request)
			if err != nil {
				return err
			}
			for _, task := range page.GetTasks()[:min(len(page.GetTasks()), left)] {
				tasks = append(tasks, compact(task))
			}
			left -= min(len(page.GetTasks()), left)
			if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
				break
			}
		}
		if len(tasks) > 0 {
			data.Tasks[strconv.FormatUint(uint64(id), 10)], _ = json.Marshal(tasks) // They are JSON.
		}
	}
	return nil
}

// compact returns the JSON of a message, without fields that have their default.
func compact(m proto.Message) json.RawMessage {
	text, err := protojson.Marshal(m)
	if err != nil {
		return json.RawMessage("{}") // Texts of answers are valid.
	}
	return text
}

// reportWorkers adds the logs, and what is in the memory of workers. Those that do not answer are
// left out.
func (s *Site) reportWorkers(ctx context.Context, data *frozen) {
	ctx, cancel := context.WithTimeout(ctx, workerTimeout)
	defer cancel()
	if log, err := pb.NewSchedulerServiceClient(s.config.API).GetSchedulerLog(ctx, &pb.GetSchedulerLogRequest{Limit: 1000}); err == nil {
		data.Logs[""] = compact(log)
	}
	workers, _ := s.config.Scheduler.LastSnapshot().Workers(nil, 0, reportWorkers)
	var mu sync.Mutex // guards data
	var asked sync.WaitGroup
	for _, worker := range workers {
		asked.Go(func() {
			log, memory := lookInto(ctx, worker)
			mu.Lock()
			defer mu.Unlock()
			if log != nil {
				data.Logs[worker.Name] = log
			}
			if memory != nil {
				data.Memory[worker.Name] = memory
			}
		})
	}
	asked.Wait()
}

func lookInto(ctx context.Context, worker *schedapi.Worker) (log, memory json.RawMessage) {
	conn, err := grpc.NewClient("passthrough:///"+worker.DataAddress, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil
	}
	defer func() { _ = conn.Close() }()
	api := pb.NewDataServiceClient(conn)
	if lines, err := api.GetWorkerLog(ctx, &pb.GetWorkerLogRequest{Limit: 200}); err == nil {
		log = compact(lines)
	}
	if described, err := api.DescribeMemory(ctx, &pb.DescribeMemoryRequest{Limit: 30}); err == nil {
		memory = compact(described)
	}
	return log, memory
}

// reportProfiles adds the profiles of everything, of the newest graphs, and of the functions that
// ran the longest.
func (s *Site) reportProfiles(ctx context.Context, data *frozen, seen *stream.Frozen) {
	queries := map[string]url.Values{"": {}}
	for _, id := range seen.Graphs[:min(len(seen.Graphs), reportProfiles)] {
		number := strconv.FormatUint(uint64(id), 10)
		queries["graph="+number] = url.Values{"graph": {number}}
	}
	ops := slices.SortedFunc(maps.Keys(seen.RunsByOp), func(a, b string) int {
		return cmp.Or(cmp.Compare(seen.RunsByOp[b], seen.RunsByOp[a]), cmp.Compare(a, b))
	})
	for _, op := range ops[:min(len(ops), reportProfiles)] {
		queries["op="+op] = url.Values{"op": {op}}
	}
	for name, query := range queries { // order-free: each has a place of its own
		request, err := s.profileRequest(ctx, query)
		if err != nil {
			continue // The graph was forgotten meanwhile.
		}
		if request.GetStartTime() == nil {
			request.StartTime, request.EndTime = timestamppb.New(data.Start), timestamppb.New(data.End)
		}
		data.Profiles[name] = s.profileFrom(ctx, request)
	}
}

// report answers with a report as a file.
func (s *Site) report(w http.ResponseWriter, r *http.Request) error {
	times, err := s.profileRequest(r.Context(), url.Values{"start": r.URL.Query()["start"], "end": r.URL.Query()["end"]})
	if err != nil {
		return err
	}
	html, err := s.Report(s.withToken(r), &pb.GetReportRequest{StartTime: times.GetStartTime(), EndTime: times.GetEndTime()})
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Disposition", `attachment; filename="millrace-report.html"`)
	h.Set("Cache-Control", "no-store")
	_, _ = w.Write(html) // An error means that the reader has left.
	return nil
}
