package cli

import (
	"cmp"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// daskFlag is a flag of `dask-cuda-worker` or `dask worker` that `millrace worker` takes, so that
// the same command lines start workers. It is not shown by --help.
type daskFlag struct {
	name string
	// alone: the flag has no value.
	alone bool
	// to is the flag that means the same, with the value that value returns for that of this flag;
	// value may be nil.
	to    string
	value func(string) (string, error)
	// variable is an environment variable that gets the value.
	variable string
	// note says why the flag has no effect, refused why it is an error. Both are ends of sentences.
	note, refused string
}

const (
	daskLinks = "the links between GPUs and hosts are found, and the fastest one that each pair has is used"
	daskSlab  = "results on a GPU are in one slab, which is allocated once: --device-memory-limit is its size"
	daskPages = "workers have no pages of their own: the scheduler's HTTP port shows all of them"
	daskTLS   = "connections do not use TLS: see docs/security.md for networks that others share"
)

var daskFlags = []daskFlag{
	{name: "nthreads", to: "slots"},
	{name: "nworkers", to: "workers", value: autoIsZero},
	{name: "host", to: "listen", value: hostToListen},
	{name: "interface", to: "listen", value: interfaceToListen},
	{name: "worker-port", to: "listen", value: portToListen},
	{name: "listen-address", to: "listen", value: withoutScheme},
	{name: "contact-address", to: "advertise", value: withoutScheme},
	{name: "pre-import", to: "preload"},
	{name: "net-devices", to: "ucx-net-devices", value: func(text string) (string, error) { return strings.TrimPrefix(text, "auto"), nil }},
	{name: "enable-cudf-spill", alone: true, variable: "CUDF_SPILL"},
	{name: "cudf-spill-stats", variable: "CUDF_SPILL_STATS"},
	{name: "disable-cudf-spill", alone: true, note: "it is off anyway"},
	{name: "rmm-managed-memory", alone: true, refused: "memory that the driver moves cannot be shared with other processes and GPUs; without it, results that do not fit on the GPU move to host memory by themselves"},
	{name: "no-rmm-managed-memory", alone: true, note: "it is off anyway"},
	{name: "rmm-maximum-pool-size", note: daskSlab},
	{name: "rmm-async", alone: true, note: daskSlab},
	{name: "no-rmm-async", alone: true, note: daskSlab},
	{name: "rmm-release-threshold", note: daskSlab},
	{name: "set-rmm-allocator-for-libs", note: "results of all libraries are copied into the slab within the GPU; --executor-arena gives CuPy, RMM and torch memory of the slab itself"},
	{name: "rmm-log-directory", note: "RMM is not used; `millrace memory` shows what is in each GPU's memory"},
	{name: "rmm-track-allocations", alone: true, note: "`millrace memory` always shows what is in each GPU's memory"},
	{name: "no-rmm-track-allocations", alone: true, note: "`millrace memory` always shows what is in each GPU's memory"},
	{name: "enable-jit-unspill", alone: true, note: "single results move to host memory and back, without a setting"},
	{name: "disable-jit-unspill", alone: true, note: "results that do not fit on the GPU always move to host memory, instead of failing"},
	{name: "enable-tcp-over-ucx", alone: true, note: daskLinks},
	{name: "disable-tcp-over-ucx", alone: true, note: daskLinks},
	{name: "enable-infiniband", alone: true, note: daskLinks},
	{name: "disable-infiniband", alone: true, note: daskLinks},
	{name: "enable-nvlink", alone: true, note: daskLinks},
	{name: "disable-nvlink", alone: true, note: daskLinks},
	{name: "enable-rdmacm", alone: true, note: daskLinks},
	{name: "disable-rdmacm", alone: true, note: daskLinks},
	{name: "dashboard", alone: true, note: daskPages},
	{name: "no-dashboard", alone: true, note: daskPages},
	{name: "dashboard-address", note: daskPages},
	{name: "dashboard-prefix", note: daskPages},
	{name: "multiprocessing-method", note: "workers are programs of their own"},
	{name: "worker-class", refused: "workers are one program; code for them goes into a worker plugin (client.register_plugin)"},
	{name: "preload-argv", refused: "preloaded modules are imported without arguments: give them environment variables"},
	{name: "pid-file", refused: "let the service manager keep the process: see docs/running.md"},
	{name: "tls-ca-file", refused: daskTLS},
	{name: "tls-cert", refused: daskTLS},
	{name: "tls-key", refused: daskTLS},
}

// daskWorkerFlags adds the flags of Dask's workers.
func daskWorkerFlags(f *pflag.FlagSet) {
	for _, d := range daskFlags {
		if d.alone {
			f.Bool(d.name, false, "as in Dask")
		} else {
			f.String(d.name, "", "as in Dask")
		}
		_ = f.MarkHidden(d.name) // it exists
	}
}

// fromDask translates flags and arguments of Dask's workers, and values of flags that have the same
// name. It returns sentences about flags without an effect.
func fromDask(cmd *cobra.Command, args []string) (notes []string, err error) {
	flags := cmd.Flags()
	give := func(name, value, from string) error {
		if value == "" || flags.Changed(name) && from != name {
			return nil // the flag of ours counts
		}
		if err := flags.Set(name, value); err != nil {
			return fmt.Errorf("%s: %w", from, err)
		}
		return nil
	}
	if len(args) > 0 {
		if err := give("address", args[0], args[0]); err != nil {
			return nil, err
		}
	}
	for _, d := range daskFlags {
		if !flags.Changed(d.name) {
			continue
		}
		value := flags.Lookup(d.name).Value.String()
		switch {
		case d.alone && value == "false":
		case d.refused != "":
			return nil, fmt.Errorf("--%s is refused: %s", d.name, d.refused)
		case d.note != "":
			notes = append(notes, "--"+d.name+" has no effect: "+d.note)
		case d.variable != "":
			if d.alone {
				value = "on"
			}
			if err := os.Setenv(d.variable, value); err != nil {
				return nil, fmt.Errorf("--%s: %w", d.name, err)
			}
		default:
			if d.value != nil {
				if value, err = d.value(value); err != nil {
					return nil, fmt.Errorf("--%s %w", d.name, err)
				}
			}
			if err := give(d.to, value, "--"+d.name); err != nil {
				return nil, err
			}
		}
	}
	if f := flags.Lookup("device-memory-limit"); f.Changed && f.Value.String() == "default" {
		err = give(f.Name, "auto", f.Name)
	}
	if f := flags.Lookup("protocol"); err == nil && f.Changed && f.Value.String() == "tcp" {
		notes = append(notes, "--protocol tcp has no effect: each pair of workers uses the best way that it has; --protocol grpc forces streams over TCP")
		err = give(f.Name, "auto", f.Name)
	}
	return notes, err
}

// daskVariables returns sentences about variables of Dask's UCX and RMM settings.
func daskVariables(environment []string) []string {
	var notes []string
	for _, line := range environment {
		name, value, _ := strings.Cut(line, "=")
		switch {
		case name == daskNetDevices:
			notes = append(notes, fmt.Sprintf("%s=%s is used as %s", name, value, variable("ucx-net-devices")))
		case strings.HasPrefix(name, "DASK_UCX__"):
			notes = append(notes, fmt.Sprintf("%s=%s has no effect: %s", name, value, daskLinks))
		case strings.HasPrefix(name, "DASK_RMM__"):
			notes = append(notes, fmt.Sprintf("%s=%s has no effect: %s", name, value, daskSlab))
		}
	}
	slices.Sort(notes)
	return notes
}

// daskNetDevices is the variable of Dask for the network devices of UCX.
const daskNetDevices = "DASK_UCX__NET_DEVICES"

// tellDask logs sentences about settings of Dask. A worker's own process says nothing: its
// supervisor has said it.
func (a *app) tellDask(notes []string) {
	if a.child {
		return
	}
	for _, note := range append(notes, daskVariables(os.Environ())...) {
		slog.Info(note)
	}
}

// seconds is the value of a flag that is a duration, or a number of seconds, as Dask writes it.
type seconds time.Duration

func newSeconds(d time.Duration) *seconds {
	s := seconds(d)
	return &s
}

// Set is part of pflag.Value.
func (s *seconds) Set(text string) error {
	if number, err := strconv.ParseFloat(text, 64); err == nil {
		text = strconv.FormatFloat(number, 'f', -1, 64) + "s"
	}
	d, err := time.ParseDuration(text)
	*s = seconds(d)
	return err
}

// String is part of pflag.Value.
func (s *seconds) String() string { return time.Duration(*s).String() }

// Type is part of pflag.Value. Programs read the value as a duration.
func (s *seconds) Type() string { return "duration" }

func autoIsZero(text string) (string, error) {
	if text == "auto" {
		return "0", nil
	}
	return text, nil
}

// withoutScheme returns an address without "tcp://" before it.
func withoutScheme(text string) (string, error) {
	if _, after, found := strings.Cut(text, "://"); found {
		text = after
	}
	return text, nil
}

func hostToListen(text string) (string, error) {
	text, _ = withoutScheme(text)
	if _, _, err := net.SplitHostPort(text); err == nil {
		return text, nil
	}
	return net.JoinHostPort(strings.Trim(text, "[]"), "0"), nil
}

func portToListen(text string) (string, error) {
	if _, err := strconv.ParseUint(text, 10, 16); err != nil {
		return "", fmt.Errorf("%s: give one port, for one worker; without it, workers take free ports", text)
	}
	return net.JoinHostPort("127.0.0.1", text), nil
}

// interfaceToListen returns the first IPv4 address of a network interface, else its first address.
func interfaceToListen(name string) (string, error) {
	found, err := net.InterfaceByName(name)
	var addresses []net.Addr
	if err == nil {
		addresses, err = found.Addrs()
	}
	if err != nil || len(addresses) == 0 {
		return "", fmt.Errorf("%s: no such interface with an address: %w", name, cmp.Or(err, os.ErrNotExist))
	}
	best := ""
	for _, address := range addresses {
		ip, _, err := net.ParseCIDR(address.String())
		if err == nil && (best == "" || ip.To4() != nil) {
			best = ip.String()
			if ip.To4() != nil {
				break
			}
		}
	}
	return net.JoinHostPort(best, "0"), nil
}
