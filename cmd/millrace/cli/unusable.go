package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/transfer/ucx"
	"github.com/millrace/millrace/worker"
)

// unusableError says that this machine lacks something that the settings ask for, so that a
// repetition fails, too.
type unusableError struct{ error }

func (e unusableError) Unwrap() error { return e.error }

const (
	probeName = "ucx-probe"
	// probeTimeout bounds the probe: UCX opens within a second, or hangs on a device that it
	// found.
	probeTimeout = time.Minute
)

// demandProtocol fails before anything is started if the settings ask for a protocol that workers
// on this fleet cannot use.
func (a *app) demandProtocol(ctx context.Context, f *fleet) error {
	switch protocol := a.settings.String("protocol"); {
	case protocol == worker.ProtocolUCX:
		return a.demandUCX(ctx)
	case protocol == worker.ProtocolIPC && len(f.gpus) == 0:
		return unusableError{fmt.Errorf("%w; these workers have %s", worker.ErrNoIPC, f.line)}
	}
	return nil
}

// demandUCX fails if UCX cannot be used here. It tests UCX in a process of its own, because UCX
// changes the process that loads it, and a broken UCX may end it.
func (a *app) demandUCX(ctx context.Context) error {
	s := a.settings
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, probeTimeout,
		unusableError{worker.NoUCX(fmt.Errorf("%w: it was not open after %v", ucx.ErrUnavailable, probeTimeout))})
	defer cancel()
	cmd := exec.CommandContext(ctx, self, probeName, "--ucx-library="+s.String("ucx-library"), "--ucx-tls="+s.String("ucx-tls"), "--ucx-net-devices="+s.String("ucx-net-devices"))
	var said bytes.Buffer
	cmd.Stderr = &said
	err = cmd.Run()
	var ended *exec.ExitError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case !errors.As(err, &ended):
		return fmt.Errorf("--protocol ucx: start %s to try it: %w", self, err)
	}
	lines := strings.Split(strings.TrimSpace(said.String()), "\n")
	text, told := strings.CutPrefix(lines[len(lines)-1], "error: ")
	if !told {
		return unusableError{worker.NoUCX(fmt.Errorf("%w: the process that tried it: %w: %s", ucx.ErrUnavailable, err, text))}
	}
	return unusableError{errors.New(text)}
}

// probe is the hidden command that demandUCX runs.
func (a *app) probe() *cobra.Command {
	cmd := &cobra.Command{
		Use: probeName, Short: "Open UCX once, as --protocol ucx does", Args: noArgs, Hidden: true,
		RunE: func(*cobra.Command, []string) error {
			s := a.settings
			slab, err := host.NewSlab(1<<20, memory.Identity{Nonce: 1})
			if err != nil {
				return err
			}
			defer slab.Close()
			context, err := ucx.Open(ucx.Config{Library: s.String("ucx-library"), TLS: s.String("ucx-tls"), NetDevices: s.String("ucx-net-devices"), Space: slab})
			if err != nil {
				return unusableError{worker.NoUCX(err)}
			}
			return context.Close()
		},
	}
	f := cmd.Flags()
	f.String("ucx-library", "", "as of worker")
	f.String("ucx-tls", "", "as of worker")
	f.String("ucx-net-devices", "", "as of worker")
	return cmd
}
