//go:build cgo && linux

package ipc_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/memory/cuda/cudatest"
	"github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/borrow"
	"github.com/millrace/millrace/transfer/ipc"
	"github.com/millrace/millrace/transfer/transfertest"
)

const (
	// realEnv: use the machine's driver.
	realEnv = "MILLRACE_CUDA_REAL"
	// childEnv: hold a slab instead of testing.
	childEnv = "MILLRACE_TEST_CHILD"
)

var (
	fake   *cudatest.Fake // nil on a real GPU
	driver *cuda.Driver
)

func TestMain(m *testing.M) {
	if err := start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if os.Getenv(childEnv) != "" {
		if err := serve(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if fake != nil {
		if left := fake.Left(); left != "" && code == 0 {
			fmt.Fprintln(os.Stderr, "left in the driver:", left)
			code = 1
		}
		if err := fake.Close(); err != nil && code == 0 {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func start() (err error) {
	library := os.Getenv(childEnv)
	switch {
	case os.Getenv(realEnv) != "":
		library = ""
	case library == "":
		if fake, err = cudatest.Start(2, 8<<30); err != nil {
			return err
		}
		library = fake.Library
	}
	driver, err = cuda.Load(cuda.Config{Library: library})
	return err
}

// order is what a child process is told: to hold a slab, and with Objects to lend
// that many objects of Bytes each out of it.
type order struct {
	Device   int
	Size     cuda.Size
	Identity memory.Identity
	Address  string
	Objects  int
	Bytes    uint64
}

type answer struct {
	Error  string
	Export cuda.Export
}

func serve(in io.Reader, out io.Writer) error {
	orders, answers := json.NewDecoder(in), json.NewEncoder(out)
	var o order
	if err := orders.Decode(&o); err != nil {
		return nil
	}
	device, err := driver.Open(o.Device)
	if err != nil {
		return err
	}
	slab, err := device.NewSlab(cuda.SlabConfig{Size: o.Size, Identity: o.Identity})
	if err != nil {
		return errors.Join(err, answers.Encode(answer{Error: err.Error()}))
	}
	if o.Objects > 0 {
		objects := transfertest.NewObjectsIn(transfertest.NewRoom(slab))
		backing := pattern(o.Bytes)
		for i := range o.Objects {
			// Those that are to be apart come from other arrays.
			if !o.shared() {
				backing = slices.Clone(backing)
			}
			objects.Put(ref(i), "x", backing)
		}
		if _, err := borrow.Listen(o.Address, lending(slab, slab.Export(), objects)); err != nil {
			return err
		}
	}
	if err := answers.Encode(answer{Export: slab.Export()}); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, in) // until the parent is gone, or done
	return nil
}

// shared: all objects are the same bytes of the slab.
func (o order) shared() bool { return o.Bytes*uint64(o.Objects) > o.Size.Bytes/2 }

func pattern(n uint64) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8)*31 ^ byte(i>>20)
	}
	return b
}

func lending(space memory.Space, export cuda.Export, source transfer.Source) borrow.ServerConfig {
	return borrow.ServerConfig{
		Space: space, Source: source, Incarnation: "test",
		Device: &borrow.Device{Handle: export.Handle, UUID: export.Device},
	}
}

// child is a process that holds a slab.
type child struct {
	cmd    *exec.Cmd
	export cuda.Export
	in     io.Closer
}

func startChild(tb testing.TB, o order) *child {
	tb.Helper()
	cmd := exec.Command(os.Args[0])
	library := "real"
	if fake != nil {
		library = fake.Library
	}
	cmd.Env = append(os.Environ(), childEnv+"="+library)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	c := &child{cmd: cmd, in: in}
	tb.Cleanup(c.kill)
	var a answer
	if err := json.NewEncoder(in).Encode(o); err != nil {
		tb.Fatal(err)
	}
	if err := json.NewDecoder(bufio.NewReader(out)).Decode(&a); err != nil {
		tb.Fatal(err)
	}
	if a.Error != "" {
		tb.Fatal(a.Error)
	}
	c.export = a.Export
	return c
}

// kill ends the process at once, and returns when the system has taken back what it
// held.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // it may have ended
	_ = c.cmd.Wait()         // by the signal
	_ = c.in.Close()
}

var lastNonce atomic.Uint64

