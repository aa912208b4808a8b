package gpu_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// comparison is a folder with bench/gpu/compare.py and two versions of the programs.
type comparison struct {
	t   *testing.T
	dir string
}

// newComparison makes programs that are shell scripts: the tests and the benchmarks of each side.
func newComparison(t *testing.T, tests, benches map[string]string) *comparison {
	t.Helper()
	c := &comparison{t, t.TempDir()}
	script, err := os.ReadFile("../../bench/gpu/compare.py")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"compare.py": string(script)}
	for _, side := range []string{"old", "new"} {
		files[side+"/version"] = side + "1\n"
		files[side+"/transfer_ipc.test"] = "#!/bin/sh\necho " + side + " $2 >>$DIR/order\n" + tests[side]
		files[side+"/millrace"] = "#!/bin/sh\necho " + side + " $* >>$DIR/order\n" + benches[side]
	}
	for name, content := range files {
		path := filepath.Join(c.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// run runs compare.py and checks its exit code. It returns its output.
func (c *comparison) run(code int, arguments ...string) string {
	c.t.Helper()
	cmd := exec.Command("python3", append([]string{filepath.Join(c.dir, "compare.py")}, arguments...)...)
	cmd.Env = append(os.Environ(), "DIR="+c.dir, "OUT="+filepath.Join(c.dir, "out"), "CUDA_VISIBLE_DEVICES=4,6")
	said, _ := cmd.CombinedOutput() // the exit code is checked below
	if got := cmd.ProcessState.ExitCode(); got != code {
		c.t.Errorf("exit code %d, not %d; it said\n%s", got, code, said)
	}
	return string(said)
}

func (c *comparison) file(name string) string {
	c.t.Helper()
	content, err := os.ReadFile(filepath.Join(c.dir, name))
	if err != nil {
		c.t.Fatal(err)
	}
	return string(content)
}

// counted is a shell script that writes the next of some values as a figure.
func counted(name, unit string, values ...string) string {
	return "f=$(dirname $0)/n; n=$(($(cat $f 2>/dev/null || echo 0) + 1)); echo $n >$f\n" +
		"set -- " + strings.Join(values, " ") + "; shift $((n - 1)); echo '" + name + "' $1 " + unit + " >>$MILLRACE_RATES\n"
}

func TestVersionsRunInTurns(t *testing.T) {
	t.Parallel()
	bench := `echo '{"bench": "alltoall", "rows": [{"bytes": 1048576, "us_p50": 12, "seen_gb_per_s": 5, "samples": 3}]}'`
	c := newComparison(t, map[string]string{
		"old": counted("fetch 1 x 4 KiB: p50", "us", "10", "12", "11"),
		"new": counted("fetch 1 x 4 KiB: p50", "us", "30", "20", "22"),
	}, map[string]string{"old": bench, "new": bench})
	said := c.run(0, "--rounds", "3", "fetch", "exchange")
	one := "old ^TestGPUFetchFigures$\nnew ^TestGPUFetchFigures$\n"
	for _, side := range []string{"old", "new"} {
		one += side + " bench alltoall --sizes 1MiB,256MiB --repetitions 10 --memory cuda --workers 2 --json\n"
	}
	if got := c.file("order"); got != strings.Repeat(one, 3) {
		t.Errorf("the order is\n%s", got)
	}
	for _, want := range []string{
		"old old1, new new1; 3 rounds, 2 GPUs",
		"fetch 1 x 4 KiB: p50 us 11 22 2.000 10-12 20-30 worse",
		"alltoall of 1024 KiB: us_p50 us 12 12 1.000 12-12 12-12",
		"alltoall of 1024 KiB: seen_gb_per_s GB/s 5 5 1.000 5-5 5-5",
	} {
		if !strings.Contains(strings.Join(strings.Fields(said), " "), want) {
			t.Errorf("%q is not in\n%s", want, said)
		}
	}
	if c.file("out/table.txt") != said {
		t.Errorf("table.txt differs from\n%s", said)
	}
	var found struct {
		Rounds int
		New    map[string][]float64
	}
	if err := json.Unmarshal([]byte(c.file("out/table.json")), &found); err != nil {
		t.Fatal(err)
	}
	if found.Rounds != 3 || !slices.Equal(found.New["fetch 1 x 4 KiB: p50 [us]"], []float64{30, 20, 22}) {
		t.Errorf("%+v", found)
	}
}

// A program that fails or prints no result is named, and the others are compared all the same.
func TestAComparisonNamesWhatFailed(t *testing.T) {
	t.Parallel()
	c := newComparison(t, map[string]string{
		"old": "echo all at once 7 GB/s >>$MILLRACE_RATES", "new": "echo all at once 9 GB/s >>$MILLRACE_RATES",
	}, map[string]string{"old": "echo no JSON", "new": "echo out of memory >&2; exit 3"})
	said := c.run(1, "--rounds", "2", "alltoall", "broadcast")
	for _, want := range []string{"old broadcast: Expecting value", "new broadcast: Command", "all at once", "better"} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not in\n%s", want, said)
		}
	}
	if log := c.file("out/log.txt"); !strings.Contains(log, "===== new broadcast\nout of memory\n") || !strings.Contains(log, "no JSON") {
		t.Errorf("the log is\n%s", log)
	}
	if said := c.run(2, "nothing"); !strings.Contains(said, "there is no group nothing") {
		t.Errorf("of an unknown group it said\n%s", said)
	}
}

// A limit of time leaves the table of the rounds that are finished. Nothing of a group that takes
// too long is left.
func TestAComparisonEndsInTime(t *testing.T) {
	t.Parallel()
	c := newComparison(t, map[string]string{"old": "echo all 7 us >>$MILLRACE_RATES; sleep 1000 & sleep 1000", "new": "echo all 8 us >>$MILLRACE_RATES"}, nil)
	said := c.run(1, "--rounds", "9", "--limit", "2", "chain")
	if !strings.Contains(said, "old chain: Command") || !strings.Contains(said, "1 of 9 rounds fit into 2 s") {
		t.Errorf("it said\n%s", said)
	}
	m := &machine{dir: c.dir}
	if left := m.processes(); len(left) > 0 {
		t.Errorf("processes %d are left", left)
	}
}
