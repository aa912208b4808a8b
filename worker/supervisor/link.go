package supervisor

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/controlpage"
	"github.com/millrace/millrace/internal/descriptors"
)

// The files that a child inherits besides the standard ones: the read end of a pipe with its
// secret, and one end of the socket for its signs.
const (
	secretFile = 3 + iota
	signsFile
)

// The signs that a child sends, one byte each.
const (
	signAlive      = 'a'
	signRegistered = 'r'
	// signPage comes with the descriptor of a control page.
	signPage = 'p'
)

// Link is a child's side of the pipe and the socket between the child and its supervisor.
type Link struct {
	secret []byte
	signs  int
}

// Inherited takes over the files that the supervisor has passed to this process.
// A child calls it once, before it opens any file or starts any program.
func Inherited() (*Link, error) {
	unix.CloseOnExec(secretFile)
	unix.CloseOnExec(signsFile)
	file := os.NewFile(secretFile, "secret of the supervisor")
	if file == nil {
		return nil, fmt.Errorf("supervisor: %s is set, and descriptor %d is not open; start \"millrace worker\" without that variable", ChildEnv, secretFile)
	}
	secret, err := io.ReadAll(file)
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("supervisor: read what it handed over: %w", err)
	}
	return &Link{secret: secret, signs: signsFile}, nil
}

// Secret returns Config.Secret of the supervisor.
func (l *Link) Secret() []byte { return l.secret }

// Alive tells the supervisor that the worker does not hang. After the first call it must be called
// every few seconds: see Config.Silence.
func (l *Link) Alive() { l.sign(signAlive) }

// Registered tells the supervisor that the scheduler has registered the worker.
func (l *Link) Registered() { l.sign(signRegistered) }

// Page gives the supervisor the control page of a new executor process, so that it can tell which
// function was running when the worker died.
func (l *Link) Page(page *os.File) {
	// An error is harmless, as in sign: the supervisor knows less.
	_ = unix.Sendmsg(l.signs, []byte{signPage}, unix.UnixRights(int(page.Fd())), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

func (l *Link) sign(s byte) {
	// A stopped supervisor does not read the socket, and the child must not block on it. An error
	// is harmless: a full socket has enough signs, and a closed one means that the supervisor has
	// ended.
	_ = unix.Sendmsg(l.signs, []byte{s}, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

// signs are what the supervisor hears of a child.
type signs struct {
	conn       *net.UnixConn
	heard      atomic.Uint64
	registered atomic.Bool
	// pages are the control pages of the child's executor processes. incomplete: one of them did
	// not arrive. They belong to read until it has returned.
	pages      []*os.File
	incomplete bool
}

// read counts the signs until the child has ended.
func (s *signs) read() {
	buffer := make([]byte, 64)
	for {
		// Bytes after one with a descriptor are in the next message.
		n, files, err := descriptors.Receive(s.conn, buffer, 1, "control page")
		pages := 0
		for _, sign := range buffer[:n] {
			switch sign {
			case signRegistered:
				s.registered.Store(true)
			case signPage:
				pages++
			}
		}
		s.keep(files)
		s.incomplete = s.incomplete || pages != len(files)
		s.heard.Add(uint64(n))
		if err != nil || n == 0 {
			return
		}
	}
}

// keep adds control pages, and closes those of processes that have ended.
func (s *signs) keep(files []*os.File) {
	if len(files) == 0 {
		return
	}
	s.pages = append(slices.DeleteFunc(s.pages, func(page *os.File) bool {
		_, _, _, over := controlpage.Read(page)
		if over {
			_ = page.Close() // only read from
		}
		return over
	}), files...)
}

// close returns the attempts whose functions were running when the child ended; known: there are no
// others. REQUIRES: read has returned.
func (s *signs) close() (called []*workerv1.AttemptRef, known bool) {
	known = !s.incomplete
	for _, page := range s.pages {
		task, attempt, unknown, _ := controlpage.Read(page)
		known = known && !unknown
		if task != 0 {
			called = append(called, &workerv1.AttemptRef{TaskId: uint64(task), Attempt: uint32(attempt)})
		}
		_ = page.Close() // only read from
	}
	_ = s.conn.Close() // the child has ended
	return called, known
}

const (
	// silenceTicks is the number of ticks into which Config.Silence is divided.
	silenceTicks = 20
	// startTicks is the number of ticks that a child may take to its first sign.
	// It is long, since the child may register a terabyte of memory with a driver.
	startTicks = 30 * silenceTicks
)

// silence measures for how long a child has given no sign of life. It counts ticks that the
// supervisor has seen, not time. If the machine or the supervisor stood still for an hour,
// that is one tick, so no child is killed for it.
type silence struct {
	heard uint64
	ticks int
}

// tick counts one more tick, and reports whether the child has been silent for too long.
// heard is the current number of signs.
func (s *silence) tick(heard uint64) (tooLong bool) {
	if heard != s.heard {
		s.heard, s.ticks = heard, 0
		return false
	}
	s.ticks++
	return s.ticks > silenceTicks && heard > 0 || s.ticks > startTicks
}

// length converts the silence to a duration.
func (s *silence) length(tick time.Duration) time.Duration { return time.Duration(s.ticks) * tick }
