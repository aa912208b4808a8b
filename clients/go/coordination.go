package millrace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// pollWait is the longest wait of one call about shared state. A longer wait takes several, and
// keeps its place in line between them.
const pollWait = 20 * time.Second

// shared returns the service of locks, queues and the like.
func (c *Client) shared() millracev1.CoordinationServiceClient {
	return millracev1.NewCoordinationServiceClient(c.conn)
}

// poll repeats a call that waits until it is met. The call has an id: if the connection breaks it
// is repeated for the reconnect timeout, and if ctx ends it is withdrawn.
func (c *Client) poll(ctx context.Context, op, id string, call func(ctx context.Context, wait *durationpb.Duration) (bool, error)) error {
	if c.config.leaseless {
		return fmt.Errorf("millrace: %s: the client has no lease (WithoutLease), so it cannot wait in line", op)
	}
	for {
		met := false
		err := c.retryFor(ctx, op, c.config.reconnect, func(ctx context.Context) (err error) {
			met, err = call(ctx, durationpb.New(pollWait))
			return err
		})
		if err != nil && ctx.Err() != nil {
			c.withdraw(ctx, id)
		}
		if err != nil || met {
			return err
		}
	}
}

// withdraw gives up a call whose context has ended. Without an answer, the place is lost after some
// seconds, or with the lease.
func (c *Client) withdraw(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_, _ = c.shared().Withdraw(ctx, &millracev1.WithdrawRequest{ClientId: c.lease.Load(), RequestId: id})
}

// Lock is a lock, a semaphore or several locks that all clients and tasks of the namespace share by
// name. It belongs to the client's lease: the scheduler releases it when the client is closed or
// silent for too long. Calls that wait are served in the order in which they came. Its methods may
// be called from any goroutine.
type Lock struct {
	client *Client
	names  []string
	limit  uint32

	mu     sync.Mutex
	grants []grant // oldest first
}

// grant is what one Acquire got.
type grant struct {
	lease uint64
	id    string
	fence uint64
}

// Lock returns the lock of a name. It does not acquire it.
func (c *Client) Lock(name string) *Lock { return &Lock{client: c, names: []string{name}, limit: 1} }

// Semaphore returns the semaphore of a name, which limit holders may have at the same time. All who
// use the name must say the same limit.
func (c *Client) Semaphore(name string, limit uint32) *Lock {
	return &Lock{client: c, names: []string{name}, limit: limit}
}

// MultiLock returns several locks that are acquired at the same moment. A name is the same lock as
// that of Lock. No order of the names leads to a deadlock.
func (c *Client) MultiLock(names ...string) *Lock {
	return &Lock{client: c, names: slices.Clone(names), limit: 1}
}

// Acquire waits for the lock until ctx ends.
func (l *Lock) Acquire(ctx context.Context) error {
	id := newRequestID()
	var lease, fence uint64
	err := l.client.poll(ctx, "Acquire", id, func(ctx context.Context, wait *durationpb.Duration) (bool, error) {
		lease = l.client.lease.Load()
		out, err := l.client.shared().Acquire(ctx, &millracev1.AcquireRequest{
			ClientId: lease, RequestId: id, Names: l.names, Limit: l.limit, Wait: wait, KeepPlace: true,
		})
		fence = out.GetFencingNumber()
		return out.GetAcquired(), err
	})
	if err == nil {
		l.add(grant{lease, id, fence})
	}
	return err
}

// Fence returns the fencing number of what the oldest Acquire of this Lock got; 0: there is none.
// It is above those of all that had the lock before, so a store that is written under the lock can
// refuse a holder that has lost it and does not know.
func (l *Lock) Fence() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.grants) == 0 {
		return 0
	}
	return l.grants[0].fence
}

// TryAcquire acquires the lock if that needs no wait, and returns whether it did.
func (l *Lock) TryAcquire(ctx context.Context) (bool, error) {
	g := grant{lease: l.client.lease.Load(), id: newRequestID()}
	var out *millracev1.AcquireResponse
	err := l.client.retry(ctx, "Acquire", func(ctx context.Context) (err error) {
		out, err = l.client.shared().Acquire(ctx, &millracev1.AcquireRequest{ClientId: g.lease, RequestId: g.id, Names: l.names, Limit: l.limit})
		return err
	})
	if err != nil {
		if ctx.Err() != nil {
			l.client.withdraw(ctx, g.id)
		}
		return false, err
	}
	if out.GetAcquired() {
		g.fence = out.GetFencingNumber()
		l.add(g)
	}
	return out.GetAcquired(), nil
}

