package rpc

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/alarms"
	"github.com/millrace/millrace/server/coord"
	"github.com/millrace/millrace/server/copies"
	"github.com/millrace/millrace/server/functions"
	"github.com/millrace/millrace/server/members"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// unset returns the fields of a message that are not set, except the named ones.
func unset(message proto.Message, except ...string) []string {
	var missing []string
	fields := message.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if one := field.ContainingOneof(); one != nil && message.ProtoReflect().WhichOneof(one) != nil {
			continue
		}
		if !message.ProtoReflect().Has(field) && !strings.Contains(strings.Join(except, " "), string(field.Name())) {
			missing = append(missing, string(field.Name()))
		}
	}
	return missing
}

var (
	someTime   = time.Unix(1_700_000_000, 0)
	someCounts = sched.Counts{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	someHash   = ids.FunctionHash{1, 2, 3}
	someError  = &sched.TaskError{Reason: "R", Message: "m", OriginKey: "k", Worker: "w", Attempt: 3, Attempts: 4, Detail: &pb.TaskError{
		Traceback: "t", Exception: &pb.Opaque{Encoding: "pickle5"}, LogTail: "l", Metadata: map[string]string{"a": "b"},
	}}
	someDataset = &schedapi.Dataset{
		Name: "n", Namespace: "s", Keys: []string{"k"}, Value: []byte{10 << 3, 0}, CreatedAt: someTime, Revision: 1, // the value is input 0
	}
	someLinalg = sched.Linalg{Library: "l", File: "f", Cores: 1, Ops: []string{"o"}}
	someDrain  = &copies.DrainInfo{
		Purpose: copies.DrainRetire, Reason: "r", Since: someTime, Until: someTime, CopiedObjects: 1, CopiedBytes: 2, RemainingObjects: 3, RemainingBytes: 4,
		StayingObjects: 5, StayingBytes: 6, Staying: []copies.StayingObject{{Task: 1, Key: "k", Namespace: "n", Bytes: 2, Reason: "r"}},
	}
	someOptions = sched.Options{
		Priority: 1, MaxRetries: 2, RetryBackoff: 3, Timeout: 4, Resources: map[string]float64{"r": 1}, Workers: []sched.WorkerSelector{{Name: "w"}},
		AllowOtherWorkers: true, ExpectedOutputBytes: 5, Slots: 6, NoWait: true,
	}
)

// A field that is added to a message must be added to its conversion.
func TestConversionsSetEveryField(t *testing.T) {
	names := func(ids.WorkerID) string { return "w" }
	death := members.Death{
		DeviceFault: true,
		Incarnation: "i", Cause: "c", ExitCode: 1, Signal: "S", OutOfMemory: true, LogTail: "l", Time: someTime, PID: 2,
		MemoryUsedBytes: 3, RunningKeys: []string{"k"},
	}
	update := &pb.TaskUpdate{}
	updateTo(&sched.Update{Task: 1, State: sched.TaskFailed, OutputBytes: 2, Inline: []byte{1}, Err: someError, Worker: 3, Generation: 4, LogWorker: 5}, update)
	var outbound schedapi.Outbound
	outbound.Ops = []schedapi.OpDefinition{{ID: 1, Op: sched.OpSpec{Kind: sched.OpPythonPickle, Name: "f", Function: someHash}}}
	outbound.Functions = []functions.Function{{Hash: someHash, Payload: []byte("p"), Language: "l"}}
	outbound.Peers = []members.Peer{{Worker: 1, Address: "a", Name: "n", SameHost: true, Device: 1}}
	outbound.Retractions = []sched.TaskRef{{Task: 1, Attempt: 2}}
	outbound.Cancellations = []sched.TaskRef{{Task: 1, Attempt: 2}}
	outbound.FreedSlots = []sched.TaskRef{{Task: 1, Attempt: 3}}
	outbound.Releases = []sched.Replica{{Task: 1, Generation: 2, Bytes: 3}}
	outbound.NextUses = []sched.NextUse{{Task: 1, Generation: 2, Rank: 3}}
	outbound.Rescues = []schedapi.Rescue{{Dead: members.Peer{Worker: 1, Address: "a", Name: "n"}, Incarnation: "i", Objects: []sched.Replica{{Task: 1, Generation: 2, Bytes: 3}}}}
	outbound.Dropped = []ids.FunctionHash{someHash}
	outbound.Keeps = []sched.Replica{{Task: 1, Generation: 2, Bytes: 3}}
	outbound.Accepted = []sched.Replica{{Task: 1, Generation: 2, Bytes: 3}}
	outbound.Leave, outbound.Drained, outbound.StopReason, outbound.Reregister = &schedapi.Leave{Restart: true, Reason: "r"}, true, "s", true
	outbound.Assign(&sched.Assignment{
		Task: 1, Attempt: 2, Op: 3, Arguments: []byte("a"), Rank: 4, Timeout: time.Second, Key: "k", Namespace: "n", Priority: 6, Slots: 5,
		Resources: map[string]float64{"r": 1}, ExpectedOutputBytes: 6,
		Inputs: []sched.AssignedInput{{Replica: sched.Replica{Task: 7, Generation: 8, Bytes: 9}, Holders: []ids.WorkerID{1, 2}, Inline: []byte("i"), Pending: true, Upstream: 3, Downstream: true, Item: 4, Count: 5}},
	})
	session := new(SessionMessage).build(&outbound)
	whole, err := wholeDatasetTo(someDataset)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		message proto.Message
		except  string
	}{
		{graphTo(&schedapi.Graph{
			ID: 1, Name: "n", Namespace: "s", Client: 2, State: schedapi.GraphFailed, Counts: someCounts,
			Ops:       []sched.OpSummary{{Name: "p", Counts: someCounts, RunTime: 1, OutputBytes: 2}},
			CreatedAt: someTime, EndedAt: someTime, ExpiresAt: someTime, FirstError: "e", Revision: 3,
		}), ""},
		{countsTo(someCounts), ""},
		{workerTo(&schedapi.Worker{
			ID: 1, Name: "n", Incarnation: "i", State: schedapi.WorkerActive, Host: "h", PID: 1, DataAddress: "a", Device: 1, Slots: 1,
			Resources: map[string]float64{"r": 1}, MemoryLimitBytes: 1, MemoryUsedBytes: 1, RSSBytes: 1, AssignedTasks: 1, Objects: 1,
			FinishedTasks: 1, RegisteredAt: someTime, LastSeenAt: someTime, Deaths: []members.Death{death}, Version: "v",
			GPU:       schedapi.GPU{UUID: "u", Name: "n", PCIBusID: "p", MemoryBytes: 1, Node: 1, Placement: "c", NetDevices: "m", Links: []schedapi.GPULink{{UUID: "u", NVLinks: 1, PeerAccess: true, Why: "w"}}},
			GPUHealth: someHealth(), Network: someNetwork(),
			Executors: []string{"e"}, ExecutorDeaths: 1, LastExecutorDeath: "d", ReceivedBytes: 1, SentBytes: 1, Revision: 1,
			SpilledBytes: 1, SpillWrittenBytes: 2, SpillReadBytes: 3, SpillFailure: "f", MemoryEvictableBytes: 1,
			Tiers: []schedapi.Tier{{Name: "n", SizeBytes: 1, UsedBytes: 1, ObjectBytes: 1, CleanBytes: 1, EvictableBytes: 1, LeavingBytes: 1, ComingBytes: 1, LargestFreeBytes: 1, WrittenBytes: 1, ReadBytes: 1, Failure: "f"}},
			Drain: someDrain, Supervised: true, Linalg: someLinalg,
			Routes: []schedapi.Route{{Peer: 1, PeerName: "p", Path: schedapi.PathIPC, State: 2, Reason: "w", BytesPerSecond: 1, Latency: 1, Bytes: 1, Succeeded: 1, Failed: 1}},
		}, pb.WorkerView_WORKER_VIEW_FULL), ""},
		{addressTo(&schedapi.Worker{ID: 1, Name: "n", Host: "h", DataAddress: "a", Device: 1}), ""},
		{alarmTo(alarms.Alarm{ID: "i", Kind: alarms.Spilling, Severity: alarms.Critical, Since: someTime, Subject: "s", Text: "t", Remedy: "r"}), ""},
		{linalgTo(someLinalg), ""},
		{deathTo(death), ""},
		{drainTo(someDrain, pb.WorkerView_WORKER_VIEW_FULL), ""},
		{stayingTo(someDrain.Staying[0]), ""},
		{clientTo(&schedapi.Client{ID: 1, Name: "n", Namespace: "s", Origin: "o", TTL: 1, OpenedAt: someTime, LastSeenAt: someTime, HeldTasks: 1, Revision: 1}), ""},
		{datasetTo(someDataset), "keys value"}, // GetDataset sets these
		{whole, ""},
		{taskTo(&sched.TaskInfo{
			Task: 1, Key: "k", Namespace: "n", Graph: 1, Op: sched.OpSpec{Kind: sched.OpNative, Name: "o"}, State: sched.TaskFailed, Attempt: 1,
			Worker: 1, Replicas: []ids.WorkerID{1}, OutputBytes: 1, Inputs: []string{"i"}, InputCount: 1, MissingInputs: 1, Items: []sched.ItemInput{{Input: 1, Item: 2, Count: 3}}, WaitingDependents: 1, Holders: 1,
			Err: someError, Options: someOptions, RunTime: 1, SubmittedAt: someTime, StartedAt: someTime, RetriesUsed: 1, WorkerDeaths: 1, Linalg: "l",
		}, names), "history log_tail"}, // GetTask sets these
		{opTo(sched.OpSpec{Kind: sched.OpPythonPickle, Name: "f", Function: someHash}), ""},
		{optionsTo(&someOptions), ""},
		{taskErrorTo(someError), ""},
		{update, "inline_result worker_id"}, // of a failed task
		{session, "registered"},             // sent in a message of its own
		{session.GetAssignments()[0], ""},
		{session.GetAssignments()[0].GetInputs()[0], ""},
		{session.GetOps()[0], ""}, {session.GetFunctions()[0], ""}, {session.GetPeers()[0], ""},
		{session.GetRetractions()[0], ""}, {session.GetReleases()[0], ""}, {session.GetNextUses()[0], ""}, {session.GetRescues()[0], ""},
	} {
		if missing := unset(test.message, test.except); len(missing) > 0 {
			t.Errorf("%s: not set: %v", test.message.ProtoReflect().Descriptor().Name(), missing)
		}
	}
	if got := optionsFrom(optionsTo(&someOptions)); got.Timeout != someOptions.Timeout || got.Workers[0].Name != "w" || !got.NoWait || !got.AllowOtherWorkers {
		t.Errorf("options there and back: %+v", got)
	}
	if optionsTo(&sched.Options{}) != nil {
		t.Error("default options are not absent")
	}
}

