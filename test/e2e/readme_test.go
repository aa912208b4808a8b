package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// shellBlocks returns the blocks of shell commands below a heading of README.md.
func shellBlocks(t *testing.T, heading string) (blocks []string) {
	t.Helper()
	page, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## "+heading+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, found := range shellBlock.FindAllStringSubmatch(section, -1) {
		blocks = append(blocks, found[1])
	}
	if len(blocks) == 0 {
		t.Fatalf("README.md has no shell commands below %q", heading)
	}
	return blocks
}

// shellBlock matches a block of shell commands, and loopbackPort the addresses in it.
var (
	shellBlock   = regexp.MustCompile("(?s)\n```sh\n(.*?)```\n")
	loopbackPort = regexp.MustCompile(`127\.0\.0\.1:[0-9]+`)
)

// runBlocks runs blocks of README.md as they stand there, at other addresses, and returns their
// output.
func runBlocks(t *testing.T, blocks ...string) string {
	t.Helper()
	block := strings.Join(blocks, "")
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		t.Fatal(err)
	}
	own, err := filepath.Abs(binary)
	if err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"millrace": own, "python": python()} {
		// The interpreter finds its packages by the path that it was called by.
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\nexec '"+target+"' \"$@\"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	addresses := map[string]string{}
	block = loopbackPort.ReplaceAllStringFunc(block, func(written string) string {
		if addresses[written] == "" {
			addresses[written] = fixedAddress(t)
		}
		return addresses[written]
	})
	cmd := exec.CommandContext(soon(t), "bash", "-euc", block+"\nwait\n")
	cmd.Dir = dir
	cmd.Env = environment("MILLRACE_PYTHON="+python(), "PATH="+bin+":"+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	err = cmd.Run()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what the block has left running
	}
	if err != nil {
		t.Fatalf("%v\n%s%s", err, out.String(), log.String())
	}
	return out.String()
}

func TestAJobGoesOnWhenItsSchedulerIsKilled(t *testing.T) {
	t.Parallel()
	if out := runBlocks(t, shellBlocks(t, "A scheduler that is killed")...); !strings.Contains(out, "2646700\n") {
		t.Errorf("the job has printed\n%s", out)
	}
}

func TestAJobGoesOnWhenTheLeaderIsKilled(t *testing.T) {
	t.Parallel()
	job := shellBlocks(t, "A scheduler that is killed")[0]
	if out := runBlocks(t, append([]string{job}, shellBlocks(t, "Three schedulers, of which one may fail")...)...); !strings.Contains(out, "2646700\n") {
		t.Errorf("the job has printed\n%s", out)
	}
}
