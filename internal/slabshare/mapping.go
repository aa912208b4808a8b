package slabshare

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	hostv1 "github.com/millrace/millrace/gen/go/millrace/host/v1"
)

// The layout of a slab's header page, as memory.Header writes it. It is repeated here, because this
// package may not import memory.
const (
	magic         = "MILLRACE"
	uuidAt        = 16
	incarnationAt = 32
	nonceAt       = 48
	sizeAt        = 56
	headerBytes   = 4096
)

// ErrOtherMemory means that the passed file is not the memory that the worker described.
var ErrOtherMemory = errors.New("not the memory that was described")

// Map maps the memory behind a descriptor and compares its header page with the worker's
// description. The mapping does not need the descriptor afterwards.
func Map(file *os.File, welcome *hostv1.BorrowWelcome, write bool) ([]byte, error) {
	fd := int(file.Fd())
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("stat of the memory passed: %w", err)
	}
	if st.Size < 2*headerBytes || uint64(st.Size) != welcome.GetMemoryBytes() {
		return nil, fmt.Errorf("%w: %d bytes instead of %d", ErrOtherMemory, st.Size, welcome.GetMemoryBytes())
	}
	// Without the seal its owner could shrink the file, which would kill this process by SIGBUS.
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: its seals cannot be read: %w", ErrOtherMemory, err)
	}
	if seals&unix.F_SEAL_SHRINK == 0 {
		return nil, fmt.Errorf("%w: it is not sealed against shrinking (seals %#x)", ErrOtherMemory, seals)
	}
	protection := unix.PROT_READ
	if write {
		protection |= unix.PROT_WRITE
	}
	data, err := unix.Mmap(fd, 0, int(st.Size), protection, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w; look at the limit of address space (ulimit -v)", st.Size, err)
	}
	if err := check(data, welcome); err != nil {
		return nil, errors.Join(err, unix.Munmap(data))
	}
	return data, nil
}

func check(data []byte, welcome *hostv1.BorrowWelcome) error {
	switch {
	case string(data[:len(magic)]) != magic:
		return fmt.Errorf("%w: it begins with %q", ErrOtherMemory, data[:len(magic)])
	case !bytes.Equal(data[uuidAt:uuidAt+16], welcome.GetWorkerUuid()), !bytes.Equal(data[incarnationAt:incarnationAt+16], welcome.GetIncarnation()):
		return fmt.Errorf("%w: it belongs to another worker or life", ErrOtherMemory)
	case binary.LittleEndian.Uint64(data[nonceAt:]) != welcome.GetNonce(), binary.LittleEndian.Uint64(data[sizeAt:]) != uint64(len(data)):
		return fmt.Errorf("%w: its nonce or size differs", ErrOtherMemory)
	}
	return nil
}

// Unmap ends a mapping. REQUIRES: its bytes are no longer used.
func Unmap(data []byte) error { return unix.Munmap(data) }
