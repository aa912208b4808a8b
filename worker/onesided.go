package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/transfer"
	"github.com/millrace/millrace/transfer/ucx"
)

// oneSided is the transfer path of one-sided reads (RDMA, through UCX). It opens UCX at the first
// use: when a peer connects, or when a fetch has no better path; with --protocol ucx, at the start.
// Otherwise a cluster on one host, or without the UCX library, never pays for it.
type oneSided struct {
	config ucx.Config
	path   ucx.PathConfig
	// forced: connections whose one-sided reads UCX emulates are used, too.
	forced bool
	// chosen: the operator has chosen the transports.
	chosen bool
	// far: our slab is on a GPU.
	far bool
	// reach returns the devices and addresses of this host. It must be fast: it is called for each
	// fetch.
	reach func() hostReach
	log   *slog.Logger

	mu sync.Mutex
	// The fields below are guarded by mu. opened and err do not change once tried is set.
	tried   bool
	closed  bool
	context *ucx.Context
	opened  *ucx.Path
	err     error

	// live is the opened path, for callers that must not block: opening holds mu while it registers
	// the slab, which takes seconds with RDMA devices.
	live atomic.Pointer[bothSides]
}

// bothSides are the UCX context from which peers read our memory, and the path with which we read
// theirs.
type bothSides struct {
	context *ucx.Context
	path    *ucx.Path
}

var _ transfer.Path = (*oneSided)(nil)

// Capabilities is part of transfer.Path: the path has no optional ability.
func (*oneSided) Capabilities() transfer.Capabilities { return transfer.Capabilities{} }

// Name implements transfer.Path.
func (o *oneSided) Name() string { return ProtocolUCX }

func (o *oneSided) open() (*ucx.Context, *ucx.Path, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil, nil, fmt.Errorf("ucx: %w: closed", transfer.ErrPeerLost)
	}
	if !o.tried {
		o.tried = true
		if o.context, o.err = ucx.Open(o.config); o.err == nil {
			o.opened = ucx.NewPath(o.context, o.path)
			o.live.Store(&bothSides{o.context, o.opened})
			o.log.Info("one-sided reads are open", "library", "ucx "+o.context.Version())
		} else {
			o.log.Info("no one-sided reads: objects of other hosts come by gRPC", "why", o.err)
		}
	}
	return o.context, o.opened, o.err
}

