//go:build cgo && linux

package cuda_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/memory/cuda/cudatest"
	"github.com/millrace/millrace/memory/memorytest"
)

func TestSlabConforms(t *testing.T) {
	memorytest.Space(t, func(t *testing.T, size uint64, id memory.Identity) memory.Space {
		t.Helper()
		s, err := open(t, 0).NewSlab(cuda.SlabConfig{Size: cuda.Size{Bytes: size}, Identity: id})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closing(t, s) })
		return s
	})
}

func TestDriverDescribesItsDevices(t *testing.T) {
	defer fake.Heal()
	if driver.Version() != "13.0" || len(driver.Devices()) != 2 {
		t.Fatalf("version %s with %d devices", driver.Version(), len(driver.Devices()))
	}
	got := driver.Devices()[1]
	want := cuda.Info{
		Ordinal: 1, UUID: got.UUID, Name: "Fake GPU 1", PCIBusID: "0000:1c:00.0", TotalBytes: fakeMemory,
		Attributes: cuda.Attributes{
			ComputeMajor: 9, Multiprocessors: 132, SharedBytes: 227 << 10,
			ReadOnlyRegistration: true, Shareable: true, FlushesWrites: true,
		},
	}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if s := got.UUID.String(); s != "GPU-fafafafa-fafa-fafa-fafa-fafafafafa01" {
		t.Errorf("uuid %s", s)
	}
	found, err := driver.Find("MIG-FAFAFAFA-fafa-fafa-fafa-fafafafafa01")
	if err != nil || found.Ordinal != 1 {
		t.Errorf("found %+v, %v", found, err)
	}
	if _, err := driver.Find("GPU-00000000-0000-0000-0000-000000000000"); !errors.Is(err, cuda.ErrUnavailable) {
		t.Errorf("an unknown device: %v", err)
	}
	for _, refuse := range []uint64{0, 1} {
		fake.RefusePeer.Store(refuse)
		m, err := driver.PeerAccess()
		if err != nil || !m[0][0] || !m[1][1] || m[0][1] != (refuse == 0) || m[1][0] != (refuse == 0) {
			t.Errorf("refused %d: %v, %v", refuse, m, err)
		}
	}
	if _, err := driver.Open(2); !errors.Is(err, cuda.ErrUnavailable) {
		t.Errorf("a third device: %v", err)
	}
}

// load loads a library in a new process, because a process can load only one.
func load(t *testing.T, library, state string) string {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+library, cudatest.Environment+"="+state)
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatal("loaded")
	}
	return string(out)
}

func TestDriversThatCannotBeUsedSayWhy(t *testing.T) {
	state := os.Getenv(cudatest.Environment)
	t.Setenv(cudatest.Environment, state) // restores it later: Start below changes it
	if got := load(t, "/nonexistent/libcuda.so.1", state); !strings.Contains(got, "cuda: unavailable: /nonexistent/libcuda.so.1: cannot open") || !strings.Contains(got, "install NVIDIA's driver") {
		t.Errorf("no library: %s", got)
	}
	if got := load(t, "libm.so.6", state); !strings.Contains(got, "libm.so.6 has no cuInit: it is no CUDA driver") {
		t.Errorf("another library: %s", got)
	}
	if got := load(t, fake.Library, ""); !strings.Contains(got, "CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device is detected") {
		t.Errorf("no GPU: %s", got)
	}
	partial, err := cudatest.Start(1, 1<<20, "FAKE_OMIT_IPC")
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, partial)
	if got := load(t, partial.Library, state); !strings.Contains(got, "has no cuIpcOpenMemHandle_v2") {
		t.Errorf("an incomplete driver: %s", got)
	}
	if _, err := cuda.Load(cuda.Config{Library: partial.Library}); err == nil || !strings.Contains(err.Error(), "is loaded already") {
		t.Errorf("a second driver: %v", err)
	}
}

