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
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/providers/posflag"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const envPrefix = "MILLRACE_"

// secret names settings whose value is never shown.
var secret = map[string]bool{"token": true}

// settings are the values of a command's flags: flag > environment > file > default.
type settings struct {
	*koanf.Koanf
	// origin says where each value came from.
	origin map[string]string
}

// configFiles are looked for in this order; the first one counts.
func configFiles() []string {
	files := []string{"millrace.yaml"}
	if dir, err := os.UserConfigDir(); err == nil {
		files = append(files, filepath.Join(dir, "millrace", "millrace.yaml"))
	}
	return append(files, "/etc/millrace/millrace.yaml")
}

func loadSettings(cmd *cobra.Command) (*settings, error) {
	s := &settings{Koanf: koanf.New("."), origin: map[string]string{}}
	flags := cmd.Flags()
	files := configFiles()
	if f := flags.Lookup("config"); f != nil && f.Value.String() != "" {
		files = []string{f.Value.String()}
	} else if v := os.Getenv(envPrefix + "CONFIG"); v != "" {
		files = []string{v}
	} else {
		files = slices.DeleteFunc(files, func(name string) bool { _, err := os.Stat(name); return errors.Is(err, fs.ErrNotExist) })
	}
	if len(files) > 0 {
		if err := s.from("file "+files[0], file.Provider(files[0]), yaml.Parser()); err != nil {
			return nil, fmt.Errorf("configuration file %s: %w", files[0], err)
		}
	}
	known := func(name string) bool { return flags.Lookup(name) != nil }
	environment := env.Provider(".", env.Opt{Prefix: envPrefix, TransformFunc: func(k, v string) (string, any) {
		name := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(k, envPrefix), "_", "-"))
		if !known(name) {
			return "", nil // other programs' variables, such as the client's
		}
		return name, v
	}})
	if err := s.from("environment", environment, nil); err != nil {
		return nil, fmt.Errorf("environment: %w", err)
	}
	// posflag lets the value of an unset flag stand back behind what is loaded already.
	if err := s.Load(posflag.Provider(flags, ".", s.Koanf), nil); err != nil {
		return nil, fmt.Errorf("flags: %w", err)
	}
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			s.origin[f.Name] = "flag"
		} else if s.origin[f.Name] == "" {
			s.origin[f.Name] = "default"
		}
	})
	return s, nil
}

func (s *settings) from(origin string, p koanf.Provider, parser koanf.Parser) error {
	k := koanf.New(".")
	if err := k.Load(p, parser); err != nil {
		return err
	}
	for _, name := range k.Keys() {
		s.origin[name] = origin
	}
	return s.Merge(k)
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
			// Flags of this command that the other one has as well count for it.
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
