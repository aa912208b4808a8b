package rpc

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/members"
	"github.com/millrace/millrace/server/sched"
	"github.com/millrace/millrace/server/schedapi"
)

// carrier is a stream that accepts the messages that a real one accepts.
type carrier struct {
	t       *testing.T
	whole   workerv1.SessionResponse
	refused []ids.TaskID
	reasons []string
	sent    int
}

func (c *carrier) send(message *workerv1.SessionResponse) error {
	wire, err := proto.Marshal(message)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if len(wire) > MaxMessageBytes {
		c.t.Errorf("a message of %d bytes", len(wire))
		return status.Error(codes.ResourceExhausted, "trying to send message larger than max")
	}
	c.sent++
	if err := (proto.UnmarshalOptions{Merge: true}).Unmarshal(wire, &c.whole); err != nil {
		c.t.Fatal(err)
	}
	return nil
}

func (c *carrier) refuse(task ids.TaskID, _ ids.Attempt, reason string) {
	c.refused, c.reasons = append(c.refused, task), append(c.reasons, reason)
}

func TestOutboundMessagesAreSplitBySize(t *testing.T) {
	// The short size still needs several messages, and each kind of large element more than one.
	many, large := 400_000, 800
	if testing.Short() {
		many, large = many/2, large/2
	}
	var o schedapi.Outbound
	for i := range many {
		o.Releases = append(o.Releases, sched.Replica{Task: ids.TaskID(1<<40 + i), Generation: 1 << 30, Bytes: 1 << 50})
		o.Retractions = append(o.Retractions, sched.TaskRef{Task: ids.TaskID(1<<40 + i), Attempt: 1 << 30})
		o.FreedSlots = append(o.FreedSlots, sched.TaskRef{Task: ids.TaskID(1<<40 + i), Attempt: 1 << 30})
		o.Cancellations = append(o.Cancellations, sched.TaskRef{Task: ids.TaskID(1<<40 + i), Attempt: 1 << 30})
		o.NextUses = append(o.NextUses, sched.NextUse{Task: ids.TaskID(1<<40 + i), Generation: 1 << 30, Rank: 1 << 60})
	}
	for i := range 40 {
		o.Rescues = append(o.Rescues, schedapi.Rescue{Dead: members.Peer{Worker: ids.WorkerID(i + 1), Name: "dead"}, Objects: o.Releases[:many/4]})
	}
	o.Rescues = append(o.Rescues, schedapi.Rescue{Dead: members.Peer{Worker: 99, Name: "large"}, Objects: o.Releases})
	for i := range large {
		o.Ops = append(o.Ops, schedapi.OpDefinition{ID: ids.OpID(i), Op: sched.OpSpec{Kind: sched.OpNative, Name: strings.Repeat("o", 50_000)}})
		o.Peers = append(o.Peers, members.Peer{Worker: ids.WorkerID(i), Address: strings.Repeat("a", 50_000), Name: "n"})
		inputs := make([]sched.AssignedInput, 100)
		for j := range inputs {
			inputs[j] = sched.AssignedInput{Replica: sched.Replica{Task: ids.TaskID(j)}, Holders: slices.Repeat([]ids.WorkerID{1 << 30}, 100)}
		}
		o.Assign(&sched.Assignment{Task: ids.TaskID(i), Key: strings.Repeat("k", 1024), Inputs: inputs})
	}
	o.Leave, o.StopReason, o.Reregister = &schedapi.Leave{Reason: "because of \xff"}, "a reason with \xff in it", true
	c := carrier{t: t}
	if err := new(SessionMessage).Send(&o, c.send, c.refuse); err != nil || len(c.refused) > 0 || c.sent < 10 {
		t.Fatalf("%d messages, refused %v, %v", c.sent, c.refused, err)
	}
	w := &c.whole
	rescued := 0
	for _, r := range w.GetRescues() {
		rescued += len(r.GetObjects())
	}
	if len(w.GetReleases()) != many || len(w.GetRetractions()) != many || len(w.GetCancellations()) != many || len(w.GetFreedSlots()) != many || len(w.GetNextUses()) != many ||
		rescued != 11*many || len(w.GetOps()) != large || len(w.GetPeers()) != large || len(w.GetAssignments()) != large ||
		w.GetLeave().GetReason() != "because of \uFFFD" || !w.GetReregister() || !strings.HasPrefix(w.GetStopReason(), "a reason with \uFFFD") {
		t.Errorf("arrived: %d releases, %d rescued, %d ops, %d peers, %d assignments, stop %q", len(w.GetReleases()), rescued,
			len(w.GetOps()), len(w.GetPeers()), len(w.GetAssignments()), w.GetStopReason())
	}
}

func TestAnAssignmentThatCannotBeSentIsTakenOut(t *testing.T) {
	inline := make([]sched.AssignedInput, 1200)
	for i := range inline {
		inline[i] = sched.AssignedInput{Replica: sched.Replica{Task: ids.TaskID(i)}, Inline: make([]byte, 60_000)}
	}
	for _, test := range []struct {
		name string
		bad  sched.Assignment
		word string
	}{
		{"inputs of 70 MB", sched.Assignment{Task: 2, Inputs: inline}, "1200 inputs"},
		{"arguments of 70 MB", sched.Assignment{Task: 2, Arguments: make([]byte, 70<<20)}, "70 MiB of arguments"},
		{"a key that is no UTF-8", sched.Assignment{Task: 2, Key: "\xff"}, "UTF-8"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var o schedapi.Outbound
			o.Assign(&sched.Assignment{Task: 1, Key: "before"})
			o.Assign(&test.bad)
			o.Assign(&sched.Assignment{Task: 3, Key: "after", Arguments: make([]byte, 17<<20)})
			c := carrier{t: t}
			err := new(SessionMessage).Send(&o, c.send, c.refuse)
			if !slices.Equal(c.refused, []ids.TaskID{2}) || !strings.Contains(c.reasons[0], test.word) {
				t.Fatalf("refused %v (%v)", c.refused, c.reasons)
			}
			if broken := test.word == "UTF-8"; broken != (err != nil) || !broken && len(c.whole.GetAssignments()) != 2 {
				t.Errorf("%d assignments arrived, %v", len(c.whole.GetAssignments()), err)
			}
		})
	}
}

func TestTheLastWordAboutAnObjectCounts(t *testing.T) {
	report := func(task uint64, lost bool) *workerv1.ObjectReport {
		event := workerv1.ObjectEvent_OBJECT_EVENT_GAINED
		if lost {
			event = workerv1.ObjectEvent_OBJECT_EVENT_LOST
		}
		return &workerv1.ObjectReport{Replica: &workerv1.Replica{TaskId: task, Generation: 1}, Event: event}
	}
	said := InboundFrom(&workerv1.SessionRequest{Objects: []*workerv1.ObjectReport{
		report(1, true), report(1, false), report(2, false), report(2, true), report(3, false), report(4, true),
	}})
	if len(said.Gained) != 2 || said.Gained[0].Task != 1 || said.Gained[1].Task != 3 || len(said.Lost) != 2 || said.Lost[0].Task != 2 || said.Lost[1].Task != 4 {
		t.Errorf("gained %v, lost %v", said.Gained, said.Lost)
	}
}
