package supervisor_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/leaktest"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/memory/cuda/cudatest"
	"github.com/millrace/millrace/transfer/ucx"
	"github.com/millrace/millrace/worker"
	"github.com/millrace/millrace/worker/session"
	"github.com/millrace/millrace/worker/supervisor"
	"github.com/millrace/millrace/worker/workertest"
)

// modeEnv is the variable that selects the behaviour of a child of the test.
const modeEnv = "SUPERVISOR_TEST_MODE"

// TestMain is also the main function of the children.
func TestMain(m *testing.M) {
	if name := os.Getenv(supervisor.ChildEnv); name != "" {
		os.Exit(childMain(name))
	}
	goleak.VerifyTestMain(leaktest.Patient{M: m})
}

func childMain(name string) int {
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM, syscall.SIGINT)
	fmt.Println("child", name, "is up")
	switch mode := os.Getenv(modeEnv); mode {
	case "worker":
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		return supervisor.ExitCode(worker.Run(ctx, worker.Config{
			Name: name, Incarnation: os.Getenv(supervisor.IncarnationEnv), Scheduler: os.Getenv("SUPERVISOR_TEST_SCHEDULER"),
			MemoryLimitBytes: 1 << 20, PythonCommand: []string{""},
		}))
	case "polite":
		<-terminated
		return 0
	case "patient":
		// It ignores the first request to leave (SIGTERM), and leaves on SIGINT.
		for s := range terminated {
			fmt.Println("told", s)
			if s == syscall.SIGINT {
				return 0
			}
		}
		return 1
	case "stubborn":
		select {}
	case "hangs", "stops", "steady":
		link, err := supervisor.Inherited()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Printf("secret: %q\n", link.Secret())
		link.Alive()
		if mode == "stops" && os.Getenv(supervisor.RestartedEnv) == "" {
			_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) // it cannot fail
		}
		for mode != "hangs" || os.Getenv(supervisor.RestartedEnv) != "" {
			select {
			case <-terminated:
				return 0
			case <-time.After(5 * time.Millisecond):
				link.Alive()
			}
		}
		select {}
	case "crash":
		fmt.Fprintln(os.Stderr, "fatal error: runtime: out of memory")
		fmt.Fprintln(os.Stderr, strings.Repeat("goroutine 1 [running]:\n", 1000))
		return 2
	case "refused":
		err := &session.RefusedError{Err: errors.New("the token is of another cluster")}
		supervisor.Tell(os.Stderr, err)
		return supervisor.ExitCode(err)
	case "parent", "parent of a session":
		program := exec.Command("/bin/sleep", "1000")
		program.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if mode != "parent" {
			// Neither the session nor the environment shows where the program came from.
			program.SysProcAttr, program.Env = &syscall.SysProcAttr{Setsid: true}, []string{"A=b"}
		}
		if err := program.Start(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Println("program", program.Process.Pid)
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // it cannot fail
		select {}
	case "lives":
		fmt.Printf("restarted: %q\n", os.Getenv(supervisor.RestartedEnv))
		return 3
	case "exit":
		fmt.Fprintln(os.Stderr, "no reason to live")
		return 3
	case "broken":
		err := fmt.Errorf("worker: %w", &cuda.Error{Call: "cuCtxSynchronize", Device: "GPU-1", Code: cudatest.ECCUncorrectable, Name: "CUDA_ERROR_ECC_UNCORRECTABLE"})
		supervisor.Tell(os.Stderr, err)
		return supervisor.ExitCode(err)
	case "faulted":
		err := fmt.Errorf("worker: %w", &cuda.Error{Call: "cuEventQuery", Device: "GPU-1", Code: cudatest.IllegalAddress, Name: "CUDA_ERROR_ILLEGAL_ADDRESS"})
		supervisor.Tell(os.Stderr, err)
		return supervisor.ExitCode(err)
	case "one unusable", "unusable":
		if mode != "unusable" && name != "host-1" {
			<-terminated
			return 0
		}
		err := fmt.Errorf("worker: --protocol ucx: %w: no libucp.so.0", ucx.ErrUnavailable)
		supervisor.Tell(os.Stderr, err)
		return supervisor.ExitCode(err)
	case "panic":
		panic("out of ideas")
	case "leave":
		return 0
	case "stopped":
		return supervisor.ExitCode(&session.StoppedError{Reason: "test"})
	default:
		fmt.Fprintln(os.Stderr, "unknown mode", mode)
		return 1
	}
}

