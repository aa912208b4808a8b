// Package disk is an Adapter: a tier of memory in a file.
//
// The file is sparse, and the ledger decides the place of the bytes in it. The file is never
// synced: the bytes are worthless without the process, so the file is in a directory that is
// removed with the process (see internal/localdir).
//
// IO bypasses the page cache if the file system can do that (see ADR 0006). A tier that exists to
// bound memory must not use memory of the page cache instead, and the copy would cost a core.
package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/alloc"
)

const (
	// unitBytes is the alignment of offsets, lengths and addresses for direct IO: the largest one
	// that disks require.
	unitBytes = 4096
	// chunkBytes is the number of bytes that one system call moves.
	chunkBytes = 4 << 20
	// depth is the number of chunks of one transfer that are in progress at a time.
	depth = 2
	// bounceBytes is the size of an aligned bounce buffer, for bytes that are not aligned.
	bounceBytes = 1 << 20
	// bounces is the number of bounce buffers.
	bounces = 4
	// discardBytes is the smallest size of a hole for which punching is worth a system call.
	discardBytes = 1 << 20
)

// File is the part of a file that the tier uses. Tests replace it by a faulty one.
type File interface {
	ReadAt(p []byte, off int64) (int, error)
	WriteAt(p []byte, off int64) (int, error)
	// Punch gives the blocks of a range back; the range then reads as zeros.
	Punch(off, n int64) error
	Close() error
}

// Config is fixed for the life of a tier.
type Config struct {
	// Directory is the directory in which the file "data" is created. It belongs to the worker
	// alone.
	Directory string
	// SizeBytes is the limit of the file. 0 means half of the free space there now.
	SizeBytes uint64
	// Wrap, if set, returns a File to put between the tier and its file.
	Wrap func(File) File
}

// Tier is a memory.Tier in a file.
type Tier struct {
	directory string
	size      uint64
	file      File
	direct    bool
	// buffers has the free bounce buffers. To take one, receive from it, which waits for one.
	buffers chan []byte
	arena   []byte
	close   sync.Once
	closed  error
}

var _ memory.Tier = (*Tier)(nil)

// Open creates an empty file.
func Open(c Config) (_ *Tier, err error) {
	if c.SizeBytes == 0 {
		free, err := FreeBytes(c.Directory)
		if err != nil {
			return nil, err
		}
		c.SizeBytes = free / 2
	}
	t := &Tier{directory: c.Directory, size: min(c.SizeBytes, alloc.MaxBytes) / unitBytes * unitBytes}
	if t.size == 0 {
		return nil, fmt.Errorf("disk: a spill limit of %d bytes is less than a block of %d; raise --spill-limit or free space below %s", c.SizeBytes, unitBytes, c.Directory)
	}
	file, direct, err := openFile(t.path())
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.Close())
		}
	}()
	t.file, t.direct = file, direct
	if c.Wrap != nil {
		t.file = c.Wrap(file)
	}
	if t.arena, err = unix.Mmap(-1, 0, bounces*bounceBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE); err != nil {
		return nil, fmt.Errorf("disk: buffers of %d bytes: %w", bounces*bounceBytes, err)
	}
	t.buffers = make(chan []byte, bounces)
	for i := range bounces {
		t.buffers <- t.arena[i*bounceBytes : (i+1)*bounceBytes : (i+1)*bounceBytes]
	}
	return t, nil
}

// FreeBytes returns the space that an ordinary user may use in a directory.
func FreeBytes(directory string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(directory, &st); err != nil {
		return 0, fmt.Errorf("disk: free space of %s: %w", directory, err)
	}
	return st.Bavail * uint64(st.Bsize), nil
}

// path returns the path of the file.
func (t *Tier) path() string { return filepath.Join(t.directory, "data") }

// Direct says whether IO bypasses the page cache.
func (t *Tier) Direct() bool { return t.direct }

// Name is part of memory.Tier.
func (t *Tier) Name() string { return "disk" }

