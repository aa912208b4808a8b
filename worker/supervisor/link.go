package supervisor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// The files that a child inherits besides the standard ones: the read end of a pipe with its
// secret, and the write end of the pipe for its signs of life.
const (
	secretFile = 3 + iota
	signsFile
)

// The bytes that a child writes into the pipe for its signs of life.
const (
	signAlive      = 'a'
	signRegistered = 'r'
)

// Link is a child's side of the two pipes between the child and its supervisor.
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
	// A stopped supervisor does not read the pipe, and the child must not block on it.
	if err := unix.SetNonblock(signsFile, true); err != nil {
		return nil, fmt.Errorf("supervisor: signs of life: %w", err)
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

func (l *Link) sign(s byte) {
	// An error is harmless: a full pipe has enough signs, and a closed one means that the
	// supervisor has ended.
	_, _ = unix.Write(l.signs, []byte{s})
}

// signs are the signs of life that a supervisor has received from one process of a child.
// heard counts them.
type signs struct {
	file       *os.File
	heard      atomic.Uint64
	registered atomic.Bool
}

// read counts signs until their pipe ends.
func (s *signs) read() {
	buffer := make([]byte, 64)
	for {
		n, err := s.file.Read(buffer)
		for _, sign := range buffer[:n] {
			if sign == signRegistered {
				s.registered.Store(true)
			}
		}
		s.heard.Add(uint64(n))
		if err != nil {
			return
		}
	}
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
