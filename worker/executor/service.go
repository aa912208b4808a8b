package executor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/edge"
	"github.com/millrace/millrace/worker/value"
)

// Service serves ExecutorService. Its Pools must be set.
type Service struct {
	millracev1.UnimplementedExecutorServiceServer
	Pools *Pools
}

// maxReturnedBytes limits the results of one call: they travel in one message.
const maxReturnedBytes = 16 << 20

// python is the kind of the executors for functions of Python.
const python = "python"

// RunFunction is part of ExecutorServiceServer.
func (s *Service) RunFunction(ctx context.Context, r *millracev1.RunFunctionRequest) (*millracev1.RunFunctionResponse, error) {
	kind, c, err := callFrom(r.GetName(), r.GetFunction(), r.GetArguments())
	if err != nil {
		return nil, err
	}
	results, err := s.Pools.Call(ctx, kind, c, r.GetProcesses() == millracev1.ProcessScope_PROCESS_SCOPE_ONE, r.GetNoWait())
	switch {
	case errors.Is(err, ErrNoKind):
		return nil, edge.InvalidField("name", fmt.Sprintf("%q: %v; start the worker with --exec NAME=COMMAND", r.GetName(), err))
	case ctx.Err() != nil:
		return nil, edge.Refusal(codes.DeadlineExceeded, "DEADLINE_EXCEEDED", err.Error(), map[string]string{"object": r.GetName()})
	case err != nil:
		return nil, edge.Refusal(codes.Unavailable, "EXECUTOR_DIED", err.Error(), map[string]string{"object": r.GetName()})
	}
	response, bytes := &millracev1.RunFunctionResponse{}, 0
	for _, x := range results {
		if bytes += x.bytes(); bytes > maxReturnedBytes && x.Error == nil {
			x.Error = &millracev1.TaskError{Reason: "RESULT_TOO_LARGE", Message: fmt.Sprintf(
				"the results of the %d processes of the worker have more than %d bytes together: ask one process (PROCESS_SCOPE_ONE), or submit a task, whose result stays in the worker's memory",
				len(results), maxReturnedBytes)}
		}
		response.Results = append(response.Results, ResultTo(x, s.Pools.config.Worker))
	}
	return response, nil
}

// RestartExecutors is part of ExecutorServiceServer.
func (s *Service) RestartExecutors(ctx context.Context, r *millracev1.RestartExecutorsRequest) (*millracev1.RestartExecutorsResponse, error) {
	ended, err := s.Pools.Restart(ctx, r.GetExecutor())
	switch {
	case errors.Is(err, ErrNoKind):
		return nil, edge.InvalidField("executor", err.Error())
	case err != nil:
		return nil, edge.Refusal(codes.DeadlineExceeded, "DEADLINE_EXCEEDED", err.Error(), map[string]string{"object": r.GetExecutor()})
	}
	return &millracev1.RestartExecutorsResponse{Ended: uint32(ended)}, nil
}

// callFrom returns a call and the kind of its executors. function is nil unless it is pickled.
func callFrom(name string, function *millracev1.Function, arguments *millracev1.Arguments) (kind string, c *Call, err error) {
	packed, err := proto.Marshal(arguments)
	if err != nil {
		return "", nil, edge.InvalidField("arguments", err.Error())
	}
	c = &Call{Op: &millracev1.Op{Name: name, Function: function.GetHash()}, Function: function, Arguments: packed}
	switch program, _, found := strings.Cut(name, "/"); {
	case function != nil:
		kind, c.Op.Kind = python, millracev1.OpKind_OP_KIND_PYTHON_PICKLE
	case strings.Contains(name, ":"):
		kind, c.Op.Kind = python, millracev1.OpKind_OP_KIND_PYTHON_IMPORT
	case found:
		kind, c.Op.Kind = program, millracev1.OpKind_OP_KIND_EXEC
	default:
		return "", nil, edge.InvalidField("name", fmt.Sprintf("%q is neither the import path of a Python function (package.module:function) nor a function of a registered program (name/function)", name))
	}
	return kind, c, nil
}

// ResultTo returns the result of a call for the API.
func ResultTo(r Returned, worker string) *millracev1.FunctionResult {
	out := &millracev1.FunctionResult{Slot: uint32(r.Slot), Pid: int64(r.PID), Error: r.Error}
	if out.Error == nil && len(r.Header) > 0 {
		sizes := make([]uint64, len(r.Frames))
		for i, f := range r.Frames {
			sizes[i] = uint64(len(f))
		}
		out.Value, out.Frames = new(millracev1.Value), r.Frames
		if err := proto.Unmarshal(r.Header, out.Value); err != nil {
			out.Error = invalid("its result is no value: " + err.Error())
		} else if fault := value.Check(r.Header, sizes); fault != nil {
			out.Error = invalid("its result does not fit its frames: " + fault.Error())
		}
	}
	if out.Error != nil {
		out.Value, out.Frames = nil, nil
		out.Error.Worker = worker
	}
	return out
}