// openWithin is open, for at most as long as the context lasts.
func (o *oneSided) openWithin(ctx context.Context) (*ucx.Path, error) {
	if live := o.live.Load(); live != nil {
		return live.path, nil
	}
	type result struct {
		path *ucx.Path
		err  error
	}
	opened := make(chan result, 1)
	go func() {
		_, path, err := o.open()
		opened <- result{path, err}
	}()
	select {
	case r := <-opened:
		return r.path, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// accept handles the request of a peer to connect. Only workers may make it: such a connection
// reaches all of this worker's memory. It opens UCX only for a request that it accepts, because an
// open UCX context listens for peers and asks for no token.
func (o *oneSided) accept(ctx context.Context, request *workerv1.ConnectRequest) (*workerv1.ConnectResponse, error) {
	if live := o.live.Load(); live != nil {
		return live.context.Accept(ctx, request)
	}
	switch {
	case request.GetCloseToken() != 0:
		return new(workerv1.ConnectResponse), nil
	case request.GetCheckToken() != 0:
		return &workerv1.ConnectResponse{Ended: true}, nil
	}
	if err := o.welcome(ctx); err != nil {
		return nil, status.Error(codes.Unimplemented, err.Error())
	}
	if err := o.config.Acceptable(request.GetReader()); err != nil {
		return nil, err
	}
	c, _, err := o.open()
	if err != nil {
		return nil, status.Error(codes.Unimplemented, err.Error())
	}
	return c.Accept(ctx, request)
}

// eligible returns nil if a peer should be read by this path, the reason otherwise. It opens UCX
// only for a peer that UCX may reach.
func (o *oneSided) eligible(ctx context.Context, peer transfer.Peer) error {
	if err := o.promising(peer); err != nil {
		return err
	}
	// Both steps are completed in the background if they take long, while fetches use other paths:
	// to open UCX, which registers the slab with each RDMA device, and to connect.
	timeout := cmp.Or(o.path.StallTimeout, transfer.DefaultStallTimeout)
	limited, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("%w: it is not connected after %v", transfer.ErrStalled, timeout))
	defer cancel()
	path, err := o.openWithin(limited)
	if err != nil {
		return err
	}
	connection, err := path.Connect(limited, peer)
	if errors.Is(err, ucx.ErrNoConnection) && !o.reach().here(peer.Address) {
		return fmt.Errorf("%w; see `millrace doctor` on both hosts", err)
	}
	if err != nil {
		return err
	}
	if connection.Emulated && !o.forced {
		return fmt.Errorf("reads over %s are emulated", connection.Transport)
	}
	return nil
}

// promising returns nil if a one-sided connection to a peer can work without emulation, the reason
// otherwise. A connection of any other kind gains nothing and is a risk: UCX 1.19 has crashed its
// process when the peer died in the middle of a TCP wire-up.
func (o *oneSided) promising(source transfer.Peer) error {
	if o.forced {
		return nil
	}
	reach := o.reach()
	here := reach.here(source.Address)
	switch {
	case (o.far || source.OnGPU) && (here || reach.named(source.Address)):
		return errSameHost
	case !here && !reach.rdma && !o.chosen:
		return errNoRDMA
	}
	return nil
}

// welcome returns an error if a reader that asks to connect can be reached over TCP only. The
// control connection shows its host.
func (o *oneSided) welcome(ctx context.Context) error {
	from, ok := peer.FromContext(ctx)
	if !ok || o.forced || o.chosen {
		return nil
	}
	if reach := o.reach(); !reach.rdma && !reach.here(from.Addr.String()) {
		return fmt.Errorf("%s: %w", reach.name, errNoRDMA)
	}
	return nil
}

// The reasons for which a pair of workers is not connected, unless --protocol ucx demands it.
var (
	errNoRDMA = fmt.Errorf("%w: between hosts it needs an RDMA device at both ends, and there is none in %s: "+
		"without it ucx would send messages over TCP, which is not faster than grpc; see millrace doctor", transfer.ErrUnreachable, rdmaDevices)
	errSameHost = fmt.Errorf("%w: one of the two slabs is on a GPU, and both workers are on one host, where other paths are better; "+
		"--protocol ucx uses it all the same", transfer.ErrUnreachable)
)

// rdmaDevices is the directory in which Linux lists the RDMA devices of the host.
const rdmaDevices = "/sys/class/infiniband"

// hostReach describes the connections that this host can offer for one-sided reads.
type hostReach struct {
	// rdma: there are RDMA devices. own are the host's addresses, name is its name.
	rdma bool
	own  []net.Addr
	name string
}

// UCX configures one-sided reads. Its zero value leaves everything to UCX.
type UCX struct {
	// Library is the path of libucp.so.0; TLS and NetDevices select UCX's transports and network
	// devices. Empty: the library is searched for, and UCX chooses by itself.
	Library, TLS, NetDevices string
	// Near are the RDMA ports near the GPU, one or two that are alike, in UCX's notation. UCX uses
	// them, unless NetDevices or UCX_NET_DEVICES name others. Empty: UCX chooses.
	Near string
	// RCTimeout is how long an RDMA connection waits for the acknowledgement of a packet before
	// it sends the packet again; RCRetries, 1 to 7, is how often it does so before the peer
	// counts as dead. 0: UCX_RC_TIMEOUT and UCX_RC_RETRY_COUNT, else UCX's defaults, 1 s and 7.
	RCTimeout time.Duration
	RCRetries int
}

// The limits of UCX.RCTimeout and UCX.RCRetries. A card cannot repeat a packet more than 7 times. A
// connection with the longest timeout notices a dead peer after 8 minutes.
const (
	MinRCTimeout = time.Millisecond
	MaxRCTimeout = time.Minute
	MaxRCRetries = 7
)

func (u UCX) check(wrong *refusals) {
	wrong.when(u.RCTimeout != 0 && (u.RCTimeout < MinRCTimeout || u.RCTimeout > MaxRCTimeout), "a timeout of %v (--ucx-rc-timeout): %v to %v", u.RCTimeout, MinRCTimeout, MaxRCTimeout)
	wrong.when(u.RCRetries < 0 || u.RCRetries > MaxRCRetries, "%d repetitions (--ucx-rc-retries): 1 to %d", u.RCRetries, MaxRCRetries)
}

// chosen reports whether the operator has chosen UCX's transports. If not, TCP is allowed only with
// --protocol ucx: TCP listens on a port that asks for no token, and a TCP connection would never be
// used for one-sided reads otherwise.
func (c Config) chosen() bool { return c.UCX.TLS != "" || os.Getenv("UCX_TLS") != "" }

// ucxConfig returns the configuration of UCX for the worker's slab.
func (c Config) ucxConfig(space memory.Space, source transfer.Source) ucx.Config {
	devices, rails := c.network()
	return ucx.Config{
		Library: c.UCX.Library, TLS: c.UCX.TLS, NoTCP: c.Protocol != ProtocolUCX, NetDevices: devices, Rails: rails,
		RCTimeout: c.UCX.RCTimeout, RCRetries: c.UCX.RCRetries,
		Space: space, Source: source, SourceIsQuick: true, Log: c.Log,
	}
}

// network returns the network devices that UCX may use, empty for all, and how many of them carry
// the bytes of one connection together; 0: UCX's default, which is one. A worker that serves at one
// address listens only there: UCX gets the interface that has the address, and the RDMA devices,
// for a worker on a GPU those near it. Devices that the operator has chosen are used as they are.
func (c Config) network() (devices string, rails int) {
	if c.UCX.NetDevices != "" || os.Getenv("UCX_NET_DEVICES") != "" {
		return c.UCX.NetDevices, 0
	}
	near := c.UCX.Near
	if alike := strings.Count(near, ",") + 1; alike > 1 {
		rails = alike
	}
	host, _, err := net.SplitHostPort(c.Listen)
	ip := net.ParseIP(host)
	switch {
	case err != nil || ip == nil || ip.IsUnspecified():
		return near, rails
	case ip.IsLoopback():
		return "lo", 0
	}
	device := deviceOf(ip)
	switch {
	case device == "":
		return near, rails
	case near != "":
		return device + "," + near, rails
	}
	return strings.Join(append([]string{device}, activePorts(rdmaDevices)...), ","), 0
}

// deviceOf returns the network interface that has an address, empty if there is none.
func deviceOf(ip net.IP) string {
	interfaces, err := net.Interfaces()
	if err != nil {
		return ""
	}
	for _, i := range interfaces {
		addresses, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addresses {
			if n, ok := a.(*net.IPNet); ok && n.IP.Equal(ip) {
				return i.Name
			}
		}
	}
	return ""
}

// activePorts returns the ports of RDMA devices that are up, in UCX's notation.
func activePorts(rdma string) (out []string) {
	states, err := filepath.Glob(filepath.Join(rdma, "*", "ports", "*", "state"))
	if err != nil {
		return nil
	}
	for _, path := range states {
		state, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(state), "ACTIVE") {
			port := filepath.Dir(path)
			out = append(out, filepath.Base(filepath.Dir(filepath.Dir(port)))+":"+filepath.Base(port))
		}
	}
	return out
}

