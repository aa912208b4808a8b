// Package supervisor is a Loop: it keeps the worker processes of one host alive,
// and tells the scheduler at once how one of them died.
//
// Workers are children that run the same program again. They die with the
// supervisor, and are in sessions of their own, so that a Ctrl-C in a terminal
// reaches only the supervisor, which has them leave properly, and so that nothing
// of what their tasks started outlives them.
package supervisor

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/internal/exitcause"
	"github.com/millrace/millrace/internal/orphans"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/transfer/ucx"
	"github.com/millrace/millrace/worker/loop"
)

const (
	// ChildEnv is the variable that holds the name of the worker that a child is
	// to be. A program that finds it set runs a worker; one that does not, a
	// supervisor.
	ChildEnv = "MILLRACE_WORKER_CHILD"
	// IncarnationEnv is the variable that holds the incarnation that it is to be,
	// so that the supervisor knows whose death it reports.
	IncarnationEnv = "MILLRACE_WORKER_INCARNATION"
	// RestartedEnv is set for a child that had a life before.
	RestartedEnv = "MILLRACE_WORKER_RESTARTED"
	// ExitStopped is how a child exits that the scheduler told to stop: this incarnation of the worker is over.
	ExitStopped = 10
	// ExitDevice is how a child exits whose device is lost or cannot be used.
	ExitDevice = 11
	// ExitUnusable is how a child exits that was told to use what this machine
	// lacks: it is not started again, since it would end in the same way.
	ExitUnusable = 12
	// ExitRefused is the exit code of a child that the scheduler refuses. Such a child is not started again; the same
	// holds for ExitSchedulerLost and ExitUsage.
	ExitRefused = 13
	// ExitSchedulerLost is how a child exits whose scheduler was away for too long.
	ExitSchedulerLost = 14
	// ExitUsage is how a child exits whose settings are wrong.
	ExitUsage = 15
	// ExitFault is how a child exits whose device a kernel has faulted: the device is well, what lies in its
	// memory may have been overwritten.
	ExitFault = 16

	firstBackoff   = 100 * time.Millisecond
	longestBackoff = 10 * time.Second
	// steady is how long a worker must live for its earlier deaths to be forgotten.
	steady    = 10 * time.Second
	tailBytes = 8 << 10
	// headBytes of what follows the first line of a crash are kept as well: the list of its goroutines is long.
	headBytes = 4 << 10
	// neverBegun is how many processes of a child may end in a row without having registered; then the child is given
	// up.
	neverBegun = 5
	// leavePatience is how long a child may take to leave at once.
	leavePatience = 5 * time.Second
	// silent is the default of Config.Silence. It is longer than the usual lease, after which the scheduler has given
	// the worker up.
	silent = 20 * time.Second
	// reportPatience is how long a restart waits for the report of the death.
	reportPatience = 200 * time.Millisecond
	reportTimeout  = 5 * time.Second
)

// ExitCode is what a child exits with after its worker returned err.
func ExitCode(err error) int {
	var stopped *loop.StoppedError
	var refused *loop.RefusedError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &stopped):
		return ExitStopped
	case errors.Is(err, cuda.ErrUnhealthy) && !faultOfProgram(err), errors.Is(err, cuda.ErrUnavailable):
		return ExitDevice
	case errors.Is(err, cuda.ErrUnhealthy):
		return ExitFault
	case errors.Is(err, ucx.ErrUnavailable), errors.Is(err, cuda.ErrTaken):
		return ExitUnusable
	case errors.Is(err, loop.ErrSchedulerLost):
		return ExitSchedulerLost
	case errors.As(err, &refused):
		return ExitRefused
	}
	return 1
}

// faultOfProgram says whether a kernel is to blame for a lost context, rather than
// the device. The codes are CUDA's, from an illegal address to a failed launch.
func faultOfProgram(err error) bool {
	var failed *cuda.Error
	return errors.As(err, &failed) && (failed.Code == 700 || failed.Code == 702 || failed.Code >= 710 && failed.Code <= 720)
}

