package slabshare

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

const (
	// inboxBytes is the initial size of an inbox's buffer. keptBytes is the largest buffer that it
	// keeps after a large message.
	inboxBytes = 64 << 10
	keptBytes  = 1 << 20
)

// Inbox receives messages from a socket. One goroutine blocks in Next. Meanwhile other goroutines
// may call Poll, which saves waking that goroutine.
type Inbox struct {
	raw syscall.RawConn

	mu sync.Mutex
	// buffer[:have] is received data that is not a whole message yet; guarded by mu.
	buffer []byte
	have   int
}

// NewInbox returns an inbox for a connection. Nothing else may read from the connection.
func NewInbox(c *net.UnixConn) (*Inbox, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("unix socket: %w", err)
	}
	return &Inbox{raw: raw, buffer: make([]byte, inboxBytes)}, nil
}

// Spins reports whether the process has enough processors (8) to poll for answers instead of
// blocking.
func Spins() bool { return min(runtime.GOMAXPROCS(0), runtime.NumCPU()) >= 8 }

// Poll passes the available messages to take, without waiting.
func (i *Inbox) Poll(take func(message []byte) error) error {
	var failed error
	err := i.raw.Control(func(fd uintptr) { failed = i.drain(int(fd), take) })
	if failed == nil {
		return err
	}
	if errors.Is(failed, unix.EAGAIN) {
		return nil
	}
	return failed
}

// Next waits for messages, polling for the time of spin before it blocks, and passes them to take.
func (i *Inbox) Next(spin time.Duration, take func(message []byte) error) error {
	got := false
	taken := func(message []byte) error {
		got = true
		return take(message)
	}
	if spin > 0 {
		for began := time.Now(); !got && time.Since(began) < spin; {
			if err := i.Poll(taken); err != nil {
				return err
			}
		}
	}
	if got {
		return nil
	}
	var failed error
	err := i.raw.Read(func(fd uintptr) bool {
		failed = i.drain(int(fd), taken)
		return got || !errors.Is(failed, unix.EAGAIN)
	})
	if got && errors.Is(failed, unix.EAGAIN) {
		return err
	}
	return errors.Join(failed, err)
}

// drain receives until no more data is available; then it returns EAGAIN.
func (i *Inbox) drain(fd int, take func(message []byte) error) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	for {
		n, _, err := unix.Recvfrom(fd, i.buffer[i.have:], unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		case n == 0:
			return io.EOF
		}
		i.have += n
		if err := i.messages(take); err != nil {
			return err
		}
	}
}

// messages passes the whole messages to take. REQUIRES: mu.
func (i *Inbox) messages(take func(message []byte) error) error {
	at := 0
	for i.have-at >= 4 {
		n := int(binary.LittleEndian.Uint32(i.buffer[at:]))
		if n > MaxMessageBytes {
			return fmt.Errorf("a message of %d bytes; at most %d are allowed", n, MaxMessageBytes)
		}
		if i.have-at < 4+n {
			if 4+n > len(i.buffer) && i.have-at > len(i.buffer)/2 {
				// Grow to twice the received size at most: an announced length alone costs no
				// memory.
				grown := make([]byte, min(4+n+4096, 2*len(i.buffer)))
				copy(grown, i.buffer[at:i.have])
				i.buffer, i.have, at = grown, i.have-at, 0
			}
			break
		}
		if err := take(i.buffer[at+4 : at+4+n]); err != nil {
			return err
		}
		at += 4 + n
	}
	copy(i.buffer, i.buffer[at:i.have])
	i.have -= at
	if i.have == 0 && len(i.buffer) > keptBytes {
		i.buffer = make([]byte, inboxBytes) // a large message is rare
	}
	return nil
}

// Into decodes a message from an inbox.
func Into(message []byte, m proto.Message) error { return proto.Unmarshal(message, m) }
