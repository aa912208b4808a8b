//go:build cgo && linux

package ipc_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/internal/leaktest"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/memory/cuda/cudatest"
	"github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/borrow"
	"github.com/millrace/millrace/transfer/ipc"
	"github.com/millrace/millrace/transfer/objindex"
	"github.com/millrace/millrace/transfer/transfertest"
)

const (
	// realEnv selects the machine's driver instead of the fake one.
	realEnv = "MILLRACE_CUDA_REAL"
	// childEnv makes the test binary serve as a child that holds a slab.
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
	if code == 0 {
		if err := leaktest.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
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

// order is a command to a child process. The first one makes a slab and, with an address, lends
// objects from it. Later ones fetch from others.
type order struct {
	Device   int
	Size     cuda.Size
	Identity memory.Identity
	// Await: retry until the device has room.
	Await   bool
	Address string
	Sets    []set

	// Fetch are the addresses from which object Ref, of Bytes bytes, is fetched: from all of them
	// at once, and Rounds times from each.
	Fetch  []string
	Ref    int
	Rounds int
	Bytes  uint64

	// Unpublish removes object Ref, which was fetched before, from the index. Forward publishes it
	// while it arrives. Pipelined means that the source in Fetch does so, and this child reads
	// there. The fetch begins at At, a wall clock time in nanoseconds.
	Unpublish, Forward, Pipelined bool
	At                            int64

	// Rewrite is the number of objects, of Bytes bytes, whose index entries are written again.
	Rewrite int
}

// set is a number of objects, numbered from First on, of Bytes bytes each. Objects of 16 MiB and
// more share their bytes.
type set struct {
	First, Count int
	Bytes        uint64
	// Life is mixed into their bytes, in addition to their position.
	Life byte
}

type answer struct {
	Error  string
	Export cuda.Export
	// Seconds and CPUSeconds are elapsed time and processor time of a fetch.
	Seconds, CPUSeconds float64
	// Ended is the wall clock time of the end, in nanoseconds.
	Ended int64
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
	config := cuda.SlabConfig{Size: o.Size, Identity: o.Identity}
	make := device.NewSlab
	if o.Await {
		make = func(c cuda.SlabConfig) (*cuda.Slab, error) { return device.AwaitSlab(context.Background(), c, nil) }
	}
	slab, err := make(config)
	if err != nil {
		return errors.Join(err, answers.Encode(answer{Error: err.Error()}))
	}
	export, err := slab.Export()
	if err != nil {
		return err
	}
	room := transfertest.NewRoom(slab)
	if o.Address != "" {
		objects := transfertest.NewObjectsIn(room)
		b, err := objindex.New(0, 0)
		if err != nil {
			return err
		}
		objects.PublishTo(b)
		childIndex = b
		for _, s := range o.Sets {
			backing := patternOf(s.Life, s.Bytes)
			for i := range s.Count {
				if s.Bytes < 16<<20 {
					backing = slices.Clone(backing) // its own place
				}
				objects.Put(ref(s.First+i), "x", backing)
			}
		}
		if _, err := borrow.Listen(o.Address, lending(slab, export, objects)); err != nil {
			return err
		}
	}
	if err := answers.Encode(answer{Export: export}); err != nil {
		return err
	}
	for {
		var o order
		if err := orders.Decode(&o); err != nil {
			return nil // the parent is gone or done
		}
		a, err := fetchAsChild(device, slab, room, o)
		if err != nil {
			a.Error = err.Error()
		}
		if err := answers.Encode(a); err != nil {
			return err
		}
	}
}

// The paths of a child are kept between its orders.
var (
	childPath  *ipc.Path
	childIndex *objindex.Index
	// childPlaces are reused for objects that are fetched repeatedly.
	childPlaces *places
)

func fetchAsChild(d *cuda.Device, slab *cuda.Slab, room *transfertest.Room, o order) (a answer, err error) {
	if childPath == nil {
		if childPath, err = ipc.New(ipc.Config{Device: d, Slab: slab, StallTimeout: transfertest.Patience}); err != nil {
			return a, err
		}
	}
	if o.Rewrite > 0 {
		return a, rewrite(o)
	}
	if o.Unpublish {
		childIndex.Unpublish(ref(o.Ref))
		return a, nil
	}
	errs := make([]error, len(o.Fetch))
	sinks := make([]*places, len(o.Fetch))
	for i := range o.Fetch {
		if o.At != 0 && childPlaces != nil {
			sinks[i] = childPlaces
			continue
		}
		if sinks[i], err = newPlaces(room, 1, o.Bytes); err != nil {
			return a, err
		}
		childPlaces = sinks[i]
	}
	for time.Now().UnixNano() < o.At { // spin: a sleep would not end accurately enough
	}
	began, cpu := time.Now(), processorTime()
	var group sync.WaitGroup
	for i, address := range o.Fetch {
		group.Go(func() {
			for range o.Rounds {
				if errs[i] == nil {
					errs[i] = fetchOnce(o, transfer.Peer{Worker: 7, Name: "source", Address: address}, sinks[i])
				}
			}
		})
	}
	group.Wait()
	a.Ended = time.Now().UnixNano()
	a.Seconds, a.CPUSeconds = time.Since(began).Seconds(), (processorTime() - cpu).Seconds()
	return a, errors.Join(errs...)
}

// rewrite unpublishes objects and publishes them again in the same entries.
func rewrite(o order) error {
	for i := range o.Rewrite {
		if !childIndex.Unpublish(ref(i)) {
			return fmt.Errorf("object %d was not published", i)
		}
	}
	for i := o.Rewrite - 1; i >= 0; i-- {
		childIndex.Publish(ref(i), []byte("x"), []memory.Frame{{Offset: memory.HeaderBytes + uint64(i)*o.Bytes, Bytes: o.Bytes}})
	}
	return nil
}

func fetchOnce(o order, from transfer.Peer, sink *places) error {
	var to transfer.Sink = sink
	if o.Forward {
		to = &relayed{places: sink, ref: ref(o.Ref)}
	}
	get := childPath.Fetch
	if o.Pipelined {
		get = childPath.FetchPipelined
	}
	for {
		sink.err = nil
		err := get(context.Background(), from, []transfer.Ref{ref(o.Ref)}, to)
		if !o.Pipelined || !errors.Is(sink.err, transfer.ErrNotHere) {
			return errors.Join(err, sink.err)
		}
		// The source has not begun yet, because it maps memory or the machine is loaded.
	}
}

// relayed is a sink that publishes arriving objects in the child's index.
type relayed struct {
	*places
	ref  transfer.Ref
	head transfer.Head
}

func (r *relayed) Place(ctx context.Context, index int, head transfer.Head) ([]transfer.Region, error) {
	r.head = head
	return r.places.Place(ctx, index, head)
}

func (r *relayed) Capabilities() transfer.SinkCapabilities {
	return transfer.SinkCapabilities{Forward: r}
}

func (r *relayed) Forward(index int) (func(uint64), uint64) {
	if !childIndex.PublishArriving(r.ref, r.head.Header, []memory.Frame{r.regions[index].Frame}) {
		return nil, 0
	}
	return func(bytes uint64) { childIndex.SetProgress(r.ref, bytes) }, 16 << 20
}

func (r *relayed) Withdraw(int) { childIndex.Unpublish(r.ref) }

func (r *relayed) Done(index int, err error) {
	if err == nil {
		childIndex.Complete(r.ref)
	} else {
		childIndex.Unpublish(r.ref)
	}
	r.places.Done(index, err)
}

// places is a cheap sink: it returns the same places each time.
type places struct {
	regions []transfer.Region
	done    int
	err     error
}

func newPlaces(room *transfertest.Room, count int, bytes uint64) (*places, error) {
	p := &places{}
	for range count {
		r, err := room.Take((bytes + 255) / 256 * 256) // aligned like the ledger's
		if err != nil {
			return nil, err
		}
		r.Frame.Bytes = bytes
		p.regions = append(p.regions, r)
	}
	return p, nil
}

func (*places) Capabilities() transfer.SinkCapabilities { return transfer.SinkCapabilities{} }

func (p *places) Place(_ context.Context, index int, _ transfer.Head) ([]transfer.Region, error) {
	return p.regions[index : index+1], nil
}

func (p *places) Done(_ int, err error) {
	p.done++
	if err != nil {
		p.err = err
	}
}

// together is a places sink that takes many objects at once, like the worker's sink.
type together struct{ *places }

func (p together) Capabilities() transfer.SinkCapabilities {
	return transfer.SinkCapabilities{Batch: p}
}

func (p together) PlaceBatch(_ context.Context, first int, heads []transfer.Head, into []memory.Frame) (transfer.Placed, error) {
	for _, r := range p.regions[first : first+len(heads)] {
		into = append(into, r.Frame)
	}
	return transfer.Placed{Objects: len(heads), Space: p.regions[first].Space, Frames: into}, nil
}

func (p together) DoneBatch(_, count int) { p.done += count }

// processorTime returns the processor time used by this process.
func processorTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func pattern(n uint64) []byte { return patternOf(0, n) }

func patternOf(life byte, n uint64) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8)*31 ^ byte(i>>20) ^ life
	}
	return b
}