func TestErrorsHaveCudasNameAndText(t *testing.T) {
	d := open(t, 0)
	fake.Fail("cuMemAlloc_v2", cudatest.OutOfMemory, 0, 1)
	_, err := d.NewSlab(cuda.SlabConfig{Size: cuda.Size{Bytes: 4 << 20}})
	var e *cuda.Error
	if !errors.As(err, &e) || e.Code != 2 || e.Name != "CUDA_ERROR_OUT_OF_MEMORY" || e.Text != "out of memory" || e.Call != "cuMemAlloc" {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"4.0 MiB", "256 MiB", "GPU-fafafafa-", "--device-memory-limit"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	if e.Sticky() || !errors.Is(err, cuda.ErrOutOfMemory) || errors.Is(err, cuda.ErrUnhealthy) || d.Health() != nil {
		t.Errorf("out of memory is not what it should be: %v", err)
	}
	fake.Fail("cuMemAlloc_v2", 12345, 0, 1)
	_, err = d.NewSlab(cuda.SlabConfig{Size: cuda.Size{Bytes: 4 << 20}})
	if err == nil || !strings.Contains(err.Error(), "CUDA_ERROR_UNRECOGNIZED (12345)") {
		t.Errorf("got %v", err)
	}
	if n := fake.Allocations.Load(); n != 0 {
		t.Errorf("%d allocations are left of slabs that failed", n)
	}
}

func TestEveryStepOfTheStartCanFailWithoutALeak(t *testing.T) {
	defer fake.Heal()
	for _, call := range []string{"cuDevicePrimaryCtxRetain", "cuCtxGetStreamPriorityRange", "cuStreamCreateWithPriority"} {
		for skip := range 3 {
			fake.Fail(call, 999, skip, 1)
			d, err := driver.Open(0)
			if err == nil {
				closing(t, d)
				continue
			}
			if left := fake.Left(); left != "" {
				t.Errorf("%s, call %d: left %s", call, skip, left)
			}
		}
	}
	d := open(t, 0)
	for _, call := range []string{"cuMemGetInfo_v2", "cuMemAlloc_v2", "cuMemcpyHtoDAsync_v2", "cuStreamSynchronize"} {
		fake.Fail(call, 999, 0, 1)
		if _, err := d.NewSlab(cuda.SlabConfig{Size: cuda.Size{Bytes: 4 << 20}}); err == nil {
			t.Errorf("%s failed and the slab did not", call)
		}
		if n := fake.Allocations.Load(); n != 0 {
			t.Errorf("%s: %d allocations are left", call, n)
		}
	}
}

func TestAStickyErrorMakesTheDeviceUnhealthyForGood(t *testing.T) {
	d := open(t, 0)
	s := newSlab(t, d, 4<<20)
	e, err := d.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, e)
	if err := d.Probe(); err != nil {
		t.Fatal(err)
	}
	fake.StickyCode.Store(cudatest.IllegalAddress)
	fake.StickyPID.Store(uint64(os.Getpid()))
	select {
	case <-d.Failed():
		t.Error("failed before it was asked")
	default:
	}
	if err := d.Probe(); !errors.Is(err, cuda.ErrUnhealthy) {
		t.Errorf("got %v", err)
	}
	<-d.Failed()
	fake.Heal() // whichever result the driver now returns, the device stays lost
	health := d.Health()
	if !errors.Is(health, cuda.ErrUnhealthy) || !strings.Contains(health.Error(), "CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered; the process must be replaced") {
		t.Errorf("health %v", health)
	}
	if _, err := e.Query(); !errors.Is(err, cuda.ErrUnhealthy) {
		t.Errorf("an event: %v", err)
	}
	stream := d.Stream(cuda.In)
	_, eventErr := d.NewEvent()
	_, slabErr := d.NewSlab(cuda.SlabConfig{})
	_, exportErr := s.Export()
	_, peerErr := d.OpenPeer(cuda.Export{})
	_, streamErr := d.NewStream(cuda.In)
	for i, err := range []error{
		stream.Copy(nil, nil), stream.Memset(s.Pointer(0, 1), 0, 1), stream.Sync(), e.Record(stream), e.Sync(),
		s.ReadInto(0, make([]byte, 1)), s.WriteFrom(0, make([]byte, 1)), exportErr, eventErr, slabErr, peerErr, streamErr,
	} {
		if !errors.Is(err, health) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	other := open(t, 1)
	if other.Health() != nil {
		t.Error("the other device is unhealthy as well")
	}
}

func TestEventsFollowTheirStreams(t *testing.T) {
	d := open(t, 0)
	s := newSlab(t, d, 4<<20)
	e, err := d.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, e)
	if done, err := e.Query(); !done || err != nil {
		t.Errorf("before the first record: %v, %v", done, err)
	}
	fake.Hold.Store(1)
	in := d.Stream(cuda.In)
	at := s.Pointer(memory.HeaderBytes, 8192)
	if err := errors.Join(in.Memset(at, 7, 4096), in.Copy([]cuda.Copy{cuda.OnDevice(at+4096, at, 4096)}, e)); err != nil {
		t.Fatal(err)
	}
	if done, err := e.Query(); done || err != nil {
		t.Errorf("while the stream is held: %v, %v", done, err)
	}
	if err := d.Close(); err == nil || !strings.Contains(err.Error(), "still in use: 1 slab, 1 event") {
		t.Errorf("closed while in use: %v", err)
	}
	fake.Hold.Store(0)
	if err := e.Sync(); err != nil {
		t.Fatal(err)
	}
	page := make([]byte, 8192)
	if err := s.ReadInto(memory.HeaderBytes, page); err != nil || page[0] != 7 || page[8191] != 7 {
		t.Errorf("read %d and %d, %v", page[0], page[8191], err)
	}
}

