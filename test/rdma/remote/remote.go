// Package remote is Test support: processes on another host. Serve runs on that host; a test uses
// Dial to start and stop processes there.
package remote

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Order is a process to be started.
type Order struct {
	Args []string
	// Env is added to the agent's own environment.
	Env []string
	// WaitForLine: wait for the first line of the process's output.
	WaitForLine bool
}

// Started is the reply to an Order.
type Started struct {
	Number int
	Pid    int
	Line   string
}

// Kill is a signal for a process. After SIGKILL the call returns when the process has ended. Number
// is that of Started; for SignalPid it is a pid.
type Kill struct {
	Number int
	Signal syscall.Signal
}

// Agent starts processes for one test. It kills them when the test's connection ends.
type Agent struct {
	mu        sync.Mutex
	processes []*process
}

type process struct {
	cmd   *exec.Cmd
	in    io.Closer
	ended chan struct{}
	err   error
}

// Serve answers tests until the listener fails.
func Serve(listener net.Listener) error {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		agent, server := new(Agent), rpc.NewServer()
		if err := server.Register(agent); err != nil {
			return err
		}
		go func() {
			server.ServeConn(conn)
			agent.endAll()
		}()
	}
}

func (a *Agent) endAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.processes {
		_ = p.cmd.Process.Kill() // fails if it has ended
	}
}

// Start is called by tests: it starts a process.
func (a *Agent) Start(order Order, out *Started) error {
	cmd := exec.Command(order.Args[0], order.Args[1:]...)
	cmd.Env = append(os.Environ(), order.Env...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	p := &process{cmd: cmd, in: in, ended: make(chan struct{})}
	lines := bufio.NewReader(stdout)
	if order.WaitForLine {
		// If the process ends without a line, it has failed, which Stop reports.
		out.Line, _ = lines.ReadString('\n')
	}
	go func() {
		_, _ = io.Copy(os.Stderr, lines)
		p.err = cmd.Wait()
		close(p.ended)
	}()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.processes = append(a.processes, p)
	out.Number, out.Pid = len(a.processes)-1, cmd.Process.Pid
	return nil
}

func (a *Agent) find(number int) *process {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.processes[number]
}

// Signal is called by tests: it signals a process that the agent started.
func (a *Agent) Signal(kill Kill, _ *struct{}) error {
	p := a.find(kill.Number)
	err := p.cmd.Process.Signal(kill.Signal)
	if kill.Signal == syscall.SIGKILL {
		<-p.ended
	}
	return err
}

// SignalPid is called by tests: it signals a process by its pid. A process that the agent has
// started may have started it.
func (a *Agent) SignalPid(kill Kill, _ *struct{}) error {
	return syscall.Kill(kill.Number, kill.Signal)
}

// Stop is called by tests: it closes the input of the process, which should make it end, and
// returns the process's error.
func (a *Agent) Stop(number int, _ *struct{}) error {
	p := a.find(number)
	_ = p.in.Close() // fails if it has ended
	select {
	case <-p.ended:
		return p.err
	case <-time.After(20 * time.Second):
		_ = p.cmd.Process.Kill()
		return fmt.Errorf("%v did not end", p.cmd.Args)
	}
}

// Host is another host, with an agent.
type Host struct{ client *rpc.Client }

// Dial connects to an agent, which may still be starting.
func Dial(address string, timeout time.Duration) (*Host, error) {
	limit := time.Now().Add(timeout)
	for {
		conn, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			return &Host{rpc.NewClient(conn)}, nil
		}
		if time.Now().After(limit) {
			return nil, fmt.Errorf("no agent at %s within %v: %w", address, timeout, err)
		}
		time.Sleep(100 * time.Millisecond) // the other host is booting
	}
}

// Start starts a process.
func (h *Host) Start(order Order) (*Process, error) {
	p := &Process{host: h}
	if err := h.client.Call("Agent.Start", order, &p.Started); err != nil {
		return nil, err
	}
	if order.WaitForLine && p.Line == "" {
		return nil, errors.Join(fmt.Errorf("%v has written no line", order.Args), p.Stop())
	}
	return p, nil
}

// SignalPid signals a process by its number on that host.
func (h *Host) SignalPid(pid int, signal syscall.Signal) error {
	return h.client.Call("Agent.SignalPid", Kill{pid, signal}, new(struct{}))
}

// Close ends the connection, and with it all processes that were started.
func (h *Host) Close() error { return h.client.Close() }

// Process is a process on another host.
type Process struct {
	Started
	host *Host
}

// Signal signals the process.
func (p *Process) Signal(signal syscall.Signal) error {
	return p.host.client.Call("Agent.Signal", Kill{p.Number, signal}, new(struct{}))
}

// Stop closes the input of the process, and waits until it has ended by itself.
func (p *Process) Stop() error { return p.host.client.Call("Agent.Stop", p.Number, new(struct{})) }