// fill sets every field of a message to some value.
func fill(message protoreflect.Message) {
	fields := message.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		one := func() protoreflect.Value {
			switch field.Kind() {
			case protoreflect.Uint32Kind:
				return protoreflect.ValueOfUint32(7)
			case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
				return protoreflect.ValueOfUint64(7)
			case protoreflect.Int32Kind:
				return protoreflect.ValueOfInt32(7)
			case protoreflect.Int64Kind:
				return protoreflect.ValueOfInt64(7)
			case protoreflect.DoubleKind:
				return protoreflect.ValueOfFloat64(7)
			case protoreflect.StringKind:
				return protoreflect.ValueOfString("s")
			case protoreflect.BytesKind:
				return protoreflect.ValueOfBytes(make([]byte, 32))
			case protoreflect.BoolKind:
				return protoreflect.ValueOfBool(true)
			case protoreflect.EnumKind:
				return protoreflect.ValueOfEnum(2)
			default:
				return protoreflect.Value{}
			}
		}
		switch {
		case field.IsMap():
		case field.IsList() && field.Message() != nil:
			element := message.Mutable(field).List().AppendMutable()
			fill(element.Message())
		case field.IsList():
			message.Mutable(field).List().Append(one())
		case field.Message() != nil && (strings.HasPrefix(string(field.Message().FullName()), "millrace") || field.Message().FullName() == "google.protobuf.Duration"):
			fill(message.Mutable(field).Message())
		case field.Message() == nil:
			message.Set(field, one())
		}
	}
}

