package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/transfer/ucx"
	"github.com/millrace/millrace/worker"
	"github.com/millrace/millrace/worker/supervisor"
	"github.com/millrace/millrace/worker/topology"
	"github.com/millrace/millrace/worker/topology/nvml"
)

// discover finds the GPUs of this machine, by NVML, else by the CUDA driver. It creates no CUDA
// context.
func (a *app) discover() *topology.Topology {
	s := a.settings
	c := topology.Config{
		Root: os.Getenv("MILLRACE_SYSFS"), DeviceOrder: os.Getenv("CUDA_DEVICE_ORDER"),
		NoAffinity: s.Bool("no-affinity"), NetDevices: cmp.Or(s.String("ucx-net-devices"), os.Getenv("UCX_NET_DEVICES")),
	}
	visible, set := os.LookupEnv("CUDA_VISIBLE_DEVICES")
	if set {
		c.Visible = &visible
	}
	var unknown error
	c.Granted, c.Nodes, unknown = topology.Granted()
	library, err := openNVML(s.String("nvml-library"))
	if err != nil {
		c.WithoutLibrary = err
		a.askDriver(&c)
	} else {
		c.Library = library
		defer func() { _ = library.Close() }() // it is not needed any more
	}
	t := topology.Discover(c)
	if named := strings.Count(visible, ",") + 1; set && c.Visible == nil && t.Wrong == nil && named > len(c.Known) {
		var known []string
		for _, g := range c.Known {
			known = append(known, fmt.Sprintf("%s (%s)", g.UUID, g.Name))
		}
		t.Wrong = fmt.Errorf("CUDA_VISIBLE_DEVICES=%q names %d GPUs, of which the driver knows %d (%s); correct or unset it",
			visible, named, len(c.Known), cmp.Or(strings.Join(known, ", "), "none"))
	}
	if unknown != nil {
		t.Notes = append(t.Notes, unknown.Error())
	}
	return t
}

// errNoNVML says that the user has disabled NVML.
var errNoNVML = errors.New("nvml: switched off by --nvml-library none")

func openNVML(library string) (*nvml.NVML, error) {
	if library == "none" {
		return nil, errNoNVML
	}
	return nvml.Open(library)
}

// askDriver takes the GPUs that the CUDA driver sees as all GPUs of the machine. The driver itself
// has already applied CUDA_VISIBLE_DEVICES, without a message.
func (a *app) askDriver(c *topology.Config) {
	driver, err := cuda.Load(cuda.Config{Library: a.settings.String("cuda-library")})
	if err != nil {
		c.WithoutLibrary = errors.Join(c.WithoutLibrary, err)
		return
	}
	for _, d := range driver.Devices() {
		c.Known = append(c.Known, topology.GPU{
			Index: d.Ordinal, UUID: d.ID(), Name: d.Name, PCIBusID: d.PCIBusID, TotalBytes: d.TotalBytes,
			ComputeMajor: d.Attributes.ComputeMajor, ComputeMinor: d.Attributes.ComputeMinor,
		})
	}
	if len(c.Known) > 0 {
		c.Visible = nil
	}
	access, err := driver.PeerAccess()
	if err != nil {
		return
	}
	for _, line := range access {
		var links []topology.Link
		for _, can := range line {
			link := topology.Link{P2P: can}
			if !can {
				link.Why = "the driver says so"
			}
			links = append(links, link)
		}
		c.KnownLinks = append(c.KnownLinks, links)
	}
}

// placed is the data about its GPU that a supervisor gives to a child.
type placed struct {
	// UUID names the device that the child opens. Instance says that it is a MIG instance, a part
	// of a card; a process sees only one instance.
	UUID     string `json:"uuid"`
	Instance bool   `json:"instance"`
	// Workers and Slots are the supervisor's decisions. A child that is bound to few processors
	// would compute other numbers.
	Workers int    `json:"workers"`
	Slots   int    `json:"slots"`
	Cores   int    `json:"cores"`
	Net     string `json:"net"`
	// Facts are sent to the scheduler.
	Facts *millracev1.Gpu `json:"facts"`
}

