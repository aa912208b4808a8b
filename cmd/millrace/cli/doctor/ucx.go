package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/ucx"
	"github.com/millrace/millrace/worker/topology"
)

// open opens UCX as a worker does, with some transports, for a slab.
func (c Config) open(tls, devices string, space memory.Space) (*ucx.Context, error) {
	return ucx.Open(ucx.Config{Library: c.Library, TLS: tls, NetDevices: devices, Space: space, Source: nothing{}})
}

// ucx checks the library, and whether it can use the RDMA devices of this machine. rdma is the
// answer to the latter; it is false if there are none.
func (c Config) ucx() (f Finding, rdma bool) {
	f = Finding{Check: "ucx", State: OK}
	s, err := host.NewSlab(1<<20, memory.Identity{Nonce: 1})
	if err != nil {
		f.State, f.Found = Warn, err.Error()
		return f, false
	}
	defer s.Close()
	context, err := c.open(c.TLS, c.NetDevices, s)
	if err != nil {
		f.State, f.Found = Warn, err.Error()
		f.Remedy = "nothing need be done where workers share a host or have TCP only. For RDMA name your site's build with --ucx-library; " +
			"pip install libucx-cu13==1.19.0 beside millrace brings shared memory, TCP and CUDA IPC"
		return f, false
	}
	version := context.Version()
	f.Found = "version " + version
	if err := context.Close(); err != nil {
		f.State, f.Found = Warn, f.Found+": "+err.Error()
	}
	modules := ucx.Modules(c.Library)
	if len(modules) > 0 {
		f.Found += ", with the modules " + strings.Join(modules, ", ")
	}
	devices := c.rdmaDevices()
	if len(devices) == 0 {
		return f, false
	}
	f.Found += fmt.Sprintf(", RDMA devices: %d", len(devices))
	context, err = c.open(c.rdmaTLS(false), c.NetDevices, s)
	if err != nil {
		f.warn("it cannot use them: "+err.Error(), "the libucx wheels are built without RDMA: name your site's build with --ucx-library, "+
			"on all hosts the same version; for containers add /dev/infiniband")
		return f, false
	}
	if err := context.Close(); err != nil {
		f.State, f.Found = Warn, f.Found+": "+err.Error()
	}
	if !recent(version) {
		f.warn("it reads by messages where peers may die", "install UCX 1.19 or newer, the same version on all hosts")
	}
	if t := c.GPUs.Topology; t != nil && len(t.Devices) > 0 && len(modules) > 0 && !slices.Contains(modules, "cuda") {
		f.warn("it has no CUDA, so it cannot register the memory of GPUs: their objects pass through pinned memory of the host", "install a UCX that is built with CUDA and verbs")
	}
	return f, true
}

// rdmaTLS returns the transports with which RDMA devices are tried. cuda_copy gives them the memory
// of GPUs.
func (c Config) rdmaTLS(gpu bool) string {
	switch {
	case c.TLS != "":
		return c.TLS
	case gpu:
		return "rc,cuda_copy"
	}
	return "rc"
}

// recent reports whether a version of UCX reads one-sidedly from peers that it watches, which 1.19
// is the first to do.
func recent(version string) bool {
	var major, minor int
	_, err := fmt.Sscanf(version, "%d.%d", &major, &minor)
	return err == nil && (major > 1 || minor >= 19)
}

// readBytes is the size of the slabs of a trial read: larger than the 4 MiB that a connection reads
// to prove itself.
const readBytes = 16 << 20

// reads reads memory of this process through the RDMA devices and back: from the host's memory, and
// from that of each GPU through the card that its worker uses. That is the read that workers of
// other hosts do, without the fabric.
func (c Config) reads(ctx context.Context) []Finding {
	findings := []Finding{c.read(ctx, "rdma-read host", c.NetDevices, c.hostSlab)}
	if c.GPUs.Topology == nil {
		return findings
	}
	for _, d := range c.GPUs.Topology.Devices {
		devices := c.NetDevices
		if devices == "" {
			devices = d.NetDevices
		}
		f := c.read(ctx, "rdma-read "+d.UUID, devices, func() (memory.Space, func() error, error) { return c.gpuSlab(d) })
		if f.State == OK && strings.Contains(f.Found, "staged") && c.direct(d).State == OK {
			f.warn("the card may access the GPU, and a direct read fails or is slower", "look at the lines about this GPU above; UCX must be built with CUDA; UCX_LOG_LEVEL=info prints what it registers")
		}
		findings = append(findings, f)
	}
	return findings
}

