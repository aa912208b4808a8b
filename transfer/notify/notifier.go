// Package notify is an Adapter: completion notifications from worker to worker. A worker that got a
// task ahead of inputs that another worker makes (a cross-worker pre-assignment) subscribes at that
// worker to each of these inputs, once. The maker notifies it when the result exists, and sends the
// result along if it is small. So no message of the scheduler lies between the end of one task and
// the start of the next.
//
// A connection serves one direction: the subscriber dials it, subscribes, and receives
// notifications. A message is written by the goroutine that produces it, as long as the socket
// accepts it; a separate goroutine writes the rest. No caller waits for a peer.
//
// Within a host the connection is a unix socket (package slabshare), and messages go through memory
// that both sides share (package ring): then no thread has to be woken to receive one. A goroutine
// that has nothing else to do polls for messages and handles them in its own thread (Poll). If no
// goroutine polls, the socket wakes the connection's goroutine. Between hosts the connection begins
// like a bare stream of package grpcpath, on the same port.
//
// A notification reports success, or that the publisher cannot report the object (Unavailable): it
// does not know the attempt that makes the object. The scheduler reports every other end of an
// attempt. The end of the connection makes the objects Unavailable that are still subscribed on it.
package notify

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/mishap"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/ring"
)

// Format of the messages. A subscriber sends records of requestBytes: the kind (1 byte), a task (8)
// and a generation (4). The publisher answers with records of completionBytes: the kind, task and
// generation, the object's size (8) and the length of the inline data (4), which follow. Numbers
// are little-endian.
const (
	requestBytes    = 13
	completionBytes = 25

	requestSubscribe   byte = 1
	requestUnsubscribe byte = 2

	completionMade        byte = 1
	completionUnavailable byte = 2

	// requestWake and completionWake carry no data: they wake the peer, because its ring has
	// records.
	requestWake    byte = 3
	completionWake byte = 3

	// maxInline is the largest result that is sent along. The worker's limit may be lower.
	maxInline = 64 << 10
	// A subscriber with more than maxBacklog unsent bytes gets no inline results.
	maxBacklog = 1 << 20
	// A subscriber with more than maxUnread unsent bytes is disconnected.
	maxUnread = 16 << 20

	// offerTimeout limits the offer of rings to a subscriber.
	offerTimeout = 2 * time.Second
	writeTimeout = 10 * time.Second
)

// Completion is a completion notification for one object.
type Completion struct {
	Ref transfer.Ref
	// Unavailable: the publisher cannot report this object. Then the other fields are unset.
	Unavailable bool
	Bytes       uint64
	// Inline is the object as a serialised Value. nil: it must be fetched.
	Inline []byte
}

// Request is a subscriber's request to subscribe to an object.
type Request struct {
	Ref transfer.Ref
	// Cancel: the subscriber ends the subscription.
	Cancel bool
}

// Config is fixed for the life of a Notifier. The connections' goroutines call the functions.
// Callers of Poll also call Completed and Requested, so these two must neither wait nor call the
// Notifier.
type Config struct {
	// Dial opens a connection to a peer's serving side.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// DialTimeout limits Dial, and then the wait for the peer's first message. Default 2 s.
	DialTimeout time.Duration
	// Completed receives notifications in batches. Each subscribed object comes once, unless the
	// subscription was cancelled before.
	Completed func([]Completion)
	// Spin is the longest time for which a connection's goroutine polls for the next notification
	// before it blocks, while any is expected. 0: it blocks at once.
	Spin time.Duration
	// Requested receives the requests of a subscriber, in order.
	Requested func(*Subscriber, []Request)
	// Handle is called after Completed or Requested to process their input. Poll does not call it;
	// its caller does that.
	Handle func()
	// Left is called when a subscriber is gone.
	Left func(*Subscriber)
	// Log receives panics, which end their connection. nil means the default logger.
	Log *slog.Logger
}

// Notifier is both the subscribing and the publishing side. Only one goroutine at a time may call
// Subscribe, Unsubscribe, Publish and Flush.
type Notifier struct {
	config Config
	ctx    context.Context //nolint:containedctx // it ends with Close, for the goroutines that Close waits for
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu         sync.Mutex
	publishers map[string]*publisher // by address; guarded by mu
	// subscribers are the connected subscribers; guarded by mu.
	subscribers map[*Subscriber]struct{}

	links hostLinks

	// dirty are the writers with unflushed messages.
	dirty []*writer
}