// placedEnv is the environment variable that holds a placed as JSON.
const placedEnv = "MILLRACE_WORKER_PLACED"

// ofSupervisor returns the data that the supervisor gave to this child; nil if this process is no
// child, or has no GPU.
func ofSupervisor() (*placed, error) {
	text := os.Getenv(placedEnv)
	if text == "" {
		return nil, nil
	}
	p := new(placed)
	if err := json.Unmarshal([]byte(text), p); err != nil {
		return nil, fmt.Errorf("%s: %w", placedEnv, err)
	}
	return p, nil
}

// fleet is the set of devices that this machine runs workers on.
type fleet struct {
	gpus []topology.Device // sorted by UUID; empty: host memory
	// top is the whole result of the discovery, nil if there was none.
	top *topology.Topology
	// line describes the choice, for people.
	line string
}

// fleet chooses the kind of device.
func (a *app) fleet() (*fleet, error) {
	kind := a.settings.String("device")
	if kind == worker.DeviceHost || a.settings.Bool("zero") {
		return &fleet{line: "host memory"}, nil
	}
	if kind != "auto" && kind != worker.DeviceCUDA {
		return nil, usageError{fmt.Errorf("--device %s: auto, host or cuda", kind)}
	}
	t := a.discover()
	if t.Wrong != nil && (kind == worker.DeviceCUDA || len(t.Devices) > 0 || t.Driver != "") {
		return nil, usageError{fmt.Errorf("%w, or use --device host", t.Wrong)}
	}
	devices, err := a.chosen(t)
	if err != nil {
		return nil, err
	}
	if len(devices) == 0 {
		why := strings.Join(t.Notes, "; ")
		if kind == worker.DeviceCUDA {
			return nil, usageError{fmt.Errorf("--device cuda: no GPU for a worker: %s; look at millrace doctor, or use --device host", why)}
		}
		return &fleet{top: t, line: "host memory: " + t.Notes[len(t.Notes)-1]}, nil
	}
	// Names must mean the same GPUs after a restart, in whatever order CUDA_VISIBLE_DEVICES lists
	// them.
	f := &fleet{gpus: slices.Clone(devices), top: t}
	slices.SortFunc(f.gpus, func(a, b topology.Device) int { return cmp.Compare(a.UUID, b.UUID) })
	var models []string
	for _, d := range f.gpus {
		if !slices.Contains(models, d.Name) {
			models = append(models, d.Name)
		}
	}
	f.line = fmt.Sprintf("cuda: %d x %s", len(f.gpus), strings.Join(models, ", "))
	if t.Driver != "" {
		f.line += fmt.Sprintf(" (driver %s, CUDA %s)", t.Driver, t.CUDA)
	}
	return f, nil
}

// chosen applies --gpu.
func (a *app) chosen(t *topology.Topology) ([]topology.Device, error) {
	want := a.settings.String("gpu")
	if want == "" {
		return t.Devices, nil
	}
	var there []string
	for i, d := range t.Devices {
		if want == d.UUID || want == fmt.Sprint(i) || len(want) > len("GPU-") && strings.HasPrefix(strings.ToLower(d.UUID), strings.ToLower(want)) {
			return []topology.Device{d}, nil
		}
		there = append(there, fmt.Sprintf("%d (%s)", i, d.UUID))
	}
	return nil, usageError{fmt.Errorf("--gpu %s: there are %s", want, cmp.Or(strings.Join(there, ", "), "none"))}
}

// prefix is the beginning of the workers' names. The workers of "up" are alone in their cluster.
// The names of "worker" contain the name of the machine, so that the same command works on each
// machine.
func (a *app) prefix(f *fleet) (string, error) {
	if name := a.settings.String("name"); name != "" {
		return name, nil
	}
	kind := "host"
	if len(f.gpus) > 0 {
		kind = "gpu"
	}
	if a.alone {
		return kind, nil
	}
	machine, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("the name of this machine, for those of its workers: %w; give --name", err)
	}
	return machine + "-" + kind, nil
}

