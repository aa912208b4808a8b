package millrace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"google.golang.org/grpc"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

const (
	// chunkTasks and chunkBytes limit one message of a large submission.
	chunkTasks = 10_000
	chunkBytes = 4 << 20
)

// GraphBuilder builds a graph. Each task is encoded once, when it is added, directly into the
// messages that Submit sends. A million tasks take a few hundred bytes of memory each and about one
// second. A GraphBuilder is not safe for concurrent use.
type GraphBuilder struct {
	client *Client
	name   string
	tables tables
	sent   int // the length of tables.encoded that belongs to earlier chunks
	chunks []chunk
	tasks  []byte // of the open chunk
	count  int    // in the open chunk
	total  int
	held   []heldTask
	packed [][]byte // arguments that are the first n inputs, by n
	wide   []byte   // the same for one large n
	s      scratch
	err    error
}

type chunk struct{ tables, tasks []byte }

type heldTask struct {
	at  int
	key string
}

// NewGraph begins a graph. The name is meant for people.
func (c *Client) NewGraph(name string) *GraphBuilder {
	return &GraphBuilder{client: c, name: name}
}

// Len returns the number of tasks added so far.
func (g *GraphBuilder) Len() int { return g.total }

// Add adds a task and returns its key, to be used as an argument of other tasks, added earlier or
// later. If key is empty and WithKey is not used, the client generates a key.
// The first invalid argument is recorded, and Submit returns it as an error.
func (g *GraphBuilder) Add(key string, op Op, args Arguments, options ...TaskOption) Key {
	var o taskOptions
	rules, err := g.s.encode(&o, args, options)
	if o.key = cmp.Or(o.key, key); o.key == "" {
		o.key = g.client.newKey(op)
	}
	if err != nil {
		g.fail(o.key, err)
		return Key(o.key)
	}
	g.add(o.key, op, g.s.inputs.keys, g.s.inputs.items, g.s.packed, g.tables.option(rules), o.hold)
	return Key(o.key)
}

// AddCall adds a task that calls op with the results of inputs as its positional arguments,
// under default rules. It is the cheapest way to add a task. hold keeps the result.
func (g *GraphBuilder) AddCall(key string, op Op, inputs []string, hold bool) {
	g.add(key, op, inputs, nil, g.positional(len(inputs)), 0, hold)
}

// maxPacked is the largest number of inputs whose packed arguments are cached: all numbers up to n
// take n² bytes.
const maxPacked = 64

// positional returns the encoded arguments that are n inputs in order.
func (g *GraphBuilder) positional(n int) []byte {
	for len(g.packed) <= min(n, maxPacked) {
		last := len(g.packed) - 1
		var b []byte
		if last >= 0 {
			b = appendInput(append(b, g.packed[last]...), last)
		}
		g.packed = append(g.packed, b)
	}
	if n <= maxPacked {
		return g.packed[n]
	}
	g.wide = g.wide[:0]
	for i := range n {
		g.wide = appendInput(g.wide, i)
	}
	return g.wide
}

// appendInput appends the positional argument that refers to input i.
func appendInput(b []byte, i int) []byte {
	b, start := openMessage(b, fieldArgPositional)
	return closeMessage(appendVarintField(b, fieldValueInput, uint64(i)), start)
}

func (g *GraphBuilder) fail(key string, err error) {
	if g.err == nil {
		g.err = fmt.Errorf("millrace: graph %q: task %q: %w", g.name, key, err)
	}
}

func (g *GraphBuilder) add(key string, op Op, inputs []string, items []inputItem, packed []byte, options uint32, hold bool) {
	if g.count == chunkTasks || len(g.tasks) >= chunkBytes {
		g.closeChunk()
	}
	g.tasks = appendSpec(g.tasks, key, g.tables.op(op), inputs, items, packed, options, hold)
	if hold {
		g.held = append(g.held, heldTask{g.total, key})
	}
	g.count++
	g.total++
}

func (g *GraphBuilder) closeChunk() {
	g.chunks = append(g.chunks, chunk{tables: g.tables.encoded[g.sent:len(g.tables.encoded):len(g.tables.encoded)], tasks: g.tasks})
	g.sent = len(g.tables.encoded)
	g.tasks, g.count = make([]byte, 0, len(g.tasks)), 0
}

// GraphRun is a submitted graph.
type GraphRun struct {
	// ID is the graph's number.
	ID uint64
	// Tasks is the number of its tasks.
	Tasks int
	// Joined is the number of these tasks that the scheduler knew already under the same key.
	Joined uint64

	futures []*Future
	byKey   func() map[string]*Future
}

// Futures returns the futures of the held tasks, in the order in which the tasks were added.
func (r *GraphRun) Futures() []*Future { return r.futures }

