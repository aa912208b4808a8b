package executor

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	executorv1 "github.com/millrace/millrace/gen/go/millrace/executor/v1"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/stacks"
)

const (
	// profileFunction of an executor for Python takes a serialised GetProfileRequest, and returns a
	// serialised GetProfileResponse as an array of bytes.
	profileFunction = "millrace.executor._profile:collect"
	// profileCalls is the largest number of calls in an answer.
	profileCalls = 50_000
	// profileTimeout is the longest wait for the processes. A long call of C code that does not let
	// go of the interpreter delays an answer.
	profileTimeout = 10 * time.Second
)

// GetProfile is part of ExecutorServiceServer.
func (s *Service) GetProfile(ctx context.Context, r *millracev1.GetProfileRequest) (*millracev1.GetProfileResponse, error) {
	request, err := proto.Marshal(r)
	if err != nil {
		return nil, err
	}
	arguments, err := proto.Marshal(&millracev1.Arguments{Positional: []*millracev1.Value{
		{Kind: &millracev1.Value_BytesValue{BytesValue: request}},
	}})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, profileTimeout)
	defer cancel()
	var tree stacks.Tree
	response := &millracev1.GetProfileResponse{}
	for _, answer := range s.Pools.ask(&Call{Op: &millracev1.Op{Kind: millracev1.OpKind_OP_KIND_PYTHON_IMPORT, Name: profileFunction}, Arguments: arguments}) {
		one, err := profileFrom(ctx, answer)
		if err != nil {
			response.MissingProcesses++
			continue
		}
		tree.Add(one.GetCalls())
		response.Interval = durationpb.New(max(one.GetInterval().AsDuration(), response.GetInterval().AsDuration()))
	}
	response.Samples = tree.Samples()
	limit := int(r.GetMaxCalls())
	if limit == 0 {
		limit = profileCalls
	}
	response.Calls = tree.Calls(limit)
	return response, nil
}

// ask makes a call in each Python process that runs tasks, and returns the channels of the answers;
// nil for a process that takes no call. It starts no process.
func (p *Pools) ask(c *Call) (answers []<-chan *executorv1.ExecutorReturn) {
	for _, to := range p.ready(python) {
		answer, _ := to.call(c)
		answers = append(answers, answer)
	}
	return answers
}

// profileFrom returns the answer of one process.
func profileFrom(ctx context.Context, answer <-chan *executorv1.ExecutorReturn) (*millracev1.GetProfileResponse, error) {
	if answer == nil {
		return nil, errEnded
	}
	var returned *executorv1.ExecutorReturn
	select {
	case returned = <-answer:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	var header millracev1.Value
	if err := proto.Unmarshal(returned.GetHeader(), &header); err != nil {
		return nil, err
	}
	array := header.GetTensorValue()
	text := array.GetInlineData()
	if frames := returned.GetFrames(); text == nil && int(array.GetFrame()) < len(frames) {
		text = frames[array.GetFrame()]
	}
	if returned.GetError() != nil || array == nil {
		return nil, fmt.Errorf("%s returned no bytes: %v", profileFunction, returned.GetError())
	}
	response := &millracev1.GetProfileResponse{}
	return response, proto.Unmarshal(text, response)
}
