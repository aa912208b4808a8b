package exitcause

import (
	"os"
	"path/filepath"
	"testing"
)

// The counters in all environments: cgroups of both versions, in a container or not,
// and no cgroups.
func TestCountersOfTheOOMKiller(t *testing.T) {
	for name, c := range map[string]struct {
		self   string
		files  map[string]string
		kills  uint64
		shared bool
	}{
		"version 2":                 {"0::/a/b\n", map[string]string{"cg/a/b/memory.events": "low 0\noom 5\noom_kill 3\noom_group_kill 1\n"}, 3, false},
		"version 2, in a container": {"0::/a/b\n", map[string]string{"cg/memory.events": "oom_kill 4\n"}, 4, false},
		"version 1": {
			"5:cpu,cpuacct:/x\n4:memory:/a\n0::/\n",
			map[string]string{"cg/memory/a/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n", "cg/memory/memory.oom_control": "oom_kill 1\n"}, 7, false,
		},
		"version 1, in a container":   {"4:memory:/docker/1\n", map[string]string{"cg/memory/memory.oom_control": "oom_kill 2\n"}, 2, false},
		"version 1, of an old kernel": {"4:memory:/a\n", map[string]string{"cg/memory/a/memory.oom_control": "under_oom 0\n", "proc/vmstat": "oom_kill 9\n"}, 9, true},
		"no cgroup":                   {"", map[string]string{"proc/vmstat": "nr_free_pages 1\noom_kill 6\n"}, 6, true},
		"nothing":                     {"0::/a\n", nil, Unknown, false},
		"not a number":                {"0::/a\n", map[string]string{"cg/a/memory.events": "oom_kill x\n"}, Unknown, false},
	} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "proc/self/cgroup"), c.self)
		for file, text := range c.files {
			write(t, filepath.Join(dir, file), text)
		}
		if n, shared := oomKills(filepath.Join(dir, "cg"), filepath.Join(dir, "proc")); n != c.kills || shared != c.shared {
			t.Errorf("%s: %d kills, shared %v; want %d, %v", name, n, shared, c.kills, c.shared)
		}
	}
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Without a counter, the description does not deny an OOM kill.
func TestCountersNameTheCause(t *testing.T) {
	for _, c := range []struct {
		before, after uint64
		shared        bool
		out           bool
		want          string
	}{
		{3, 4, false, true, "killed by the kernel's OOM killer (SIGKILL)"},
		{3, 4, true, true, "killed by SIGKILL, by the kernel's OOM killer as it seems: meanwhile it has killed on this machine"},
		{3, 3, false, false, "killed by SIGKILL (not by the OOM killer, as far as its counter tells)"},
		{Unknown, Unknown, false, false, "killed by SIGKILL (perhaps by the OOM killer: no counter of it can be read here)"},
		{3, Unknown, false, false, "killed by SIGKILL (perhaps by the OOM killer: no counter of it can be read here)"},
	} {
		killed := Cause{ExitCode: -1, Signal: "SIGKILL"}
		killed.count(c.before, c.after, c.shared)
		if killed.String() != c.want || killed.OutOfMemory != c.out {
			t.Errorf("%+v: %s, out of memory %v", c, killed, killed.OutOfMemory)
		}
	}
}