// Future returns the future of a held task; nil if no task with that key is held.
func (r *GraphRun) Future(key Key) *Future { return r.byKey()[string(key)] }

// Wait waits until all held tasks have ended, and returns the first error.
func (r *GraphRun) Wait(ctx context.Context) error { return WaitAll(ctx, r.futures...) }

// Release gives up all results of the graph.
func (r *GraphRun) Release() {
	if len(r.futures) > 0 {
		r.futures[0].client.Release(r.futures...)
	}
}

// Submit sends the graph as one submission: either all of it is accepted, or nothing runs.
// It returns when the scheduler has accepted the graph. Only held tasks have Futures.
// At least one task must be held, because nothing else keeps results alive.
func (g *GraphBuilder) Submit(ctx context.Context) (*GraphRun, error) {
	c := g.client
	switch {
	case g.err != nil:
		return nil, g.err
	case g.total == 0:
		return nil, fmt.Errorf("millrace: graph %q has no tasks", g.name)
	case len(g.held) == 0:
		return nil, fmt.Errorf("millrace: graph %q keeps no result: add the tasks whose results you want with millrace.Hold()", g.name)
	case c.config.leaseless:
		return nil, fmt.Errorf("millrace: graph %q: the client has no lease (WithoutLease), so it cannot hold results", g.name)
	case c.closed.Load():
		return nil, ErrClosed
	}
	if g.count > 0 {
		g.closeChunk()
	}
	// The graph may refer to queued tasks, so they are sent first. Errors of these tasks belong to
	// their own futures.
	if err := c.Flush(ctx); err != nil && (ctx.Err() != nil || errors.Is(err, ErrClosed)) {
		return nil, err
	}
	ctx = withSpan(ctx, c.traceparent(ctx))
	header, err := encodeHeader(&millracev1.SubmitHeader{ClientId: c.lease.Load(), Name: g.name, RequestId: newRequestID()})
	if err != nil {
		return nil, err
	}
	// NB: the futures must exist before the call, so that updates that arrive before its answer are
	// not lost.
	slab := make([]Future, len(g.held))
	futures := make([]*Future, len(g.held))
	for i, h := range g.held {
		slab[i].client, slab[i].key = c, h.key
		futures[i] = &slab[i]
	}
	done, err := c.takeHolds(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	c.futures.begin()
	defer c.futures.end()
	var out millracev1.SubmitResponse
	op := "Submit"
	err = c.retryFor(ctx, op, c.config.reconnect, func(ctx context.Context) error {
		out.Reset()
		if len(g.chunks) == 1 {
			return c.conn.Invoke(ctx, millracev1.SchedulerService_SubmitBatch_FullMethodName, wireMessage{header, g.chunks[0].tables, g.chunks[0].tasks}, &out)
		}
		return c.streamChunks(ctx, header, g.chunks, &out)
	})
	if err != nil {
		return nil, err
	}
	ids := out.GetTaskIds()
	if len(ids) != g.total {
		return nil, fmt.Errorf("millrace: Submit: the scheduler answered %d numbers for the %d tasks of graph %q", len(ids), g.total, g.name)
	}
	held := make([]uint64, len(g.held))
	for i, h := range g.held {
		held[i] = ids[h.at]
	}
	c.futures.bind(futures, held, out.GetRevision(), out.GetFailedTaskIds())
	return &GraphRun{
		ID:      out.GetGraphId(),
		Tasks:   g.total,
		Joined:  out.GetJoinedTasks(),
		futures: futures,
		byKey: sync.OnceValue(func() map[string]*Future {
			m := make(map[string]*Future, len(futures))
			for _, f := range futures {
				m[f.key] = f
			}
			return m
		}),
	}, nil
}

// streamChunks sends the chunks of one submission.
func (c *Client) streamChunks(ctx context.Context, header []byte, chunks []chunk, out *millracev1.SubmitResponse) error {
	messages := make([]wireMessage, len(chunks))
	for i, ch := range chunks {
		messages[i] = wireMessage{ch.tables, ch.tasks}
		if i == 0 {
			messages[i] = wireMessage{header, ch.tables, ch.tasks}
		}
	}
	return c.sendChunks(ctx, messages, out)
}

// sendChunks sends the messages of one submission.
func (c *Client) sendChunks(ctx context.Context, messages []wireMessage, out *millracev1.SubmitResponse) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, millracev1.SchedulerService_Submit_FullMethodName)
	if err != nil {
		return err
	}
	for _, message := range messages {
		if err := stream.SendMsg(message); errors.Is(err, io.EOF) {
			break // the answer contains the reason
		} else if err != nil {
			return err
		}
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	return stream.RecvMsg(out)
}
