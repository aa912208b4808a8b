package rpc

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/access"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// defaultPage is the page size of requests that give none.
const defaultPage = 100

func pageSize(asked int32) int {
	if asked == 0 {
		return defaultPage
	}
	return int(asked)
}

// pageToken returns a token that names the last row of a page. It stays valid when rows are added
// or removed.
func pageToken(last string) string { return base64.RawURLEncoding.EncodeToString([]byte(last)) }

func pageAfter(token string) (string, error) {
	last, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return "", invalid("page_token", "it is not one that this service gave: leave it empty for the first page")
	}
	return string(last), nil
}

func pageAfterNumber(token string) (uint64, error) {
	if token == "" {
		return 0, nil
	}
	last, err := pageAfter(token)
	if err != nil {
		return 0, err
	}
	after, err := strconv.ParseUint(last, 10, 64)
	if err != nil {
		return 0, invalid("page_token", "it is not one that this call gave: leave it empty for the first page")
	}
	return after, nil
}

// nextPage returns the token for the page after rows, or an empty string if there is none.
func nextPage[R any](rows []R, more bool, number func(R) uint64) string {
	if !more || len(rows) == 0 {
		return ""
	}
	return pageToken(strconv.FormatUint(number(rows[len(rows)-1]), 10))
}

func unknownWorker(name string) error {
	return &schedapi.Error{Kind: schedapi.ErrUnknownWorker, Object: name,
		Message: fmt.Sprintf("there is no worker %q: see ListWorkers, with states for those that are lost", name)}
}

func (s *schedulerService) GetGraph(ctx context.Context, r *pb.GetGraphRequest) (*pb.GetGraphResponse, error) {
	snapshot, err := s.scheduler.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	id := ids.GraphID(r.GetGraphId())
	graph := snapshot.Graph(id)
	if graph == nil {
		return nil, unknownGraph(id)
	}
	shown := graphTo(graph)
	shown.ClientId = shownClient(ctx, graph.Client)
	shown.Ops = shown.Ops[:min(len(shown.Ops), shownOps)]
	return &pb.GetGraphResponse{Graph: shown}, nil
}

func (s *schedulerService) ListGraphs(ctx context.Context, r *pb.ListGraphsRequest) (*pb.ListGraphsResponse, error) {
	after, err := pageAfterNumber(r.GetPageToken())
	if err != nil {
		return nil, err
	}
	snapshot, err := s.scheduler.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	graphs, more := snapshot.Graphs(schedapi.GraphFilter{
		States:    convertAll(r.GetStates(), func(state pb.GraphState) schedapi.GraphState { return schedapi.GraphState(state) }),
		Namespace: r.GetNamespace(), Client: ids.ClientID(r.GetClientId()),
	}, ids.GraphID(after), pageSize(r.GetPageSize()))
	listed := page(graphs, func(g *schedapi.Graph) *pb.Graph { return listedGraph(ctx, g) })
	return &pb.ListGraphsResponse{Graphs: listed, NextPageToken: nextPage(listed, more || len(listed) < len(graphs), (*pb.Graph).GetGraphId)}, nil
}

func (s *schedulerService) GetWorker(ctx context.Context, r *pb.GetWorkerRequest) (*pb.GetWorkerResponse, error) {
	snapshot, err := s.scheduler.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	worker, err := findWorker(snapshot, "worker", r.GetWorker())
	if err != nil {
		return nil, err
	}
	view := cmp.Or(r.GetView(), pb.WorkerView_WORKER_VIEW_FULL)
	return &pb.GetWorkerResponse{Worker: workerTo(worker, view)}, nil
}

// findWorker returns the worker that a field of a request names; an incarnation that is lost, too,
// as long as the catalogue remembers it.
func findWorker(snapshot schedapi.Snapshot, field string, ref *pb.WorkerRef) (*schedapi.Worker, error) {
	switch by := ref.GetWorker().(type) {
	case *pb.WorkerRef_Id:
		id := ids.WorkerID(by.Id)
		if worker := snapshot.Worker(id); worker != nil {
			return worker, nil
		}
		return nil, unknownWorker(id.String())
	case *pb.WorkerRef_Name:
		if worker := snapshot.WorkerByName(by.Name); worker != nil {
			return worker, nil
		}
		return nil, unknownWorker(by.Name)
	}
	return nil, invalid(field, "neither id nor name is set: name the worker by one of them")
}