const (
	// defaultDialTimeout is the default of Config.DialTimeout. Without notifications the scheduler
	// tells when an object is there, so a peer that does not answer costs only this wait.
	defaultDialTimeout = 2 * time.Second
	// readAhead is the size of the buffer in which notifications arrive. All that are in it are
	// passed on as one batch.
	readAhead = 32 << 10
)

// New returns a Notifier without connections.
func New(c Config) *Notifier {
	if c.DialTimeout <= 0 {
		c.DialTimeout = defaultDialTimeout
	}
	n := &Notifier{config: c, publishers: make(map[string]*publisher), subscribers: make(map[*Subscriber]struct{})}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	return n
}

// Close ends all connections and waits for the goroutines of those that were dialled here. Open
// subscriptions on them get no notification.
func (n *Notifier) Close() {
	n.cancel()
	n.mu.Lock()
	for _, p := range n.publishers {
		p.writer.close()
	}
	for s := range n.subscribers {
		s.writer.close()
	}
	n.mu.Unlock()
	n.wait.Wait()
}

// publisher is a peer at which this worker subscribed.
type publisher struct {
	writer writer
	mu     sync.Mutex
	// subscribed has the open subscriptions; guarded by mu. ended: the connection is over and takes
	// no more subscriptions.
	subscribed map[transfer.Ref]struct{}
	ended      bool
	// count is the length of subscribed, for the polling goroutine.
	count atomic.Int64
}

// updateCount sets count to the length of subscribed. REQUIRES: mu is held.
func (p *publisher) updateCount() { p.count.Store(int64(len(p.subscribed))) }

// Subscribe subscribes to an object at a peer.
func (n *Notifier) Subscribe(peer transfer.Peer, ref transfer.Ref) {
	for {
		p := n.publisher(peer.Address)
		p.mu.Lock()
		if !p.ended {
			p.subscribed[ref] = struct{}{}
			p.updateCount()
			p.mu.Unlock()
			n.append(&p.writer, appendRef(nil, requestSubscribe, ref))
			return
		}
		p.mu.Unlock() // the connection ended and is being replaced: try again
	}
}

// Unsubscribe ends a subscription.
func (n *Notifier) Unsubscribe(peer transfer.Peer, ref transfer.Ref) {
	n.mu.Lock()
	p := n.publishers[peer.Address]
	n.mu.Unlock()
	if p == nil {
		return
	}
	p.mu.Lock()
	delete(p.subscribed, ref)
	p.updateCount()
	p.mu.Unlock()
	n.append(&p.writer, appendRef(nil, requestUnsubscribe, ref))
}

func (n *Notifier) publisher(address string) *publisher {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.publishers[address]
	if p == nil {
		p = &publisher{subscribed: make(map[transfer.Ref]struct{})}
		n.publishers[address] = p
		n.wait.Go(func() { n.follow(address, p) })
	}
	return p
}

// follow dials a peer and serves the connection until it ends.
func (n *Notifier) follow(address string, p *publisher) {
	dialling, cancel := context.WithTimeout(n.ctx, n.config.DialTimeout)
	conn, err := n.config.Dial(dialling, address)
	cancel()
	var link *hostLink
	if err == nil {
		if link, err = n.openPublisher(p, conn); err == nil {
			n.guarded("completion notifications from "+address, func() { n.readCompletions(p, conn, link) })
		}
		_ = conn.Close() // everything that arrived has been read
	}
	n.mu.Lock()
	delete(n.publishers, address)
	n.mu.Unlock()
	p.writer.close()
	if link != nil {
		n.removeLink(link)
	}
	p.mu.Lock()
	p.ended = true
	completions := make([]Completion, 0, len(p.subscribed))
	for ref := range p.subscribed {
		completions = append(completions, Completion{Ref: ref, Unavailable: true})
	}
	p.subscribed = nil
	p.mu.Unlock()
	if len(completions) > 0 && n.ctx.Err() == nil {
		n.config.Completed(completions)
		n.config.Handle()
	}
}

// guarded runs a connection's work. A panic ends only the connection.
func (n *Notifier) guarded(what string, do func()) {
	defer mishap.Caught(n.config.Log, what, nil)
	do()
}

