package consensus

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// A connection between peers begins with a hello, by which each side shows that it knows the
// secret and belongs to the same cluster:
//
//	the caller: 8 bytes "MILLPEER", 1 byte kind, 32 random bytes
//	the other:  32 random bytes, HMAC-SHA-256 of "answer" and all of the bytes before
//	the caller: HMAC-SHA-256 of "caller" and the same bytes
//
// The key is the secret. Behind the bytes are the name of the cluster and the id of the peer that
// is called, except in a question: one that joins does not know them yet. The id matters when a
// peer has lost its directory. The leader still sends to its old id, from the beginning on, and
// would take away what the new id at the same address has got meanwhile. All that follows has no
// encryption and no further checks.
const (
	helloMagic = magic
	// helloTime is the time for a hello.
	helloTime = 5 * time.Second
	// mostStrangers is the number of connections that may be within their hello, and hostStrangers
	// that of one host.
	mostStrangers = 64
	hostStrangers = 16

	// connRaft is a connection of Raft, and connAsk one with a question.
	connRaft = 'r'
	connAsk  = 'a'
)

var errStranger = errors.New("the other side has another token or id, or belongs to another cluster")

// layer is the connections of a peer, and raft.StreamLayer.
type layer struct {
	net.Listener
	own string
	key []byte
	log *slog.Logger
	// self returns which peer this is; empty: it is in no cluster yet.
	self func() identity
	ask  func(net.Conn) // answers a question
	call func(ctx context.Context, address string) (net.Conn, error)

	accepted chan net.Conn
	closed   chan struct{}
	once     sync.Once
	conns    sync.WaitGroup
}

func newLayer(config Config, self func() identity, ask func(net.Conn)) *layer {
	l := &layer{Listener: config.Listener, own: config.Own, key: config.Secret, self: self, log: config.Log, ask: ask, call: config.dial, accepted: make(chan net.Conn), closed: make(chan struct{})}
	l.conns.Go(l.serve)
	return l
}

// serve accepts connections.
func (l *layer) serve() {
	var strangers strangers
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			select {
			case <-l.closed:
				return
			case <-time.After(retryTime): // There may be too many open files.
				continue
			}
		}
		strangers.add(conn)
		l.conns.Go(func() {
			kind, err := l.welcome(conn)
			strangers.remove(conn)
			switch {
			case err != nil:
				l.log.Warn("a connection to the port of the peers was refused", "from", conn.RemoteAddr(), "error", err)
				_ = conn.Close()
			case kind == connAsk:
				l.ask(conn)
				_ = conn.Close()
			default:
				select {
				case l.accepted <- conn:
				case <-l.closed:
					_ = conn.Close()
				}
			}
		})
	}
}

// strangers are the connections that are within their hello, the oldest first.
type strangers struct {
	mu  sync.Mutex
	all []net.Conn
}

// add adds a connection. If there are too many, it closes the oldest one of the host that has the
// most: a peer says its hello at once, so a connection that has been silent for longest is none.
func (s *strangers) add(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, conn)
	count := map[string]int{}
	most := hostOf(conn)
	for _, c := range s.all {
		count[hostOf(c)]++
	}
	if len(s.all) <= mostStrangers && count[most] <= hostStrangers {
		return
	}
	for _, c := range s.all {
		if host := hostOf(c); count[host] > count[most] {
			most = host
		}
	}
	i := slices.IndexFunc(s.all, func(c net.Conn) bool { return hostOf(c) == most })
	_ = s.all[i].Close() // Its reader hears of it.
	s.all = slices.Delete(s.all, i, i+1)
}

func (s *strangers) remove(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = slices.DeleteFunc(s.all, func(c net.Conn) bool { return c == conn })
}

func hostOf(conn net.Conn) string {
	host, _, err := net.SplitHostPort(conn.RemoteAddr().String())
	if err != nil {
		return conn.RemoteAddr().String()
	}
	return host
}

