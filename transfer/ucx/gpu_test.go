//go:build cgo && linux

package ucx_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/millrace/millrace/internal/descriptors"
	"github.com/millrace/millrace/internal/rawframe"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/grpcpath"
	"github.com/millrace/millrace/transfer/transfertest"
	"github.com/millrace/millrace/transfer/ucx"
)

// gpus returns the driver for tests that need GPUs, because UCX accesses the driver itself and the
// fake driver cannot serve it. Without GPUs it returns nil.
func gpus(t *testing.T) *cuda.Driver {
	t.Helper()
	if !onRealGPU() {
		t.Log("no GPU here: " + realEnv + " is not set")
		return nil
	}
	d, err := driver()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// gpuChildEnv holds the order for a process with a slab on a GPU.
const gpuChildEnv = "MILLRACE_TEST_GPU_CHILD"

type gpuOrder struct {
	Ordinal   int
	SlabBytes uint64
	Identity  memory.Identity
	// Sizes are the sizes of objects that the child itself has. If not set, it asks the test.
	Sizes []int
	// TLS are the transports of the child; empty: the default.
	TLS string
	// OnHost: the slab is host memory.
	OnHost bool
	// On is the address at which the child serves, and NetDevices are its network devices. Empty:
	// 127.0.0.1 and lo.
	On, NetDevices string
	// Command is what the command line of the child begins with.
	Command []string
}

// gpuTold is the description that a child sends of itself. Export is empty if its slab is host
// memory.
type gpuTold struct {
	Address string
	Export  cuda.Export
}

//nolint:gochecknoinits // before TestMain, which knows other children
func init() {
	text := os.Getenv(gpuChildEnv)
	if text == "" {
		return
	}
	if err := serveOnGPU(text); err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// farSource is childSource with a slab on a GPU.
type farSource struct {
	test  *rpc.Client
	space memory.Space
}

func (s farSource) Lease(reader transfer.Reader, refs []transfer.Ref, ttl time.Duration) []transfer.Leased {
	out := make([]transfer.Leased, len(refs))
	var answer []RemoteLeased
	if err := s.test.Call("Source.Lease", LeaseQuestion{reader, refs, ttl}, &answer); err != nil {
		for i := range out {
			out[i].Err = err
		}
		return out
	}
	for i, r := range answer {
		if r.Missing {
			out[i].Err = transfer.ErrNotHere
			continue
		}
		out[i] = transfer.Leased{Lease: r.Lease, Head: r.Head}
		for _, f := range r.Frames {
			out[i].Regions = append(out[i].Regions, transfer.Region{Space: s.space, Frame: f})
		}
	}
	return out
}

// Renew is part of transfer.Source. The reader does not renew leases.
func (farSource) Renew(leases []transfer.LeaseID, _ time.Duration) []bool {
	return make([]bool, len(leases))
}

func (s farSource) Release(leases []transfer.LeaseID) []bool {
	var held []bool
	if err := s.test.Call("Source.Release", leases, &held); err != nil {
		return make([]bool, len(leases))
	}
	return held
}

// serveOnGPU is the main function of a serving process with a slab on a GPU.
func serveOnGPU(text string) error {
	var o gpuOrder
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	slab, export, end, err := o.slab()
	if err != nil {
		return err
	}
	conn, err := net.FileConn(os.NewFile(3, "test"))
	if err != nil {
		return err
	}
	var source transfer.Source
	if o.Sizes == nil {
		source = farSource{test: rpc.NewClient(conn), space: slab}
	} else {
		objects := transfertest.NewObjectsIn(transfertest.NewRoom(slab))
		for i, n := range o.Sizes {
			objects.Put(transfer.Ref{Task: idOf(i + 1), Generation: 1}, "h", stamped(i+1, n))
		}
		source = objects
	}
	c, err := ucx.Open(ucx.Config{Library: libraryPath(), TLS: o.TLS, NetDevices: cmp.Or(o.NetDevices, "lo"), Space: slab, Source: source, SourceIsQuick: o.Sizes != nil})
	if err != nil {
		return err
	}
	server := grpc.NewServer(rawframe.ServerOptions()...)
	(&grpcpath.Server{OneSided: c.Accept}).Register(server)
	listener, err := net.Listen("tcp", net.JoinHostPort(cmp.Or(o.On, "127.0.0.1"), "0"))
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(gpuTold{listener.Addr().String(), export}); err != nil {
		return err
	}
	go func() {
		// Standard input ends when the test has finished or died.
		_, _ = io.Copy(io.Discard, os.Stdin)
		server.Stop()
	}()
	err = server.Serve(listener)
	return errors.Join(err, c.Close(), end())
}

// slab makes the slab of a child, and a function that frees it.
func (o gpuOrder) slab() (space memory.Space, export cuda.Export, end func() error, err error) {
	if o.OnHost {
		s, err := host.NewSlab(o.SlabBytes, o.Identity)
		if err != nil {
			return nil, export, nil, err
		}
		return s, export, s.Close, nil
	}
	driver, err := driver()
	if err != nil {
		return nil, export, nil, err
	}
	d, err := driver.Open(o.Ordinal)
	if err != nil {
		return nil, export, nil, err
	}
	s, err := d.NewSlab(cuda.SlabConfig{Size: cuda.Size{Bytes: o.SlabBytes}, Identity: o.Identity})
	if err != nil {
		return nil, export, nil, errors.Join(err, d.Close())
	}
	end = func() error { return errors.Join(s.Close(), d.Close()) }
	if export, err = s.Export(); err != nil {
		return nil, export, nil, errors.Join(err, end())
	}
	return s, export, end, nil
}

// gpuChild is a serving process with a slab on a GPU.
type gpuChild struct {
	peer transfer.Peer
	told gpuTold
	kill func()
}

func startOnGPU(t *testing.T, o gpuOrder, source *Source) *gpuChild {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	conn, theirs, err := descriptors.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	server := rpc.NewServer()
	if err := server.Register(source); err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		server.ServeConn(conn)
	}()
	line := append(slices.Clone(o.Command), os.Args[0])
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env, cmd.ExtraFiles, cmd.Stderr = append(os.Environ(), gpuChildEnv+"="+string(text)), []*os.File{theirs}, os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(descriptors.CloseOnExec(), cmd.Start()); err != nil {
		t.Fatal(err)
	}
	c := &gpuChild{kill: sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = in.Close()
		_ = cmd.Wait() // ends with an error, because it was killed
		_ = conn.Close()
		<-served
	})}
	t.Cleanup(c.kill)
	if err := json.NewDecoder(out).Decode(&c.told); err != nil {
		t.Fatalf("the child said nothing of itself: %v", err)
	}
	c.peer = transfer.Peer{Worker: 1, Name: "peer", Address: c.told.Address}
	return c
}

