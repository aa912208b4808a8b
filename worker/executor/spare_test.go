package executor_test

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/ids"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/host"
	"github.com/millrace/millrace/worker/executor"
	"github.com/millrace/millrace/worker/lifecycle"
	"github.com/millrace/millrace/worker/store"
	"github.com/millrace/millrace/worker/tasklog"
	"github.com/millrace/millrace/worker/workertest"
)

// pools are Python and echo executors over a slab in host memory: one process of each kind,
// and spare processes.
type pools struct {
	*executor.Pools
	results chan executor.Result
	tasks   int
	// modules is a directory in Python's module search path.
	modules string
}

func newPools(t *testing.T, spares int, change ...func(*executor.Config)) *pools {
	t.Helper()
	echo, err := buildEcho()
	if err != nil {
		t.Fatal(err)
	}
	python, err := filepath.Abs(cmp.Or(os.Getenv("MILLRACE_PYTHON"), filepath.Join("..", "..", ".venv", "bin", "python")))
	if err != nil {
		t.Fatal(err)
	}
	slab, err := host.NewSlab(16<<20, memory.Identity{Nonce: 7})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	objects, err := store.New(slab, log)
	if err != nil {
		t.Fatal(err)
	}
	p := &pools{results: make(chan executor.Result, 100), modules: t.TempDir()}
	c := executor.Config{
		Worker: "w", Commands: map[string][]string{"python": {python, "-m", "millrace.executor"}, "echo": {echo}}, Processes: 1, Spares: spares,
		Env: []string{"PYTHONPATH=" + p.modules}, Scratch: t.TempDir(), Store: objects, Logs: new(tasklog.Logs), Log: log,
		MemoryWait: workertest.EventTimeout, ReadyTimeout: workertest.EventTimeout,
		Done: func(results []executor.Result) {
			for _, x := range results {
				if !x.Called { // a slow machine reports the call before the end
					p.results <- x
				}
			}
		},
	}
	for _, f := range change {
		f(&c)
	}
	p.Pools, err = executor.New(c)
	if err != nil {
		t.Fatal(err)
	}
	p.Registered(1, 1<<10)
	t.Cleanup(func() {
		p.Close()
		objects.Close()
		if left := p.processes(); len(left) > 0 {
			t.Errorf("%v outlive their pools", left) // with all processes that they started
		}
		_ = slab.Close() // nothing was kept
	})
	return p
}

// call runs a Python function, given by its import path, or an operation of echo.
func (p *pools) call(t *testing.T, kind, name string, arguments ...any) *millracev1.Value {
	t.Helper()
	p.begin(t, 0, kind, name, arguments...)
	out := p.result(t)
	if out.Error != nil {
		t.Fatalf("%s: %v", name, out.Error)
	}
	return workertest.Decode(t, out.Inline)
}

// begin hands such a call to a slot.
func (p *pools) begin(t *testing.T, slot int, kind, name string, arguments ...any) {
	t.Helper()
	var a millracev1.Arguments
	for _, v := range arguments {
		a.Positional = append(a.Positional, workertest.ValueOf(v))
	}
	b, err := proto.Marshal(&a)
	if err != nil {
		t.Fatal(err)
	}
	op := &millracev1.Op{Kind: millracev1.OpKind_OP_KIND_PYTHON_IMPORT, Name: name}
	if kind != "python" {
		op = &millracev1.Op{Kind: millracev1.OpKind_OP_KIND_EXEC, Name: kind + "/" + name}
	}
	p.tasks++
	p.Start(kind, slot, &executor.Run{Ref: lifecycle.Ref{Task: ids.TaskID(p.tasks), Attempt: 1}, Op: op, Arguments: b})
}

// result returns the next result.
func (p *pools) result(t *testing.T) executor.Result {
	t.Helper()
	select {
	case out := <-p.results:
		return out
	case <-time.After(workertest.EventTimeout):
		t.Fatal("there is no result")
		return executor.Result{}
	}
}

// pid returns the pid of the slot's Python process.
func (p *pools) pid(t *testing.T) int {
	t.Helper()
	return int(p.call(t, "python", "os:getpid").GetIntValue())
}

// processes returns the pids of all living processes of these pools. It recognises them by the
// PYTHONPATH in their environment.
func (p *pools) processes() (found []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		environment, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ")) // on an error it has ended, or belongs to another user
		if slices.Contains(strings.Split(string(environment), "\x00"), "PYTHONPATH="+p.modules) {
			found = append(found, pid)
		}
	}
	return found
}

// other waits for a Python process other than the given ones, and returns its pid.
func (p *pools) other(t *testing.T, but ...int) int {
	t.Helper()
	for limit := time.Now().Add(workertest.EventTimeout); time.Now().Before(limit); time.Sleep(time.Millisecond) {
		for _, pid := range p.processes() {
			command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // on an error it has ended
			if strings.Contains(string(command), "millrace.executor") && !slices.Contains(but, pid) {
				return pid
			}
		}
	}
	t.Fatalf("there is no process besides %v", but)
	return 0
}