// Accept is part of net.Listener.
func (l *layer) Accept() (net.Conn, error) {
	select {
	case conn := <-l.accepted:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Addr is part of net.Listener: the address at which the others reach this peer.
func (l *layer) Addr() net.Addr { return address(l.own) }

type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }

// Close is part of net.Listener.
func (l *layer) Close() error {
	var err error
	l.once.Do(func() {
		close(l.closed)
		err = l.Listener.Close()
		l.conns.Wait()
	})
	return err
}

// Dial is part of raft.StreamLayer. It gets an id: see byID.
func (l *layer) Dial(id raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return l.dial(ctx, string(id), connRaft)
}

// byID has Raft connect to ids in place of addresses: an id begins with the address.
type byID struct{}

// ServerAddr is part of raft.ServerAddressProvider.
func (byID) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	return raft.ServerAddress(id), nil
}

// dial connects to the peer of an id. For a question its address is enough.
func (l *layer) dial(ctx context.Context, id string, kind byte) (net.Conn, error) {
	address, _, _ := strings.Cut(id, idMark)
	ctx, cancel := context.WithTimeout(ctx, helloTime)
	defer cancel()
	conn, err := l.call(ctx, address)
	if err != nil {
		return nil, err
	}
	end := within(ctx, conn)
	err = l.greet(conn, kind, id)
	if !end() { // The connection may have a deadline.
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close() // Nothing was said.
		return nil, fmt.Errorf("peer: hello to %s: %w", address, err)
	}
	return conn, nil
}

// greet is the hello of the caller.
func (l *layer) greet(conn net.Conn, kind byte, id string) error {
	name := nameOf(kind, identity{id, l.self().Cluster})
	said := append([]byte(helloMagic), kind)
	said = append(said, nonce()...)
	if _, err := conn.Write(said); err != nil {
		return err
	}
	answer := make([]byte, 2*sha256.Size)
	if _, err := io.ReadFull(conn, answer); err != nil {
		return fmt.Errorf("%w: %w", errStranger, err)
	}
	said = append(said, answer[:sha256.Size]...)
	if !hmac.Equal(answer[sha256.Size:], l.sum("answer", said, name)) {
		return errStranger
	}
	_, err := conn.Write(l.sum("caller", said, name))
	return err
}

// welcome is the hello of the side that is called.
func (l *layer) welcome(conn net.Conn) (kind byte, err error) {
	if err := conn.SetDeadline(time.Now().Add(helloTime)); err != nil {
		return 0, err
	}
	said := make([]byte, len(helloMagic)+1+sha256.Size)
	if _, err := io.ReadFull(conn, said); err != nil {
		return 0, err
	}
	if string(said[:len(helloMagic)]) != helloMagic {
		return 0, errors.New("it is no peer")
	}
	kind = said[len(helloMagic)]
	own := l.self()
	if kind != connAsk && own.Cluster == "" {
		return 0, errors.New("this peer is in no cluster yet")
	}
	name := nameOf(kind, own)
	said = append(said, nonce()...)
	if _, err := conn.Write(append(said[len(said)-sha256.Size:len(said):len(said)], l.sum("answer", said, name)...)); err != nil {
		return 0, err
	}
	shown := make([]byte, sha256.Size)
	if _, err := io.ReadFull(conn, shown); err != nil {
		return 0, fmt.Errorf("%w: %w", errStranger, err)
	}
	if !hmac.Equal(shown, l.sum("caller", said, name)) {
		return 0, errStranger
	}
	return kind, conn.SetDeadline(time.Time{})
}

// nameOf returns what both sides of a connection must know of the peer that is called.
func nameOf(kind byte, of identity) string {
	if kind == connAsk {
		return ""
	}
	return of.Cluster + " " + of.ID
}

func (l *layer) sum(side string, said []byte, name string) []byte {
	mac := hmac.New(sha256.New, l.key)
	for _, part := range [][]byte{[]byte(side), said, []byte(name)} {
		_, _ = mac.Write(part) // It never fails.
	}
	return mac.Sum(nil)
}

func nonce() []byte {
	data := make([]byte, sha256.Size)
	_, _ = rand.Read(data) // It never fails.
	return data
}
