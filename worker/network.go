package worker

import (
	"cmp"
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/worker/topology"
)

// maxNetworkDevices is the largest number of network devices that a worker reports.
const maxNetworkDevices = 16

// lookupTimeout bounds the search for the interface that has the worker's address, which asks DNS.
// There are no samples before it ends.
const lookupTimeout = 5 * time.Second

// networkWatch samples what the network devices carry by which a worker reaches its peers.
type networkWatch struct {
	// root is the mount point of sysfs.
	root string
	// devices returns the names of the devices. It may take long, and is called once.
	devices func(context.Context) []string

	mu    sync.Mutex
	last  []*millracev1.NetworkDevice // guarded by mu
	taken time.Time                   // the time of last; guarded by mu
}

// current returns the last sample, nil if there is none or if it is older than sampleKeeps. It may
// be called from any goroutine.
func (n *networkWatch) current() []*millracev1.NetworkDevice {
	n.mu.Lock()
	defer n.mu.Unlock()
	if time.Since(n.taken) > sampleKeeps {
		return nil
	}
	return n.last
}

// watch samples until stop, which waits for the end of it.
func (n *networkWatch) watch() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() {
		names := n.devices(ctx)
		names = names[:min(len(names), maxNetworkDevices)]
		if len(names) == 0 {
			return
		}
		before := make(map[string]*topology.Carried, len(names))
		var at time.Time
		eachSample(ctx, func() {
			now := time.Now()
			n.sample(names, before, now.Sub(at), now)
			at = now
		})
	})
	return func() {
		cancel()
		watching.Wait()
	}
}

// sample takes one sample. before has what the devices had carried, an interval ago.
func (n *networkWatch) sample(names []string, before map[string]*topology.Carried, interval time.Duration, now time.Time) {
	devices := make([]*millracev1.NetworkDevice, 0, len(names))
	for _, name := range names {
		d := &millracev1.NetworkDevice{Name: name}
		carried := topology.CarriedBy(n.root, name)
		if carried != nil {
			d.ReceivedBytes, d.SentBytes = &carried.ReceivedBytes, &carried.SentBytes
		}
		if rates := carried.Since(before[name], interval.Seconds()); rates != nil {
			d.ReceivedBytesPerSecond, d.SentBytesPerSecond = &rates.Received, &rates.Sent
		}
		before[name] = carried
		devices = append(devices, d)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last, n.taken = devices, now
}

// eachSample calls take at once and then every sampleEvery, until the context ends.
func eachSample(ctx context.Context, take func()) {
	samples := time.NewTicker(sampleEvery)
	defer samples.Stop()
	for {
		take()
		select {
		case <-ctx.Done():
			return
		case <-samples.C:
		}
	}
}

// sysfs is the mount point of sysfs.
func (c Config) sysfs() string { return cmp.Or(c.Sysfs, "/sys") }

// networkDevices returns the devices by which the worker reaches its peers: the interface that has
// its address, and the devices that UCX may use. Of those that the operator does not name ("all",
// "^mlx5_0:1"), the RDMA ports that are up and not excluded are among them.
func (c Config) networkDevices(ctx context.Context, dataAddress string) (names []string) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	ucx, _ := c.network()
	ucx = cmp.Or(ucx, os.Getenv("UCX_NET_DEVICES"))
	list := strings.Split(ucx, ",")
	excluded, excludes := strings.CutPrefix(ucx, "^")
	if ucx == "" || ucx == "all" || excludes {
		list = activePorts(filepath.Join(c.sysfs(), "class/infiniband"))
	}
	if excludes {
		for name := range strings.SplitSeq(excluded, ",") {
			list = slices.DeleteFunc(list, func(port string) bool { return port == strings.TrimSpace(name) })
		}
	}
	for _, name := range append([]string{deviceToward(ctx, dataAddress, c.Scheduler)}, list...) {
		if name = strings.TrimSpace(name); name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// deviceToward returns the network interface by which a worker reaches others: the one that has the
// data address, or that leads to the scheduler if no interface has it. One of loopback is taken if
// there is no other, because many hosts have their own name there. Empty: it is not known.
func deviceToward(ctx context.Context, dataAddress, scheduler string) string {
	var own []net.IP
	if host, _, err := net.SplitHostPort(dataAddress); err == nil {
		if ip := net.ParseIP(host); ip != nil {
			own = []net.IP{ip}
		} else if found, err := net.DefaultResolver.LookupIP(ctx, "ip", host); err == nil {
			own = found
		}
	}
	// A UDP socket that is connected sends nothing, but has the address by which it would send.
	for address := range strings.SplitSeq(scheduler, ",") {
		if conn, err := new(net.Dialer).DialContext(ctx, "udp", address); err == nil {
			if udp, ok := conn.LocalAddr().(*net.UDPAddr); ok {
				own = append(own, udp.IP)
			}
			_ = conn.Close() // nothing was sent
		}
	}
	slices.SortStableFunc(own, func(a, b net.IP) int { return cmp.Compare(loopback(a), loopback(b)) })
	for _, ip := range own {
		if device := deviceOf(ip); device != "" {
			return device
		}
	}
	return ""
}

// loopback is 1 for an address of loopback, else 0.
func loopback(ip net.IP) int {
	if ip.IsLoopback() {
		return 1
	}
	return 0
}
