// Package notify is an Adapter: completion notifications from worker to worker. A worker that got a
// task ahead of inputs that another worker makes (a cross-worker pre-assignment) subscribes at that
// worker to each of these inputs, once. The maker notifies it when the result exists, and sends the
// result along if it is small. So no message of the scheduler lies between the end of one task and
// the start of the next.
//
// A connection serves one direction: the reader dials it, subscribes, and receives notifications. A
// message is written by the goroutine that produces it, as long as the socket accepts it; a
// separate goroutine writes the rest. No caller waits for a peer.
//
// Within a host the connection is a unix socket (package slabshare), and messages go through memory
// that both sides share (package ring): then no thread has to be woken to receive one. A goroutine
// that has nothing else to do polls for messages and handles them in its own thread (Look). If no
// goroutine polls, the socket wakes the connection's goroutine. Between hosts the connection begins
// like a bare stream of package grpcpath, on the same port.
//
// Notifications report success only. The scheduler reports every other end of an attempt; only the
// end of the connection fails the subscriptions that are open on it.
package notify

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/mishap"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/ring"
)

// Format of the messages. A reader sends records of askBytes: the kind (1 byte), a task (8) and a
// generation (4). The maker answers with records of wordBytes: the kind, task and generation, the
// object's size (8) and the length of the inline data (4), which follow. Numbers are little-endian.
const (
	askBytes  = 13
	wordBytes = 25

	askAwait   byte = 1
	askUnawait byte = 2

	wordMade  byte = 1
	wordNever byte = 2

	// askCall and wordCall carry no data: they wake the peer, because its ring has records.
	askCall  byte = 3
	wordCall byte = 3

	// maxInline is the largest result that is sent along. The worker's limit may be lower.
	maxInline = 64 << 10
	// A reader with more than maxBacklog unsent bytes gets no inline results.
	maxBacklog = 1 << 20
	// A reader with more than maxUnread unsent bytes is disconnected.
	maxUnread = 16 << 20

	dialTimeout  = 2 * time.Second
	writeTimeout = 10 * time.Second
)

// Word is a completion notification for one object.
type Word struct {
	Ref transfer.Ref
	// Never: the maker cannot report this object. Then the other fields are unset.
	Never bool
	Bytes uint64
	// Inline is the object as a serialised Value. nil: it must be fetched.
	Inline []byte
}

// Ask is a reader's request to subscribe to an object.
type Ask struct {
	Ref transfer.Ref
	// End: the reader ends the subscription.
	End bool
}

// Config is fixed for the life of a herald. The connections' goroutines call the functions. Callers
// of Look also call Heard and Asked, so these two must neither wait nor call the herald.
type Config struct {
	// Dial opens a connection to a peer's serving side.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Heard receives notifications in batches. Each subscribed object comes once, unless the
	// subscription was cancelled before.
	Heard func([]Word)
	// Spin is the longest time for which a connection's goroutine polls for the next notification
	// before it blocks, while any is expected. 0: it blocks at once.
	Spin time.Duration
	// Asked receives the requests of a reader, in order.
	Asked func(*Reader, []Ask)
	// Handle is called after Heard or Asked to process their input. Look does not call it; its
	// caller does that.
	Handle func()
	// Left is called when a reader is gone.
	Left func(*Reader)
	// Log receives panics, which end their connection. nil means the default logger.
	Log *slog.Logger
}

// Herald is both the reading and the serving side. Only one goroutine at a time may call Await,
// Unawait, Tell and Flush.
type Herald struct {
	config Config
	ctx    context.Context //nolint:containedctx // it ends with Close, for the goroutines that Close waits for
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu    sync.Mutex
	peers map[string]*maker // by address; guarded by mu
	// readers are the connected readers; guarded by mu.
	readers map[*Reader]struct{}

	nearby nearby

	// dirty are the writers with unflushed messages.
	dirty []*writer
}

// New returns a herald without connections.
func New(c Config) *Herald {
	h := &Herald{config: c, peers: make(map[string]*maker), readers: make(map[*Reader]struct{})}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h
}

// Close ends all connections and waits for the goroutines of those that were dialled here. Open
// subscriptions on them get no notification.
func (h *Herald) Close() {
	h.cancel()
	h.mu.Lock()
	for _, m := range h.peers {
		m.writer.close()
	}
	for r := range h.readers {
		r.writer.close()
	}
	h.mu.Unlock()
	h.wait.Wait()
}

// maker is a peer at which this worker subscribed.
type maker struct {
	writer writer
	mu     sync.Mutex
	// awaited has the open subscriptions; guarded by mu. ended: the connection is over and takes no
	// more subscriptions.
	awaited map[transfer.Ref]struct{}
	ended   bool
	// count is the length of awaited, for the polling goroutine.
	count atomic.Int64
}

// note updates count. REQUIRES: mu is held.
func (m *maker) note() { m.count.Store(int64(len(m.awaited))) }