// buffer is written to by the supervisor and read by the test.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

type supervised struct {
	scheduler *workertest.Scheduler
	output    *buffer
	started   chan int
	ended     chan error
	stop      context.CancelFunc
}

func children(names []string) (list []supervisor.Child) {
	for _, name := range names {
		list = append(list, supervisor.Child{Name: name})
	}
	return list
}

func start(t *testing.T, mode string, names ...string) *supervised {
	t.Helper()
	return startWith(t, mode, func(*supervisor.Config) {}, names...)
}

func startWith(t *testing.T, mode string, change func(*supervisor.Config), names ...string) *supervised {
	t.Helper()
	s := &supervised{scheduler: workertest.NewScheduler(t), output: &buffer{}, started: make(chan int, 100), ended: make(chan error, 1)}
	conn, err := grpc.NewClient("passthrough:///"+s.scheduler.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	grace := workertest.EventTimeout
	if mode == "stubborn" {
		grace = 300 * time.Millisecond
	}
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		c := supervisor.Config{
			Children: children(names), Args: []string{"-test.run=^$"}, Executable: os.Args[0], Scheduler: conn, Output: s.output, StopGrace: grace,
			Env: []string{modeEnv + "=" + mode, "SUPERVISOR_TEST_SCHEDULER=" + s.scheduler.Address},
			Log: slog.New(slog.DiscardHandler), Started: func(_ string, pid int) { s.started <- pid },
		}
		change(&c)
		s.ended <- supervisor.Run(ctx, c)
	}()
	t.Cleanup(func() {
		cancel()
		<-exited
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func wait[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(workertest.EventTimeout):
		t.Fatal("waited too long for " + what)
		panic("unreachable")
	}
}

// said waits until the output has some words.
func (s *supervised) said(t *testing.T, words string) {
	t.Helper()
	for limit := time.Now().Add(workertest.EventTimeout); !strings.Contains(s.output.String(), words); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("not %q: %s", words, s.output)
		}
	}
}

func gone(pid int) bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) }

// A worker that the scheduler restarts is started again at once, as often as that happens, without
// a report of a death. One that it retires is not.
func TestOrderedRestartIsNoDeath(t *testing.T) {
	s := start(t, "worker", "host-0")
	seen := map[string]bool{}
	for range 5 {
		session := s.scheduler.Accept(t)
		if seen[session.Registration.GetIncarnation()] {
			t.Errorf("incarnation %s registered twice", session.Registration.GetIncarnation())
		}
		seen[session.Registration.GetIncarnation()] = true
		session.Send(&workerv1.SessionResponse{Leave: &workerv1.Leave{Restart: true, Reason: "a new driver"}})
		session.Until("the farewell", func() bool { return session.Leaving })
	}
	session := s.scheduler.Accept(t)
	session.Send(&workerv1.SessionResponse{Leave: &workerv1.Leave{Reason: "too many"}})
	if err := wait(t, s.ended, "the end of the supervisor"); err != nil {
		t.Errorf("ended with %v", err)
	}
	select {
	case death := <-s.scheduler.Deaths:
		t.Errorf("reported %v", death)
	default:
	}
	if n := len(s.started); n != 6 {
		t.Errorf("%d processes were started, want 6", n)
	}
}

func TestDeathIsReportedAndTheWorkerIsBackAtOnce(t *testing.T) {
	s := start(t, "worker", "host-0")
	first := s.scheduler.Accept(t)
	pid := wait(t, s.started, "the start")
	if int(first.Registration.GetPid()) != pid {
		t.Errorf("process %d registered, %d was started", first.Registration.GetPid(), pid)
	}
	begin := time.Now()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r := wait(t, s.scheduler.Deaths, "the report")
	d := r.GetDeath()
	if r.GetName() != "host-0" || !r.GetRestarting() || d.GetSignal() != "SIGKILL" || d.GetPid() != int64(pid) ||
		d.GetIncarnation() != first.Registration.GetIncarnation() || !strings.Contains(d.GetCause(), "not by the OOM killer") {
		t.Errorf("reported %v", r)
	}
	again := s.scheduler.Accept(t)
	t.Logf("back after %v", time.Since(begin))
	if again.Registration.GetName() != "host-0" || again.Registration.GetIncarnation() == first.Registration.GetIncarnation() {
		t.Errorf("registered as %v", again.Registration)
	}
	s.stop()
	again.Until("the farewell", func() bool { return again.Leaving })
	if err := wait(t, s.ended, "the end"); err != nil {
		t.Error(err)
	}
}

