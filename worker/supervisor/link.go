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

// The files that a child inherits beside the standard ones: the reading end of a pipe with its secret, and the writing
// end of one for its signs of life.
const (
	secretFile = 3 + iota
	signsFile
)

// The bytes that a child writes into the pipe for its signs of life.
const (
	signAlive      = 'a'
	signRegistered = 'r'
)

// Link is a child's side of the two pipes between it and its supervisor.
type Link struct {
	secret []byte
	signs  int
}

// Inherited takes over what the supervisor of this process has handed to it. It is called once, by a child, before it
// opens a file or starts a program.
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
	// A supervisor that is stopped reads nothing: the child must not wait for it.
	if err := unix.SetNonblock(signsFile, true); err != nil {
		return nil, fmt.Errorf("supervisor: signs of life: %w", err)
	}
	return &Link{secret: secret, signs: signsFile}, nil
}

// Secret is Config.Secret of the supervisor.
func (l *Link) Secret() []byte { return l.secret }

// Alive tells the supervisor that the worker does not hang. After the first call it must be called every few seconds:
// see Config.Silence.
func (l *Link) Alive() { l.sign(signAlive) }

// Registered tells the supervisor that the scheduler has registered the worker.
func (l *Link) Registered() { l.sign(signRegistered) }

func (l *Link) sign(s byte) {
	// An error is harmless: a full pipe has enough signs, and a closed one means that the supervisor has ended.
	_, _ = unix.Write(l.signs, []byte{s})
}

// signs are what a supervisor has heard of one life of a child.
type signs struct {
	file       *os.File
	heard      atomic.Uint64
	registered atomic.Bool
}

// read notes signs until their pipe ends.
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
	// silenceTicks is in how many parts the longest silence is counted.
	silenceTicks = 20
	// startTicks is how many of those parts a child may take to its first sign: it may register a terabyte with a driver.
	startTicks = 30 * silenceTicks
)

// silence counts for how long a child has given no sign of life. It counts ticks that the supervisor has seen, and no time:
// a machine, or a supervisor, that stood still for an hour has seen one, and holds that against nobody.
type silence struct {
	heard uint64
	ticks int
}

// tick notes that one more has passed, and says whether the child has been silent for too long.
func (s *silence) tick(heard uint64) (tooLong bool) {
	if heard != s.heard {
		s.heard, s.ticks = heard, 0
		return false
	}
	s.ticks++
	return s.ticks > silenceTicks && heard > 0 || s.ticks > startTicks
}

// length is how long that is.
func (s *silence) length(tick time.Duration) time.Duration { return time.Duration(s.ticks) * tick }