func (l *Lock) add(g grant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.grants = append(l.grants, g)
}

// Release gives back what the oldest Acquire of this Lock got. The error is ErrNotHeld if there is
// none, or if it was lost: the lease had ended, the scheduler was started anew without a journal,
// or somebody closed the lock. Then others may have had it.
func (l *Lock) Release(ctx context.Context) error {
	l.mu.Lock()
	if len(l.grants) == 0 {
		l.mu.Unlock()
		return l.notHeld("this Lock does not hold it: Acquire it first")
	}
	g := l.grants[0]
	l.grants = l.grants[1:]
	l.mu.Unlock()
	// The scheduler remembers a release for a while, so the call can be repeated.
	in := &millracev1.ReleaseRequest{ClientId: g.lease, RequestId: g.id, Names: l.names}
	err := l.client.retry(ctx, "Release", func(ctx context.Context) error {
		_, err := l.client.shared().Release(ctx, in)
		return err
	})
	if errors.Is(err, ErrUnknownClient) {
		return l.notHeld("it was lost with the client's lease, and others may have it: Acquire it again, and repeat the work")
	}
	return err
}

// reasonNotHeld is the reason of ErrNotHeld.
const reasonNotHeld = "NOT_HELD"

func (l *Lock) notHeld(why string) error {
	return &Error{Op: "Release", Code: codes.FailedPrecondition, Reason: reasonNotHeld, Message: fmt.Sprintf("lock %q: %s", l.names, why)}
}

// stored encodes a value with futures in it.
func (c *Client) stored(ctx context.Context, what string, value any) (*millracev1.StoredValue, error) {
	var in inputList
	encoded, err := appendValue(nil, value, &in)
	if err == nil && len(encoded) > maxDatasetBytes {
		err = fmt.Errorf("the value takes %.1f MB, the limit is %.1f MB: Scatter what is large and store its Future",
			float64(len(encoded))/1e6, float64(maxDatasetBytes)/1e6)
	}
	out := &millracev1.StoredValue{Value: new(millracev1.Value), Keys: in.keys}
	if err == nil {
		err = proto.Unmarshal(encoded, out.Value)
	}
	if err != nil {
		return nil, fmt.Errorf("millrace: %s: %w", what, err)
	}
	for _, f := range in.futures {
		if f.client != c {
			return nil, fmt.Errorf("millrace: %s: future %q belongs to another client: store it there, or pass its Key", what, f.key)
		}
	}
	if _, err := c.acknowledged(ctx, in.futures); err != nil {
		return nil, err
	}
	return out, nil
}

// restored decodes a value, with a Future of this client for each result in it.
func (c *Client) restored(ctx context.Context, what string, v *millracev1.StoredValue) (any, error) {
	r := resultReader{room: strideRoom}
	if keys := v.GetKeys(); len(keys) > 0 {
		var err error
		if r.inputs, err = c.HoldKeys(ctx, keys...); err != nil {
			return nil, err
		}
	}
	value, err := r.value(v.GetValue())
	if err != nil {
		c.Release(r.inputs...)
		return nil, fmt.Errorf("millrace: %s: %w", what, err)
	}
	return value, nil
}

// acknowledge says that this client holds the results in an answer. If it fails, the scheduler
// keeps them for half a minute.
func (c *Client) acknowledge(ctx context.Context, id string, v ...*millracev1.StoredValue) {
	if slices.ContainsFunc(v, func(v *millracev1.StoredValue) bool { return len(v.GetKeys()) > 0 }) {
		_, _ = c.shared().Acknowledge(ctx, &millracev1.AcknowledgeRequest{ClientId: c.lease.Load(), RequestId: id})
	}
}

// SetVariable gives a variable a value that Args accepts, at most 1 MiB when encoded. All clients
// and tasks of the namespace can read it. Results of futures in it are kept until another value
// replaces it.
func (c *Client) SetVariable(ctx context.Context, name string, value any) error {
	v, err := c.stored(ctx, fmt.Sprintf("variable %q", name), value)
	if err != nil {
		return err
	}
	_, err = c.shared().SetVariable(ctx, &millracev1.SetVariableRequest{ClientId: c.lease.Load(), Namespace: c.config.namespace, Name: name, Value: v})
	return callError(ctx, "SetVariable", err)
}