func TestProgramsOfAWorkerDieWithIt(t *testing.T) {
	for _, mode := range []string{"parent", "parent of a session"} {
		s := start(t, mode, "host-0")
		wait(t, s.started, "the start")
		// The next worker is started after the programs of the first one have been killed.
		wait(t, s.started, "the restart")
		found := regexp.MustCompile(`program (\d+)`).FindStringSubmatch(s.output.String())
		if found == nil {
			t.Fatalf("the program was not started: %s", s.output)
		}
		// The kernel may still show a program that has ended.
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%s/stat", found[1]))
		if err == nil && !regexp.MustCompile(`^\d+ \(.*\) [ZX] `).Match(stat) {
			t.Errorf("%s: the program is there when the next worker is: %s", mode, stat)
		}
	}
}

func TestExitCodeAndLastLinesAreReported(t *testing.T) {
	for mode, want := range map[string]string{"exit": "exited with code 3", "panic": "exited with code 2: panic: out of ideas"} {
		s := start(t, mode, "host-0")
		// It is started again and again.
		for range 3 {
			d := wait(t, s.scheduler.Deaths, "the report").GetDeath()
			if d.GetCause() != want || !strings.Contains(d.GetLogTail(), "child host-0 is up") {
				t.Errorf("%s: reported %v", mode, d)
			}
		}
		if !strings.Contains(s.output.String(), "[host-0] child host-0 is up\n") {
			t.Errorf("output: %q", s.output.String())
		}
	}
}

func TestChildrenThatLeaveAreNotStartedAgain(t *testing.T) {
	s := start(t, "leave", "host-0", "host-1")
	if err := wait(t, s.ended, "the end"); err != nil {
		t.Error(err)
	}
	if n := len(s.started); n != 2 {
		t.Errorf("%d starts", n)
	}
}

// After the scheduler has given up an incarnation, a new incarnation of the worker is started.
func TestStoppedByTheSchedulerIsStartedAgain(t *testing.T) {
	s := start(t, "stopped", "host-0")
	for range 3 {
		wait(t, s.started, "a start")
	}
}

// A child that would end in the same way again and again is given up, and the reason is reported.
func TestChildThatNeverBeginsIsGivenUp(t *testing.T) {
	for mode, want := range map[string]string{
		"exit":    "host-0 is not started again: it ended 5 times before it had registered, at last: exited with code 3",
		"refused": "host-0 is not started again: the scheduler refuses this worker: the token is of another cluster",
	} {
		s := start(t, mode, "host-0")
		var unusable *supervisor.UnusableError
		if err := wait(t, s.ended, "the end"); !errors.As(err, &unusable) || err.Error() != want {
			t.Errorf("%s: it ended with %v, want %s", mode, err, want)
		}
		if n := len(s.started); mode == "refused" && (n != 1 || unusable.ExitCode != supervisor.ExitRefused) {
			t.Errorf("%d starts, %+v", n, unusable)
		}
	}
}

func TestChildThatHangsIsKilledAndReplaced(t *testing.T) {
	for mode, want := range map[string]string{"hangs": "(state S)", "stops": "(state T, stopped by a signal)"} {
		s := startWith(t, mode, func(c *supervisor.Config) { c.Silence, c.Secret = 10*time.Second, []byte("between us") }, "host-0")
		first := wait(t, s.started, "the start")
		d := wait(t, s.scheduler.Deaths, "the report").GetDeath()
		if d.GetPid() != int64(first) || d.GetSignal() != "SIGKILL" || !strings.HasPrefix(d.GetCause(), "killed by its supervisor: it gave no sign of life for ") ||
			!strings.HasSuffix(d.GetCause(), want) {
			t.Errorf("%s: reported %v", mode, d)
		}
		wait(t, s.started, "the next one")
		s.stop()
		if err := wait(t, s.ended, "the end"); err != nil {
			t.Error(err)
		}
		if !strings.Contains(s.output.String(), `secret: "between us"`) {
			t.Errorf("it said %s", s.output)
		}
	}
}