func TestABatchThatFailsSaysWhichCopy(t *testing.T) {
	d := open(t, 0)
	s := newSlab(t, d, 4<<20)
	at := s.Pointer(0, 4096)
	fine := cuda.OnDevice(at+8192, at, 100)
	err := d.Stream(cuda.In).Copy([]cuda.Copy{fine, fine, cuda.OnDevice(at, s.Pointer(s.Size(), 0), 4096)}, nil)
	if err == nil || !strings.Contains(err.Error(), "copy 3 of 3") || !strings.Contains(err.Error(), "CUDA_ERROR_INVALID_VALUE") {
		t.Errorf("got %v", err)
	}
	if err := d.Stream(cuda.In).Copy([]cuda.Copy{fine, {To: 1, From: 2}, {}}, nil); err != nil {
		t.Errorf("copies of nothing: %v", err)
	}
	if err := d.Stream(cuda.In).Sync(); err != nil {
		t.Error(err)
	}
}

func TestPeerAccessMayBeRefused(t *testing.T) {
	a := startChild(t).ask(t, order{Do: "slab", Device: 1, Size: cuda.Size{Bytes: 4 << 20}, Identity: identity})
	d := open(t, 0)
	fake.RefusePeer.Store(1)
	if _, err := d.OpenPeer(a.Export); !errors.Is(err, cuda.ErrPeerAccess) || !strings.Contains(err.Error(), "GPU-fafafafa-fafa-fafa-fafa-fafafafafa01") {
		t.Errorf("got %v", err)
	}
	fake.RefusePeer.Store(0)
	p, err := d.OpenPeer(a.Export)
	if err != nil {
		t.Fatal(err)
	}
	closing(t, p)
}

func TestEachPurposeHasItsOwnStream(t *testing.T) {
	d := open(t, 0)
	handles := d.Streams()
	slices.Sort(handles)
	if len(slices.Compact(handles)) != 4 {
		t.Errorf("the streams %#x", handles)
	}
	s, err := d.NewStream(cuda.In)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err == nil || !strings.Contains(err.Error(), "1 stream") {
		t.Errorf("closed with a stream: %v", err)
	}
	closing(t, s)
	closing(t, s)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := d.MakeCurrent(); err != nil {
		t.Error(err)
	}
}

// GPU- with the UUID of an instance names no device, or another one, for CUDA.
func TestInstancesAreNamedAsInstances(t *testing.T) {
	const whole, part = "GPU-fafafafa-fafa-fafa-fafa-fafafafafa01", "MIG-fafafafa-fafa-fafa-fafa-fafafafafa01"
	text := func(s string) *string { return &s }
	for _, c := range []struct {
		name, id string
		given    *string
		want     string
	}{
		{"NVIDIA H200", whole, nil, whole},
		{"NVIDIA H200", whole, text("3,1"), whole},
		{"NVIDIA H200", whole, text("GPU-aa, GPU-fafafafa"), "GPU-fafafafa"},
		{"NVIDIA H200", whole, text("GPU-aa"), whole},
		{"NVIDIA H200 MIG 1g.18gb", part, nil, part},
		{"NVIDIA H200 MIG 1g.18gb", part, text("0,1"), part},
		{"NVIDIA H200 MIG 1g.18gb", part, text("MIG-aa,MIG-GPU-bb/1/0"), "MIG-GPU-bb/1/0"},
	} {
		info := driver.Devices()[1]
		info.Name = c.name
		if got := info.ID(); got != c.id {
			t.Errorf("%s is %s", c.name, got)
		}
		if got := info.Visible(c.given); got != c.want {
			t.Errorf("%s: others are shown %s, want %s", c.name, got, c.want)
		}
	}
}

