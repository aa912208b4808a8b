//go:build cgo && linux

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/millrace/millrace/memory"
	"github.com/millrace/millrace/memory/cuda"
)

// otherProgram is the main function of the other program: it ends when its standard input does.
func otherProgram(order string) int {
	slab, err := takeGPUMemory(order)
	if err != nil {
		fmt.Fprintln(os.Stderr, "the other program:", err)
		return 1
	}
	fmt.Println(slab.Size())
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends it
	return 0
}

func takeGPUMemory(order string) (*cuda.Slab, error) {
	bytes, err := strconv.ParseInt(order, 10, 64)
	if err != nil {
		return nil, err
	}
	driver, err := cuda.Load(cuda.Config{Library: os.Getenv("MILLRACE_CUDA_LIBRARY")})
	if err != nil {
		return nil, err
	}
	// The GPU of the first worker, because workers are numbered by UUID.
	first := slices.MinFunc(driver.Devices(), func(a, b cuda.Info) int { return strings.Compare(a.UUID.String(), b.UUID.String()) })
	gpu, err := driver.Open(first.Ordinal)
	if err != nil {
		return nil, err
	}
	if bytes < 0 {
		free, _, err := gpu.Memory()
		if err != nil {
			return nil, err
		}
		bytes += int64(free)
	}
	return gpu.NewSlab(cuda.SlabConfig{Size: cuda.Size{Bytes: uint64(bytes)}, Identity: memory.Identity{Nonce: 1}})
}

// other is a running otherProgram.
type other struct {
	pid int
	// end ends the program, and returns when its memory is free.
	end func()
}

// takes starts a program that allocates memory of the first GPU: the given number of bytes, or all
// but that number if it is negative.
func (m *gpus) takes(t *testing.T, bytes int64) other {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stderr = append(m.env, fmt.Sprintf("%s=%d", otherEnv, bytes)), os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	o := other{pid: cmd.Process.Pid, end: sync.OnceFunc(func() {
		_ = in.Close() // it may have ended
		if err := cmd.Wait(); err != nil {
			t.Errorf("the other program: %v", err)
		}
	})}
	t.Cleanup(o.end)
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("the other program said %q: %v", line, err)
	}
	return o
}