// far is the slab of a child; the test fills it through a mapping of its own.
type far struct {
	device *cuda.Device
	peer   *cuda.Peer
	export cuda.Export
	// bounce is host memory, registered as pinned, by which bytes go to and from the slab.
	bounce *host.Slab
	pinned *cuda.Pinned
}

var _ memory.Staged = (*far)(nil)

const bounceBytes = 4 << 20

func (f *far) Size() uint64                      { return f.export.SizeBytes }
func (f *far) Identity() memory.Identity         { return f.export.Identity }
func (f *far) Bytes(uint64, uint64) []byte       { return nil }
func (f *far) FD() int                           { return -1 }
func (f *far) Buffer() (memory.Buffer, error)    { return nil, errors.ErrUnsupported }
func (f *far) TryBuffer() (memory.Buffer, error) { return nil, errors.ErrUnsupported }

func (f *far) ReadInto(at uint64, p []byte) error {
	for part := range slices.Chunk(p, bounceBytes) {
		n := uint64(len(part))
		if err := f.copy(cuda.ToHost(f.pinned.Address(0, n), f.peer.Pointer(at, n), n)); err != nil {
			return err
		}
		at += uint64(copy(part, f.bounce.Bytes(0, n)))
	}
	return nil
}

func (f *far) WriteFrom(at uint64, p []byte) error {
	for part := range slices.Chunk(p, bounceBytes) {
		n := uint64(copy(f.bounce.Bytes(0, uint64(len(part))), part))
		if err := f.copy(cuda.ToDevice(f.peer.Pointer(at, n), f.pinned.Address(0, n), n)); err != nil {
			return err
		}
		at += n
	}
	return nil
}