// A worker cannot make the scheduler keep any number of devices, or names of any length.
func TestNetworkDevicesOfAReportAreLimited(t *testing.T) {
	stats := new(workerv1.WorkerStats)
	for range 3 * keptNetworkDevices {
		stats.NetworkDevices = append(stats.NetworkDevices, &pb.NetworkDevice{Name: strings.Repeat("n", 3*keptName)})
	}
	got := InboundFrom(&workerv1.SessionRequest{Stats: stats}).Stats.Network
	if len(got) != keptNetworkDevices || len(got[0].Name) > keptName {
		t.Errorf("%d devices, a name of %d bytes", len(got), len(got[0].Name))
	}
}

// someNetwork is the value that fill sets.
func someNetwork() []schedapi.NetworkDevice {
	sum, rate := uint64(7), 7.0
	return []schedapi.NetworkDevice{{Name: "s", ReceivedBytes: &sum, SentBytes: &sum, ReceivedRate: &rate, SentRate: &rate}}
}

// someHealth is the value that fill sets.
func someHealth() *schedapi.GPUHealth {
	sum, rate := uint64(7), 7.0
	return &schedapi.GPUHealth{
		UsedBytes: 7, UtilizationPercent: 7, MemoryPercent: 7, ClockMHz: 7, Celsius: 7, Throttled: []string{"s"}, Watts: 7,
		CorrectedECC: 7, UncorrectedECC: 7, XIDs: 7, LastEvent: "s", ForeignProcesses: 7, ForeignBytes: 7,
		NVLinkReceivedBytes: &sum, NVLinkSentBytes: &sum, PCIeReceivedRate: &rate, PCIeSentRate: &rate,
	}
}