func TestAProcessDoesNotMapItsOwnSlab(t *testing.T) {
	t.Cleanup(fake.Reap)
	d := open(t, 0)
	s := newSlab(t, d, 4<<20)
	export, err := s.Export()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.OpenPeer(export); err == nil || !strings.Contains(err.Error(), "must be different ones") {
		t.Errorf("got %v", err)
	}
}

func TestOnlyHostMemoryIsRegistered(t *testing.T) {
	d := open(t, 0)
	s := newSlab(t, d, 4<<20)
	if _, err := d.Register(s, cuda.RegisterConfig{}); err == nil || !strings.Contains(err.Error(), "not addressable") {
		t.Errorf("got %v", err)
	}
	space := hostSlab(t, 1<<20)
	p, err := d.Register(space, cuda.RegisterConfig{Touchers: 3})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Register(space, cuda.RegisterConfig{Touchers: 1}); err == nil || !strings.Contains(err.Error(), "ALREADY_REGISTERED") {
		t.Errorf("twice: %v", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(space.FD(), &st); err != nil || st.Blocks*512 < 1<<20 {
		t.Errorf("%d bytes were touched: %v", st.Blocks*512, err)
	}
	if h, err := memory.ParseHeader(space.Bytes(0, memory.HeaderBytes)); err != nil || h.Identity != identity {
		t.Errorf("touching changed the header page: %+v, %v", h, err)
	}
	closing(t, p)
	closing(t, p)
}

func TestASlabIsFreedWhenTheLastCopyOutOfItIsOver(t *testing.T) {
	c := startChild(t)
	a := c.ask(t, order{Do: "slab", Device: 1, Size: cuda.Size{Bytes: 64 << 20}, Identity: identity})
	d := open(t, 1)
	p, err := d.OpenPeer(a.Export)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if !p.Acquire() {
			t.Fatal("cannot be acquired")
		}
	}
	if err := p.Close(); err == nil || !strings.Contains(err.Error(), "2 copies out of it are not over") {
		t.Errorf("closed while in use: %v", err)
	}
	c.kill()
	free := func() uint64 {
		n, _, err := d.Memory()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	told := 0
	unmapped := func(err error) {
		told++
		if err != nil {
			t.Error(err)
		}
	}
	p.Retire(unmapped)
	if p.Acquire() {
		t.Error("acquired a retired peer")
	}
	p.Retire(func(err error) {
		if !errors.Is(err, cuda.ErrClosed) {
			t.Errorf("retired twice: %v", err)
		}
	})
	p.Release()
	if told != 0 || free() != fakeMemory-64<<20 {
		t.Errorf("told %d times, %d bytes free, while in use", told, free())
	}
	p.Release()
	if told != 1 || free() != fakeMemory {
		t.Errorf("told %d times, %d bytes free, after it", told, free())
	}
	closing(t, p)
}

// TestASecondOpeningInTheProcessIsClosedToo: the second opening stands for that of UCX, which UCX
// never closes.
func TestASecondOpeningInTheProcessIsClosedToo(t *testing.T) {
	a := startChild(t).ask(t, order{Do: "slab", Device: 0, Size: cuda.Size{Bytes: 4 << 20}, Identity: identity})
	// Several Devices of one GPU share the primary context, but not the table of peers.
	ours, theirs, third := open(t, 0), open(t, 0), open(t, 0)
	retire := func(openings ...*cuda.Device) (err error) {
		var peers []*cuda.Peer
		for _, d := range openings {
			p, err := d.OpenPeer(a.Export)
			if err != nil {
				t.Fatal(err)
			}
			peers = append(peers, p)
		}
		peers[0].Retire(func(e error) { err = e })
		for _, p := range peers[1:] {
			_ = p.Close() // fails if Retire closed it
		}
		return err
	}
	if err := retire(ours); err != nil {
		t.Errorf("one opening: %v", err)
	}
	// The second opening belongs to another library of this process, which still uses it.
	if p, err := theirs.OpenPeer(a.Export); err != nil {
		t.Error(err)
	} else {
		if err := retire(ours); err == nil || !strings.Contains(err.Error(), "is still mapped") {
			t.Errorf("another's opening, without UCX: %v", err)
		}
		if err := p.ReadInto(0, make([]byte, 1)); err != nil {
			t.Errorf("the other opening was closed as well: %v", err)
		}
		closing(t, p)
	}
	for _, d := range []*cuda.Device{ours, theirs, third} {
		d.OpenedByOthers()
	}
	if err := retire(ours, theirs); err != nil {
		t.Errorf("two openings: %v", err)
	}
	if err := retire(ours, theirs, third); err == nil || !strings.Contains(err.Error(), "still mapped after two closes") {
		t.Errorf("three openings: %v", err)
	}
	if n := fake.Mappings.Load(); n != 0 {
		t.Errorf("%d mappings are left", n)
	}
}

// WSL, some virtual GPUs and Tegra cannot share a device's memory. A slab must still work within
// its process.
func TestASlabThatCannotBeSharedServesItsProcess(t *testing.T) {
	d := open(t, 0)
	fake.NoSharing.Store(1)
	s := newSlab(t, d, 4<<20)
	if _, err := s.Export(); !errors.Is(err, cuda.ErrNotShared) || !strings.Contains(err.Error(), "CUDA_ERROR_NOT_SUPPORTED (801)") || d.Health() != nil {
		t.Errorf("got %v, health %v", err, d.Health())
	}
	if err := s.WriteFrom(memory.HeaderBytes, []byte{7}); err != nil {
		t.Error(err)
	}
	got := make([]byte, 1)
	if err := s.ReadInto(memory.HeaderBytes, got); err != nil || got[0] != 7 {
		t.Errorf("read %d: %v", got[0], err)
	}
}

// To free memory that other processes have mapped is undefined behaviour. So a worker that exits
// properly must not free it, just as a killed worker does not.
func TestGPUASlabThatOthersReadOutlivesItsOwnersClose(t *testing.T) {
	c := startChild(t)
	a := c.ask(t, order{Do: "slab", Device: otherDevice(), Size: cuda.Size{Bytes: 4 << 20}, Identity: identity, Fill: 9})
	d := open(t, 0)
	p, err := d.OpenPeer(a.Export)
	if err != nil {
		t.Fatal(err)
	}
	freed := func() uint64 {
		if fake == nil {
			return 0 // a real driver does not report it
		}
		return fake.FreedInUse.Load()
	}
	before := freed()
	c.ask(t, order{Do: "close"})
	got := make([]byte, 100)
	if err := p.ReadInto(memory.HeaderBytes, got); err != nil || got[0] != 9 || got[99] != 9 || freed() != before {
		t.Errorf("read %d to %d, %v; %d allocations were freed in use", got[0], got[99], err, freed()-before)
	}
	c.kill()
	if err := p.ReadInto(memory.HeaderBytes, got); err != nil || got[99] != 9 {
		t.Errorf("after the end of the process: %d, %v", got[99], err)
	}
	p.Retire(func(err error) {
		if err != nil {
			t.Error(err)
		}
	})
	if free, _, err := d.Memory(); err != nil || fake != nil && free != fakeMemory {
		t.Errorf("%d bytes are free, %v", free, err)
	}
}

// A slab that was never exported is used only by this process.
func TestASlabThatNobodyElseCanHaveIsFreed(t *testing.T) {
	d := open(t, 0)
	s := newSlab(t, d, 4<<20)
	at := s.Pointer(0, 1)
	closing(t, s)
	if free, _, err := d.Memory(); err != nil || free != fakeMemory {
		t.Errorf("%d bytes are free, %v", free, err)
	}
	// The driver reuses addresses: a reader with an old address would read another allocation.
	if again := newSlab(t, d, 4<<20); again.Pointer(0, 1) != at {
		t.Errorf("the next slab lies at %#x, the last one lay at %#x", again.Pointer(0, 1), at)
	}
}

func TestAnErrorThatShowsLateLosesTheDevice(t *testing.T) {
	d := open(t, 0)
	s := newSlab(t, d, 4<<20)
	e, err := d.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, e)
	fake.LateCalls.Store(3)
	fake.LateCode.Store(cudatest.IllegalAddress)
	stream, calls := d.Stream(cuda.Compute), 0
	for ; err == nil && calls < 100; calls++ {
		if err = stream.Memset(s.Pointer(0, 1), 0, 1); err == nil {
			_, err = e.Query()
		}
	}
	if !errors.Is(err, cuda.ErrUnhealthy) || d.Health() == nil {
		t.Errorf("after %d calls: %v", calls, err)
	}
	fake.Heal()
}

func TestGPUPassesACheck(t *testing.T) {
	c, err := open(t, 0).NewCheck()
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, c)
	for range 3 {
		if err := c.Run(5 * time.Minute); err != nil {
			t.Error(err)
		}
	}
}

