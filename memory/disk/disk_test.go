package disk

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/memory"
)

func open(t *testing.T, c Config) *Tier {
	t.Helper()
	if c.Directory == "" {
		c.Directory = t.TempDir()
	}
	if c.SizeBytes == 0 {
		c.SizeBytes = 256 << 20
	}
	tier, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tier.Close(); err != nil {
			t.Error(err)
		}
	})
	return tier
}

// fill returns n random bytes that begin shift bytes into a page, like those of small objects in
// the slab.
func fill(t *testing.T, n, shift int) []byte {
	t.Helper()
	m, err := unix.Mmap(-1, 0, n+shift+unitBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(m); err != nil {
			t.Error(err)
		}
	})
	p := m[shift : shift+n : shift+n]
	r := rand.NewChaCha8([32]byte{byte(n), byte(shift)})
	if _, err := r.Read(p); err != nil {
		t.Fatal(err)
	}
	return p
}

var sizes = []int{0, 1, 255, 4095, 4096, 4097, 1 << 20, 1<<20 + 1, 2 << 20, 4 << 20, 9<<20 + 3}

func TestBytesComeBackFromAnyAlignment(t *testing.T) {
	directories := map[string]string{"disk": t.TempDir(), "tmpfs": shm(t)}
	for name, directory := range directories {
		t.Run(name, func(t *testing.T) {
			tier := open(t, Config{Directory: directory})
			t.Logf("direct IO: %v", tier.Direct())
			for _, shift := range []int{0, 256} {
				off := uint64(unitBytes)
				for _, n := range sizes {
					p := fill(t, n, shift)
					sum, err := tier.Write(off, p)
					if err != nil {
						t.Fatal(err)
					}
					back := fill(t, n, 512-shift)
					if err := tier.Read(off, back, sum); err != nil || !bytes.Equal(p, back) {
						t.Fatalf("%d bytes, shifted by %d: %v", n, shift, err)
					}
					if n > 10 {
						part := make([]byte, n-7)
						if err := tier.ReadInto(off+5, part); err != nil || !bytes.Equal(part, p[5:n-2]) {
							t.Fatalf("a part of %d bytes: %v", n, err)
						}
					}
					off += uint64(roundUp(n))
				}
			}
		})
	}
}

func shm(t *testing.T) string {
	t.Helper()
	directory := filepath.Join("/dev/shm", filepath.Base(filepath.Dir(t.TempDir())))
	if err := os.Mkdir(directory, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(directory); err != nil {
			t.Error(err)
		}
	})
	return directory
}

func TestManyTransfersAtOnce(t *testing.T) {
	tier := open(t, Config{})
	var wait sync.WaitGroup
	for i := range 16 {
		p, back := fill(t, 1<<20+i, 256), fill(t, 1<<20+i, 0)
		wait.Go(func() {
			off := uint64(i) * (2 << 20)
			for range 4 {
				sum, err := tier.Write(off, p)
				if err == nil {
					err = tier.Read(off, back, sum)
				}
				if err != nil || !bytes.Equal(p, back) {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
}

func TestCorruptedBytesAreFound(t *testing.T) {
	tier := open(t, Config{})
	p := fill(t, 100_000, 0)
	sum, err := tier.Write(0, p)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(tier.path(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteAt([]byte{p[50_000] + 1}, 50_000); err != nil {
		t.Fatal(err)
	}
	if err := tier.Read(0, p, sum); !errors.Is(err, memory.ErrChecksum) {
		t.Errorf("got %v", err)
	}
}

func TestDiscardGivesBlocksBack(t *testing.T) {
	tier := open(t, Config{})
	if _, err := tier.Write(0, fill(t, 8<<20, 0)); err != nil {
		t.Fatal(err)
	}
	taken := func() int64 {
		var st unix.Stat_t
		if err := unix.Stat(tier.path(), &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks * 512
	}
	if n := taken(); n < 8<<20 {
		t.Errorf("%d bytes are taken", n)
	}
	if err := tier.Discard(1<<20, 7<<20); err != nil {
		t.Fatal(err)
	}
	if n := taken(); n > 2<<20 {
		t.Errorf("%d bytes are still taken", n)
	}
}

func TestNothingOutsideOfTheLimit(t *testing.T) {
	tier := open(t, Config{SizeBytes: 1<<20 + 100})
	if tier.Size() != 1<<20 {
		t.Errorf("size %d", tier.Size())
	}
	p := fill(t, 100, 0)
	for _, off := range []uint64{1 << 20, 1<<20 - 50, 1<<64 - 50, 7} {
		if _, err := tier.Write(off, p); err == nil {
			t.Errorf("written at %d", off)
		}
		if off != 7 && tier.ReadInto(off, p) == nil {
			t.Errorf("read at %d", off)
		}
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	directory := t.TempDir()
	tier, err := Open(Config{Directory: directory, SizeBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if err := tier.Close(); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(directory)
	if err != nil || len(entries) > 0 {
		t.Errorf("%v, %v", entries, err)
	}
}

// broken is a File that fails on demand.
type broken struct {
	File
	err error
}

func (b *broken) WriteAt(p []byte, off int64) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	return b.File.WriteAt(p, off)
}

func (b *broken) ReadAt(p []byte, off int64) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	return b.File.ReadAt(p, off)
}

func TestErrorsNameThePlaceAndTheCause(t *testing.T) {
	var b *broken
	tier := open(t, Config{Wrap: func(f File) File { b = &broken{File: f}; return b }})
	sum, err := tier.Write(0, fill(t, 5000, 0))
	if err != nil {
		t.Fatal(err)
	}
	b.err = unix.EIO
	if _, err := tier.Write(0, fill(t, 5000, 0)); !errors.Is(err, unix.EIO) {
		t.Errorf("write: %v", err)
	}
	if err := tier.Read(0, fill(t, 5000, 0), sum); !errors.Is(err, unix.EIO) {
		t.Errorf("read: %v", err)
	}
	if err := tier.ReadInto(0, make([]byte, 10)); !errors.Is(err, unix.EIO) {
		t.Errorf("read: %v", err)
	}
}

// A file system of 4 MiB is full before the limit of the tier is reached.
func TestFullFileSystemIsAnError(t *testing.T) {
	if os.Getenv("MILLRACE_TEST_FULL") == "" {
		// A private mount needs a private namespace.
		cmd := exec.Command(os.Args[0], "-test.run=^TestFullFileSystemIsAnError$", "-test.v")
		cmd.Env = append(os.Environ(), "MILLRACE_TEST_FULL=1")
		cmd.SysProcAttr = namespace()
		out, err := cmd.CombinedOutput()
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) {
			t.Logf("no namespaces here: %v", err)
			return
		}
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	directory := t.TempDir()
	if err := unix.Mount("tmpfs", directory, "tmpfs", 0, "size=4m"); err != nil {
		t.Fatal(err)
	}
	tier, err := Open(Config{Directory: directory, SizeBytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tier.Write(0, fill(t, 2<<20, 0)); err != nil {
		t.Fatal(err)
	}
	// Several chunks fail, and the file's own errors name the file again.
	if _, err := tier.Write(2<<20, fill(t, 4*chunkBytes, 0)); !errors.Is(err, unix.ENOSPC) || strings.Count(err.Error(), "no space left") != 1 ||
		strings.Count(err.Error(), directory) != 1 {
		t.Errorf("got %v", err)
	}
	if err := tier.Close(); err != nil {
		t.Error(err)
	}
	if err := unix.Unmount(directory, unix.MNT_DETACH); err != nil {
		t.Error(err)
	}
}