// Await subscribes to an object at a peer.
func (h *Herald) Await(peer transfer.Peer, ref transfer.Ref) {
	for {
		m := h.maker(peer.Address)
		m.mu.Lock()
		if !m.ended {
			m.awaited[ref] = struct{}{}
			m.note()
			m.mu.Unlock()
			h.append(&m.writer, appendAsk(nil, askAwait, ref))
			return
		}
		m.mu.Unlock() // the connection ended and is being replaced: try again
	}
}

// Unawait ends a subscription.
func (h *Herald) Unawait(peer transfer.Peer, ref transfer.Ref) {
	h.mu.Lock()
	m := h.peers[peer.Address]
	h.mu.Unlock()
	if m == nil {
		return
	}
	m.mu.Lock()
	delete(m.awaited, ref)
	m.note()
	m.mu.Unlock()
	h.append(&m.writer, appendAsk(nil, askUnawait, ref))
}

func (h *Herald) maker(address string) *maker {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.peers[address]
	if m == nil {
		m = &maker{awaited: make(map[transfer.Ref]struct{})}
		h.peers[address] = m
		h.wait.Go(func() { h.listen(address, m) })
	}
	return m
}

// listen dials a peer and serves the connection until it ends.
func (h *Herald) listen(address string, m *maker) {
	dialling, cancel := context.WithTimeout(h.ctx, dialTimeout)
	conn, err := h.config.Dial(dialling, address)
	cancel()
	var n *near
	if err == nil {
		if n, err = h.join(m, conn); err == nil {
			h.guarded("words from "+address, func() { h.hear(m, conn, n) })
		}
		_ = conn.Close() // everything that arrived has been read
	}
	h.mu.Lock()
	delete(h.peers, address)
	h.mu.Unlock()
	m.writer.close()
	if n != nil {
		h.leave(n)
	}
	m.mu.Lock()
	m.ended = true
	words := make([]Word, 0, len(m.awaited))
	for ref := range m.awaited {
		words = append(words, Word{Ref: ref, Never: true})
	}
	m.awaited = nil
	m.mu.Unlock()
	if len(words) > 0 && h.ctx.Err() == nil {
		h.config.Heard(words)
		h.config.Handle()
	}
}

// guarded runs a connection's work. A panic ends only the connection.
func (h *Herald) guarded(what string, do func()) {
	defer mishap.Caught(h.config.Log, what, nil)
	do()
}

// join begins a dialled connection. It returns the shared rings, or nil if there are none.
func (h *Herald) join(m *maker, conn net.Conn) (n *near, err error) {
	var end *ring.End
	if c, within := conn.(*net.UnixConn); within {
		if end, err = accept(c); err != nil {
			return nil, err
		}
	}
	var out *ring.Writer
	if end != nil {
		n, out = &near{End: end, conn: conn, take: func(record []byte) error { return h.takeWord(m, record) }}, &end.Out
		h.enter(n)
	}
	if !m.writer.open(conn, out, appendAsk(nil, askCall, transfer.Ref{}), true) {
		err = net.ErrClosed
	}
	return n, err
}

// takeWord is near.take for notifications.
func (h *Herald) takeWord(m *maker, record []byte) error {
	if len(record) < wordBytes {
		return errWord
	}
	word, n, err := wordOf(record)
	if err != nil || n != len(record)-wordBytes {
		return errWord
	}
	if n > 0 {
		word.Inline = record[wordBytes:]
	}
	if m.wants(word.Ref) {
		h.config.Heard([]Word{word})
	}
	return nil
}

// wants reports whether an object was subscribed, and ends its subscription.
func (m *maker) wants(ref transfer.Ref) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, awaited := m.awaited[ref]
	delete(m.awaited, ref)
	m.note()
	return awaited
}

// hear reads notifications until the connection ends or is malformed. n is nil if there are no
// rings.
func (h *Herald) hear(m *maker, conn net.Conn, n *near) {
	var from io.Reader = conn
	if n == nil {
		from = newLooking(conn, h.config.Spin, &m.count)
	}
	in := bufio.NewReaderSize(from, 32<<10)
	for {
		var words []Word
		called := false
		for first := true; first || in.Buffered() >= wordBytes; first = false {
			word, call, err := readWord(in)
			if err != nil {
				return
			}
			if called = called || call; !call && m.wants(word.Ref) {
				words = append(words, word)
			}
		}
		found := called && n != nil && h.called(n)
		if len(words) > 0 {
			h.config.Heard(words)
			found = true
		}
		if found {
			h.config.Handle()
		}
	}
}

var errWord = errors.New("herald: a word that makes no sense")

// readWord reads one notification. call: it carries no data, but the ring has records.
func readWord(in *bufio.Reader) (word Word, call bool, err error) {
	var b [wordBytes]byte
	if _, err := io.ReadFull(in, b[:]); err != nil {
		return word, false, err
	}
	if b[0] == wordCall {
		return word, true, nil
	}
	word, n, err := wordOf(b[:])
	if err == nil && n > 0 {
		word.Inline = make([]byte, n)
		_, err = io.ReadFull(in, word.Inline)
	}
	return word, false, err
}