// children are the processes to supervise: one for each GPU, or the given number on the host. With
// --first N, their numbers begin at N, and so do the GPUs, of which others have the first N.
func (a *app) children(f *fleet, workers, slots int) ([]supervisor.Child, error) {
	prefix, err := a.prefix(f)
	if err != nil {
		return nil, err
	}
	// Settings that each child would refuse are refused before a child is started.
	if _, err := a.workingDirectory(); err != nil {
		return nil, err
	}
	first := a.settings.Int("first")
	if len(f.gpus) == 0 {
		return supervisor.Hosts(prefix, first, workers), nil
	}
	if err := a.gpuSizes(new(worker.Config)); err != nil {
		return nil, err
	}
	children := supervisor.Hosts(prefix, first, workers)
	for i := range children {
		d := f.gpus[first+i]
		p := placed{UUID: d.UUID, Instance: d.Instance != nil, Workers: first + workers, Slots: slots, Cores: coresOf(first + workers), Facts: f.facts(first + i)}
		if d.NetDevices != "" && a.rdma() {
			p.Net = d.NetDevices
		}
		p.Facts.NetDevices = p.Net
		text, err := json.Marshal(p)
		if err != nil {
			return nil, err
		}
		children[i].Env = []string{placedEnv + "=" + string(text)}
		if d.Instance != nil {
			children[i].Env = append(children[i].Env, "CUDA_VISIBLE_DEVICES="+d.UUID)
		}
		children[i].Device, children[i].Start = d.UUID+" ("+d.Name+")", d.Placement.Start
	}
	return children, nil
}

// httpEnv is the environment variable that tells a worker's process where it serves HTTP.
const httpEnv = "MILLRACE_WORKER_HTTP"

// giveHTTP tells the children where they serve HTTP.
func (a *app) giveHTTP(children []supervisor.Child) error {
	addresses, err := httpAddresses(a.settings.String("metrics-listen"), len(children))
	for i, address := range addresses {
		children[i].Env = append(children[i].Env, httpEnv+"="+address)
	}
	return err
}

// httpAddresses returns the addresses of n workers for a value of --metrics-listen: the first one
// has its port, the others have the ports after it. There are none for an empty value.
func httpAddresses(address string, n int) (all []string, err error) {
	if address == "" {
		return nil, nil
	}
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return nil, usageError{fmt.Errorf("--metrics-listen %w", err)}
	}
	port, err := strconv.Atoi(text)
	if err != nil || port != 0 && port+n-1 > math.MaxUint16 {
		return nil, usageError{fmt.Errorf("--metrics-listen %s: there are no %s from that port on; take a lower one", address, several(n, "port"))}
	}
	for i := range n {
		at := port
		if port != 0 {
			at += i
		}
		all = append(all, net.JoinHostPort(host, strconv.Itoa(at)))
	}
	return all, nil
}

// facts are the properties of a GPU that the scheduler gets and CUDA does not provide.
func (f *fleet) facts(i int) *millracev1.Gpu {
	d := f.gpus[i]
	g := &millracev1.Gpu{Uuid: d.UUID, Placement: d.Placement.Why}
	if d.Placement.Node >= 0 {
		node := int32(d.Placement.Node)
		g.NumaNode = &node
	}
	at := func(d topology.Device) int {
		return slices.IndexFunc(f.top.Devices, func(x topology.Device) bool { return x.UUID == d.UUID })
	}
	if f.top.Links == nil {
		return g
	}
	for j, peer := range f.gpus {
		if i == j {
			continue
		}
		l := f.top.Links[at(d)][at(peer)]
		g.Links = append(g.Links, &millracev1.GpuLink{Uuid: peer.UUID, NvLinks: uint32(l.NVLinks), PeerAccess: l.P2P, Reason: l.Why})
	}
	return g
}

// rdma reports whether the UCX library that workers load has RDMA. Without RDMA, the name of an
// RDMA port would leave UCX without any network.
func (a *app) rdma() bool {
	path, err := ucx.Locate(a.settings.String("ucx-library"))
	if err != nil {
		return false
	}
	if !filepath.IsAbs(path) {
		return true // the system's
	}
	return slices.ContainsFunc(ucx.Modules(path), func(module string) bool { return strings.HasPrefix(module, "ib") })
}