// Variable returns the value of a variable, in the types of Dataset. It waits until the variable
// has a value or ctx ends.
func (c *Client) Variable(ctx context.Context, name string) (any, error) {
	id := newRequestID()
	var v *millracev1.StoredValue
	err := c.poll(ctx, "GetVariable", id, func(ctx context.Context, wait *durationpb.Duration) (bool, error) {
		out, err := c.shared().GetVariable(ctx, &millracev1.GetVariableRequest{ClientId: c.lease.Load(), Name: name, RequestId: id, Wait: wait, KeepPlace: true})
		v = out.GetValue()
		return out.GetFound(), err
	})
	if err != nil {
		return nil, err
	}
	defer c.acknowledge(ctx, id, v)
	return c.restored(ctx, fmt.Sprintf("variable %q", name), v)
}

// DeleteVariable forgets the value of a variable.
func (c *Client) DeleteVariable(ctx context.Context, name string) error {
	_, err := c.shared().DeleteVariable(ctx, &millracev1.DeleteVariableRequest{ClientId: c.lease.Load(), Namespace: c.config.namespace, Name: name})
	return callError(ctx, "DeleteVariable", err)
}

// SetEvent sets an event, which ends all waits for it, or clears it.
func (c *Client) SetEvent(ctx context.Context, name string, set bool) error {
	_, err := c.shared().SetEvent(ctx, &millracev1.SetEventRequest{ClientId: c.lease.Load(), Namespace: c.config.namespace, Name: name, Clear: !set})
	return callError(ctx, "SetEvent", err)
}

// WaitEvent waits until an event is set or ctx ends.
func (c *Client) WaitEvent(ctx context.Context, name string) error {
	id := newRequestID()
	return c.poll(ctx, "GetEvent", id, func(ctx context.Context, wait *durationpb.Duration) (bool, error) {
		out, err := c.shared().GetEvent(ctx, &millracev1.GetEventRequest{ClientId: c.lease.Load(), Name: name, RequestId: id, Wait: wait, KeepPlace: true})
		return out.GetSet(), err
	})
}

// Queue is a queue of values that all clients and tasks of the namespace share by name. It exists
// until it is empty and all clients that have used it are gone.
type Queue struct {
	client *Client
	name   string
	size   uint32
}

// Queue returns the queue of a name. maxSize bounds the values in it; 0: it does not. The first
// bound that somebody gives counts.
func (c *Client) Queue(name string, maxSize uint32) *Queue {
	return &Queue{client: c, name: name, size: maxSize}
}

// Put appends a value that Args accepts, at most 1 MiB when encoded. It waits until there is room
// or ctx ends. Results of futures in it are kept while it is in the queue.
func (q *Queue) Put(ctx context.Context, value any) error {
	v, err := q.client.stored(ctx, fmt.Sprintf("queue %q", q.name), value)
	if err != nil {
		return err
	}
	id := newRequestID()
	return q.client.poll(ctx, "PutInQueue", id, func(ctx context.Context, wait *durationpb.Duration) (bool, error) {
		out, err := q.client.shared().PutInQueue(ctx, &millracev1.PutInQueueRequest{
			ClientId: q.client.lease.Load(), Name: q.name, RequestId: id, Wait: wait, KeepPlace: true, MaxSize: q.size, Value: v,
		})
		return out.GetDone(), err
	})
}

// Take takes the oldest value, in the types of Dataset. It waits until there is one or ctx ends.
func (q *Queue) Take(ctx context.Context) (any, error) {
	id := newRequestID()
	var taken []*millracev1.StoredValue
	err := q.client.poll(ctx, "TakeFromQueue", id, func(ctx context.Context, wait *durationpb.Duration) (bool, error) {
		out, err := q.client.shared().TakeFromQueue(ctx, &millracev1.TakeFromQueueRequest{
			ClientId: q.client.lease.Load(), Name: q.name, RequestId: id, Wait: wait, KeepPlace: true,
		})
		taken = out.GetValues()
		return len(taken) > 0, err
	})
	if err != nil {
		return nil, err
	}
	defer q.client.acknowledge(ctx, id, taken...)
	return q.client.restored(ctx, fmt.Sprintf("queue %q", q.name), taken[0])
}

