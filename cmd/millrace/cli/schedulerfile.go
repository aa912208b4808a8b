package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	millrace "github.com/millrace/millrace/clients/go"
)

// A scheduler holds a lock (flock) on its file as long as it runs. The kernel releases the lock
// when the process ends, however it ends, so a file without a lock is stale. A process number would
// not show that: another process may have it by now, or it may be a number of another machine.

// heldFile is the scheduler file of this process.
type heldFile struct {
	name string
	file *os.File
}

// schedulerFile returns the name of --scheduler-file, empty if there is none. It fails if the file
// belongs to a running scheduler, or is no scheduler file.
func (a *app) schedulerFile() (string, error) {
	name := a.settings.String("scheduler-file")
	if name == "" {
		return "", nil
	}
	if info, err := os.Lstat(name); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		if name, err = filepath.EvalSymlinks(name); err != nil {
			return "", usageError{fmt.Errorf("--scheduler-file: %w", err)}
		}
	}
	stale, err := staleFile(name)
	if stale != nil {
		_ = stale.Close() // only read from
	}
	return name, err
}

// staleFile opens and locks a file that a dead scheduler left; nil if there is no file. It fails if
// the file is anything else.
func staleFile(name string) (*os.File, error) {
	wrong := func(text string) error {
		return usageError{fmt.Errorf("--scheduler-file %s: %s; name another file, or remove this one", name, text)}
	}
	info, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && !info.Mode().IsRegular() {
		return nil, wrong("it is not a regular file")
	}
	if err != nil {
		return nil, usageError{fmt.Errorf("--scheduler-file: %w", err)}
	}
	file, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, usageError{fmt.Errorf("--scheduler-file: %w", err)}
	}
	const most = 64 << 10
	text, err := io.ReadAll(io.LimitReader(file, most))
	var content millrace.SchedulerFile
	if err == nil && len(bytes.TrimSpace(text)) > 0 && (json.Unmarshal(text, &content) != nil || content.Address == "") {
		err = wrong("its content is not that of a scheduler file, and would be lost")
	}
	if err == nil && errors.Is(unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK) {
		err = usageError{fmt.Errorf("--scheduler-file %s: the scheduler at %s (pid %d) is running and has this file; end it, or name another file",
			name, content.Address, content.PID)}
	}
	if err != nil {
		_ = file.Close() // only read from
		return nil, err
	}
	return file, nil
}

// writeSchedulerFile writes the file that clients read, atomically and readable by this user only.
// The name must come from schedulerFile.
func writeSchedulerFile(name string, srv served, token string) (*heldFile, error) {
	if name == "" {
		return nil, nil
	}
	return holdFile(name, millrace.SchedulerFile{
		ID: srv.ID(), Address: pastable(srv.Address()), HTTP: pastable(srv.HTTPAddress()), Token: token, PID: os.Getpid(),
	})
}

// holdFile writes the file and locks it.
func holdFile(name string, content millrace.SchedulerFile) (*heldFile, error) {
	text, err := json.Marshal(content)
	if err != nil {
		return nil, err
	}
	temporary, err := os.CreateTemp(filepath.Dir(name), ".scheduler-*") // 0600
	if err != nil {
		return nil, fmt.Errorf("--scheduler-file: %w", err)
	}
	_, err = temporary.Write(append(text, '\n'))
	if err == nil {
		// A file system without locks also has none to test, so an error does no harm.
		_ = unix.Flock(int(temporary.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		err = place(temporary.Name(), name)
	}
	if err != nil {
		_ = temporary.Close()
		_ = os.Remove(temporary.Name())
		if usage := (usageError{}); !errors.As(err, &usage) {
			err = fmt.Errorf("--scheduler-file: %w", err)
		}
		return nil, err
	}
	return &heldFile{name, temporary}, nil
}

// place gives a file its name, unless a running scheduler has a file of that name.
func place(temporary, name string) error {
	const tries = 100
	for range tries {
		stale, err := staleFile(name)
		if err != nil {
			return err
		}
		if stale == nil {
			// A rename would replace a file that another scheduler has written since.
			switch err = os.Link(temporary, name); {
			case err == nil:
				_ = os.Remove(temporary) // the file has its name
				return nil
			case errors.Is(err, fs.ErrExist):
				continue
			}
			return os.Rename(temporary, name) // the file system has no links
		}
		// We hold the lock of the old file. If it still has the name, no other process may replace
		// it.
		if same(stale, name) {
			err = os.Rename(temporary, name)
			return errors.Join(err, stale.Close())
		}
		_ = stale.Close() // only read from
	}
	return fmt.Errorf("%s: other processes replace it all the time", name)
}

// same reports whether an open file is the one that has the name.
func same(file *os.File, name string) bool {
	own, err := file.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(name)
	return err == nil && os.SameFile(own, there)
}

// remove removes the file, unless another process has put another file in its place. A nil heldFile
// has no file.
func (h *heldFile) remove() {
	if h == nil {
		return
	}
	if same(h.file, h.name) {
		_ = os.Remove(h.name) // if this fails, the file stays without a lock
	}
	_ = h.file.Close()
}
