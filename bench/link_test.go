//go:build cgo && linux

package bench_test

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/bench"
	"github.com/millrace/millrace/internal/roletoken"
	"github.com/millrace/millrace/transfer/ucx"

	millrace "github.com/millrace/millrace/clients/go"
)

// linkOf returns the configuration of a measurement from one worker of a cluster to the other one.
func linkOf(t *testing.T, c *bench.Cluster) bench.LinkConfig {
	t.Helper()
	file, err := millrace.ReadSchedulerFile(c.File)
	if err != nil {
		t.Fatal(err)
	}
	return bench.LinkConfig{
		Client: c.Client, Token: roletoken.Worker(file.Token), Source: "host-0", Reader: "host-1", Sizes: []int{64 << 10}, Objects: []int{1, 20}, Samples: 2,
	}
}

// ucxLibrary is the UCX that the tests use.
func ucxLibrary(t *testing.T) string {
	t.Helper()
	library, err := filepath.Abs(cmp.Or(os.Getenv("MILLRACE_UCX_LIBRARY"), "../.tools/ucx/lib/libucp.so.0"))
	if err != nil {
		t.Fatal(err)
	}
	return library
}

func startCluster(t *testing.T, c bench.ClusterConfig) *bench.Cluster {
	t.Helper()
	cluster, err := bench.StartCluster(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Close(); err != nil {
			t.Error(err)
		}
	})
	return cluster
}

// Workers of a cluster that runs are measured beside reads by UCX alone.
func TestLinkBetweenTwoWorkers(t *testing.T) {
	program, _, _ := gpus(t)
	library := ucxLibrary(t)
	cluster := startCluster(t, bench.ClusterConfig{
		Executable: program, Workers: 2, Slots: 1, Arguments: []string{"--protocol", "ucx", "--ucx-library", library},
	})
	c := linkOf(t, cluster)
	c.UCX = ucx.Config{Library: library}
	calls := 0
	c.Progress = func(int, int) { calls++ }
	out, err := bench.Link(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Rows) != 2 || calls != 2 || out.Memory != "host" || !strings.HasPrefix(out.Source, "host-0 on ") || !strings.HasPrefix(out.Reader, "host-1 on ") ||
		!strings.HasPrefix(out.Raw, "reads by UCX alone (") {
		t.Fatalf("%+v", out)
	}
	for i, row := range out.Rows {
		if row.Objects != []int{1, 20}[i] || !strings.HasPrefix(row.Lane, "ucx (") || row.Rate <= 0 || row.P50 < row.Times.Min || row.P50 > row.Times.Max ||
			row.ClientP50 < row.P50 || row.RawRate <= 0 || row.RawP50 < row.RawTimes.Min || row.RawP50 > row.RawTimes.Max || row.Ratio <= 0 {
			t.Errorf("%+v", row)
		}
	}
	// A host means one of its workers, and never the same one twice.
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	c.Source, c.Reader, c.Objects = host, host, []int{1}
	if out, err = bench.Link(t.Context(), c); err != nil || out.Source != "host-0 on "+host || out.Reader != "host-1 on "+host {
		t.Errorf("%v: %+v", err, out)
	}
	for name, x := range map[string]struct {
		change func(*bench.LinkConfig)
		want   string
	}{
		"unknown":      {func(c *bench.LinkConfig) { c.Source = "elsewhere" }, "--hosts elsewhere: neither an active worker nor the host of one; there are host-0 on " + host},
		"twice":        {func(c *bench.LinkConfig) { c.Reader = "host-0" }, "--hosts: host-0 is named twice"},
		"other memory": {func(c *bench.LinkConfig) { c.GPUs = true }, "--memory cuda: the objects of worker host-0 are in other memory; use --memory host"},
		"host without": {func(c *bench.LinkConfig) { c.Source, c.GPUs = host, true }, "no further active worker with memory of the kind --memory cuda"},
		"too large":    {func(c *bench.LinkConfig) { c.Objects, c.Sizes = []int{1000}, []int{1 << 30} }, "--objects, --sizes: several objects"},
	} {
		c := linkOf(t, cluster)
		x.change(&c)
		if _, err := bench.Link(t.Context(), c); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v, want %q", name, err, x.want)
		}
	}
}

// Between GPUs of one host, objects come by another path than UCX, so there are no raw reads, and
// the result says why. With --protocol ucx they are staged, as between hosts.
func TestLinkBetweenGPUs(t *testing.T) {
	program, library, environment := gpus(t)
	ucxLibrary := ucxLibrary(t)
	for name, x := range map[string]struct{ protocol, lane, raw string }{
		"ipc":    {"auto", "ipc (", "none: the objects do not come by UCX"},
		"staged": {"ucx", "ucx (cma, staged at both ends)", "reads by UCX alone (cma, staged at both ends, "},
	} {
		t.Run(name, func(t *testing.T) {
			c := linkOf(t, startCluster(t, bench.ClusterConfig{
				Executable: program, Workers: 2, Slots: 1, GPUs: true, Environment: environment,
				Arguments: []string{"--cuda-library", library, "--protocol", x.protocol, "--ucx-library", ucxLibrary},
			}))
			c.GPUs, c.CUDALibrary, c.UCX = true, library, ucx.Config{Library: ucxLibrary}
			out, err := bench.Link(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			if len(out.Rows) != 2 || out.Memory != "cuda" || !strings.HasPrefix(out.Raw, x.raw) {
				t.Fatalf("%+v", out)
			}
			for _, row := range out.Rows {
				if !strings.HasPrefix(row.Lane, x.lane) || row.Rate <= 0 || (row.RawRate > 0) != (x.protocol == "ucx") || (row.Ratio > 0) != (row.RawRate > 0) {
					t.Errorf("%+v", row)
				}
			}
		})
	}
}
