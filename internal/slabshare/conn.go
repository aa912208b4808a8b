// Package slabshare is an Adapter: it maps a worker's memory into other processes of its host. It
// connects to a worker's unix socket, proves that both sides belong to the same user, receives the
// descriptor of the memory, maps it, and carries calls (borrow.proto) and their answers.
//
// The socket is abstract: it is in no file system, ends with its process, and is visible in one
// network namespace only. So exactly the processes of that namespace can reach each other by that
// name. The name contains the address of the worker's DataService, so each process that can read
// from a worker can also find out whether the worker is on the same host.
package slabshare

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	hostv1 "github.com/millrace/millrace/gen/go/millrace/host/v1"
	"github.com/millrace/millrace/internal/descriptors"
	"github.com/millrace/millrace/internal/monotonic"
)

const (
	// MaxMessageBytes bounds a message. The head of one object may have 16 MiB.
	MaxMessageBytes = 256 << 20
	// MaxHelloBytes bounds the first message, a token and some numbers: its sender is not
	// authenticated yet.
	MaxHelloBytes = 8 << 10
)

var (
	// ErrNotHere means that there is no such worker on this host, or that it does not share its
	// memory.
	ErrNotHere = errors.New("not on this host")
	// ErrRefused means that the worker refuses this process, or this process refuses the worker.
	ErrRefused = errors.New("refused")
	// ErrClosed means that the connection has ended.
	ErrClosed = errors.New("connection closed")
)

// Name returns the socket name of the worker whose DataService is advertised at the given address.
func Name(dataAddress string) string { return "@millrace/" + dataAddress }

// Conn is a connection to a worker. Its methods are safe for concurrent use.
type Conn struct {
	// Spin is how long Call polls for its answer before it blocks. Set it before the first Call.
	Spin time.Duration
	// Index, Slots and EgressToken are descriptors that came with the welcome, if they were
	// requested, else nil. The caller of Dial must close them.
	Index, Slots, EgressToken *os.File

	unix *net.UnixConn
	// pidfd refers to the worker's process; -1 if the system does not provide it.
	pidfd int
	done  chan struct{}
	// inbox receives messages. It is set after the worker's welcome.
	inbox *Inbox

	writing sync.Mutex // held while a message is written

	mu sync.Mutex
	// All fields below are guarded by mu.
	calls    uint64
	pending  map[uint64]func(*hostv1.BorrowResponse)
	closedAt monotonic.Time
	why      error
}

// Dial connects to the worker at the data address and says hello. The caller must close the
// descriptor of the worker's memory; it is nil for memory on a GPU.
func Dial(ctx context.Context, dataAddress string, hello *hostv1.BorrowHello) (*Conn, *hostv1.BorrowWelcome, *os.File, error) {
	var d net.Dialer
	raw, err := d.DialContext(ctx, "unix", Name(dataAddress))
	if err != nil {
		return nil, nil, nil, fmt.Errorf("worker at %s: %w: %w", dataAddress, ErrNotHere, err)
	}
	c := &Conn{unix: raw.(*net.UnixConn), pidfd: -1, done: make(chan struct{}), pending: make(map[uint64]func(*hostv1.BorrowResponse))}
	welcome, file, err := c.greet(ctx, hello)
	if err != nil {
		_ = c.unix.Close()
		if c.pidfd >= 0 {
			_ = unix.Close(c.pidfd)
		}
		return nil, nil, nil, fmt.Errorf("worker at %s: %w", dataAddress, err)
	}
	if c.inbox, err = NewInbox(c.unix); err != nil {
		_ = c.unix.Close()
		c.Free()
		closeAll(file, c.Index, c.Slots, c.EgressToken)
		return nil, nil, nil, err
	}
	go c.receive()
	return c, welcome, file, nil
}

