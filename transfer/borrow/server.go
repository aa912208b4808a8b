package borrow

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/slabshare"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/objindex"
)

// Reasons of refusals, in BorrowResponse.error.
const (
	reasonDenied   = "UNAUTHENTICATED"
	reasonProtocol = "PROTOCOL_VIOLATION"
	reasonInternal = "INTERNAL"
	reasonDevice   = "DEVICE_MEMORY"
)

const (
	maxRefs = 10000
	// maxTTL is the longest lease that a reader gets: a reader that is stopped keeps objects no
	// longer than that. defaultTTL is the lease of a reader that asks for none.
	maxTTL     = 10 * time.Minute
	defaultTTL = transfer.DefaultLeaseTTL
	// acceptPause is the time between two attempts to accept a connection after one has failed, so
	// that the server does not spin while there are no descriptors.
	acceptPause = 10 * time.Millisecond
	// spinFor is how long the server of a GPU's memory polls for the next request of a reader that
	// has just sent one.
	spinFor = 100 * time.Microsecond
	// helloTimeout is how long a new connection may send nothing. maxGreeting is how many
	// connections may be without an accepted hello; one more ends the oldest of them, so that
	// silent connections do not use up descriptors.
	helloTimeout = 5 * time.Second
	maxGreeting  = 64
	// maxLeases is how many leases one connection may hold. maxFrames is how many frames their
	// objects may have, if the connection stages. answerBytes bounds the heads in one answer.
	maxLeases   = 1 << 18
	maxFrames   = 1 << 20
	answerBytes = 64 << 20
	// writerTimeout is the default of WriterTimeout. slowestWriter is the lowest rate of a writer
	// in bytes per second: each 32 MiB of an object add a second to WriterTimeout.
	writerTimeout = 30 * time.Second
	slowestWriter = 32 << 20
)

// ServerConfig does not change during the life of a server.
type ServerConfig struct {
	// Space is the memory that is lent. Another process must be able to map it, by its descriptor
	// or by the handle in Device.
	Space memory.Space
	// Device, if set, says how to map a Space that lies on a GPU. Host, if set, is then lent to the
	// processes that cannot map the GPU's memory.
	Device *Device
	Host   *Host
	// Source is the store that readers read from, Receiver the store that clients write to.
	// Receiver may be nil: then nobody can write.
	Source   transfer.Source
	Receiver transfer.Receiver
	// Index, if set, is the shared object index in which readers that map Space find the objects of
	// Source. Close it after the server.
	Index *objindex.Index
	// Notify, if set, serves a connection for completion notifications until it ends; see
	// slabshare.DialNotify.
	Notify func(net.Conn)
	// WriterTimeout is how long a client may take to write an object; each 32 MiB add a second.
	// Default 30 s.
	WriterTimeout time.Duration
	// StageTimeout is how long a reader may keep a place of Host.Stager. Default 5 s.
	StageTimeout time.Duration
	// Incarnation is sent with leases.
	Incarnation string
	// Accept says whether a token is one of the cluster. Nil: every token is accepted.
	Accept func(token string) bool
	// AcceptWriter says whether an accepted token may be used to write. Nil: each may.
	AcceptWriter func(token string) bool
	Log          *slog.Logger
}

// Device says how another process of the same host maps memory of a GPU.
type Device struct {
	// Handle is a CUipcMemHandle, UUID the UUID of the GPU.
	Handle [64]byte
	UUID   [16]byte
}

// Host is host memory in which other processes read and write the objects that lie on a GPU.
type Host struct {
	// Space has a descriptor, and the same identity as the space on the GPU.
	Space    memory.Space
	Source   transfer.Source
	Receiver transfer.Receiver
	// Stager, if set, copies parts of objects on the GPU to Space, for GPUs that cannot map that
	// GPU's memory.
	Stager Stager
}

// Server is the lending side.
type Server struct {
	config   ServerConfig
	listener *net.UnixListener
	// readOnly is the descriptor that readers get; it cannot be mapped for writing. writable is the
	// descriptor for writers. Both are nil if only the memory of a GPU is lent.
	readOnly, writable *os.File
	wait               sync.WaitGroup
	in, out            atomic.Uint64

	mu sync.Mutex
	// All below is guarded by mu. kept is the number of bytes under leases of clients.
	conns  map[*serving]struct{}
	closed bool
	kept   uint64
	// greeting are the connections without an accepted hello, the oldest first.
	greeting []*serving
}

