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

	"github.com/millrace/millrace/internal/board"
	"github.com/millrace/millrace/internal/slabshare"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

// Reasons of refusals.
const (
	reasonDenied    = "UNAUTHENTICATED"
	reasonProtocol  = "PROTOCOL_VIOLATION"
	reasonElsewhere = "OBJECT_ELSEWHERE"
	reasonNotHere   = "OBJECT_NOT_HERE"
	reasonNoPlace   = "NO_PLACE"
	reasonDevice    = "DEVICE_MEMORY"
)

const (
	maxRefs    = 10000
	maxTTL     = 10 * time.Minute
	defaultTTL = 30 * time.Second
	// spinFor is how long the server of a GPU's memory looks for the next request of
	// a reader that is busy.
	spinFor = 100 * time.Microsecond
	// helloTimeout is how long a new connection may be silent, and maxGreeting how many may be new at a time: one more ends the
	// oldest of them, so that silent ones do not use up descriptors.
	helloTimeout = 5 * time.Second
	// maxLeases is how many leases one connection may hold, and answerBytes bounds the heads in one answer.
	maxLeases   = 1 << 18
	answerBytes = 64 << 20
	// writerPatience is the default of WriterPatience, slowestWriter how many bytes a second a writer has to write besides.
	writerPatience = 30 * time.Second
	slowestWriter  = 32 << 20
	maxGreeting    = 64
)

// ServerConfig is fixed for the life of a server.
type ServerConfig struct {
	// Space is what is lent: one that another process can map by its descriptor, or
	// by what Device says.
	Space memory.Space
	// Device, if set, is how a Space on a GPU is mapped. Host, if set, is then lent to
	// those who cannot.
	Device *Device
	Host   *Host
	// Source is what is read from, Receiver what is written to; without one,
	// nobody can write.
	Source   transfer.Source
	Receiver transfer.Receiver
	// Board, if set, is where readers that map Space find what Source has. It is closed
	// after the server.
	Board *board.Board
	// Words, if set, serves connections that are not for loans until they end; see slabshare.DialWords.
	Words func(net.Conn)
	// WriterPatience is how long a client may take to write an object, and a second more for each 32 MiB. Default 30 s.
	WriterPatience time.Duration
	// Incarnation is told with leases.
	Incarnation string
	// Accept says whether a token is one of the cluster. Nil: nobody is asked.
	Accept func(token string) bool
	Log    *slog.Logger
}

// Device tells another process of the same host how to map memory on a GPU.
type Device struct {
	// Handle is a CUipcMemHandle, UUID that of the GPU.
	Handle [64]byte
	UUID   [16]byte
}

// Host is host memory in which others see, and write, what lies on a GPU.
type Host struct {
	// Space has a descriptor, and the identity of the GPU's.
	Space    memory.Space
	Source   transfer.Source
	Receiver transfer.Receiver
}

// Server is the lending side.
type Server struct {
	config   ServerConfig
	listener *net.UnixListener
	// readOnly is the descriptor that readers get: it cannot be mapped for
	// writing. writable is that of writers. Both are nil if the memory lies on a GPU.
	readOnly, writable *os.File
	wait               sync.WaitGroup
	in, out            atomic.Uint64

	mu sync.Mutex
	// All below is guarded by mu. kept are the bytes under leases of clients.
	conns  map[*serving]struct{}
	closed bool
	kept   uint64
	// greeting are the connections without a good hello, the oldest first.
	greeting []*serving
}

// Listen begins to lend under the name that belongs to the address of the
// worker's DataService.
func Listen(dataAddress string, c ServerConfig) (*Server, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.WriterPatience <= 0 {
		c.WriterPatience = writerPatience
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

// open makes the descriptors that are passed on.
func (s *Server) open() (err error) {
	fd := s.config.Space.FD()
	switch {
	case s.config.Host != nil:
		fd = s.config.Host.Space.FD()
	case s.config.Device != nil:
		return nil
	}
	if fd < 0 {
		return fmt.Errorf("borrow: %w: this kind of memory cannot be mapped by others", transfer.ErrNoWay)
	}
	// What was opened for reading cannot be mapped for writing, whoever has it.
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

// Traffic returns the bytes that clients wrote and that were lent so far, or that
// readers say they found on the board.
func (s *Server) Traffic() (in, out uint64) {
	if out = s.out.Load(); s.config.Board != nil {
		out += s.config.Board.Stats().ReadBytes
	}
	return s.in.Load(), out
}

// Close ends all connections; their leases are taken back.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		_ = c.unix.Close()
	}
	s.mu.Unlock()
	err := s.listener.Close()
	s.wait.Wait()
	return errors.Join(err, s.closeFiles())
}

func (s *Server) accept() {
	defer s.wait.Done()
	refusing := false // Whether that was said.
	for {
		conn, err := s.listener.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// Out of descriptors, most likely: those who wait too long take other paths.
			if !refusing {
				s.config.Log.Warn("same-host readers are not let in", "error", err)
			}
			refusing = true
			<-time.After(10 * time.Millisecond) // else this would spin
			continue
		}
		refusing = false
		if !s.sameUser(conn) {
			continue
		}
		c := &serving{server: s, unix: conn, leases: make(map[transfer.LeaseID]uint64), places: make(map[uint64]*place)}
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			_ = conn.Close()
			return
		}
		s.conns[c] = struct{}{}
		if s.greeting = append(s.greeting, c); len(s.greeting) > maxGreeting {
			_ = s.greeting[0].unix.Close() // its goroutine gets an error and ends
			s.greeting = slices.Delete(s.greeting, 0, 1)
		}
		s.wait.Add(1)
		s.mu.Unlock()
		go c.run()
	}
}

// sameUser says whether the peer of a connection runs as the same user as this process. It reads nothing from the
// connection, and closes it if not.
func (s *Server) sameUser(conn *net.UnixConn) bool {
	peer, err := slabshare.Peer(conn)
	if err == nil && int(peer.Uid) == os.Geteuid() {
		return true
	}
	if err == nil {
		// It fits into the socket, whatever the other side does.
		_ = slabshare.Write(conn, refusal(1, reasonDenied, fmt.Sprintf("this worker lends to processes of user %d, not %d", os.Geteuid(), peer.Uid)))
	}
	_ = conn.Close() // nothing was taken from it
	return false
}

// greeted takes a connection off the list of new ones: its hello was accepted, or it has ended.
func (s *Server) greeted(c *serving) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.greeting = slices.DeleteFunc(s.greeting, func(other *serving) bool { return other == c })
}
