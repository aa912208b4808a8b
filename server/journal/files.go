package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Files is what a journal needs of a file system. All names are within the journal's directory.
// Tests replace it, to break disks.
type Files interface {
	// List returns the names of the files, in any order.
	List() ([]string, error)
	Read(name string) ([]byte, error)
	// Append opens a file for writing at its end, and makes it if there is none.
	Append(name string) (File, error)
	Rename(from, to string) error
	Remove(name string) error
	// SyncNames makes the files that were made, renamed and removed durable.
	SyncNames() error
}

// File is a file that a journal writes.
type File interface {
	Write([]byte) (int, error)
	// Sync makes the contents durable.
	Sync() error
	Truncate(size int64) error
	Close() error
}

// Directory is the Files of a real directory. It is locked until Close.
type Directory struct {
	path string
	lock *os.File
}

// OpenDirectory makes the directory if there is none, and locks it for this process.
func OpenDirectory(path string) (*Directory, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("journal: %w: choose another directory", err)
	}
	lock, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("journal: %w: choose another directory", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = lock.Close() // The error of the lock says more.
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("journal %s: another scheduler uses it: stop that one, or choose another directory", path)
		}
		return nil, fmt.Errorf("journal %s: lock it: %w: choose a directory of a file system with locks", path, err)
	}
	return &Directory{path: path, lock: lock}, nil
}

// Path returns the path of the directory.
func (d *Directory) Path() string { return d.path }

// Close gives the lock back.
func (d *Directory) Close() error { return d.lock.Close() }

// List returns the names of all files.
func (d *Directory) List() ([]string, error) {
	entries, err := os.ReadDir(d.path)
	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names, err
}

// Read returns the contents of a file.
func (d *Directory) Read(name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(d.path, name))
}

// Append opens a file for writing at its end.
func (d *Directory) Append(name string) (File, error) {
	file, err := os.OpenFile(filepath.Join(d.path, name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	return diskFile{file}, nil
}

// Rename gives a file another name, and replaces the file that has that name.
func (d *Directory) Rename(from, to string) error {
	return os.Rename(filepath.Join(d.path, from), filepath.Join(d.path, to))
}

// Remove deletes a file.
func (d *Directory) Remove(name string) error { return os.Remove(filepath.Join(d.path, name)) }

// SyncNames calls fsync for the directory.
func (d *Directory) SyncNames() error { return d.lock.Sync() }

// diskFile is a File on a disk. Its length is all the metadata that matters, so fdatasync is
// enough.
type diskFile struct{ *os.File }

func (f diskFile) Sync() error { return unix.Fdatasync(int(f.Fd())) }
