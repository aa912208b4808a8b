package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/posflag"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/spelling"
)

const envPrefix = "MILLRACE_"

// secret lists settings whose value is never shown.
var secret = map[string]bool{"token": true}

// settings are the values of a command's flags, by priority: flag > environment > file > default.
type settings struct {
	*koanf.Koanf
	// origin maps each setting to the source of its value.
	origin map[string]string
}

// configFiles lists the configuration files by priority; only the first existing one is read.
func configFiles() []string {
	files := []string{"millrace.yaml"}
	if dir, err := os.UserConfigDir(); err == nil {
		files = append(files, filepath.Join(dir, "millrace", "millrace.yaml"))
	}
	return append(files, "/etc/millrace/millrace.yaml")
}

// otherVariables begin with the prefix but are no settings: they are for clients, for tasks and for
// tests of the program. A task finds MILLRACE_WORKER in its environment, which is not the --worker
// of the command line.
var otherVariables = []string{
	"binary", "bin", "worker", "executor", "sysfs", "nvrtc", "config", "worker-child", "worker-incarnation", "worker-restarted", "worker-placed", "worker-http",
}

// otherPrefixes begin further variables that are no settings.
var otherPrefixes = []string{"test-", "fake-", "cli-test-", "gpu-tests", "cuda-real", "rates", "golden", "examples", "alloc-trace", "netlab-"}

func loadSettings(cmd *cobra.Command) (*settings, error) {
	s := &settings{Koanf: koanf.New("."), origin: map[string]string{}}
	flags := cmd.Flags()
	known := flagNames(cmd.Root())
	variables, err := fromEnvironment(known)
	if err != nil {
		return nil, err
	}
	name, fromFile, err := readConfig(flags, known)
	if err != nil {
		return nil, err
	}
	var errs []error
	flags.VisitAll(func(f *pflag.Flag) {
		place := "--" + f.Name + " "
		text, inEnvironment := variables[f.Name]
		value, inFile := fromFile[f.Name]
		var err error
		switch {
		case f.Changed:
			s.origin[f.Name] = "flag"
		// An empty variable counts as not set, unless the empty text is a valid value of the
		// setting.
		case inEnvironment && (text != "" || f.Value.Type() == "string" && checks[f.Name] == nil):
			s.origin[f.Name], place = "environment", variable(f.Name)+": "
			err = set(f, text)
		case inFile:
			s.origin[f.Name], place = "file "+name, f.Name+" in "+name+": "
			err = set(f, value)
		default:
			s.origin[f.Name] = "default"
			return
		}
		if check := checks[f.Name]; err == nil && check != nil {
			err = check(f.Value.String())
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s%w", place, err))
		}
	})
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	flags.VisitAll(func(f *pflag.Flag) { errs = append(errs, s.Set(f.Name, posflag.FlagVal(flags, f))) })
	return s, errors.Join(errs...)
}

func variable(name string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// flagNames returns the flags of all commands, because all commands share files and environment.
func flagNames(root *cobra.Command) map[string]bool {
	names := map[string]bool{}
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		for _, set := range []*pflag.FlagSet{c.Flags(), c.PersistentFlags()} {
			set.VisitAll(func(f *pflag.Flag) { names[f.Name] = true })
		}
		for _, below := range c.Commands() {
			walk(below)
		}
	}
	walk(root)
	for _, name := range []string{"help", "version", "config", "origin"} {
		delete(names, name) // they are no settings
	}
	for _, d := range daskFlags {
		delete(names, d.name) // they are translated to settings
	}
	return names
}

// fromEnvironment returns the values of environment variables, by the name of their flag.
func fromEnvironment(known map[string]bool) (map[string]string, error) {
	values := map[string]string{}
	if devices := os.Getenv(daskNetDevices); devices != "" {
		values["ucx-net-devices"] = devices
	}
	var errs []error
	for _, line := range os.Environ() {
		key, value, _ := strings.Cut(line, "=")
		rest, ours := strings.CutPrefix(key, envPrefix)
		if !ours {
			continue
		}
		name := strings.ToLower(strings.ReplaceAll(rest, "_", "-"))
		switch {
		case slices.Contains(otherVariables, name) || slices.ContainsFunc(otherPrefixes, func(p string) bool { return strings.HasPrefix(name, p) }):
		case known[name]:
			values[name] = value
		default:
			// Other programs may have variables with our prefix; Kubernetes makes some for each
			// service. A misspelled setting is close to the name of one of ours.
			if meant := nearest(name, known); meant != "" {
				errs = append(errs, fmt.Errorf("%s: there is no such setting; did you mean %s?", key, variable(meant)))
			}
		}
	}
	return values, errors.Join(errs...)
}

