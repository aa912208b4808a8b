package host

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/memorytest"
)

var identity = memory.Identity{WorkerUUID: [16]byte{9, 8, 7}, Incarnation: [16]byte{6}, Nonce: 12345}

func open(t *testing.T, size uint64, id memory.Identity) *Slab {
	t.Helper()
	s, err := NewSlab(size, id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestSlabConforms(t *testing.T) {
	memorytest.Space(t, func(t *testing.T, size uint64, id memory.Identity) memory.Space {
		t.Helper()
		return open(t, size, id)
	})
}

func TestPagesAreTakenAtFirstTouchAndGivenBackByPunch(t *testing.T) {
	const size = 64 << 20
	s := open(t, size, identity)
	resident := func() uint64 {
		t.Helper()
		var st unix.Stat_t
		if err := unix.Fstat(s.FD(), &st); err != nil {
			t.Fatal(err)
		}
		return uint64(st.Blocks) * 512
	}
	// The system may use huge pages for shared memory, so one touch can cost 2 MiB.
	const slack = 4 << 20
	if n := resident(); n > slack {
		t.Fatalf("an unused slab takes %d bytes", n)
	}
	data := s.Bytes(16<<20, 32<<20)
	for i := 0; i < len(data); i += 4096 {
		data[i] = 1
	}
	if n := resident(); n < 32<<20 {
		t.Fatalf("after touching 32 MiB the slab takes %d bytes", n)
	}
	if err := s.Punch([]memory.Frame{{Offset: 16 << 20, Bytes: 32 << 20}}); err != nil {
		t.Fatal(err)
	}
	if n := resident(); n > slack {
		t.Fatalf("after punching, the slab takes %d bytes", n)
	}
}

func TestSlabCannotShrinkUnderItsReaders(t *testing.T) {
	s := open(t, 1<<20, identity)
	if err := unix.Ftruncate(s.FD(), 4096); !errors.Is(err, unix.EPERM) {
		t.Errorf("shrinking: got %v, want EPERM", err)
	}
	if err := unix.Ftruncate(s.FD(), 2<<20); !errors.Is(err, unix.EPERM) {
		t.Errorf("growing: got %v, want EPERM", err)
	}
	flags, err := unix.FcntlInt(uintptr(s.FD()), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("descriptor flags %#x, %v: children would inherit the slab", flags, err)
	}
}

func TestAbsurdSizesNameTheLimitAndTheRemedy(t *testing.T) {
	for _, size := range []uint64{0, 4096, 1<<20 + 1, 1 << 50, 1<<64 - 4096} {
		_, err := NewSlab(size, identity)
		if !errors.Is(err, ErrSize) || !strings.Contains(err.Error(), "--memory-limit") {
			t.Errorf("%d bytes: got %v", size, err)
		}
	}
}

func TestCgroupLimitIsTheSmallestOnTheWayUp(t *testing.T) {
	machine := Limit{Bytes: 1 << 40, Source: "machine"}
	for name, c := range map[string]struct {
		files map[string]string
		self  string
		want  uint64
		by    string
	}{
		"none":                   {nil, "0::/a/b\n", 1 << 40, "machine"},
		"v2 own":                 {map[string]string{"a/b/memory.max": "1000\n", "a/memory.max": "max\n"}, "0::/a/b\n", 1000, "a/b/memory.max"},
		"v2 parent":              {map[string]string{"a/b/memory.max": "2000\n", "a/memory.max": "1000\n"}, "0::/a/b\n", 1000, "a/memory.max"},
		"v2 container, own root": {map[string]string{"memory.max": "3000\n"}, "0::/../host/path\n", 3000, "memory.max"},
		"v1":                     {map[string]string{"memory/x/memory.limit_in_bytes": "4000"}, "5:cpu:/y\n4:memory:/x\n", 4000, "memory/x/memory.limit_in_bytes"},
		"v1 without limit":       {map[string]string{"memory/x/memory.limit_in_bytes": "9223372036854771712"}, "4:memory:/x\n", 1 << 40, "machine"},
		"nonsense":               {map[string]string{"memory.max": "many"}, "what\n\n0::/\n", 1 << 40, "machine"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for file, text := range c.files {
				file = filepath.Join(root, file)
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			got := cgroupLimit(machine, root, c.self)
			if got.Bytes != c.want || !strings.HasSuffix(got.Source, c.by) {
				t.Errorf("got %+v, want %d by %s", got, c.want, c.by)
			}
		})
	}
	if l, err := MemoryLimit(); err != nil || l.Bytes == 0 {
		t.Errorf("this machine: %+v, %v", l, err)
	}
}
