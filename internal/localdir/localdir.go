// Package localdir is an Adapter: it makes directories that are removed when their process is gone.
//
// Each process of a worker has one below the local directory. The directory contains a lock that is
// held as long as the process lives. A killed process cannot remove its directory, so the next
// worker on the host removes all directories whose lock is free.
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
	// unborn is the prefix of a directory's name until the directory is locked.
	unborn = ".new-"
	// stillborn is the age at which a directory without a lock is removed.
	stillborn = time.Minute
)

// Dir is the directory of this process.
type Dir struct {
	path   string
	lock   *os.File
	close  sync.Once
	closed error
}

// Or returns parent, or the system's directory for temporary files if parent is empty.
func Or(parent string) string {
	if parent == "" {
		return os.TempDir()
	}
	return parent
}

// Make makes a directory below parent, and parent itself if necessary; an empty parent means the
// system's directory for temporary files. The owner's name becomes part of the directory's name.
// The directory gets its final name after it was locked, so other processes never see it unlocked.
func Make(parent, owner string) (*Dir, error) {
	// The path is absolute, since it is passed to processes with other working directories.
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

// Path returns the absolute path of the directory.
func (d *Dir) Path() string { return d.path }

// Close removes the directory and all its contents.
func (d *Dir) Close() error {
	d.close.Do(func() { d.closed = errors.Join(os.RemoveAll(d.path), d.lock.Close()) })
	return d.closed
}

// Clean removes the directories that dead processes left below parent, and returns their number.
// An empty parent means the same as for Make. Directories that this user may not remove stay.
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
	// The maker of a new directory needs some time to lock it, so a recent one stays.
	if strings.HasPrefix(e.Name(), unborn) && !old(e) {
		return false
	}
	lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_RDWR, 0)
	if err != nil {
		// Another process is removing this directory, or its maker ended before the lock existed.
		return errors.Is(err, os.ErrNotExist) && old(e) && os.RemoveAll(path) == nil
	}
	defer func() { _ = lock.Close() }() // nothing was written
	return unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil && os.RemoveAll(path) == nil
}

// old reports whether no entry of the directory has been made or removed for a long time.
func old(e os.DirEntry) bool {
	info, err := e.Info()
	return err == nil && time.Since(info.ModTime()) >= stillborn
}