func (f *far) copy(c cuda.Copy) error {
	s := f.device.Stream(cuda.Out)
	return errors.Join(s.Copy([]cuda.Copy{c}, nil), s.Sync())
}

func done(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

func openGPU(t *testing.T, driver *cuda.Driver, ordinal int) *cuda.Device {
	t.Helper()
	d, err := driver.Open(ordinal)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { done(t, "close the GPU", d.Close()) })
	return d
}

// gpuObjects starts a child with a slab on the last GPU, and returns objects in that slab.
func gpuObjects(t *testing.T, driver *cuda.Driver, bytes uint64) (*transfertest.Objects, *gpuChild) {
	t.Helper()
	source := new(Source)
	id := memory.Identity{WorkerUUID: [16]byte{1}, Incarnation: [16]byte{2}, Nonce: lastNonce.Add(1)}
	c := startOnGPU(t, gpuOrder{Ordinal: len(driver.Devices()) - 1, SlabBytes: bytes, Identity: id}, source)
	f := &far{device: openGPU(t, driver, 0), export: c.told.Export}
	var err error
	if f.peer, err = f.device.OpenPeer(f.export); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { done(t, "unmap", f.peer.Close()) })
	if f.bounce, err = host.NewSlab(bounceBytes, id); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { done(t, "close", f.bounce.Close()) })
	if f.pinned, err = f.device.Register(f.bounce, cuda.RegisterConfig{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { done(t, "unpin", f.pinned.Close()) })
	source.objects = transfertest.NewObjectsIn(transfertest.NewRoom(f))
	return source.objects, c
}

// gpuReader returns a path that fetches into a slab on the first GPU.
func gpuReader(t *testing.T, driver *cuda.Driver, bytes uint64, stall time.Duration) (*ucx.Path, *transfertest.Room) {
	t.Helper()
	return gpuReaderOver(t, driver, bytes, stall, "")
}

