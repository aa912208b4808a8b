// Package supervisor is a Loop: it keeps the worker processes of one host alive, and reports the
// death of a worker and its cause to the scheduler immediately.
//
// Workers are child processes that run the same program again. They die with the supervisor.
// Each is in a session of its own, for two reasons: a Ctrl-C in a terminal reaches only the
// supervisor, which lets the workers leave in an orderly way; and when a worker ends, all programs
// that its tasks started can be found and ended.
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
	workerv1 "github.com/millrace/millrace/gen/go/millrace/worker/v1"
	"github.com/millrace/millrace/internal/descriptors"
	"github.com/millrace/millrace/internal/exitcause"
	"github.com/millrace/millrace/internal/orphans"
	"github.com/millrace/millrace/memory/cuda"
	"github.com/millrace/millrace/transfer/ucx"
	"github.com/millrace/millrace/worker/session"
)

const (
	// ChildEnv is the variable that holds the name of the worker that a child runs.
	// A program runs a worker if the variable is set, and a supervisor if it is not.
	ChildEnv = "MILLRACE_WORKER_CHILD"
	// IncarnationEnv is the variable that holds the incarnation of the child's worker, so that the
	// supervisor can report which incarnation died.
	IncarnationEnv = "MILLRACE_WORKER_INCARNATION"
	// RestartedEnv is set for a child whose worker had an earlier process.
	RestartedEnv = "MILLRACE_WORKER_RESTARTED"
	// ExitStopped is the exit code of a child that the scheduler told to stop, since this
	// incarnation of the worker is over.
	ExitStopped = 10
	// ExitDevice is the exit code of a child whose device is lost or cannot be used.
	ExitDevice = 11
	// ExitUnusable is the exit code of a child that was configured to use something that this
	// machine lacks. It is not started again, since it would end in the same way.
	ExitUnusable = 12
	// ExitRefused is the exit code of a child that the scheduler refuses.
	// Such a child is not started again; the same holds for ExitSchedulerLost and ExitUsage.
	ExitRefused = 13
	// ExitSchedulerLost is the exit code of a child whose scheduler was away for too long.
	ExitSchedulerLost = 14
	// ExitUsage is the exit code of a child with wrong settings.
	ExitUsage = 15
	// ExitFault is the exit code of a child whose GPU context was destroyed by a faulty kernel.
	// The device works, but the contents of its memory may have been overwritten.
	ExitFault = 16
	// ExitRestart is the exit code of a child that has left so that it is started again: an
	// operator ordered it.
	ExitRestart = 17

	// firstBackoff and longestBackoff bound the time between two starts of a child that dies.
	firstBackoff   = 100 * time.Millisecond
	longestBackoff = 10 * time.Second
	// steady is how long a worker must live until its earlier deaths no longer delay a restart.
	steady = 10 * time.Second
	// tailBytes is the amount of output that is kept for the report of a death.
	tailBytes = 8 << 10
	// outputTimeout is how long the remaining output of a child that has ended is read: processes
	// that outlive it may keep its pipes open.
	outputTimeout = 50 * time.Millisecond
	// outputBuffer is the size of the buffer for output.
	outputBuffer = 16 << 10
	// headBytes is the amount of output that is kept from the first line of a crash on.
	// It is kept in addition to the tail, because the list of goroutines that follows is long.
	headBytes = 4 << 10
	// neverBegun is the number of processes of a child, in a row, that end without having
	// registered, after which the child is given up. A process that a signal ended starts the count
	// anew.
	neverBegun = 5
	// leaveTimeout is how long a child may take to leave immediately, without draining.
	leaveTimeout = 5 * time.Second
	// silent is the default of Config.Silence. It is longer than the usual lease, after which the
	// scheduler has given the worker up.
	silent = 20 * time.Second
	// reportWait is how long a restart waits for the report of the death, and reportTimeout how
	// long the report may take altogether.
	reportWait    = 200 * time.Millisecond
	reportTimeout = 5 * time.Second
)

// ExitCode returns the exit code of a child whose worker returned err.
func ExitCode(err error) int {
	var stopped *session.StoppedError
	var refused *session.RefusedError
	var restart *session.RestartError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &stopped):
		return ExitStopped
	case errors.As(err, &restart):
		return ExitRestart
	case errors.Is(err, cuda.ErrUnhealthy) && !faultOfProgram(err), errors.Is(err, cuda.ErrUnavailable):
		return ExitDevice
	case errors.Is(err, cuda.ErrUnhealthy):
		return ExitFault
	case errors.Is(err, ucx.ErrUnavailable), errors.Is(err, cuda.ErrTaken):
		return ExitUnusable
	case errors.Is(err, session.ErrSchedulerLost):
		return ExitSchedulerLost
	case errors.As(err, &refused):
		return ExitRefused
	}
	return 1
}

