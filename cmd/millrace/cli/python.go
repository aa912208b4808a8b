package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
)

// pythonTimeout bounds the start of an interpreter, which takes 20 ms, or longer from a slow disk.
const pythonTimeout = time.Minute

// pythonProbe is the program that tryPython runs. It looks for the modules that executors import,
// but imports none of them: that would take longer than the start of a cluster. The mark
// distinguishes Python from other programs that end with success.
const (
	pythonMark  = "millrace executor of Python"
	pythonProbe = `import sys
if sys.version_info < (3, 10): sys.exit("it is Python " + sys.version.split()[0] + ", and millrace needs 3.10 or later")
from importlib.util import find_spec
for name in "millrace.executor", "google.protobuf", "numpy":
    if find_spec(name) is None: sys.exit("No module named " + repr(name))
print("` + pythonMark + `")`
)

// python returns the command of Python executors.
func (a *app) python() []string {
	name := a.settings.String("python")
	switch {
	case name == "":
		name = "python3"
		if self, err := os.Executable(); err == nil {
			beside := filepath.Join(filepath.Dir(filepath.Dir(self)), ".venv", "bin", "python")
			if _, err := os.Stat(beside); err == nil {
				name = beside
			}
		}
	case strings.ContainsRune(name, filepath.Separator):
		// Executors start in directories of their own, so the path must be absolute.
		if path, err := filepath.Abs(name); err == nil {
			name = path
		}
	}
	return []string{name, "-m", "millrace.executor"}
}

// demandPython fails if the interpreter that --python names cannot run Python tasks. Without
// --python it returns a warning with the reason instead, because a cluster may need no Python; the
// warning is empty if Python works.
func (a *app) demandPython(ctx context.Context) (warning string, err error) {
	if a.settings.Bool("zero") {
		return "", nil
	}
	name := a.python()[0]
	err = tryPython(ctx, name)
	switch {
	case err == nil || ctx.Err() != nil:
		return "", ctx.Err()
	case a.settings.String("python") == "":
		return fmt.Sprintf("Python tasks will fail, as %s cannot run them: %v; name a Python that has the package millrace with --python", name, err), nil
	}
	return "", unusableError{fmt.Errorf("--python %s: %w; name a Python that has the package millrace, or install the package there", name, err)}
}

// tryPython starts an interpreter that looks for the modules that executors import. It returns the
// reason if that fails.
func tryPython(ctx context.Context, name string) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	ctx, cancel := context.WithTimeout(ctx, pythonTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, "-c", pythonProbe)
	// NB: Python looks for modules in the working directory first.
	cmd.Dir = "/"
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, millrace.EnvToken+"=") })
	cmd.WaitDelay = time.Second
	out, said := &limited{end: end}, &limited{end: end}
	cmd.Stdout, cmd.Stderr = out, said
	err := cmd.Run()
	var ended *exec.ExitError
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("it did not find the package millrace within %v", pythonTimeout)
	case errors.Is(context.Cause(ctx), errTooMuch), err == nil && !bytes.HasPrefix(out.text, []byte(pythonMark)):
		return errors.New("it is not a Python interpreter")
	case err == nil:
		return nil
	case errors.As(err, &ended):
		lines := strings.Split(strings.TrimSpace(string(said.text)), "\n")
		if last := lines[len(lines)-1]; last != "" {
			return errors.New(last)
		}
		return err
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
		return errors.New("there is no such program")
	case errors.Is(err, os.ErrPermission):
		return errors.New("it may not be executed")
	}
	return err
}

// limited keeps the output of a program, and ends a program that writes more than Python would
// here.
type limited struct {
	text []byte
	end  context.CancelCauseFunc
}

var errTooMuch = errors.New("it writes too much")

// Write is part of io.Writer.
func (l *limited) Write(p []byte) (int, error) {
	if len(l.text)+len(p) > 64<<10 {
		l.end(errTooMuch)
		return 0, errTooMuch
	}
	l.text = append(l.text, p...)
	return len(p), nil
}
