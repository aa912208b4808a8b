// Package cli is an Adapter to the terminal: the commands of the millrace binary. It reads flags,
// environment and files, and passes plain configurations to server, worker and clients/go.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	millrace "github.com/millrace/millrace/clients/go"
	"github.com/millrace/millrace/internal/version"
	"github.com/millrace/millrace/server/consensus"
	"github.com/millrace/millrace/worker/supervisor"
)

// Exit codes; the root command's help lists them.
const (
	exitOK = iota
	exitFailed
	exitUsage
	exitNotFound
	exitUnreachable
	exitUnauthenticated
	exitTimeout
	exitTaskFailed
	exitUnusable
	exitDirectory
)

const rootHelp = `Millrace is a distributed task service: a scheduler, a worker for each device, and clients in any language.

"millrace up" starts a cluster on this machine. Other commands find their cluster by --address and --token, else by
MILLRACE_ADDRESS and MILLRACE_TOKEN, else by the file that --scheduler-file or MILLRACE_SCHEDULER_FILE names, else by the
name of a cluster: see "millrace context".

Every flag can also be set as MILLRACE_<FLAG> in the environment, or in millrace.yaml here, in
$XDG_CONFIG_HOME/millrace or in /etc/millrace; flags win over the environment, that over files. "millrace config show
--origin" tells what is in force and from where.

Exit codes: 0 done; 1 failed; 2 wrong usage; 3 not found; 4 cluster unreachable; 5 not allowed; 6 out of time; 7 a task
failed or was cancelled; 8 this machine lacks what was asked for (--protocol, --memory-limit, --python), or a worker ends again and
again before it has begun; 9 one of several schedulers was removed from them, or cannot use its directory: a restart ends alike.`

// rpcPrefix matches the text that gRPC puts before the scheduler's message. The exit code has the
// same meaning.
var rpcPrefix = regexp.MustCompile(`rpc error: code = \w+ desc = `)

// usageError is a mistake in the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// app is the state that all commands share.
type app struct {
	settings *settings
	out, err io.Writer
	// args are the arguments of the command line.
	args []string
	// hurry is closed by a second signal: end at once.
	hurry <-chan struct{}
	// alone: its workers are the first ones of their cluster. child: this process is one worker.
	alone, child bool
}

// Main runs the command line and returns the exit code.
func Main(args []string) int {
	// SIGHUP: the terminal is gone, so nobody can use the cluster that this command runs.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	hurry := make(chan struct{})
	go func() {
		<-signals
		stop()
		<-signals
		close(hurry)
	}()
	a := &app{out: os.Stdout, err: os.Stderr, args: args, hurry: hurry}
	root := a.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	if a.child {
		return a.childExit(err)
	}
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return exitFailed
	}
	_, _ = fmt.Fprintln(a.err, "error:", errorText(err))
	return exitCode(err)
}