// faultOfProgram reports whether a kernel, and not the device, caused the loss of a context.
// The codes are CUDA's, from an illegal address to a failed launch.
func faultOfProgram(err error) bool {
	var failed *cuda.Error
	return errors.As(err, &failed) && (failed.Code == 700 || failed.Code == 702 || failed.Code >= 710 && failed.Code <= 720)
}

// Config is the configuration of a supervisor.
type Config struct {
	// Children are the workers, one process each.
	Children []Child
	// Executable and Args start a child. Default: this program with the same arguments.
	Executable string
	Args       []string
	// Env is added to the environment of this process.
	Env []string
	// Scheduler is the connection for reports of deaths; nil: deaths are not reported.
	// The caller closes it.
	Scheduler grpc.ClientConnInterface
	// Output receives the output of the children, line by line, with their names. Default: stderr.
	Output io.Writer
	// Secret is passed to each child through a pipe: see Link.
	Secret []byte
	// Without are the environment variables of this process that children do not get.
	Without []string
	// DrainGrace is how long children may take to finish their running tasks and to hand over the
	// objects that only they have. After this time, or when Hurry is closed, they are told to leave
	// without draining. 0: they are told so at once.
	DrainGrace time.Duration
	// Hurry, if closed, ends that grace. May be nil.
	Hurry <-chan struct{}
	// StopGrace is how long children may then take to leave. Default 5 s.
	StopGrace time.Duration
	// Silence is how long a child may give no sign of life before it is killed and replaced.
	// Default 20 s.
	Silence time.Duration
	Log     *slog.Logger
	// GivenUp, if set, is called when a worker will not be started again, with the reason.
	// Run returns the same reason, but only when all workers have ended.
	GivenUp func(error)
	// Started, if set, is called whenever a child was started.
	Started func(name string, pid int)
}

// Run keeps the children alive until the context ends; then they leave, or are killed after the
// graces. It returns earlier when all of them have left by themselves or were given up;
// the error is the reason.
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
		c.StopGrace = leaveTimeout
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

// child is one worker, over all its processes.
type child struct {
	Child
	config *Config
	output *lines
	// reports counts the reports that are being sent.
	reports sync.WaitGroup
}

// keep starts the worker's process, and starts it again after each death.
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
		case cause.ExitCode == 0 || cause.ExitCode == ExitRestart && ctx.Err() != nil:
			log.Info("worker has left")
			return nil
		case ctx.Err() != nil:
			log.Warn("worker ended without leaving", "cause", cause.String())
			return nil
		case cause.ExitCode == ExitRestart:
			log.Info("worker is started again: an operator restarts it")
			deaths, unborn = 0, 0
			continue
		}
		if time.Since(begin) >= steady {
			deaths = 0
		}
		// The first restart is immediate: most deaths do not repeat.
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
		timer := time.NewTimer(max(pause, reportWait))
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

// neverAgain reports whether a child with this exit code would end in the same way if it were
// started again.
func neverAgain(code int) bool { return code >= ExitUnusable && code <= ExitUsage }

// life is one process of a child. When the process ends, the child may be started again,
// which begins another life.
type life struct {
	child       *child
	cmd         *exec.Cmd
	incarnation string
	oom         uint64
	outputs     []*os.File
	signs       signs
	reading     sync.WaitGroup
	// called are the attempts whose functions were running when the process ended; callsKnown:
	// there are no others.
	called     []*workerv1.AttemptRef
	callsKnown bool
	// silence is set if the process was killed because it gave no sign of life.
	// It describes the silence.
	silence string

	mu   sync.Mutex
	tail []byte // guarded by mu
	// head is the beginning of a crash message, from its first line on; guarded by mu.
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
		for _, r := range l.outputs {
			_ = r.Close() // only read from
		}
		if l.signs.conn != nil {
			_ = l.signs.conn.Close() // nothing was sent
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

// pipes makes the pipes between the supervisor and a child, and returns the child's ends,
// also together with an error. The supervisor makes them itself, instead of os/exec: then
// descendants of the worker that outlive it and keep the pipes open cannot delay the detection of
// its end.
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
	// The secret fits into the pipe, so the write does not block.
	_, err = writer.Write(l.child.config.Secret)
	if err = errors.Join(err, writer.Close()); err != nil {
		return theirs, err
	}
	conn, signing, err := descriptors.Pair()
	if err != nil {
		return theirs, err
	}
	l.signs.conn = conn
	theirs = append(theirs, signing)
	l.cmd.ExtraFiles = []*os.File{secret, signing}
	return theirs, nil
}

// live returns when the process has ended. If the context ends first, the worker is asked to leave,
// and killed if it takes too long. The worker is also killed if it is silent for too long.
func (l *life) live(ctx context.Context) exitcause.Cause {
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = l.cmd.Wait() // the process state holds the result
		orphans.Waited(l.cmd)
	}()
	l.attend(ctx, exited)
	left := endSession(l.cmd.Process.Pid)
	// Processes that left the session became our children when the worker and its executors ended.
	if left = append(left, orphans.End(orphans.Any, sessionTimeout)...); len(left) > 0 {
		l.child.config.Log.Warn("processes of a dead worker do not end, and keep its memory", "worker", l.child.Name, "pids", left)
	}
	cause := exitcause.Of(l.cmd.ProcessState, l.oom)
	limit := time.Now().Add(outputTimeout)
	for _, r := range l.outputs {
		_ = r.SetReadDeadline(limit) // pipes support deadlines
	}
	_ = l.signs.conn.SetReadDeadline(limit) // sockets do, too
	l.reading.Wait()
	cause.OutOfMemory = cause.OutOfMemory || cause.Signal == "" && l.outOfMemory()
	for _, r := range l.outputs {
		_ = r.Close() // only read from
	}
	l.called, l.callsKnown = l.signs.close()
	return cause
}