// Listen begins to lend. The name of its socket is derived from the address of the worker's
// DataService.
func Listen(dataAddress string, c ServerConfig) (*Server, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.WriterTimeout <= 0 {
		c.WriterTimeout = writerTimeout
	}
	if c.StageTimeout <= 0 {
		c.StageTimeout = stageTimeout
	}
	s := &Server{config: c, conns: make(map[*serving]struct{})}
	if err := s.open(); err != nil {
		return nil, err
	}
	var err error
	if s.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: slabshare.Name(dataAddress), Net: "unix"}); err != nil {
		return nil, errors.Join(fmt.Errorf("borrow: listen as %s: %w", slabshare.Name(dataAddress), err), s.closeFiles())
	}
	s.wait.Add(1)
	go s.accept()
	return s, nil
}

// open makes the descriptors that are passed to other processes.
func (s *Server) open() (err error) {
	fd := s.config.Space.FD()
	switch {
	case s.config.Host != nil:
		fd = s.config.Host.Space.FD()
	case s.config.Device != nil:
		return nil
	}
	if fd < 0 {
		return fmt.Errorf("borrow: %w: this kind of memory cannot be mapped by others", transfer.ErrUnreachable)
	}
	// A descriptor that was opened for reading cannot be mapped for writing by any process.
	path := fmt.Sprintf("/proc/self/fd/%d", fd)
	if s.readOnly, err = os.OpenFile(path, os.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("borrow: the memory for readers: %w; is /proc mounted?", err)
	}
	if s.writable, err = os.OpenFile(path, os.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return errors.Join(fmt.Errorf("borrow: the memory for writers: %w", err), s.closeFiles())
	}
	return nil
}

func (s *Server) closeFiles() (err error) {
	for _, f := range []*os.File{s.readOnly, s.writable} {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}

// Traffic returns the bytes that clients wrote so far, and the bytes that were lent or that readers
// reported to have read by the shared object index.
func (s *Server) Traffic() (in, out uint64) {
	if out = s.out.Load(); s.config.Index != nil {
		out += s.config.Index.Stats().ReadBytes
	}
	return s.in.Load(), out
}

// Close ends all connections and takes their leases back.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		c.shutDown()
	}
	s.mu.Unlock()
	err := s.listener.Close()
	s.wait.Wait()
	return errors.Join(err, s.closeFiles())
}

func (s *Server) accept() {
	defer s.wait.Done()
	refusing := false // true once a warning was logged
	for {
		conn, err := s.listener.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// Probably no descriptors are left. Readers that wait too long use other paths.
			if !refusing {
				s.config.Log.Warn("same-host readers are not let in", "error", err)
			}
			refusing = true
			<-time.After(acceptPause)
			continue
		}
		refusing = false
		if !s.sameUser(conn) {
			continue
		}
		c := &serving{server: s, unix: conn, leases: make(map[transfer.LeaseID]object), places: make(map[uint64]*place), stages: make(map[uint64]*staged)}
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			_ = conn.Close()
			return
		}
		s.conns[c] = struct{}{}
		if s.greeting = append(s.greeting, c); len(s.greeting) > maxGreeting {
			s.greeting[0].shutDown() // its goroutine gets an error and ends
			s.greeting = slices.Delete(s.greeting, 0, 1)
		}
		s.wait.Add(1)
		s.mu.Unlock()
		go c.run()
	}
}

// sameUser says whether the other end of a connection runs as the same user as this process. It
// reads nothing from the connection; it closes the connection if the user is another one.
func (s *Server) sameUser(conn *net.UnixConn) bool {
	peer, err := slabshare.Peer(conn)
	if err == nil && int(peer.Uid) == os.Geteuid() {
		return true
	}
	if err == nil {
		// The message fits into the socket's buffer, so the write does not block.
		_ = slabshare.Write(conn, refusal(1, reasonDenied, fmt.Sprintf("this worker lends to processes of user %d, not %d", os.Geteuid(), peer.Uid)))
	}
	_ = conn.Close() // nothing was read from it
	return false
}

// greeted removes a connection from the list of new ones: its hello was accepted, or it has ended.
func (s *Server) greeted(c *serving) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.greeting = slices.DeleteFunc(s.greeting, func(other *serving) bool { return other == c })
}