// Config is what a supervisor supervises.
type Config struct {
	// Children are the workers, one process each.
	Children []Child
	// Executable and Args start a child. Default: this program with the same
	// arguments.
	Executable string
	Args       []string
	// Env is added to the environment of this process.
	Env []string
	// Scheduler is where deaths are reported; nil: nowhere. The caller closes it.
	Scheduler *grpc.ClientConn
	// Output takes what the children write, line by line, with their names.
	// Default: stderr.
	Output io.Writer
	// Secret is handed to each child through a pipe: see Link.
	Secret []byte
	// Without are variables of this process that children do not get.
	Without []string
	// DrainGrace is how long children may take to finish their running tasks and to hand over the objects that only
	// they have. After it, or when Hurry is closed, they are told to leave at once. 0: they are told to leave at once
	// immediately.
	DrainGrace time.Duration
	// Hurry, if closed, ends that grace. May be nil.
	Hurry <-chan struct{}
	// StopGrace is how long children may then take to leave. Default 5 s.
	StopGrace time.Duration
	// Silence is for how long a child may give no sign of life before it is killed, and another started. Default 20 s.
	Silence time.Duration
	Log     *slog.Logger
	// GivenUp, if set, is called when a worker will not be started again for a reason that
	// Run will return, which it does only when all have ended.
	GivenUp func(error)
	// Started, if set, is called whenever a child was started.
	Started func(name string, pid int)
}

// Run keeps the children alive until the context ends; then they leave, or are
// killed after the graces. It returns before that when all of them have left by
// themselves, or were given up; the error says why.
func Run(ctx context.Context, c Config) error {
	if c.Executable == "" {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("supervisor: find this program: %w", err)
		}
		c.Executable = self
		if c.Args == nil {
			c.Args = os.Args[1:]
		}
	}
	if c.StopGrace <= 0 {
		c.StopGrace = leavePatience
	}
	if c.Silence <= 0 {
		c.Silence = silent
	}
	if c.Output == nil {
		c.Output = os.Stderr
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	release, err := orphans.Keep()
	if err != nil {
		return fmt.Errorf("supervisor: %w", err)
	}
	defer release()
	output := &lines{to: c.Output}
	group := new(errgroup.Group)
	for _, one := range c.Children {
		w := &child{Child: one, config: &c, output: output}
		group.Go(func() error {
			err := w.keep(ctx)
			if err != nil && c.GivenUp != nil {
				c.GivenUp(err)
			}
			return err
		})
	}
	return group.Wait()
}

// child is one worker, over all its lives.
type child struct {
	Child
	config *Config
	output *lines
	// reports counts the reports on their way.
	reports sync.WaitGroup
}

// keep starts the worker again and again.
func (w *child) keep(ctx context.Context) error {
	defer w.reports.Wait()
	log := w.config.Log.With("worker", w.Name)
	deaths, unborn := 0, 0
	var lost failures
	for lives := 0; ; lives++ {
		begin := time.Now()
		l, err := w.start(lives > 0)
		if err != nil {
			return err
		}
		cause := l.live(ctx)
		switch {
		case cause.ExitCode == 0:
			log.Info("worker has left")
			return nil
		case ctx.Err() != nil:
			log.Warn("worker ended without leaving", "cause", cause.String())
			return nil
		}
		if time.Since(begin) >= steady {
			deaths = 0
		}
		// The first restart is at once: most deaths are no habit.
		var pause time.Duration
		if deaths > 0 {
			pause = min(firstBackoff<<min(deaths-1, 20), longestBackoff)
		}
		deaths++
		text := l.describe(cause)
		if cause.ExitCode == ExitDevice && w.Device != "" && lost.another(time.Now()) {
			retired := &RetiredError{Name: w.Name, Device: w.Device, Failures: deviceFailures, Cause: text}
			log.Error("worker is not started again", "error", retired)
			<-w.report(ctx, l, cause, retired.Error(), false)
			return retired
		}
		if unborn++; l.signs.registered.Load() || cause.Signal != "" {
			unborn = 0
		}
		if neverAgain(cause.ExitCode) || unborn >= neverBegun {
			unusable := &UnusableError{Name: w.Name, Cause: cmp.Or(l.farewell(), text), ExitCode: cause.ExitCode}
			if !neverAgain(cause.ExitCode) {
				unusable.Cause = fmt.Sprintf("it ended %d times before it had registered, at last: %s", unborn, text)
			}
			log.Error("worker is not started again", "error", unusable)
			<-w.report(ctx, l, cause, unusable.Error(), false)
			return unusable
		}
		log.Error("worker died", "pid", l.cmd.Process.Pid, "cause", text, "restart_in", pause)
		told := w.report(ctx, l, cause, text, true)
		timer := time.NewTimer(max(pause, reportPatience))
		if pause == 0 {
			select {
			case <-told:
			case <-timer.C:
			case <-ctx.Done():
			}
		} else {
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
		}
		timer.Stop()
		if ctx.Err() != nil {
			return nil
		}
	}
}

