package cli

import (
	"context"
	"fmt"
	"io"
	"net"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// reachedAs returns the address at which a process can be reached: a process that listens on all
// addresses is reached at the host of the other address.
func reachedAs(address, other string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil || !unspecified(host) {
		return address
	}
	if host, _, err = net.SplitHostPort(other); err != nil {
		return address
	}
	return net.JoinHostPort(host, port)
}

func (a *app) status() *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "Sum up the cluster", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.call(cmd, func(ctx context.Context, c *millrace.Client, s millracev1.SchedulerServiceClient) error {
				out, err := s.GetClusterInfo(ctx, &millracev1.GetClusterInfoRequest{})
				if err != nil {
					return err
				}
				alarms, err := s.ListAlarms(ctx, &millracev1.ListAlarmsRequest{})
				if err != nil {
					return err
				}
				peers, err := s.ListPeers(ctx, &millracev1.ListPeersRequest{})
				if err != nil && status.Code(err) != codes.Unimplemented { // An older scheduler knows none.
					return err
				}
				x := out.GetCluster()
				return a.print(out, func(w io.Writer, _ bool) {
					row(w, "cluster", x.GetClusterId())
					row(w, "address", c.Leader())
					row(w, "version", x.GetVersion())
					row(w, "up", age(x.GetStartTime()))
					row(w, "http", reachedAs(x.GetHttpAddress(), c.Leader()))
					row(w, "workers", x.GetActiveWorkers())
					row(w, "slots", x.GetTotalSlots())
					row(w, "memory", size(x.GetMemoryUsedBytes())+" of "+size(x.GetMemoryLimitBytes()))
					row(w, "clients", x.GetClients())
					t := x.GetTasks()
					row(w, "tasks", fmt.Sprintf("%d waiting, %d ready, %d assigned, %d running, %d succeeded, %d failed, %d cancelled", t.GetWaiting(), t.GetReady(), t.GetAssigned(), t.GetRunning(), t.GetSucceeded(), t.GetFailed(), t.GetCancelled()))
					printPeers(w, peers.GetPeers())
					row(w, "alarms", len(alarms.GetAlarms()))
					printAlarms(w, alarms.GetAlarms())
				})
			})
		},
	}
	addCall(cmd)
	addOutput(cmd)
	return cmd
}
