package millrace

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/pause"
)

const (
	// maxBatchTasks and maxBatchBytes limit one coalesced submission. It is large enough that its
	// fixed cost per task is negligible, and small enough that the cluster works on one batch while
	// the next is collected.
	maxBatchTasks = 10_000
	maxBatchBytes = 4 << 20
	// maxQueuedBatches is the number of queued batches at which Submit blocks.
	maxQueuedBatches = 64
	// graphTasks is the number of tasks from single Submit calls that share a graph, before the
	// client begins another graph.
	graphTasks = 100_000
)

// batch is one future submission. Encoded tasks and futures are in the same order.
type batch struct {
	tables  tables
	tasks   []byte
	ends    []int // the end of each task in tasks
	futures []*Future
	// needs holds the unacknowledged futures that are arguments of tasks.
	// If such an input is refused by the scheduler, the task fails for that reason.
	needs []need
	// span is that of the calls, and values a context of one of them that is never cancelled. All
	// calls of a batch are in one span; empty: in none.
	span   string
	values context.Context //nolint:containedctx // of the request that sends the batch
	keyed  bool            // some of the keys were chosen by the program
	// done is closed when the batch was acknowledged or refused; nil if no Flush waits for it.
	done chan struct{}
}

type need struct {
	task  int
	input *Future
}

// submitQueue holds the batches that wait to be sent. Only the last one is open.
type submitQueue struct {
	mu      sync.Mutex
	batches []*batch
	busy    *batch        // the batch that is being sent
	bell    chan struct{} // holds a token while there is something to send
	room    chan struct{} // closed and replaced whenever a batch leaves the queue; Submit waits for it when the queue is full

	// The fields below are used only by submitLoop.
	graph      uint64
	graphUsed  int
	graphLease uint64
	graphSpan  string
}

func (q *submitQueue) init() {
	q.bell = make(chan struct{}, 1)
	q.room = make(chan struct{})
}

// scratch holds the buffers for encoding one call.
type scratch struct {
	packed []byte
	inputs inputList
}

var scratchPool = sync.Pool{New: func() any { return new(scratch) }}

func (s *scratch) reset() {
	s.packed = s.packed[:0]
	s.inputs = inputList{template: s.inputs.template, keys: s.inputs.keys[:0], items: s.inputs.items[:0], futures: s.inputs.futures[:0]}
}

// encode encodes a call: its arguments into the scratch, and its options, which it applies to o.
func (s *scratch) encode(o *taskOptions, args Arguments, options []TaskOption) (rules []byte, err error) {
	for _, option := range options {
		option(o)
	}
	s.reset()
	if rules, err = o.encode(); err != nil {
		return nil, err
	}
	s.packed, err = appendArguments(s.packed, args, &s.inputs)
	return rules, err
}

// Submit queues one call and returns its Future immediately. It blocks only while the queue is
// full. Calls are coalesced: all calls that are queued during one request are sent together with
// the next. An error that only the scheduler can detect is returned by the Future;
// the error returned here concerns the arguments, the options or the client.
func (c *Client) Submit(ctx context.Context, op Op, args Arguments, options ...TaskOption) (*Future, error) {
	var o taskOptions
	for _, option := range options {
		option(&o)
	}
	rules, err := o.encode()
	if err != nil {
		return nil, fmt.Errorf("millrace: submit %s: %w", op, err)
	}
	s := scratchPool.Get().(*scratch)
	defer scratchPool.Put(s)
	s.reset()
	if s.packed, err = appendArguments(s.packed, args, &s.inputs); err != nil {
		return nil, fmt.Errorf("millrace: submit %s: %w", op, err)
	}
	keyed := o.key != ""
	if !keyed {
		o.key = c.newKey(op)
	}
	f := &Future{client: c, key: o.key}
	if err := c.enqueue(ctx, c.traceparent(ctx), f, op, s, rules, keyed); err != nil {
		return nil, err
	}
	return f, nil
}

// Map calls op once for each element of calls. The futures are in the same order.
// It is the fast way to submit many independent tasks: about one microsecond each.
func (c *Client) Map(ctx context.Context, op Op, calls iter.Seq[Arguments], options ...TaskOption) ([]*Future, error) {
	var o taskOptions
	for _, option := range options {
		option(&o)
	}
	rules, err := o.encode()
	if err != nil {
		return nil, fmt.Errorf("millrace: map %s: %w", op, err)
	}
	if o.key != "" {
		return nil, fmt.Errorf("millrace: map %s: one key cannot name many tasks; leave WithKey out", op)
	}
	s := scratchPool.Get().(*scratch)
	defer scratchPool.Put(s)
	span := c.traceparent(ctx)
	var futures []*Future
	var slab []Future
	for args := range calls {
		s.reset()
		if s.packed, err = appendArguments(s.packed, args, &s.inputs); err != nil {
			return futures, fmt.Errorf("millrace: map %s: call %d: %w", op, len(futures), err)
		}
		if len(slab) == 0 {
			slab = make([]Future, min(max(len(futures), 8), 512))
		}
		f := &slab[0]
		slab = slab[1:]
		f.client, f.key = c, c.newKey(op)
		if err := c.enqueue(ctx, span, f, op, s, rules, false); err != nil {
			return futures, err
		}
		futures = append(futures, f)
	}
	return futures, nil
}

