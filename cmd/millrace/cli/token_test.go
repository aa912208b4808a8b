package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/roletoken"
)

// The token of readers is derived from that of the operator, wherever that is.
func TestTheTokenOfReadersIsPrinted(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	for _, name := range []string{"MILLRACE_ADDRESS", "MILLRACE_TOKEN", "MILLRACE_SCHEDULER_FILE", "MILLRACE_CONTEXT"} {
		t.Setenv(name, "")
	}
	write := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	want := roletoken.Reader("secret") + "\n"
	for _, args := range [][]string{
		{"--token", "secret"},
		{"--token-file", write("token", "secret\n")},
		{"--scheduler-file", write("file.json", `{"address": "127.0.0.1:1", "token": "secret"}`)},
	} {
		if out, err := commandLine(t, append([]string{"token", "read-only"}, args...)...); err != nil || out != want {
			t.Errorf("%v: %q, %v", args, out, err)
		}
	}
	for fault, args := range map[string][]string{
		"only tokens of the role read-only": {"operator", "--token", "secret"},
		"--scheduler-file":                  {"read-only"},
	} {
		_, err := commandLine(t, append([]string{"token"}, args...)...)
		if exitCode(err) != exitUsage || !strings.Contains(err.Error(), fault) {
			t.Errorf("%v: %v", args, err)
		}
	}
}
