package e2e

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
)

// installTimeout is the longest time for the packages of a registry, a compiler and a program.
const installTimeout = 15 * time.Minute

// The clients in languages that have no client library of ours are made from the .proto files that
// the binary writes, with the tools of each language.
func TestClientsFromTheProtoFilesEndWithOK(t *testing.T) {
	for language, example := range map[string]struct {
		tools    []string
		commands [][]string
		// long: only in tests at full size. Maven alone takes 40 s of processor time.
		long bool
	}{
		"node": {
			tools:    []string{"node", "npm"},
			commands: [][]string{{"npm", "ci", "--prefer-offline", "--no-audit", "--no-fund"}, {"npm", "start", "--silent"}},
		},
		"java": {
			tools:    []string{"javac", "mvn"},
			commands: [][]string{{"mvn", "--batch-mode", "--quiet", "compile", "exec:java"}},
			long:     true,
		},
	} {
		if example.long && testing.Short() {
			continue
		}
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			for _, tool := range example.tools {
				if _, err := exec.LookPath(tool); err != nil {
					t.Skipf("%s is not installed: the example in %s is not tested", tool, language)
				}
			}
			// A copy, because the tools write beside the sources.
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(filepath.Join("..", "..", "examples", language))); err != nil {
				t.Fatal(err)
			}
			for _, built := range []string{"protos", "node_modules", "target"} {
				if err := os.RemoveAll(filepath.Join(dir, built)); err != nil {
					t.Fatal(err)
				}
			}
			if out, errs, code := shared.command(t, "", "protos", filepath.Join(dir, "protos")); code != 0 {
				t.Fatalf("millrace protos: exit code %d\n%s%s", code, out, errs)
			}
			ctx, cancel := context.WithTimeout(t.Context(), installTimeout)
			defer cancel()
			var out, errs bytes.Buffer
			for _, command := range example.commands {
				out.Reset()
				cmd := exec.CommandContext(ctx, command[0], command[1:]...)
				cmd.Dir = dir
				// The Java compiler alone takes long to be compiled well.
				cmd.Env = environment(millrace.EnvSchedulerFile+"="+shared.file, "MAVEN_OPTS=-XX:TieredStopAtLevel=1")
				cmd.Stdout, cmd.Stderr = &out, &errs
				if err := cmd.Run(); err != nil {
					t.Fatalf("%s: %v\n%s%s", strings.Join(command, " "), err, out.String(), errs.String())
				}
			}
			text := strings.ReplaceAll(out.String(), "\x1b[0m", "") // Maven resets the colour of the terminal.
			lines := strings.Split(strings.TrimSpace(text), "\n")
			if last := lines[len(lines)-1]; last != "ok" {
				t.Errorf("the last line is %q in\n%s", last, out.String())
			}
		})
	}
}
