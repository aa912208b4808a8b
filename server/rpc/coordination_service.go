package rpc

import (
	"cmp"
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/server/coord"
	"github.com/millrace/millrace/server/schedapi"
)

type coordinationService struct {
	pb.UnimplementedCoordinationServiceServer
	*Server
}

// waiter is a request of a call that may wait and be repeated.
type waiter interface {
	GetClientId() uint64
	GetRequestId() string
	GetWait() *durationpb.Duration
	GetKeepPlace() bool
}

// callFrom converts the part of a request that all calls that wait have.
func callFrom(r waiter, ask coord.Ask) (coord.Call, error) {
	switch {
	case r.GetKeepPlace() && r.GetRequestId() == "":
		return coord.Call{}, invalid("request_id", "it is empty, and keep_place is set: a call without an id cannot be repeated, so name it")
	case r.GetRequestId() != "" && r.GetClientId() == 0:
		return coord.Call{}, invalid("client_id", "it is 0, and request_id is set: an id names a call of a client, so open one, or leave request_id empty")
	}
	return coord.Call{ID: r.GetRequestId(), Wait: r.GetWait().AsDuration(), Keep: r.GetKeepPlace(), Ask: ask}, nil
}

// ask makes a call that may wait.
func (s *coordinationService) ask(ctx context.Context, place schedapi.Place, r waiter, ask coord.Ask) (coord.Answer, error) {
	call, err := callFrom(r, ask)
	if err != nil {
		return coord.Answer{}, err
	}
	return s.scheduler.Ask(ctx, place, call)
}

func (s *coordinationService) Acquire(ctx context.Context, r *pb.AcquireRequest) (*pb.AcquireResponse, error) {
	needed := int(r.GetNeeded())
	if needed > len(r.GetNames()) {
		return nil, invalid("needed", fmt.Sprintf("%d locks are needed, and names has %d: name more locks", needed, len(r.GetNames())))
	}
	answer, err := s.ask(ctx, schedapi.Place{Client: ids.ClientID(r.GetClientId())}, r, coord.Acquire{
		Names: r.GetNames(), Limit: cmp.Or(r.GetLimit(), 1), Needed: cmp.Or(needed, len(r.GetNames())),
	})
	if err != nil {
		return nil, err
	}
	return &pb.AcquireResponse{Acquired: answer.Met, Names: answer.Names, FencingNumber: answer.Fence}, nil
}

func (s *coordinationService) Release(ctx context.Context, r *pb.ReleaseRequest) (*pb.ReleaseResponse, error) {
	return &pb.ReleaseResponse{}, s.scheduler.ReleaseLocks(ctx, ids.ClientID(r.GetClientId()), r.GetRequestId(), r.GetNames())
}

func (s *coordinationService) GetSemaphore(ctx context.Context, r *pb.GetSemaphoreRequest) (*pb.GetSemaphoreResponse, error) {
	info, err := s.scheduler.Semaphore(ctx, placeOf(r), r.GetName())
	if err != nil {
		return nil, err
	}
	return &pb.GetSemaphoreResponse{
		Limit: info.Limit, HolderClientIds: convertAll(info.Holders, func(id ids.ClientID) uint64 { return shownClient(ctx, id) }), Waiting: uint32(info.Waiting),
	}, nil
}

func (s *coordinationService) CloseSemaphore(ctx context.Context, r *pb.CloseSemaphoreRequest) (*pb.CloseSemaphoreResponse, error) {
	released, err := s.scheduler.CloseSemaphore(ctx, placeOf(r), r.GetName())
	return &pb.CloseSemaphoreResponse{Released: uint32(released)}, err
}

func (s *coordinationService) SetVariable(ctx context.Context, r *pb.SetVariableRequest) (*pb.SetVariableResponse, error) {
	value, err := storedFrom("value", r.GetValue())
	if err != nil {
		return nil, err
	}
	return &pb.SetVariableResponse{}, s.scheduler.SetVariable(ctx, placeOf(r), r.GetName(), value)
}

func (s *coordinationService) GetVariable(ctx context.Context, r *pb.GetVariableRequest) (*pb.GetVariableResponse, error) {
	answer, err := s.ask(ctx, placeOf(r), r, coord.ReadVariable{Name: r.GetName()})
	if err != nil || !answer.Met {
		return &pb.GetVariableResponse{}, err
	}
	value, err := storedTo(&answer.Values[0])
	return &pb.GetVariableResponse{Found: true, Value: value}, err
}

func (s *coordinationService) DeleteVariable(ctx context.Context, r *pb.DeleteVariableRequest) (*pb.DeleteVariableResponse, error) {
	return &pb.DeleteVariableResponse{}, s.scheduler.DeleteVariable(ctx, placeOf(r), r.GetName())
}

func (s *coordinationService) SetEvent(ctx context.Context, r *pb.SetEventRequest) (*pb.SetEventResponse, error) {
	return &pb.SetEventResponse{}, s.scheduler.SetEvent(ctx, placeOf(r), r.GetName(), !r.GetClear())
}

func (s *coordinationService) GetEvent(ctx context.Context, r *pb.GetEventRequest) (*pb.GetEventResponse, error) {
	answer, err := s.ask(ctx, placeOf(r), r, coord.AwaitEvent{Name: r.GetName()})
	return &pb.GetEventResponse{Set: answer.Met}, err
}

func (s *coordinationService) OpenQueue(ctx context.Context, r *pb.OpenQueueRequest) (*pb.OpenQueueResponse, error) {
	return &pb.OpenQueueResponse{}, s.scheduler.OpenQueue(ctx, placeOf(r), r.GetName(), r.GetMaxSize())
}