func TestWorkerMessagesAreConvertedCompletely(t *testing.T) {
	said := &workerv1.SessionRequest{}
	fill(said.ProtoReflect())
	inbound := InboundFrom(said)
	report := inbound.Reports[0]
	if report.Task != 7 || report.Attempt != 7 || report.Outcome != 2 || report.OutputBytes != 7 || len(report.Inline) != 32 ||
		report.RunTime != 7 || report.AtFault != 7 || report.Err.Reason != "s" || report.Err.Detail.(*pb.TaskError).GetTraceback() != "s" || report.LogTail != "s" ||
		report.Unreachable[0].Task != 7 || report.Unreachable[0].Generation != 7 || report.Unreachable[0].FailedAt[0] != 7 || report.Unreachable[0].MissingAt[0] != 7 {
		t.Errorf("report: %+v", report)
	}
	if len(inbound.Lost) != 0 || len(inbound.Gained) != 1 || !inbound.Gained[0].Written || !inbound.Leaving || !inbound.Draining || len(inbound.MissingFunctions) != 1 {
		t.Errorf("inbound: %+v", inbound)
	}
	rescue := schedapi.RescueReport{Dead: 7, Failed: []sched.Replica{{Task: 7, Generation: 7, Bytes: 7}}, Reason: "s", Unmapped: true}
	if !reflect.DeepEqual(inbound.Rescues, []schedapi.RescueReport{rescue}) {
		t.Errorf("rescues: %+v", inbound.Rescues)
	}
	stats := schedapi.WorkerStats{
		MemoryUsedBytes: 7, RSSBytes: 7, ReceivedBytes: 7, SentBytes: 7, ExecutorDeaths: 7, LastExecutorDeath: "s", MemoryEvictableBytes: 7,
		MemoryPressure: true, SpilledBytes: 7, SpillWrittenBytes: 7, SpillReadBytes: 7, SpillFailure: "s",
		Routes:  []schedapi.Route{{Peer: 7, PeerName: "s", Path: schedapi.PathPinned, State: 2, Reason: "s", BytesPerSecond: 7, Latency: 7*time.Second + 7, Bytes: 7, Succeeded: 7, Failed: 7, Transport: "s", Staged: "s", ConnectBytesPerSecond: 7, ConnectionReason: "s"}},
		Tiers:   []schedapi.Tier{{Name: "s", SizeBytes: 7, UsedBytes: 7, ObjectBytes: 7, CleanBytes: 7, EvictableBytes: 7, LeavingBytes: 7, ComingBytes: 7, LargestFreeBytes: 7, WrittenBytes: 7, ReadBytes: 7, Failure: "s"}},
		GPU:     someHealth(),
		Network: someNetwork(),
	}
	if !reflect.DeepEqual(*inbound.Stats, stats) {
		t.Errorf("stats: %+v", inbound.Stats)
	}
	r := RegistrationFrom(said.GetRegister())
	if r.Life != 7 || r.PID != 7 || r.DataAddress != "s" || r.Device != 2 || r.Version != "s" || r.NativeOps[0] != "s" || r.Worker.Slots != 7 ||
		r.Worker.MemoryBytes != 7 || r.Worker.Inventory[0].Task != 7 || r.Worker.Running[0].Attempt != 7 || r.Worker.Executors[0] != "s" {
		t.Errorf("registration: %+v", r)
	}
}