// Size is part of memory.Tier.
func (t *Tier) Size() uint64 { return t.size }

// UnitBytes is part of memory.Tier.
func (t *Tier) UnitBytes() uint64 { return unitBytes }

// DiscardBytes is part of memory.Tier.
func (t *Tier) DiscardBytes() uint64 { return discardBytes }

// Close removes the file.
// REQUIRES: no IO is in progress.
func (t *Tier) Close() error {
	t.close.Do(func() {
		errs := []error{t.file.Close(), os.RemoveAll(t.path())}
		if t.arena != nil {
			errs = append(errs, unix.Munmap(t.arena))
		}
		t.closed = errors.Join(errs...)
	})
	return t.closed
}

// aligned says whether direct IO can use a slice in place.
func aligned(p []byte) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(p)))%unitBytes == 0 && len(p)%unitBytes == 0
}

func roundUp(n int) int { return (n + unitBytes - 1) &^ (unitBytes - 1) }

// Write is part of memory.Tier.
func (t *Tier) Write(off uint64, p []byte) (sum uint32, err error) {
	if !t.within(off, len(p)) {
		return 0, fmt.Errorf("disk: write [%d, +%d): outside of the %d bytes of %s", off, len(p), t.size, t.directory)
	}
	err = eachChunk(p, func(at int, part []byte) error { return t.writeChunk(off+uint64(at), part) },
		func(part []byte) { sum = memory.Checksum(sum, part) }, false)
	if err != nil {
		return 0, fmt.Errorf("disk: write %d bytes at %d of %s: %w", len(p), off, t.directory, causeOf(err))
	}
	return sum, nil
}

// eachChunk moves p in chunks, several at a time. It also calls check for each chunk, in order.
// With after, check is called only when the chunk was moved; otherwise it may run at the same time
// as the move.
func eachChunk(p []byte, move func(at int, part []byte) error, check func(part []byte), after bool) error {
	n := (len(p) + chunkBytes - 1) / chunkBytes
	part := func(i int) []byte { return p[i*chunkBytes : min((i+1)*chunkBytes, len(p))] }
	if n <= 1 {
		err := move(0, p)
		if err == nil {
			check(p)
		}
		return err
	}
	errs := make([]error, n)
	moved := make([]chan struct{}, n)
	for i := range moved {
		moved[i] = make(chan struct{})
	}
	var next atomic.Int64
	for range min(depth, n) {
		go func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				errs[i] = move(i*chunkBytes, part(i))
				close(moved[i])
			}
		}()
	}
	for i := range n {
		if !after {
			check(part(i))
		}
		<-moved[i]
		if after && errs[i] == nil {
			check(part(i))
		}
	}
	for _, err := range errs {
		if err != nil {
			return err // The others mostly have the same cause.
		}
	}
	return nil
}

// causeOf returns an error of a file without the file's name, which the caller adds.
func causeOf(err error) error {
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		return path.Err
	}
	return err
}

// writeChunk writes at most chunkBytes.
func (t *Tier) writeChunk(off uint64, p []byte) error {
	body := len(p) / unitBytes * unitBytes
	switch {
	case !t.direct:
		body = len(p)
	case body == 0 || !aligned(p[:body]):
		body = 0
	}
	if body > 0 {
		if err := t.write(p[:body], off); err != nil {
			return err
		}
	}
	for done := body; done < len(p); {
		buffer := <-t.buffers
		n := copy(buffer, p[done:])
		err := t.write(buffer[:roundUp(n)], off+uint64(done))
		t.buffers <- buffer
		if err != nil {
			return err
		}
		done += n
	}
	return nil
}

// within says whether a range lies in the file, including the rest of its last block.
func (t *Tier) within(off uint64, n int) bool {
	return off%unitBytes == 0 && memory.Frame{Offset: off, Bytes: uint64(roundUp(n))}.Within(t.size)
}

func (t *Tier) write(p []byte, off uint64) error {
	_, err := t.file.WriteAt(p, int64(off))
	return err
}