func (s *coordinationService) PutInQueue(ctx context.Context, r *pb.PutInQueueRequest) (*pb.PutInQueueResponse, error) {
	value, err := storedFrom("value", r.GetValue())
	if err != nil {
		return nil, err
	}
	answer, err := s.ask(ctx, placeOf(r), r, coord.PutInQueue{Name: r.GetName(), MaxSize: r.GetMaxSize(), Value: value})
	return &pb.PutInQueueResponse{Done: answer.Met}, err
}

func (s *coordinationService) TakeFromQueue(ctx context.Context, r *pb.TakeFromQueueRequest) (*pb.TakeFromQueueResponse, error) {
	answer, err := s.ask(ctx, placeOf(r), r, coord.TakeFromQueue{Name: r.GetName(), Most: int(cmp.Or(r.GetMost(), 1))})
	if err != nil {
		return nil, err
	}
	response := &pb.TakeFromQueueResponse{}
	for i := range answer.Values {
		value, err := storedTo(&answer.Values[i])
		if err != nil {
			return nil, err
		}
		response.Values = append(response.Values, value)
	}
	return response, nil
}

func (s *coordinationService) GetQueue(ctx context.Context, r *pb.GetQueueRequest) (*pb.GetQueueResponse, error) {
	info, err := s.scheduler.Queue(ctx, placeOf(r), r.GetName())
	if err != nil {
		return nil, err
	}
	return &pb.GetQueueResponse{Size: uint32(info.Size), MaxSize: info.MaxSize, WaitingPuts: uint32(info.Puts), WaitingTakes: uint32(info.Takes)}, nil
}

func (s *coordinationService) CloseQueue(ctx context.Context, r *pb.CloseQueueRequest) (*pb.CloseQueueResponse, error) {
	dropped, err := s.scheduler.CloseQueue(ctx, placeOf(r), r.GetName(), r.GetLeave())
	return &pb.CloseQueueResponse{Dropped: uint32(dropped)}, err
}

func (s *coordinationService) PublishToTopic(ctx context.Context, r *pb.PublishToTopicRequest) (*pb.PublishToTopicResponse, error) {
	values := make([]coord.Value, len(r.GetValues()))
	for i, v := range r.GetValues() {
		var err error
		if values[i], err = storedFrom(fmt.Sprintf("values[%d]", i), v); err != nil {
			return nil, err
		}
	}
	last, err := s.scheduler.PublishToTopic(ctx, placeOf(r), r.GetName(), values)
	return &pb.PublishToTopicResponse{Number: last}, err
}

func (s *coordinationService) GetTopic(ctx context.Context, r *pb.GetTopicRequest) (*pb.GetTopicResponse, error) {
	if r.GetLater() && r.GetAfter() != 0 {
		return nil, invalid("after", "it is set, and so is later: later means after the last message, so leave one of them out")
	}
	answer, err := s.scheduler.Ask(ctx, placeOf(r), coord.Call{Wait: r.GetWait().AsDuration(), Ask: coord.ReadTopic{
		Name: r.GetName(), After: r.GetAfter(), Later: r.GetLater(), Most: int(cmp.Or(r.GetMost(), defaultMessages)),
	}})
	if err != nil {
		return nil, err
	}
	response := &pb.GetTopicResponse{Number: answer.Number, Missed: answer.Missed}
	for i := range answer.Messages {
		message, err := messageTo(&answer.Messages[i])
		if err != nil {
			return nil, err
		}
		response.Messages = append(response.Messages, message)
	}
	return response, nil
}

func (s *coordinationService) ListTopics(ctx context.Context, r *pb.ListTopicsRequest) (*pb.ListTopicsResponse, error) {
	infos, err := s.scheduler.Topics(ctx, placeOf(r))
	if err != nil {
		return nil, err
	}
	response := &pb.ListTopicsResponse{}
	for _, info := range infos {
		response.Topics = append(response.Topics, &pb.TopicInfo{Name: info.Name, Number: info.Number, Messages: uint32(info.Messages), Bytes: info.Bytes})
	}
	return response, nil
}

func (s *coordinationService) SetMetadata(ctx context.Context, r *pb.SetMetadataRequest) (*pb.SetMetadataResponse, error) {
	tree, err := metadataFrom(r.GetValue(), len(r.GetPath()))
	if err != nil {
		return nil, err
	}
	return &pb.SetMetadataResponse{}, s.scheduler.SetMetadata(ctx, placeOf(r), r.GetPath(), tree)
}

func (s *coordinationService) GetMetadata(ctx context.Context, r *pb.GetMetadataRequest) (*pb.GetMetadataResponse, error) {
	tree, found, err := s.scheduler.Metadata(ctx, placeOf(r), r.GetPath())
	if err != nil || !found {
		return &pb.GetMetadataResponse{}, err
	}
	value, err := treeTo(&tree)
	if err != nil {
		return nil, fmt.Errorf("the metadata at %q: %w", r.GetPath(), err)
	}
	if n := proto.Size(value); n > mostMetadata {
		return nil, invalid("path", fmt.Sprintf("there are %d bytes below it, and an answer has at most %d: read smaller subtrees", n, mostMetadata))
	}
	return &pb.GetMetadataResponse{Found: true, Value: value}, nil
}

func (s *coordinationService) Withdraw(ctx context.Context, r *pb.WithdrawRequest) (*pb.WithdrawResponse, error) {
	return &pb.WithdrawResponse{}, s.scheduler.Withdraw(ctx, ids.ClientID(r.GetClientId()), r.GetRequestId())
}

func (s *coordinationService) Acknowledge(ctx context.Context, r *pb.AcknowledgeRequest) (*pb.AcknowledgeResponse, error) {
	return &pb.AcknowledgeResponse{}, s.scheduler.Acknowledge(ctx, ids.ClientID(r.GetClientId()), r.GetRequestId())
}
