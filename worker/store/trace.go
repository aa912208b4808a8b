package store

import (
	"bufio"
	"fmt"
	"os"

	"github.com/millrace/millrace/memory/alloc"
)

// TraceEnv is the environment variable with the name of a trace file. A store writes its
// allocations and frees to that file, with the number of the process appended to the name. It is
// for tests of fragmentation.
const TraceEnv = "MILLRACE_ALLOC_TRACE"

// trace is the open file. Its methods are called under the store's lock.
type trace struct {
	file *os.File
	out  *bufio.Writer
}

func openTrace() (*trace, error) {
	name := os.Getenv(TraceEnv)
	if name == "" {
		return nil, nil //nolint:nilnil // there is none
	}
	f, err := os.Create(fmt.Sprintf("%s.%d", name, os.Getpid()))
	if err != nil {
		return nil, fmt.Errorf("store: %s: %w", TraceEnv, err)
	}
	return &trace{file: f, out: bufio.NewWriter(f)}, nil
}

func (t *trace) step(s alloc.Step) { _, _ = fmt.Fprintln(t.out, s) } // close reports the error

func (t *trace) close() error {
	if err := t.out.Flush(); err != nil {
		_ = t.file.Close() // the first error is more useful
		return err
	}
	return t.file.Close()
}
