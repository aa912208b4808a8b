package cli

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/worker"
)

// commands visits all commands; again makes a new copy of each.
func commands(t *testing.T, visit func(name string, again func() *cobra.Command)) {
	t.Helper()
	fresh := func() *cobra.Command { return (&app{out: io.Discard, err: io.Discard}).root() }
	var walk func(c *cobra.Command, path []string)
	walk = func(c *cobra.Command, path []string) {
		for _, below := range c.Commands() {
			walk(below, append(path[:len(path):len(path)], below.Name()))
		}
		if len(path) > 0 {
			visit(strings.Join(path, " "), func() *cobra.Command {
				found, _, err := fresh().Find(path)
				if err != nil {
					t.Fatal(err)
				}
				found.InheritedFlags()
				return found
			})
		}
	}
	walk(fresh(), nil)
}

// wrong returns a value that is invalid for a flag; empty if the flag accepts any text.
func wrong(f *pflag.Flag) string {
	switch f.Value.Type() {
	case "string", "stringSlice", "stringArray":
		if f.Name == "name" {
			return strings.Repeat("n", maxNamePrefix+1)
		}
		if checks[f.Name] != nil {
			return "nonsense!"
		}
		return ""
	case "stringToString":
		return "nonsense"
	}
	return "nonsense!"
}

// An invalid value of a setting is an error, from whatever source, and the error names the source.
func TestWrongValuesAreRefusedWhereverTheyAreFrom(t *testing.T) {
	t.Chdir(t.TempDir())
	tried := 0
	commands(t, func(name string, again func() *cobra.Command) {
		again().Flags().VisitAll(func(f *pflag.Flag) {
			bad := wrong(f)
			dask := slices.ContainsFunc(daskFlags, func(d daskFlag) bool { return d.name == f.Name }) // they are no settings
			if bad == "" || dask || f.Name == "help" || f.Name == "version" || f.Name == "origin" {
				return
			}
			tried++
			file := filepath.Join(t.TempDir(), "some.yaml")
			if err := os.WriteFile(file, []byte(f.Name+": "+bad+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := again()
			if err := cmd.ParseFlags([]string{"--config=" + file}); err != nil {
				t.Fatal(err)
			}
			if _, err := loadSettings(cmd); err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), f.Name) {
				t.Errorf("%s: %s in a file: %v", name, f.Name, err)
			}
			t.Run("environment", func(t *testing.T) {
				t.Setenv(variable(f.Name), bad)
				_, err := loadSettings(again())
				// The variable can be meant for a task and not for a command: MILLRACE_WORKER.
				if f.Name != "worker" && (err == nil || !strings.Contains(err.Error(), variable(f.Name))) {
					t.Errorf("%s: %s: %v", name, variable(f.Name), err)
				}
			})
			cmd = again()
			err := cmd.ParseFlags([]string{"--" + f.Name + "=" + bad})
			if err == nil {
				_, err = loadSettings(cmd)
			}
			if err == nil || !strings.Contains(err.Error(), "--"+f.Name) {
				t.Errorf("%s: --%s: %v", name, f.Name, err)
			}
		})
	})
	if tried < 100 {
		t.Errorf("only %d settings tried", tried)
	}
}

