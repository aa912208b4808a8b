package host_test

import (
	"errors"
	"os"
	"runtime/debug"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	hostv1 "github.com/millrace/millrace/gen/go/millrace/host/v1"
	"github.com/millrace/millrace/internal/slabshare"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/host"
)

var owner = memory.Identity{WorkerUUID: [16]byte{1, 2}, Incarnation: [16]byte{3}, Nonce: 4}

// slabOf makes a slab.
func slabOf(t *testing.T, bytes uint64, id memory.Identity) *host.Slab {
	t.Helper()
	s, err := host.NewSlab(bytes, id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// passed is a copy of a descriptor, as a process gets it by SCM_RIGHTS.
func passed(t *testing.T, fd int) *os.File {
	t.Helper()
	own, err := unix.Dup(fd)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(own), "passed")
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// described is the welcome of a worker with that memory.
func described(bytes uint64, id memory.Identity) *hostv1.BorrowWelcome {
	return &hostv1.BorrowWelcome{WorkerUuid: id.WorkerUUID[:], Incarnation: id.Incarnation[:], Nonce: id.Nonce, MemoryBytes: bytes}
}

// A mapping shows what the owner writes, refuses writes if it is for reading, and stays when the
// owner and the descriptor are gone.
func TestMappingIsReadOnlyAndOutlivesTheSlab(t *testing.T) {
	const size = 1 << 20
	s := slabOf(t, size, owner)
	file := passed(t, s.FD())
	data, err := slabshare.Map(file, described(size, owner), false)
	if err != nil {
		t.Fatal(err)
	}
	copy(s.Bytes(8192, 5), "hello")
	if err := errors.Join(s.Close(), file.Close()); err != nil {
		t.Fatal(err)
	}
	if got := string(data[8192:8197]); got != "hello" {
		t.Errorf("read %q after the owner closed the slab", got)
	}
	func() {
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		defer func() {
			if recover() == nil {
				t.Error("a mapping for reading could be written to")
			}
		}()
		data[8192] = 'j'
	}()
	if err := slabshare.Unmap(data); err != nil {
		t.Error(err)
	}
}

// A file that is not the described memory is refused, with the difference.
func TestMapRefusesOtherMemory(t *testing.T) {
	const size = 1 << 20
	memfd := func(bytes int64, seals int) int {
		fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		if err := unix.Ftruncate(fd, bytes); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			t.Fatal(err)
		}
		return fd
	}
	other, nonce := owner, owner
	other.Incarnation[0]++
	nonce.Nonce++
	resized := slabOf(t, size, owner)
	resized.Bytes(0, size)[56]++
	for name, c := range map[string]struct {
		fd   int
		says string
	}{
		"empty":                {memfd(0, unix.F_SEAL_SHRINK), "0 bytes instead of 1048576"},
		"another size":         {slabOf(t, 2*size, owner).FD(), "2097152 bytes instead of 1048576"},
		"not sealed":           {memfd(size, 0), "not sealed against shrinking (seals 0x0)"},
		"no slab":              {memfd(size, unix.F_SEAL_SHRINK), "it begins with"},
		"another life":         {slabOf(t, size, other).FD(), "another worker or life"},
		"another nonce":        {slabOf(t, size, nonce).FD(), "its nonce or size differs"},
		"a header of its size": {resized.FD(), "its nonce or size differs"},
	} {
		t.Run(name, func(t *testing.T) {
			data, err := slabshare.Map(passed(t, c.fd), described(size, owner), false)
			if data != nil || !errors.Is(err, slabshare.ErrOtherMemory) {
				t.Fatalf("got %d bytes, %v; want ErrOtherMemory", len(data), err)
			}
			if !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "%!") {
				t.Errorf("got %q, want %q", err, c.says)
			}
		})
	}
}