// gpuReaderOver is gpuReader with the given transports.
func gpuReaderOver(t *testing.T, driver *cuda.Driver, bytes uint64, stall time.Duration, tls string) (*ucx.Path, *transfertest.Room) {
	t.Helper()
	d := openGPU(t, driver, 0)
	slab, err := d.NewSlab(cuda.SlabConfig{Size: cuda.Size{Bytes: bytes}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { done(t, "free the slab", slab.Close()) })
	return pathInto(t, slab, tls, "lo", stall), transfertest.NewRoom(slab)
}

func TestGPUConformance(t *testing.T) {
	driver := gpus(t)
	if driver == nil {
		return
	}
	const bytes = 1 << 30
	rooms := map[transfer.Path]*transfertest.Room{}
	children := map[*transfertest.Objects]*gpuChild{}
	transfertest.Harness{
		Serve: func(t *testing.T, source transfer.Source) (transfer.Peer, func()) {
			t.Helper()
			c := children[source.(*transfertest.Objects)]
			return c.peer, c.kill
		},
		Path: func(t *testing.T, stall time.Duration) transfer.Path {
			t.Helper()
			path, room := gpuReader(t, driver, bytes, stall)
			rooms[path] = room
			return path
		},
		CanStall: true,
		Objects: func(t *testing.T) *transfertest.Objects {
			t.Helper()
			objects, c := gpuObjects(t, driver, bytes)
			children[objects] = c
			return objects
		},
		Room: func(path transfer.Path) *transfertest.Room { return rooms[path] },
	}.Run(t)
}

// Without cuda_ipc, UCX would read from the other GPU by messages, or by copies through host
// memory, at a thousandth of the rate. The bytes go through the rings of both sides instead.
func TestGPUWithoutCUDAIPCTheBytesGoThroughRings(t *testing.T) {
	driver := gpus(t)
	if driver == nil {
		return
	}
	for name, tls := range map[string]string{"with CUDA": "self,posix,sysv,cma,tcp,cuda_copy", "without CUDA": "posix,cma"} {
		t.Run(name, func(t *testing.T) {
			id := memory.Identity{WorkerUUID: [16]byte{1}, Incarnation: [16]byte{2}, Nonce: lastNonce.Add(1)}
			const n = 9<<20 + 1
			c := startOnGPU(t, gpuOrder{Ordinal: len(driver.Devices()) - 1, SlabBytes: 64 << 20, Identity: id, Sizes: []int{n}, TLS: tls}, new(Source))
			// UCX registers the slab as memory of a GPU if it has cuda_copy.
			path, room := gpuReaderOver(t, driver, 20<<30, transfertest.Patience, tls)
			connection, err := path.Connect(t.Context(), c.peer)
			if err != nil {
				t.Fatal(err)
			}
			t.Log(connection)
			if connection.Staged != "both" {
				t.Errorf("the connection is %s", connection)
			}
			place, err := room.Take(n)
			if err != nil {
				t.Fatal(err)
			}
			if err := path.Fetch(t.Context(), c.peer, []transfer.Ref{{Task: idOf(1), Generation: 1}}, bare{place}); err != nil {
				t.Fatal(err)
			}
			checkPlaced(t, place, 0, stamped(1, n))
		})
	}
}

// bare places every object into the same region.
type bare struct{ region transfer.Region }

func (bare) Capabilities() transfer.SinkCapabilities { return transfer.SinkCapabilities{} }

func (b bare) Place(context.Context, int, transfer.Head) ([]transfer.Region, error) {
	return []transfer.Region{b.region}, nil
}
func (b bare) Done(int, error) {}

func TestGPUFetchFigures(t *testing.T) {
	driver := gpus(t)
	if driver == nil {
		return
	}
	sizes := []int{64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30}
	id := memory.Identity{WorkerUUID: [16]byte{1}, Incarnation: [16]byte{2}, Nonce: lastNonce.Add(1)}
	c := startOnGPU(t, gpuOrder{Ordinal: len(driver.Devices()) - 1, SlabBytes: 4 << 30, Identity: id, Sizes: sizes}, new(Source))
	path, room := gpuReader(t, driver, 4<<30, transfertest.Patience)
	connection, err := path.Connect(t.Context(), c.peer)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s, of %v", connection, connection.Transports)
	if connection.Transport != "cuda_ipc" {
		t.Errorf("the connection is %s", connection.Transport)
	}
	place, err := room.Take(1 << 30)
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range sizes {
		place.Frame.Bytes = uint64(n)
		times := make([]time.Duration, 60)
		for k := range times {
			began := time.Now()
			if err := path.Fetch(t.Context(), c.peer, []transfer.Ref{{Task: idOf(i + 1), Generation: 1}}, bare{place}); err != nil {
				t.Fatal(err)
			}
			times[k] = time.Since(began)
		}
		slices.Sort(times)
		p50 := times[len(times)/2]
		transfertest.Note(t, fmt.Sprintf("ucx fetch of %d KiB: p50", n>>10), float64(p50)/1e3, "us")
		transfertest.Note(t, fmt.Sprintf("ucx fetch of %d KiB: rate", n>>10), float64(n)/p50.Seconds()/1e9, "GB/s")
	}
}
