// Package gpu_test is Test support: tests of tools/gpu-run, which runs the GPU tests on a machine
// with GPUs. The GPU tests are replaced by programs that do what a test needs, on a machine that
// pretends to have GPUs.
package gpu_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// hangTimeout is the time after which a test counts as hanging.
const hangTimeout = time.Minute

// machine pretends to have GPUs, and has a folder with run.sh and programs.
type machine struct {
	t     *testing.T
	dir   string
	begun *os.File // the output of the groups that use begin or meet
	cmd   *exec.Cmd
	said  bytes.Buffer
}

// table is the JSON that run.sh leaves.
type table struct {
	Each    int `json:"gpus_each"`
	AtATime int `json:"at_a_time"`
	Groups  []struct{ Name, Result string }
	Rates   []struct {
		Name  string
		Value float64
		Unit  string
	}
}

const (
	// begin reports that a group has begun, and its GPUs. meet then waits until the test lets it
	// continue.
	begin = `echo "$(basename "$0") $CUDA_VISIBLE_DEVICES" >"$DIR/begun"; `
	meet  = begin + `read -r _ <"$DIR/on"; `
	// leave starts a process in a session of its own and one in a process group of its own, and
	// waits for the latter.
	leave = `setsid sleep 1000 & ` + begin + `timeout 1000 sleep 1000 | cat; `
	// rate records a figure whose name contains a comma.
	rate = `echo "rate of $(basename "$0"), on ${CUDA_VISIBLE_DEVICES-all} 1.5 GB/s" >>"$MILLRACE_RATES"; `
)

