//go:build cgo && linux

package ucx_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/transfer/transfertest"
	"github.com/millrace/millrace/transfer/ucx"
)

// listening returns the sockets of this process that accept TCP connections.
func listening(t *testing.T) map[string]bool {
	t.Helper()
	ours := map[string]bool{}
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil {
			ours[to] = true
		}
	}
	out := map[string]bool{}
	for _, table := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		text, err := os.ReadFile(table)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(string(text), "\n") {
			f := strings.Fields(line)
			if len(f) > 9 && f[3] == "0A" && ours["socket:["+f[9]+"]"] {
				out[f[1]] = true
			}
		}
	}
	return out
}

// TestWithoutTCPNothingListens: UCX's port requires no token, and a client of that port can write
// anywhere in this process's memory.
func TestWithoutTCPNothingListens(t *testing.T) {
	if os.Getenv("UCX_TLS") != "" || elsewhere != nil {
		t.Skip("the transports are chosen from outside")
	}
	for _, without := range []bool{false, true} {
		before := len(listening(t))
		room := transfertest.NewRoom(newSlab(t, 64<<20))
		c, err := ucx.Open(ucx.Config{Library: library(t), NetDevices: netDevices(), NoTCP: without, Space: room.Space()})
		if err != nil {
			t.Fatal(err)
		}
		got := len(listening(t)) - before
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if got != 0 && without || got == 0 && !without {
			t.Errorf("without TCP %v: it listens on %d ports", without, got)
		}
	}
}