func TestSessionMessagesDoNotMixInReusedMemory(t *testing.T) {
	var m SessionMessage
	var building, ready schedapi.Outbound
	for round := range 3 {
		for i := range 600 {
			a := sched.Assignment{Task: ids.TaskID(round*1000 + i), Attempt: 1, Arguments: []byte{byte(i), byte(round)}}
			for j := range i % 4 {
				a.Inputs = append(a.Inputs, sched.AssignedInput{
					Replica: sched.Replica{Task: ids.TaskID(j)}, Holders: []ids.WorkerID{ids.WorkerID(i), ids.WorkerID(j)},
				})
			}
			building.Assign(&a)
			if i%100 == 99 {
				ready.Append(&building)
			}
		}
		large := make([]byte, 10000)
		building.Assign(&sched.Assignment{Task: 4711, Arguments: large})
		ready.Append(&building)
		message := &workerv1.SessionResponse{}
		wire, err := proto.Marshal(m.build(&ready))
		if err != nil {
			t.Fatal(err)
		}
		if err := proto.Unmarshal(wire, message); err != nil || len(message.GetAssignments()) != 601 {
			t.Fatalf("%d assignments, %v", len(message.GetAssignments()), err)
		}
		for i, a := range message.GetAssignments()[:600] {
			if a.GetTaskId() != uint64(round*1000+i) || string(a.GetArguments()) != string([]byte{byte(i), byte(round)}) || len(a.GetInputs()) != i%4 {
				t.Fatalf("round %d, assignment %d: %v", round, i, a)
			}
			for j, input := range a.GetInputs() {
				if input.GetTaskId() != uint64(j) || input.GetHolders()[0] != uint32(i) || input.GetHolders()[1] != uint32(j) {
					t.Fatalf("round %d, assignment %d, input %d: %v", round, i, j, input)
				}
			}
		}
		if len(message.GetAssignments()[600].GetArguments()) != 10000 {
			t.Error("large arguments are not whole")
		}
		ready.Reset()
	}
}