// enqueue adds one encoded task to the open batch of a span.
func (c *Client) enqueue(ctx context.Context, span string, f *Future, op Op, s *scratch, rules []byte, keyed bool) error {
	if c.config.leaseless {
		return fmt.Errorf("millrace: submit %s: the client has no lease (WithoutLease), so it cannot hold results", op)
	}
	q := &c.submits
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("millrace: submit %s: %w", op, context.Cause(ctx))
		}
		if c.closed.Load() {
			return ErrClosed
		}
		q.mu.Lock()
		if len(q.batches) < maxQueuedBatches || q.batches[len(q.batches)-1].takes(c, span) {
			break
		}
		room := q.room
		q.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
		case <-c.ctx.Done():
		}
	}
	if len(q.batches) == 0 || !q.batches[len(q.batches)-1].takes(c, span) {
		b := &batch{span: span}
		if span != "" {
			b.values = context.WithoutCancel(ctx)
		}
		q.batches = append(q.batches, b)
	}
	b := q.batches[len(q.batches)-1]
	first := len(b.futures) == 0
	for _, in := range s.inputs.futures {
		if in.State() == Queued && in.client == c {
			b.needs = append(b.needs, need{len(b.futures), in})
		}
	}
	b.tasks = appendSpec(b.tasks, f.key, b.tables.op(op), s.inputs.keys, s.inputs.items, s.packed, b.tables.option(rules), true)
	b.ends = append(b.ends, len(b.tasks))
	b.futures = append(b.futures, f)
	b.keyed = b.keyed || keyed
	q.mu.Unlock()
	if first {
		select {
		case q.bell <- struct{}{}:
		default:
		}
	}
	return nil
}

// takes reports whether the batch has room for another task of a span.
func (b *batch) takes(c *Client, span string) bool {
	return b.span == span && len(b.futures) < c.config.batchTasks && len(b.tasks) < c.config.batchSize
}

// next removes the oldest batch from the queue.
func (q *submitQueue) next() *batch {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.busy = nil
	if len(q.batches) == 0 {
		return nil
	}
	b := q.batches[0]
	q.batches = q.batches[1:]
	q.busy = b
	close(q.room)
	q.room = make(chan struct{})
	return b
}

// Flush waits until the scheduler has acknowledged everything that was queued before the call:
// submissions and releases. From then on the tasks are recorded in the scheduler, and survive a
// break of this client's connection. Flush returns the error of the first task that was refused,
// and ErrUnavailable if releases could not be sent; they stay queued.
func (c *Client) Flush(ctx context.Context) error {
	q := &c.submits
	q.mu.Lock()
	waiting := make([]*batch, 0, len(q.batches)+1)
	if q.busy != nil {
		waiting = append(waiting, q.busy)
	}
	waiting = append(waiting, q.batches...)
	for _, b := range waiting {
		if b.done == nil {
			b.done = make(chan struct{})
		}
	}
	q.mu.Unlock()
	var refused error
	for _, b := range waiting {
		select {
		case <-b.done:
		case <-ctx.Done():
			return fmt.Errorf("millrace: flush: %w", context.Cause(ctx))
		case <-c.ctx.Done():
			return ErrClosed
		}
		for _, f := range b.futures {
			// A batch of before may be here, too. Its futures that were cancelled since have no
			// task, either, and yet were not refused.
			if f.State() == Cancelled {
				continue
			}
			if end := f.end.Load(); refused == nil && end != nil && end.err != nil && f.TaskID() == 0 && !errors.Is(end.err, ErrReleased) {
				refused = end.err
			}
		}
	}
	err := c.lockReleases(ctx)
	if err == nil {
		err = c.sendReleases(ctx)
		c.unlockReleases()
	}
	if refused != nil || err == nil {
		return refused
	}
	return fmt.Errorf("millrace: flush: %w", err)
}

