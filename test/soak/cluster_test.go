package soak

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
	"github.com/millrace/millrace/test/netlab"
)

const (
	schedulers = 3
	workers    = 3
	// workerHost is the host of all workers; those before it are the schedulers'.
	workerHost = schedulers
	token      = "soak"
)

// cluster is three schedulers, workers, and a client for the test itself.
type cluster struct {
	t    *testing.T
	lab  *netlab.Lab // nil: all processes have the network of the test
	logs string
	// base are the first numbers of the addresses without a lab.
	base string
	all  []*process
	// supervisor is that of the workers.
	supervisor *process
	client     *millrace.Client
}

// process is a scheduler or the supervisor of the workers.
type process struct {
	c    *cluster
	name string
	host int
	// binary is the program.
	binary string
	line   []string
	// journal is the directory of a scheduler.
	journal string
	starts  int
	cmd     *exec.Cmd
	ended   chan struct{}
}

// startCluster starts a cluster of the program that MILLRACE_BIN names.
func startCluster(t *testing.T) *cluster {
	t.Helper()
	binary := os.Getenv("MILLRACE_BIN")
	if binary == "" {
		t.Fatal("MILLRACE_BIN is not set: run `make soak` or `make e2e`")
	}
	return startClusterOf(t, binary)
}

func startClusterOf(t *testing.T, binary string) *cluster {
	t.Helper()
	c := &cluster{t: t, logs: cmp.Or(*logFlag, t.TempDir()), base: fmt.Sprintf("127.%d.%d", 1+rand.IntN(250), rand.IntN(250))}
	if apart {
		c.lab = netlab.New(t, schedulers+1)
	}
	t.Cleanup(c.showLogs)
	var peers, clients []string
	for i := range schedulers {
		peers, clients = append(peers, c.address(i)+":7787"), append(clients, c.address(i)+":7786")
	}
	for i := range schedulers {
		p := &process{c: c, name: fmt.Sprint("scheduler-", i), host: i, binary: binary, journal: filepath.Join(t.TempDir(), "journal")}
		p.line = []string{"scheduler", "--listen", clients[i], "--http", "", "--journal", p.journal, "--peers", strings.Join(peers, ","), "--peer-advertise", peers[i],
			"--election-timeout", cmp.Or(*electionFlag, 3*time.Second).String()}
		c.all = append(c.all, p)
		p.start()
	}
	w := &process{c: c, name: "workers", host: workerHost, binary: binary}
	w.line = []string{"worker", "--address", c.addresses(), "--listen", c.address(workerHost) + ":0", "--name", "w", "--workers", fmt.Sprint(workers), "--slots", "2",
		"--memory-limit", "64MiB", "--death-timeout", "1h"}
	w.start()
	c.supervisor = w
	c.client = c.dial("the test")
	c.until("all workers are there", func(ctx context.Context) bool { return len(c.workers(ctx)) == workers })
	return c
}

// address returns the IP address of a host.
func (c *cluster) address(host int) string {
	if c.lab != nil {
		return c.lab.Host(host).Address()
	}
	return fmt.Sprintf("%s.%d", c.base, host+1)
}

// addresses returns those of all schedulers, as clients take them.
func (c *cluster) addresses() string {
	var clients []string
	for i := range schedulers {
		clients = append(clients, c.address(i)+":7786")
	}
	return strings.Join(clients, ",")
}

// dial connects a client that goes on for as long as the test.
func (c *cluster) dial(name string) *millrace.Client {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), eventTimeout)
	defer cancel()
	client, err := millrace.Dial(ctx, millrace.WithAddress(c.addresses()), millrace.WithToken(token), millrace.WithName(name), millrace.WithoutSharedMemory(),
		millrace.WithLease(time.Hour), millrace.WithRetryTimeout(eventTimeout))
	if err != nil {
		c.t.Fatalf("%s: %v", name, err)
	}
	c.t.Cleanup(func() { _ = client.Close() }) // its scheduler may be gone
	return client
}