func TestLargeMessagesAreSplitInOrder(t *testing.T) {
	var outbound schedapi.Outbound
	for i := range 5 {
		outbound.Functions = append(outbound.Functions, functions.Function{Hash: ids.FunctionHash{byte(i)}, Payload: make([]byte, 6<<20)})
		outbound.Assign(&sched.Assignment{Task: ids.TaskID(i), Arguments: make([]byte, 6<<20)})
	}
	outbound.Ops = []schedapi.OpDefinition{{ID: 1, Op: sched.OpSpec{Kind: sched.OpNative, Name: "o"}}}
	outbound.Cancellations = []sched.TaskRef{{Task: 1, Attempt: 1}}
	var message SessionMessage
	var order []string
	err := message.Send(&outbound, func(part *workerv1.SessionResponse) error {
		if size := proto.Size(part); size > messageBytes+(6<<20) {
			t.Errorf("a message of %d bytes", size)
		}
		for _, f := range part.GetFunctions() {
			order = append(order, "f"+string('0'+f.GetHash()[0]))
		}
		for range part.GetOps() {
			order = append(order, "op")
		}
		for _, a := range part.GetAssignments() {
			order = append(order, "a"+string('0'+byte(a.GetTaskId())))
		}
		for range part.GetCancellations() {
			order = append(order, "cancel")
		}
		return nil
	}, nil)
	if got := strings.Join(order, " "); err != nil || got != "f0 f1 op f2 f3 f4 a0 a1 a2 a3 a4 cancel" {
		t.Errorf("sent %s (%v)", got, err)
	}
	batch := &schedapi.TaskBatch{Revision: 9}
	for i := range 5 {
		batch.Updates = append(batch.Updates, sched.Update{Task: ids.TaskID(i), State: sched.TaskFailed, Err: &sched.TaskError{
			Detail: &pb.TaskError{Exception: &pb.Opaque{Data: make([]byte, 6<<20)}},
		}})
	}
	var updates updateMessage
	var revisions []uint64
	tasks := 0
	collect := func(part *pb.WatchResponse) error {
		revisions = append(revisions, part.GetRevision())
		tasks += len(part.GetTasks())
		return nil
	}
	if err := updates.send(batch, 4, 1, collect); err != nil || tasks != 5 || len(revisions) < 2 || revisions[0] != 4 || revisions[len(revisions)-1] != 9 {
		t.Errorf("%d updates with revisions %v (%v)", tasks, revisions, err)
	}
	batch.Snapshot, revisions, tasks = true, nil, 0
	more := []bool{}
	err = updates.send(batch, 4, 1, func(part *pb.WatchResponse) error {
		more = append(more, part.GetMore() && part.GetSnapshot())
		if size := proto.Size(part); size > watchBytes+(6<<20) {
			t.Errorf("a part of %d bytes", size)
		}
		return collect(part)
	})
	if n := len(revisions); err != nil || tasks != 5 || n < 2 || revisions[0] != 0 || revisions[n-1] != 9 || !more[0] || more[n-1] {
		t.Errorf("a snapshot of %d tasks with revisions %v, more %v (%v)", tasks, revisions, more, err)
	}
}