// openPublisher begins a dialled connection. It returns the shared rings, or nil if there are none.
func (n *Notifier) openPublisher(p *publisher, conn net.Conn) (link *hostLink, err error) {
	var end *ring.End
	if c, within := conn.(*net.UnixConn); within {
		if end, err = acceptRings(c, n.config.DialTimeout); err != nil {
			return nil, err
		}
	}
	var out *ring.Writer
	if end != nil {
		link, out = &hostLink{End: end, conn: conn, handle: func(record []byte) error { return n.takeCompletions(p, record) }}, &end.Out
		n.addLink(link)
	}
	if !p.writer.open(conn, out, appendRef(nil, requestWake, transfer.Ref{}), true) {
		err = net.ErrClosed
	}
	return link, err
}

// takeCompletions is hostLink.handle for notifications. A record has several if they were published
// before the connection was open.
func (n *Notifier) takeCompletions(p *publisher, record []byte) error {
	completions := make([]Completion, 0, 1)
	for len(record) > 0 {
		if len(record) < completionBytes {
			return errMalformed
		}
		completion, inline, err := decodeCompletion(record)
		rest := record[completionBytes:]
		if err != nil || inline > len(rest) {
			return errMalformed
		}
		if inline > 0 {
			completion.Inline = rest[:inline:inline]
		}
		completions, record = append(completions, completion), rest[inline:]
	}
	completions = slices.DeleteFunc(completions, func(c Completion) bool { return !p.wants(c.Ref) })
	if len(completions) > 0 {
		n.config.Completed(completions)
	}
	return nil
}

// wants reports whether an object was subscribed, and ends its subscription.
func (p *publisher) wants(ref transfer.Ref) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, expected := p.subscribed[ref]
	delete(p.subscribed, ref)
	p.updateCount()
	return expected
}

// readCompletions reads notifications until the connection ends or is malformed. link is nil if
// there are no rings.
func (n *Notifier) readCompletions(p *publisher, conn net.Conn, link *hostLink) {
	var from io.Reader = conn
	if link == nil {
		from = newPollingConn(conn, n.config.Spin, &p.count)
	}
	in := bufio.NewReaderSize(from, readAhead)
	for {
		var completions []Completion
		woken := false
		for first := true; first || in.Buffered() >= completionBytes; first = false {
			completion, wake, err := readCompletion(in)
			if err != nil {
				return
			}
			if woken = woken || wake; !wake && p.wants(completion.Ref) {
				completions = append(completions, completion)
			}
		}
		found := woken && link != nil && n.woken(link)
		if len(completions) > 0 {
			n.config.Completed(completions)
			found = true
		}
		if found {
			n.config.Handle()
		}
	}
}

var errMalformed = errors.New("notify: malformed message")

// readCompletion reads one notification. wake: it carries no data, but the ring has records.
func readCompletion(in *bufio.Reader) (completion Completion, wake bool, err error) {
	var b [completionBytes]byte
	if _, err := io.ReadFull(in, b[:]); err != nil {
		return completion, false, err
	}
	if b[0] == completionWake {
		return completion, true, nil
	}
	completion, n, err := decodeCompletion(b[:])
	if err == nil && n > 0 {
		completion.Inline = make([]byte, n)
		_, err = io.ReadFull(in, completion.Inline)
	}
	return completion, false, err
}

// decodeCompletion decodes a notification except for its n bytes of inline data.
func decodeCompletion(b []byte) (completion Completion, n int, err error) {
	completion = Completion{Ref: refOf(b[1:]), Unavailable: b[0] == completionUnavailable, Bytes: binary.LittleEndian.Uint64(b[13:])}
	inline := binary.LittleEndian.Uint32(b[21:])
	if b[0] != completionMade && b[0] != completionUnavailable || inline > maxInline {
		return completion, 0, errMalformed
	}
	return completion, int(inline), nil
}

// Subscriber is a peer that subscribes.
type Subscriber struct {
	writer writer
}

// Serve serves one subscriber until it leaves or the connection is closed.
func (n *Notifier) Serve(conn net.Conn) {
	s := new(Subscriber)
	n.mu.Lock()
	n.subscribers[s] = struct{}{}
	n.mu.Unlock()
	link, err := n.openSubscriber(s, conn)
	if err == nil {
		n.guarded("the subscriptions of a peer", func() { n.readRequests(s, conn, link) })
	}
	n.mu.Lock()
	delete(n.subscribers, s)
	n.mu.Unlock()
	s.writer.close()
	if link != nil {
		n.removeLink(link)
	}
	n.config.Left(s)
}

