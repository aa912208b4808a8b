package journal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
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
	// ReadPart returns bytes of a file. It is an error if the file is too short.
	ReadPart(name string, offset, size int64) ([]byte, error)
	// Size returns the length of a file.
	Size(name string) (int64, error)
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

// PutFile makes a file with these contents, or replaces it. A crash leaves all of it or nothing.
func PutFile(files Files, name string, contents []byte) error {
	part := name + ".part"
	file, err := files.Append(part)
	if err != nil {
		return fmt.Errorf("journal: make %s: %w", part, err)
	}
	err = file.Truncate(0)
	if err == nil {
		_, err = file.Write(contents)
	}
	if err == nil {
		err = file.Sync()
	}
	if err != nil {
		_ = file.Truncate(0) // The disk may be full.
	}
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = files.Rename(part, name)
	}
	if err == nil {
		err = files.SyncNames()
	}
	if err != nil {
		return fmt.Errorf("journal: write %s: %w: free space on the disk, or mend it", name, err)
	}
	return nil
}

// Directory is the Files of a real directory. It is locked until Close.
type Directory struct {
	path string
	lock *os.File
}

// OpenDirectory makes the directory if there is none, and locks it for this process.
func OpenDirectory(path string) (*Directory, error) {
	if err := makeDirectory(path, syncDirectory); err != nil {
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

// ReadDirectory opens a directory for reading only, also if a scheduler uses it: then live is set.
func ReadDirectory(path string) (d *Directory, live bool, err error) {
	lock, err := os.Open(path)
	if err != nil {
		return nil, false, fmt.Errorf("journal: %w", err)
	}
	err = unix.Flock(int(lock.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	live = errors.Is(err, unix.EWOULDBLOCK)
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_UN) // A scheduler may start at any time.
	}
	if _, list := lock.Readdirnames(1); list != nil && !errors.Is(list, io.EOF) {
		err, live = list, false
	}
	if err != nil && !live {
		_ = lock.Close() // The other error says more.
		return nil, false, fmt.Errorf("journal %s: %w", path, err)
	}
	return &Directory{path: path, lock: lock}, live, nil
}

// makeDirectory makes a directory and those above it, and calls sync for each directory that got a
// new one.
func makeDirectory(path string, sync func(string) error) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil
	}
	parent := filepath.Dir(filepath.Clean(path))
	if parent != path {
		if err := makeDirectory(parent, sync); err != nil {
			return err
		}
	}
	if err := os.Mkdir(path, 0o700); errors.Is(err, fs.ErrExist) {
		return os.MkdirAll(path, 0o700) // It says what is there.
	} else if err != nil {
		return err
	}
	return sync(parent)
}

func syncDirectory(path string) error {
	directory, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(directory.Sync(), directory.Close())
}

// located names the directory of the files in an error, if they have one.
func located(files Files, err error) error {
	if d, ok := files.(interface{ Path() string }); ok && err != nil {
		return fmt.Errorf("%s: %w", d.Path(), err)
	}
	return err
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

// ReadPart returns bytes of a file.
func (d *Directory) ReadPart(name string, offset, size int64) ([]byte, error) {
	file, err := os.Open(filepath.Join(d.path, name))
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // It is only read.
	// A damaged size must not ask for much memory.
	if info, err := file.Stat(); err != nil {
		return nil, err
	} else if offset < 0 || size < 0 || size > info.Size()-offset {
		return nil, fmt.Errorf("the file ends at byte %d, within a value of %d bytes", info.Size(), size)
	}
	part := make([]byte, size)
	_, err = file.ReadAt(part, offset)
	return part, err
}

// Size returns the length of a file.
func (d *Directory) Size(name string) (int64, error) {
	info, err := os.Stat(filepath.Join(d.path, name))
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
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