// A child that is being debugged, or that stood still together with its supervisor, is not killed:
// see TestSilenceIsCountedInTicks.
func TestSteadyChildLives(t *testing.T) {
	s := startWith(t, "steady", func(c *supervisor.Config) { c.Silence = 10 * time.Second }, "host-0")
	wait(t, s.started, "the start")
	select {
	case d := <-s.scheduler.Deaths:
		t.Errorf("reported %v", d)
	case <-time.After(20 * time.Second): // longer than the allowed silence
	}
}

// A supervisor that drains asks its children first. It tells them to leave at once when Hurry is
// closed or the grace is over.
func TestGraceOfDrainingEnds(t *testing.T) {
	hurry := make(chan struct{})
	s := startWith(t, "patient", func(c *supervisor.Config) { c.DrainGrace, c.Hurry = time.Hour, hurry }, "host-0")
	wait(t, s.started, "the start")
	s.said(t, "is up")
	s.stop()
	s.said(t, "told terminated")
	if len(s.ended) > 0 {
		t.Error("it has ended")
	}
	close(hurry)
	if err := wait(t, s.ended, "the end"); err != nil {
		t.Error(err)
	}
	s.said(t, "told interrupt")
}

// The beginning of a crash message contains the reason; the list of goroutines behind it is long.
func TestCrashIsToldFromItsBeginning(t *testing.T) {
	s := start(t, "crash", "host-0")
	d := wait(t, s.scheduler.Deaths, "the report").GetDeath()
	if d.GetCause() != "exited with code 2: fatal error: runtime: out of memory" || !strings.HasPrefix(d.GetLogTail(), "fatal error: runtime: out of memory\n") ||
		!d.GetOutOfMemory() {
		t.Errorf("reported %v", d)
	}
}

func TestChildrenLeaveOrAreKilled(t *testing.T) {
	for _, mode := range []string{"polite", "stubborn"} {
		s := start(t, mode, "host-0", "host-1")
		pids := []int{wait(t, s.started, "a start"), wait(t, s.started, "a start")}
		s.said(t, "host-0 is up") // a child that says this handles signals
		s.said(t, "host-1 is up")
		s.stop()
		if err := wait(t, s.ended, "the end"); err != nil {
			t.Errorf("%s: %v", mode, err)
		}
		for _, pid := range pids {
			if !gone(pid) {
				t.Errorf("%s: process %d is still there", mode, pid)
			}
		}
	}
}

