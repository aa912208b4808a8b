package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/bench"
	millrace "github.com/millrace/millrace/clients/go"
	"github.com/millrace/millrace/internal/roletoken"
	"github.com/millrace/millrace/transfer/ucx"
)

const benchTransferHelp = `Measures objects that go from one worker to another, from a task to a task, beside the bare path.

Without --hosts it starts a cluster of two workers on this machine.

With --hosts A,B it measures the cluster that --address or --scheduler-file names, while it runs: worker B uses objects that
worker A made. A and B are names of workers or of hosts; a host means its first worker with memory of the kind --memory. The
times are those that worker B reports. Run it on B's host: it then reads the memory of A's worker by UCX alone, too, and prints
the ratio. It uses memory for the largest size in both workers, and the rest of the cluster may disturb the figures.`

func (a *app) benchTransfer() *cobra.Command {
	cmd := a.benchmark("transfer", "Objects from worker to worker, from a task to a task, beside the bare path", func(ctx context.Context, progress func(done, of int)) (any, error) {
		if hosts := a.settings.Strings("hosts"); len(hosts) > 0 {
			return a.benchLink(ctx, hosts, progress)
		}
		return a.benchOwn(ctx, progress)
	})
	cmd.Long = benchTransferHelp
	memoryFlag(cmd)
	f := cmd.Flags()
	f.StringSlice("hosts", nil, "measure a cluster that runs: the worker or host that has the objects, and the one that reads them")
	f.String("protocol", "auto", "auto, borrow (ipc between GPUs), ucx or grpc; all: the last three, one after the other; not with --hosts")
	f.StringSlice("sizes", []string{"64KiB", "1MiB", "256MiB"}, "sizes of the object; default with --hosts: 64KiB,1MiB,16MiB,256MiB,1GiB")
	f.StringSlice("objects", []string{"1", "16"}, "how many a task needs; several only from 64MiB on, and up to 1GiB together, 8GiB on GPUs; default with --hosts: 1,1000, several up to 256MiB together")
	f.Int("samples", 0, "samples of each size; 0: 200, and 20 above 4MiB; with --hosts 50, and 20 from 64MiB on")
	f.String("cuda-library", "", "CUDA driver to use; default: the system's libcuda.so.1")
	f.String("ucx-library", "", "libucp.so.0 to use; default: the one found beside this program")
	f.String("ucx-tls", "", "transports, as UCX_TLS")
	f.String("ucx-net-devices", "", "network devices, as UCX_NET_DEVICES; default: those of the reading worker's GPU, else UCX's choice")
	return cmd
}

// benchOwn measures a cluster that it starts.
func (a *app) benchOwn(ctx context.Context, progress func(done, of int)) (any, error) {
	s := a.settings
	c := bench.TransferConfig{
		Protocols: []string{s.String("protocol")}, Progress: progress, UCX: a.benchUCX(), CUDALibrary: s.String("cuda-library"),
	}
	var err error
	if c.GPUs, err = a.onGPUs(); err != nil {
		return nil, err
	}
	switch {
	case c.Protocols[0] == "all" && c.GPUs:
		c.Protocols = []string{"ipc", "ucx", "grpc"}
	case c.Protocols[0] == "all":
		c.Protocols = []string{"borrow", "ucx", "grpc"}
	}
	if c.Sizes, err = a.sizes(); err != nil {
		return nil, err
	}
	if c.Objects, err = a.objects(); err != nil {
		return nil, err
	}
	if c.Samples, err = a.samples(); err != nil {
		return nil, err
	}
	return bench.Transfer(ctx, c)
}

// benchLink measures two workers of a cluster that runs.
func (a *app) benchLink(ctx context.Context, hosts []string, progress func(done, of int)) (any, error) {
	s := a.settings
	if len(hosts) != 2 || hosts[0] == "" || hosts[1] == "" {
		return nil, usageError{fmt.Errorf("--hosts %q: two names of workers or of hosts, of the one that has the objects and of the one that reads them", hosts)}
	}
	if s.origin["protocol"] == "flag" {
		return nil, usageError{errors.New("--protocol with --hosts: the workers have their --protocol already; leave it out")}
	}
	for flag, values := range map[string][]string{"sizes": {"64KiB", "1MiB", "16MiB", "256MiB", "1GiB"}, "objects": {"1", "1000"}} {
		if s.origin[flag] == "default" {
			if err := s.Set(flag, values); err != nil {
				return nil, err
			}
		}
	}
	c := bench.LinkConfig{
		Source: hosts[0], Reader: hosts[1], Progress: progress, UCX: a.benchUCX(), CUDALibrary: s.String("cuda-library"),
	}
	var err error
	if c.GPUs, err = a.onGPUs(); err != nil {
		return nil, err
	}
	if c.Sizes, err = a.sizes(); err != nil {
		return nil, err
	}
	if c.Objects, err = a.objects(); err != nil {
		return nil, err
	}
	if c.Samples, err = a.samples(); err != nil {
		return nil, err
	}
	token, err := a.clusterToken()
	if err != nil {
		return nil, err
	}
	c.Token = roletoken.Worker(token)
	if c.Client, err = a.dial(ctx); err != nil {
		return nil, err
	}
	defer func() { _ = c.Client.Close() }()
	return bench.Link(ctx, c)
}

// benchUCX returns the settings of UCX for raw reads.
func (a *app) benchUCX() ucx.Config {
	return ucx.Config{Library: a.settings.String("ucx-library"), TLS: a.settings.String("ucx-tls"), NetDevices: a.settings.String("ucx-net-devices")}
}

// samples reads --samples.
func (a *app) samples() (int, error) {
	n := a.settings.Int("samples")
	if n < 0 {
		return 0, usageError{fmt.Errorf("--samples %d: 0 or more", n)}
	}
	return n, nil
}

// objects reads --objects.
func (a *app) objects() (objects []int, err error) {
	for _, text := range a.settings.Strings("objects") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 1000 {
			return nil, usageError{fmt.Errorf("--objects %s: 1 to 1000", text)}
		}
		objects = append(objects, n)
	}
	return objects, nil
}

// clusterToken returns the token of the cluster that the settings name; empty if it has none.
func (a *app) clusterToken() (string, error) {
	if a.settings.String("address") != "" {
		return a.token()
	}
	name := a.settings.String("scheduler-file")
	if name == "" {
		return "", errNoCluster
	}
	file, err := millrace.ReadSchedulerFile(name)
	return file.Token, err
}