// Read is part of memory.Tier. A read that fails is tried once more.
func (t *Tier) Read(off uint64, p []byte, sum uint32) error {
	if !t.within(off, len(p)) {
		return fmt.Errorf("disk: read [%d, +%d): outside of the %d bytes of %s", off, len(p), t.size, t.directory)
	}
	err := t.readOnce(off, p, sum)
	if err != nil {
		err = t.readOnce(off, p, sum)
	}
	if err != nil {
		return fmt.Errorf("disk: read %d bytes at %d of %s: %w", len(p), off, t.directory, causeOf(err))
	}
	return nil
}

func (t *Tier) readOnce(off uint64, p []byte, want uint32) error {
	var sum uint32
	err := eachChunk(p, func(at int, part []byte) error { return t.readAll(off+uint64(at), part) },
		func(part []byte) { sum = memory.Checksum(sum, part) }, true)
	if err != nil {
		return err
	}
	if sum != want {
		return fmt.Errorf("%w: %08x, written as %08x", memory.ErrChecksum, sum, want)
	}
	return nil
}

func (t *Tier) readAll(off uint64, p []byte) error {
	for done := 0; done < len(p); {
		n, err := t.readSome(off+uint64(done), p[done:])
		if err != nil {
			return err
		}
		done += n
	}
	return nil
}

// readSome reads the beginning of p, at least one byte.
func (t *Tier) readSome(off uint64, p []byte) (int, error) {
	part := p[:min(len(p), chunkBytes)]
	if body := part[:len(part)/unitBytes*unitBytes]; !t.direct {
		return t.file.ReadAt(part, int64(off))
	} else if off%unitBytes == 0 && len(body) > 0 && aligned(body) {
		return t.file.ReadAt(body, int64(off))
	}
	lead := int(off % unitBytes)
	part = part[:min(len(part), bounceBytes-lead)]
	buffer := <-t.buffers
	defer func() { t.buffers <- buffer }()
	if _, err := t.file.ReadAt(buffer[:roundUp(lead+len(part))], int64(off)-int64(lead)); err != nil {
		return 0, err
	}
	return copy(part, buffer[lead:]), nil
}

// ReadInto is part of memory.Reader. It does not check the checksum.
func (t *Tier) ReadInto(off uint64, p []byte) error {
	if !(memory.Frame{Offset: off, Bytes: uint64(len(p))}).Within(t.size) {
		return fmt.Errorf("disk: read [%d, +%d): outside of the %d bytes of %s", off, len(p), t.size, t.directory)
	}
	if err := t.readAll(off, p); err != nil {
		return fmt.Errorf("disk: read %d bytes at %d of %s: %w", len(p), off, t.directory, causeOf(err))
	}
	return nil
}

// Discard is part of memory.Tier.
func (t *Tier) Discard(off, n uint64) error {
	if err := t.file.Punch(int64(off), int64(n)); err != nil {
		return fmt.Errorf("disk: give back %d bytes at %d of %s: %w; they stay taken until they are used again", n, off, t.directory, err)
	}
	return nil
}

// osFile is a File of the operating system.
type osFile struct{ *os.File }

// openFile creates a file, for direct IO if the file system supports that.
func openFile(path string) (f File, direct bool, err error) {
	const flags = os.O_RDWR | os.O_CREATE | os.O_EXCL
	file, err := os.OpenFile(path, flags|unix.O_DIRECT, 0o600)
	if err == nil {
		return osFile{file}, true, nil
	}
	if !errors.Is(err, unix.EINVAL) {
		return nil, false, fmt.Errorf("disk: %w", err)
	}
	// Some file systems create the file before they refuse direct IO.
	_ = os.Remove(path)
	if file, err = os.OpenFile(path, flags, 0o600); err != nil {
		return nil, false, fmt.Errorf("disk: %w", err)
	}
	return osFile{file}, false, nil
}

// Punch is part of File.
func (f osFile) Punch(off, n int64) error {
	for {
		err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
