package server_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/server"
)

func text(s string) *pb.StoredValue {
	return &pb.StoredValue{Value: &pb.Value{Kind: &pb.Value_StringValue{StringValue: s}}}
}

// later runs a call in the background, and returns its error.
func later(call func() error) chan error {
	done := make(chan error, 1)
	go func() { done <- call() }()
	return done
}

// waits waits until a number of calls wait for a lock.
func waits(ctx context.Context, t *testing.T, c pb.CoordinationServiceClient, name string, n uint32) {
	t.Helper()
	for {
		s, err := c.GetSemaphore(ctx, &pb.GetSemaphoreRequest{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		if s.GetWaiting() == n {
			return
		}
	}
}

var minute = durationpb.New(time.Minute)

func TestALockGoesFromClientToClientInTheOrderOfTheCalls(t *testing.T) {
	c := start(t, server.Config{})
	ctx := timeout(t)
	locks := pb.NewCoordinationServiceClient(c.conn)
	holder := c.open(ctx)
	got, err := locks.Acquire(ctx, &pb.AcquireRequest{ClientId: holder, Names: []string{"x"}, RequestId: "1"})
	if err != nil || !got.GetAcquired() || got.GetNames()[0] != "x" {
		t.Fatalf("%v, %v", got, err)
	}
	first, second := c.open(ctx), c.open(ctx)
	order := make(chan uint64, 2)
	for i, id := range []uint64{first, second} {
		go func() {
			got, err := locks.Acquire(ctx, &pb.AcquireRequest{ClientId: id, Names: []string{"x"}, Wait: minute})
			if err != nil || !got.GetAcquired() {
				t.Errorf("client %d: %v, %v", id, got, err)
			}
			order <- id
		}()
		waits(ctx, t, locks, "x", uint32(i+1))
	}
	if got, err := locks.Acquire(ctx, &pb.AcquireRequest{ClientId: holder, Names: []string{"x"}}); err != nil || got.GetAcquired() {
		t.Errorf("without a wait: %v, %v", got, err)
	}
	_, err = locks.Acquire(ctx, &pb.AcquireRequest{ClientId: holder, Names: []string{"x"}, Limit: 2})
	wantReason(t, err, "INVALID_FIELD", "limit")
	if _, err := locks.Release(ctx, &pb.ReleaseRequest{ClientId: holder, Names: []string{"x"}, RequestId: "1"}); err != nil {
		t.Fatal(err)
	}
	if id := <-order; id != first {
		t.Errorf("client %d got the lock before %d", id, first)
	}
	_, err = locks.Release(ctx, &pb.ReleaseRequest{ClientId: holder, Names: []string{"x"}})
	wantReason(t, err, "NOT_HELD", `"x"`, "acquire it again")
	// The end of a lease releases its locks.
	if _, err := c.client.CloseClient(ctx, &pb.CloseClientRequest{ClientId: first}); err != nil {
		t.Fatal(err)
	}
	if id := <-order; id != second {
		t.Errorf("client %d got the lock after the lease of %d had ended", id, first)
	}
}

func TestASilentClientLosesItsLocks(t *testing.T) {
	virtual(t, testASilentClientLosesItsLocks)
}

func testASilentClientLosesItsLocks(c *cluster) {
	t, ctx := c.t, timeout(c.t)
	locks := pb.NewCoordinationServiceClient(c.conn)
	opened, err := c.client.OpenClient(ctx, &pb.OpenClientRequest{LeaseTtl: durationpb.New(time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := locks.Acquire(ctx, &pb.AcquireRequest{ClientId: opened.GetClient().GetClientId(), Names: []string{"x"}}); err != nil {
		t.Fatal(err)
	}
	// The other lease is as short, and does not end while its call waits.
	other, err := c.client.OpenClient(ctx, &pb.OpenClientRequest{LeaseTtl: durationpb.New(time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	got, err := locks.Acquire(ctx, &pb.AcquireRequest{ClientId: other.GetClient().GetClientId(), Names: []string{"x"}, Wait: minute})
	if err != nil || !got.GetAcquired() {
		t.Fatalf("%v, %v", got, err)
	}
}

func TestACallThatIsRepeatedKeepsItsPlace(t *testing.T) {
	c := start(t, server.Config{})
	ctx := timeout(t)
	locks := pb.NewCoordinationServiceClient(c.conn)
	holder, first, second := c.open(ctx), c.open(ctx), c.open(ctx)
	take := func(ctx context.Context, id uint64, request string) (*pb.AcquireResponse, error) {
		return locks.Acquire(ctx, &pb.AcquireRequest{ClientId: id, Names: []string{"x"}, RequestId: request, Wait: minute})
	}
	if _, err := take(ctx, holder, "1"); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithCancel(ctx)
	broken := later(func() error { _, err := take(short, first, "2"); return err })
	waits(ctx, t, locks, "x", 1)
	behind := later(func() error { _, err := take(ctx, second, "3"); return err })
	waits(ctx, t, locks, "x", 2)
	cancel()
	if err := <-broken; status.Code(err) != codes.Canceled {
		t.Fatal(err)
	}
	again := later(func() error { _, err := take(ctx, first, "2"); return err })
	if _, err := locks.Release(ctx, &pb.ReleaseRequest{ClientId: holder, Names: []string{"x"}}); err != nil {
		t.Fatal(err)
	}
	if err := <-again; err != nil {
		t.Fatal(err)
	}
	_, err := locks.Acquire(ctx, &pb.AcquireRequest{ClientId: first, Names: []string{"y"}, RequestId: "2"})
	wantReason(t, err, "REQUEST_CONFLICT", `lock "x"`)
	if _, err := locks.Withdraw(ctx, &pb.WithdrawRequest{ClientId: first, RequestId: "2"}); err != nil {
		t.Fatal(err)
	}
	if err := <-behind; err != nil {
		t.Fatal(err)
	}
	_, err = locks.Acquire(ctx, &pb.AcquireRequest{ClientId: first, Names: []string{"y"}, KeepPlace: true})
	wantReason(t, err, "INVALID_FIELD", "request_id")
}

func TestAVariableKeepsTheResultsInIt(t *testing.T) {
	c := start(t, server.Config{})
	ctx := timeout(t)
	c.join(c.conn, registration("w-0"), succeed)
	state := pb.NewCoordinationServiceClient(c.conn)
	writer, reader := c.open(ctx), c.open(ctx)
	watch := c.watch(ctx, &pb.WatchRequest{ClientId: writer})
	tasks := noops("v", 1)
	submitted, err := c.client.SubmitBatch(ctx, &pb.SubmitRequest{Header: &pb.SubmitHeader{ClientId: writer}, Tasks: tasks})
	if err != nil {
		t.Fatal(err)
	}
	c.final(watch, submitted.GetTaskIds())
	known := func() bool {
		_, err := c.client.GetTask(ctx, &pb.GetTaskRequest{Task: &pb.TaskRef{Task: &pb.TaskRef_Id{Id: submitted.GetTaskIds()[0]}}})
		return err == nil
	}
	future := &pb.StoredValue{Value: &pb.Value{Kind: &pb.Value_Input{Input: 0}}, Keys: []string{tasks[0].GetKey()}}
	if _, err := state.SetVariable(ctx, &pb.SetVariableRequest{ClientId: writer, Name: "best", Value: future}); err != nil {
		t.Fatal(err)
	}
	_, err = state.SetVariable(ctx, &pb.SetVariableRequest{ClientId: writer, Name: "other", Value: &pb.StoredValue{Keys: []string{"nobody"}}})
	wantReason(t, err, "UNKNOWN_TASK", "nobody")
	if _, err := c.client.CloseClient(ctx, &pb.CloseClientRequest{ClientId: writer}); err != nil {
		t.Fatal(err)
	}
	if !known() {
		t.Fatal("the result has gone with its client, although the variable has it")
	}
	got, err := state.GetVariable(ctx, &pb.GetVariableRequest{ClientId: reader, Name: "best", RequestId: "r"})
	if err != nil || !proto.Equal(got.GetValue(), future) {
		t.Fatalf("%v, %v", got, err)
	}
	if _, err := state.DeleteVariable(ctx, &pb.DeleteVariableRequest{Name: "best"}); err != nil {
		t.Fatal(err)
	}
	if !known() {
		t.Fatal("the result has gone before its reader has acknowledged it")
	}
	if _, err := state.Acknowledge(ctx, &pb.AcknowledgeRequest{ClientId: reader, RequestId: "r"}); err != nil {
		t.Fatal(err)
	}
	for known() {
		if ctx.Err() != nil {
			t.Fatal("the result is kept for nobody")
		}
	}
}

func TestValuesThatCannotBeStoredAreRefused(t *testing.T) {
	c := start(t, server.Config{})
	ctx := timeout(t)
	state := pb.NewCoordinationServiceClient(c.conn)
	for name, value := range map[string]*pb.StoredValue{
		"its limit":  text(string(make([]byte, 2<<20))),
		"0 keys":     {Value: &pb.Value{Kind: &pb.Value_Input{Input: 0}}},
		"no frames":  {Value: &pb.Value{Kind: &pb.Value_OpaqueValue{OpaqueValue: &pb.Opaque{Frames: []uint32{0}}}}},
		"has no fra": {Value: &pb.Value{Kind: &pb.Value_TensorValue{TensorValue: &pb.Tensor{Location: &pb.Tensor_Frame{Frame: 0}}}}},
	} {
		if name == "its limit" {
			name = "the limit is 1.0 MiB"
		}
		_, err := state.SetVariable(ctx, &pb.SetVariableRequest{Name: "v", Value: value})
		wantReason(t, err, "INVALID_FIELD", "value", name)
	}
	_, err := state.SetMetadata(ctx, &pb.SetMetadataRequest{Path: []string{"a"}, Value: &pb.Value{Kind: &pb.Value_Input{}}})
	wantReason(t, err, "INVALID_FIELD", "value")
	_, err = state.SetVariable(ctx, &pb.SetVariableRequest{Value: text("x")})
	wantReason(t, err, "INVALID_FIELD", "name")
}

func TestQueuesEventsTopicsAndMetadata(t *testing.T) {
	c := start(t, server.Config{})
	ctx := timeout(t)
	state := pb.NewCoordinationServiceClient(c.conn)
	id := c.open(ctx)
	for i, want := range []bool{true, true, false} {
		put, err := state.PutInQueue(ctx, &pb.PutInQueueRequest{ClientId: id, Name: "q", MaxSize: 2, Value: text(fmt.Sprint(i))})
		if err != nil || put.GetDone() != want {
			t.Fatalf("put %d: %v, %v", i, put, err)
		}
	}
	taken, err := state.TakeFromQueue(ctx, &pb.TakeFromQueueRequest{ClientId: id, Name: "q", Most: 10})
	if err != nil || len(taken.GetValues()) != 2 || taken.GetValues()[0].GetValue().GetStringValue() != "0" {
		t.Fatalf("%v, %v", taken, err)
	}
	waiting := later(func() error {
		_, err := state.TakeFromQueue(ctx, &pb.TakeFromQueueRequest{Name: "q", Wait: minute})
		return err
	})
	for q := (&pb.GetQueueResponse{}); q.GetWaitingTakes() == 0; {
		if q, err = state.GetQueue(ctx, &pb.GetQueueRequest{Name: "q"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := state.CloseQueue(ctx, &pb.CloseQueueRequest{Name: "q"}); err != nil {
		t.Fatal(err)
	}
	wantReason(t, <-waiting, "CLOSED", `"q"`)

	set := later(func() error {
		e, err := state.GetEvent(ctx, &pb.GetEventRequest{Name: "go", Wait: minute})
		if err == nil && !e.GetSet() {
			err = fmt.Errorf("the event is not set: %v", e)
		}
		return err
	})
	if _, err := state.SetEvent(ctx, &pb.SetEventRequest{Name: "go"}); err != nil {
		t.Fatal(err)
	}
	if err := <-set; err != nil {
		t.Error(err)
	}

	for _, s := range []string{"a", "b"} {
		if _, err := state.PublishToTopic(ctx, &pb.PublishToTopicRequest{Name: "log", Values: []*pb.StoredValue{text(s)}}); err != nil {
			t.Fatal(err)
		}
	}
	read, err := state.GetTopic(ctx, &pb.GetTopicRequest{Name: "log", After: 1})
	if err != nil || len(read.GetMessages()) != 1 || read.GetNumber() != 2 || read.GetMessages()[0].GetValue().GetValue().GetStringValue() != "b" {
		t.Errorf("%v, %v", read, err)
	}
	topics, err := state.ListTopics(ctx, &pb.ListTopicsRequest{})
	if err != nil || len(topics.GetTopics()) != 1 || topics.GetTopics()[0].GetMessages() != 2 {
		t.Errorf("%v, %v", topics, err)
	}

	null := &pb.Value{Kind: &pb.Value_NullValue{}}
	tree := &pb.Value{Kind: &pb.Value_MapValue{MapValue: &pb.MapValue{Fields: map[string]*pb.Value{"z": null, "y": text("1").GetValue()}, Order: []string{"z", "y"}}}}
	if _, err := state.SetMetadata(ctx, &pb.SetMetadataRequest{Path: []string{"a", "b"}, Value: tree}); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]*pb.Value{"b": tree, "none": nil} {
		got, err := state.GetMetadata(ctx, &pb.GetMetadataRequest{Path: []string{"a", path}})
		if err != nil || got.GetFound() != (want != nil) || !proto.Equal(got.GetValue(), want) {
			t.Errorf("%s: %v, %v", path, got, err)
		}
	}
}
