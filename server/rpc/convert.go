package rpc

import (
	"cmp"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/text"
	"github.com/millrace/millrace/server/copies"
	"github.com/millrace/millrace/server/members"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

const (
	defaultNamespace = "default"
	// defaultRetention is the time for which the results of a detached graph are kept, if the
	// submission names none (SubmitHeader.retention).
	defaultRetention = time.Hour
)

func namespaceOf(name string) string { return cmp.Or(name, defaultNamespace) }

func timeTo(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func timeFrom(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

func durationTo(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// convertAll converts each element of a list.
func convertAll[From, To any](list []From, convert func(From) To) []To {
	converted := make([]To, len(list))
	for i, element := range list {
		converted[i] = convert(element)
	}
	return converted
}

// number converts between identifiers and their integers on the wire.
func number[To, From ~uint32 | ~uint64](id From) To { return To(id) }

func optionsFrom(o *pb.TaskOptions) sched.Options {
	return sched.Options{
		Priority: o.GetPriority(), MaxRetries: o.GetMaxRetries(),
		RetryBackoff: o.GetRetryBackoff().AsDuration(), Timeout: o.GetTimeout().AsDuration(),
		Resources: o.GetResources(), Workers: convertAll(o.GetWorkers(), selectorFrom), AllowOtherWorkers: o.GetAllowOtherWorkers(),
		ExpectedOutputBytes: o.GetExpectedOutputBytes(), Slots: o.GetSlots(), NoWait: o.GetNoWait(),
	}
}

func selectorFrom(s *pb.WorkerSelector) sched.WorkerSelector {
	return sched.WorkerSelector{Worker: ids.WorkerID(s.GetWorkerId()), Name: s.GetName(), Host: s.GetHost()}
}

func selectorTo(s sched.WorkerSelector) *pb.WorkerSelector {
	switch {
	case s.Worker != 0:
		return &pb.WorkerSelector{By: &pb.WorkerSelector_WorkerId{WorkerId: uint32(s.Worker)}}
	case s.Name != "":
		return &pb.WorkerSelector{By: &pb.WorkerSelector_Name{Name: s.Name}}
	default:
		return &pb.WorkerSelector{By: &pb.WorkerSelector_Host{Host: s.Host}}
	}
}

// optionsTo returns nil for default options.
func optionsTo(o *sched.Options) *pb.TaskOptions {
	options := &pb.TaskOptions{
		Priority: o.Priority, MaxRetries: o.MaxRetries,
		RetryBackoff: durationTo(o.RetryBackoff), Timeout: durationTo(o.Timeout),
		Resources: o.Resources, Workers: convertAll(o.Workers, selectorTo), AllowOtherWorkers: o.AllowOtherWorkers,
		ExpectedOutputBytes: o.ExpectedOutputBytes, Slots: o.Slots, NoWait: o.NoWait,
	}
	if o.Priority == 0 && o.MaxRetries == 0 && o.RetryBackoff == 0 && o.Timeout == 0 && len(o.Resources) == 0 &&
		len(o.Workers) == 0 && o.ExpectedOutputBytes == 0 && o.Slots == 0 && !o.NoWait {
		return nil
	}
	return options
}

func opTo(op sched.OpSpec) *pb.Op {
	converted := &pb.Op{Kind: pb.OpKind(op.Kind), Name: op.Name}
	if op.Function != (ids.FunctionHash{}) {
		converted.Function = op.Function[:]
	}
	return converted
}

const (
	// Limits for the details of a failed task. People read them; the limits keep many failures
	// cheap.
	keptMessage   = 8 << 10
	keptTraceback = 64 << 10
	keptLog       = 8 << 10
	keptName      = 1 << 10
	keptMetadata  = 32
	// keptException bounds a pickled exception. A longer one is dropped, because half of a pickle
	// is useless.
	keptException = 1 << 20
)

// taskErrorFrom keeps the message itself as Detail, for the parts that only clients read, but
// shortens its long texts.
func taskErrorFrom(e *pb.TaskError) *sched.TaskError {
	if e == nil {
		return nil
	}
	e.Reason, e.Message = text.Cut(e.GetReason(), keptName), text.Cut(e.GetMessage(), keptMessage)
	e.OriginKey, e.Worker = text.Cut(e.GetOriginKey(), 4*keptName), text.Cut(e.GetWorker(), keptName)
	e.Traceback, e.LogTail = text.Tail(e.GetTraceback(), keptTraceback), text.Tail(e.GetLogTail(), keptLog)
	if proto.Size(e.GetException()) > keptException+keptName {
		e.Exception = nil
	}
	for name, value := range e.GetMetadata() {
		if len(name) > keptName || len(e.Metadata) > keptMetadata {
			delete(e.Metadata, name)
		} else if len(value) > keptName {
			e.Metadata[name] = text.Cut(value, keptName)
		}
	}
	return &sched.TaskError{
		Reason: e.GetReason(), Message: e.GetMessage(), OriginKey: e.GetOriginKey(), Worker: e.GetWorker(),
		Attempt: ids.Attempt(e.GetAttempt()), Detail: e, DetailBytes: uint64(proto.Size(e)),
	}
}

// errorDetail returns the message that taskErrorFrom kept.
func errorDetail(e *sched.TaskError) (*pb.TaskError, bool) {
	if e == nil {
		return nil, false
	}
	detail, ok := e.Detail.(*pb.TaskError)
	return detail, ok && detail != nil
}

func taskErrorTo(e *sched.TaskError) *pb.TaskError {
	if e == nil {
		return nil
	}
	converted := &pb.TaskError{
		Reason: e.Reason, Message: e.Message, OriginKey: e.OriginKey, Worker: e.Worker, Attempt: uint32(e.Attempt),
		Attempts: e.Attempts, LogTail: e.LogTail,
	}
	if detail, ok := errorDetail(e); ok {
		converted.Traceback = detail.GetTraceback()
		converted.Exception = detail.GetException()
		converted.LogTail = detail.GetLogTail()
		converted.Metadata = detail.GetMetadata()
	}
	return converted
}

func countsTo(counts sched.Counts) *pb.TaskCounts {
	return &pb.TaskCounts{
		Waiting: counts[sched.TaskWaiting], Ready: counts[sched.TaskReady], Assigned: counts[sched.TaskAssigned],
		Running: counts[sched.TaskRunning], Succeeded: counts[sched.TaskSucceeded], Failed: counts[sched.TaskFailed],
		Cancelled: counts[sched.TaskCancelled], Released: counts[sched.TaskReleased],
		Rescuing: counts[sched.TaskRescuing],
	}
}

func graphTo(g *schedapi.Graph) *pb.Graph {
	return &pb.Graph{
		GraphId: uint64(g.ID), Name: g.Name, Namespace: g.Namespace, ClientId: uint64(g.Client),
		State: pb.GraphState(g.State), Counts: countsTo(g.Counts),
		Ops: convertAll(g.Ops, func(o sched.OpSummary) *pb.OpSummary {
			return &pb.OpSummary{Op: o.Name, Counts: countsTo(o.Counts), RunTime: durationpb.New(o.RunTime), OutputBytes: o.OutputBytes}
		}),
		CreateTime: timeTo(g.CreatedAt), EndTime: timeTo(g.EndedAt), ExpireTime: timeTo(g.ExpiresAt),
		Revision: g.Revision, FirstError: g.FirstError,
	}
}

// workerTo converts a worker. In the basic view the lists that grow with the number of its peers
// and deaths are left out.
func workerTo(w *schedapi.Worker, view pb.WorkerView) *pb.Worker {
	worker := &pb.Worker{
		WorkerId: uint32(w.ID), Name: w.Name, Incarnation: w.Incarnation, State: pb.WorkerState(w.State),
		Host: w.Host, Pid: w.PID, DataAddress: w.DataAddress, Device: pb.DeviceKind(w.Device),
		Gpu: gpuTo(w.GPU), GpuHealth: gpuHealthTo(w.GPUHealth), Version: w.Version, Executors: w.Executors,
		Slots: w.Slots, Resources: w.Resources,
		CreateTime: timeTo(w.RegisteredAt), LastSeenTime: timeTo(w.LastSeenAt),
		AssignedTasks: w.AssignedTasks, FinishedTasks: w.FinishedTasks, Objects: w.Objects,
		MemoryLimitBytes: w.MemoryLimitBytes, MemoryUsedBytes: w.MemoryUsedBytes, RssBytes: w.RSSBytes,
		ReceivedBytes: w.ReceivedBytes, SentBytes: w.SentBytes,
		SpilledBytes: w.SpilledBytes, SpillWrittenBytes: w.SpillWrittenBytes, SpillReadBytes: w.SpillReadBytes, SpillFailure: w.SpillFailure,
		MemoryEvictableBytes: w.MemoryEvictableBytes, Tiers: convertAll(w.Tiers, tierTo), NetworkDevices: convertAll(w.Network, networkDeviceTo),
		ExecutorDeaths: w.ExecutorDeaths, LastExecutorDeath: w.LastExecutorDeath,
		DeathCount: uint32(len(w.Deaths)), Drain: drainTo(w.Drain, view), Supervised: w.Supervised, LinearAlgebra: linalgTo(w.Linalg), Revision: w.Revision,
	}
	if view == pb.WorkerView_WORKER_VIEW_FULL {
		worker.Deaths, worker.Routes = convertAll(w.Deaths, deathTo), convertAll(w.Routes, routeTo)
	} else if worker.GetGpu() != nil {
		worker.Gpu.Links = nil
	}
	return worker
}

func drainTo(d *copies.DrainInfo, view pb.WorkerView) *pb.WorkerDrain {
	if d == nil {
		return nil
	}
	drain := &pb.WorkerDrain{
		Purpose: pb.DrainPurpose(d.Purpose), Reason: d.Reason, CreateTime: timeTo(d.Since), ExpireTime: timeTo(d.Until),
		CopiedObjects: d.CopiedObjects, CopiedBytes: d.CopiedBytes, RemainingObjects: d.RemainingObjects, RemainingBytes: d.RemainingBytes,
		StayingObjects: d.StayingObjects, StayingBytes: d.StayingBytes,
	}
	if view == pb.WorkerView_WORKER_VIEW_FULL {
		drain.Staying = convertAll(d.Staying, stayingTo)
	}
	return drain
}

func stayingTo(o copies.StayingObject) *pb.StayingObject {
	return &pb.StayingObject{TaskId: uint64(o.Task), Key: o.Key, Namespace: o.Namespace, Bytes: o.Bytes, Reason: o.Reason}
}

func addressTo(w *schedapi.Worker) *pb.WorkerAddress {
	return &pb.WorkerAddress{WorkerId: uint32(w.ID), Name: w.Name, Host: w.Host, DataAddress: w.DataAddress, Device: pb.DeviceKind(w.Device)}
}

func routeTo(r schedapi.Route) *pb.Route {
	return &pb.Route{
		PeerWorkerId: uint32(r.Peer), Peer: r.PeerName, Path: pb.TransferPath(r.Path), State: pb.RouteState(r.State), Reason: r.Reason,
		BytesPerSecond: r.BytesPerSecond, Latency: durationTo(r.Latency), ReceivedBytes: r.Bytes, SucceededFetches: r.Succeeded, FailedFetches: r.Failed,
		Transport: r.Transport, Staged: r.Staged, ConnectBytesPerSecond: r.ConnectBytesPerSecond, ConnectionReason: r.ConnectionReason,
	}
}

func routeFrom(r *pb.Route) schedapi.Route {
	return schedapi.Route{
		Peer: ids.WorkerID(r.GetPeerWorkerId()), PeerName: r.GetPeer(), Path: schedapi.TransferPath(r.GetPath()), State: schedapi.RouteState(r.GetState()),
		Reason: text.Cut(r.GetReason(), keptMessage), BytesPerSecond: r.GetBytesPerSecond(), Latency: r.GetLatency().AsDuration(),
		Bytes: r.GetReceivedBytes(), Succeeded: r.GetSucceededFetches(), Failed: r.GetFailedFetches(), Transport: r.GetTransport(), Staged: r.GetStaged(),
		ConnectBytesPerSecond: r.GetConnectBytesPerSecond(), ConnectionReason: text.Cut(r.GetConnectionReason(), keptMessage),
	}
}

// keptTiers bounds the tiers of a worker's memory that are kept.
const keptTiers = 8

func tierFrom(t *pb.MemoryTier) schedapi.Tier {
	return schedapi.Tier{
		Name: text.Cut(t.GetName(), keptName), SizeBytes: t.GetSizeBytes(), UsedBytes: t.GetUsedBytes(), ObjectBytes: t.GetObjectBytes(),
		CleanBytes: t.GetCleanBytes(), EvictableBytes: t.GetEvictableBytes(), LeavingBytes: t.GetLeavingBytes(), ComingBytes: t.GetComingBytes(),
		LargestFreeBytes: t.GetLargestFreeBytes(), WrittenBytes: t.GetWrittenBytes(), ReadBytes: t.GetReadBytes(), Failure: text.Cut(t.GetFailure(), keptMessage),
	}
}

func tierTo(t schedapi.Tier) *pb.MemoryTier {
	return &pb.MemoryTier{
		Name: t.Name, SizeBytes: t.SizeBytes, UsedBytes: t.UsedBytes, ObjectBytes: t.ObjectBytes,
		CleanBytes: t.CleanBytes, EvictableBytes: t.EvictableBytes, LeavingBytes: t.LeavingBytes, ComingBytes: t.ComingBytes,
		LargestFreeBytes: t.LargestFreeBytes, WrittenBytes: t.WrittenBytes, ReadBytes: t.ReadBytes, Failure: t.Failure,
	}
}

// keptNetworkDevices bounds the network devices of a worker that are kept.
const keptNetworkDevices = 16

func networkDeviceFrom(d *pb.NetworkDevice) schedapi.NetworkDevice {
	return schedapi.NetworkDevice{
		Name: text.Cut(d.GetName(), keptName), ReceivedBytes: copyOf(d.ReceivedBytes), SentBytes: copyOf(d.SentBytes),
		ReceivedRate: copyOf(d.ReceivedBytesPerSecond), SentRate: copyOf(d.SentBytesPerSecond),
	}
}

func networkDeviceTo(d schedapi.NetworkDevice) *pb.NetworkDevice {
	return &pb.NetworkDevice{
		Name: d.Name, ReceivedBytes: d.ReceivedBytes, SentBytes: d.SentBytes,
		ReceivedBytesPerSecond: d.ReceivedRate, SentBytesPerSecond: d.SentRate,
	}
}

func deathTo(d members.Death) *pb.WorkerDeath {
	death := &pb.WorkerDeath{
		Incarnation: d.Incarnation, Pid: d.PID, EndTime: timeTo(d.Time), Cause: d.Cause, OutOfMemory: d.OutOfMemory, DeviceFault: d.DeviceFault,
		MemoryUsedBytes: d.MemoryUsedBytes, RunningKeys: d.RunningKeys, LogTail: d.LogTail,
	}
	switch {
	case d.Signal != "":
		death.End = &pb.WorkerDeath_Signal{Signal: d.Signal}
	case !d.Reaped:
		death.End = &pb.WorkerDeath_Lost{Lost: true}
	case d.ExitCode >= 0:
		death.End = &pb.WorkerDeath_ExitCode{ExitCode: d.ExitCode}
	}
	return death
}

func deathFrom(d *pb.WorkerDeath) members.Death {
	death := members.Death{
		Incarnation: d.GetIncarnation(), PID: d.GetPid(), Time: timeFrom(d.GetEndTime()), Cause: text.Cut(d.GetCause(), keptMessage),
		ExitCode: d.GetExitCode(), Signal: text.Cut(d.GetSignal(), keptName), OutOfMemory: d.GetOutOfMemory(), DeviceFault: d.GetDeviceFault(),
		MemoryUsedBytes: d.GetMemoryUsedBytes(), LogTail: text.Tail(d.GetLogTail(), keptLog),
	}
	if _, exited := d.GetEnd().(*pb.WorkerDeath_ExitCode); !exited {
		death.ExitCode = -1
	}
	return death
}

func callsFrom(r *workerv1.ReportWorkerDeathRequest) sched.Calls {
	return sched.Calls{Known: r.GetCallsKnown(), Attempts: convertAll(r.GetCalled(), taskRefFrom)}
}

func clientTo(c *schedapi.Client) *pb.Client {
	return &pb.Client{
		ClientId: uint64(c.ID), Name: c.Name, Namespace: c.Namespace, Origin: c.Origin, LeaseTtl: durationpb.New(c.TTL),
		CreateTime: timeTo(c.OpenedAt), LastSeenTime: timeTo(c.LastSeenAt), HeldTasks: c.HeldTasks, Revision: c.Revision,
	}
}

// taskTo converts a task; names maps workers to their names.
func taskTo(t *sched.TaskInfo, names func(ids.WorkerID) string) *pb.Task {
	return &pb.Task{
		TaskId: uint64(t.Task), Key: t.Key, Namespace: t.Namespace, GraphId: uint64(t.Graph), Op: opTo(t.Op),
		State: pb.TaskState(t.State), Attempt: uint32(t.Attempt), Worker: names(t.Worker),
		Replicas: convertAll(t.Replicas, names), OutputBytes: t.OutputBytes, Inputs: t.Inputs, InputCount: t.InputCount,
		Items: convertAll(t.Items, func(it sched.ItemInput) *pb.ItemInput {
			return &pb.ItemInput{Input: it.Input, Item: uint32(it.Item) - 1, Count: it.Count}
		}),
		MissingInputs: t.MissingInputs, WaitingDependents: t.WaitingDependents, Holders: t.Holders,
		Error: taskErrorTo(t.Err), Options: optionsTo(&t.Options), RunTime: durationTo(t.RunTime),
		CreateTime: timeTo(t.SubmittedAt), StartTime: timeTo(t.StartedAt), RetriesUsed: t.RetriesUsed, WorkerDeaths: t.WorkerDeaths, LinearAlgebra: t.Linalg,
	}
}

func taskRunTo(r sched.Run) *pb.TaskRun {
	return &pb.TaskRun{
		Number: r.Number, TaskId: uint64(r.Task), Key: r.Key, Namespace: r.Namespace, Worker: r.Worker,
		Attempt: uint32(r.Attempt), Succeeded: r.Succeeded, OutputBytes: r.OutputBytes, EndTime: timeTo(r.End),
		RunTime: durationTo(r.RunTime), Op: r.Op, WorkerId: uint32(r.WorkerID), Slot: r.Phases.Slot, FetchTime: durationTo(r.Phases.Fetch), LoadTime: durationTo(r.Phases.Load),
		WaitTime: durationTo(r.Phases.Wait), DeserializeTime: durationTo(r.Phases.Deserialize), PublishTime: durationTo(r.Phases.Publish),
		FetchedBytes: r.Phases.FetchedBytes, GraphId: uint64(r.Graph),
	}
}

func updateTo(u *sched.Update, into *pb.TaskUpdate) {
	into.TaskId = uint64(u.Task)
	into.State = pb.TaskState(u.State)
	into.OutputBytes = u.OutputBytes
	into.InlineResult, into.Error, into.WorkerId = nil, nil, 0
	switch {
	case u.Err != nil:
		into.Error = taskErrorTo(u.Err)
	case u.Inline != nil:
		into.InlineResult = u.Inline
	case u.State == sched.TaskSucceeded:
		into.WorkerId = uint32(u.Worker)
	}
	into.Generation = uint32(u.Generation)
	into.LogWorkerId = uint32(u.LogWorker)
}

// RegistrationFrom converts the registration of a worker.
func RegistrationFrom(r *workerv1.Registration) schedapi.Registration {
	return schedapi.Registration{
		Worker: sched.WorkerRegistered{
			Name: r.GetName(), Incarnation: r.GetIncarnation(), Host: r.GetHost(), Slots: r.GetSlots(),
			Resources: r.GetResources(), MemoryBytes: r.GetMemoryLimitBytes(), Executors: r.GetExecutors(),
			Notifies:       r.GetNotifies() && r.GetDataAddress() != "",
			PipelinedReads: r.GetDevice() == pb.DeviceKind_DEVICE_KIND_CUDA,
			Supervised:     r.GetSupervised(),
			Linalg:         linalgFrom(r.GetLinearAlgebra()),
			Inventory:      convertAll(r.GetInventory(), replicaFrom),
			Written:        convertAll(r.GetWritten(), replicaFrom),
			Running:        convertAll(r.GetRunning(), taskRefFrom),
		},
		Life: r.GetLife(), PID: r.GetPid(), DataAddress: r.GetDataAddress(), Device: uint8(r.GetDevice()), Version: r.GetVersion(),
		NativeOps: r.GetNativeOps(), GPU: gpuFrom(r.GetGpu()), Functions: hashesFrom(r.GetFunctions()),
	}
}

// hashesFrom leaves out what is no hash.
func hashesFrom(from [][]byte) (hashes []ids.FunctionHash) {
	for _, hash := range from {
		if len(hash) == len(ids.FunctionHash{}) {
			hashes = append(hashes, ids.FunctionHash(hash))
		}
	}
	return hashes
}

func taskRefFrom(ref *workerv1.AttemptRef) sched.TaskRef {
	return sched.TaskRef{Task: ids.TaskID(ref.GetTaskId()), Attempt: ids.Attempt(ref.GetAttempt())}
}

func replicaFrom(r *workerv1.Replica) sched.Replica {
	return sched.Replica{Task: ids.TaskID(r.GetTaskId()), Generation: ids.Attempt(r.GetGeneration()), Bytes: r.GetBytes()}
}

type objectKey struct {
	task       uint64
	generation uint32
}

func objectOf(o *workerv1.ObjectReport) objectKey {
	return objectKey{o.GetReplica().GetTaskId(), o.GetReplica().GetGeneration()}
}

// lastReports returns the index of the last report of each object, if a message has both gains and
// losses: an object that was lost and then gained exists. nil: the reports are all gains or all
// losses, so their order does not matter.
func lastReports(objects []*workerv1.ObjectReport) map[objectKey]int {
	gained, lost := false, false
	for _, o := range objects {
		isLost := o.GetEvent() == workerv1.ObjectEvent_OBJECT_EVENT_LOST
		gained, lost = gained || !isLost, lost || isLost
	}
	if !gained || !lost {
		return nil
	}
	last := make(map[objectKey]int, len(objects))
	for i, o := range objects {
		last[objectOf(o)] = i
	}
	return last
}

// InboundFrom converts a message of a worker.
func InboundFrom(message *workerv1.SessionRequest) schedapi.Inbound {
	inbound := schedapi.Inbound{Leaving: message.GetLeaving(), Draining: message.GetDraining()}
	if tasks := message.GetTasks(); len(tasks) > 0 {
		inbound.Reports = make([]sched.Report, len(tasks))
		for i, report := range tasks {
			reportFrom(report, &inbound.Reports[i])
		}
	}
	last := lastReports(message.GetObjects())
	for i, object := range message.GetObjects() {
		replica := replicaFrom(object.GetReplica())
		if last != nil && last[objectOf(object)] != i {
			continue // A later report about the same object follows.
		}
		if object.GetEvent() == workerv1.ObjectEvent_OBJECT_EVENT_LOST {
			inbound.Lost = append(inbound.Lost, replica)
		} else {
			inbound.Gained = append(inbound.Gained, sched.Stored{
				Replica: replica, Inline: object.GetInlineResult(),
				Written: object.GetEvent() == workerv1.ObjectEvent_OBJECT_EVENT_WRITTEN,
				Kept:    object.GetEvent() == workerv1.ObjectEvent_OBJECT_EVENT_KEPT,
			})
		}
	}
	if stats := message.GetStats(); stats != nil {
		inbound.Stats = &schedapi.WorkerStats{
			MemoryUsedBytes: stats.GetMemoryUsedBytes(), RSSBytes: stats.GetRssBytes(),
			ReceivedBytes: stats.GetReceivedBytes(), SentBytes: stats.GetSentBytes(),
			ExecutorDeaths: stats.GetExecutorDeaths(), LastExecutorDeath: text.Cut(stats.GetLastExecutorDeath(), keptMessage),
			MemoryPressure: stats.GetMemoryPressure(), SpilledBytes: stats.GetSpilledBytes(), SpillWrittenBytes: stats.GetSpillWrittenBytes(),
			SpillReadBytes: stats.GetSpillReadBytes(), SpillFailure: text.Cut(stats.GetSpillFailure(), keptMessage),
			MemoryEvictableBytes: stats.GetMemoryEvictableBytes(), Tiers: nil, Routes: nil, Network: nil, GPU: gpuHealthFrom(stats.GetGpuHealth()),
		}
		if tiers := stats.GetTiers(); len(tiers) > 0 {
			inbound.Stats.Tiers = convertAll(tiers[:min(len(tiers), keptTiers)], tierFrom)
		}
		if devices := stats.GetNetworkDevices(); len(devices) > 0 {
			inbound.Stats.Network = convertAll(devices[:min(len(devices), keptNetworkDevices)], networkDeviceFrom)
		}
		if routes := stats.GetRoutes(); len(routes) > 0 {
			inbound.Stats.Routes = convertAll(routes, routeFrom)
		}
	}
	inbound.MissingFunctions = hashesFrom(message.GetMissingFunctions())
	for _, r := range message.GetRescues() {
		inbound.Rescues = append(inbound.Rescues, schedapi.RescueReport{
			Dead: ids.WorkerID(r.GetWorkerId()), Failed: convertAll(r.GetFailed(), replicaFrom), Reason: text.Cut(r.GetReason(), keptMessage), Unmapped: r.GetUnmapped(),
		})
	}
	return inbound
}

func reportFrom(r *workerv1.TaskReport, into *sched.Report) {
	into.Task = ids.TaskID(r.GetTaskId())
	into.Attempt = ids.Attempt(r.GetAttempt())
	into.Outcome = sched.Outcome(r.GetOutcome())
	into.OutputBytes = r.GetOutputBytes()
	into.Inline = r.GetInlineResult()
	into.RunTime = time.Duration(r.GetRunNanos())
	into.Phases = sched.Phases{
		Fetch: time.Duration(r.GetFetchNanos()), Load: time.Duration(r.GetLoadNanos()), Wait: time.Duration(r.GetWaitNanos()), Deserialize: time.Duration(r.GetDeserializeNanos()),
		Publish: time.Duration(r.GetPublishNanos()), FetchedBytes: r.GetFetchedBytes(), Slot: r.GetSlot(),
	}
	into.Err = taskErrorFrom(r.GetError())
	if tail := r.GetLogTail(); tail != "" {
		into.LogTail = text.Tail(tail, keptLog)
	}
	into.AtFault = r.GetInputAtFault()
	for _, u := range r.GetUnreachable() {
		into.Unreachable = append(into.Unreachable, sched.Unreachable{
			Task: ids.TaskID(u.GetTaskId()), Generation: ids.Attempt(u.GetGeneration()),
			FailedAt:  convertAll(u.GetFailedAt(), number[ids.WorkerID]),
			MissingAt: convertAll(u.GetMissingAt(), number[ids.WorkerID]),
		})
	}
}
