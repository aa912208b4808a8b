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
	// ExitStopped is how a child exits that the scheduler told to stop: it is not
	// started again.
	ExitStopped = 10
	// ExitDevice is how a child exits whose device is lost or cannot be used.
	ExitDevice = 11
	// ExitUnusable is how a child exits that was told to use what this machine
	// lacks: it is not started again, since it would end in the same way.
	ExitUnusable = 12

	firstBackoff   = 100 * time.Millisecond
	longestBackoff = 10 * time.Second
	// steady is how long a worker must live for its earlier deaths to be forgotten.
	steady    = 10 * time.Second
	tailBytes = 8 << 10
	// reportPatience is how long a restart waits for the report of the death.
	reportPatience = 200 * time.Millisecond
	reportTimeout  = 5 * time.Second
)

// ExitCode is what a child exits with after its worker returned err.
func ExitCode(err error) int {
	var stopped *loop.StoppedError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &stopped):
		return ExitStopped
	case errors.Is(err, cuda.ErrUnhealthy) && !faultOfProgram(err), errors.Is(err, cuda.ErrUnavailable):
		return ExitDevice
	case errors.Is(err, ucx.ErrUnavailable), errors.Is(err, cuda.ErrTaken):
		return ExitUnusable
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
	// StopGrace is how long children may take to leave. Default 5 s.
	StopGrace time.Duration
	Log       *slog.Logger
	// GivenUp, if set, is called when a worker will not be started again for a reason that
	// Run will return, which it does only when all have ended.
	GivenUp func(error)
	// Started, if set, is called whenever a child was started.
	Started func(name string, pid int)
}

// Run keeps the children alive until the context ends; then they leave, or are
// killed after StopGrace. It returns before that when all of them have left by
// themselves, or were told to stop by the scheduler.
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
		c.StopGrace = 5 * time.Second
	}
	if c.Output == nil {
		c.Output = os.Stderr
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
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
	deaths := 0
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
		case cause.ExitCode == ExitStopped:
			log.Info("worker was stopped by the scheduler")
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
		if cause.ExitCode == ExitUnusable {
			unusable := &UnusableError{Name: w.Name, Cause: text}
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

// life is one process.
type life struct {
	child       *child
	cmd         *exec.Cmd
	incarnation string
	oom         uint64
	outputs     []*os.File
	reading     sync.WaitGroup

	mu   sync.Mutex
	tail []byte // guarded by mu
}

func (w *child) start(again bool) (*life, error) {
	incarnation, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("supervisor: %w", err)
	}
	l := &life{child: w, incarnation: incarnation.String(), oom: exitcause.OOMKills()}
	l.cmd = exec.Command(w.config.Executable, w.config.Args...)
	l.cmd.Env = append(slices.Concat(os.Environ(), w.config.Env, w.Env), ChildEnv+"="+w.Name, IncarnationEnv+"="+l.incarnation)
	if again {
		l.cmd.Env = append(l.cmd.Env, RestartedEnv+"=1")
	}
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	// Pipes of our own: children of the worker that outlive it and keep them open
	// must not keep us from seeing its end.
	for _, to := range []*io.Writer{&l.cmd.Stdout, &l.cmd.Stderr} {
		r, writer, err := os.Pipe()
		if err != nil {
			return nil, fmt.Errorf("supervisor: pipe: %w", err)
		}
		defer writer.Close()
		*to = writer
		l.outputs = append(l.outputs, r)
	}
	refused, err := w.place(l.cmd.Start)
	if err != nil {
		for _, r := range l.outputs {
			_ = r.Close() // only read from
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
	if w.config.Started != nil {
		w.config.Started(w.Name, l.cmd.Process.Pid)
	}
	return l, nil
}

// live returns when the process has ended. If the context ends first, the worker
// is asked to leave, and killed if it takes too long.
func (l *life) live(ctx context.Context) exitcause.Cause {
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = l.cmd.Wait() // the state says it
	}()
	select {
	case <-exited:
	case <-ctx.Done():
		_ = l.cmd.Process.Signal(syscall.SIGTERM) // it may have ended just now
		grace := time.NewTimer(l.child.config.StopGrace)
		defer grace.Stop()
		select {
		case <-exited:
		case <-grace.C:
			l.child.config.Log.Warn("worker does not leave, and is killed", "worker", l.child.Name)
			_ = l.cmd.Process.Kill()
			<-exited
		}
	}
	if left := endSession(l.cmd.Process.Pid); len(left) > 0 {
		l.child.config.Log.Warn("processes of a dead worker do not end, and keep its memory", "worker", l.child.Name, "pids", left)
	}
	cause := exitcause.Of(l.cmd.ProcessState, l.oom)
	for _, r := range l.outputs {
		_ = r.SetReadDeadline(time.Now().Add(50 * time.Millisecond)) // pipes can
	}
	l.reading.Wait()
	for _, r := range l.outputs {
		_ = r.Close() // only read from
	}
	return cause
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

// report tells the scheduler of a death. The returned channel is closed when it
// knows, or cannot be told.
func (w *child) report(ctx context.Context, l *life, cause exitcause.Cause, text string, restarting bool) <-chan struct{} {
	told := make(chan struct{})
	if w.config.Scheduler == nil {
		close(told)
		return told
	}
	l.mu.Lock()
	tail := string(l.tail)
	l.mu.Unlock()
	request := &millracev1.ReportWorkerDeathRequest{
		Name: w.Name, Restarting: restarting,
		Death: &millracev1.WorkerDeath{
			Incarnation: l.incarnation, Cause: text, ExitCode: int32(cause.ExitCode), Signal: cause.Signal,
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

// describe says how it died, with what it said itself of that.
func (l *life) describe(cause exitcause.Cause) string {
	l.mu.Lock()
	tail := string(l.tail)
	l.mu.Unlock()
	text := cause.String()
	if at := strings.LastIndex(tail, lastWords); at >= 0 {
		words, _, _ := strings.Cut(tail[at+len(lastWords):], "\n")
		return text + ": " + strings.TrimSpace(words)
	}
	for line := range strings.Lines(tail) {
		if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") {
			return text + ": " + strings.TrimSpace(line)
		}
	}
	return text
}
