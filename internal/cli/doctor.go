package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/cli/doctor"
	"github.com/millrace/millrace/internal/version"
)

func (a *app) doctor() *cobra.Command {
	cmd := &cobra.Command{
		Use: "doctor", Short: "Look whether this machine has what workers need, and say how to get it", Args: noArgs,
		Long: `Looks at this machine as a worker would: memory and its limits, disk, UCX, Python. Each line says what there is, and
what to do if that is too little. The exit code is 1 if workers could not run here at all.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s := a.settings
			findings := doctor.Run(cmd.Context(), doctor.Config{
				Python: a.python(), Library: s.String("ucx-library"), TLS: s.String("ucx-tls"), NetDevices: s.String("ucx-net-devices"),
				LocalDirectory: s.String("local-directory"),
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
	f.Bool("json", false, "one JSON object instead of a table")
	f.String("python", "", "interpreter of Python executors; default: as for up")
	f.String("local-directory", "", "where workers would spill to; default: the system's")
	f.String("ucx-library", "", "libucp.so.0 to use; default: the one found beside this program")
	f.String("ucx-tls", "", "transports, as UCX_TLS")
	f.String("ucx-net-devices", "", "network devices, as UCX_NET_DEVICES")
	return cmd
}

func (a *app) printFindings(findings []doctor.Finding) error {
	if a.settings.Bool("json") {
		return json.NewEncoder(a.out).Encode(map[string]any{"findings": findings, "version": version.String()})
	}
	w := tabwriter.NewWriter(a.out, 0, 8, 2, ' ', 0)
	for _, f := range findings {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", f.State, f.Check, f.Found) // a tabwriter fails in Flush
		if f.Remedy != "" {
			_, _ = fmt.Fprintf(w, "\t\t-> %s\n", f.Remedy)
		}
	}
	return w.Flush()
}