// Len returns the number of values in the queue.
func (q *Queue) Len(ctx context.Context) (int, error) {
	out, err := q.client.shared().GetQueue(ctx, &millracev1.GetQueueRequest{ClientId: q.client.lease.Load(), Namespace: q.client.config.namespace, Name: q.name})
	return int(out.GetSize()), callError(ctx, "GetQueue", err)
}

// Close drops the queue with all values in it, for all clients. Their waits end with
// ErrSharedClosed.
func (q *Queue) Close(ctx context.Context) error {
	_, err := q.client.shared().CloseQueue(ctx, &millracev1.CloseQueueRequest{ClientId: q.client.lease.Load(), Namespace: q.client.config.namespace, Name: q.name})
	return callError(ctx, "CloseQueue", err)
}

// Message is one message of a topic.
type Message struct {
	// Number counts the messages of the topic from 1. Time is that of the scheduler.
	Number uint64
	Time   time.Time
	// Value has a type of those of Dataset.
	Value any
}

// PublishTo appends a message to a topic: a value that Args accepts, at most 1 MiB when encoded. A
// topic keeps its last messages, at most 10,000 and 16 MiB.
func (c *Client) PublishTo(ctx context.Context, topic string, value any) error {
	v, err := c.stored(ctx, fmt.Sprintf("topic %q", topic), value)
	if err != nil {
		return err
	}
	_, err = c.shared().PublishToTopic(ctx, &millracev1.PublishToTopicRequest{
		ClientId: c.lease.Load(), Namespace: c.config.namespace, Name: topic, Values: []*millracev1.StoredValue{v},
	})
	return callError(ctx, "PublishToTopic", err)
}

// ReadTopic returns the messages of a topic after a number, oldest first; after 0, all that are
// kept. It waits until there is one or ctx ends. A message that Python has pickled is an Opaque.
func (c *Client) ReadTopic(ctx context.Context, topic string, after uint64) ([]Message, error) {
	var found []*millracev1.TopicMessage
	err := c.poll(ctx, "GetTopic", newRequestID(), func(ctx context.Context, wait *durationpb.Duration) (bool, error) {
		out, err := c.shared().GetTopic(ctx, &millracev1.GetTopicRequest{ClientId: c.lease.Load(), Name: topic, After: after, Wait: wait})
		found = out.GetMessages()
		return len(found) > 0, err
	})
	if err != nil {
		return nil, err
	}
	messages := make([]Message, len(found))
	for i, m := range found {
		value, err := c.restored(ctx, fmt.Sprintf("message %d of topic %q", m.GetNumber(), topic), m.GetValue())
		if err != nil {
			return nil, err
		}
		messages[i] = Message{Number: m.GetNumber(), Time: m.GetTime().AsTime(), Value: value}
	}
	return messages, nil
}

// SetMetadata puts a value that Args accepts, without futures, into the tree of metadata of the
// namespace. Maps become parts of the tree.
func (c *Client) SetMetadata(ctx context.Context, value any, path ...string) error {
	what := fmt.Sprintf("metadata %q", path)
	v, err := c.stored(ctx, what, value)
	if err != nil {
		return err
	}
	if len(v.GetKeys()) > 0 {
		return fmt.Errorf("millrace: %s: futures cannot be metadata: use SetVariable, which keeps their results", what)
	}
	_, err = c.shared().SetMetadata(ctx, &millracev1.SetMetadataRequest{ClientId: c.lease.Load(), Namespace: c.config.namespace, Path: path, Value: v.GetValue()})
	return callError(ctx, "SetMetadata", err)
}

// Metadata returns what is at a path of the tree of metadata; a part of the tree is a
// map[string]any. found is false if there is nothing.
func (c *Client) Metadata(ctx context.Context, path ...string) (value any, found bool, err error) {
	out, err := c.shared().GetMetadata(ctx, &millracev1.GetMetadataRequest{ClientId: c.lease.Load(), Namespace: c.config.namespace, Path: path})
	if err != nil || !out.GetFound() {
		return nil, false, callError(ctx, "GetMetadata", err)
	}
	value, err = c.restored(ctx, fmt.Sprintf("metadata %q", path), &millracev1.StoredValue{Value: out.GetValue()})
	return value, err == nil, err
}