func exitCode(err error) int {
	var usage usageError
	var task *millrace.TaskError
	var graph graphError
	var old oldFailureError
	var unusable unusableError
	var given *supervisor.UnusableError
	var directory consensus.DirectoryError
	switch {
	case errors.As(err, &unusable):
		return exitUnusable
	case errors.As(err, &given):
		switch given.ExitCode {
		case supervisor.ExitRefused:
			return exitUnauthenticated
		case supervisor.ExitSchedulerLost:
			return exitUnreachable
		case supervisor.ExitUsage:
			return exitUsage
		}
		return exitUnusable
	// The errors for unknown commands are cobra's own and have no type.
	case errors.As(err, &usage), strings.HasPrefix(err.Error(), "unknown command "):
		return exitUsage
	case errors.As(err, &directory):
		return exitDirectory
	case errors.As(err, &task), errors.As(err, &graph), errors.As(err, &old):
		return exitTaskFailed
	case errors.Is(err, context.DeadlineExceeded):
		return exitTimeout
	}
	return rpcExitCode(err)
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use: "millrace", Short: "A distributed task service", Long: rootHelp,
		SilenceErrors: true, SilenceUsage: true, Version: version.String(),
		PersistentPreRunE: func(cmd *cobra.Command, args []string) error {
			a.child = cmd.Name() == "worker" && os.Getenv(supervisor.ChildEnv) != ""
			var notes []string
			var err error
			if cmd.Name() == "worker" && cmd.Parent() == cmd.Root() {
				if notes, err = fromDask(cmd, args); err != nil {
					return usageError{err}
				}
			}
			s, err := loadSettings(cmd)
			if err != nil {
				return usageError{err}
			}
			a.settings = s
			if err := a.logging(); err != nil {
				return err
			}
			if runs := cmd.Name() == "worker" || cmd.Name() == "up"; runs && cmd.Parent() == cmd.Root() {
				a.tellDask(notes)
			}
			return nil
		},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	f := root.PersistentFlags()
	f.String("address", "", "scheduler, host:port; of several schedulers, all addresses with commas between them")
	f.String("token", "", "token of the cluster; better in MILLRACE_TOKEN or a file: others may list arguments")
	f.String("token-file", "", "file with the token of the cluster")
	f.String("scheduler-file", "", "file that \"millrace up\" and \"millrace scheduler\" write and the other commands read")
	f.String("context", "", "cluster by its name: see \"millrace context\"")
	f.String("log-level", "info", "debug, info, warn or error")
	f.String("log-format", "auto", "text (for people), json, or auto: text on a terminal, else json")
	f.String("config", "", "configuration file, instead of the ones looked for")
	root.AddGroup(&cobra.Group{ID: "run", Title: "Run:"}, &cobra.Group{ID: "use", Title: "Use and look:"}, &cobra.Group{ID: "operate", Title: "Operate workers:"}, &cobra.Group{ID: "more", Title: "More:"})
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			if c.HasSubCommands() {
				c.Args, c.RunE = noArgs, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
			}
			root.AddCommand(c)
		}
	}
	add("run", a.up(), a.scheduler(), a.worker())
	add("use", a.submit(), a.get(), a.describe(), a.explain(), a.logs(), a.events(), a.trace(), a.cancel(), a.retry(), a.wait(), a.status(), a.top(), a.memory(), a.topo())
	add("operate", a.drain(), a.retire(), a.restart(), a.scale(), a.rebalance(), a.peersCommand())
	add("more", a.bench(), a.doctor(), a.config(), a.context(), a.roleToken(), a.journalCommand(), a.protos(), a.man(), a.version(), a.probe())
	a.completions(root)
	root.SetCompletionCommandGroupID("more")
	root.SetHelpCommandGroupID("more")
	return root
}

func (a *app) version() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(a.out, "millrace", version.String())
			return err
		},
	}
}

// errNoCluster is the error of commands that need a cluster when none is named.
var errNoCluster = usageError{errors.New("no cluster named: give --address and --token, or --scheduler-file, or set MILLRACE_ADDRESS and " +
	"MILLRACE_TOKEN, as \"millrace up\" prints them, or choose one with \"millrace context use\"")}

// dial connects to the cluster that the settings name.
func (a *app) dial(ctx context.Context, options ...millrace.Option) (*millrace.Client, error) {
	if err := a.useContext(); err != nil {
		return nil, err
	}
	s := a.settings
	options = append(options, millrace.WithName("millrace command"))
	// The settings hold the values of flags, environment and configuration files. The client's own
	// search adds nothing.
	if v := s.String("address"); v != "" {
		token, err := a.token()
		if err != nil {
			return nil, err
		}
		options = append(options, millrace.WithAddress(v), millrace.WithToken(token))
	} else if v := s.String("scheduler-file"); v != "" {
		options = append(options, millrace.WithSchedulerFile(v))
	} else {
		return nil, errNoCluster
	}
	return millrace.Dial(ctx, options...)
}
