package executor_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/worker/executor"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/workertest"
)

// plugin returns a plugin that notes its calls in a file: "setup NAME", "teardown NAME". A plugin
// whose name is in the environment variable BROKEN fails.
func (p *pools) plugin(t *testing.T, name string, version uint64) executor.Plugin {
	t.Helper()
	module := `import os, builtins
def setup(path, name):
    if os.path.exists(path + "." + name):
        raise ValueError(name + " is broken")
    open(path, "a").write(f"setup {name}\n")
    builtins.has = getattr(builtins, "has", 0) + 1
def teardown(path, name):
    open(path, "a").write(f"teardown {name}\n")
    builtins.has -= 1
def has():
    import builtins
    return getattr(builtins, "has", 0)
`
	if err := os.WriteFile(filepath.Join(p.modules, "noting.py"), []byte(module), 0o600); err != nil {
		t.Fatal(err)
	}
	arguments := &millracev1.Arguments{Positional: []*millracev1.Value{workertest.ValueOf(p.notes()), workertest.ValueOf(name)}}
	out, err := executor.PluginFrom(&millracev1.Plugin{
		Name: name, Version: version, Setup: &millracev1.FunctionCall{Name: "noting:setup", Arguments: arguments},
		Teardown: &millracev1.FunctionCall{Name: "noting:teardown", Arguments: arguments},
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// SetPlugins makes a list the plugins of all processes, and returns the calls that failed.
func (p *pools) SetPlugins(ctx context.Context, list []executor.Plugin) map[uint64][]executor.Returned {
	p.WantPlugins(list)
	return p.ApplyPlugins(ctx)
}

func (p *pools) notes() string { return filepath.Join(p.modules, "notes") }

func (p *pools) noted(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(p.notes())
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(strings.TrimSpace(string(b)), "\n", ", ")
}

func TestPluginsOfPresentAndLaterProcesses(t *testing.T) {
	p := newPools(t, 0)
	a, b := p.plugin(t, "a", 1), p.plugin(t, "b", 2)
	if failed := p.SetPlugins(t.Context(), []executor.Plugin{a}); len(failed) != 0 { // there is no process yet
		t.Fatalf("failures: %v", failed)
	}
	if got := p.noted(t); got != "setup a" {
		t.Errorf("the first process: %s", got)
	}
	p.SetPlugins(t.Context(), []executor.Plugin{a, b})
	p.SetPlugins(t.Context(), []executor.Plugin{b})
	if got := p.noted(t); got != "setup a, setup b, teardown a" {
		t.Errorf("changes: %s", got)
	}
	if n, err := p.Restart(t.Context(), "python"); n != 1 || err != nil {
		t.Errorf("a restart of one process: %d, %v", n, err)
	}
	if got := p.call(t, "python", "noting:has").GetIntValue(); got != 1 {
		t.Errorf("the next process has %d plugins", got)
	}
	if got := p.noted(t); got != "setup a, setup b, teardown a, setup b" {
		t.Errorf("the next process: %s", got)
	}
	// echo has plugins of its own kind only.
	if got := only(t, p, "echo/pid").GetError(); got != nil {
		t.Errorf("another kind: %v", got)
	}
}

// A plugin that fails is reported, and no run begins in a process that starts without it.
func TestFailingPlugin(t *testing.T) {
	p := newPools(t, 0)
	bad := p.plugin(t, "bad", 1)
	if err := os.WriteFile(p.notes()+".bad", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	failed := p.SetPlugins(t.Context(), []executor.Plugin{bad})
	if len(failed[1]) != 1 || !strings.Contains(failed[1][0].Error.GetMessage(), "bad is broken") {
		t.Fatalf("failures: %v", failed)
	}
	p.Start("python", 0, &executor.Run{Ref: attemptOne(77), Op: &millracev1.Op{Kind: millracev1.OpKind_OP_KIND_PYTHON_IMPORT, Name: "os:getpid"}})
	out := <-p.results
	if out.Outcome != lifecycle.ExecutorDied || !strings.Contains(out.Error.GetMessage(), `plugin "bad" failed: ValueError: bad is broken; unregister it`) {
		t.Errorf("a run: %+v", out)
	}
	p.SetPlugins(t.Context(), nil)
	if got := p.call(t, "python", "noting:has").GetIntValue(); got != 0 {
		t.Errorf("without the plugin, %d are there", got)
	}
	// A process that runs already keeps running.
	failed = p.SetPlugins(t.Context(), []executor.Plugin{p.plugin(t, "bad", 2)})
	if len(failed[2]) != 1 || failed[2][0].PID == 0 {
		t.Errorf("in a process that runs: %v", failed)
	}
}

// A plugin that ends its process is a failure like any other.
func TestPluginThatEndsTheProcess(t *testing.T) {
	p := newPools(t, 0)
	deadly, err := executor.PluginFrom(&millracev1.Plugin{Name: "deadly", Version: 1, Setup: &millracev1.FunctionCall{Name: "echo/die"}})
	if err != nil {
		t.Fatal(err)
	}
	if failed := p.SetPlugins(t.Context(), []executor.Plugin{deadly}); len(failed[1]) != 1 || failed[1][0].Error.GetReason() != "EXECUTOR_DIED" {
		t.Errorf("failures: %v", failed)
	}
}

// gatedPlugin returns a plugin whose setup has begun when the returned file can be opened for
// writing, and returns when that file is closed.
func (p *pools) gatedPlugin(t *testing.T, version uint64) (executor.Plugin, string) {
	t.Helper()
	gate := filepath.Join(t.TempDir(), "gate")
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(p.modules, "gated.py"), []byte("def setup(path):\n    open(path).read()\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := executor.PluginFrom(&millracev1.Plugin{Name: "gated", Version: version, Setup: &millracev1.FunctionCall{
		Name: "gated:setup", Arguments: &millracev1.Arguments{Positional: []*millracev1.Value{workertest.ValueOf(gate)}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return out, gate
}

// A setup that does not return ends when its plugin is unregistered, in a process that runs and in
// one that starts. Another process takes its place, with the plugins that are left.
func TestUnregisteringEndsASetup(t *testing.T) {
	for _, running := range []bool{true, false} {
		t.Run(fmt.Sprintf("running=%v", running), func(t *testing.T) {
			p := newPools(t, 0)
			a := p.plugin(t, "a", 1)
			gated, gate := p.gatedPlugin(t, 2)
			if running {
				p.SetPlugins(t.Context(), []executor.Plugin{a})
			}
			p.WantPlugins([]executor.Plugin{a, gated})
			failed := make(chan map[uint64][]executor.Returned, 1)
			go func() { failed <- p.ApplyPlugins(t.Context()) }()
			open, err := os.OpenFile(gate, os.O_WRONLY, 0) // returns when the setup has begun
			if err != nil {
				t.Fatal(err)
			}
			defer open.Close()
			if left := p.SetPlugins(t.Context(), []executor.Plugin{a}); len(left) != 0 {
				t.Errorf("failures without the plugin: %v", left)
			}
			got := <-failed
			if running && (len(got[2]) != 1 || !strings.Contains(got[2][0].Error.GetMessage(), `plugin "gated" was unregistered while its setup ran`)) {
				t.Errorf("failures with the plugin: %v", got)
			}
			if n := p.call(t, "python", "noting:has").GetIntValue(); n != 1 {
				t.Errorf("the next process has %d plugins, want the one that is left", n)
			}
			if got := p.noted(t); got != "setup a, setup a" {
				t.Errorf("the calls: %s", got)
			}
		})
	}
}

// A setup that takes longer than it may has failed, and its process is replaced.
func TestPluginsHaveALimitOfTime(t *testing.T) {
	p := newPools(t, 0, func(c *executor.Config) { c.PluginTimeout = 100 * time.Millisecond })
	p.call(t, "python", "os:getpid") // the process runs
	gated, _ := p.gatedPlugin(t, 1)  // its setup does not return
	failed := p.SetPlugins(t.Context(), []executor.Plugin{gated})
	if len(failed[1]) != 1 || failed[1][0].Error.GetReason() != "TIMEOUT" || !strings.Contains(failed[1][0].Error.GetMessage(), `plugin "gated" did not return within 100ms`) {
		t.Errorf("failures: %v", failed)
	}
	p.WantPlugins(nil)
	if pid := p.call(t, "python", "os:getpid").GetIntValue(); pid == int64(failed[1][0].PID) {
		t.Errorf("process %d, whose setup has not returned, takes further calls", pid)
	}
}

// A restart begins running runs again. It blames none of them, and counts as no death.
func TestRestartBeginsRunsAgain(t *testing.T) {
	p := newPools(t, 1)
	gate := filepath.Join(t.TempDir(), "gate")
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	p.Start("echo", 0, &executor.Run{Ref: attemptOne(1), Op: &millracev1.Op{Kind: millracev1.OpKind_OP_KIND_EXEC, Name: "echo/wait"}, Arguments: workertest.Arguments("", gate)})
	for range 4 { // more often than a run may meet deaths
		open, err := os.OpenFile(gate, os.O_WRONLY, 0) // returns when the run has begun
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Restart(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
		_ = open.Close() // nothing was written
	}
	open, err := os.OpenFile(gate, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = open.Close() // the end of the file ends the run
	if out := <-p.results; out.Outcome != lifecycle.Succeeded {
		t.Errorf("the run: %+v", out)
	}
	if n, last := p.Deaths(); n != 0 {
		t.Errorf("%d deaths: %s", n, last)
	}
	if _, err := p.Restart(t.Context(), "lisp"); err == nil {
		t.Error("a kind that does not exist was restarted")
	}
}

// A call that is in progress when its process is restarted ends with an error.
func TestRestartEndsCalls(t *testing.T) {
	p := newPools(t, 0)
	gate := filepath.Join(t.TempDir(), "gate")
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	module := "def hold(path):\n    open(path).read()\n"
	if err := os.WriteFile(filepath.Join(p.modules, "holding.py"), []byte(module), 0o600); err != nil {
		t.Fatal(err)
	}
	ended := make(chan *millracev1.FunctionResult, 1)
	go func() {
		r, err := (&executor.Service{Pools: p.Pools}).RunFunction(context.Background(), &millracev1.RunFunctionRequest{
			Name: "holding:hold", Arguments: &millracev1.Arguments{Positional: []*millracev1.Value{workertest.ValueOf(gate)}},
		})
		if err != nil {
			t.Error(err)
		}
		ended <- r.GetResults()[0]
	}()
	open, err := os.OpenFile(gate, os.O_WRONLY, 0) // returns when the function reads
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if _, err := p.Restart(t.Context(), "python"); err != nil {
		t.Fatal(err)
	}
	if got := (<-ended).GetError(); got.GetReason() != "EXECUTOR_DIED" {
		t.Errorf("the call: %v", got)
	}
}