func TestProgramThatIsNotThereIsAnError(t *testing.T) {
	err := supervisor.Run(t.Context(), supervisor.Config{Children: supervisor.Hosts("host", 0, 1), Executable: "/nonexistent/millrace", Log: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "/nonexistent/millrace") {
		t.Errorf("got %v", err)
	}
}

func TestADeviceThatFailsAgainAndAgainIsRetired(t *testing.T) {
	t.Setenv(modeEnv, "broken")
	scheduler := workertest.NewScheduler(t)
	conn, err := grpc.NewClient("passthrough:///"+scheduler.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	starts := 0
	err = supervisor.Run(t.Context(), supervisor.Config{
		Children: []supervisor.Child{{Name: "gpu-0", Device: "GPU-1", Start: func(start func() error) (refused, err error) {
			starts++
			return errors.New("no such processor"), start()
		}}},
		Scheduler: conn, Output: &buffer{}, Log: slog.New(slog.DiscardHandler),
	})
	var retired *supervisor.RetiredError
	if !errors.As(err, &retired) || retired.Device != "GPU-1" || !strings.Contains(retired.Cause, "CUDA_ERROR_ECC_UNCORRECTABLE") || starts != 3 {
		t.Fatalf("%d starts: %v", starts, err)
	}
	last := 0 // reports may overtake each other
	for range 3 {
		death := wait(t, scheduler.Deaths, "the report")
		if death.GetRestarting() == strings.Contains(death.GetDeath().GetCause(), "gpu-0 is retired: GPU-1 failed 3 times") {
			t.Errorf("reported %v", death)
		}
		if !death.GetRestarting() {
			last++
		}
	}
	if last != 1 {
		t.Errorf("%d of 3 deaths are the last", last)
	}
}

func TestAMissingRequirementIsNotTriedAgain(t *testing.T) {
	t.Setenv(modeEnv, "unusable")
	scheduler := workertest.NewScheduler(t)
	conn, err := grpc.NewClient("passthrough:///"+scheduler.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	starts := 0
	err = supervisor.Run(t.Context(), supervisor.Config{
		Children: supervisor.Hosts("host", 0, 1), Scheduler: conn, Output: &buffer{}, Log: slog.New(slog.DiscardHandler),
		Started: func(string, int) { starts++ },
	})
	var unusable *supervisor.UnusableError
	if !errors.As(err, &unusable) || unusable.Name != "host-0" || !strings.Contains(unusable.Cause, "no libucp.so.0") || starts != 1 {
		t.Fatalf("%d starts: %v", starts, err)
	}
	if death := wait(t, scheduler.Deaths, "the report"); death.GetRestarting() || death.GetDeath().GetExitCode() != supervisor.ExitUnusable {
		t.Errorf("it reported %v", death)
	}
}

// GivenUp is called immediately, while the other workers continue.
func TestGivingUpIsToldWhileOthersLive(t *testing.T) {
	t.Setenv(modeEnv, "one unusable")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	givenUp, ended := make(chan error, 2), make(chan error, 1)
	go func() {
		ended <- supervisor.Run(ctx, supervisor.Config{
			Children: supervisor.Hosts("host", 0, 2), Output: &buffer{}, Log: slog.New(slog.DiscardHandler), StopGrace: workertest.EventTimeout,
			GivenUp: func(err error) { givenUp <- err },
		})
	}()
	var unusable *supervisor.UnusableError
	if err := wait(t, givenUp, "being told"); !errors.As(err, &unusable) || unusable.Name != "host-1" {
		t.Errorf("told %v", err)
	}
	if n := len(ended); n != 0 {
		t.Error("all have ended")
	}
	stop()
	if err := wait(t, ended, "the end"); !errors.As(err, &unusable) {
		t.Errorf("it ended with %v", err)
	}
}

// A worker knows whether it was restarted; in that case, peers may have the memory of its
// predecessor mapped.
func TestLaterLivesKnowThatTheyAre(t *testing.T) {
	s := start(t, "lives", "host-0")
	for range 3 {
		wait(t, s.scheduler.Deaths, "the report")
	}
	said := s.output.String()
	if strings.Count(said, `restarted: ""`) != 1 || strings.Count(said, `restarted: "1"`) < 2 {
		t.Errorf("they said %s", said)
	}
}

// After a device fault, the report says so: no object may be rescued from memory that may be
// broken, or that a faulty kernel may have overwritten.
func TestDeathsByTheDevicesOwnFaultAreToldAsSuch(t *testing.T) {
	for mode, want := range map[string]bool{"exit": false, "panic": false, "broken": true, "faulted": true} {
		t.Run(mode, func(t *testing.T) {
			s := start(t, mode, "gpu-0")
			death := wait(t, s.scheduler.Deaths, "the report").GetDeath()
			if death.GetDeviceFault() != want {
				t.Errorf("reported as %v", death)
			}
		})
	}
}

func TestFaultsOfProgramsDoNotRetireADevice(t *testing.T) {
	for _, c := range []struct{ cuda, exit int }{{cudatest.IllegalAddress, supervisor.ExitFault}, {719, supervisor.ExitFault}, {cudatest.ECCUncorrectable, supervisor.ExitDevice}} {
		err := fmt.Errorf("worker: %w", &cuda.Error{Code: c.cuda})
		if got := supervisor.ExitCode(err); got != c.exit {
			t.Errorf("CUDA's %d: exit code %d, want %d", c.cuda, got, c.exit)
		}
	}
}