// Addresses are checked at their source: flags, environment and files.
func TestAddressesAreChecked(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, values := range map[string][]string{
		"listen": {"h", "h:65536", "\x1b:1", "h:-1", "a b:1"},
		"http":   {"h", "h:65536", "\x1b:1"},

		"metrics-listen": {"h", "h:65536", "\x1b:1"},
		"advertise":      {"\x1b[31mred:99999", "h:0", "h:65536", "0.0.0.0", "a:b:c"},
		"address":        {"h", "h:0", "\x1b:1", "http://h:1", ":7786"},
	} {
		for _, value := range values {
			for _, place := range []string{"--" + name, variable(name)} {
				var cmd *cobra.Command
				commands(t, func(path string, again func() *cobra.Command) {
					if path == "worker" && name != "http" || path == "up" && name == "http" {
						cmd = again()
					}
				})
				if place == variable(name) {
					t.Setenv(place, value)
				} else {
					if err := os.Unsetenv(variable(name)); err != nil {
						t.Fatal(err)
					}
					if err := cmd.ParseFlags([]string{place + "=" + value}); err != nil {
						t.Fatal(err)
					}
				}
				_, err := loadSettings(cmd)
				if err == nil || !strings.Contains(err.Error(), place) || !strings.Contains(err.Error(), "give ") || strings.ContainsRune(err.Error(), '\x1b') {
					t.Errorf("%s=%q: %v", place, value, err)
				}
				if err := os.Unsetenv(variable(name)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// Values of the right type that the scheduler would refuse, or take for its own default.
func TestLimitsAreChecked(t *testing.T) {
	t.Chdir(t.TempDir())
	for given, command := range map[string]string{
		"--inline-result=0": "up", "--within=-1s": "retire", "--within=721h": "restart", "--ucx-rc-timeout=0s": "worker", "--ucx-rc-timeout=1h0m0s": "up",
	} {
		var cmd *cobra.Command
		commands(t, func(path string, again func() *cobra.Command) {
			if path == command {
				cmd = again()
			}
		})
		if err := cmd.ParseFlags([]string{given}); err != nil {
			t.Fatal(err)
		}
		name, value, _ := strings.Cut(given, "=")
		if _, err := loadSettings(cmd); err == nil || !strings.Contains(err.Error(), name+" "+value) || !strings.Contains(err.Error(), "such as") {
			t.Errorf("%s %s: %v", command, given, err)
		}
	}
}

// Unless the times of RDMA connections are given, they are left to UCX, whose variables apply.
func TestTimesOfRDMAAreGivenOrUCXs(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv(variable("ucx-library"), "")
	for _, command := range []string{"worker", "up"} {
		for _, given := range []bool{false, true} {
			var cmd *cobra.Command
			commands(t, func(path string, again func() *cobra.Command) {
				if path == command {
					cmd = again()
				}
			})
			var args []string
			var want worker.UCX
			if given {
				args = []string{"--ucx-rc-timeout=1s", "--ucx-rc-retries=3", "--ucx-tls=rc", "--ucx-net-devices=mlx5_0:1", "--ucx-library=/libucp.so.0"}
				want = worker.UCX{RCTimeout: time.Second, RCRetries: 3, TLS: "rc", NetDevices: "mlx5_0:1", Library: "/libucp.so.0"}
			}
			if err := cmd.ParseFlags(args); err != nil {
				t.Fatal(err)
			}
			s, err := loadSettings(cmd)
			if err != nil {
				t.Fatal(err)
			}
			got := (&app{settings: s}).ucx()
			if got != want {
				t.Errorf("%s %v: %+v", command, args, got)
			}
		}
	}
}

// The default values of a command pass its own checks.
func TestDefaultsAreRight(t *testing.T) {
	commands(t, func(name string, again func() *cobra.Command) {
		again().Flags().VisitAll(func(f *pflag.Flag) {
			if check := checks[f.Name]; check != nil {
				if err := check(f.DefValue); err != nil {
					t.Errorf("%s: --%s: %v", name, f.Name, err)
				}
			}
		})
	})
}

func TestUnknownSettingsAreRefused(t *testing.T) {
	t.Chdir(t.TempDir())
	var up func() *cobra.Command
	commands(t, func(name string, again func() *cobra.Command) {
		if name == "up" {
			up = again
		}
	})
	for text, want := range map[string]string{
		"resource: {gpu: 1}\n": "resource: there is no such setting; did you mean resources?",
		"colour: red\n":        "colour: there is no such setting",
		"slots: [1, 2]\n":      "slots in millrace.yaml: it is a list; give one int",
		"slots:\n":             "slots in millrace.yaml: it has no value",
		"slots: {a: 1}\n":      "slots in millrace.yaml: it is a map; give int",
		"- slots\n":            "configuration file millrace.yaml: ",
	} {
		if err := os.WriteFile("millrace.yaml", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := loadSettings(up()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	// Valid values are used; values for other commands are ignored.
	if err := os.WriteFile("millrace.yaml", []byte("slots: 3\npage-size: 7\nresources: {gpu: 1.5, disk: 2}\npreload: [a, b]\nno-affinity: true\nworker-lease: 7s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("MILLRACE_SLOTS", "4")
	t.Setenv("MILLRACE_PRELOAD", "c,d")
	t.Setenv("MILLRACE_PORT", "tcp://10.0.0.1:7786") // as Kubernetes has it for a service
	t.Setenv("MILLRACE_SERVICE_HOST", "10.0.0.1")
	t.Setenv("MILLRACE_EXECUTOR", "python")
	t.Setenv("MILLRACE_TIMEOUT", "")
	s, err := loadSettings(up())
	if err != nil {
		t.Fatal(err)
	}
	if s.Int("slots") != 4 || s.StringMap("resources")["gpu"] != "1.5" || strings.Join(s.Strings("preload"), " ") != "c d" || !s.Bool("no-affinity") ||
		s.Duration("worker-lease").Seconds() != 7 || s.origin["slots"] != "environment" || s.origin["resources"] != "file millrace.yaml" {
		t.Errorf("slots %d, resources %v, preload %q, %v", s.Int("slots"), s.StringMap("resources"), s.Strings("preload"), s.origin)
	}
	t.Setenv("MILLRACE_SLOT", "4")
	if _, err := loadSettings(up()); err == nil || !strings.Contains(err.Error(), "MILLRACE_SLOT: there is no such setting; did you mean MILLRACE_SLOTS?") {
		t.Errorf("a slip of the pen: %v", err)
	}
}
