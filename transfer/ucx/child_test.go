//go:build cgo && linux

package ucx_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/descriptors"
	"github.com/millrace/millrace/internal/leaktest"
	"github.com/millrace/millrace/internal/rawframe"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/grpcpath"
	"github.com/millrace/millrace/transfer/transfertest"
	"github.com/millrace/millrace/transfer/ucx"
)

// childEnv holds the order for a second process: this binary, started again.
const childEnv = "MILLRACE_TEST_CHILD"

// childOrder describes the work of a second process.
type childOrder struct {
	TLS       string
	SlabBytes uint64
	// Place is where the process has its slab. On a GPU, the slab is the child's own, with copies
	// of the test's objects.
	Place place
	// Lie names the field about which the process lies to readers.
	Lie string
	// Read: the process does not serve, but reads object 1 from this address until it is killed.
	Read string
	// Open: the process does not serve, but opens a context with this library and these limits, and
	// ends.
	Open           bool
	Library        string
	Files          uint64
	NoLockedMemory bool
	// Listen is the address to serve at; empty: any address.
	Listen string
	// Sizes, if set, are the sizes of objects 1, 2, ... that the child itself has. Its source is
	// quick then. If not set, the child asks the test for objects.
	Sizes []int
	// Inline is Config.InlineBytes.
	Inline int
	// Test is the address of the test for a child on another host; such a child has copies of the
	// test's objects in its own slab. Empty: the child is on this host.
	Test string
}