func lending(space memory.Space, export cuda.Export, source transfer.Source) borrow.ServerConfig {
	return borrow.ServerConfig{
		Space: space, Source: source, Incarnation: "test", Index: source.(*transfertest.Objects).Index(),
		Device: &borrow.Device{Handle: export.Handle, UUID: export.Device},
	}
}

// child is a process that holds a slab.
type child struct {
	cmd     *exec.Cmd
	export  cuda.Export
	in      io.Closer
	orders  *json.Encoder
	answers *json.Decoder
}

func startChild(tb testing.TB, o order) *child {
	tb.Helper()
	c, err := prepareChild()
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		tb.Fatal(err)
	}
	return c.begin(tb, o)
}

// startChildAgain starts a successor of an ended child, if that is not nil: with the same addresses
// and, if the system allows it, the same pid.
func startChildAgain(tb testing.TB, ended *child, o order) *child {
	tb.Helper()
	var c *child
	pid := 0
	if ended != nil {
		pid = ended.cmd.Process.Pid
	}
	_, same, err := cudatest.StartAgain(pid, func() (*exec.Cmd, error) {
		var err error
		if c, err = prepareChild(); err != nil {
			return nil, err
		}
		return c.cmd, nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	if ended != nil {
		tb.Logf("it has the same pid: %v", same)
	}
	return c.begin(tb, o)
}

func (c *child) begin(tb testing.TB, o order) *child {
	tb.Helper()
	tb.Cleanup(c.kill)
	c.tell(tb, o)
	c.export = c.hear(tb).Export
	return c
}

func prepareChild() (*child, error) {
	cmd := exec.Command(os.Args[0])
	library := "real"
	if fake != nil {
		library = fake.Library
	}
	cmd.Env = append(os.Environ(), childEnv+"="+library)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &child{cmd: cmd, in: in, orders: json.NewEncoder(in), answers: json.NewDecoder(bufio.NewReader(out))}, nil
}

func (c *child) tell(tb testing.TB, o order) {
	tb.Helper()
	if err := c.orders.Encode(o); err != nil {
		tb.Fatal(err)
	}
}

func (c *child) hear(tb testing.TB) (a answer) {
	tb.Helper()
	if err := c.answers.Decode(&a); err != nil {
		tb.Fatal(err)
	}
	if a.Error != "" {
		tb.Fatal(a.Error)
	}
	return a
}

// kill kills the process and returns when the system has reclaimed its resources.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // it may have ended
	_ = c.cmd.Wait()         // reports the kill signal
	_ = c.in.Close()
}

var lastNonce atomic.Uint64

func newIdentity() memory.Identity {
	return memory.Identity{WorkerUUID: [16]byte{1, 2}, Incarnation: [16]byte{3}, Nonce: uint64(os.Getpid())<<32 | lastNonce.Add(1)}
}

var lastAddress atomic.Uint64

// freeAddress returns an unused address. Sources lend under its name only, so it needs no port.
func freeAddress() string { return fmt.Sprintf("ipc-test-%d-%d", os.Getpid(), lastAddress.Add(1)) }

func closing(tb testing.TB, c io.Closer) {
	tb.Helper()
	if err := c.Close(); err != nil {
		tb.Error(err)
	}
}

// otherDevice returns the device for a peer: another one than ours if there is one.
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

// held is the slab of a child process, filled and lent by the test: the memory is in another
// process, but objects and leases are in this one.
type held struct {
	peer   *cuda.Peer
	export cuda.Export
	device *cuda.Device
	// bounce is host memory, registered as pinned, by which bytes go to and from the slab.
	bounce *host.Slab
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
	return &held{peer: peer, export: c.export, device: d, pinned: pinned, bounce: slab}, c
}

func (h *held) Size() uint64                      { return h.export.SizeBytes }
func (h *held) Identity() memory.Identity         { return h.export.Identity }
func (h *held) Bytes(uint64, uint64) []byte       { return nil }
func (h *held) FD() int                           { return -1 }
func (h *held) Buffer() (memory.Buffer, error)    { return nil, errors.ErrUnsupported }
func (h *held) TryBuffer() (memory.Buffer, error) { return nil, errors.ErrUnsupported }
func (h *held) ReadInto(at uint64, p []byte) error {
	return h.move(at, p, func(pointer, address uint64, p []byte) error {
		n := uint64(len(p))
		err := h.copy(cuda.ToHost(address, pointer, n))
		copy(p, h.bounce.Bytes(0, n))
		return err
	})
}

func (h *held) WriteFrom(at uint64, p []byte) error {
	return h.move(at, p, func(pointer, address uint64, p []byte) error {
		n := uint64(len(p))
		copy(h.bounce.Bytes(0, n), p)
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
	c := ipc.Config{Device: d, Slab: slab, StallTimeout: transfertest.Patience, LeaseTTL: transfertest.Patience, Worker: func() ids.WorkerID { return 3 }}
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