// readRequests reads a subscriber's requests until the connection ends or is malformed. link is nil
// if there are no rings.
func (n *Notifier) readRequests(s *Subscriber, conn net.Conn, link *hostLink) {
	var err error
	for in := bufio.NewReader(conn); err == nil; {
		var requests []Request
		var woken bool
		requests, woken, err = readAvailable(in)
		found := link != nil && (woken || len(requests) > 0) && n.woken(link)
		if len(requests) > 0 {
			n.config.Requested(s, requests)
			found = true
		}
		if found {
			n.config.Handle()
		}
	}
}

// openSubscriber begins an accepted connection. It returns the shared rings, or nil if there are
// none.
func (n *Notifier) openSubscriber(s *Subscriber, conn net.Conn) (link *hostLink, err error) {
	var out *ring.Writer
	if c, within := conn.(*net.UnixConn); within {
		end, err := offerRings(c)
		if err != nil {
			return nil, err
		}
		if end != nil {
			link, out = &hostLink{End: end, conn: conn, handle: func(record []byte) error { return n.takeRequests(s, record) }}, &end.Out
		}
	}
	if link != nil {
		n.addLink(link)
	}
	if n.ctx.Err() != nil || !s.writer.open(conn, out, (&Completion{}).encode(completionWake), false) {
		err = net.ErrClosed
	}
	return link, err
}

// takeRequests is hostLink.handle for requests.
func (n *Notifier) takeRequests(s *Subscriber, record []byte) error {
	var requests []Request
	for ; len(record) >= requestBytes; record = record[requestBytes:] {
		request, err := decodeRequest(record)
		if err != nil {
			return err
		}
		requests = append(requests, request)
	}
	if len(record) > 0 {
		return errMalformed
	}
	n.config.Requested(s, requests)
	return nil
}

// readAvailable reads all available requests. woken: the ring has records as well.
func readAvailable(in *bufio.Reader) (requests []Request, woken bool, err error) {
	for first := true; first || in.Buffered() >= requestBytes; first = false {
		var b [requestBytes]byte
		if _, err := io.ReadFull(in, b[:]); err != nil {
			return requests, woken, err
		}
		if b[0] == requestWake {
			woken = true
			continue
		}
		request, err := decodeRequest(b[:])
		if err != nil {
			return requests, woken, err
		}
		requests = append(requests, request)
	}
	return requests, woken, nil
}

func decodeRequest(b []byte) (Request, error) {
	if b[0] != requestSubscribe && b[0] != requestUnsubscribe {
		return Request{}, errMalformed
	}
	return Request{Ref: refOf(b[1:]), Cancel: b[0] == requestUnsubscribe}, nil
}

// Publish notifies a subscriber. Within a host a polling subscriber receives the notification at
// once; otherwise Flush sends it or wakes the subscriber.
func (n *Notifier) Publish(s *Subscriber, completion Completion) {
	if len(completion.Inline) > maxInline || s.writer.backlog() > maxBacklog {
		completion.Inline = nil
	}
	kind := completionMade
	if completion.Unavailable {
		kind = completionUnavailable
	}
	n.append(&s.writer, completion.encode(kind))
}

// encode encodes a notification.
func (c *Completion) encode(kind byte) []byte {
	b := appendRef(make([]byte, 0, completionBytes+len(c.Inline)), kind, c.Ref)
	b = binary.LittleEndian.AppendUint64(b, c.Bytes)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(c.Inline)))
	return append(b, c.Inline...)
}

// Flush sends everything since the last Flush that is to go by sockets.
func (n *Notifier) Flush() {
	for _, w := range n.dirty {
		w.flush()
	}
	clear(n.dirty)
	n.dirty = n.dirty[:0]
}

func (n *Notifier) append(w *writer, b []byte) {
	if w.append(b) {
		n.dirty = append(n.dirty, w)
	}
}

func appendRef(b []byte, kind byte, ref transfer.Ref) []byte {
	b = append(b, kind)
	b = binary.LittleEndian.AppendUint64(b, uint64(ref.Task))
	return binary.LittleEndian.AppendUint32(b, uint32(ref.Generation))
}

func refOf(b []byte) transfer.Ref {
	return transfer.Ref{Task: ids.TaskID(binary.LittleEndian.Uint64(b)), Generation: ids.Attempt(binary.LittleEndian.Uint32(b[8:]))}
}
