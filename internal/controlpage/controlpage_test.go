package controlpage

import (
	"errors"
	"os"
	"os/signal"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/ids"
)

// The page of a process that has died tells which function was running.
func TestPagesTellWhatWasRunning(t *testing.T) {
	const none = ids.TaskID(0)
	store := func(p *Page, at int, ordinal uint64) { *p.word(at) = ordinal }
	for name, c := range map[string]struct {
		write         func(*Page)
		task          ids.TaskID
		unknown, over bool
	}{
		"starts":              {func(p *Page) { store(p, begunAt, 0) }, none, false, false},
		"prepares":            {func(p *Page) { p.Ready(true); store(p, begunAt, 200) }, none, false, false},
		"calls":               {func(p *Page) { p.Ready(true); store(p, calledAt, 200); store(p, endedAt, 199) }, 1200, false, false},
		"ended":               {func(p *Page) { p.Ready(true); store(p, calledAt, 200); store(p, endedAt, 200) }, none, false, false},
		"prepares the second": {func(p *Page) { p.Ready(true); store(p, calledAt, 199); store(p, begunAt, 200); store(p, endedAt, 199) }, none, false, false},
		"tells only begun":    {func(p *Page) { p.Ready(false); store(p, begunAt, 200); store(p, endedAt, 199) }, 1200, false, false},
		"tells nothing":       {func(p *Page) { p.Ready(false) }, none, true, false},
		"given up":            {func(p *Page) { p.Ready(true); store(p, calledAt, 200); p.Close() }, none, false, true},
	} {
		p, err := New()
		if err != nil {
			t.Fatal(err)
		}
		file, err := unix.Dup(int(p.File.Fd())) // as the supervisor has it
		if err != nil {
			t.Fatal(err)
		}
		theirs := os.NewFile(uintptr(file), "page")
		for ordinal := uint64(1); ordinal <= 200; ordinal++ {
			p.Sent(ordinal, ids.TaskID(1000+ordinal), 7)
		}
		c.write(p)
		task, attempt, unknown, over := Read(theirs)
		if task != c.task || task != none && attempt != 7 || unknown != c.unknown || over != c.over {
			t.Errorf("a process that %s: task %d, attempt %d, unknown %v, over %v", name, task, attempt, unknown, over)
		}
		if !c.over {
			p.Close()
		}
		if err := theirs.Close(); err != nil {
			t.Error(err)
		}
	}
}

// An empty control page would kill the worker by SIGBUS at its first use.
func TestControlPageWithoutRoomIsRefused(t *testing.T) {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	// The kernel counts a memfd as a file, and sends SIGXFSZ when it refuses a larger one.
	signal.Ignore(unix.SIGXFSZ)
	defer signal.Reset(unix.SIGXFSZ)
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 0, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	p, err := New()
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	if err == nil {
		p.Close()
	}
	if !errors.Is(err, unix.EFBIG) || !strings.Contains(err.Error(), "ulimit -f") {
		t.Errorf("got %v", err)
	}
}