// submitLoop sends batches, one at a time, until the client closes.
func (c *Client) submitLoop() {
	q := &c.submits
	for {
		select {
		case <-c.ctx.Done():
			q.mu.Lock()
			left := q.batches
			q.batches = nil
			q.mu.Unlock()
			for _, b := range left {
				c.futures.failUnbound(b.futures, ErrClosed)
			}
			return
		case <-q.bell:
		}
		for b := q.next(); b != nil; b = q.next() {
			c.sendBatch(b)
			q.mu.Lock()
			if b.done != nil {
				close(b.done)
			} else {
				b.done = closedChan
			}
			q.mu.Unlock()
			if c.ctx.Err() != nil {
				break
			}
		}
	}
}

func (c *Client) sendBatch(b *batch) {
	c.failDependents(b)
	if b.keyed {
		done, err := c.takeHolds(c.ctx)
		if err != nil {
			c.futures.failUnbound(b.futures, ErrClosed)
			return
		}
		defer done()
	}
	c.sendTasks(b, 0, len(b.futures))
}

// failDependents fails the tasks whose inputs are futures that the scheduler refused.
func (c *Client) failDependents(b *batch) {
	for _, n := range b.needs {
		end := n.input.end.Load()
		if end != nil && end.err != nil && n.input.TaskID() == 0 {
			c.futures.failUnbound(b.futures[n.task:n.task+1], fmt.Errorf("millrace: task %q: its input %q was not accepted: %w", b.futures[n.task].key, n.input.key, end.err))
		}
	}
}

// sendTasks submits the tasks from lo to hi that have not failed. If the scheduler refuses them,
// it halves the range until it has found the invalid tasks. So the mistake of one caller does not
// fail the tasks of another.
func (c *Client) sendTasks(b *batch, lo, hi int) {
	tasks, futures := b.pick(lo, hi)
	if len(futures) == 0 {
		return
	}
	c.futures.begin()
	defer c.futures.end()
	out, err := c.submitOnce(b, wireMessage{b.tables.encoded, tasks}, len(futures))
	if err == nil {
		c.releaseIDs(c.futures.bind(futures, out.GetTaskIds(), out.GetRevision(), out.GetFailedTaskIds()))
		return
	}
	if hi-lo == 1 || len(futures) == 1 || !refusal(err) {
		c.futures.failUnbound(futures, err)
		return
	}
	mid := (lo + hi) / 2
	c.sendTasks(b, lo, mid)
	c.failDependents(b)
	c.sendTasks(b, mid, hi)
}

// pick returns the tasks from lo to hi whose futures have not ended.
func (b *batch) pick(lo, hi int) ([]byte, []*Future) {
	start := 0
	if lo > 0 {
		start = b.ends[lo-1]
	}
	ended := 0
	for _, f := range b.futures[lo:hi] {
		if f.end.Load() != nil {
			ended++
		}
	}
	if ended == 0 {
		return b.tasks[start:b.ends[hi-1]], b.futures[lo:hi]
	}
	var tasks []byte
	var futures []*Future
	for i := lo; i < hi; i++ {
		if b.futures[i].end.Load() == nil {
			tasks = append(tasks, b.tasks[start:b.ends[i]]...)
			futures = append(futures, b.futures[i])
		}
		start = b.ends[i]
	}
	return tasks, futures
}

// refusal reports whether the scheduler read the submission and refused it, and false if the
// scheduler was not reached.
func refusal(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.AlreadyExists, codes.FailedPrecondition, codes.NotFound, codes.ResourceExhausted:
		return true
	default:
		return false
	}
}

// submitOnce makes one submission. The scheduler applies it once, however often it must be sent.
func (c *Client) submitOnce(b *batch, body wireMessage, tasks int) (*millracev1.SubmitResponse, error) {
	q := &c.submits
	if q.graphUsed+tasks > graphTasks || q.graphLease != c.lease.Load() || q.graphSpan != b.span {
		q.graph, q.graphUsed, q.graphLease, q.graphSpan = 0, 0, c.lease.Load(), b.span
	}
	ctx := c.ctx
	if b.span != "" {
		ctx = withSpan(valuesOf{ctx, b.values}, b.span)
	}
	out, err := c.submitTo(ctx, q.graph, body)
	if err != nil && q.graph != 0 && errors.Is(err, ErrUnknownGraph) {
		q.graph, q.graphUsed = 0, 0
		out, err = c.submitTo(ctx, 0, body)
	}
	if err != nil {
		return nil, err
	}
	if len(out.GetTaskIds()) != tasks {
		return nil, fmt.Errorf("millrace: SubmitBatch: the scheduler answered %d numbers for %d tasks", len(out.GetTaskIds()), tasks)
	}
	q.graph = out.GetGraphId()
	q.graphUsed += tasks
	return out, nil
}

