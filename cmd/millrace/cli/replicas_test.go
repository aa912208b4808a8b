package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWrongReplicasAreRefused: flags that cannot be right are refused before anything is opened.
func TestWrongReplicasAreRefused(t *testing.T) {
	const three = "a:7787,b:7787,c:7787"
	directory := filepath.Join(t.TempDir(), "journal")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--replicas", "a:7787,b:7787", "--replica", "a:7787"}, "give 3, of which one may fail"},
		{[]string{"--replicas", three + ",d:7787", "--replica", "a:7787"}, "4 addresses"},
		{[]string{"--replicas", three}, "which address of --replicas"},
		{[]string{"--replicas", three, "--replica", "d:7787"}, "none of --replicas"},
		{[]string{"--replicas", "a:7787,b:7787,a:7787", "--replica", "a:7787"}, "twice"},
		{[]string{"--replicas", "a:7787,b:7787,c", "--replica", "a:7787"}, "has no port"},
		{[]string{"--replicas", "a:7787,b:7787,0.0.0.0:1", "--replica", "a:7787"}, "nobody can reach"},
		{[]string{"--replica", "a:7787"}, "--replica is for schedulers with --replicas"},
		{[]string{"--advertise", "a"}, "--advertise is for schedulers with --replicas"},
		{[]string{"--replicas", three, "--replica", "a:7787", "--journal", ""}, "name it with --journal"},
		{[]string{"--replicas", three, "--replica", "a:7787", "--token", ""}, "the same token"},
		{[]string{"--replicas", three, "--replica", "a:7787", "--replica-listen", "x"}, "--replica-listen"},
		{[]string{"--replicas", three, "--replica", "a:7787", "--advertise", "0.0.0.0"}, "--advertise"},
	} {
		args := append([]string{"scheduler", "--listen", "127.0.0.1:0", "--http", "", "--journal", directory, "--token", "t0ken"}, c.args...)
		if text := runLine(t, args...); !strings.Contains(text, c.want) {
			t.Errorf("%v: %s; want %q", c.args, text, c.want)
		}
	}
}

// TestDirectoryOfAReplicaIsRefused: a scheduler alone does not begin a new cluster beside the files
// of one of several.
func TestDirectoryOfAReplicaIsRefused(t *testing.T) {
	directory := t.TempDir()
	if err := os.WriteFile(filepath.Join(directory, "replica.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	text := runLine(t, "scheduler", "--listen", "127.0.0.1:0", "--http", "", "--journal", directory, "--token", "t0ken")
	if !strings.Contains(text, "belongs to one of several schedulers") {
		t.Error(text)
	}
}
