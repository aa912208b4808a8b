package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	millrace "github.com/millrace/millrace/clients/go"
	"github.com/millrace/millrace/internal/leader/leadertest"
)

// withAddresses starts a scheduler with a journal at the second address of a list. A follower that
// names it is at the first address, and nobody is at the third one.
func withAddresses(t *testing.T) (scheduler *restarted, third string) {
	t.Helper()
	follower := leadertest.NewFollower(t, "")
	scheduler, third = withJournal(t), fixedAddress(t)
	follower.Name(scheduler.address)
	scheduler.addresses = strings.Join([]string{follower.Address, scheduler.address, third}, ",")
	return scheduler, third
}

// A scheduler is killed in the middle of a graph, and the next one goes on at another address of
// the list, as another leader does. The follower still names the one that is gone.
func TestAGraphGoesOnAtAnotherAddress(t *testing.T) {
	t.Parallel()
	scheduler, third := withAddresses(t)
	c := scheduler.dial(t)
	scheduler.workers(t, c)
	lock := c.Lock("held")
	if err := lock.Acquire(soon(t)); err != nil {
		t.Fatal(err)
	}
	const parts = 8
	var inputs, sums []*millrace.Future
	for i := range parts {
		inputs = append(inputs, submitted(t, c, millrace.Native("array.full"), fmt.Sprint("part", i), []int{20_000}, float64(i)))
	}
	for _, f := range inputs {
		if _, err := f.Array(soon(t)); err != nil {
			t.Fatal(err)
		}
	}
	data, err := c.Scatter(soon(t), strings.Repeat("s", 100_000))
	if err != nil {
		t.Fatal(err)
	}
	running := occupied(t, c, "busy")
	for i, f := range inputs {
		sums = append(sums, submitted(t, c, millrace.Python("operator:add"), fmt.Sprint("sum", i), f, inputs[(i+1)%parts]))
	}

	scheduler.address = third
	scheduler.restart(t)

	for i, f := range sums {
		a, err := f.Array(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		values, err := millrace.Slice[float64](a)
		if want := float64(i + (i+1)%parts); err != nil || len(values) != 20_000 || values[0] != want || values[19_999] != want {
			t.Errorf("sum %d has %d elements and is not %v: %v", i, len(values), want, err)
		}
	}
	if got, err := millrace.Get[string](soon(t), data); err != nil || len(got) != 100_000 {
		t.Errorf("of what was scattered came %d bytes, %v", len(got), err)
	}
	for i := range parts {
		firstAttempt(t, c, fmt.Sprint("part", i))
	}
	running.ends(t)
	firstAttempt(t, c, running.Key())
	if err := lock.Release(soon(t)); err != nil {
		t.Error(err)
	}
}

// Commands of operators reach the leader whichever addresses come first, and wherever they are
// given.
func TestCommandsFindTheLeader(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t, "--workers", "2", "--slots", "1", "--memory-limit", "64MiB")
	follower := leadertest.NewFollower(t, cluster.Address)
	dead, lost := fixedAddress(t), leadertest.NewFollower(t, "")
	env := func(addresses ...string) []string {
		return environment("MILLRACE_TOKEN="+cluster.Token, "MILLRACE_ADDRESS="+strings.Join(addresses, ","))
	}
	afterFollower, afterDead := env(follower.Address, dead, cluster.Address), env(dead, lost.Address, cluster.Address)
	for _, args := range [][]string{
		{"status"}, {"get", "workers"}, {"drain", "host-0", "--wait"}, {"drain", "host-0", "--undo"}, {"rebalance", "--dry-run"}, {"rebalance"},
		{"top", "--once"}, {"events"}, {"memory"}, {"submit", "-f", "-", "--wait"}, {"get", "graphs"},
	} {
		for _, env := range [][]string{afterFollower, afterDead} {
			succeeds(t, env, graphFile, args...)
		}
	}
	text := succeeds(t, afterFollower, "", "status")
	if !slices.Contains(strings.Fields(text), cluster.Address) || !slices.Contains(strings.Fields(text), cluster.HTTP) {
		t.Errorf("status does not name %s and %s:\n%s", cluster.Address, cluster.HTTP, text)
	}

	list := strings.Join([]string{follower.Address, cluster.Address}, ",")
	file := filepath.Join(t.TempDir(), "several.json")
	text = fmt.Sprintf(`{"address": %q, "token": %q}`, list, cluster.Token)
	config := filepath.Join(t.TempDir(), "millrace.yaml")
	if err := errors.Join(os.WriteFile(file, []byte(text), 0o600), os.WriteFile(config, fmt.Appendf(nil, "address: %q\ntoken: %q\n", list, cluster.Token), 0o600)); err != nil {
		t.Fatal(err)
	}
	contexts := environment("XDG_CONFIG_HOME=" + t.TempDir())
	succeeds(t, contexts, "", "context", "add", "three", "--address", list, "--token", cluster.Token)
	succeeds(t, contexts, "", "--context", "three", "status")
	succeeds(t, environment(), "", "--scheduler-file", file, "status")
	succeeds(t, environment(), "", "--config", config, "status")

	// A person with grpcurl, as in docs/running.md.
	cmd := exec.CommandContext(soon(t), grpcurlPath(t), "-plaintext", "-format-error", "-H", "authorization: Bearer "+cluster.Token, follower.Address, "millrace.v1.SchedulerService/GetClusterInfo")
	out, err := cmd.CombinedOutput()
	if said := strings.Join(strings.Fields(string(out)), " "); err == nil || !strings.Contains(said, `"NOT_LEADER"`) || !strings.Contains(said, fmt.Sprintf(`"leader": %q`, cluster.Address)) {
		t.Errorf("grpcurl: %v\n%s", err, out)
	}
}

// succeeds runs the binary and returns its output.
func succeeds(t *testing.T, env []string, stdin string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(soon(t), binary, args...)
	cmd.Env, cmd.Stdin = env, strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("millrace %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