func TestValuesBecomeReadableJSON(t *testing.T) {
	tensor := func(dtype pb.DType, shape, strides []int64, offset uint64, data ...byte) *pb.Value {
		return &pb.Value{Kind: &pb.Value_TensorValue{TensorValue: &pb.Tensor{
			Dtype: dtype, Shape: shape, Strides: strides, OffsetBytes: offset, Location: &pb.Tensor_InlineData{InlineData: data},
		}}}
	}
	for _, test := range []struct {
		value *pb.Value
		want  string
	}{
		{&pb.Value{}, "null"},
		{&pb.Value{Kind: &pb.Value_BoolValue{BoolValue: true}}, "true"},
		{&pb.Value{Kind: &pb.Value_IntValue{IntValue: -5}}, "-5"},
		{&pb.Value{Kind: &pb.Value_IntValue{IntValue: math.MaxInt64}}, `"9223372036854775807"`},
		{&pb.Value{Kind: &pb.Value_DoubleValue{DoubleValue: 0.5}}, "0.5"},
		{&pb.Value{Kind: &pb.Value_DoubleValue{DoubleValue: math.NaN()}}, `"NaN"`},
		{&pb.Value{Kind: &pb.Value_DoubleValue{DoubleValue: math.Inf(-1)}}, `"-Infinity"`},
		{&pb.Value{Kind: &pb.Value_BytesValue{BytesValue: []byte{1}}}, `"AQ=="`},
		{&pb.Value{Kind: &pb.Value_ComplexValue{ComplexValue: &pb.Complex{Real: 1, Imaginary: 2}}}, "[1,2]"},
		{&pb.Value{Kind: &pb.Value_OpaqueValue{OpaqueValue: &pb.Opaque{TypeName: "T"}}}, `{"opaque":"T"}`},
		{
			&pb.Value{Kind: &pb.Value_OpaqueValue{OpaqueValue: &pb.Opaque{TypeName: "T", Table: &pb.TableSummary{
				Rows: 3, ColumnCount: 1, Columns: []*pb.Column{{Name: "a", Type: "int64"}},
			}}}},
			`{"columnCount":1,"columns":[{"name":"a","type":"int64"}],"opaque":"T","rows":3}`,
		},
		{
			&pb.Value{Kind: &pb.Value_TableValue{TableValue: &pb.Table{
				Rows: 3, TypeName: "T", ColumnCount: 2, Columns: []*pb.Column{{Name: "a", Type: "int64"}},
			}}},
			`{"columnCount":2,"columns":[{"name":"a","type":"int64"}],"rows":3,"table":"T"}`,
		},
		{&pb.Value{Kind: &pb.Value_MapValue{MapValue: &pb.MapValue{Fields: map[string]*pb.Value{"a": {}}}}}, `{"a":null}`},
		{&pb.Value{Kind: &pb.Value_ListValue{ListValue: &pb.ListValue{Values: []*pb.Value{{}, {}}}}}, "[null,null]"},
		{tensor(pb.DType_DTYPE_UINT8, []int64{2, 2}, nil, 0, 1, 2, 3, 4), "[[1,2],[3,4]]"},
		{tensor(pb.DType_DTYPE_UINT8, []int64{2, 2}, []int64{1, 2}, 0, 1, 2, 3, 4), "[[1,3],[2,4]]"},
		{tensor(pb.DType_DTYPE_UINT8, []int64{2}, []int64{-1}, 1, 1, 2), "[2,1]"},
		{tensor(pb.DType_DTYPE_BOOL, nil, nil, 0, 1), "true"},
		{tensor(pb.DType_DTYPE_FLOAT32, []int64{1}, nil, 0, 0, 0, 0x80, 0x3f), "[1]"},
		{tensor(pb.DType_DTYPE_COMPLEX64, nil, nil, 0, 0, 0, 0x80, 0x3f, 0, 0, 0, 0), "[1,0]"},
		{tensor(pb.DType_DTYPE_FLOAT64, []int64{0, 3}, nil, 0), "[]"},
	} {
		got, err := valueJSON(test.value)
		if err != nil {
			t.Errorf("%v: %v", test.value, err)
			continue
		}
		text, err := json.Marshal(got.AsInterface())
		if err != nil || string(text) != test.want {
			t.Errorf("%v: %s (%v), want %s", test.value, text, err, test.want)
		}
	}
	for _, bad := range []*pb.Value{
		{Kind: &pb.Value_Input{Input: 1}},
		tensor(pb.DType_DTYPE_UNSPECIFIED, []int64{1}, nil, 0, 1),
		tensor(pb.DType_DTYPE_UINT8, []int64{3}, nil, 0, 1, 2),
		tensor(pb.DType_DTYPE_UINT8, []int64{1}, nil, math.MaxUint64, 1),
		tensor(pb.DType_DTYPE_UINT8, []int64{2}, []int64{-1}, 0, 1, 2),
		tensor(pb.DType_DTYPE_UINT8, []int64{1 << 40}, []int64{0}, 0, 1),
		tensor(pb.DType_DTYPE_UINT8, []int64{1 << 20, 1 << 20}, []int64{0, 0}, 0, 1),
		tensor(pb.DType_DTYPE_UINT8, []int64{-1}, nil, 0, 1),
		tensor(pb.DType_DTYPE_UINT8, []int64{2}, []int64{1, 1}, 0, 1, 2),
		{Kind: &pb.Value_ListValue{ListValue: &pb.ListValue{Values: []*pb.Value{{Kind: &pb.Value_Input{}}}}}},
	} {
		if got, err := valueJSON(bad); err == nil {
			t.Errorf("%v is accepted as %v", bad, got)
		}
	}
}

