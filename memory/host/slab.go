// Package host is an Adapter: host memory as one memfd, mapped shared, that a
// worker passes to its executors and to peers and clients on the same host.
//
// A memfd belongs to no file system, so nothing is left behind when a process
// dies, and /dev/shm's size does not bound it; but its pages count as memory of
// the cgroup of whoever touched them first. Pages come into being at the first
// touch and go back only by Punch: a large slab costs nothing until it is used.
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

// Magic are the first bytes of a slab.
const Magic = memory.Magic

var (
	// ErrSize: no slab of that size can be had here.
	ErrSize = errors.New("host: bad slab size")
	// ErrNotASlab: the descriptor is not that of a slab that this build can map.
	ErrNotASlab = errors.New("host: not a slab")
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
	_ memory.Space   = (*View)(nil)
)

// NewSlab makes and maps a slab of the given size, header page included, and
// writes the header. It takes no memory besides the header page, but refuses a
// size beyond what the machine or the cgroup could ever provide.
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
	// A reader of a file that shrinks dies by SIGBUS: seal that off for all who
	// will ever map it, and any further seal (writes) with it.
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

// File returns the memfd for a child process (exec.Cmd's ExtraFiles) or for
// SCM_RIGHTS. The slab keeps owning it.
func (s *Slab) File() *os.File { return s.file }

// Punch is part of memory.Puncher. The ranges should come in large batches: each
// call into the kernel interrupts every core that has the pages mapped, and
// pages that are used again must be cleared anew, which costs more than copying
// into them. When to punch what is the ledger's decision (Trim); this only
// carries it out, on whole pages inside of the ranges.
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

// ResidentBytes returns how much memory the slab takes now, in whatever
// process its pages were touched.
func (s *Slab) ResidentBytes() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(s.FD(), &st); err != nil {
		return 0, fmt.Errorf("host: stat of the slab: %w", err)
	}
	return uint64(st.Blocks) * 512, nil
}

// Close unmaps the slab and closes its descriptor. Other processes' mappings
// live on. REQUIRES: no slice that Bytes returned is used any more; a touch
// would be a fault that cannot be recovered from.
func (s *Slab) Close() error {
	if s.data == nil {
		return nil
	}
	err := unix.Munmap(s.data)
	s.data = nil
	return errors.Join(err, s.file.Close())
}

// View is another process's slab, mapped for reading only. Writing to its bytes
// faults. It is a memory.Space.
type View struct {
	fd       int
	data     []byte
	identity memory.Identity
}

// OpenReadOnly maps the slab behind a descriptor that another process passed,
// and checks that it is one and that its size cannot change. The descriptor
// stays the caller's and must stay open as long as View.FD is used; the mapping
// does not need it. Compare Identity with what the scheduler said before
// believing a byte.
func OpenReadOnly(fd int) (*View, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("host: stat of descriptor %d: %w", fd, err)
	}
	if st.Size < 2*memory.HeaderBytes {
		return nil, fmt.Errorf("%w: descriptor %d has %d bytes", ErrNotASlab, fd, st.Size)
	}
	// Without the seal its owner could cut it short and kill us by SIGBUS.
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: descriptor %d cannot be sealed: %w", ErrNotASlab, fd, err)
	}
	if seals&unix.F_SEAL_SHRINK == 0 {
		return nil, fmt.Errorf("%w: descriptor %d is not sealed against shrinking (seals %#x)", ErrNotASlab, fd, seals)
	}
	data, err := unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("host: map %d bytes of descriptor %d: %w; look at the limit of address space (ulimit -v)", st.Size, fd, err)
	}
	v := &View{fd: fd, data: data}
	if err := v.readHeader(); err != nil {
		return nil, errors.Join(err, unix.Munmap(data))
	}
	return v, nil
}

func (v *View) readHeader() error {
	h, err := memory.ParseHeader(v.data[:memory.HeaderBytes])
	if err != nil {
		return fmt.Errorf("%w: descriptor %d: %w", ErrNotASlab, v.fd, err)
	}
	if h.SizeBytes != v.Size() {
		return fmt.Errorf("%w: descriptor %d has %d bytes, its header says %d", ErrNotASlab, v.fd, v.Size(), h.SizeBytes)
	}
	v.identity = h.Identity
	return nil
}

// Size is part of memory.Space.
func (v *View) Size() uint64 { return uint64(len(v.data)) }

// Identity is part of memory.Space.
func (v *View) Identity() memory.Identity { return v.identity }

// Bytes is part of memory.Space, but for reading only.
func (v *View) Bytes(off, n uint64) []byte { return v.data[off : off+n : off+n] }

// FD is part of memory.Space.
func (v *View) FD() int { return v.fd }

// Close unmaps the view. REQUIRES: as for Slab.Close.
func (v *View) Close() error {
	if v.data == nil {
		return nil
	}
	err := unix.Munmap(v.data)
	v.data = nil
	return err
}

// Limit is the most memory that this process could get, and who says so.
type Limit struct {
	Bytes  uint64
	Source string
}

// MemoryLimit returns the smallest of the machine's memory and the limits of
// the process's cgroup and those above it (version 2 and 1). What others use of
// it now is not counted: the bound is for sizes that can never work.
func MemoryLimit() (Limit, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return Limit{}, fmt.Errorf("host: size of the machine's memory: %w", err)
	}
	least := Limit{Bytes: info.Totalram * uint64(info.Unit), Source: "the machine's memory"}
	self, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return least, nil // no cgroups here, so none that limits
	}
	return cgroupLimit(least, "/sys/fs/cgroup", string(self)), nil
}

// UsableMemory is the limit of the cgroup where there is one, else MemoryLimit: on
// virtual machines that are given memory as they touch it, what the machine says to
// have is too little.
func UsableMemory() (Limit, error) {
	self, err := os.ReadFile("/proc/self/cgroup")
	if err == nil {
		if l := cgroupLimit(Limit{Bytes: math.MaxUint64}, "/sys/fs/cgroup", string(self)); l.Bytes < math.MaxUint64>>8 {
			return l, nil
		}
	}
	return MemoryLimit()
}

// cgroupLimit lowers a limit to that of the cgroups which /proc/self/cgroup
// lists. A file that is not there limits nothing: in a container the paths
// listed may be those of the host, and then the root of the mount is ours.
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
				// "max" means none, and does not parse.
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