func newMachine(t *testing.T, gpus int, programs map[string]string) *machine {
	t.Helper()
	m := &machine{t: t, dir: t.TempDir()}
	script, err := os.ReadFile("../../tools/gpu-run")
	if err != nil {
		t.Fatal(err)
	}
	smi := "#!/bin/sh\ncase $* in *=index,name*) for i in $GPUS; do echo \"$i, NVIDIA H200, GPU-$i\"; done ;; *=index*) printf '%s\\n' $GPUS ;; esac"
	files := map[string]string{"run.sh": string(script), "version": "v1\n", "bin/nvidia-smi": smi}
	for name, does := range programs {
		files[name] = "#!/usr/bin/env bash\n" + does
	}
	if err := os.Mkdir(filepath.Join(m.dir, "bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(m.dir, name), []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"begun", "on"} {
		if err := syscall.Mkfifo(filepath.Join(m.dir, name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if m.begun, err = os.OpenFile(filepath.Join(m.dir, "begun"), os.O_RDWR, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.begun.Close() })
	m.cmd = exec.Command(filepath.Join(m.dir, "run.sh"))
	m.cmd.Dir, m.cmd.Stdout, m.cmd.Stderr = m.dir, &m.said, &m.said
	// Groups find DIR in their environment, and processes finds the groups by it.
	m.cmd.Env = append(os.Environ(), "DIR="+m.dir, "PATH="+m.dir+"/bin:"+os.Getenv("PATH"))
	var indices []string
	for i := range gpus {
		indices = append(indices, fmt.Sprint(i))
	}
	m.cmd.Env = append(m.cmd.Env, "GPUS="+strings.Join(indices, " "))
	return m
}

func (m *machine) start(arguments ...string) {
	m.t.Helper()
	m.cmd.Args = append(m.cmd.Args, arguments...)
	if err := m.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	hangs := time.AfterFunc(hangTimeout, func() { m.cmd.Process.Kill() }) //nolint:errcheck // it is gone then
	m.t.Cleanup(func() {
		hangs.Stop()
		for _, pid := range m.processes() {
			syscall.Kill(pid, syscall.SIGKILL) //nolint:errcheck // it is gone then
		}
		m.cmd.Wait() //nolint:errcheck // usually the test has waited
	})
}

// hear returns the messages of n groups that have begun.
func (m *machine) hear(n int) string {
	m.t.Helper()
	if err := m.begun.SetReadDeadline(time.Now().Add(hangTimeout)); err != nil {
		m.t.Fatal(err)
	}
	var heard []byte
	for bytes.Count(heard, []byte("\n")) < n {
		some := make([]byte, 4096)
		k, err := m.begun.Read(some)
		if err != nil {
			m.t.Fatalf("of %d groups that are to run at the same time we heard %q: %v", n, heard, err)
		}
		heard = append(heard, some[:k]...)
	}
	return string(heard)
}

// processes returns the processes that the script or its groups have started, in any session.
func (m *machine) processes() (found []int) {
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range all {
		environ, err := os.ReadFile(path)
		if err == nil && bytes.Contains(environ, []byte("DIR="+m.dir+"\x00")) {
			var pid int
			fmt.Sscanf(path, "/proc/%d/", &pid) //nolint:errcheck // it is what we asked for
			found = append(found, pid)
		}
	}
	return found
}

// ends waits for the script and checks its exit code and the results of its groups.
func (m *machine) ends(code int, groups string) table {
	m.t.Helper()
	if err := m.cmd.Wait(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		m.t.Fatal(err)
	}
	if got := m.cmd.ProcessState.ExitCode(); got != code {
		m.t.Errorf("exit code %d, not %d; it said\n%s", got, code, m.said.String())
	}
	if left := m.processes(); len(left) > 0 {
		m.t.Errorf("processes %d are left", left)
	}
	if _, err := os.Stat(filepath.Join(m.dir, "out/parts")); err == nil {
		m.t.Error("parts are left")
	}
	var found table
	if err := json.Unmarshal([]byte(m.file("table.json")), &found); err != nil {
		m.t.Fatal(err)
	}
	var results []string
	for _, g := range found.Groups {
		results = append(results, g.Name+" "+g.Result)
		if !strings.Contains(m.file("log.txt"), "\n===== "+g.Name+"\n") {
			m.t.Errorf("group %s is not in the log", g.Name)
		}
	}
	if got := strings.Join(results, ", "); got != groups {
		m.t.Errorf("results: %s\nwanted:  %s\n%s\n%s", got, groups, m.said.String(), m.file("log.txt"))
	}
	return found
}

func (m *machine) file(name string) string {
	m.t.Helper()
	content, err := os.ReadFile(filepath.Join(m.dir, "out", name))
	if err != nil {
		m.t.Fatalf("%v; it said\n%s", err, m.said.String())
	}
	return string(content)
}

func TestGroupsOneAfterAnother(t *testing.T) {
	t.Parallel()
	for gpus, two := range map[int]string{1: "n/a", 2: "ok", 4: "ok"} {
		m := newMachine(t, gpus, map[string]string{
			"worker_topology.test": rate, "worker_store.test": "exit 77", "gpu-peers": `echo "$OUT"`,
			"gpu-cluster": rate + "echo --- FAIL: this; exit 3", "memory_cuda.test": "setsid sleep 1000 &",
		})
		m.start("cluster", "placement", "peers", "spill", "slab")
		found := m.ends(1, "cluster failed, placement ok, peers "+two+", spill n/a, slab ok")
		if len(found.Rates) != 2 || found.Rates[0].Name != "rate of gpu-cluster, on all" || found.Rates[1].Value != 1.5 {
			t.Errorf("rates: %v", found.Rates)
		}
		if said := m.said.String(); !strings.Contains(said, ":--- FAIL: this\n") {
			t.Errorf("it does not say what failed:\n%s", said)
		}
		if log := m.file("log.txt"); two == "ok" && !strings.Contains(log, "===== peers\n"+m.dir+"/out/peers\n") {
			t.Errorf("a script group has no folder:\n%s", log)
		}
		if text := m.file("table.txt"); strings.Count(text, "NVIDIA H200") != gpus {
			t.Errorf("there are %d GPUs:\n%s", gpus, text)
		}
	}
}

func TestAllGroupsOfABundle(t *testing.T) {
	t.Parallel()
	m := newMachine(t, 1, map[string]string{"worker_topology.test": "", "gpu-bench": `[[ $1 == hosts || $1 == memory || $1 == ops ]] || exit 77`})
	m.start()
	m.ends(0, "placement ok, hosts ok, legs n/a, memory ok, nccl n/a, ops ok")
}

func TestSetsOfGPUsRunAtTheSameTime(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		gpus, each, sets int
		visible, begun   string
		spread, groups   string
	}{
		{
			2, 1, 2, "", "gpu-cluster 0 gpu-python 1", "on 1 GPU each, 2 at a time",
			"placement ok, cluster ok, topology ok, peers n/a, python ok",
		},
		{
			4, 2, 2, "", "gpu-cluster 0,1 gpu-python 2,3", "on 2 GPUs each, 2 at a time",
			"placement ok, cluster ok, topology ok, peers ok, python ok",
		},
		{
			4, 1, 4, "", "gpu-cluster 0 gpu-python 1 worker_topology.test 2 worker_topology_nvml.test 3",
			"on 1 GPU each, 4 at a time", "placement ok, cluster ok, topology ok, peers n/a, python ok",
		},
		{
			8, 1, 2, "GPU-5,GPU-7", "gpu-cluster GPU-5 gpu-python GPU-7",
			"on 1 GPU each, 2 at a time", "placement ok, cluster ok, topology ok, peers n/a, python ok",
		},
	} {
		programs := map[string]string{
			"gpu-cluster": meet + rate, "gpu-python": meet + rate, "gpu-peers": begin,
			"worker_topology.test": begin + rate, "worker_topology_nvml.test": begin + rate,
		}
		if c.sets == 4 {
			programs["worker_topology.test"], programs["worker_topology_nvml.test"] = meet+rate, meet+rate
		}
		m := newMachine(t, c.gpus, programs)
		if c.visible != "" {
			m.cmd.Env = append(m.cmd.Env, "CUDA_VISIBLE_DEVICES="+c.visible)
		}
		m.start("--each", fmt.Sprint(c.each), "placement", "cluster", "topology", "peers", "python")
		// The long groups begin first; the set that gets each of them may vary.
		got, want := strings.Fields(m.hear(c.sets)), strings.Fields(c.begun)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Fatalf("at the same time %q, not %q", got, want)
		}
		on, err := os.OpenFile(filepath.Join(m.dir, "on"), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer on.Close()
		if _, err := on.WriteString(strings.Repeat("\n", c.sets)); err != nil {
			t.Fatal(err)
		}
		found := m.ends(0, c.groups)
		if found.Each != c.each || found.AtATime != c.sets {
			t.Errorf("on %d each, %d at a time, not %d and %d", found.Each, found.AtATime, c.each, c.sets)
		}
		if head, _, _ := strings.Cut(m.file("table.txt"), "\n"); !strings.HasSuffix(head, ", "+c.spread) {
			t.Errorf("the header is %q", head)
		}
		var names []string
		for _, r := range found.Rates {
			name, _, _ := strings.Cut(strings.TrimPrefix(r.Name, "rate of "), ",")
			names = append(names, name)
		}
		if got, want := strings.Join(names, " "), "worker_topology.test gpu-cluster worker_topology_nvml.test gpu-python"; got != want {
			t.Errorf("rates of %s, in the order of the groups it is %s", got, want)
		}
	}
}

func TestALimitForTheWhole(t *testing.T) {
	t.Parallel()
	m := newMachine(t, 1, map[string]string{"worker_topology.test": rate, "gpu-cluster": leave, "gpu-python": ""})
	m.start("--limit", "4", "placement", "peers", "cluster", "python")
	if found := m.ends(1, "placement ok, peers n/a, cluster timeout, python left"); len(found.Rates) != 1 {
		t.Errorf("rates: %v", found.Rates)
	}
}

func TestEndingTheScriptEndsItsGroups(t *testing.T) {
	t.Parallel()
	for _, s := range []os.Signal{syscall.SIGTERM, os.Interrupt} {
		for each, begun := range map[string]int{"": 1, "1": 2} {
			m := newMachine(t, 2, map[string]string{"worker_store.test": rate + "exit 1", "gpu-cluster": leave, "gpu-python": leave, "gpu-sanitizer": rate})
			arguments := []string{"spill", "cluster", "racecheck"}
			groups, rates := "spill failed, cluster stopped, racecheck left", 1
			if each != "" {
				arguments, groups, rates = []string{"--each", each, "cluster", "python", "spill"}, "cluster stopped, python stopped, spill left", 0
			}
			m.start(arguments...)
			m.hear(begun)
			if err := m.cmd.Process.Signal(s); err != nil {
				t.Fatal(err)
			}
			if found := m.ends(143, groups); len(found.Rates) != rates {
				t.Errorf("%v: rates: %v", s, found.Rates)
			}
		}
	}
}

func TestWrongArgumentsAreRefused(t *testing.T) {
	t.Parallel()
	for arguments, says := range map[string]string{
		"nothing":      "run.sh: there is no group nothing; run.sh --list names them",
		"--each":       "run.sh: --each wants a number, not nothing",
		"--limit soon": "run.sh: --limit wants a number, not soon",
		"--each 3":     "run.sh: there are 2 GPUs, not 3",
		"--all":        "run.sh: --each, --limit or --list, not --all",
	} {
		m := newMachine(t, 2, nil)
		m.start(strings.Fields(arguments)...)
		if err := m.cmd.Wait(); err == nil || m.cmd.ProcessState.ExitCode() != 2 {
			t.Errorf("%s: %v", arguments, err)
		}
		if got := strings.TrimSpace(m.said.String()); got != says {
			t.Errorf("%s: %q, not %q", arguments, got, says)
		}
	}
}
