package e2e

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// peers is three schedulers with one journal.
type peers struct {
	*restarted
	three     [3]*started
	args      [3][]string
	addresses [3]string
	pages     [3]string
}

func withPeers(t *testing.T) *peers {
	t.Helper()
	r := &peers{restarted: &restarted{env: []string{"MILLRACE_TOKEN=t0ken"}}}
	var each []string
	for i := range r.three {
		each = append(each, fixedAddress(t))
		r.addresses[i], r.pages[i] = fixedAddress(t), fixedAddress(t)
	}
	for i := range r.three {
		r.args[i] = []string{"scheduler", "--listen", r.addresses[i], "--http", r.pages[i], "--journal", filepath.Join(t.TempDir(), "journal"),
			"--peers", strings.Join(each, ","), "--peer-advertise", each[i]}
		r.start(t, i)
	}
	r.restarted.addresses = strings.Join(r.addresses[:], ",")
	return r
}

func (r *peers) start(t *testing.T, i int) {
	t.Helper()
	r.three[i] = background(t, r.env, r.args[i]...)
	within(t, "the scheduler is ready", func() bool { return strings.Contains(r.three[i].log.String(), "\nready") })
}

func (r *peers) kill(t *testing.T, i int) {
	t.Helper()
	if err := r.three[i].cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-r.three[i].ended
}

// leader returns the scheduler that leads.
func (r *peers) leader(t *testing.T) (leads int) {
	t.Helper()
	within(t, "a scheduler leads", func() bool {
		for i := range r.three {
			answer, err := http.Get("http://" + r.pages[i] + "/readyz")
			if err != nil {
				continue
			}
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				leads = i
				return true
			}
		}
		return false
	})
	return leads
}

// The machine of the leader is lost in the middle of a graph, and another scheduler goes on. Then
// that one is lost, too, after the first one is back. All that was acknowledged is there each time.
func TestAGraphOutlivesTheLeader(t *testing.T) {
	t.Parallel()
	r := withPeers(t)
	c := r.dial(t)
	r.workers(t, c)
	var data *millrace.Future
	var err error
	// On a busy machine another scheduler may lead at once, before the workers are back.
	within(t, "data is scattered", func() bool {
		data, err = c.Scatter(soon(t), strings.Repeat("s", 100_000))
		return err == nil
	})
	lock := c.Lock("held")
	if err := lock.Acquire(soon(t)); err != nil {
		t.Fatal(err)
	}
	const parts, rounds = 8, 2
	var inputs, sums []*millrace.Future
	for i := range parts {
		inputs = append(inputs, submitted(t, c, millrace.Native("array.full"), fmt.Sprint("part", i), []int{20_000}, float64(i)))
	}
	for _, f := range inputs {
		if _, err := f.Array(soon(t)); err != nil {
			t.Fatal(err)
		}
	}
	for round := range rounds {
		sleep := submitted(t, c, millrace.Native("bench.sleep"), fmt.Sprint("sleep", round), 3.0)
		within(t, "a worker sleeps", func() bool {
			task, err := c.Task(soon(t), sleep.Key())
			return err == nil && task.GetState() == millracev1.TaskState_TASK_STATE_RUNNING
		})
		sums = sums[:0]
		for i, f := range inputs {
			sums = append(sums, submitted(t, c, millrace.Python("operator:add"), fmt.Sprintf("sum%d-%d", round, i), f, inputs[(i+1)%parts]))
		}
		name := fmt.Sprint("last-", round)
		if err := c.Publish(soon(t), name, sums[0], false); err != nil {
			t.Fatal(err)
		}
		led := r.leader(t)
		r.kill(t, led)
		within(t, "the dataset is there again", func() bool {
			_, err := c.Dataset(soon(t), name)
			if err != nil && !errors.Is(err, millrace.ErrUnavailable) {
				t.Fatalf("round %d: the published dataset: %v", round, err)
			}
			return err == nil
		})
		for i, f := range sums {
			a, err := f.Array(soon(t))
			if err != nil {
				t.Fatal(err)
			}
			values, err := millrace.Slice[float64](a)
			if want := float64(i + (i+1)%parts); err != nil || len(values) != 20_000 || values[0] != want || values[19_999] != want {
				t.Errorf("round %d: sum %d has %d elements and is not %v: %v", round, i, len(values), want, err)
			}
		}
		if got, err := millrace.Get[string](soon(t), data); err != nil || len(got) != 100_000 {
			t.Errorf("round %d: of what was scattered came %d bytes, %v", round, len(got), err)
		}
		if next := r.leader(t); next == led {
			t.Errorf("round %d: the scheduler that was killed leads", round)
		}
		r.start(t, led)
	}
	if err := lock.Release(soon(t)); err != nil {
		t.Error(err)
	}
	if err := c.Shutdown(soon(t), "the test ends"); err != nil {
		t.Fatal(err)
	}
	for i, s := range r.three {
		within(t, fmt.Sprint("scheduler ", i, " ends with the cluster"), func() bool {
			select {
			case <-s.ended:
				return true
			default:
				return false
			}
		})
		if code := s.cmd.ProcessState.ExitCode(); code != 0 {
			t.Errorf("scheduler %d ends with code %d", i, code)
		}
	}
}

// roles returns what the command says of each scheduler, by the address for the others.
func (r *peers) roles(t *testing.T) map[string]string {
	t.Helper()
	cmd := exec.CommandContext(soon(t), binary, "peers", "list")
	cmd.Env = r.commandEnv()
	out, _ := cmd.Output() // Its connection may end while a scheduler does.
	found := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if words := strings.Fields(line); len(words) > 2 && words[0] != "ADDRESS" {
			found[words[0]] = words[2]
		}
	}
	return found
}

func (r *peers) commandEnv() []string {
	return environment(append(r.env, "MILLRACE_ADDRESS="+r.restarted.addresses)...)
}

// The command lists the schedulers, adds one that has not been started, and removes it. When two
// are lost and nobody leads, the third one tells.
func TestPeersAreListedWhileNobodyLeads(t *testing.T) {
	t.Parallel()
	r := withPeers(t)
	count := func(want map[string]int) func() bool {
		return func() bool {
			found := map[string]int{}
			for _, role := range r.roles(t) {
				found[role]++
			}
			return maps.Equal(found, want)
		}
	}
	all := map[string]int{"LEADER": 1, "FOLLOWER": 2}
	within(t, "two follow one", count(all))
	fourth := fixedAddress(t)
	succeeds(t, r.commandEnv(), "", "peers", "add", fourth)
	within(t, "the new one is awaited", func() bool { return r.roles(t)[fourth] == "AWAY" })
	succeeds(t, r.commandEnv(), "", "peers", "remove", fourth)
	within(t, "it is gone", count(all))
	led := r.leader(t)
	r.kill(t, led)
	r.kill(t, (led+1)%3)
	within(t, "two are away", count(map[string]int{"AWAY": 2, "FOLLOWER": 1}))
}
