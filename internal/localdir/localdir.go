// Package localdir is an Adapter: directories that go when their process does.
//
// Each life of a worker has one below the local directory, with a lock that lives
// as long as the process: whoever comes next removes the directories whose lock is
// free. A process that is killed removes nothing itself.
package localdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	prefix = "millrace-worker-"
	// unborn is in front of the name of a directory until it is locked.
	unborn = ".new-"
	// stillborn is how old a directory without a lock must be to be removed.
	stillborn = time.Minute
)

// Dir is the directory of this process.
type Dir struct {
	path   string
	lock   *os.File
	close  sync.Once
	closed error
}

// Or returns the local directory that is meant: the system's for temporary files
// if none is named.
func Or(parent string) string {
	if parent == "" {
		return os.TempDir()
	}
	return parent
}

// Make makes a directory below parent, which is made if need be; an empty one is
// the system's for temporary files. The owner's name becomes part of its name. It
// is locked from the moment that others can see it.
func Make(parent, owner string) (*Dir, error) {
	// Absolute, for it is told to processes that work elsewhere.
	parent, err := filepath.Abs(Or(parent))
	if err == nil {
		err = os.MkdirAll(parent, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("local directory: %w; choose another --local-directory", err)
	}
	owner = strings.Map(func(r rune) rune {
		if r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '_'
	}, owner)
	fresh, err := os.MkdirTemp(parent, unborn+prefix+owner+"-*")
	if err != nil {
		return nil, fmt.Errorf("local directory: %w; choose another --local-directory", err)
	}
	lock, err := os.OpenFile(filepath.Join(fresh, "lock"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		if err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			err = errors.Join(err, lock.Close())
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("local directory: lock %s: %w; choose another --local-directory", fresh, err), os.RemoveAll(fresh))
	}
	d := &Dir{path: filepath.Join(parent, strings.TrimPrefix(filepath.Base(fresh), unborn)), lock: lock}
	if err := os.Rename(fresh, d.path); err != nil {
		return nil, errors.Join(fmt.Errorf("local directory: %w", err), lock.Close(), os.RemoveAll(fresh))
	}
	return d, nil
}

// Path is where it is: absolute.
func (d *Dir) Path() string { return d.path }

// Close removes the directory and all that is in it.
func (d *Dir) Close() error {
	d.close.Do(func() { d.closed = errors.Join(os.RemoveAll(d.path), d.lock.Close()) })
	return d.closed
}

// Clean removes the directories that dead processes left below parent, which
// means the same as for Make, and returns how many there were. Those that it may
// not remove stay.
func Clean(parent string) (removed int) {
	parent = Or(parent)
	entries, err := os.ReadDir(parent)
	if err != nil {
		return 0
	}
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(strings.TrimPrefix(e.Name(), unborn), prefix) && remove(filepath.Join(parent, e.Name()), e) {
			removed++
		}
	}
	return removed
}

// remove removes a directory if its process is dead.
func remove(path string, e os.DirEntry) bool {
	// Its maker has to get the lock: one that is about to be locked is let alone.
	if strings.HasPrefix(e.Name(), unborn) && !old(e) {
		return false
	}
	lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_RDWR, 0)
	if err != nil {
		// Somebody else is about to remove it, or did not get to the end.
		return errors.Is(err, os.ErrNotExist) && old(e) && os.RemoveAll(path) == nil
	}
	defer func() { _ = lock.Close() }() // nothing was written
	return unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil && os.RemoveAll(path) == nil
}

// old says whether nobody has made or removed anything in a directory for long.
func old(e os.DirEntry) bool {
	info, err := e.Info()
	return err == nil && time.Since(info.ModTime()) >= stillborn
}
