package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"sigs.k8s.io/yaml"
)

// clusterContext says how to reach a cluster.
type clusterContext struct {
	Address       string `json:"address,omitempty"`
	Token         string `json:"token,omitempty"`
	TokenFile     string `json:"token-file,omitempty"`
	SchedulerFile string `json:"scheduler-file,omitempty"`
}

// clusterContexts is the content of the file of contexts.
type clusterContexts struct {
	Current  string                    `json:"current,omitempty"`
	Contexts map[string]clusterContext `json:"contexts,omitempty"`
}

func contextsFile() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("contexts: %w", err)
	}
	return filepath.Join(dir, "millrace", "contexts.yaml"), nil
}

func readContexts() (clusterContexts, error) {
	c := clusterContexts{Contexts: map[string]clusterContext{}}
	name, err := contextsFile()
	if err != nil {
		return c, err
	}
	text, err := readFile(name, mostConfiguration, false)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err == nil {
		err = yaml.UnmarshalStrict(text, &c)
	}
	if err != nil {
		return c, usageError{fmt.Errorf("contexts in %s: %w", name, err)}
	}
	if c.Contexts == nil {
		c.Contexts = map[string]clusterContext{}
	}
	return c, nil
}

// write replaces the file. It may have tokens, so only this user may read it.
func (c clusterContexts) write() error {
	name, err := contextsFile()
	if err != nil {
		return err
	}
	text, err := yaml.Marshal(c)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return fmt.Errorf("contexts: %w", err)
	}
	temporary, err := os.CreateTemp(filepath.Dir(name), ".contexts-*") // 0600
	if err != nil {
		return fmt.Errorf("contexts: %w", err)
	}
	_, err = temporary.Write(text)
	if err = errors.Join(err, temporary.Close()); err == nil {
		err = os.Rename(temporary.Name(), name)
	}
	if err != nil {
		_ = os.Remove(temporary.Name())
		return fmt.Errorf("contexts: %w", err)
	}
	return nil
}

func (c clusterContexts) find(name string) (clusterContext, error) {
	x, ok := c.Contexts[name]
	if !ok {
		return x, status.Errorf(codes.NotFound, "there is no context %q: see `millrace context list`", name)
	}
	return x, nil
}

// useContext puts the context into the settings, if it decides which cluster is meant: flags win
// over --context, that over other settings, and these over the context in use.
func (a *app) useContext() error {
	s := a.settings
	name, named := s.String("context"), s.String("address") != "" || s.String("scheduler-file") != ""
	byFlag := s.origin["address"] == "flag" || s.origin["scheduler-file"] == "flag"
	if byFlag && s.origin["context"] == "flag" {
		return usageError{errors.New("--context names a cluster, and so does --address or --scheduler-file: give one of them")}
	}
	if byFlag || name == "" && named {
		return nil
	}
	all, err := readContexts()
	if err != nil {
		return err
	}
	if name = cmp.Or(name, all.Current); name == "" {
		return nil
	}
	x, err := all.find(name)
	if err != nil {
		return err
	}
	values := map[string]string{"address": x.Address, "scheduler-file": x.SchedulerFile}
	// A token that was given for this command is meant for this cluster.
	if s.origin["token"] != "flag" && s.origin["token-file"] != "flag" {
		values["token"], values["token-file"] = x.Token, x.TokenFile
	}
	for setting, value := range values {
		if err := s.Set(setting, value); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) context() *cobra.Command {
	cmd := &cobra.Command{
		Use: "context", Short: "Name clusters, and choose one of them",
		Long: `Names clusters, so that commands find them without --address and --token. "add" gives a name to the cluster of
--address with --token or --token-file, or to that of --scheduler-file. "use" chooses the cluster of later commands; --context
chooses that of one command, and MILLRACE_CONTEXT that of a shell. --address, MILLRACE_ADDRESS, --scheduler-file and
MILLRACE_SCHEDULER_FILE win over the context in use.

The contexts, with their tokens, are in $XDG_CONFIG_HOME/millrace/contexts.yaml, which only you may read.`,
	}
	named := func(use, short string, change func(all *clusterContexts, name string) error) *cobra.Command {
		return &cobra.Command{
			Use: use, Short: short, Args: exactly(1), ValidArgsFunction: completeContexts,
			RunE: func(_ *cobra.Command, args []string) error {
				all, err := readContexts()
				if err != nil {
					return err
				}
				if err := change(&all, args[0]); err != nil {
					return err
				}
				return all.write()
			},
		}
	}
	cmd.AddCommand(
		&cobra.Command{Use: "list", Short: "List the contexts", Args: noArgs, RunE: func(*cobra.Command, []string) error { return a.listContexts() }},
		named("use NAME", "Choose the cluster of later commands", func(all *clusterContexts, name string) error {
			_, err := all.find(name)
			all.Current = name
			return err
		}),
		named("add NAME", "Give a name to a cluster; the first one is then in use", a.addContext),
		named("remove NAME", "Forget a name", func(all *clusterContexts, name string) error {
			_, err := all.find(name)
			delete(all.Contexts, name)
			if all.Current == name {
				all.Current = ""
			}
			return err
		}),
	)
	return cmd
}

func (a *app) addContext(all *clusterContexts, name string) error {
	s := a.settings
	x := clusterContext{Address: s.String("address"), Token: s.String("token"), TokenFile: s.String("token-file")}
	if x.Address == "" {
		x = clusterContext{SchedulerFile: s.String("scheduler-file")}
	}
	for _, file := range []*string{&x.TokenFile, &x.SchedulerFile} {
		if *file != "" {
			full, err := filepath.Abs(*file)
			if err != nil {
				return err
			}
			*file = full
		}
	}
	if x == (clusterContext{}) || name == "" {
		return errNoCluster
	}
	all.Contexts[name] = x
	all.Current = cmp.Or(all.Current, name)
	return nil
}

func (a *app) listContexts() error {
	all, err := readContexts()
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(a.out, 0, 8, 2, ' ', 0)
	contextsTable(w, all)
	return w.Flush()
}

func contextsTable(w io.Writer, all clusterContexts) {
	row(w, "", "NAME", "ADDRESS", "TOKEN", "SCHEDULER FILE")
	for _, name := range slices.Sorted(maps.Keys(all.Contexts)) {
		x, mark, token := all.Contexts[name], "", cmp.Or(all.Contexts[name].TokenFile, "-")
		if name == all.Current {
			mark = "*"
		}
		if x.Token != "" {
			token = "(hidden)"
		}
		row(w, mark, name, cmp.Or(x.Address, "-"), token, cmp.Or(x.SchedulerFile, "-"))
	}
}

func completeContexts(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	all, err := readContexts()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return slices.Sorted(maps.Keys(all.Contexts)), cobra.ShellCompDirectiveNoFileComp
}
