package model

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
)

// remembered is less than the shortest time for which a scheduler remembers a call with a request
// id. A call that is repeated for longer may be another one.
const remembered = 8 * time.Second

// Player is a client of real schedulers, which may be killed. It makes random calls about locks,
// queues, variables and tasks, one at a time, and notes them in a history. It gives some of those
// up to which it got no answer, and repeats the others.
type Player struct {
	History *History
	Conn    grpc.ClientConnInterface
	// Name tells players apart, Seed decides what the player does.
	Name string
	Seed uint64
	// Tasks says that the player submits tasks, which some worker runs.
	Tasks bool

	rng    *rand.Rand
	client uint64
	calls  int
	shared pb.CoordinationServiceClient
	sched  pb.SchedulerServiceClient
	// tasks are those that the player has submitted.
	tasks []ownTask
}

type ownTask struct {
	id   uint64
	key  string
	held bool
}

// Play makes calls as long as more says so. An error is a refusal that has no reason, or the end of
// ctx.
func (p *Player) Play(ctx context.Context, more func() bool) error {
	p.rng = rand.New(rand.NewPCG(p.Seed, 0))
	p.shared, p.sched = pb.NewCoordinationServiceClient(p.Conn), pb.NewSchedulerServiceClient(p.Conn)
	err := p.until(ctx, func(ctx context.Context) error {
		out, err := p.sched.OpenClient(ctx, &pb.OpenClientRequest{Name: p.Name, LeaseTtl: durationpb.New(24 * time.Hour)}, wait)
		p.client = out.GetClient().GetClientId()
		return err
	})
	for err == nil && more() {
		err = p.act(ctx)
	}
	return err
}

// unanswered says that nobody knows what has become of a call.
func unanswered(err error) bool {
	return slices.Contains([]codes.Code{codes.Unavailable, codes.Canceled, codes.DeadlineExceeded, codes.Unknown, codes.Aborted}, status.Code(err))
}

// tryTime bounds one try of a call, in case the scheduler hangs.
const tryTime = time.Minute

// pause is the time between two tries, as a scheduler that starts refuses calls at once.
const pause = 20 * time.Millisecond

// until repeats a call until it is answered.
func (p *Player) until(ctx context.Context, call func(context.Context) error) error {
	for {
		err := p.once(ctx, call)
		if !unanswered(err) || ctx.Err() != nil {
			return err
		}
		time.Sleep(pause)
	}
}

func (p *Player) once(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	return call(ctx)
}

// wait is for the connection as well as for the lock or value.
var wait = grpc.WaitForReady(true)

func (p *Player) begin(kind Kind, name, request string) *Op {
	return p.History.Begin(Call{Kind: kind, Client: p.Name, Name: name, Request: request})
}

// repeat makes a call with a request id until it is answered, and returns it with its name in the
// history; nil: it was given up.
func (p *Player) repeat(ctx context.Context, call Call, serve func(ctx context.Context, id string) (Answer, error)) (*Op, error) {
	p.calls++
	id := fmt.Sprint(p.calls)
	call.Client = p.Name
	began := time.Now()
	var tries []*Op
	for {
		call.Request = fmt.Sprintf("%s.%d", id, len(tries))
		op := p.History.Begin(call)
		tries = append(tries, op)
		var answer Answer
		err := p.once(ctx, func(ctx context.Context) (err error) {
			answer, err = serve(ctx, id)
			return err
		})
		late := time.Since(began) > remembered
		switch {
		case err == nil && late:
			// The first tries may have been other calls.
			p.mayBeUndone(tries[:len(tries)-1])
			op.End(answer)
			return op, nil
		case err == nil:
			dropAll(tries[1:])
			tries[0].End(answer)
			return tries[0], nil
		case !unanswered(err) || ctx.Err() != nil:
			return nil, fmt.Errorf("%s: %w", op, err)
		case p.rng.IntN(3) == 0:
			if !late {
				dropAll(tries[1:])
				tries = tries[:1]
			}
			p.mayBeUndone(tries)
			return nil, nil
		}
		time.Sleep(pause)
	}
}

func dropAll(ops []*Op) {
	for _, op := range ops {
		op.Drop()
	}
}

// mayBeUndone notes that a scheduler may undo what nobody was told of.
func (p *Player) mayBeUndone(ops []*Op) {
	for _, op := range ops {
		if op.Call.Kind == Acquire || op.Call.Kind == Take {
			p.begin(Withdraw, op.Call.Name, op.Call.Request)
		}
	}
}

