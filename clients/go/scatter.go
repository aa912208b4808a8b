package millrace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/rawframe"
)

// scatterPause is the wait before the first check of a worker that should report an object;
// the wait doubles up to one second.
const scatterPause = 100 * time.Millisecond

// Scatter stores a value on a worker, without running a task, and returns a Future that can be used
// as an argument of tasks. An Array and a Table are sent to the worker without an extra copy;
// a slice of one number type is sent as an Array with one axis. The bytes must not change until
// Scatter returns. Scatter returns when the scheduler knows where the value is;
// if the worker dies before that, the value is sent to another worker. WithKey sets the key of the
// value, WithWorkers restricts the workers that may store it.
func (c *Client) Scatter(ctx context.Context, value any, options ...TaskOption) (*Future, error) {
	var o taskOptions
	for _, option := range options {
		option(&o)
	}
	head := &millracev1.ObjectHead{}
	var frames [][]byte
	a, ok, err := arrayOf(value)
	if err != nil {
		return nil, fmt.Errorf("millrace: scatter: %w", err)
	}
	if ok {
		if _, err := a.Len(); err != nil {
			return nil, err
		}
		b, start := openMessage(nil, fieldValueTensor)
		b = appendTensorType(b, a)
		b = appendVarintField(b, fieldTensorFrame, 0)
		head.Header = closeMessage(b, start)
		head.FrameBytes = []uint64{uint64(len(a.Data))}
		frames = [][]byte{a.Data}
	} else if t, is := value.(Table); is {
		if head.Header, err = appendTableValue(nil, t.Message); err != nil {
			return nil, fmt.Errorf("millrace: scatter: %w", err)
		}
		for _, f := range t.Frames {
			head.FrameBytes = append(head.FrameBytes, uint64(len(f)))
		}
		frames = t.Frames
	} else if head.Header, err = appendValue(nil, value, nil); err != nil {
		return nil, fmt.Errorf("millrace: scatter: %w", err)
	}
	if len(head.Header) > maxHeaderBytes {
		return nil, fmt.Errorf("millrace: scatter: a %T takes %.1f MB, values that are no Array may take %.1f MB: "+
			"scatter numbers as a slice of one number type or an Array, or scatter parts", value, float64(len(head.Header))/1e6, float64(maxHeaderBytes)/1e6)
	}
	f, err := c.Submit(ctx, dataOp, Arguments{}, options...)
	if err != nil {
		return nil, err
	}
	if err := c.Flush(ctx); err != nil && ctx.Err() != nil {
		return nil, err
	}
	if end := f.end.Load(); end != nil && errors.Is(end.err, ErrObjectLost) {
		// An older future of the same key knows that the value was lost.
		// Because of the new submission, the scheduler waits for the bytes again.
		c.futures.revive([]*Future{f}, []*outcome{end})
	}
	if end := f.end.Load(); end != nil && end.err != nil {
		return nil, end.err
	}
	if f.State() == Succeeded {
		return f, nil // the key was known, and its bytes are there
	}
	head.Object = &millracev1.ObjectRef{TaskId: f.TaskID()}
	if err := c.place(ctx, f, o.workers, head, frames); err != nil {
		f.Release()
		return nil, err
	}
	return f, nil
}

// arrayOf returns the Array that a value is, or as which a slice of numbers can be seen;
// ok is false for all other values.
func arrayOf(value any) (a Array, ok bool, err error) {
	switch v := value.(type) {
	case Array:
		return v, true, nil
	case []bool:
		a, err = FromSlice(v)
	case []int:
		wide := make([]int64, len(v))
		for i, n := range v {
			wide[i] = int64(n)
		}
		a, err = FromSlice(wide)
	case []int32:
		a, err = FromSlice(v)
	case []int64:
		a, err = FromSlice(v)
	case []float32:
		a, err = FromSlice(v)
	case []float64:
		a, err = FromSlice(v)
	case []complex64:
		a, err = FromSlice(v)
	case []complex128:
		a, err = FromSlice(v)
	default:
		return Array{}, false, nil
	}
	return a, err == nil, err
}