// Showing a result ends without a panic, whatever bytes a worker sends.
func FuzzValueJSON(f *testing.F) {
	seed, err := proto.Marshal(&pb.Value{Kind: &pb.Value_TensorValue{TensorValue: &pb.Tensor{
		Dtype: pb.DType_DTYPE_INT32, Shape: []int64{2, 2}, Strides: []int64{4, -4}, OffsetBytes: 4, Location: &pb.Tensor_InlineData{InlineData: make([]byte, 16)},
	}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Fuzz(func(t *testing.T, wire []byte) {
		value := &pb.Value{}
		if proto.Unmarshal(wire, value) == nil {
			_, _ = valueJSON(value)
		}
	})
}

func TestNamesSimilarToAnUnknownOpAreOffered(t *testing.T) {
	known := []string{"array.arange", "array.map", "array.matmul", "array.sum", "bench.noop"}
	for name, want := range map[string]string{
		"array.matmull": "array.matmul", "array.sun": "array.sum", "matmul": "array.matmul", "Array.Sum": "array.sum",
		"sum": "array.sum", "something.else.entirely": "",
	} {
		similar := similarNames(name, known)
		if want == "" && len(similar) > 0 || want != "" && (len(similar) == 0 || similar[0] != want) {
			t.Errorf("%s: %v, want %q first", name, similar, want)
		}
	}
}

// The machine's words for the status of a task and those of the API are the same.
func TestStatusesAreThoseOfTheAPI(t *testing.T) {
	for _, word := range sched.Statuses() {
		if statusTo(word) == pb.TaskStatus_TASK_STATUS_UNSPECIFIED {
			t.Errorf("the API has no status %s", word)
		}
	}
	if n := len(pb.TaskStatus_name) - 1; n != len(sched.Statuses()) {
		t.Errorf("the API has %d statuses, the machine %d", n, len(sched.Statuses()))
	}
}

// A worker is an outcome only if it holds the result: an assigned task has none.
func TestOnlySucceededTasksHaveAHolder(t *testing.T) {
	for state, want := range map[sched.TaskState]uint32{sched.TaskAssigned: 0, sched.TaskRunning: 0, sched.TaskSucceeded: 3} {
		update := &pb.TaskUpdate{}
		updateTo(&sched.Update{Task: 1, State: state, Worker: 3}, update)
		if got := update.GetWorkerId(); got != want {
			t.Errorf("%v: worker %d, want %d", state, got, want)
		}
	}
}

// The memory of updates is used again for the next message: nothing of an earlier update stays.
func TestUpdatesHaveNothingOfEarlierOnes(t *testing.T) {
	var m updateMessage
	var sent *pb.WatchResponse
	send := func(message *pb.WatchResponse) error {
		sent = message
		return nil
	}
	earlier := schedapi.TaskBatch{Updates: []sched.Update{
		{Task: 1, State: sched.TaskSucceeded, Inline: []byte{1}},
		{Task: 2, State: sched.TaskFailed, Err: someError},
		{Task: 3, State: sched.TaskSucceeded, Worker: 1, LogWorker: 1},
	}, Topics: []coord.TopicPosition{{Name: "t", Number: 7}}}
	later := schedapi.TaskBatch{Updates: []sched.Update{
		{Task: 4, State: sched.TaskAssigned, Worker: 1},
		{Task: 5, State: sched.TaskWaiting},
		{Task: 6, State: sched.TaskRunning, Worker: 1},
	}}
	for _, batch := range []*schedapi.TaskBatch{&earlier, &later} {
		if err := m.send(batch, 0, 0, send); err != nil {
			t.Fatal(err)
		}
		if len(sent.GetTopics()) != len(batch.Topics) {
			t.Errorf("the topics are %v, want %v", sent.GetTopics(), batch.Topics)
		}
	}
	for i, got := range sent.GetTasks() {
		if want := (&pb.TaskUpdate{TaskId: uint64(i + 4), State: got.GetState()}); !proto.Equal(got, want) {
			t.Errorf("update %d is %v, want %v", i, got, want)
		}
	}
}
