package millrace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/pause"
)

// Field numbers of WatchResponse and TaskUpdate.
const (
	fieldWatchRevision   = 1
	fieldWatchSnapshot   = 3
	fieldWatchTasks      = 4
	fieldWatchMore       = 13
	fieldUpdateTask      = 1
	fieldUpdateState     = 2
	fieldUpdateBytes     = 3
	fieldUpdateInline    = 4
	fieldUpdateError     = 5
	fieldUpdateWorker    = 6
	fieldUpdateAttempt   = 7
	maxWatchBackoff      = time.Second
	firstWatchBackoff    = 5 * time.Millisecond
	maxSharedInlineBytes = 2
)

// taskBatch is a decoded WatchResponse of a stream that watches only tasks.
// The slice updates is reused for the next response.
type taskBatch struct {
	revision uint64
	snapshot bool
	more     bool // the snapshot continues in the next response
	updates  []taskUpdate
	outcomes []outcome // the memory of this batch's outcomes; not reused
}

var errWire = errors.New("malformed WatchResponse")

// decodeWire implements wireDecoder.
func (b *taskBatch) decodeWire(data []byte) error {
	b.revision, b.snapshot, b.more, b.updates, b.outcomes = 0, false, false, b.updates[:0], nil
	for len(data) > 0 {
		field, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return errWire
		}
		data = data[n:]
		switch {
		case field == fieldWatchTasks && kind == protowire.BytesType:
			v, n := protowire.ConsumeBytes(data)
			if n < 0 {
				return errWire
			}
			data = data[n:]
			b.updates = append(b.updates, taskUpdate{})
			if err := b.decodeUpdate(v, &b.updates[len(b.updates)-1]); err != nil {
				return err
			}
			continue
		case field == fieldWatchRevision && kind == protowire.VarintType:
			v, n := protowire.ConsumeVarint(data)
			if n < 0 {
				return errWire
			}
			b.revision = v
		case field == fieldWatchSnapshot && kind == protowire.VarintType:
			v, n := protowire.ConsumeVarint(data)
			if n < 0 {
				return errWire
			}
			b.snapshot = v != 0
		case field == fieldWatchMore && kind == protowire.VarintType:
			v, n := protowire.ConsumeVarint(data)
			if n < 0 {
				return errWire
			}
			b.more = v != 0
		}
		if n = protowire.ConsumeFieldValue(field, kind, data); n < 0 {
			return errWire
		}
		data = data[n:]
	}
	return nil
}

func (b *taskBatch) decodeUpdate(data []byte, u *taskUpdate) error {
	var bytes, worker, attempt uint64
	var inline []byte
	for len(data) > 0 {
		field, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return errWire
		}
		data = data[n:]
		switch kind {
		case protowire.VarintType:
			v, n := protowire.ConsumeVarint(data)
			if n < 0 {
				return errWire
			}
			data = data[n:]
			switch field {
			case fieldUpdateTask:
				u.id = v
			case fieldUpdateState:
				u.state = State(v)
			case fieldUpdateBytes:
				bytes = v
			case fieldUpdateWorker:
				worker = v
			case fieldUpdateAttempt:
				attempt = v
			}
		case protowire.BytesType:
			v, n := protowire.ConsumeBytes(data)
			if n < 0 {
				return errWire
			}
			data = data[n:]
			switch field {
			case fieldUpdateInline:
				inline = v
			case fieldUpdateError:
				u.failure = new(millracev1.TaskError)
				if err := proto.Unmarshal(v, u.failure); err != nil {
					return fmt.Errorf("%w: %w", errWire, err)
				}
			}
		default:
			if n = protowire.ConsumeFieldValue(field, kind, data); n < 0 {
				return errWire
			}
			data = data[n:]
		}
	}
	if u.state == Succeeded {
		u.end = b.outcome(inline, bytes, uint32(worker), uint32(attempt))
	}
	return nil
}

// outcome stores the outcome of a succeeded task. inline is copied because it is in the transport's
// buffer.
func (b *taskBatch) outcome(inline []byte, bytes uint64, worker, attempt uint32) *outcome {
	// A result that is neither inline nor on a worker is null, whose encoding may be empty.
	null := len(inline) == 0 && worker == 0 && bytes == 0
	if null || len(inline) == maxSharedInlineBytes && inline[0] == nullOutcome.inline[0] && inline[1] == 0 {
		return nullOutcome
	}
	if len(b.outcomes) == cap(b.outcomes) {
		b.outcomes = make([]outcome, 0, 64)
	}
	b.outcomes = append(b.outcomes, outcome{isInline: len(inline) > 0, bytes: bytes, worker: worker, attempt: attempt})
	end := &b.outcomes[len(b.outcomes)-1]
	if end.isInline {
		end.inline = append([]byte(nil), inline...)
	}
	return end
}