// neverAgain says whether a child with this exit code would end in the same way if it were started again.
func neverAgain(code int) bool { return code >= ExitUnusable && code <= ExitUsage }

// life is one process of a child; when the process ends, the child may be started again, which begins another life.
type life struct {
	child       *child
	cmd         *exec.Cmd
	incarnation string
	oom         uint64
	outputs     []*os.File
	signs       signs
	reading     sync.WaitGroup
	// silence is why it was killed: it gave no sign of life. Empty: it was not.
	silence string

	mu   sync.Mutex
	tail []byte // guarded by mu
	// head begins with the first line of a crash; guarded by mu.
	head []byte
}

func (w *child) start(again bool) (*life, error) {
	incarnation, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("supervisor: %w", err)
	}
	l := &life{child: w, incarnation: incarnation.String(), oom: exitcause.OOMKills()}
	l.cmd = exec.Command(w.config.Executable, w.config.Args...)
	inherited := slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(w.config.Without, name)
	})
	l.cmd.Env = append(slices.Concat(inherited, w.config.Env, w.Env), ChildEnv+"="+w.Name, IncarnationEnv+"="+l.incarnation)
	if again {
		l.cmd.Env = append(l.cmd.Env, RestartedEnv+"=1")
	}
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	theirs, err := l.pipes()
	defer func() {
		for _, f := range theirs {
			_ = f.Close() // the child has its own
		}
	}()
	var refused error
	if err == nil {
		refused, err = w.place(func() error { return orphans.Start(l.cmd, l.cmd.Start) })
	}
	if err != nil {
		for _, r := range append(l.outputs, l.signs.file) {
			if r != nil {
				_ = r.Close() // only read from
			}
		}
		return nil, fmt.Errorf("supervisor: start worker %s: %w", w.Name, err)
	}
	if refused != nil {
		w.config.Log.Warn("worker does not run where it should", "worker", w.Name, "error", refused)
	}
	for _, r := range l.outputs {
		l.reading.Add(1)
		go l.read(r)
	}
	l.reading.Add(1)
	go func() {
		defer l.reading.Done()
		l.signs.read()
	}()
	if w.config.Started != nil {
		w.config.Started(w.Name, l.cmd.Process.Pid)
	}
	return l, nil
}

// pipes makes those between the supervisor and a child, and returns the child's ends, also where there is an error. They
// are of our own: children of the worker that outlive it and keep them open must not keep us from seeing its end.
func (l *life) pipes() (theirs []*os.File, err error) {
	for _, to := range []*io.Writer{&l.cmd.Stdout, &l.cmd.Stderr} {
		r, writer, err := os.Pipe()
		if err != nil {
			return theirs, err
		}
		theirs, l.outputs, *to = append(theirs, writer), append(l.outputs, r), writer
	}
	secret, writer, err := os.Pipe()
	if err != nil {
		return theirs, err
	}
	theirs = append(theirs, secret)
	// It fits into the pipe.
	_, err = writer.Write(l.child.config.Secret)
	if err = errors.Join(err, writer.Close()); err != nil {
		return theirs, err
	}
	r, writer, err := os.Pipe()
	if err != nil {
		return theirs, err
	}
	l.signs.file = r
	theirs = append(theirs, writer)
	l.cmd.ExtraFiles = []*os.File{secret, writer}
	return theirs, nil
}