// place writes an object to one worker after another, until the scheduler reports its task as
// succeeded. The loop is needed because a worker may die after it received the bytes and before it
// reported them; then only this client can send them again. A worker that has the object already
// may be about to drop it, because it was released a moment ago; so it is asked again.
func (c *Client) place(ctx context.Context, f *Future, names []string, head *millracev1.ObjectHead, frames [][]byte) error {
	avoid := make(map[uint32]bool)
	deadline := time.Now().Add(fetchTimeout)
	var had *millracev1.Worker // the worker that had the object already; nil: none
	for pause := scatterPause; ; pause = min(2*pause, time.Second) {
		w, err := had, error(nil)
		if had = nil; w == nil {
			w, err = c.data.pick(ctx, names, avoid)
		}
		if err == nil {
			var here bool
			here, err = c.placeAt(ctx, f, w, head, frames)
			switch {
			case here:
				had = w
			case err == nil:
				return f.Wait(ctx)
			default:
				avoid[w.GetWorkerId()] = true
			}
		}
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("millrace: scatter %q: %w", f.key, context.Cause(ctx))
		case c.closed.Load():
			return ErrClosed
		case had != nil: // The news of its end may be on the way.
		case errors.Is(err, ErrNoWorkerFits) && len(avoid) > 0:
			clear(avoid) // a worker that joined late, or came back, may accept it
		case !errors.Is(err, ErrUnavailable):
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("millrace: scatter %q: no worker kept its bytes for long enough: %w", f.key, err)
		}
		timer := time.NewTimer(pause)
		select {
		case <-f.Done():
			timer.Stop()
			return f.Wait(ctx)
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("millrace: scatter %q: %w", f.key, context.Cause(ctx))
		case <-timer.C:
		}
	}
}

// placeAt writes an object to a worker, and waits until its task has ended. here means that the
// worker did not take the object, because it has it already; then there is an error, too.
func (c *Client) placeAt(ctx context.Context, f *Future, w *millracev1.Worker, head *millracev1.ObjectHead, frames [][]byte) (here bool, err error) {
	here, err = c.write(ctx, w.GetDataAddress(), head, frames)
	switch {
	case here:
		return true, &Error{Op: "Scatter", Code: codes.Unavailable, Message: fmt.Sprintf(
			"worker w%d has it already, and neither the scheduler reported its end nor did the worker drop it", w.GetWorkerId())}
	case err != nil:
		return errors.Is(err, reasonError("NOT_A_DATA_TASK")), err
	}
	return false, c.awaitReport(ctx, f, w.GetWorkerId())
}

// awaitReport waits until the task of a written object has ended, and returns nil whatever its
// outcome. The error matches ErrUnavailable if the worker with the object is gone and will not
// report it.
func (c *Client) awaitReport(ctx context.Context, f *Future, worker uint32) error {
	done := f.Done()
	for pause := scatterPause; ; pause = min(2*pause, time.Second) {
		timer := time.NewTimer(pause)
		select {
		case <-done:
			timer.Stop()
			return nil
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
		workers, err := c.Workers(ctx)
		if errors.Is(err, ErrUnavailable) {
			continue // the scheduler is away, so no update can come
		}
		if err != nil {
			return err
		}
		alive := false
		for _, w := range workers {
			state := w.GetState()
			alive = alive || w.GetWorkerId() == worker &&
				(state == millracev1.WorkerState_WORKER_STATE_ACTIVE || state == millracev1.WorkerState_WORKER_STATE_DRAINING)
		}
		if !alive {
			return &Error{Op: "Scatter", Code: codes.Unavailable, Message: fmt.Sprintf("worker w%d was lost before it could report task %q", worker, f.key)}
		}
	}
}

// write streams one object to a worker. here means that the worker had the object already.
func (c *Client) write(ctx context.Context, address string, head *millracev1.ObjectHead, frames [][]byte) (here bool, err error) {
	var size uint64
	for _, n := range head.GetFrameBytes() {
		size += n
	}
	if size >= shareFrom {
		if s := c.data.shares.get(ctx, address, true); s != nil {
			if done, here, err := s.write(ctx, head, frames); done || err != nil {
				return here, err
			}
		}
	}
	conn, err := c.data.conn(address)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, millracev1.DataService_WriteObject_FullMethodName)
	if err != nil {
		return false, callError(ctx, "WriteObject", err)
	}
	var outgoing rawframe.Outgoing
	err = c.sendObject(stream, &outgoing, head, frames)
	if err == nil {
		err = stream.CloseSend()
	}
	var out millracev1.WriteObjectResponse
	if err == nil || errors.Is(err, io.EOF) {
		err = stream.RecvMsg(&out)
	}
	if status.Code(err) == codes.AlreadyExists {
		return true, nil
	}
	if err != nil {
		return false, callError(ctx, "WriteObject", err)
	}
	select {
	case <-outgoing.Drained():
	case <-stream.Context().Done():
	}
	return false, nil
}

func (c *Client) sendObject(stream grpc.ClientStream, outgoing *rawframe.Outgoing, head *millracev1.ObjectHead, frames [][]byte) error {
	if err := stream.SendMsg(&rawframe.WriteRequest{Message: rawframe.Message{Head: head}}); err != nil {
		return err
	}
	for i, frame := range frames {
		for at := 0; at < len(frame); at += rawframe.ChunkBytes {
			m := rawframe.WriteRequest{Message: rawframe.Message{Frame: uint32(i), Offset: uint64(at)}}
			m.Data = outgoing.Payload(frame[at:min(at+rawframe.ChunkBytes, len(frame))])
			if err := stream.SendMsg(&m); err != nil {
				m.Data.Free()
				return err
			}
		}
	}
	return nil
}