func (p *Player) value() *pb.StoredValue {
	return &pb.StoredValue{Value: &pb.Value{Kind: &pb.Value_StringValue{StringValue: fmt.Sprintf("%s-%d", p.Name, p.calls)}}}
}

// act does one thing.
func (p *Player) act(ctx context.Context) error {
	name := fmt.Sprint("x", p.rng.IntN(2))
	patience := durationpb.New(time.Duration(p.rng.IntN(2)*p.rng.IntN(100)) * time.Millisecond)
	n := p.rng.IntN(10)
	if !p.Tasks {
		n = p.rng.IntN(8)
	}
	switch n {
	case 0, 1:
		return p.lock(ctx, name, patience)
	case 2, 3:
		value := p.value()
		_, err := p.repeat(ctx, Call{Kind: Put, Name: name, Limit: 3, Value: value.GetValue().GetStringValue()}, func(ctx context.Context, id string) (Answer, error) {
			out, err := p.shared.PutInQueue(ctx, &pb.PutInQueueRequest{ClientId: p.client, Name: name, RequestId: id, Wait: patience, MaxSize: 3, Value: value}, wait)
			return Answer{Met: out.GetDone()}, err
		})
		return err
	case 4:
		_, err := p.repeat(ctx, Call{Kind: Take, Name: name, Most: 2}, func(ctx context.Context, id string) (Answer, error) {
			out, err := p.shared.TakeFromQueue(ctx, &pb.TakeFromQueueRequest{ClientId: p.client, Name: name, RequestId: id, Wait: patience, Most: 2}, wait)
			return Answer{Met: len(out.GetValues()) > 0, Values: texts(out.GetValues()...)}, err
		})
		return err
	case 5:
		return p.look(ctx, name)
	case 6, 7:
		return p.variable(ctx, name)
	case 8:
		return p.submit(ctx)
	default:
		return p.lookAtTask(ctx)
	}
}

func texts(values ...*pb.StoredValue) (texts []string) {
	for _, v := range values {
		texts = append(texts, v.GetValue().GetStringValue())
	}
	return texts
}

// lock acquires a lock, and gives it back.
func (p *Player) lock(ctx context.Context, name string, patience *durationpb.Duration) error {
	limit := 1
	if strings.HasSuffix(name, "1") {
		limit = 2
	}
	request := ""
	op, err := p.repeat(ctx, Call{Kind: Acquire, Name: name, Limit: limit}, func(ctx context.Context, id string) (Answer, error) {
		request = id
		out, err := p.shared.Acquire(ctx, &pb.AcquireRequest{ClientId: p.client, RequestId: id, Names: []string{name}, Limit: uint32(limit), Wait: patience}, wait)
		return Answer{Met: out.GetAcquired(), Fence: out.GetFencingNumber()}, err
	})
	if err != nil || op == nil || !op.Answer.Met {
		return err
	}
	if err := p.look(ctx, name); err != nil {
		return err
	}
	back, began := p.begin(Release, name, op.Call.Request), time.Now()
	err = p.until(ctx, func(ctx context.Context) error {
		_, err := p.shared.Release(ctx, &pb.ReleaseRequest{ClientId: p.client, RequestId: request, Names: []string{name}}, wait)
		return err
	})
	switch {
	case status.Code(err) == codes.FailedPrecondition && time.Since(began) > remembered:
		return nil // It was perhaps released by the first try.
	case status.Code(err) == codes.FailedPrecondition:
		back.End(Answer{})
		return nil
	case err == nil:
		back.End(Answer{Met: true})
	}
	return err
}

// look reads the state of a lock or of a queue.
func (p *Player) look(ctx context.Context, name string) error {
	if p.rng.IntN(2) == 0 {
		op, size := p.begin(Size, name, ""), 0
		err := p.until(ctx, func(ctx context.Context) error {
			out, err := p.shared.GetQueue(ctx, &pb.GetQueueRequest{ClientId: p.client, Name: name}, wait)
			size = int(out.GetSize())
			return err
		})
		if err == nil {
			op.End(Answer{Size: size})
		}
		return err
	}
	op, holders := p.begin(Holders, name, ""), 0
	err := p.until(ctx, func(ctx context.Context) error {
		out, err := p.shared.GetSemaphore(ctx, &pb.GetSemaphoreRequest{ClientId: p.client, Name: name}, wait)
		holders = len(out.GetHolderClientIds())
		return err
	})
	if err == nil {
		op.End(Answer{Size: holders})
	}
	return err
}

