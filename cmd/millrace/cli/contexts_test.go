package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// commandLine runs a command in this process.
func commandLine(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	var b bytes.Buffer
	root := (&app{out: &b, err: &b}).root()
	root.SetArgs(args)
	root.SetOut(&b)
	root.SetErr(io.Discard)
	err = root.ExecuteContext(t.Context())
	return b.String(), err
}

func TestContextsNameClusters(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	for _, name := range []string{"MILLRACE_ADDRESS", "MILLRACE_TOKEN", "MILLRACE_SCHEDULER_FILE", "MILLRACE_CONTEXT"} {
		t.Setenv(name, "")
	}
	must := func(args ...string) string {
		t.Helper()
		out, err := commandLine(t, args...)
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return out
	}
	must("context", "add", "lab", "--address", "lab:1", "--token", "secret-of-lab")
	must("context", "add", "home", "--scheduler-file", "home.json")
	info, err := os.Stat(filepath.Join(dir, "millrace", "contexts.yaml"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	list := must("context", "list")
	if !hasLine(list, []string{"*", "lab", "lab:1", "(hidden)"}) || !hasLine(list, []string{"home", "/home.json"}) || strings.Contains(list, "secret-of-lab") {
		t.Errorf("list:\n%s", list)
	}
	// chosen tells which cluster a command would call.
	chosen := func(args ...string) (address, token, file string, err error) {
		a := &app{out: &bytes.Buffer{}, err: &bytes.Buffer{}}
		cmd, rest, findErr := a.root().Find(append([]string{"status"}, args...))
		if findErr != nil {
			t.Fatal(findErr)
		}
		if err := cmd.ParseFlags(rest); err != nil {
			t.Fatal(err)
		}
		if a.settings, err = loadSettings(cmd); err != nil {
			t.Fatal(err)
		}
		err = a.useContext()
		return a.settings.String("address"), a.settings.String("token"), filepath.Base(a.settings.String("scheduler-file")), err
	}
	check := func(wantAddress, wantToken, wantFile string, args ...string) {
		t.Helper()
		address, token, file, err := chosen(args...)
		if err != nil || address != wantAddress || token != wantToken || strings.TrimSuffix(file, ".") != wantFile {
			t.Errorf("%v: %q %q %q %v", args, address, token, file, err)
		}
	}
	check("lab:1", "secret-of-lab", "")
	check("", "", "home.json", "--context", "home")
	check("other:1", "", "", "--address", "other:1")
	check("lab:1", "mine", "", "--token", "mine")
	if _, _, _, err := chosen("--context", "home", "--address", "other:1"); exitCode(err) != exitUsage {
		t.Errorf("two clusters: %v", err)
	}
	if _, _, _, err := chosen("--context", "nowhere"); exitCode(err) != exitNotFound || !strings.Contains(err.Error(), "millrace context list") {
		t.Errorf("an unknown context: %v", err)
	}
	must("context", "use", "home")
	check("", "", "home.json")
	t.Setenv("MILLRACE_ADDRESS", "shell:1")
	check("shell:1", "", "")
	t.Setenv("MILLRACE_CONTEXT", "lab")
	check("lab:1", "secret-of-lab", "")
	t.Setenv("MILLRACE_CONTEXT", "")
	t.Setenv("MILLRACE_ADDRESS", "")
	must("context", "remove", "home")
	check("", "", "")
	if _, err := commandLine(t, "context", "use", "home"); exitCode(err) != exitNotFound {
		t.Errorf("a removed context: %v", err)
	}
	if _, err := commandLine(t, "context", "add", "empty"); exitCode(err) != exitUsage {
		t.Errorf("a context without a cluster: %v", err)
	}
}

// Wherever a list of addresses is wrong, the error names the place and the fault.
func TestWrongListsOfAddresses(t *testing.T) {
	for _, name := range []string{"MILLRACE_ADDRESS", "MILLRACE_TOKEN", "MILLRACE_SCHEDULER_FILE", "MILLRACE_CONTEXT"} {
		t.Setenv(name, "")
	}
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	write := func(name, format string, args ...any) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, fmt.Appendf(nil, format, args...), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for list, fault := range map[string]string{
		"a:1,,b:2": "has an empty address", "a:1,": "has an empty address", "a:1,b:2,a:1": "has the address a:1 twice", "a:1,b": `"b" is not an address of a scheduler`,
	} {
		file, config := write("file.json", "{\"address\": %q}", list), write("config.yaml", "address: %q", list)
		for place, args := range map[string][]string{
			"--address":        {"status", "--address", list},
			"scheduler file":   {"status", "--scheduler-file", file},
			"address in":       {"status", "--config", config},
			"--address ":       {"worker", "--address", list},
			"address":          {"context", "add", "x", "--address", list},
			"MILLRACE_ADDRESS": {"get", "workers"},
		} {
			if place == "MILLRACE_ADDRESS" {
				t.Setenv(place, list)
			}
			_, err := commandLine(t, args...)
			if err == nil || !strings.Contains(err.Error(), place) || !strings.Contains(err.Error(), fault) {
				t.Errorf("%v: %v; want %q and %q", args, err, place, fault)
			}
			t.Setenv("MILLRACE_ADDRESS", "")
		}
	}
}
