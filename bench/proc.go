package bench

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// userHertz is the unit of the times in /proc/PID/stat. The kernel's ABI fixes it on the platforms
// that we support.
const userHertz = 100

// cpuTime returns the CPU time that a process and its threads have used.
func cpuTime(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("bench: CPU time of process %d: %w", pid, err)
	}
	// The name, in parentheses, may contain any characters; utime and stime are the 14th and 15th
	// fields.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	const utime = 14 - 3
	if len(fields) < utime+2 {
		return 0, fmt.Errorf("bench: /proc/%d/stat has %d fields", pid, len(fields)+2)
	}
	user, err := strconv.ParseUint(string(fields[utime]), 10, 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseUint(string(fields[utime+1]), 10, 64)
	if err != nil {
		return 0, err
	}
	return time.Duration(user+system) * (time.Second / userHertz), nil
}

// ownCPU returns the CPU time that this process has used.
func ownCPU() (time.Duration, error) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0, fmt.Errorf("bench: getrusage: %w", err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), nil
}

// statusBytes reads a line of /proc/PID/status: "VmRSS", "VmHWM".
func statusBytes(pid int, name string) (uint64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("bench: memory of process %d: %w", pid, err)
	}
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		if value, ok := strings.CutPrefix(s.Text(), name+":"); ok {
			kib, err := strconv.ParseUint(strings.Fields(value)[0], 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("bench: /proc/%d/status has no %s", pid, name)
}

// resetPeak makes VmHWM of a process start again from its present resident memory.
func resetPeak(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}

// Machine describes the machine of a measurement.
func Machine() string {
	model := runtime.GOARCH
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
			if name, value, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	var u syscall.Utsname
	kernel := "unknown kernel"
	if err := syscall.Uname(&u); err == nil {
		var b []byte
		for _, c := range u.Release {
			if c == 0 {
				break
			}
			b = append(b, byte(c))
		}
		kernel = "Linux " + string(b)
	}
	return fmt.Sprintf("%d x %s, %s, %s", runtime.NumCPU(), model, kernel, runtime.Version())
}