func newIdentity() memory.Identity {
	return memory.Identity{WorkerUUID: [16]byte{1, 2}, Incarnation: [16]byte{3}, Nonce: uint64(os.Getpid())<<32 | lastNonce.Add(1)}
}

// freeAddress is one that nobody listens at.
func freeAddress(tb testing.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer closing(tb, l)
	return l.Addr().String()
}

func closing(tb testing.TB, c io.Closer) {
	tb.Helper()
	if err := c.Close(); err != nil {
		tb.Error(err)
	}
}

// otherDevice is the one that a peer should use: another one if there is one.
func otherDevice() int { return len(driver.Devices()) - 1 }

func openDevice(tb testing.TB, ordinal int) *cuda.Device {
	tb.Helper()
	if fake != nil {
		tb.Cleanup(fake.Heal)
	}
	d, err := driver.Open(ordinal)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { closing(tb, d) })
	return d
}

// held is the slab of a child, which the test fills, and lends itself: objects and
// leases are the test's, the memory is another process's.
type held struct {
	peer   *cuda.Peer
	export cuda.Export
	device *cuda.Device
	pinned *cuda.Pinned
}

var _ memory.Staged = (*held)(nil)

const bounceBytes = 4 << 20

func newHeld(tb testing.TB, bytes uint64) (*held, *child) {
	tb.Helper()
	identity := newIdentity()
	c := startChild(tb, order{Device: otherDevice(), Size: cuda.Size{Bytes: bytes}, Identity: identity})
	d := openDevice(tb, 0)
	peer, err := d.OpenPeer(c.export)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { closing(tb, peer) })
	slab, err := host.NewSlab(bounceBytes, identity)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { closing(tb, slab) })
	pinned, err := d.Register(slab, cuda.RegisterConfig{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { closing(tb, pinned) })
	return &held{peer: peer, export: c.export, device: d, pinned: pinned}, c
}

func (h *held) Size() uint64                   { return h.export.SizeBytes }
func (h *held) Identity() memory.Identity      { return h.export.Identity }
func (h *held) Bytes(uint64, uint64) []byte    { return nil }
func (h *held) FD() int                        { return -1 }
func (h *held) Buffer() (memory.Buffer, error) { return nil, errors.ErrUnsupported }
func (h *held) ReadInto(at uint64, p []byte) error {
	return h.move(at, p, func(pointer, address uint64, p []byte) error {
		n := uint64(len(p))
		err := h.copy(cuda.ToHost(address, pointer, n))
		copy(p, h.pinned.Space().Bytes(0, n))
		return err
	})
}

func (h *held) WriteFrom(at uint64, p []byte) error {
	return h.move(at, p, func(pointer, address uint64, p []byte) error {
		n := uint64(len(p))
		copy(h.pinned.Space().Bytes(0, n), p)
		return h.copy(cuda.ToDevice(pointer, address, n))
	})
}

func (h *held) copy(c cuda.Copy) error {
	s := h.device.Stream(cuda.Out)
	return errors.Join(s.Copy([]cuda.Copy{c}, nil), s.Sync())
}

func (h *held) move(at uint64, p []byte, piece func(pointer, address uint64, p []byte) error) error {
	for len(p) > 0 {
		n := min(len(p), bounceBytes)
		if err := piece(h.peer.Pointer(at, uint64(n)), h.pinned.Address(0, uint64(n)), p[:n]); err != nil {
			return err
		}
		at, p = at+uint64(n), p[n:]
	}
	return nil
}

// reader is a path with a device and a slab of its own.
type reader struct {
	path *ipc.Path
	room *transfertest.Room
	slab *cuda.Slab
}

func newReader(tb testing.TB, slabBytes uint64, change func(*ipc.Config)) *reader {
	tb.Helper()
	d := openDevice(tb, 0)
	slab, err := d.NewSlab(cuda.SlabConfig{Size: cuda.Size{Bytes: slabBytes}, Identity: newIdentity()})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { closing(tb, slab) })
	c := ipc.Config{Device: d, Slab: slab, StallTimeout: 20 * time.Second}
	if change != nil {
		change(&c)
	}
	path, err := ipc.New(c)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { closing(tb, path) })
	return &reader{path: path, slab: slab, room: transfertest.NewRoom(slab)}
}