// wordOf decodes a notification except for its n bytes of inline data.
func wordOf(b []byte) (word Word, n int, err error) {
	word = Word{Ref: refOf(b[1:]), Never: b[0] == wordNever, Bytes: binary.LittleEndian.Uint64(b[13:])}
	inline := binary.LittleEndian.Uint32(b[21:])
	if b[0] != wordMade && b[0] != wordNever || inline > maxInline {
		return word, 0, errWord
	}
	return word, int(inline), nil
}

// Reader is a peer that subscribes.
type Reader struct {
	writer writer
}

// Serve serves one reader until it leaves or the connection is closed.
func (h *Herald) Serve(conn net.Conn) {
	r := new(Reader)
	h.mu.Lock()
	h.readers[r] = struct{}{}
	h.mu.Unlock()
	n, err := h.receive(r, conn)
	if err == nil {
		h.guarded("the asks of a peer", func() { h.answer(r, conn, n) })
	}
	h.mu.Lock()
	delete(h.readers, r)
	h.mu.Unlock()
	r.writer.close()
	if n != nil {
		h.leave(n)
	}
	h.config.Left(r)
}

// answer reads a reader's requests until the connection ends or is malformed. n is nil if there are
// no rings.
func (h *Herald) answer(r *Reader, conn net.Conn, n *near) {
	var err error
	for in := bufio.NewReader(conn); err == nil; {
		var asks []Ask
		var called bool
		asks, called, err = readAsks(in)
		found := n != nil && (called || len(asks) > 0) && h.called(n)
		if len(asks) > 0 {
			h.config.Asked(r, asks)
			found = true
		}
		if found {
			h.config.Handle()
		}
	}
}

// receive begins an accepted connection. It returns the shared rings, or nil if there are none.
func (h *Herald) receive(r *Reader, conn net.Conn) (n *near, err error) {
	var out *ring.Writer
	if c, within := conn.(*net.UnixConn); within {
		end, err := offer(c)
		if err != nil {
			return nil, err
		}
		if end != nil {
			n, out = &near{End: end, conn: conn, take: func(record []byte) error { return h.takeAsks(r, record) }}, &end.Out
		}
	}
	if n != nil {
		h.enter(n)
	}
	if h.ctx.Err() != nil || !r.writer.open(conn, out, (&Word{}).record(wordCall), false) {
		err = net.ErrClosed
	}
	return n, err
}

// takeAsks is near.take for requests.
func (h *Herald) takeAsks(r *Reader, record []byte) error {
	var asks []Ask
	for ; len(record) >= askBytes; record = record[askBytes:] {
		ask, err := askOf(record)
		if err != nil {
			return err
		}
		asks = append(asks, ask)
	}
	if len(record) > 0 {
		return errWord
	}
	h.config.Asked(r, asks)
	return nil
}

// readAsks reads all available requests. called: the ring has records as well.
func readAsks(in *bufio.Reader) (asks []Ask, called bool, err error) {
	for first := true; first || in.Buffered() >= askBytes; first = false {
		var b [askBytes]byte
		if _, err := io.ReadFull(in, b[:]); err != nil {
			return asks, called, err
		}
		if b[0] == askCall {
			called = true
			continue
		}
		ask, err := askOf(b[:])
		if err != nil {
			return asks, called, err
		}
		asks = append(asks, ask)
	}
	return asks, called, nil
}

func askOf(b []byte) (Ask, error) {
	if b[0] != askAwait && b[0] != askUnawait {
		return Ask{}, errWord
	}
	return Ask{Ref: refOf(b[1:]), End: b[0] == askUnawait}, nil
}

// Tell notifies a reader. Within a host a polling reader receives the notification at once;
// otherwise Flush sends it or wakes the reader.
func (h *Herald) Tell(r *Reader, word Word) {
	if len(word.Inline) > maxInline || r.writer.backlog() > maxBacklog {
		word.Inline = nil
	}
	kind := wordMade
	if word.Never {
		kind = wordNever
	}
	h.append(&r.writer, word.record(kind))
}

// record encodes a notification.
func (w *Word) record(kind byte) []byte {
	b := appendAsk(make([]byte, 0, wordBytes+len(w.Inline)), kind, w.Ref)
	b = binary.LittleEndian.AppendUint64(b, w.Bytes)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(w.Inline)))
	return append(b, w.Inline...)
}

// Flush sends everything since the last Flush that is to go by sockets.
func (h *Herald) Flush() {
	for _, w := range h.dirty {
		w.flush()
	}
	clear(h.dirty)
	h.dirty = h.dirty[:0]
}

func (h *Herald) append(w *writer, b []byte) {
	if w.append(b) {
		h.dirty = append(h.dirty, w)
	}
}

func appendAsk(b []byte, kind byte, ref transfer.Ref) []byte {
	b = append(b, kind)
	b = binary.LittleEndian.AppendUint64(b, uint64(ref.Task))
	return binary.LittleEndian.AppendUint32(b, uint32(ref.Generation))
}

func refOf(b []byte) transfer.Ref {
	return transfer.Ref{Task: ids.TaskID(binary.LittleEndian.Uint64(b)), Generation: ids.Attempt(binary.LittleEndian.Uint32(b[8:]))}
}