// live returns when the process has ended. If the context ends first, the worker
// is asked to leave, and killed if it takes too long; as it is if it is silent for too long.
func (l *life) live(ctx context.Context) exitcause.Cause {
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = l.cmd.Wait() // the state says it
		orphans.Waited(l.cmd)
	}()
	l.attend(ctx, exited)
	left := endSession(l.cmd.Process.Pid)
	// What left the session is ours since the worker, and the executors with it, ended.
	if left = append(left, orphans.End(orphans.Any, sessionPatience)...); len(left) > 0 {
		l.child.config.Log.Warn("processes of a dead worker do not end, and keep its memory", "worker", l.child.Name, "pids", left)
	}
	cause := exitcause.Of(l.cmd.ProcessState, l.oom)
	for _, r := range append(l.outputs, l.signs.file) {
		_ = r.SetReadDeadline(time.Now().Add(50 * time.Millisecond)) // pipes can
	}
	l.reading.Wait()
	cause.OutOfMemory = cause.OutOfMemory || cause.Signal == "" && l.outOfMemory()
	for _, r := range append(l.outputs, l.signs.file) {
		_ = r.Close() // only read from
	}
	return cause
}

// attend waits until the process has ended. When the context ends it asks the process to leave, and kills it if it does
// not leave in time. It also kills a process that gives no sign of life.
func (l *life) attend(ctx context.Context, exited <-chan struct{}) {
	c := l.child.config
	tell := func(s os.Signal) { _ = l.cmd.Process.Signal(s) } // it may have ended just now
	tick := c.Silence / silenceTicks
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	limit := time.NewTimer(0)
	<-limit.C
	defer limit.Stop()
	var quiet silence
	var hurry <-chan struct{}
	done, left := ctx.Done(), false
	leave := func() {
		hurry, left = nil, true
		tell(syscall.SIGINT)
		limit.Reset(c.StopGrace)
	}
	for {
		select {
		case <-exited:
			return
		case <-done:
			done = nil
			if c.DrainGrace <= 0 {
				leave()
				continue
			}
			tell(syscall.SIGTERM)
			hurry = c.Hurry
			limit.Reset(c.DrainGrace)
		case <-hurry:
			leave()
		case <-limit.C:
			if !left {
				leave()
				continue
			}
			c.Log.Warn("worker does not leave, and is killed", "worker", l.child.Name)
			tell(syscall.SIGKILL)
			<-exited
			return
		case <-ticks.C:
			if !quiet.tick(l.signs.heard.Load()) {
				continue
			}
			state := stateOf(l.cmd.Process.Pid)
			if state == tracing {
				quiet = silence{heard: quiet.heard} // a debugger has it
				continue
			}
			l.silence = fmt.Sprintf("it gave no sign of life for %v (state %s)", quiet.length(tick).Round(time.Millisecond), state)
			c.Log.Warn("worker hangs, and is killed", "worker", l.child.Name, "pid", l.cmd.Process.Pid, "why", l.silence)
			tell(syscall.SIGKILL)
			<-exited
			return
		}
	}
}

// read passes a stream on, line by line, and keeps its end.
func (l *life) read(r *os.File) {
	defer l.reading.Done()
	output := exitcause.Output{File: r}
	buffer := make([]byte, 16<<10)
	var line []byte
	for {
		n, err := output.Read(buffer)
		l.mu.Lock()
		l.keepCrash(buffer[:n])
		l.tail = append(l.tail, buffer[:n]...)
		if over := len(l.tail) - tailBytes; over > 0 {
			l.tail = append(l.tail[:0], l.tail[over:]...)
		}
		l.mu.Unlock()
		line = append(line, buffer[:n]...)
		if end := bytes.LastIndexByte(line, '\n'); end >= 0 || len(line) > len(buffer) || err != nil && len(line) > 0 {
			if end < 0 {
				end = len(line) - 1
			}
			l.child.output.write(l.child.Name, line[:end+1])
			line = append(line[:0], line[end+1:]...)
		}
		if err != nil {
			return
		}
	}
}