func (c *Client) submitTo(ctx context.Context, graph uint64, body wireMessage) (*millracev1.SubmitResponse, error) {
	header, err := encodeHeader(&millracev1.SubmitHeader{
		ClientId:  c.lease.Load(),
		GraphId:   graph,
		Name:      c.config.name,
		RequestId: newRequestID(),
	})
	if err != nil {
		return nil, err
	}
	message := append(wireMessage{header}, body...)
	var out millracev1.SubmitResponse
	err = c.retryFor(ctx, "SubmitBatch", c.config.reconnect, func(ctx context.Context) error {
		out.Reset()
		return c.conn.Invoke(ctx, millracev1.SchedulerService_SubmitBatch_FullMethodName, message, &out)
	})
	return &out, err
}

func encodeHeader(h *millracev1.SubmitHeader) ([]byte, error) {
	b := appendTag(make([]byte, 0, 128), fieldSubmitHeader, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(proto.Size(h)))
	return proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, h)
}

// releaseQueue holds the tasks to be released. Releases are coalesced like submissions.
type releaseQueue struct {
	mu   sync.Mutex
	ids  []uint64
	bell chan struct{}
	// away: the scheduler could not be reached for the last releases, which are queued again.
	// Guarded by mu.
	away bool

	// order is a lock (a channel with room for one token). It is held while releases are sent,
	// and during a call that takes holds by keys which the program chose. Such a key may belong to
	// a task that was just released: a release that arrived after the new hold would end this hold,
	// and no further update on the task would arrive.
	order chan struct{}
}

func (q *releaseQueue) init() {
	q.bell = make(chan struct{}, 1)
	q.order = make(chan struct{}, 1)
}

func (c *Client) releaseIDs(ids []uint64) {
	if len(ids) == 0 {
		return
	}
	q := &c.releases
	q.mu.Lock()
	q.ids = append(q.ids, ids...)
	q.mu.Unlock()
	select {
	case q.bell <- struct{}{}:
	default:
	}
}

func (c *Client) releaseFutures(futures []*Future) { c.releaseIDs(c.futures.forget(futures)) }

// Release gives up many results at once.
func (c *Client) Release(futures ...*Future) { c.releaseFutures(futures) }

// releasePause is the wait before releases are sent again after the scheduler could not be reached.
const releasePause = 500 * time.Millisecond

// releaseLoop sends the queued releases until the client closes, which releases everything anyway.
func (c *Client) releaseLoop() {
	q := &c.releases
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-q.bell:
		}
		q.mu.Lock()
		away := q.away
		q.away = false
		q.mu.Unlock()
		if away && pause.For(c.ctx, releasePause) != nil {
			return
		}
		if done, err := c.takeHolds(c.ctx); err == nil {
			done()
		}
	}
}

// takeHolds is called before a call that holds tasks by keys of the program's choice;
// done must be called when their futures are bound. takeHolds first sends all queued releases,
// so that the keys of released tasks are free.
func (c *Client) takeHolds(ctx context.Context) (done func(), err error) {
	if err := c.lockReleases(ctx); err != nil {
		return nil, err
	}
	_ = c.sendReleases(ctx) // they are sent later
	return c.unlockReleases, nil
}

// lockReleases takes the token of releases.order, unlockReleases gives it back.
func (c *Client) lockReleases(ctx context.Context) error {
	select {
	case c.releases.order <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("millrace: wait for another submission: %w", context.Cause(ctx))
	case <-c.ctx.Done():
		return ErrClosed
	}
}

func (c *Client) unlockReleases() { <-c.releases.order }

// sendReleases sends the queued releases. After an error, some are queued again.
// REQUIRES: the caller has the token of releases.order.
func (c *Client) sendReleases(ctx context.Context) error {
	q := &c.releases
	const maxReleases = 20_000 // the scheduler handles one request in one step, during which it does nothing else
	for {
		q.mu.Lock()
		ids := q.ids[:min(len(q.ids), maxReleases)]
		q.ids = q.ids[len(ids):]
		q.mu.Unlock()
		if len(ids) == 0 {
			return nil
		}
		if ids = c.futures.unheld(ids); len(ids) == 0 {
			continue
		}
		in := &millracev1.ReleaseTasksRequest{ClientId: c.lease.Load(), Tasks: &millracev1.TaskSet{Ids: ids}}
		err := c.retry(ctx, "ReleaseTasks", func(ctx context.Context) error {
			_, err := c.service.ReleaseTasks(ctx, in)
			return err
		})
		switch {
		case err == nil:
		case ctx.Err() != nil:
			c.releaseIDs(ids)
			return err
		case errors.Is(err, ErrUnavailable):
			// The lease may last longer than the retry timeout.
			q.mu.Lock()
			q.away = true
			q.mu.Unlock()
			c.releaseIDs(ids)
			return err
		default:
			return nil // the scheduler does not know the lease any more, and has released its tasks
		}
	}
}