// DialNotify connects to the worker at the data address for completion notifications between
// workers. It fails with ErrNotHere if the worker is not on this host, and with ErrRefused if its
// version does not support such connections. The connection belongs to the caller.
func DialNotify(ctx context.Context, dataAddress, token string) (*net.UnixConn, error) {
	var d net.Dialer
	raw, err := d.DialContext(ctx, "unix", Name(dataAddress))
	if err != nil {
		return nil, fmt.Errorf("worker at %s: %w: %w", dataAddress, ErrNotHere, err)
	}
	c := &Conn{unix: raw.(*net.UnixConn), pidfd: -1}
	welcome, file, err := c.greet(ctx, &hostv1.BorrowHello{Token: token, Notifications: true})
	c.Free()
	closeAll(file)
	if err == nil && !welcome.GetNotifications() {
		err = fmt.Errorf("%w: it takes no notifications there", ErrRefused)
	}
	if err != nil {
		_ = c.unix.Close() // the connection is useless
		return nil, fmt.Errorf("worker at %s: %w", dataAddress, err)
	}
	return c.unix, nil
}

func (c *Conn) greet(ctx context.Context, hello *hostv1.BorrowHello) (*hostv1.BorrowWelcome, *os.File, error) {
	// NB: check before the token leaves this process.
	peer, err := Peer(c.unix)
	if err != nil {
		return nil, nil, err
	}
	if int(peer.Uid) != os.Geteuid() {
		return nil, nil, fmt.Errorf("%w: its socket belongs to user %d, we are %d", ErrRefused, peer.Uid, os.Geteuid())
	}
	if peer.Pid > 0 {
		if fd, err := unix.PidfdOpen(int(peer.Pid), 0); err == nil {
			c.pidfd = fd
		}
	}
	if limit, ok := ctx.Deadline(); ok {
		_ = c.unix.SetDeadline(limit)
	}
	if err := Write(c.unix, &hostv1.BorrowRequest{Order: &hostv1.BorrowRequest_Hello{Hello: hello}}); err != nil {
		return nil, nil, fmt.Errorf("hello: %w", err)
	}
	var response hostv1.BorrowResponse
	files, err := readWithFiles(c.unix, &response)
	if err != nil {
		return nil, nil, fmt.Errorf("welcome: %w", err)
	}
	_ = c.unix.SetDeadline(time.Time{})
	welcome, expected := response.GetWelcome(), 0
	if welcome.GetDevice() == nil && !welcome.GetNotifications() {
		expected++
	}
	if welcome.GetObjectIndex() {
		expected += 3
	}
	switch {
	case response.GetError() != nil:
		err = fmt.Errorf("%w: %s: %s", ErrRefused, response.GetError().GetReason(), response.GetError().GetMessage())
	case welcome == nil || len(files) != expected || welcome.GetObjectIndex() && !hello.GetObjectIndex() || welcome.GetNotifications() && !hello.GetNotifications():
		err = fmt.Errorf("%w: it passed %d descriptors instead of %d", ErrRefused, len(files), expected)
	}
	if err != nil {
		closeAll(files...)
		return nil, nil, err
	}
	if welcome.GetObjectIndex() {
		own := expected - 3
		c.Index, c.Slots, c.EgressToken, files = files[own], files[own+1], files[own+2], files[:own]
	}
	return welcome, append(files, nil)[0], nil
}

func closeAll(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close() // they were only passed on or mapped
		}
	}
}

// Peer returns the credentials of the process at the other end.
func Peer(c *net.UnixConn) (*unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("unix socket: %w", err)
	}
	var cred *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) { cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return nil, fmt.Errorf("unix socket: %w", err)
	}
	if failed != nil {
		return nil, fmt.Errorf("unix socket: credentials of the peer: %w", failed)
	}
	return cred, nil
}