// keepCrash keeps the beginning of what Go says when a program crashes. The lists of goroutines behind it push it out of the
// tail. REQUIRES: mu is held.
func (l *life) keepCrash(text []byte) {
	if len(l.head) == 0 {
		at := -1
		for _, first := range crashes {
			// One that two reads tear apart is still in the tail of most.
			if i := bytes.Index(text, []byte(first)); i >= 0 && (at < 0 || i < at) && (i == 0 || text[i-1] == '\n') {
				at = i
			}
		}
		if at < 0 {
			return
		}
		text = text[at:]
	}
	l.head = append(l.head, text[:min(len(text), headBytes-len(l.head))]...)
}

// crashes begin the first line of what Go says when a program crashes.
var crashes = []string{"panic: ", "fatal error: ", "runtime: out of memory", "runtime: cannot allocate memory"}

// words are its last ones, for reports: those of a crash from their beginning.
func (l *life) words() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	tail := string(l.tail)
	if len(l.head) == 0 || strings.Contains(tail, string(l.head)) {
		return tail
	}
	if keep := tailBytes - len(l.head); len(tail) > keep {
		tail = tail[len(tail)-keep:]
	}
	return string(l.head) + "\n[...]\n" + tail
}

// outOfMemory says whether Go got no more memory. REQUIRES: all that it said has been read.
func (l *life) outOfMemory() bool {
	for _, words := range []string{"runtime: out of memory", "cannot allocate memory"} {
		if first, _, _ := bytes.Cut(l.head, []byte("\n\n")); bytes.Contains(first, []byte(words)) {
			return true
		}
	}
	return false
}

// report tells the scheduler of a death. The returned channel is closed when it
// knows, or cannot be told.
func (w *child) report(ctx context.Context, l *life, cause exitcause.Cause, text string, restarting bool) <-chan struct{} {
	told := make(chan struct{})
	if w.config.Scheduler == nil {
		close(told)
		return told
	}
	tail := l.words()
	request := &millracev1.ReportWorkerDeathRequest{
		Name: w.Name, Restarting: restarting,
		Death: &millracev1.WorkerDeath{
			Incarnation: l.incarnation, Cause: text, ExitCode: int32(cause.ExitCode), Signal: cause.Signal,
			DeviceFault: cause.ExitCode == ExitDevice || cause.ExitCode == ExitFault,
			OutOfMemory: cause.OutOfMemory, LogTail: strings.ToValidUTF8(tail, "�"), Time: timestamppb.Now(), Pid: int64(l.cmd.Process.Pid),
		},
	}
	w.reports.Add(1)
	go func() {
		defer w.reports.Done()
		defer close(told)
		ctx, cancel := context.WithTimeout(ctx, reportTimeout)
		defer cancel()
		if _, err := millracev1.NewWorkerServiceClient(w.config.Scheduler).ReportWorkerDeath(ctx, request); err != nil {
			w.config.Log.Warn("death could not be reported", "worker", w.Name, "error", err)
		}
	}()
	return told
}

// farewell is what it said itself of why it ends; empty if it said nothing.
func (l *life) farewell() string {
	tail := l.words()
	at := strings.LastIndex(tail, lastWords)
	if at < 0 {
		return ""
	}
	words, _, _ := strings.Cut(tail[at+len(lastWords):], "\n")
	return strings.TrimSpace(words)
}

// describe says how it died, with what it said itself of that.
func (l *life) describe(cause exitcause.Cause) string {
	if l.silence != "" {
		return "killed by its supervisor: " + l.silence
	}
	tail := l.words()
	text := cause.String()
	if words := l.farewell(); words != "" {
		return text + ": " + words
	}
	for line := range strings.Lines(tail) {
		for _, first := range crashes {
			if strings.HasPrefix(line, first) {
				return text + ": " + strings.TrimSpace(line)
			}
		}
	}
	return text
}