func (s *schedulerService) ListWorkers(ctx context.Context, r *pb.ListWorkersRequest) (*pb.ListWorkersResponse, error) {
	after, err := pageAfterNumber(r.GetPageToken())
	if err != nil {
		return nil, err
	}
	snapshot, err := s.scheduler.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	states := convertAll(r.GetStates(), func(state pb.WorkerState) schedapi.WorkerState { return schedapi.WorkerState(state) })
	workers, more := snapshot.Workers(states, ids.WorkerID(after), pageSize(r.GetPageSize()))
	listed := page(workers, func(w *schedapi.Worker) *pb.Worker { return workerTo(w, r.GetView()) })
	return &pb.ListWorkersResponse{
		Workers:       listed,
		NextPageToken: nextPage(listed, more || len(listed) < len(workers), func(w *pb.Worker) uint64 { return uint64(w.GetWorkerId()) }),
	}, nil
}

func (s *schedulerService) ListClients(ctx context.Context, r *pb.ListClientsRequest) (*pb.ListClientsResponse, error) {
	after, err := pageAfterNumber(r.GetPageToken())
	if err != nil {
		return nil, err
	}
	snapshot, err := s.scheduler.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	limit := pageSize(r.GetPageSize())
	var rows []*pb.Client
	var more bool
	if access.Caller(ctx).Role == access.Operator {
		var clients []*schedapi.Client
		clients, more = snapshot.Clients(ids.ClientID(after), limit)
		rows = convertAll(clients, clientTo)
	} else {
		all, _ := snapshot.Clients(0, math.MaxInt)
		rows, more = shownClients(ctx, all, after, limit)
	}
	listed := page(rows, func(c *pb.Client) *pb.Client { return c })
	return &pb.ListClientsResponse{Clients: listed, NextPageToken: nextPage(listed, more || len(listed) < len(rows), (*pb.Client).GetClientId)}, nil
}

func (s *schedulerService) GetDataset(ctx context.Context, r *pb.GetDatasetRequest) (*pb.GetDatasetResponse, error) {
	snapshot := s.scheduler.LastSnapshot() // Datasets are in it as soon as they are published.
	namespace := namespaceOf(r.GetNamespace())
	dataset := snapshot.Dataset(namespace, r.GetName())
	if dataset == nil {
		return nil, &sched.Error{Kind: sched.ErrUnknownDataset, Object: r.GetName(),
			Message: fmt.Sprintf("there is no dataset %q in namespace %q: see ListDatasets", r.GetName(), namespace)}
	}
	whole, err := wholeDatasetTo(dataset)
	if err != nil {
		return nil, err
	}
	return &pb.GetDatasetResponse{Dataset: whole}, nil
}

func (s *schedulerService) ListDatasets(ctx context.Context, r *pb.ListDatasetsRequest) (*pb.ListDatasetsResponse, error) {
	var afterNamespace, afterName string
	if r.GetPageToken() != "" {
		after, err := pageAfter(r.GetPageToken())
		if err != nil {
			return nil, err
		}
		afterNamespace, afterName, _ = strings.Cut(after, "\x00")
	}
	snapshot := s.scheduler.LastSnapshot() // Datasets are in it as soon as they are published.
	datasets, more := snapshot.Datasets(r.GetNamespace(), afterNamespace, afterName, pageSize(r.GetPageSize()))
	response := &pb.ListDatasetsResponse{Datasets: page(datasets, datasetTo)}
	if n := len(response.GetDatasets()); more || n < len(datasets) {
		last := datasets[n-1]
		response.NextPageToken = pageToken(last.Namespace + "\x00" + last.Name)
	}
	return response, nil
}

