package faults

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	millrace "github.com/millrace/millrace/clients/go"
	millracev1 "github.com/millrace/millrace/gen/go/millrace/v1"
)

// byAll allows all transports of UCX for one host, and TCP after them.
var byAll = protocol{name: "ucx all", flags: []string{"--protocol", "ucx", "--ucx-tls", "posix,cma,tcp"}, sameHost: true, path: millracev1.TransferPath_TRANSFER_PATH_UCX, transport: "cma"}

// TestShmIsFull: workers that find no room in /dev/shm do not use it.
func TestShmIsFull(t *testing.T) {
	t.Parallel()
	forEachProtocol(t, []protocol{byBorrow, byAll, byTCP}, func(t *testing.T, p protocol) {
		t.Helper()
		c := start(t, 3)
		c.pair(p, spec{wrapper: []string{"unshare", "--mount", "sh", "-c", `mount -t tmpfs -o size=64k,nr_inodes=4 shm /dev/shm && exec "$@"`, "sh"}})
		kept := c.stamps(100, transferBytes()/16, onlySource)
		c.checkStamp(c.stamp(1, 32, kept, onlyReader))
		c.awaitRoute(p, "source-0", "reader-0")
	})
}

// TestLittleLockedMemory: host memory is read without locking any.
func TestLittleLockedMemory(t *testing.T) {
	t.Parallel()
	forEachProtocol(t, []protocol{byBorrow, byAll, byTCP}, func(t *testing.T, p protocol) {
		t.Helper()
		c := start(t, 3)
		c.pair(p, spec{wrapper: []string{"prlimit", "--memlock=0:0"}})
		kept := c.stamps(100, transferBytes()/16, onlySource)
		c.checkStamp(c.stamp(1, 32, kept, onlyReader))
		c.awaitRoute(p, "source-0", "reader-0")
	})
}

// TestOutOfFileDescriptors: a worker without free descriptors cannot be reached, or cannot reach
// others. Its objects are computed elsewhere. When it has descriptors again, it works as before.
func TestOutOfFileDescriptors(t *testing.T) {
	for _, who := range []string{"source", "reader"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			forEachProtocol(t, allProtocols, func(t *testing.T, p protocol) {
				t.Helper()
				c := start(t, 3)
				c.source(p, spec{})
				kept := c.stamps(100, transferBytes()/16)
				c.reader(p, spec{})
				// This connects only the other direction. The direction under test must not be
				// connected yet.
				c.awaitRoute(p, "reader-0", "source-0")
				w := c.awaitWorker(who + "-0")
				restore := exhaust(t, w)
				c.checkStamp(c.stamp(1, 32, kept, onlyReader))
				restore()
				if who == "reader" {
					c.awaitLogLine("too many open files")
				}
				if now := c.awaitWorker(who + "-0"); now.GetIncarnation() != w.GetIncarnation() {
					t.Errorf("the %s died", who)
				}
				more := c.stamps(200, transferBytes()/16, onlySource)
				c.checkStamp(c.stamp(2, 32, more, onlyReader))
			})
		})
	}
}

// exhaust prevents a worker from opening more files.
func exhaust(t *testing.T, w *millracev1.Worker) (restore func()) {
	t.Helper()
	pid := int(w.GetPid())
	// The next file would get the lowest free descriptor, so that becomes the limit. Higher ones
	// stay open. Some descriptors are open only for a moment, so look several times.
	next := math.MaxInt
	for range 50 {
		open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			t.Fatal(err)
		}
		taken := make(map[string]bool)
		for _, fd := range open {
			taken[fd.Name()] = true
		}
		free := 0
		for taken[strconv.Itoa(free)] {
			free++
		}
		next = min(next, free)
		time.Sleep(2 * time.Millisecond)
	}
	var before unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(next), Max: before.Max}, nil); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &before, nil); err != nil {
			t.Error(err)
		}
	}
}

// TestLargerThanTheSlab: a result, or inputs of a task, that can never fit fail at once and with
// the reason.
func TestLargerThanTheSlab(t *testing.T) {
	t.Parallel()
	c := start(t, 2)
	// A task that could get memory would wait for longer than the test does.
	c.run(spec{host: 1, slab: "64MiB", args: []string{"--memory-wait", (2 * eventTimeout).String()}})
	// refused checks that a task fails at once, with this kind of error and this text.
	refused := func(o object, kind error, text string) {
		t.Helper()
		if err := o.future.Wait(c.ctx()); !errors.Is(err, kind) || !strings.Contains(err.Error(), text) {
			t.Error(err)
		}
	}
	refused(c.stamp(1, 65<<20, nil), millrace.ErrOutOfMemory, "larger than the slab")
	kept := []object{c.stamp(10, 24<<20, nil), c.stamp(11, 24<<20, nil), c.stamp(12, 24<<20, nil)}
	c.wait(kept...)
	// Without this option the task would wait for a larger worker.
	refused(c.stamp(2, 32, kept, millrace.WithNoWait()), millrace.ErrNoWorkerFits, "memory")
	c.checkStamp(c.stamp(3, 32, kept[:2]))
}

// TestManySmallAndOneHuge: 10,000 small objects and one of nine tenths of the slab, at the same
// time. The small ones have a little more than 1 KiB, so that they lie in the slab.
func TestManySmallAndOneHuge(t *testing.T) {
	t.Parallel()
	const slab, count, small = 64 << 20, 10_000, 1<<10 + 8
	c := start(t, 3)
	c.run(spec{host: 1, slab: fmt.Sprint(slab)})
	c.run(spec{host: 2, slab: fmt.Sprint(slab)})
	began := time.Now()
	var all []object
	for i := range int64(count) {
		if i == count/2 {
			all = append(all, c.stamp(count, slab/10*9, nil))
		}
		all = append(all, c.stamp(i, small, nil))
	}
	c.wait(all...)
	t.Logf("all objects exist after %v", time.Since(began).Round(time.Millisecond))
	var reads []object
	for first := 0; first < len(all); first += 500 {
		part := all[first:min(first+500, len(all))]
		reads = append(reads, c.stamp(int64(100_000+first), 32, part))
	}
	for _, r := range reads {
		c.wait(r)
	}
	t.Logf("all objects are right after %v", time.Since(began).Round(time.Millisecond))
	release(append(all, reads...)...)
	c.awaitEmpty()
}
