// Package herald is an Adapter: word from worker to worker that a result was made.
// Who is to run a task ahead of inputs that another worker makes asks that worker
// for each of them, once; the answer comes when it is there, and carries it if it
// is small. So no message of the scheduler lies between the end of one task and
// the start of the next.
//
// A connection serves one direction: its reader, who dialled it, asks, and hears. It
// begins like a bare stream of package grpcpath, on the same port. What is said is
// written where it is said, without a goroutine between, as long as the socket takes
// it; whatever it does not take follows. Nothing waits for a peer.
//
// Word is about success. What else may become of an attempt is for the scheduler to
// tell; only a connection that ends fails what was asked on it.
package herald

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/transfer"
)

// A reader sends records of askBytes: what it wants, a task (8 bytes) and a generation (4).
// The maker answers with records of wordBytes: the kind of word, task and generation, the
// object's size (8) and the length of what is inline (4), which follows. Numbers are
// little-endian.
const (
	askBytes  = 13
	wordBytes = 25

	askAwait   byte = 1
	askUnawait byte = 2

	wordMade  byte = 1
	wordNever byte = 2

	// maxInline is the largest result that is sent along; the worker's limit may be lower.
	maxInline = 64 << 10
	// maxBacklog is how much a reader may leave lying before it gets nothing inline.
	maxBacklog = 1 << 20
	// maxUnread bounds it altogether: a reader that leaves more is cut off.
	maxUnread = 16 << 20

	dialTimeout  = 2 * time.Second
	writeTimeout = 10 * time.Second
)

// Word is what a maker says of one object.
type Word struct {
	Ref transfer.Ref
	// Never: it cannot tell; the rest is unset then.
	Never bool
	Bytes uint64
	// Inline is the object as a serialised Value, nil if it is to be fetched.
	Inline []byte
}

// Ask is what a reader wants.
type Ask struct {
	Ref transfer.Ref
	// End: it does not want it any more.
	End bool
}

// Config is fixed for the life of a herald. The functions are called from the
// connections' goroutines.
type Config struct {
	// Dial opens a connection to a peer's serving side.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Heard takes what peers say of awaited objects, in batches: each that was awaited once,
	// unless it was unawaited before.
	Heard func([]Word)
	// Spin is for how long, at most, a peer's next word is looked for before the goroutine
	// sleeps, while any is awaited. 0: it sleeps at once.
	Spin time.Duration
	// Asked takes what a reader asks for, and Left says that it is gone.
	Asked func(*Reader, []Ask)
	Left  func(*Reader)
}

// Herald is both sides. Await, Unawait, Tell and Flush belong to one goroutine at a time.
type Herald struct {
	config Config
	ctx    context.Context //nolint:containedctx // it ends with Close, for the goroutines that Close waits for
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu    sync.Mutex
	peers map[string]*maker // by address; guarded by mu

	// dirty have something to be flushed.
	dirty []*writer
}

// New returns a herald without connections.
func New(c Config) *Herald {
	h := &Herald{config: c, peers: make(map[string]*maker)}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h
}

// Close ends all connections that were dialled here and waits for their goroutines. Nothing
// is said of what was awaited on them.
func (h *Herald) Close() {
	h.cancel()
	h.mu.Lock()
	for _, m := range h.peers {
		m.writer.close()
	}
	h.mu.Unlock()
	h.wait.Wait()
}

// maker is a peer that was asked.
type maker struct {
	writer writer
	mu     sync.Mutex
	// awaited is guarded by mu. ended: nothing is awaited here any more.
	awaited map[transfer.Ref]struct{}
	ended   bool
	// count is the length of awaited.
	count atomic.Int64
}

// note enters what changed of awaited. REQUIRES: mu is held.
func (m *maker) note() { m.count.Store(int64(len(m.awaited))) }

// Await asks a peer to tell of an object.
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
		m.mu.Unlock() // it is being replaced
	}
}

// Unawait takes that back.
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

// listen is the life of a connection that was dialled here.
func (h *Herald) listen(address string, m *maker) {
	dialling, cancel := context.WithTimeout(h.ctx, dialTimeout)
	conn, err := h.config.Dial(dialling, address)
	cancel()
	if err == nil {
		if m.writer.open(conn) {
			h.hear(m, conn)
		}
		_ = conn.Close() // what was to come of it has come
	}
	h.mu.Lock()
	delete(h.peers, address)
	h.mu.Unlock()
	m.writer.close()
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
	}
}

// hear reads words until the connection ends or makes no sense.
func (h *Herald) hear(m *maker, conn net.Conn) {
	in := bufio.NewReaderSize(newLooking(conn, h.config.Spin, &m.count), 32<<10)
	for {
		var words []Word
		for first := true; first || in.Buffered() >= wordBytes; first = false {
			word, err := readWord(in)
			if err != nil {
				return
			}
			m.mu.Lock()
			_, awaited := m.awaited[word.Ref]
			delete(m.awaited, word.Ref)
			m.note()
			m.mu.Unlock()
			if awaited {
				words = append(words, word)
			}
		}
		if len(words) > 0 {
			h.config.Heard(words)
		}
	}
}

var errWord = errors.New("herald: a word that makes no sense")

func readWord(in *bufio.Reader) (word Word, err error) {
	var b [wordBytes]byte
	if _, err := io.ReadFull(in, b[:]); err != nil {
		return word, err
	}
	word.Ref = refOf(b[1:])
	word.Bytes = binary.LittleEndian.Uint64(b[13:])
	n := binary.LittleEndian.Uint32(b[21:])
	if b[0] != wordMade && b[0] != wordNever || n > maxInline {
		return word, errWord
	}
	word.Never = b[0] == wordNever
	if n > 0 {
		word.Inline = make([]byte, n)
		_, err = io.ReadFull(in, word.Inline)
	}
	return word, err
}

// Reader is a peer that asks.
type Reader struct {
	writer writer
}

// Serve serves one reader, until it goes or the connection is closed.
func (h *Herald) Serve(conn net.Conn) {
	r := new(Reader)
	r.writer.open(conn)
	in := bufio.NewReader(conn)
	for {
		asks, err := readAsks(in)
		if len(asks) > 0 {
			h.config.Asked(r, asks)
		}
		if err != nil {
			break
		}
	}
	r.writer.close()
	h.config.Left(r)
}

func readAsks(in *bufio.Reader) (asks []Ask, err error) {
	for first := true; first || in.Buffered() >= askBytes; first = false {
		var b [askBytes]byte
		if _, err := io.ReadFull(in, b[:]); err != nil {
			return asks, err
		}
		if b[0] != askAwait && b[0] != askUnawait {
			return asks, errWord
		}
		asks = append(asks, Ask{Ref: refOf(b[1:]), End: b[0] == askUnawait})
	}
	return asks, nil
}

// Tell answers a reader.
func (h *Herald) Tell(r *Reader, word Word) {
	if len(word.Inline) > maxInline || r.writer.backlog() > maxBacklog {
		word.Inline = nil
	}
	kind := wordMade
	if word.Never {
		kind = wordNever
	}
	b := appendAsk(make([]byte, 0, wordBytes+len(word.Inline)), kind, word.Ref)
	b = binary.LittleEndian.AppendUint64(b, word.Bytes)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(word.Inline)))
	h.append(&r.writer, append(b, word.Inline...))
}

// Flush sends what was said since the last time.
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