func TestMain(m *testing.M) {
	if order := os.Getenv(childEnv); order != "" {
		if err := serveAsChild(order); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if err := joinAgent(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if elsewhere != nil {
		_ = elsewhere.Close() // the processes that it started have ended
	}
	if code == 0 {
		if err := leaktest.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	if n := ucx.Allocations(); n != 0 && code == 0 {
		fmt.Fprintf(os.Stderr, "%d allocations of the shim are left\n", n)
		code = 1
	}
	if err := closeFake(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// library returns the library of the wheel; the Makefile installs it and sets its path.
func library(tb testing.TB) string {
	tb.Helper()
	path, err := filepath.Abs(libraryPath())
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		tb.Fatalf("%v; `make .tools/ucx/.stamp` brings it", err)
	}
	return path
}

func libraryPath() string {
	if path := os.Getenv("MILLRACE_UCX_LIBRARY"); path != "" {
		return path
	}
	return "../../.tools/ucx/lib/libucp.so.0"
}

// slab is a memfd that several processes map.
type slab struct {
	file     *os.File
	data     []byte
	identity memory.Identity
}

var lastNonce atomic.Uint64

// newIdentity returns the identity of another incarnation.
func newIdentity() memory.Identity {
	n := lastNonce.Add(1)
	return memory.Identity{WorkerUUID: [16]byte{1}, Incarnation: [16]byte{2, byte(n), byte(n >> 8)}, Nonce: n}
}

func newSlab(tb testing.TB, bytes uint64) *slab {
	tb.Helper()
	fd, err := unix.MemfdCreate("millrace-test", unix.MFD_CLOEXEC)
	if err != nil {
		tb.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "slab")
	if err := file.Truncate(int64(bytes)); err != nil {
		tb.Fatal(err)
	}
	s, err := openSlab(file, bytes)
	if err != nil {
		tb.Fatal(err)
	}
	s.identity = newIdentity()
	memory.Header{Identity: s.identity, SizeBytes: bytes}.Write(s.data)
	tb.Cleanup(func() {
		if err := errors.Join(unix.Munmap(s.data), file.Close()); err != nil {
			tb.Error(err)
		}
	})
	return s
}

func openSlab(file *os.File, bytes uint64) (*slab, error) {
	data, err := unix.Mmap(int(file.Fd()), 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return &slab{file: file, data: data}, err
}

func (s *slab) Size() uint64               { return uint64(len(s.data)) }
func (s *slab) Identity() memory.Identity  { return s.identity }
func (s *slab) Bytes(off, n uint64) []byte { return s.data[off : off+n : off+n] }
func (s *slab) FD() int                    { return int(s.file.Fd()) }

// RemoteLeased is transfer.Leased without the fields that are valid in one process only.
type RemoteLeased struct {
	Lease   transfer.LeaseID
	Head    transfer.Head
	Frames  []memory.Frame
	Missing bool
}

// Source is the RPC service by which a child reads the objects of the test.
type Source struct{ objects *transfertest.Objects }

type LeaseQuestion struct {
	Reader transfer.Reader
	Refs   []transfer.Ref
	TTL    time.Duration
}

// Lease is called by the child.
func (s *Source) Lease(q LeaseQuestion, out *[]RemoteLeased) error {
	for _, l := range s.objects.Lease(q.Reader, q.Refs, q.TTL) {
		r := RemoteLeased{Lease: l.Lease, Head: l.Head, Missing: l.Err != nil}
		for _, region := range l.Regions {
			r.Frames = append(r.Frames, region.Frame)
		}
		*out = append(*out, r)
	}
	return nil
}

// Release is called by the child.
func (s *Source) Release(leases []transfer.LeaseID, out *[]bool) error {
	*out = s.objects.Release(leases)
	return nil
}

// Read is called by a child on another host, to get the bytes of frames of the test's slab.
func (s *Source) Read(frames []memory.Frame, out *[][]byte) error {
	for _, f := range frames {
		*out = append(*out, s.objects.Room().Space().Bytes(f.Offset, f.Bytes))
	}
	return nil
}

// childSource is the child's side of Source.
type childSource struct {
	test *rpc.Client
	// space is the child's slab. far is the test's slab; nil if the child is on another host. own
	// says that these are two, so that the bytes of objects must be copied.
	space memory.Space
	far   *slab
	own   bool

	mu sync.Mutex
	// copied are the frames that were copied, by offset and size. Guarded by mu.
	copied map[memory.Frame]bool
}

// newChildSource returns the source of a child that serves the test's objects. Its slab has the
// header page of the test's slab.
func newChildSource(order childOrder) (*childSource, error) {
	c := &childSource{own: order.Test != "" || order.Place != onHost, copied: make(map[memory.Frame]bool)}
	var conn net.Conn
	var err error
	if order.Test != "" {
		conn, err = net.Dial("tcp", order.Test)
	} else {
		conn, err = net.FileConn(os.NewFile(4, "test"))
	}
	if err != nil {
		return nil, err
	}
	c.test = rpc.NewClient(conn)
	if order.Test == "" {
		if c.far, err = openSlab(os.NewFile(3, "slab"), order.SlabBytes); err != nil {
			return nil, err
		}
	}
	contents, err := c.read([]memory.Frame{{Bytes: memory.HeaderBytes}})
	if err != nil {
		return nil, err
	}
	header, err := memory.ParseHeader(contents[0])
	if err != nil {
		return nil, err
	}
	c.space, err = childSpace(order, c.far, header.Identity)
	return c, err
}

// childSpace returns the slab of a child: one on a GPU, or in host memory the given slab, or a new
// one if that is nil.
func childSpace(order childOrder, s *slab, id memory.Identity) (memory.Space, error) {
	if order.Place != onHost {
		driver, err := driver()
		if err != nil {
			return nil, err
		}
		d, err := driver.Open(len(driver.Devices()) - 1)
		if err != nil {
			return nil, err
		}
		return d.NewSlab(cuda.SlabConfig{Size: cuda.Size{Bytes: order.SlabBytes}, Identity: id})
	}
	if s == nil {
		fd, err := unix.MemfdCreate("millrace-test", unix.MFD_CLOEXEC)
		if err != nil {
			return nil, err
		}
		file := os.NewFile(uintptr(fd), "slab")
		if err := file.Truncate(int64(order.SlabBytes)); err != nil {
			return nil, err
		}
		if s, err = openSlab(file, order.SlabBytes); err != nil {
			return nil, err
		}
		memory.Header{Identity: id, SizeBytes: order.SlabBytes}.Write(s.data)
	}
	s.identity = id
	return s, nil
}

// read returns the bytes of frames of the test's slab.
func (c *childSource) read(frames []memory.Frame) (contents [][]byte, err error) {
	if c.far == nil {
		return contents, c.test.Call("Source.Read", frames, &contents)
	}
	for _, f := range frames {
		contents = append(contents, c.far.Bytes(f.Offset, f.Bytes))
	}
	return contents, nil
}

// copy gets the bytes of frames that are not in the child's slab yet.
func (c *childSource) copy(frames []memory.Frame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var missing []memory.Frame
	for _, f := range frames {
		if f.Bytes > 0 && !c.copied[f] {
			missing = append(missing, f)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	contents, err := c.read(missing)
	if err != nil {
		return err
	}
	for i, f := range missing {
		if staged, ok := c.space.(memory.Staged); ok {
			err = staged.WriteFrom(f.Offset, contents[i])
		} else {
			copy(c.space.Bytes(f.Offset, f.Bytes), contents[i])
		}
		if err != nil {
			return err
		}
		c.copied[f] = true
	}
	return nil
}

// close frees the slab on a GPU, and ends the connection to the test.
func (c *childSource) close() error {
	err := c.test.Close()
	if s, ok := c.space.(*cuda.Slab); ok {
		err = errors.Join(err, s.Close(), s.Device().Close())
	}
	return err
}

func (c *childSource) Lease(reader transfer.Reader, refs []transfer.Ref, ttl time.Duration) []transfer.Leased {
	var answer []RemoteLeased
	out := make([]transfer.Leased, len(refs))
	if err := c.test.Call("Source.Lease", LeaseQuestion{reader, refs, ttl}, &answer); err != nil {
		for i := range out {
			out[i].Err = err
		}
		return out
	}
	if c.own {
		var frames []memory.Frame
		for _, r := range answer {
			frames = append(frames, r.Frames...)
		}
		if err := c.copy(frames); err != nil {
			for i := range out {
				out[i].Err = err
			}
			return out
		}
	}
	for i, r := range answer {
		out[i] = transfer.Leased{Lease: r.Lease, Head: r.Head}
		if r.Missing {
			out[i] = transfer.Leased{Err: transfer.ErrNotHere}
			continue
		}
		for _, f := range r.Frames {
			out[i].Regions = append(out[i].Regions, transfer.Region{Space: c.space, Frame: f})
		}
	}
	return out
}

// Renew is part of transfer.Source. The reader does not renew leases.
func (*childSource) Renew(leases []transfer.LeaseID, _ time.Duration) []bool {
	return make([]bool, len(leases))
}

func (c *childSource) Release(leases []transfer.LeaseID) []bool {
	var held []bool
	if err := c.test.Call("Source.Release", leases, &held); err != nil {
		return make([]bool, len(leases))
	}
	return held
}

// serveAsChild is the main function of a serving process. It returns when the test closes its end
// of the socket.
func serveAsChild(text string) error {
	var order childOrder
	if err := json.Unmarshal([]byte(text), &order); err != nil {
		return err
	}
	switch {
	case order.Open:
		return openAsChild(order)
	case order.Read != "":
		return readAsChild(order)
	}
	own, err := newChildSource(order)
	if err != nil {
		return err
	}
	var source transfer.Source = own
	if order.Sizes != nil {
		objects := transfertest.NewObjectsIn(transfertest.NewRoom(own.space))
		for i, n := range order.Sizes {
			objects.Put(transfer.Ref{Task: idOf(i + 1), Generation: 1}, "h", make([]byte, n))
		}
		source = objects
	}
	c, err := ucx.Open(at(order.Place, ucx.Config{
		Library: libraryPath(), TLS: order.TLS, NetDevices: netDevices(), Space: own.space, Source: source, SourceIsQuick: order.Sizes != nil,
		InlineBytes: order.Inline,
	}))
	if err != nil {
		return err
	}
	server := grpc.NewServer(rawframe.ServerOptions()...)
	(&grpcpath.Server{OneSided: func(ctx context.Context, r *workerv1.ConnectRequest) (*workerv1.ConnectResponse, error) {
		response, err := c.Accept(ctx, r)
		if err == nil && response.GetSource() != nil {
			lie(response.GetSource(), order.Lie)
		}
		return response, err
	}}).Register(server)
	listen := order.Listen
	if listen == "" {
		listen = "127.0.0.1:0"
	}
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	go func() {
		// Standard input ends when the test has finished or died.
		_, _ = io.Copy(io.Discard, os.Stdin)
		server.Stop()
	}()
	err = server.Serve(listener)
	err = errors.Join(err, c.Close(), own.close())
	if n := ucx.Allocations(); n != 0 {
		err = errors.Join(err, fmt.Errorf("%d allocations of the shim are left", n))
	}
	return err
}

// endpoint is the description that a side sends of itself.
type endpoint = workerv1.Endpoint

func lie(e *endpoint, about string) {
	switch about {
	case "version":
		e.Version = "1.18.0"
	case "nonce":
		e.Nonce++
	case "incarnation":
		e.Incarnation = make([]byte, 16)
	case "uuid":
		e.WorkerUuid = make([]byte, 16)
	case "base":
		e.MemoryBase += 4096
		e.MemoryBytes -= 4096
	}
}

// child is a serving process.
type child struct {
	peer    transfer.Peer
	process *os.Process
	// kill ends the process by SIGKILL and waits for it.
	kill func()
}

// startChild starts a process that serves objects; the objects lie in a slab.
func startChild(tb testing.TB, order childOrder, objects *transfertest.Objects) *child {
	tb.Helper()
	library(tb)
	space := objects.Room().Space().(*slab)
	order.SlabBytes = space.Size()
	if order.Place != onHost {
		if _, err := driver(); err != nil { // the child uses it, too
			tb.Fatal(err)
		}
	}
	if elsewhere != nil {
		return startElsewhere(tb, order, objects)
	}
	text, err := json.Marshal(order)
	if err != nil {
		tb.Fatal(err)
	}
	conn, theirs, err := descriptors.Pair()
	if err != nil {
		tb.Fatal(err)
	}
	defer theirs.Close()
	server := rpc.NewServer()
	if err := server.Register(&Source{objects}); err != nil {
		tb.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		server.ServeConn(conn)
	}()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(text), "GORACE=atexit_sleep_ms=0")
	cmd.ExtraFiles = []*os.File{space.file, theirs}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := errors.Join(descriptors.CloseOnExec(), cmd.Start()); err != nil {
		tb.Fatal(err)
	}
	c := &child{process: cmd.Process}
	var ended sync.Once
	end := func(hard bool) {
		ended.Do(func() {
			if hard {
				_ = cmd.Process.Kill() // it may have ended
			}
			_ = cmd.Process.Signal(syscall.SIGCONT)
			_ = in.Close()
			err := cmd.Wait()
			_ = conn.Close()
			<-served
			if err != nil && !hard {
				tb.Errorf("child: %v", err)
			}
		})
	}
	tb.Cleanup(func() { end(false) })
	c.kill = func() { end(true) }
	var address string
	if _, err := fmt.Fscanln(out, &address); err != nil {
		tb.Fatalf("the child did not say its address: %v", err)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	c.peer = transfer.Peer{Worker: 1, Name: "peer", Address: address}
	return c
}