func TestACheckComparesWhatComesBack(t *testing.T) {
	d := open(t, 0)
	c, err := d.NewCheck()
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, c)
	for range 3 {
		if err := c.Run(5 * time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	fake.Fail("cuMemcpyDtoDAsync_v2", cudatest.Unknown, 0, 1)
	if err := c.Run(5 * time.Minute); err == nil || d.Health() != nil {
		t.Errorf("a copy that fails: %v, health %v", err, d.Health())
	}
	fake.Corrupt.Store(1)
	if err := c.Run(5 * time.Minute); err == nil || !strings.Contains(err.Error(), "not to be relied on") {
		t.Errorf("a copy that changes a byte: %v", err)
	}
	fake.Corrupt.Store(0)
	fake.Hold.Store(1)
	if err := c.Run(time.Millisecond); !errors.Is(err, cuda.ErrNoAnswer) {
		t.Errorf("a copy that does not end: %v", err)
	}
	fake.Hold.Store(0)
	if err := c.Run(5 * time.Minute); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

func TestPairsOfDevicesMayBeRefused(t *testing.T) {
	defer fake.Heal()
	fake.RefusedPairs.Store(1 << (8*0 + 1))
	m, err := driver.PeerAccess()
	if err != nil || m[0][1] || !m[1][0] {
		t.Errorf("%v, %v", m, err)
	}
	a := startChild(t).ask(t, order{Do: "slab", Device: 1, Size: cuda.Size{Bytes: 4 << 20}, Identity: identity})
	if _, err := open(t, 0).OpenPeer(a.Export); !errors.Is(err, cuda.ErrPeerAccess) {
		t.Errorf("the pair that is refused: %v", err)
	}
	fake.RefusedPairs.Store(1 << (8*0 + 1))
	p, err := open(t, 1).OpenPeer(a.Export)
	if err != nil {
		t.Fatal(err)
	}
	closing(t, p)
}

// When our mapping is closed, another mapping may at once appear at the same address.
func TestAnotherMappingAtTheSameAddressStays(t *testing.T) {
	a := startChild(t).ask(t, order{Do: "slab", Device: 0, Size: cuda.Size{Bytes: 4 << 20}, Identity: identity})
	d := open(t, 0)
	d.OpenedByOthers()
	p, err := d.OpenPeer(a.Export)
	if err != nil {
		t.Fatal(err)
	}
	at := p.Pointer(0, 1)
	fake.TakeOver.Store(1) // the next close of a mapping creates another mapping at its address
	p.Retire(func(err error) {
		if err != nil {
			t.Error(err)
		}
	})
	if fake.TakeOver.Load() != 0 {
		t.Fatal("nothing was mapped at the address")
	}
	if n := fake.TakenOver.Load(); n != at {
		t.Errorf("what was mapped at %#x was closed with the slab: %#x", at, n)
	}
}

func TestWaitingForRoomEndsWithTheContext(t *testing.T) {
	d := open(t, 0)
	newSlab(t, d, 200<<20)
	ctx, cancel := context.WithCancelCause(t.Context())
	refused := 0
	_, err := d.AwaitSlab(ctx, cuda.SlabConfig{Size: cuda.Size{Bytes: 100 << 20}}, func(err error) {
		if refused++; refused == 2 {
			cancel(errors.New("enough"))
		}
		if !errors.Is(err, cuda.ErrOutOfMemory) {
			t.Error(err)
		}
	})
	if !errors.Is(err, cuda.ErrOutOfMemory) || !strings.Contains(err.Error(), "enough") || refused != 2 {
		t.Errorf("after %d: %v", refused, err)
	}
	fake.Fail("cuMemAlloc_v2", 999, 0, 1)
	if _, err := d.AwaitSlab(t.Context(), cuda.SlabConfig{Size: cuda.Size{Bytes: 4 << 20}}, nil); err == nil || errors.Is(err, cuda.ErrOutOfMemory) {
		t.Errorf("another error: %v", err)
	}
}