// end kills a process, and returns when it has ended.
func (p *pools) end(t *testing.T, pid int) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for limit := time.Now().Add(workertest.EventTimeout); slices.Contains(p.processes(), pid); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("%d does not end", pid)
		}
	}
}

func TestSpareTakesThePlaceOfADeadProcess(t *testing.T) {
	p := newPools(t, 1)
	if n := len(p.processes()); n != 0 {
		t.Errorf("%d processes before the first use", n)
	}
	dead := []int{p.pid(t)}
	for range 3 {
		spare := p.other(t, dead...)
		p.end(t, dead[len(dead)-1])
		if now := p.pid(t); now != spare {
			t.Fatalf("process %d went on, and %d was there before the death", now, spare)
		}
		dead = append(dead, spare)
	}
	if n, last := p.Deaths(); n != 3 {
		t.Errorf("%d deaths are counted, at last: %s", n, last)
	}
}

func TestSpareThatDiesIsReplacedAndCountsNowhere(t *testing.T) {
	p := newPools(t, 1)
	working := p.pid(t)
	seen := []int{working}
	for range 3 {
		spare := p.other(t, seen...)
		p.end(t, spare)
		seen = append(seen, spare)
	}
	p.other(t, seen...)
	if now := p.pid(t); now != working {
		t.Errorf("process %d went on, not %d, which lives", now, working)
	}
	if n, last := p.Deaths(); n != 0 {
		t.Errorf("%d deaths are counted: %s", n, last)
	}
}

func TestNoSparesIfThereAreToBeNone(t *testing.T) {
	p := newPools(t, 0)
	first := p.pid(t)
	before := p.processes()
	p.end(t, first)
	if now := p.pid(t); slices.Contains(before, now) {
		t.Errorf("process %d went on, and was there before the death", now)
	}
}

// TestProgramsThatDoNotKnowSparesHaveNone: a program that does not support spare processes gets
// none, since its process would do all the expensive work at its start.
func TestProgramsThatDoNotKnowSparesHaveNone(t *testing.T) {
	p := newPools(t, 1)
	p.call(t, "echo", "upper", "x")
	// A spare process of echo would have been requested before that of Python, and exist by now.
	p.other(t, p.pid(t))
	if left := p.processes(); len(left) != 3 {
		t.Errorf("processes %v, not one of echo and two of Python", left)
	}
}

// TestSpareLoadsWhatTasksMadeOthersLoad: a spare process loads the modules that tasks made other
// processes load. If loading a module kills the process, this costs one spare process,
// not each further one.
func TestSpareLoadsWhatTasksMadeOthersLoad(t *testing.T) {
	p := newPools(t, 1)
	write := func(name, text string) (file string) {
		t.Helper()
		file = filepath.Join(p.modules, name)
		text = fmt.Sprintf("import os\nwith open(%q, 'a+') as f:\n    f.write(f'{os.getpid()} ')\n    f.seek(0)\n    n = len(f.read().split())\n%s\ndef f(): return n\n", file, text)
		if err := os.WriteFile(file+".py", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	// until waits until n processes have loaded a module, and returns their pids.
	until := func(file string, n int) (pids []int) {
		t.Helper()
		for limit := time.Now().Add(workertest.EventTimeout); time.Now().Before(limit); time.Sleep(time.Millisecond) {
			text, _ := os.ReadFile(file) // on an error there is none yet
			words := strings.Fields(string(text))
			if len(words) < n || !strings.HasSuffix(string(text), " ") {
				continue
			}
			for _, w := range words {
				pid, err := strconv.Atoi(w)
				if err != nil {
					t.Fatal(err)
				}
				pids = append(pids, pid)
			}
			return pids
		}
		t.Fatalf("%s was not loaded %d times", file, n)
		return nil
	}
	good, fatal := write("good", ""), write("fatal", "if n > 1: os._exit(3)")
	first := p.pid(t)
	second := p.other(t, first)
	p.call(t, "python", "good:f")
	p.end(t, first)
	if now := p.pid(t); now != second {
		t.Fatalf("process %d went on, not %d", now, second)
	}
	third := p.other(t, first, second)
	if got := until(good, 2); got[1] != third {
		t.Fatalf("loaded by %v, and the spare process is %d", got, third)
	}
	p.call(t, "python", "fatal:f")
	p.end(t, second)
	if now := p.pid(t); now != third {
		t.Fatalf("process %d went on, not %d", now, third)
	}
	// The next spare process dies of loading the module, and the one after that does not load it.
	gone := append(until(fatal, 2), first, second, third)
	last := p.other(t, gone...)
	p.end(t, third)
	if now := p.pid(t); now != last {
		t.Errorf("process %d went on, not %d", now, last)
	}
}
