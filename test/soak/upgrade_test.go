//go:build upgrade

package soak

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// olderVersion is what the older program says of itself.
const olderVersion = "v0.0.0-older"

// older builds the program of the commit in the file older-version, out of the history of this
// repository.
func older(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("older-version")
	if err != nil {
		t.Fatal(err)
	}
	commit := strings.TrimSpace(string(text))
	if out, err := exec.Command("git", "cat-file", "-e", commit+"^{commit}").CombinedOutput(); err != nil {
		t.Fatalf("the commit %s of test/soak/older-version is not in this clone, %v: %s: run `git fetch --unshallow`, or `git fetch origin %s`", commit, err, out, commit)
	}
	source := t.TempDir()
	archive := exec.Command("git", "-C", "../..", "archive", "--format=tar", commit)
	extract := exec.Command("tar", "-x", "-C", source)
	var said bytes.Buffer
	archive.Stderr, extract.Stderr = &said, &said
	if extract.Stdin, err = archive.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := extract.Start(); err != nil {
		t.Fatal(err)
	}
	if err := archive.Run(); err != nil {
		t.Fatalf("%v: %v: %s", archive, err, &said)
	}
	if err := extract.Wait(); err != nil {
		t.Fatalf("%v: %v: %s", extract, err, &said)
	}
	binary := filepath.Join(t.TempDir(), "millrace")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false",
		"-ldflags=-w -extldflags=-Wl,-z,lazy -X github.com/millrace/millrace/internal/version.version="+olderVersion, "-o", binary, "./cmd/millrace")
	build.Dir = source
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the commit %s: %v: %s", commit, err, out)
	}
	return binary
}

// upgraded is a cluster in which each process is an older program, until it is replaced.
type upgraded struct {
	*cluster
	traffic *traffic
	// supervisors are those of the workers.
	supervisors []*process
	// binaries are those of both programs, the older one first.
	binaries [2]string
}

// replace stops processes in good order, one after the other, and starts the program of now in
// their place. Requests of each kind go on while a process is away, and when it is back.
func (u *upgraded) replace(processes []*process) {
	u.t.Helper()
	for _, p := range processes {
		u.leader() // All follow it, so one may be stopped.
		u.until("all workers are there", u.complete)
		if code := p.stop(syscall.SIGTERM); code != 0 {
			u.t.Errorf("%s ends with code %d", p.name, code)
		}
		u.traffic.goesOn()
		p.binary = u.binaries[1]
		p.start()
		u.leader()
		u.until("all workers are there", u.complete)
		u.traffic.goesOn()
	}
}

// complete reports whether all workers of all supervisors are active.
func (u *upgraded) complete(ctx context.Context) bool {
	return len(u.workers(ctx)) == workers*len(u.supervisors)
}

// check checks which programs run, and that commands of both understand the cluster.
func (u *upgraded) check(oldSchedulers, oldWorkers int) {
	u.t.Helper()
	ctx, cancel := soon()
	defer cancel()
	is := func(version string, count *int) {
		if version == olderVersion {
			*count++
		}
	}
	u.leader()
	out, err := u.client.Scheduler().ListPeers(ctx, &millracev1.ListPeersRequest{})
	if err != nil {
		u.t.Fatal(err)
	}
	var schedulersFound, workersFound int
	for _, p := range out.GetPeers() {
		is(p.GetVersion(), &schedulersFound)
	}
	for _, w := range u.workers(ctx) {
		is(w.GetVersion(), &workersFound)
	}
	if schedulersFound != oldSchedulers || workersFound != oldWorkers {
		u.t.Errorf("%d schedulers and %d workers are older programs, not %d and %d", schedulersFound, workersFound, oldSchedulers, oldWorkers)
	}
	for _, binary := range u.binaries {
		for _, command := range []string{"status", "get workers", "get graphs", "peers list"} {
			line := append(strings.Fields(command), "--address", u.addresses())
			cmd := exec.CommandContext(ctx, binary, line...)
			if u.lab != nil {
				cmd = u.lab.Host(workerHost).Command(ctx, binary, line...)
			}
			cmd.Env = append(os.Environ(), "MILLRACE_SCHEDULER_FILE=", "MILLRACE_ADDRESS=", "MILLRACE_TOKEN="+token)
			if out, err := cmd.CombinedOutput(); err != nil {
				u.t.Errorf("%s %s: %v: %s", binary, command, err, out)
			}
		}
	}
}

// TestUpgrade replaces an older program by this one in all processes of a cluster, one after the
// other, while clients work. Workers go first, or schedulers do, so each version of the one works
// with each of the other. Nothing that clients were told is forgotten, and no task is lost.
func TestUpgrade(t *testing.T) {
	old := older(t)
	now := os.Getenv("MILLRACE_BIN")
	if now == "" {
		t.Fatal("MILLRACE_BIN is not set: run `make upgrade`")
	}
	for name, workersFirst := range map[string]bool{"workers first": true, "schedulers first": false} {
		t.Run(name, func(t *testing.T) {
			u := &upgraded{cluster: startClusterOf(t, old), binaries: [2]string{old, now}}
			u.supervisors = []*process{u.supervisor}
			// With two supervisors the workers of one take over what those of the other have.
			second := &process{c: u.cluster, name: "more-workers", host: workerHost, binary: old, line: slices.Clone(u.supervisor.line)}
			second.line[slices.Index(second.line, "--name")+1] = "v"
			second.start()
			u.supervisors = append(u.supervisors, second)
			u.until("all workers are there", u.complete)
			u.traffic = startTraffic(u.cluster, 20*time.Millisecond)
			u.traffic.goesOn()
			u.check(schedulers, 2*workers)
			if workersFirst {
				u.replace(u.supervisors)
				u.check(schedulers, 0)
				u.replace(u.all)
			} else {
				u.replace(u.all)
				u.check(0, 2*workers)
				u.replace(u.supervisors)
			}
			u.check(0, 0)
			u.traffic.end()
			if u.traffic.lost > 0 {
				t.Errorf("%d scattered values are lost, and each worker has left in good order", u.traffic.lost)
			}
			t.Logf("acknowledged: %v; unanswered: %d; longest times between two: %v", u.traffic.acknowledged, u.traffic.unanswered, u.traffic.longest)
		})
	}
}