// hostReached asks the system only once.
var hostReached = sync.OnceValue(func() hostReach { return lookAtHost(rdmaDevices) })

func lookAtHost(rdma string) (l hostReach) {
	devices, err := os.ReadDir(rdma)
	l.rdma = err == nil && len(devices) > 0
	if l.own, err = net.InterfaceAddrs(); err != nil {
		l.own = nil // then no address counts as one of this host, and gRPC streams are used
	}
	if l.name, err = os.Hostname(); err != nil {
		l.name = "" // as above
	}
	return l
}

// here reports whether a host:port is an address of this host.
func (l hostReach) here(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return ip != nil && slices.ContainsFunc(l.own, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		return ok && n.IP.Equal(ip)
	})
}

// named reports whether a NAME:port has the name of this host, by which peers reach a worker that
// listens on all addresses. Hosts that have the same name are not told apart.
func (l hostReach) named(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && host != "" && host == l.name
}

// Fetch implements transfer.Path.
func (o *oneSided) Fetch(ctx context.Context, peer transfer.Peer, refs []transfer.Ref, sink transfer.Sink) error {
	_, path, err := o.open()
	if err != nil {
		return err
	}
	return path.Fetch(ctx, peer, refs, sink)
}

// Lane describes the connection that carries the bytes from a peer.
func (o *oneSided) Lane(address string) transfer.Lane {
	if live := o.live.Load(); live != nil {
		c, _ := live.path.Connection(address)
		return transfer.Lane{Transport: c.Transport, Staged: c.Staged, BytesPerSecond: c.BytesPerSecond, Why: c.Why}
	}
	return transfer.Lane{}
}

// Forget closes the connection to a peer that is gone.
func (o *oneSided) Forget(address string) {
	o.mu.Lock()
	path := o.opened
	o.mu.Unlock()
	if path != nil {
		path.Forget(address)
	}
}

// Close implements transfer.Path.
func (o *oneSided) Close() error {
	o.mu.Lock()
	c, path := o.context, o.opened
	o.context, o.opened, o.closed = nil, nil, true
	o.mu.Unlock()
	if c == nil {
		return nil
	}
	return errors.Join(path.Close(), c.Close())
}

// served returns the number of bytes that peers have read by this path.
func (o *oneSided) served() uint64 {
	if live := o.live.Load(); live != nil {
		return live.context.Served()
	}
	return 0
}

// unreachable reports whether an error means that this path cannot reach the peer at all.
func unreachable(err error) bool {
	return errors.Is(err, transfer.ErrUnreachable) || errors.Is(err, ucx.ErrNoConnection) || errors.Is(err, ucx.ErrUnavailable)
}