func (Config) hostSlab() (memory.Space, func() error, error) {
	s, err := host.NewSlab(readBytes, memory.Identity{Nonce: 1})
	if err != nil {
		return nil, nil, err
	}
	return s, s.Close, nil
}

func (c Config) gpuSlab(d topology.Device) (memory.Space, func() error, error) {
	driver, err := cuda.Load(cuda.Config{Library: c.GPUs.CUDALibrary})
	if err != nil {
		return nil, nil, err
	}
	info, err := driver.Find(d.UUID)
	if err != nil {
		return nil, nil, err
	}
	device, err := driver.Open(info.Ordinal)
	if err != nil {
		return nil, nil, err
	}
	s, err := device.NewSlab(cuda.SlabConfig{Size: cuda.Size{Bytes: readBytes}, Identity: memory.Identity{Nonce: 1}})
	if err != nil {
		return nil, nil, errors.Join(err, device.Close())
	}
	return s, func() error { return errors.Join(s.Close(), device.Close()) }, nil
}

// read reads a slab through RDMA devices and back.
func (c Config) read(ctx context.Context, check, devices string, slab func() (memory.Space, func() error, error)) (f Finding) {
	f = Finding{Check: check, State: OK}
	x, err := c.loopback(ctx, devices, slab)
	if err != nil {
		f.State, f.Found = Warn, err.Error()
		f.Remedy = "look at ucx, locked-memory and the devices above; UCX_LOG_LEVEL=info prints what UCX does"
		return f
	}
	f.Found = x.String()
	if x.Emulated {
		f.State, f.Remedy = Warn, "let UCX use rc (--ucx-tls, UCX_TLS), and name the devices with --ucx-net-devices"
	}
	return f
}

// loopback connects two contexts of this process and describes the connection, which a timed read
// has proved.
func (c Config) loopback(ctx context.Context, devices string, slab func() (memory.Space, func() error, error)) (x ucx.Connection, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	space, free, err := slab()
	if err != nil {
		return x, err
	}
	defer func() { err = errors.Join(err, free()) }()
	into, err := host.NewSlab(readBytes, memory.Identity{Nonce: 2})
	if err != nil {
		return x, err
	}
	defer func() { err = errors.Join(err, into.Close()) }()
	_, gpu := space.(*cuda.Slab)
	source, err := c.open(c.rdmaTLS(gpu), devices, space)
	if err != nil {
		return x, err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	reader, err := c.open(c.rdmaTLS(false), devices, into)
	if err != nil {
		return x, err
	}
	defer func() { err = errors.Join(err, reader.Close()) }()
	path := ucx.NewPath(reader, ucx.PathConfig{
		Connect: func(ctx context.Context, _ transfer.Peer, r *workerv1.ConnectRequest) (*workerv1.ConnectResponse, error) {
			return source.Accept(ctx, r)
		},
	})
	defer func() { err = errors.Join(err, path.Close()) }()
	return path.Connect(ctx, transfer.Peer{Worker: 1, Name: "this process", Address: "loopback"})
}

// nothing is a store without objects.
type nothing struct{}

// Lease implements transfer.Source.
func (nothing) Lease(_ transfer.Reader, refs []transfer.Ref, _ time.Duration) []transfer.Leased {
	out := make([]transfer.Leased, len(refs))
	for i := range out {
		out[i].Err = transfer.ErrNotHere
	}
	return out
}

// Release implements transfer.Source.
func (nothing) Release(leases []transfer.LeaseID) []bool { return make([]bool, len(leases)) }

// Renew implements transfer.Source.
func (nothing) Renew(leases []transfer.LeaseID, _ time.Duration) []bool {
	return make([]bool, len(leases))
}
