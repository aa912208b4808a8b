// Package doctor is an Adapter: it examines the machine from a worker's point of view. It reports
// each deficiency with its cost and its remedy.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/localdir"
	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/host"
)

// State is the severity of a finding.
type State string

// The states. Warn: it works, but slower or with less than is possible. Fail: it does not work.
const (
	OK   State = "ok"
	Warn State = "warn"
	Fail State = "fail"
)

// Finding is the outcome of one check.
type Finding struct {
	// Check is the stable name of the check: "memory", "open-files", "ucx", ...
	Check string `json:"check"`
	State State  `json:"state"`
	// Found describes the result. Remedy is the action to take; empty if none is needed.
	Found  string `json:"found"`
	Remedy string `json:"remedy,omitempty"`
}

// Config selects the programs and devices to check.
type Config struct {
	// Python is the command of executors. Library, TLS and NetDevices are the settings of
	// transfer/ucx.
	Python                   []string
	Library, TLS, NetDevices string
	// BLASLibrary is as in worker.Config.
	BLASLibrary string
	// LocalDirectory is the directory that workers spill to. Empty: the system's default.
	LocalDirectory string
	// GPUs is checked if it has a topology.
	GPUs GPUs
	// Sysfs and Dev are the directories with the kernel's description of devices, and with their
	// files; "": /sys and /dev. Kernel is the version of Linux; "": the one that runs.
	Sysfs, Dev, Kernel string
}

// Run makes all checks, in order.
func Run(ctx context.Context, c Config) []Finding {
	library, rdma := c.ucx()
	findings := slices.Concat([]Finding{
		platform(), processors(), memoryLimit(), slab(), openFiles(), c.lockedMemory(), c.disk(), library, c.python(ctx), c.linalg(ctx),
	}, c.gpus(), c.fabric())
	if rdma {
		findings = append(findings, c.reads(ctx)...)
	}
	return findings
}

// Failed reports whether any finding is a failure.
func Failed(findings []Finding) bool {
	return slices.ContainsFunc(findings, func(f Finding) bool { return f.State == Fail })
}

func platform() Finding {
	f := Finding{Check: "platform", State: OK}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		f.State, f.Found = Warn, err.Error()
		return f
	}
	f.Found = fmt.Sprintf("%s %s, %s", unix.ByteSliceToString(u.Sysname[:]), unix.ByteSliceToString(u.Release[:]), runtime.GOARCH)
	return f
}

func processors() Finding {
	return Finding{Check: "processors", State: OK, Found: fmt.Sprintf("%d granted to this process", runtime.NumCPU())}
}

// littleMemory is too little for two workers and their executors.
const littleMemory = 2 << 30

func memoryLimit() Finding {
	f := Finding{Check: "memory", State: OK}
	limit, err := host.MemoryLimit()
	if err != nil {
		f.State, f.Found = Warn, err.Error()
		f.Remedy = "set --memory-limit, as the default cannot be found out"
		return f
	}
	f.Found = fmt.Sprintf("%s, limited by %s", humanize.IBytes(limit.Bytes), limit.Source)
	if limit.Bytes < littleMemory {
		f.State, f.Remedy = Warn, "give this container or machine more memory, or run one worker with --workers 1"
	}
	return f
}

// slab checks that the memory of a worker can be created.
func slab() Finding {
	f := Finding{Check: "shared-memory", State: OK, Found: "a memfd can be made, mapped and sealed"}
	s, err := host.NewSlab(1<<20, memory.Identity{Nonce: 1})
	if err == nil {
		s.Bytes(memory.HeaderBytes, 1)[0] = 1
		err = s.Close()
	}
	if err != nil {
		f.State, f.Found = Fail, err.Error()
		f.Remedy = "workers keep objects in a memfd: allow memfd_create (Linux 3.17, seccomp) and enough memory"
	}
	return f
}

const (
	fewFiles  = 1024
	goodFiles = 4096
)

