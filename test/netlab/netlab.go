// Package netlab is Test support: several hosts on one machine, each a network namespace. A router
// connects them, and can drop the packets from one host to another.
package netlab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// insideEnv is set in the process that Main has started in namespaces of its own.
const insideEnv = "MILLRACE_NETLAB_INSIDE"

// Main runs the tests in fresh namespaces, so that they do not touch the network or the mounts of
// the machine. TestMain calls it; it returns the exit code.
func Main(m *testing.M) int {
	if os.Getenv(insideEnv) != "" {
		// Mounts of tests are not visible outside of these namespaces. The hosts see them.
		err := errors.Join(syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""), syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_SHARED, ""))
		if err := errors.Join(err, run("ip", "link", "set", "lo", "up")); err != nil {
			fmt.Fprintln(os.Stderr, "netlab:", err)
			return 1
		}
		return m.Run()
	}
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, "netlab:", err)
		return 1
	}
	cmd := apart(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	err = cmd.Run()
	var ended *exec.ExitError
	switch {
	case errors.As(err, &ended):
		return max(ended.ExitCode(), 1)
	case err != nil:
		fmt.Fprintf(os.Stderr, "netlab: cannot make a network namespace: %v; run the tests as root, or allow unprivileged user namespaces\n", err)
		return 1
	}
	return 0
}

// apart prepares a program that runs in namespaces of its own.
func apart(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	return cmd
}

// Missing says what labs need and this machine does not have; nil: nothing.
func Missing() error {
	for _, program := range []string{"ip", "nsenter"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("netlab: %w", err)
		}
	}
	if out, err := apart("ip", "link", "add", "lab0", "type", "veth", "peer", "name", "lab1").CombinedOutput(); err != nil {
		return fmt.Errorf("netlab: cannot make a network namespace with a link: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Lab is a router and its hosts. The test itself runs on a host of its own, which can reach all
// others. Several labs can exist at the same time; they share the router.
type Lab struct {
	t     *testing.T
	hosts []*Host
	cuts  map[[2]int]bool
}

// Host is a network namespace, and a mount namespace whose /sys shows the devices of that network,
// because UCX looks for them there.
type Host struct {
	lab   *Lab
	index int
	// number is unique among the hosts of all labs. It is a part of the addresses of the host.
	number int
	// keeper is the process that keeps the namespaces alive.
	keeper *exec.Cmd
}

// numbers holds the unused host numbers.
var numbers = func() chan int {
	free := make(chan int, 256)
	for i := range cap(free) {
		free <- i
	}
	return free
}()

// New makes n hosts, numbered from 0.
func New(t *testing.T, n int) *Lab {
	t.Helper()
	l := &Lab{t: t, cuts: map[[2]int]bool{}}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
		t.Fatalf("netlab: %v", err)
	}
	for i := range n {
		l.hosts = append(l.hosts, l.newHost(i))
	}
	t.Cleanup(l.heal)
	return l
}

// Host returns host i.
func (l *Lab) Host(i int) *Host { return l.hosts[i] }

func (l *Lab) newHost(i int) *Host {
	t := l.t
	t.Helper()
	h := &Host{lab: l, index: i, number: <-numbers}
	h.keeper = exec.Command("sleep", "infinity")
	h.keeper.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := h.keeper.Start(); err != nil {
		t.Fatalf("netlab: host %d: %v", i, err)
	}
	ours, theirs := fmt.Sprintf("lab%d", h.number), fmt.Sprintf("eth%d", i)
	t.Cleanup(func() {
		_ = h.keeper.Process.Kill()
		_ = h.keeper.Wait()
		// The namespace disappears some time after its last process; its link is deleted at once.
		_ = run("ip", "link", "del", ours)
		numbers <- h.number
	})
	h.must("ip", "link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", fmt.Sprint(h.keeper.Process.Pid))
	h.must("ip", "addr", "add", h.gateway()+"/24", "dev", ours)
	h.must("ip", "link", "set", ours, "up")
	for _, line := range [][]string{
		{"sh", "-c", ownSysfs},
		{"ip", "link", "set", "lo", "up"},
		{"ip", "addr", "add", h.Address() + "/24", "dev", theirs},
		{"ip", "link", "set", theirs, "up"},
		{"ip", "route", "add", "default", "via", h.gateway()},
	} {
		if out, err := h.Command(context.Background(), line[0], line[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("netlab: host %d: %v: %v: %s", i, line, err, out)
		}
	}
	return h
}

// ownSysfs replaces the machine's sysfs by the one of this network, with all that is mounted below.
// Mounts and unmounts of the test still arrive here. Unmounts matter most: a file system that a
// test unmounts would otherwise stay mounted here.
const ownSysfs = `set -e
mount --make-rslave /
mount -t sysfs sysfs /mnt
mount --rbind /sys/fs/cgroup /mnt/fs/cgroup
mount --move /mnt /sys`

// Address returns the host's address.
func (h *Host) Address() string { return fmt.Sprintf("10.99.%d.2", h.number) }

func (h *Host) gateway() string { return fmt.Sprintf("10.99.%d.1", h.number) }

// Command prepares a program that runs on the host, in the test's directory. The process id of the
// command is the program's own.
func (h *Host) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	h.lab.t.Helper()
	here, err := os.Getwd()
	if err != nil {
		h.lab.t.Fatalf("netlab: %v", err)
	}
	line := append([]string{"--target", fmt.Sprint(h.keeper.Process.Pid), "--net", "--mount", "--wdns=" + here, "--", name}, args...)
	return exec.CommandContext(ctx, "nsenter", line...)
}

func (h *Host) must(line ...string) {
	h.lab.t.Helper()
	if err := run(line...); err != nil {
		h.lab.t.Fatalf("netlab: host %d: %v", h.index, err)
	}
}

// Cut drops all packets from host from to host to, without any error, until Mend.
func (l *Lab) Cut(from, to int) {
	l.t.Helper()
	l.cuts[[2]int{from, to}] = true
	l.hosts[from].must(l.rule("add", from, to)...)
}

// Mend ends a cut.
func (l *Lab) Mend(from, to int) {
	l.t.Helper()
	delete(l.cuts, [2]int{from, to})
	l.hosts[from].must(l.rule("del", from, to)...)
}

func (l *Lab) rule(verb string, from, to int) []string {
	return []string{"ip", "rule", verb, "from", l.hosts[from].Address(), "to", l.hosts[to].Address(), "blackhole"}
}

// heal ends all cuts.
func (l *Lab) heal() {
	for pair := range l.cuts {
		l.Mend(pair[0], pair[1])
	}
}

func run(line ...string) error {
	if out, err := exec.Command(line[0], line[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(line, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