// Call sends a request and returns its answer. A refusal is an error. If the context ends first, a
// later answer is passed to late, unless that is nil.
func (c *Conn) Call(ctx context.Context, request *hostv1.BorrowRequest, late func(*hostv1.BorrowResponse)) (*hostv1.BorrowResponse, error) {
	answer := make(chan *hostv1.BorrowResponse, 1)
	if err := c.send(request, func(r *hostv1.BorrowResponse) { answer <- r }); err != nil {
		return nil, err
	}
	for began := time.Now(); c.Spin > 0 && len(answer) == 0 && time.Since(began) < c.Spin; {
		if err := c.inbox.Poll(c.take); err != nil {
			break // the receiving goroutine sees the error, too
		}
	}
	select {
	case r := <-answer:
		if e := r.GetError(); e != nil {
			return nil, &RefusedError{Reason: e.GetReason(), Message: e.GetMessage()}
		}
		return r, nil
	case <-c.done:
		return nil, c.Err()
	case <-ctx.Done():
	}
	c.mu.Lock()
	_, coming := c.pending[request.GetCall()]
	if late == nil {
		delete(c.pending, request.GetCall())
	} else if coming {
		c.pending[request.GetCall()] = late
	}
	c.mu.Unlock()
	if !coming && late != nil {
		select {
		case r := <-answer:
			late(r)
		case <-c.done:
		}
	}
	return nil, context.Cause(ctx)
}

// Send sends a request without waiting for its answer.
func (c *Conn) Send(request *hostv1.BorrowRequest) error { return c.send(request, nil) }

func (c *Conn) send(request *hostv1.BorrowRequest, answer func(*hostv1.BorrowResponse)) error {
	c.mu.Lock()
	if c.why != nil {
		c.mu.Unlock()
		return c.why
	}
	c.calls++
	request.Call = c.calls
	if answer != nil {
		c.pending[request.GetCall()] = answer
	}
	c.mu.Unlock()
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := Write(c.unix, request); err != nil {
		c.end(err)
		return c.Err()
	}
	return nil
}

func (c *Conn) receive() {
	for {
		if err := c.inbox.Next(0, c.take); err != nil {
			c.end(err)
			return
		}
	}
}

// take passes an answer to its waiting caller.
func (c *Conn) take(message []byte) error {
	response := new(hostv1.BorrowResponse)
	if err := Into(message, response); err != nil {
		return err
	}
	c.mu.Lock()
	answer := c.pending[response.GetCall()]
	delete(c.pending, response.GetCall())
	c.mu.Unlock()
	if answer != nil {
		answer(response)
	}
	return nil
}

func (c *Conn) end(err error) {
	c.mu.Lock()
	first := c.why == nil
	if first {
		c.why = fmt.Errorf("%w: %w", ErrClosed, err)
		c.closedAt = monotonic.Now()
	}
	c.mu.Unlock()
	if first {
		_ = c.unix.Close()
		close(c.done)
	}
}

// Done is closed when the connection has ended. Err returns the reason.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err returns nil while the connection is open.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.why
}

// Close ends the connection; the worker then takes back all leases. Held may still be called until
// Free.
func (c *Conn) Close() error {
	c.end(errors.New("by us"))
	return nil
}

// Free releases the remaining resources after Close. REQUIRES: Held is no longer called.
func (c *Conn) Free() {
	if c.pidfd >= 0 {
		_ = unix.Close(c.pidfd)
	}
}

// Held reports whether leases that end at the limit (0: with the connection) have protected their
// bytes until now. The worker closes its end before it takes leases back, so an open end proves
// that they are still valid. After the worker's death they are valid for ever: no process writes to
// a dead worker's memory.
func (c *Conn) Held(limit monotonic.Time) bool {
	end, open := c.open()
	return (limit == 0 || end < limit) && (open || c.Exited())
}

// open reports whether the other end is open, and the time for which this is known.
func (c *Conn) open() (end monotonic.Time, open bool) {
	c.mu.Lock()
	end = c.closedAt
	c.mu.Unlock()
	if end != 0 {
		return end, false
	}
	end = monotonic.Now()
	return end, !c.hungUp()
}

