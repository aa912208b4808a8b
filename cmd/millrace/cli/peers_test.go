package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWrongPeersAreRefused: flags that cannot be right are refused before anything is opened.
func TestWrongPeersAreRefused(t *testing.T) {
	const three = "a:7787,b:7787,c:7787"
	directory := filepath.Join(t.TempDir(), "journal")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--peers", "a:7787,b:7787", "--peer-advertise", "a:7787"}, "give 3, of which one may fail"},
		{[]string{"--peers", three}, "which address of --peers"},
		{[]string{"--peers", three, "--peer-advertise", "d:7787"}, "none of --peers"},
		{[]string{"--peers", "a:7787,b:7787,a:7787", "--peer-advertise", "a:7787"}, "twice"},
		{[]string{"--peers", "a:7787,b:7787,c", "--peer-advertise", "a:7787"}, "has no port"},
		{[]string{"--peers", "a:7787,b:7787,0.0.0.0:1", "--peer-advertise", "a:7787"}, "nobody can reach"},
		{[]string{"--peer-advertise", "a:7787"}, "--peer-advertise is for schedulers with --peers"},
		{[]string{"--advertise", "a"}, "--advertise is for schedulers with --peers"},
		{[]string{"--peers", three, "--peer-advertise", "a:7787", "--journal", ""}, "name it with --journal"},
		{[]string{"--peers", three, "--peer-advertise", "a:7787", "--token", ""}, "the same token"},
		{[]string{"--peers", three, "--peer-advertise", "a:7787", "--peer-listen", "x"}, "--peer-listen"},
		{[]string{"--peers", three, "--peer-advertise", "a:7787", "--election-timeout", "1m"}, "100ms to 30s"},
		{[]string{"--peers", three, "--peer-advertise", "a:7787", "--advertise", "0.0.0.0"}, "--advertise"},
	} {
		args := append([]string{"scheduler", "--listen", "127.0.0.1:0", "--http", "", "--journal", directory, "--token", "t0ken"}, c.args...)
		if text := runLine(t, args...); !strings.Contains(text, c.want) {
			t.Errorf("%v: %s; want %q", c.args, text, c.want)
		}
	}
	if text := runLine(t, "peers", "bootstrap", directory, "--peers", three+",d:7787", "--peer-advertise", "a:7787"); !strings.Contains(text, "three or five") {
		t.Error(text)
	}
}

// TestDirectoryOfAPeerIsRefused: a scheduler alone does not begin a new cluster beside the files
// of one of several.
func TestDirectoryOfAPeerIsRefused(t *testing.T) {
	for name, want := range map[string]string{"peer.json": "belongs to one of several schedulers", "replica.json": "earlier version"} {
		directory := t.TempDir()
		if err := os.WriteFile(filepath.Join(directory, name), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		text := runLine(t, "scheduler", "--listen", "127.0.0.1:0", "--http", "", "--journal", directory, "--token", "t0ken")
		if !strings.Contains(text, want) {
			t.Error(text)
		}
	}
}