// readConfig reads the configuration file with the highest priority, if there is one.
func readConfig(flags *pflag.FlagSet, known map[string]bool) (name string, values map[string]any, err error) {
	if f := flags.Lookup("config"); f != nil && f.Value.String() != "" {
		name = f.Value.String()
	} else if name = os.Getenv(envPrefix + "CONFIG"); name == "" {
		files := slices.DeleteFunc(configFiles(), func(name string) bool { _, err := os.Stat(name); return errors.Is(err, fs.ErrNotExist) })
		if len(files) == 0 {
			return "", nil, nil
		}
		name = files[0]
	}
	text, err := readFile(name, mostConfiguration, false)
	if err == nil {
		values, err = yaml.Parser().Unmarshal(text)
	}
	if err != nil {
		return "", nil, fmt.Errorf("configuration file %s: %w", name, err)
	}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if known[key] {
			continue
		}
		hint := ""
		if meant := nearest(key, known); meant != "" {
			hint = "; did you mean " + meant + "?"
		}
		errs = append(errs, fmt.Errorf("configuration file %s: %s: there is no such setting%s", name, key, hint))
	}
	return name, values, errors.Join(errs...)
}

// nearest returns the known name that is most similar to the given one; empty if none is similar.
func nearest(name string, known map[string]bool) string {
	best, least := "", min(2, len(name)/3)+1
	for _, candidate := range slices.Sorted(maps.Keys(known)) {
		if d := spelling.Distance(name, candidate); d < least {
			best, least = candidate, d
		}
	}
	return best
}

// set sets a flag to a value from the environment or a file.
func set(f *pflag.Flag, value any) error {
	switch v := value.(type) {
	case nil:
		return errors.New("it has no value")
	case []any:
		list, ok := f.Value.(pflag.SliceValue)
		if !ok {
			return fmt.Errorf("it is a list; give one %s", f.Value.Type())
		}
		var texts []string
		for _, item := range v {
			texts = append(texts, fmt.Sprint(item))
		}
		return list.Replace(texts)
	case map[string]any:
		if f.Value.Type() != "stringToString" {
			return fmt.Errorf("it is a map; give %s", f.Value.Type())
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if err := f.Value.Set(key + "=" + fmt.Sprint(v[key])); err != nil {
				return err
			}
		}
		return nil
	default:
		text := fmt.Sprint(v)
		if err := f.Value.Set(text); err != nil {
			return fmt.Errorf("%q is not a value of type %s: %w", text, f.Value.Type(), err)
		}
		return nil
	}
}

func (a *app) config() *cobra.Command {
	config := &cobra.Command{Use: "config", Short: "Look at the configuration"}
	show := &cobra.Command{
		Use: "show [command]", Short: "Print the settings that a command would run with (secrets hidden)",
		RunE: func(cmd *cobra.Command, args []string) error {
			target, _, err := cmd.Root().Find(args)
			if err != nil {
				return usageError{err}
			}
			// InheritedFlags adds the flags that this command shares with the other one.
			target.InheritedFlags()
			s, err := loadSettings(target)
			if err != nil {
				return usageError{err}
			}
			origin, _ := cmd.Flags().GetBool("origin")
			names := slices.Sorted(maps.Keys(s.origin))
			for _, name := range names {
				if name == "help" || name == "version" || name == "origin" {
					continue
				}
				value := fmt.Sprint(s.Get(name))
				if secret[name] && value != "" {
					value = "(hidden)"
				}
				if origin {
					_, err = fmt.Fprintf(a.out, "%-24s %-32s # %s\n", name+":", value, s.origin[name])
				} else {
					_, err = fmt.Fprintf(a.out, "%s: %s\n", name, value)
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
	show.Flags().Bool("origin", false, "say where each value came from")
	config.AddCommand(show)
	return config
}