// find looks up a task by number or by key.
func find(reader schedapi.Reader, ref *pb.TaskRef) (sched.TaskInfo, error) {
	task := ids.TaskID(ref.GetId())
	object, namespace := task.String(), namespaceOf(ref.GetNamespace())
	_, byKey := ref.GetTask().(*pb.TaskRef_Key)
	if byKey {
		object = ref.GetKey()
		task, _ = reader.Lookup(namespace, object)
	}
	info, ok := reader.Task(task)
	if !ok {
		which := "task " + object
		if byKey {
			which = fmt.Sprintf("task with the key %s in namespace %q", object, namespace)
		}
		return sched.TaskInfo{}, &sched.Error{Kind: sched.ErrUnknownTask, Object: object,
			Message: fmt.Sprintf("there is no %s: check it, or whether its result was released; see ListTasks", which)}
	}
	return info, nil
}

// workerNames returns a function from workers to their names as of a snapshot. Lost workers keep
// their name for a while; later their number is shown.
func workerNames(snapshot schedapi.Snapshot) func(ids.WorkerID) string {
	return func(id ids.WorkerID) string {
		if id == 0 {
			return ""
		}
		if worker := snapshot.Worker(id); worker != nil {
			return worker.Name
		}
		return id.String()
	}
}

func (s *schedulerService) GetTask(ctx context.Context, r *pb.GetTaskRequest) (*pb.GetTaskResponse, error) {
	var info sched.TaskInfo
	var history []string
	err := s.read(ctx, func(reader schedapi.Reader) (err error) {
		info, err = find(reader, r.GetTask())
		if err == nil && r.GetHistory() {
			history = reader.History(info.Task)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	task := taskTo(&info, workerNames(s.scheduler.LastSnapshot()))
	task.History, task.LogTail = history, info.LogTail
	return &pb.GetTaskResponse{Task: task}, nil
}

// read is Scheduler.Read for functions that may fail.
func (s *Server) read(ctx context.Context, read func(schedapi.Reader) error) error {
	var refused error
	if err := s.scheduler.Read(ctx, func(reader schedapi.Reader) { refused = read(reader) }); err != nil {
		return err
	}
	return refused
}

// scanned bounds the tasks that one Read examines for a list.
const scanned = 1000

func (s *schedulerService) ListTasks(ctx context.Context, r *pb.ListTasksRequest) (*pb.ListTasksResponse, error) {
	after, err := pageAfterNumber(r.GetPageToken())
	if err != nil {
		return nil, err
	}
	snapshot := s.scheduler.LastSnapshot()
	filter := sched.TaskFilter{Graph: ids.GraphID(r.GetGraphId()), Namespace: r.GetNamespace(), KeyPrefix: r.GetKeyPrefix()}
	var on ids.WorkerID
	if r.GetWorker() != nil {
		worker, err := findWorker(snapshot, "worker", r.GetWorker())
		if err != nil {
			return nil, err
		}
		on = worker.ID
	}
	states := r.GetStates()
	if len(states) == 1 {
		filter.State = sched.TaskState(states[0])
	}
	wanted := func(t *sched.TaskInfo) bool {
		return (len(states) < 2 || slices.Contains(states, pb.TaskState(t.State))) &&
			(on == 0 || t.Worker == on || slices.Contains(t.Replicas, on))
	}
	limit := pageSize(r.GetPageSize())
	names := workerNames(snapshot)
	response, bytes := &pb.ListTasksResponse{}, 0
	// One row more than a page shows whether there is a next page.
	for next, more := ids.TaskID(after), true; more; more = next != 0 {
		var some []sched.TaskInfo
		// Each Read is short, however few tasks are selected, so that other work can run in
		// between.
		err := s.scheduler.Read(ctx, func(reader schedapi.Reader) { some, next = reader.Tasks(filter, next, min(scanned, limit+1)) })
		if err != nil {
			return nil, err
		}
		for i := range some {
			if !wanted(&some[i]) {
				continue
			}
			task := listedTask(taskTo(&some[i], names))
			if bytes += proto.Size(task); len(response.Tasks) == limit || bytes > pageBytes && len(response.Tasks) > 0 {
				response.NextPageToken = nextPage(response.Tasks, true, (*pb.Task).GetTaskId)
				return response, nil
			}
			response.Tasks = append(response.Tasks, task)
		}
	}
	return response, nil
}

func (s *schedulerService) ListTaskRuns(ctx context.Context, r *pb.ListTaskRunsRequest) (*pb.ListTaskRunsResponse, error) {
	after, err := pageAfterNumber(r.GetPageToken())
	if err != nil {
		return nil, err
	}
	var begin time.Time
	if r.GetBeginTime() != nil {
		begin = r.GetBeginTime().AsTime()
	}
	var runs []sched.Run
	var next uint64
	err = s.scheduler.Read(ctx, func(reader schedapi.Reader) {
		runs, next = reader.Runs(r.GetNamespace(), ids.GraphID(r.GetGraphId()), begin, after, pageSize(r.GetPageSize()))
	})
	if err != nil {
		return nil, err
	}
	response := &pb.ListTaskRunsResponse{Runs: convertAll(runs, taskRunTo)}
	if next != 0 {
		response.NextPageToken = pageToken(strconv.FormatUint(next, 10))
	}
	return response, nil
}

func (s *schedulerService) ExplainTask(ctx context.Context, r *pb.ExplainTaskRequest) (*pb.ExplainTaskResponse, error) {
	var explanation sched.Explanation
	err := s.read(ctx, func(reader schedapi.Reader) error {
		info, err := find(reader, r.GetTask())
		if err == nil {
			explanation, _ = reader.Explain(time.Now(), info.Task)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	snapshot := s.scheduler.LastSnapshot()
	names := workerNames(snapshot)
	return &pb.ExplainTaskResponse{
		Task: taskTo(&explanation.Task, names), Status: statusTo(explanation.Status), Explanation: explanation.Text,
		Missing: convertAll(explanation.Missing, func(t sched.TaskInfo) *pb.Task { return listedTask(taskTo(&t, names)) }),
		Workers: convertAll(explanation.Workers, func(v sched.Verdict) *pb.WorkerVerdict {
			return &pb.WorkerVerdict{
				Worker: v.Name, Feasible: v.Feasible, Reason: v.Reason, QueueTime: secondsTo(v.QueueSeconds),
				MissingBytes: v.MissingBytes, TransferTime: secondsTo(v.TransferSeconds), CompletionTime: secondsTo(v.FinishSeconds), Sources: sourcesOf(snapshot, &v),
			}
		}),
	}, nil
}

// statusTo converts the machine's word for where a task is.
func statusTo(word string) pb.TaskStatus {
	return pb.TaskStatus(pb.TaskStatus_value["TASK_STATUS_"+word])
}

// secondsTo converts an estimate.
func secondsTo(seconds float64) *durationpb.Duration {
	return durationpb.New(time.Duration(seconds * float64(time.Second)))
}

// sourcesOf describes from which workers a worker would fetch its missing inputs, and by which path
// if it has reported one.
func sourcesOf(snapshot schedapi.Snapshot, v *sched.Verdict) string {
	var parts []string
	reader := snapshot.Worker(v.Worker)
	for _, source := range v.Sources {
		part := humanize.IBytes(source.Bytes) + " from " + source.Worker.String()
		if w := snapshot.Worker(source.Worker); w != nil {
			part = humanize.IBytes(source.Bytes) + " from " + w.Name
		}
		var routes []schedapi.Route
		if reader != nil {
			routes = reader.Routes
		}
		i := slices.IndexFunc(routes, func(r schedapi.Route) bool { return r.Peer == source.Worker && r.State == schedapi.RouteOpen })
		if i < 0 {
			part += ", from which nothing was fetched yet"
		} else {
			part += " by " + routes[i].Lane()
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "; ")
}

// locatedAtOnce bounds the objects that one Read looks up.
const locatedAtOnce = 4096

func (s *schedulerService) LocateObjects(ctx context.Context, r *pb.LocateObjectsRequest) (*pb.LocateObjectsResponse, error) {
	response, bytes := &pb.LocateObjectsResponse{}, 0
	named := map[uint32]bool{}
	for tasks := range slices.Chunk(r.GetTaskIds(), locatedAtOnce) {
		if bytes > locateBytes {
			return nil, invalid("task_ids", fmt.Sprintf("the places of the first %d of %d objects are too much for one answer: ask for fewer at once",
				len(response.Objects), len(r.GetTaskIds())))
		}
		err := s.scheduler.Read(ctx, func(reader schedapi.Reader) {
			for _, id := range tasks {
				location := &pb.ObjectLocation{TaskId: id}
				response.Objects = append(response.Objects, location)
				object, state, holders := reader.ReplicasOf(ids.TaskID(id), nil)
				location.State, location.Bytes, location.Generation = pb.TaskState(state), object.Bytes, uint32(object.Generation)
				for _, worker := range holders {
					location.WorkerIds = append(location.WorkerIds, uint32(worker))
					named[uint32(worker)] = true
				}
				bytes += itemBytes + holderBytes*len(holders)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	snapshot := s.scheduler.LastSnapshot() // It has the address of every worker that holds an object.
	for id := range named {
		if worker := snapshot.Worker(ids.WorkerID(id)); worker != nil && worker.State != schedapi.WorkerLost {
			response.Workers = append(response.Workers, addressTo(worker))
		}
	}
	slices.SortFunc(response.Workers, func(a, b *pb.WorkerAddress) int { return int(a.GetWorkerId()) - int(b.GetWorkerId()) })
	return response, nil
}

func (s *schedulerService) GetClusterInfo(ctx context.Context, _ *pb.GetClusterInfoRequest) (*pb.GetClusterInfoResponse, error) {
	cluster, err := s.cluster(ctx)
	if err != nil {
		return nil, err
	}
	return &pb.GetClusterInfoResponse{Cluster: cluster}, nil
}

func (s *schedulerService) GetSchedulerLog(_ context.Context, r *pb.GetSchedulerLogRequest) (*pb.GetSchedulerLogResponse, error) {
	out := new(pb.GetSchedulerLogResponse)
	if s.config.OwnLog != nil {
		out.Lines = s.config.OwnLog(int(r.GetLimit()))
	}
	return out, nil
}

func (s *Server) cluster(ctx context.Context) (*pb.ClusterInfo, error) {
	var totals sched.Totals
	if err := s.scheduler.Read(ctx, func(reader schedapi.Reader) { totals = reader.Totals() }); err != nil {
		return nil, err
	}
	snapshot, err := s.scheduler.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	cluster := s.scheduler.Cluster()
	info := &pb.ClusterInfo{
		ClusterId: cluster.ID, Version: s.config.Version, ApiVersion: apiVersion, StartTime: timeTo(cluster.StartedAt),
		Tasks: countsTo(totals.Counts), InlineResultBytes: cluster.InlineResultBytes,
		MaxMessageBytes: cluster.MaxMessageBytes, HttpAddress: cluster.HTTPAddress, NativeOps: s.scheduler.NativeOps(),
		Life: cluster.Life,
	}
	for after, more := ids.WorkerID(0), true; more; {
		var workers []*schedapi.Worker
		workers, more = snapshot.Workers([]schedapi.WorkerState{schedapi.WorkerActive}, after, scanned)
		for _, w := range workers {
			info.ActiveWorkers++
			info.TotalSlots += w.Slots
			info.MemoryLimitBytes += w.MemoryLimitBytes
			info.MemoryUsedBytes += w.MemoryUsedBytes
			after = w.ID
		}
	}
	for after, more := ids.ClientID(0), true; more; {
		var clients []*schedapi.Client
		clients, more = snapshot.Clients(after, scanned)
		info.Clients += uint32(len(clients))
		if len(clients) > 0 {
			after = clients[len(clients)-1].ID
		}
	}
	return info, nil
}
