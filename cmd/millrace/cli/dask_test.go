package cli

import (
	"io"
	"os"
	"strings"
	"testing"
)

// Command lines of dask-cuda-worker start the same workers, or are refused with the reason.
func TestFlagsOfDaskWorkers(t *testing.T) {
	for _, c := range []struct {
		line string
		// want are settings and their values, note is part of a sentence about a flag without an
		// effect, and wrong part of the error.
		want        map[string]string
		note, wrong string
	}{
		{line: "tcp://10.0.0.1:8786 --nthreads 2 --pre-import cudf,rmm --device-memory-limit 10GB --rmm-pool-size 0.5",
			want: map[string]string{"address": "tcp://10.0.0.1:8786", "slots": "2", "preload": "[cudf,rmm]", "device-memory-limit": "10GB", "rmm-pool-size": "0.5"}},
		{line: "--host tcp://10.0.0.2", want: map[string]string{"listen": "10.0.0.2:0"}},
		{line: "--listen-address tcp://0.0.0.0:9000 --contact-address tcp://h:9000", want: map[string]string{"listen": "0.0.0.0:9000", "advertise": "h:9000"}},
		{line: "--interface lo", want: map[string]string{"listen": "127.0.0.1:0"}},
		{line: "--worker-port 9001", want: map[string]string{"listen": "127.0.0.1:9001"}},
		{line: "--nworkers auto --nthreads 1 --slots 3", want: map[string]string{"workers": "0", "slots": "3"}},
		{line: "--net-devices mlx5_0:1", want: map[string]string{"ucx-net-devices": "mlx5_0:1"}},
		{line: "--device-memory-limit default --protocol tcp", want: map[string]string{"device-memory-limit": "auto", "protocol": "auto"}, note: "--protocol grpc forces"},
		{line: "--enable-infiniband --enable-nvlink --rmm-async", note: "--enable-infiniband has no effect: the links"},
		{line: "--death-timeout 60", want: map[string]string{"death-timeout": "1m0s"}},
		{line: "--rmm-managed-memory", wrong: "--rmm-managed-memory is refused: memory that the driver moves"},
		{line: "--tls-cert x", wrong: "--tls-cert is refused"},
		{line: "--worker-port 9000:9010", wrong: "--worker-port 9000:9010: give one port"},
		{line: "--interface nope0", wrong: "--interface nope0: no such interface"},
		{line: "--nthreads many", wrong: "--nthreads: "},
	} {
		a := &app{out: io.Discard, err: io.Discard}
		cmd, _, err := a.root().Find([]string{"worker"})
		if err == nil {
			err = cmd.ParseFlags(strings.Fields(c.line))
		}
		if err != nil {
			t.Fatalf("%s: %v", c.line, err)
		}
		notes, err := fromDask(cmd, cmd.Flags().Args())
		if c.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%s: %v, want an error with %q", c.line, err, c.wrong)
			}
			continue
		}
		if err != nil || !strings.Contains(strings.Join(notes, "\n"), c.note) || c.note == "" && len(notes) > 0 {
			t.Errorf("%s: notes %q, %v; want %q", c.line, notes, err, c.note)
		}
		for name, value := range c.want {
			if got := cmd.Flags().Lookup(name).Value.String(); got != value {
				t.Errorf("%s: --%s is %q, want %q", c.line, name, got, value)
			}
		}
	}
}

// A flag of Dask is either translated, or has a sentence that says why not; it is never a setting.
func TestEachFlagOfDaskHasAMeaning(t *testing.T) {
	known := flagNames((&app{out: io.Discard, err: io.Discard}).root())
	for _, d := range daskFlags {
		meanings := 0
		for _, m := range []string{d.to, d.variable, d.note, d.refused} {
			if m != "" {
				meanings++
			}
		}
		if meanings != 1 || known[d.name] || d.to != "" && !known[d.to] {
			t.Errorf("--%s: %d meanings, a setting: %t", d.name, meanings, known[d.name])
		}
	}
}

// Variables of Dask are used, or have a sentence that says why not.
func TestVariablesOfDask(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("DASK_UCX__NET_DEVICES", "mlx5_1:1")
	t.Setenv("DASK_UCX__NVLINK", "True")
	t.Setenv("DASK_RMM__POOL_SIZE", "1GB")
	if got := workerApp(t, nil).settings.String("ucx-net-devices"); got != "mlx5_1:1" {
		t.Errorf("--ucx-net-devices is %q", got)
	}
	notes := strings.Join(daskVariables(os.Environ()), "\n")
	for _, part := range []string{"DASK_RMM__POOL_SIZE=1GB has no effect", "DASK_UCX__NET_DEVICES=mlx5_1:1 is used", "DASK_UCX__NVLINK=True has no effect"} {
		if !strings.Contains(notes, part) {
			t.Errorf("%q is not among %s", part, notes)
		}
	}
	t.Setenv("MILLRACE_UCX_NET_DEVICES", "mlx5_0:1")
	if got := workerApp(t, nil).settings.String("ucx-net-devices"); got != "mlx5_0:1" {
		t.Errorf("--ucx-net-devices is %q, want that of our own variable", got)
	}
}
