package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	millrace "github.com/millrace/millrace/clients/go"
)

const schedulerUnit = "millrace-scheduler@.service"

// units is deploy/systemd, at other addresses.
type units struct {
	*restarted
	state   string
	written map[string]string
}

// value returns the text behind a name in a file of deploy/systemd.
func (u *units) value(t *testing.T, file, name, instance string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../deploy/systemd", file))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+"="); ok {
			value = strings.NewReplacer("%i", instance, "%S", u.state).Replace(value)
			return loopbackPort.ReplaceAllStringFunc(value, func(written string) string {
				if u.written[written] == "" {
					u.written[written] = fixedAddress(t)
				}
				return u.written[written]
			})
		}
	}
	t.Fatalf("%s has no %s", file, name)
	return ""
}

// start runs the command of a unit.
func (u *units) start(t *testing.T, file, instance string, args ...string) *started {
	t.Helper()
	line := strings.Fields(u.value(t, file, "ExecStart", instance))
	if line[0] != "/usr/bin/millrace" {
		t.Fatalf("%s runs %s", file, line[0])
	}
	return background(t, u.env, append(line[1:], args...)...)
}

// Each scheduler has a directory of its own: its unit has a user of its own, and systemd makes that
// user the owner of all that is in the state directory.
func TestUnitsShareNoDirectory(t *testing.T) {
	t.Parallel()
	u := &units{state: "/state", written: map[string]string{}}
	for _, instance := range []string{"1", "2", "3"} {
		own := filepath.Join(u.state, u.value(t, schedulerUnit, "StateDirectory", instance))
		line := strings.Fields(u.value(t, schedulerUnit, "ExecStart", instance))
		if i := slices.Index(line, "--journal"); i < 0 || line[i+1] != own || !strings.Contains(own, instance) {
			t.Errorf("scheduler %s has the state directory %s, and runs %q", instance, own, line)
		}
	}
}

// A scheduler that ends with an exit code that no restart can repair is not started again.
func TestUnitsDoNotRestartInVain(t *testing.T) {
	t.Parallel()
	u := &units{written: map[string]string{}}
	codes := strings.Fields(u.value(t, schedulerUnit, "RestartPreventExitStatus", ""))
	for name, args := range map[string][]string{
		"the flags are wrong":                    {"--peers", "127.0.0.1:1"},
		"an earlier version wrote the directory": nil,
	} {
		directory, own := t.TempDir(), fixedAddress(t)
		if err := os.WriteFile(filepath.Join(directory, "replica.json"), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		if args == nil {
			args = []string{"--peers", strings.Join([]string{own, fixedAddress(t), fixedAddress(t)}, ",")}
		}
		args = append([]string{"scheduler", "--listen", "127.0.0.1:0", "--http", "", "--token", "t0ken", "--journal", directory, "--peer-advertise", own}, args...)
		s := background(t, nil, args...)
		within(t, "the scheduler ends", (&peer{started: s}).isEnded)
		if code := fmt.Sprint(s.cmd.ProcessState.ExitCode()); !slices.Contains(codes, code) {
			t.Errorf("%s: the scheduler ends with code %s, and the unit restarts it except after %v:\n%s", name, code, codes, s.log.String())
		}
	}
	if !slices.Contains(codes, fmt.Sprint(unusableDirectory)) {
		t.Errorf("a scheduler that was removed is started again: the unit excludes %v", codes)
	}
}

// The units of deploy/systemd make a cluster of three schedulers, whose addresses fit together. It
// goes on without the one that leads, and the unit brings that back.
func TestUnitsOfThreeSchedulers(t *testing.T) {
	t.Parallel()
	u := &units{restarted: &restarted{}, state: t.TempDir(), written: map[string]string{}}
	for _, name := range []string{"MILLRACE_TOKEN", "MILLRACE_PEERS", "MILLRACE_ADDRESS"} {
		u.env = append(u.env, name+"="+u.value(t, "cluster.env", name, ""))
	}
	schedulers := map[string]*started{}
	for i := range 3 {
		instance := fmt.Sprint(i + 1)
		schedulers[instance] = u.start(t, schedulerUnit, instance)
	}
	u.start(t, "millrace-worker.service", "", "--workers", "1", "--memory-limit", "64MiB", "--python", python())
	c, err := millrace.Dial(soon(t), millrace.WithAddress(u.value(t, "cluster.env", "MILLRACE_ADDRESS", "")), millrace.WithToken(u.value(t, "cluster.env", "MILLRACE_TOKEN", "")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // its scheduler may be gone
	for round := range 2 {
		sum, err := millrace.Get[float64](soon(t), submitted(t, c, millrace.Python("operator:add"), fmt.Sprint("sum", round), 1.5, float64(round)))
		if want := 1.5 + float64(round); err != nil || sum != want {
			t.Errorf("the sum is %v, not %v: %v", sum, want, err)
		}
		if round > 0 {
			continue
		}
		led := ""
		within(t, "a scheduler leads", func() bool {
			for instance := range schedulers {
				line := strings.Fields(u.value(t, schedulerUnit, "ExecStart", instance))
				for i, word := range line {
					if word != "--http" {
						continue
					}
					answer, err := http.Get("http://" + line[i+1] + "/readyz")
					if err != nil {
						continue
					}
					_ = answer.Body.Close()
					if answer.StatusCode == http.StatusOK {
						led = instance
					}
				}
			}
			return led != ""
		})
		if err := schedulers[led].cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-schedulers[led].ended
		schedulers[led] = u.start(t, schedulerUnit, led)
	}
}
