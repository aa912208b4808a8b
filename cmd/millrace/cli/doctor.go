package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	millrace "github.com/millrace/millrace/clients/go"
	"github.com/millrace/millrace/cmd/millrace/cli/doctor"
	"github.com/millrace/millrace/internal/version"
)

func (a *app) doctor() *cobra.Command {
	cmd := &cobra.Command{
		Use: "doctor", Short: "Look whether this machine has what workers need, and say how to get it", Args: noArgs,
		Long: `Looks at this machine as a worker would: memory and its limits, disk, UCX, Python, the library for
linear algebra, GPUs, RDMA devices and their way to the GPUs. If there are RDMA devices, it reads memory of the host and of
each GPU by them; docs/rdma.md describes these checks. Some need root. Each line says what there is, and what to do if that is
too little. The exit code is 1 if workers could not run here at all.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s := a.settings
			findings := doctor.Run(cmd.Context(), doctor.Config{
				Python: a.python(), Library: s.String("ucx-library"), TLS: s.String("ucx-tls"), NetDevices: s.String("ucx-net-devices"),
				LocalDirectory: s.String("local-directory"), BLASLibrary: s.String("blas-library"), Sysfs: os.Getenv("MILLRACE_SYSFS"),
				GPUs: doctor.GPUs{
					CUDALibrary: s.String("cuda-library"), NVMLLibrary: s.String("nvml-library"), Topology: a.discover(), Retired: a.retired(cmd.Context()),
				},
			})
			if err := a.printFindings(findings); err != nil {
				return err
			}
			if doctor.Failed(findings) {
				return errors.New("workers cannot run here as it is")
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.String("cuda-library", "", "CUDA driver to use; default: the system's libcuda.so.1")
	f.String("nvml-library", "", "NVML to use, or none; default: the system's libnvidia-ml.so.1")
	f.Bool("json", false, "one JSON object instead of a table")
	f.String("python", "", "interpreter of Python executors; default: as for up")
	f.String("local-directory", "", "where workers would spill to; default: the system's")
	f.String("ucx-library", "", "libucp.so.0 to use; default: the one found beside this program")
	f.String("blas-library", "", "BLAS and LAPACK to use, or none; default: as for up")
	f.String("ucx-tls", "", "transports, as UCX_TLS")
	f.String("ucx-net-devices", "", "network devices, as UCX_NET_DEVICES")
	return cmd
}

// retired asks the cluster, if one is named and reachable, which devices it has retired. The result
// maps workers to causes.
func (a *app) retired(ctx context.Context) map[string]string {
	if a.settings.String("address") == "" && a.settings.String("scheduler-file") == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c, err := a.dial(ctx, millrace.WithoutLease())
	if err != nil {
		return nil
	}
	defer func() { _ = c.Close() }()
	workers, err := c.FullWorkers(ctx)
	if err != nil {
		return nil
	}
	out := map[string]string{}
	for _, w := range workers {
		for _, d := range w.GetDeaths() {
			if strings.Contains(d.GetCause(), " is retired: ") {
				out[w.GetName()] = d.GetCause()
			}
		}
	}
	return out
}

func (a *app) printFindings(findings []doctor.Finding) error {
	if a.settings.Bool("json") {
		return json.NewEncoder(a.out).Encode(map[string]any{"findings": findings, "version": version.String()})
	}
	w := tabwriter.NewWriter(a.out, 0, 8, 2, ' ', 0)
	for _, f := range findings {
		// A tabwriter reports its errors in Flush.
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", f.State, plain(f.Check), plain(f.Found))
		if f.Remedy != "" {
			_, _ = fmt.Fprintf(w, "\t\t-> %s\n", plain(f.Remedy))
		}
	}
	return w.Flush()
}