func openFiles() Finding {
	f := Finding{Check: "open-files", State: OK}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		f.State, f.Found = Warn, err.Error()
		return f
	}
	// Go raises the soft limit to the hard one by itself.
	f.Found = fmt.Sprintf("%s may be open at once", humanize.Comma(int64(min(limit.Max, 1<<62))))
	switch {
	case limit.Max < fewFiles:
		f.State = Fail
	case limit.Max < goodFiles:
		f.State = Warn
	}
	if f.State != OK {
		f.Remedy = fmt.Sprintf("raise the hard limit to %d or more: ulimit -Hn, LimitNOFILE= of systemd, --ulimit nofile= of docker", goodFiles)
	}
	return f
}

func (c Config) lockedMemory() Finding {
	f := Finding{Check: "locked-memory", State: OK}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		f.State, f.Found = Warn, err.Error()
		return f
	}
	if limit.Cur == unix.RLIM_INFINITY {
		f.Found = "unlimited"
		return f
	}
	f.Found = humanize.IBytes(limit.Cur) + " may be locked"
	if len(c.rdmaDevices()) > 0 {
		f.State = Warn
		f.Remedy = "RDMA devices register the slab by locking it: ulimit -l unlimited, LimitMEMLOCK=infinity, --ulimit memlock=-1"
	}
	return f
}

const littleDisk = 1 << 30

func (c Config) disk() Finding {
	f := Finding{Check: "local-directory", State: OK}
	dir := localdir.Or(c.LocalDirectory)
	file, err := os.CreateTemp(dir, "millrace-doctor-")
	if err != nil {
		f.State, f.Found = Fail, err.Error()
		f.Remedy = "name a directory that workers may write to with --local-directory"
		return f
	}
	defer os.Remove(file.Name())
	defer file.Close()
	var s unix.Statfs_t
	if err := unix.Fstatfs(int(file.Fd()), &s); err != nil {
		f.State, f.Found = Warn, err.Error()
		return f
	}
	free := s.Bavail * uint64(s.Bsize)
	f.Found = fmt.Sprintf("%s: %s free", dir, humanize.IBytes(free))
	switch {
	case s.Type == unix.TMPFS_MAGIC:
		f.State, f.Found = Warn, f.Found+", and it is memory (tmpfs): what is spilled there frees none"
		f.Remedy = "name a directory on a disk with --local-directory"
	case free < littleDisk:
		f.State, f.Remedy = Warn, "make room, or name another directory with --local-directory"
	}
	return f
}

const probe = `import sys, importlib.metadata as m
import millrace, numpy
print(".".join(map(str, sys.version_info[:3])), m.version("millrace"), numpy.__version__, m.version("grpcio"), m.version("protobuf"))`

func (c Config) python(ctx context.Context) Finding {
	f := Finding{Check: "python", State: OK}
	if len(c.Python) == 0 {
		f.State, f.Found, f.Remedy = Warn, "no interpreter is configured", "name one that has millrace with --python"
		return f
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, c.Python[0], "-c", probe).Output()
	if err != nil {
		f.State, f.Found = Warn, fmt.Sprintf("%s: %s", c.Python[0], lastLine(err))
		f.Remedy = "Python tasks need an interpreter with millrace: pip install millrace there, or name another with --python"
		return f
	}
	fields := strings.Fields(string(out))
	if len(fields) != 5 {
		f.State, f.Found = Warn, fmt.Sprintf("%s: said %q", c.Python[0], out)
		return f
	}
	f.Found = fmt.Sprintf("%s: Python %s, millrace %s, NumPy %s, grpcio %s, protobuf %s", c.Python[0], fields[0], fields[1], fields[2], fields[3], fields[4])
	return f
}

// lastLine returns the last line that a failed command wrote to its standard error.
func lastLine(err error) string {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		lines := strings.Split(strings.TrimSpace(string(exit.Stderr)), "\n")
		if last := lines[len(lines)-1]; last != "" {
			return last
		}
	}
	return err.Error()
}