func (p *process) start() {
	t := p.c.t
	t.Helper()
	p.starts++
	log, err := os.Create(filepath.Join(p.c.logs, fmt.Sprintf("%s.%03d.log", p.name, p.starts)))
	if err != nil {
		t.Fatal(err)
	}
	p.cmd = exec.Command(p.binary, p.line...)
	if p.c.lab != nil {
		p.cmd = p.c.lab.Host(p.host).Command(context.Background(), p.binary, p.line...)
	}
	p.cmd.Env = append(os.Environ(), "MILLRACE_SCHEDULER_FILE=", "MILLRACE_ADDRESS=", "MILLRACE_DEVICE=host", "MILLRACE_TOKEN="+token)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cmd, ended := p.cmd, make(chan struct{})
	p.ended = ended
	go func() {
		defer close(ended)
		_ = cmd.Wait() // the exit code is in ProcessState
		_ = log.Close()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGCONT)
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Process.Signal(syscall.SIGINT) // a second signal: end at once
		killer := time.AfterFunc(30*time.Second, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
		<-ended
		killer.Stop()
	})
}

func (p *process) signal(s syscall.Signal) {
	p.c.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.c.t.Fatalf("%v to %s: %v", s, p.name, err)
	}
}

// stop ends a process by a signal, and returns its exit code.
func (p *process) stop(s syscall.Signal) int {
	p.c.t.Helper()
	p.signal(s)
	select {
	case <-p.ended:
	case <-time.After(eventTimeout):
		p.c.t.Fatalf("%s did not end within %v of %v", p.name, eventTimeout, s)
	}
	return p.cmd.ProcessState.ExitCode()
}

// until polls until a condition holds, because the event is in another process.
func (c *cluster) until(what string, holds func(ctx context.Context) bool) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), eventTimeout)
	defer cancel()
	for !holds(ctx) {
		select {
		case <-ctx.Done():
			c.t.Fatalf("not within %v: %s", eventTimeout, what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// workers returns the active workers.
func (c *cluster) workers(ctx context.Context) []*millracev1.Worker {
	list, _ := c.client.Workers(ctx, millracev1.WorkerState_WORKER_STATE_ACTIVE) // the leader may be gone
	return list
}

// leader waits until one scheduler leads and all others follow it. It returns the one that leads.
func (c *cluster) leader() *process {
	c.t.Helper()
	var leads *process
	c.until("two schedulers follow one", func(ctx context.Context) bool {
		out, err := c.client.Scheduler().ListPeers(ctx, &millracev1.ListPeersRequest{})
		if err != nil {
			return false
		}
		leads = nil
		terms := map[uint64]int{}
		for _, p := range out.GetPeers() {
			// One that has lost its directory is in no term yet.
			terms[p.GetTerm()]++
			switch p.GetRole() {
			case millracev1.PeerRole_PEER_ROLE_LEADER:
				for i := range schedulers {
					if p.GetClientAddress() == c.address(i)+":7786" {
						leads = c.all[i]
					}
				}
			case millracev1.PeerRole_PEER_ROLE_FOLLOWER:
			case millracev1.PeerRole_PEER_ROLE_UNSPECIFIED, millracev1.PeerRole_PEER_ROLE_JOINING, millracev1.PeerRole_PEER_ROLE_AWAY:
				return false
			}
		}
		return leads != nil && len(out.GetPeers()) == schedulers && len(terms) == 1
	})
	return leads
}

// showLogs shows the ends of all logs if the test has failed.
func (c *cluster) showLogs() {
	if !c.t.Failed() || *logFlag != "" {
		return
	}
	files, _ := filepath.Glob(filepath.Join(c.logs, "*.log"))
	for _, file := range files {
		text, _ := os.ReadFile(file)
		c.t.Logf("%s ends with:\n%s", filepath.Base(file), text[max(0, len(text)-6<<10):])
	}
}