// HeldFunc is Held for many leases: it queries the system once, now. The returned function answers
// for each limit.
func (c *Conn) HeldFunc() func(limit monotonic.Time) bool {
	end, open := c.open()
	dead := sync.OnceValue(c.Exited)
	return func(limit monotonic.Time) bool {
		return (limit == 0 || end < limit) && (open || dead())
	}
}

// Exited reports whether the worker's process has ended. It waits a moment for a process that is
// ending.
func (c *Conn) Exited() bool { return c.pidfd >= 0 && exited(c.pidfd) }

// hungUp queries the kernel for the end of the connection: the receiving goroutine may not have
// noticed it yet.
func (c *Conn) hungUp() bool {
	raw, err := c.unix.SyscallConn()
	if err != nil {
		return true
	}
	gone := true
	err = raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		_, err := unix.Poll(fds, 0)
		gone = err != nil && !errors.Is(err, unix.EINTR) || fds[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
	})
	return gone || err != nil
}

// exited waits a moment for a process whose socket is closed: the descriptors of a dying process
// are closed shortly before it counts as dead.
func exited(pidfd int) bool {
	const moment = 200 // ms
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, moment)
		if !errors.Is(err, unix.EINTR) {
			return n > 0 && fds[0].Revents&unix.POLLIN != 0
		}
	}
}

// RefusedError is the error of a request that the worker refused.
type RefusedError struct {
	// Reason is a stable identifier, Message is readable text.
	Reason, Message string
}

// Error returns both.
func (e *RefusedError) Error() string { return fmt.Sprintf("%s: %s", e.Reason, e.Message) }

// Is matches ErrRefused.
func (e *RefusedError) Is(target error) bool { return target == ErrRefused }

// Write sends one message, with the descriptors of the files that are not nil.
func Write(c *net.UnixConn, m proto.Message, files ...*os.File) error {
	b, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, 4, 256), m)
	if err != nil {
		return err
	}
	if len(b)-4 > MaxMessageBytes {
		return fmt.Errorf("a message of %d bytes; at most %d can be sent", len(b)-4, MaxMessageBytes)
	}
	binary.LittleEndian.PutUint32(b, uint32(len(b)-4))
	var fds []int
	for _, f := range files {
		if f != nil {
			fds = append(fds, int(f.Fd()))
		}
	}
	if len(fds) == 0 {
		_, err = c.Write(b)
		return err
	}
	n, _, err := c.WriteMsgUnix(b, unix.UnixRights(fds...), nil)
	if err == nil && n < len(b) {
		_, err = c.Write(b[n:])
	}
	return err
}

// ReadHello receives the first message.
func ReadHello(r io.Reader, m proto.Message) error {
	var prefix [4]byte
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return err
	}
	return readBody(r, prefix, MaxHelloBytes, m)
}

func readBody(r io.Reader, prefix [4]byte, most uint32, m proto.Message) error {
	n := binary.LittleEndian.Uint32(prefix[:])
	if n > most {
		return fmt.Errorf("a message of %d bytes; at most %d are allowed", n, most)
	}
	// The buffer grows with the received bytes, not with the announced length.
	var b bytes.Buffer
	if _, err := io.CopyN(&b, r, int64(n)); err != nil {
		return err
	}
	return proto.Unmarshal(b.Bytes(), m)
}

// readWithFiles receives a message with descriptors, which arrive with the first byte.
func readWithFiles(c *net.UnixConn, m proto.Message) ([]*os.File, error) {
	var prefix [4]byte
	n, files, err := descriptors.Receive(c, prefix[:], 4, "millrace-slab") // slab, index, slots, egress token
	if err != nil {
		return nil, err
	}
	if n < len(prefix) {
		_, err = io.ReadFull(c, prefix[n:])
	}
	if err == nil {
		err = readBody(c, prefix, MaxMessageBytes, m)
	}
	if err != nil {
		closeAll(files...)
		return nil, err
	}
	return files, nil
}
