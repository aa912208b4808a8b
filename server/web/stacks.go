package web

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/edge"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/stacks"
	"github.com/millrace/millrace/internal/text"
	"github.com/millrace/millrace/server/schedapi"
)

const (
	// askedWorkers bounds the workers that are asked for a profile, and askedAtOnce those that are
	// asked at the same time.
	askedWorkers, askedAtOnce = 256, 32
	// workerStacks and shownStacks bound the calls in the answer of a worker and in that of the
	// scheduler.
	workerStacks, shownStacks = 2000, 5000
	// shownLine bounds the text of a line of code, in bytes.
	shownLine = 200
	// stacksTimeout is the longest time until all workers have answered. They wait 10 s for their
	// processes.
	stacksTimeout = 12 * time.Second
	// clockSlack is added to the times of a graph: workers keep samples by their own clocks.
	clockSlack = time.Second
)

// profileAnswer is the JSON of a profile. Each row is a call behind its caller, which is the number
// of a row, counted from 1, or 0.
type profileAnswer struct {
	Samples          uint64   `json:"samples"`
	IntervalMillis   float64  `json:"interval_ms"`
	Workers          int      `json:"workers"`
	MissingWorkers   int      `json:"missing_workers"`
	MissingProcesses uint32   `json:"missing_processes"`
	Columns          []string `json:"columns"`
	Rows             [][]any  `json:"rows"`
}

// profile answers with the samples of stacks of all workers: of ops, or of the ops of a graph while
// it ran.
func (s *Site) profile(w http.ResponseWriter, r *http.Request) error {
	request, err := s.profileRequest(r.Context(), r.URL.Query())
	if err != nil {
		return err
	}
	writeJSON(w, s.profileFrom(s.withToken(r), request))
	return nil
}

// withToken returns the context of a request, for calls with its token.
func (s *Site) withToken(r *http.Request) context.Context {
	if token, _ := s.token(r); token != "" {
		return metadata.AppendToOutgoingContext(r.Context(), "authorization", "Bearer "+token)
	}
	return r.Context()
}

// profileFrom asks all workers.
func (s *Site) profileFrom(ctx context.Context, request *pb.GetProfileRequest) profileAnswer {
	ctx, cancel := context.WithTimeout(ctx, stacksTimeout)
	defer cancel()
	workers, more := s.config.Scheduler.LastSnapshot().Workers(nil, 0, askedWorkers)
	answers := make([]*pb.GetProfileResponse, len(workers))
	slots := make(chan struct{}, askedAtOnce)
	var asked sync.WaitGroup
	for i, worker := range workers {
		slots <- struct{}{}
		asked.Go(func() {
			defer func() { <-slots }()
			answers[i] = profileOf(ctx, worker.DataAddress, request)
		})
	}
	asked.Wait()
	answer := profileAnswer{Columns: []string{"caller", "samples", "name", "file", "line", "text"}, Rows: [][]any{}}
	if more {
		all, _ := s.config.Scheduler.LastSnapshot().Workers(nil, 0, math.MaxInt)
		answer.MissingWorkers = len(all) - len(workers)
	}
	var tree stacks.Tree
	for _, a := range answers {
		if a == nil {
			answer.MissingWorkers++
			continue
		}
		answer.Workers++
		answer.MissingProcesses += a.GetMissingProcesses()
		answer.IntervalMillis = max(answer.IntervalMillis, a.GetInterval().AsDuration().Seconds()*1000)
		answer.Samples += a.GetSamples()
		tree.Add(a.GetCalls())
	}
	for _, c := range tree.Calls(shownStacks) {
		answer.Rows = append(answer.Rows, []any{c.GetCaller(), c.GetSamples(), c.GetName(), c.GetFile(), c.GetLine(), text.Cut(c.GetText(), shownLine)})
	}
	return answer
}

// profileRequest reads the parameters op, graph, start and end; times are in seconds since 1970.
func (s *Site) profileRequest(ctx context.Context, query url.Values) (*pb.GetProfileRequest, error) {
	request := &pb.GetProfileRequest{Ops: query["op"], MaxCalls: workerStacks}
	if given := query.Get("graph"); given != "" {
		id, err := strconv.ParseUint(given, 10, 64)
		if err != nil {
			return nil, edge.InvalidField("graph", fmt.Sprintf("%q is not the number of a graph", text.Cut(given, 100)))
		}
		// A graph may be asked for as soon as its submission is acknowledged.
		snapshot, err := s.config.Scheduler.Snapshot(ctx)
		if err != nil {
			return nil, err
		}
		graph := snapshot.Graph(ids.GraphID(id))
		if graph == nil {
			return nil, edge.Refusal(codes.NotFound, "UNKNOWN_GRAPH", fmt.Sprintf("there is no graph %d: see ListGraphs", id), map[string]string{"object": given})
		}
		ofGraph(request, graph)
	}
	for name, to := range map[string]**timestamppb.Timestamp{"start": &request.StartTime, "end": &request.EndTime} { // order-free: each is a field of its own
		given := query.Get(name)
		if given == "" {
			continue
		}
		seconds, err := strconv.ParseFloat(given, 64)
		if err != nil || !(seconds >= 0 && seconds < 1e11) {
			return nil, edge.InvalidField(name, fmt.Sprintf("%q is no time in seconds since 1970", text.Cut(given, 100)))
		}
		*to = timestamppb.New(time.UnixMicro(int64(seconds * 1e6)))
	}
	return request, nil
}

// ofGraph asks for the ops of a graph, while it ran.
func ofGraph(request *pb.GetProfileRequest, graph *schedapi.Graph) {
	request.StartTime = timestamppb.New(graph.CreatedAt.Add(-clockSlack))
	if !graph.EndedAt.IsZero() {
		request.EndTime = timestamppb.New(graph.EndedAt.Add(clockSlack))
	}
	const most = 1000 // of GetProfileRequest
	if len(request.GetOps()) > 0 || len(graph.Ops) > most {
		return
	}
	for i := range graph.Ops {
		request.Ops = append(request.Ops, graph.Ops[i].Name)
	}
}

// profileOf asks a worker; nil: it has not answered.
func profileOf(ctx context.Context, address string, request *pb.GetProfileRequest) *pb.GetProfileResponse {
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil
	}
	defer func() { _ = conn.Close() }()
	answer, err := pb.NewExecutorServiceClient(conn).GetProfile(ctx, request)
	if err != nil {
		return nil
	}
	return answer
}