// variable reads or changes a variable. Calls that change one have no id: each try is another call.
func (p *Player) variable(ctx context.Context, name string) error {
	if p.rng.IntN(2) == 0 {
		op, answer := p.begin(Get, name, ""), Answer{}
		err := p.until(ctx, func(ctx context.Context) error {
			out, err := p.shared.GetVariable(ctx, &pb.GetVariableRequest{ClientId: p.client, Name: name}, wait)
			answer = Answer{Met: out.GetFound()}
			if out.GetFound() {
				answer.Values = texts(out.GetValue())
			}
			return err
		})
		if err == nil {
			op.End(answer)
		}
		return err
	}
	p.calls++
	value, deletes := p.value(), p.rng.IntN(5) == 0
	return p.until(ctx, func(ctx context.Context) (err error) {
		call := Call{Kind: Set, Client: p.Name, Name: name, Value: value.GetValue().GetStringValue()}
		if deletes {
			call.Kind = Delete
		}
		op := p.History.Begin(call)
		if deletes {
			_, err = p.shared.DeleteVariable(ctx, &pb.DeleteVariableRequest{ClientId: p.client, Name: name}, wait)
		} else {
			_, err = p.shared.SetVariable(ctx, &pb.SetVariableRequest{ClientId: p.client, Name: name, Value: value}, wait)
		}
		if err == nil {
			op.End(Answer{Met: true})
		}
		return err
	})
}

// submit submits a task that succeeds or fails, or releases one.
func (p *Player) submit(ctx context.Context) error {
	if n := len(p.tasks); n > 0 && p.rng.IntN(2) == 0 {
		task := &p.tasks[p.rng.IntN(n)]
		if !task.held {
			return nil
		}
		task.held = false
		op := p.History.Begin(Call{Kind: LetGo, Client: p.Name, Name: task.key, Task: task.id})
		err := p.until(ctx, func(ctx context.Context) error {
			_, err := p.sched.ReleaseTasks(ctx, &pb.ReleaseTasksRequest{ClientId: p.client, Tasks: &pb.TaskSet{Ids: []uint64{task.id}}}, wait)
			return err
		})
		if err == nil {
			op.End(Answer{Met: true})
		}
		return err
	}
	p.calls++
	key := fmt.Sprintf("%s-%d", p.Name, p.calls)
	function := []string{"bench.noop", "bench.fail"}[p.rng.IntN(2)]
	op, task := p.History.Begin(Call{Kind: Submit, Client: p.Name, Name: key, Request: key, Alone: true}), uint64(0)
	err := p.until(ctx, func(ctx context.Context) error {
		out, err := p.sched.SubmitBatch(ctx, &pb.SubmitRequest{
			Header: &pb.SubmitHeader{ClientId: p.client, RequestId: key}, Tasks: []*pb.TaskSpec{{Key: key, Op: function, Hold: true}},
		}, wait)
		if err == nil {
			task = out.GetTaskIds()[0]
		}
		return err
	})
	if err == nil {
		op.End(Answer{Met: true, Task: task})
		p.tasks = append(p.tasks, ownTask{task, key, true})
	}
	return err
}

// lookAtTask reads the state of a task.
func (p *Player) lookAtTask(ctx context.Context) error {
	if len(p.tasks) == 0 {
		return nil
	}
	task := p.tasks[p.rng.IntN(len(p.tasks))]
	op, answer := p.History.Begin(Call{Kind: Look, Client: p.Name, Name: task.key, Task: task.id}), Answer{}
	err := p.until(ctx, func(ctx context.Context) error {
		out, err := p.sched.GetTask(ctx, &pb.GetTaskRequest{Task: &pb.TaskRef{Task: &pb.TaskRef_Id{Id: task.id}}}, wait)
		answer = Answer{}
		if status.Code(err) == codes.NotFound {
			return nil
		}
		if t := out.GetTask(); err == nil {
			answer = Answer{Met: true, Task: t.GetTaskId(), Generation: uint64(t.GetAttempt()), Reason: t.GetError().GetReason(),
				State: strings.TrimPrefix(t.GetState().String(), "TASK_STATE_")}
		}
		return err
	})
	if err == nil {
		op.End(answer)
	}
	return err
}