// watchLoop keeps a Watch stream open and applies its updates to the futures, until the client
// closes. The open stream also keeps the lease alive.
func (c *Client) watchLoop() {
	var after uint64
	wait := firstWatchBackoff
	for c.ctx.Err() == nil {
		began := time.Now()
		err := c.watchTasks(&after)
		if time.Since(began) > maxWatchBackoff {
			wait = firstWatchBackoff
		}
		switch {
		case c.ctx.Err() != nil:
			return
		case errors.Is(err, ErrRevisionTooOld):
			after = 0
			continue
		case errors.Is(err, ErrUnknownClient):
			c.futures.failAll(fmt.Errorf("%w: %w", ErrLeaseLost, err))
			after = 0
			if err := c.openLease(c.ctx); err == nil {
				wait = firstWatchBackoff
				continue
			}
		}
		if pause.For(c.ctx, wait) != nil {
			return
		}
		wait = min(2*wait, maxWatchBackoff)
	}
}

func (c *Client) watchTasks(after *uint64) error {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	stream, err := c.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, millracev1.SchedulerService_Watch_FullMethodName)
	if err != nil {
		return callError(c.ctx, "Watch", err)
	}
	if err := stream.SendMsg(&millracev1.WatchRequest{ClientId: c.lease.Load(), AfterRevision: *after, Life: c.cluster.Load().GetLife()}); err != nil && !errors.Is(err, io.EOF) {
		return callError(c.ctx, "Watch", err)
	}
	if err := stream.CloseSend(); err != nil {
		return callError(c.ctx, "Watch", err)
	}
	var b taskBatch
	var parts []taskUpdate // the parts of a snapshot that is not complete
	for {
		if err := stream.RecvMsg(&b); err != nil {
			return callError(c.ctx, "Watch", err)
		}
		switch {
		case b.snapshot && b.more:
			parts = append(parts, b.updates...)
			continue // only the last part has the revision, and only after it missing tasks count as gone
		case b.snapshot:
			c.futures.snapshot(append(parts, b.updates...), b.revision)
			parts = nil
		default:
			c.futures.update(b.updates)
		}
		if b.revision != 0 {
			*after = b.revision
		}
	}
}

// WatchOptions select the changes that Watch yields.
type WatchOptions struct {
	// Graphs, Workers and Datasets enable the changes of each kind.
	Graphs, Workers, Datasets bool
	// GraphIDs restricts the graphs to these.
	GraphIDs []uint64
	// UntilEnded ends the stream when every graph in GraphIDs has ended.
	UntilEnded bool
	// WorkerView selects the fields of workers; default: the basic view.
	WorkerView millracev1.WorkerView
}

// Watch yields batches of changes of graphs, workers and datasets, beginning with a snapshot.
// It reconnects and resumes after an interruption. After a long one, and if the scheduler was
// started anew, it yields another snapshot, with the life of the scheduler.
// Watch ends with the error of ctx, or with an error for which a retry is useless.
func (c *Client) Watch(ctx context.Context, options WatchOptions) iter.Seq2[*millracev1.WatchResponse, error] {
	return func(yield func(*millracev1.WatchResponse, error) bool) {
		var after, life uint64 // the last revision, and the scheduler's life to which it belongs
		var deadline time.Time // of an interruption; zero while there is none
		wait := firstWatchBackoff
		for {
			err := c.watchCatalog(ctx, options, after, life, func(r *millracev1.WatchResponse) bool {
				after, life = r.GetCatalogRevision(), cmp.Or(r.GetLife(), life)
				deadline, wait = time.Time{}, firstWatchBackoff
				return yield(r, nil)
			})
			if deadline.IsZero() {
				deadline = time.Now().Add(c.config.retry)
			}
			switch {
			case err == nil:
				return
			case errors.Is(err, ErrRevisionTooOld), life != 0 && errors.Is(err, ErrUnknownClient): // another life
				after, life = 0, 0
			case errors.Is(err, ErrSchedulerStarting):
				deadline = time.Time{}
			case ctx.Err() != nil || !errors.Is(err, ErrUnavailable) || time.Now().After(deadline):
				yield(nil, err)
				return
			}
			if pause.For(ctx, wait) != nil {
				yield(nil, fmt.Errorf("millrace: Watch: %w", context.Cause(ctx)))
				return
			}
			wait = min(2*wait, maxWatchBackoff)
		}
	}
}

// watchCatalog returns nil if the stream ended as requested, or if visit returned false.
func (c *Client) watchCatalog(ctx context.Context, o WatchOptions, after, life uint64, visit func(*millracev1.WatchResponse) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.service.Watch(ctx, &millracev1.WatchRequest{
		AfterRevision: after,
		Life:          life,
		Graphs:        o.Graphs,
		GraphIds:      o.GraphIDs,
		Workers:       o.Workers,
		Datasets:      o.Datasets,
		UntilEnded:    o.UntilEnded,
		WorkerView:    o.WorkerView,
	})
	if err != nil {
		return callError(ctx, "Watch", err)
	}
	var whole *millracev1.WatchResponse // collects a snapshot of several messages
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return callError(ctx, "Watch", err)
		}
		if more := r.GetMore(); more || whole != nil {
			if whole == nil {
				whole = new(millracev1.WatchResponse)
			}
			proto.Merge(whole, r)
			if more {
				continue
			}
			r, whole = whole, nil
			r.More = false
		}
		if !visit(r) {
			return nil
		}
	}
}
