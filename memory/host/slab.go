// Package host is an Adapter: host memory as one memfd, mapped shared, that a worker passes to its
// executors and to peers and clients on the same host.
//
// A memfd belongs to no file system. So nothing is left behind when a process dies, and the size of
// /dev/shm is no limit. But its pages count as memory of the cgroup of the process that touched
// them first. Pages are created by the first touch, and only Punch gives them back: a large slab
// costs nothing until it is used.
package host

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/memory"
)

var (
	// ErrSize: a slab of that size is not possible here.
	ErrSize = errors.New("host: bad slab size")
)

// Slab is a memory.Space and memory.Puncher in host memory.
type Slab struct {
	file     *os.File
	data     []byte
	identity memory.Identity
}

var (
	_ memory.Space   = (*Slab)(nil)
	_ memory.Puncher = (*Slab)(nil)
)

// NewSlab makes and maps a slab of the given size, header page included, and writes the header. It
// uses only the memory of the header page, but it refuses a size that the machine or the cgroup
// could never provide.
func NewSlab(sizeBytes uint64, id memory.Identity) (*Slab, error) {
	page := uint64(os.Getpagesize())
	if sizeBytes < 2*memory.HeaderBytes || sizeBytes%page != 0 {
		return nil, fmt.Errorf("%w: %d bytes is not a multiple of the page size %d with room for the header; round --memory-limit", ErrSize, sizeBytes, page)
	}
	limit, err := MemoryLimit()
	if err != nil {
		return nil, fmt.Errorf("host: slab of %d bytes: %w", sizeBytes, err)
	}
	if sizeBytes > limit.Bytes {
		return nil, fmt.Errorf("%w: %d bytes are more than the %d bytes that %s allows; lower --memory-limit or raise that limit",
			ErrSize, sizeBytes, limit.Bytes, limit.Source)
	}
	fd, err := unix.MemfdCreate("millrace-slab", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("host: memfd for a slab of %d bytes: %w; look at the limit of open files", sizeBytes, err)
	}
	file := os.NewFile(uintptr(fd), "millrace-slab")
	s, err := fill(file, sizeBytes, id)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return s, nil
}

func fill(file *os.File, sizeBytes uint64, id memory.Identity) (*Slab, error) {
	fd := int(file.Fd())
	if err := unix.Ftruncate(fd, int64(sizeBytes)); err != nil {
		return nil, fmt.Errorf("host: size a slab to %d bytes: %w; lower --memory-limit", sizeBytes, err)
	}
	// If a file shrinks, its readers die by SIGBUS. The seals prevent that for every process that
	// maps the slab, and F_SEAL_SEAL prevents further seals (against writes).
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return nil, fmt.Errorf("host: seal a slab of %d bytes: %w", sizeBytes, err)
	}
	data, err := unix.Mmap(fd, 0, int(sizeBytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("host: map a slab of %d bytes: %w; look at the limit of address space (ulimit -v) or lower --memory-limit", sizeBytes, err)
	}
	memory.Header{Identity: id, SizeBytes: sizeBytes}.Write(data)
	return &Slab{file: file, data: data, identity: id}, nil
}

// Size is part of memory.Space.
func (s *Slab) Size() uint64 { return uint64(len(s.data)) }

// Identity is part of memory.Space.
func (s *Slab) Identity() memory.Identity { return s.identity }

// Bytes is part of memory.Space.
func (s *Slab) Bytes(off, n uint64) []byte { return s.data[off : off+n : off+n] }

// FD is part of memory.Space.
func (s *Slab) FD() int { return int(s.file.Fd()) }

// Punch is part of memory.Puncher. Call it with large batches of ranges: each call into the kernel
// interrupts every core that has the pages mapped, and pages that are used again must be cleared,
// which costs more than copying into them. The ledger decides when to punch which ranges (Trim).
// Punch only carries that out, for the whole pages inside of the ranges.
func (s *Slab) Punch(ranges []memory.Frame) error {
	page := uint64(os.Getpagesize())
	for _, r := range ranges {
		if !r.Within(s.Size()) {
			return fmt.Errorf("host: punch [%d, +%d): outside of the slab of %d bytes", r.Offset, r.Bytes, s.Size())
		}
		first := (r.Offset + page - 1) &^ (page - 1)
		end := r.End() &^ (page - 1)
		if first >= end {
			continue
		}
		for {
			err := unix.Fallocate(s.FD(), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(first), int64(end-first))
			if err == nil {
				break
			}
			if !errors.Is(err, unix.EINTR) {
				return fmt.Errorf("host: punch [%d, +%d) of the slab: %w; its pages stay in use", first, end-first, err)
			}
		}
	}
	return nil
}

// Close unmaps the slab and closes its descriptor. Mappings of other processes stay.
// REQUIRES: no slice from Bytes is used any more. An access would be a fault that cannot be
// recovered from.
func (s *Slab) Close() error {
	if s.data == nil {
		return nil
	}
	err := unix.Munmap(s.data)
	s.data = nil
	return errors.Join(err, s.file.Close())
}

// Limit is the largest memory that this process could get, and the source of that limit.
type Limit struct {
	Bytes  uint64
	Source string
}

// MemoryLimit returns the smallest of the machine's memory and the limits of the process's cgroup
// and its ancestors (version 2 and 1). It ignores the present use of the memory, because it is a
// bound for sizes that can never work.
func MemoryLimit() (Limit, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return Limit{}, fmt.Errorf("host: size of the machine's memory: %w", err)
	}
	least := Limit{Bytes: info.Totalram * uint64(info.Unit), Source: "the machine's memory"}
	self, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return least, nil // there are no cgroups, and so no limit of a cgroup
	}
	return cgroupLimit(least, "/sys/fs/cgroup", string(self)), nil
}

// UsableMemory returns the limit of the cgroup if there is one, otherwise MemoryLimit. On virtual
// machines that get memory when they touch it, the machine's own number is too small.
func UsableMemory() (Limit, error) {
	self, err := os.ReadFile("/proc/self/cgroup")
	if err == nil {
		if l := cgroupLimit(Limit{Bytes: math.MaxUint64}, "/sys/fs/cgroup", string(self)); l.Bytes < math.MaxUint64>>8 {
			return l, nil
		}
	}
	return MemoryLimit()
}

// cgroupLimit lowers a limit to that of the cgroups in the text of /proc/self/cgroup. A missing
// file means no limit: in a container the listed paths may be those of the host, and then the root
// of the mount is the container's own cgroup.
func cgroupLimit(least Limit, root, self string) Limit {
	for line := range strings.Lines(self) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		base, name := root, "memory.max"
		if parts[1] == "memory" {
			base, name = filepath.Join(root, "memory"), "memory.limit_in_bytes"
		} else if parts[1] != "" {
			continue
		}
		for dir := filepath.Clean("/" + parts[2]); ; dir = filepath.Dir(dir) {
			file := filepath.Join(base, dir, name)
			text, err := os.ReadFile(file)
			if err == nil {
				// "max" means no limit, and does not parse.
				n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
				if err == nil && n < least.Bytes {
					least = Limit{Bytes: n, Source: file}
				}
			}
			if dir == "/" {
				break
			}
		}
	}
	return least
}
