package ucx

import (
	"cmp"
	"fmt"
	"math"

	hostv1 "github.com/millrace/millrace/gen/go/millrace/host/v1"
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
)

// offer is what a source offers to a reader.
type offer struct {
	// key is the key of the slab; nil if the slab cannot be read directly.
	key []byte
	// device is the mapping of a slab on a GPU; nil if there is none.
	device *hostv1.DeviceMemory
	// rdma says that RDMA devices of other hosts can read the slab on the GPU.
	rdma bool
	// ringKey is the key of the ring; nil if the slab is host memory. The ring is at ringBase.
	ringKey             []byte
	ringBase, ringBytes uint64
}

// offered returns the offer of a source, with the address of its endpoint. All of it is checked.
func (v version) offered(source *workerv1.Endpoint) (address []byte, o offer, err error) {
	address, unsuitable := v.unsealed(contentAddress, source.GetAddress())
	if err := cmp.Or(v.check(source.GetVersion()), unsuitable); err != nil {
		return nil, o, err
	}
	if len(source.GetMemoryKey()) > 0 || source.GetRing() == nil {
		if o.key, err = v.unsealed(contentKey, source.GetMemoryKey()); err != nil {
			return nil, o, err
		}
	}
	if wrong := misplaced(source.GetMemoryBase(), source.GetMemoryBytes(), memory.HeaderBytes); wrong || source.GetToken() == 0 {
		return nil, o, fmt.Errorf("%w: a slab of %d bytes at %#x", transfer.ErrProtocol, source.GetMemoryBytes(), source.GetMemoryBase())
	}
	o.device, o.rdma = source.GetDevice(), source.GetRdma()
	ring := source.GetRing()
	if ring == nil {
		return address, o, nil
	}
	if misplaced(ring.GetBase(), ring.GetBytes(), memory.HeaderBytes+memory.StageBytes) {
		return nil, o, fmt.Errorf("%w: a ring of %d bytes at %#x", transfer.ErrProtocol, ring.GetBytes(), ring.GetBase())
	}
	o.ringBase, o.ringBytes = ring.GetBase(), ring.GetBytes()
	o.ringKey, err = v.unsealed(contentKey, ring.GetKey())
	return address, o, err
}

// misplaced says whether memory is smaller than least, or goes beyond the end of all addresses.
func misplaced(base, bytes, least uint64) bool { return bytes < least || base+bytes < base }

// onDevice says that the slab lies on a GPU.
func (o offer) onDevice() bool { return o.ringKey != nil }

// route says what a connection reads, and into what. A side whose slab the transport cannot access
// is staged: its bytes go through its ring.
type route struct {
	stagedSource, stagedReader bool
	description                Connection
}

// staged says that a ring is part of the route.
func (r route) staged() bool { return r.stagedSource || r.stagedReader }

// byMessage says that the peer is asked to send the bytes.
func (r route) byMessage() bool { return r.description.Emulated }

// writesToGPU says that network devices write to the slab of a reader on a GPU.
func (r route) writesToGPU(c *Context) bool { return c.slab != nil && !r.stagedReader && !r.mapped() }

// mapped says that we read from one GPU to another by a mapping.
func (r route) mapped() bool { return r.description.Transport == transportCUDA }

// chunk returns the bound on one read, in bytes.
func (r route) chunk() uint64 {
	switch {
	case r.byMessage():
		return messageChunkBytes
	case matches(r.description.Transport, copying):
		return copiedChunkBytes
	}
	return chunkBytes
}

// readChunk returns the bound on one read of an object. Pieces are cut from longer reads.
func (r route) readChunk() uint64 {
	if r.staged() {
		return math.MaxUint64
	}
	return r.chunk()
}

// routes returns the routes by which a source can be read with the given transports, the most
// direct first.
func (c *Context) routes(o offer, transports []string) (routes []route) {
	if c.slab != nil && o.onDevice() && c.slabDenied == nil && o.key != nil && o.device != nil {
		r := route{description: describe(c.version, transports, true)}
		if r.mapped() && !r.byMessage() {
			routes = append(routes, r)
		}
	}
	host := describe(c.version, transports, false)
	nic := !host.Emulated && matches(host.Transport, fabric)
	direct := route{
		stagedSource: o.onDevice() && !(nic && o.key != nil && o.rdma), stagedReader: c.slab != nil && !(nic && c.writesDenied == nil),
		description: host,
	}
	full := route{stagedSource: o.onDevice(), stagedReader: c.slab != nil, description: host}
	if len(routes) == 0 {
		routes = append(routes, direct)
	}
	if r := routes[0]; !c.config.asHost && (r.stagedSource != full.stagedSource || r.stagedReader != full.stagedReader) {
		routes = append(routes, full)
	}
	for i := range routes {
		c.describeStaging(&routes[i], o)
	}
	return routes
}

// describeStaging says in the description at which ends the route is staged, and why.
func (c *Context) describeStaging(r *route, o offer) {
	d := &r.description
	switch {
	case r.stagedSource && r.stagedReader:
		d.Staged = "both"
	case r.stagedSource:
		d.Staged = "source"
	case r.stagedReader:
		d.Staged = "reader"
	}
	switch {
	case d.Why != "" || !r.staged():
	case r.stagedReader && c.writesDenied != nil:
		d.Why = "here " + c.writesDenied.Error()
	case r.stagedSource && !o.rdma:
		d.Why = "the network devices of the peer cannot access its GPU"
	case !matches(d.Transport, fabric):
		d.Why = d.Transport + " does not access the memory of GPUs"
	default:
		d.Why = "the direct read is slower, or fails"
	}
}