// attend waits until the process has ended. When the context ends it asks the process to leave,
// and kills it if it does not leave in time. It also kills a process that gives no sign of life.
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
			if state == stoppedByDebugger {
				quiet = silence{heard: quiet.heard} // a debugger has stopped it
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

// read forwards an output stream line by line, and keeps its end.
func (l *life) read(r *os.File) {
	defer l.reading.Done()
	output := exitcause.Output{File: r}
	buffer := make([]byte, outputBuffer)
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

// keepCrash keeps the beginning of the message that Go prints when a program crashes.
// The lists of goroutines that follow would push it out of the tail. REQUIRES: mu is held.
func (l *life) keepCrash(text []byte) {
	if len(l.head) == 0 {
		at := -1
		for _, first := range crashes {
			// A line that is split between two reads is not found. In most cases it is still in the
			// tail.
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

// crashes are the beginnings of the first line that Go prints when a program crashes.
var crashes = []string{"panic: ", "fatal error: ", "runtime: out of memory", "runtime: cannot allocate memory"}

// words returns the last output for reports. If the process crashed, it includes the beginning of
// the crash message.
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

// outOfMemory reports whether the Go runtime failed to get memory. REQUIRES: all output has been
// read.
func (l *life) outOfMemory() bool {
	for _, words := range []string{"runtime: out of memory", "cannot allocate memory"} {
		if first, _, _ := bytes.Cut(l.head, []byte("\n\n")); bytes.Contains(first, []byte(words)) {
			return true
		}
	}
	return false
}

// report sends a report of a death to the scheduler. The returned channel is closed when the
// scheduler has received the report, or cannot be reached.
func (w *child) report(ctx context.Context, l *life, cause exitcause.Cause, text string, restarting bool) <-chan struct{} {
	told := make(chan struct{})
	if w.config.Scheduler == nil {
		close(told)
		return told
	}
	tail := l.words()
	request := &workerv1.ReportWorkerDeathRequest{
		Name: w.Name, Restarting: restarting, Called: l.called, CallsKnown: l.callsKnown,
		Death: &millracev1.WorkerDeath{
			Incarnation: l.incarnation, Pid: int64(l.cmd.Process.Pid), EndTime: timestamppb.Now(), Cause: text,
			OutOfMemory: cause.OutOfMemory, DeviceFault: cause.ExitCode == ExitDevice || cause.ExitCode == ExitFault,
			LogTail: strings.ToValidUTF8(tail, "�"),
		},
	}
	if cause.Signal != "" {
		request.Death.End = &millracev1.WorkerDeath_Signal{Signal: cause.Signal}
	} else {
		request.Death.End = &millracev1.WorkerDeath_ExitCode{ExitCode: int32(cause.ExitCode)}
	}
	w.reports.Add(1)
	go func() {
		defer w.reports.Done()
		defer close(told)
		ctx, cancel := context.WithTimeout(ctx, reportTimeout)
		defer cancel()
		if _, err := workerv1.NewWorkerServiceClient(w.config.Scheduler).ReportWorkerDeath(ctx, request); err != nil {
			w.config.Log.Warn("death could not be reported", "worker", w.Name, "error", err)
		}
	}()
	return told
}

// farewell returns the reason that the process itself gave for its end; empty if it gave none.
func (l *life) farewell() string {
	tail := l.words()
	at := strings.LastIndex(tail, lastWords)
	if at < 0 {
		return ""
	}
	words, _, _ := strings.Cut(tail[at+len(lastWords):], "\n")
	return strings.TrimSpace(words)
}

// describe returns a sentence on how the process died, with its own message about that.
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
