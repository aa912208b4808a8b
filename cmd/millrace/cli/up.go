package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	millrace "github.com/millrace/millrace/clients/go"
	"github.com/millrace/millrace/internal/version"
	"github.com/millrace/millrace/transfer/ucx"
	"github.com/millrace/millrace/worker/supervisor"
)

func (a *app) up() *cobra.Command {
	cmd := &cobra.Command{
		Use: "up", Short: "Start a whole cluster on this machine", Args: noArgs,
		Long: `Starts a scheduler and workers, prints how to connect, and stops everything on Ctrl-C, SIGTERM, or when its
terminal goes away. A line that starts with "ready" says that tasks can be submitted.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runUp(cmd) },
	}
	workerFlags(cmd.Flags())
	schedulerFlags(cmd.Flags())
	return cmd
}

func (a *app) runUp(cmd *cobra.Command) error {
	a.alone = true
	withdraw()
	f, err := a.fleet()
	if err != nil {
		return err
	}
	workers, slots, err := a.workerCount(f)
	if err != nil {
		return err
	}
	children, err := a.children(f, workers, slots)
	if err != nil {
		return err
	}
	limit, err := a.memoryLimit(workers)
	if err != nil {
		return err
	}
	if err := a.demandProtocol(cmd.Context(), f); err != nil {
		return err
	}
	name, err := a.schedulerFile()
	if err != nil {
		return err
	}
	srv, token, end, err := a.newServer(nil)
	defer end()
	if err != nil {
		return err
	}
	// The scheduler outlives the workers, so that they can leave in an orderly way.
	serving, stopServing := context.WithCancel(context.WithoutCancel(cmd.Context()))
	defer stopServing()
	served := make(chan error, 1)
	go func() { served <- srv.Run(serving) }()
	working, stopWorking := context.WithCancel(cmd.Context())
	defer stopWorking()
	args := []string{"worker", "--workers", strconv.Itoa(workers), "--slots", strconv.Itoa(slots), "--memory-limit", strconv.FormatUint(limit, 10), "--log-level", a.settings.String("log-level"),
		// Values of these flags in files and in the environment are for the scheduler.
		"--listen", workersListen(srv.Address()), "--advertise", ""}
	for _, name := range slices.Concat(gpuFlagNames, ucxFlagNames, []string{"device", "python", "preload", "executors", "spare-executors", "max-waiting", "zero", "resources", "exec", "spill-limit", "memory-wait", "function-memory-limit", "function-memory-levels", "local-directory", "working-directory", "protocol", "blas-library"}) {
		if f := cmd.Flags().Lookup(name); a.settings.origin[name] != "default" {
			if values, ok := f.Value.(pflag.SliceValue); ok {
				for _, v := range values.GetSlice() {
					args = append(args, "--"+name+"="+v)
				}
				continue
			}
			if name == "resources" {
				for k, v := range a.settings.StringMap(name) {
					args = append(args, "--resources="+k+"="+v)
				}
				continue
			}
			args = append(args, "--"+name+"="+fmt.Sprint(a.settings.Get(name)))
		}
	}
	// The workers start at the same time.
	var warning string
	var failed error
	tried := make(chan error, 1)
	go func() {
		var err error
		warning, err = a.demandPython(working)
		tried <- err
	}()
	supervised := make(chan error, 1)
	missing := make(chan error, workers)
	go func() {
		supervised <- a.supervise(working, dialable(srv.Address()), token, children, supervisor.Config{Args: args, GivenUp: func(err error) { missing <- err }})
	}()
	var file *heldFile
	defer func() { file.remove() }()
	ready, done := make(chan error, 1), cmd.Context().Done()
	go func() { ready <- waitForWorkers(working, dialable(srv.Address()), token, workers) }()
	for {
		select {
		case err := <-ready:
			ready = nil
			if err != nil {
				if cmd.Context().Err() != nil {
					continue
				}
				return err
			}
			if err := <-tried; err != nil {
				if working.Err() == nil {
					failed = err
				}
				stopWorking()
				continue
			}
			if file, err = writeSchedulerFile(name, srv, token); err != nil {
				return err
			}
			a.greet(srv, token, workers, slots, a.memoryOf(f, limit), f.line, warning)
		case err := <-missing:
			if ready == nil {
				continue // the other workers go on
			}
			// The cluster would never become ready: all processes end, and the supervisor reports
			// the reason.
			slog.Error("a worker cannot be started, so nothing is", "error", err)
			ready = nil
			stopWorking()
		case err := <-supervised:
			supervised = nil
			if ready == nil && working.Err() == nil {
				// Workers may join from other machines, and clients can read the state.
				slog.Warn("no worker is left here; the scheduler goes on, until Ctrl-C or SIGTERM", "error", err)
				continue
			}
			stopServing()
			return errors.Join(failed, err, <-served)
		case err := <-served:
			stopWorking()
			if supervised == nil {
				return err
			}
			return errors.Join(err, <-supervised)
		case <-done:
			done = nil
			if supervised == nil {
				stopServing()
			}
		}
	}
}

// several formats a number of things.
func several(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// dialable replaces an unspecified host by loopback.
func dialable(address string) string {
	hostname, port, err := net.SplitHostPort(address)
	if err == nil && slices.Contains([]string{"", "0.0.0.0", "::"}, hostname) {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return address
}

// workersListen returns the address at which the workers of a cluster listen. Its host is that of
// the scheduler, so that a client of another machine reaches both.
func workersListen(scheduler string) string {
	hostname, _, err := net.SplitHostPort(scheduler)
	if err != nil {
		hostname = "127.0.0.1"
	}
	return net.JoinHostPort(hostname, "0")
}

func waitForWorkers(ctx context.Context, address, token string, n int) error {
	c, err := millrace.Dial(ctx, millrace.WithAddress(address), millrace.WithToken(token), millrace.WithoutLease())
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	return c.WaitForWorkers(ctx, n)
}

// carriers describes in one line how objects will travel between workers.
func (a *app) carriers() string {
	path, err := ucx.Locate(a.settings.String("ucx-library"))
	if err != nil {
		return fmt.Sprintf("in place on this host, by TCP streams between hosts (%v; see millrace doctor)", err)
	}
	return fmt.Sprintf("in place on this host; between hosts by UCX where there is RDMA, else by TCP streams (%s)", path)
}

func (a *app) greet(srv served, token string, workers, slots int, memory, device, warning string) {
	w := func(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format+"\n", args...) }
	w("Millrace %s: %s with %s and %s each", version.String(), several(workers, "worker"), several(slots, "slot"), memory)
	w("  address  %s", pastable(srv.Address()))
	if srv.HTTPAddress() != "" {
		// The part after # stays in the browser, which logs in with it.
		w("  browser  http://%s/#token=%s", pastable(srv.HTTPAddress()), token)
		w("  metrics  http://%s/metrics", pastable(srv.HTTPAddress()))
	}
	w("  token    %s", token)
	w("  device   %s", device)
	w("  bytes    %s", a.carriers())
	w("  shell    export MILLRACE_ADDRESS=%s MILLRACE_TOKEN=%s", pastable(srv.Address()), token)
	w("  python   from millrace import Client; client = Client()")
	w("  go       c, err := millrace.Dial(ctx)")
	w("  grpcurl  grpcurl -plaintext -H 'authorization: Bearer %s' %s list", token, pastable(srv.Address()))
	if warning != "" {
		w("  note     %s", plain(warning))
	}
	w("ready %s", pastable(srv.Address()))
}
