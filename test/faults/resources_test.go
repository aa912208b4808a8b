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
var byAll = protocol{name: "ucx all", flags: []string{"--protocol", "ucx", "--ucx-tls", "posix,cma,tcp"}, together: true, path: millracev1.TransferPath_TRANSFER_PATH_UCX, transport: "cma"}

// TestShmIsFull: workers that find no room in /dev/shm do not use it.
func TestShmIsFull(t *testing.T) {
	t.Parallel()
	with(t, []protocol{byBorrow, byAll, byTCP}, func(t *testing.T, p protocol) {
		t.Helper()
		c := start(t, 3)
		c.pair(p, spec{around: []string{"unshare", "--mount", "sh", "-c", `mount -t tmpfs -o size=64k,nr_inodes=4 shm /dev/shm && exec "$@"`, "sh"}})
		kept := c.stamps(100, moved()/16, onlySource)
		c.check(c.stamp(1, 32, kept, onlyReader))
		c.carried(p, "source-0", "reader-0")
	})
}

// TestLittleLockedMemory: host memory is read without locking any.
func TestLittleLockedMemory(t *testing.T) {
	t.Parallel()
	with(t, []protocol{byBorrow, byAll, byTCP}, func(t *testing.T, p protocol) {
		t.Helper()
		c := start(t, 3)
		c.pair(p, spec{around: []string{"prlimit", "--memlock=0:0"}})
		kept := c.stamps(100, moved()/16, onlySource)
		c.check(c.stamp(1, 32, kept, onlyReader))
		c.carried(p, "source-0", "reader-0")
	})
}

// TestOutOfFileDescriptors: a worker without free descriptors cannot be reached, or cannot reach
// others. Its objects are computed elsewhere. When it has descriptors again, it works as before.
func TestOutOfFileDescriptors(t *testing.T) {
	for _, who := range []string{"source", "reader"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			with(t, everywhere, func(t *testing.T, p protocol) {
				t.Helper()
				c := start(t, 3)
				c.source(p, spec{})
				kept := c.stamps(100, moved()/16)
				c.reader(p, spec{})
				// Connect only in the other direction: the direction under test must not be
				// connected yet.
				c.carried(p, "reader-0", "source-0")
				w := c.must(who + "-0")
				restore := exhaust(t, w)
				c.check(c.stamp(1, 32, kept, onlyReader))
				restore()
				if who == "reader" {
					c.says("too many open files") // the reason why it could not read
				}
				if now := c.must(who + "-0"); now.GetIncarnation() != w.GetIncarnation() {
					t.Errorf("%s died of it", who)
				}
				more := c.stamps(200, moved()/16, onlySource)
				c.check(c.stamp(2, 32, more, onlyReader))
			})
		})
	}
}

// exhaust prevents a worker from opening any more files.
func exhaust(t *testing.T, w *millracev1.Worker) (restore func()) {
	t.Helper()
	pid := int(w.GetPid())
	// The next descriptor would be the lowest free one; those above it stay open. Some are open
	// only for a moment.
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
		time.Sleep(2 * time.Millisecond) // so that those can be closed
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
	c.run(spec{host: 1, limit: "64MiB"})
	refused := func(o object, how error, why string) {
		t.Helper()
		began := time.Now()
		err := o.future.Wait(c.soon())
		// Tasks that can get memory wait up to 30 s for it.
		if took := time.Since(began); !errors.Is(err, how) || !strings.Contains(err.Error(), why) || took > 25*time.Second {
			t.Errorf("after %v: %v", took, err)
		}
	}
	refused(c.stamp(1, 65<<20, nil), millrace.ErrOutOfMemory, "larger than the slab")
	kept := []object{c.stamp(10, 24<<20, nil), c.stamp(11, 24<<20, nil), c.stamp(12, 24<<20, nil)}
	c.wait(kept...)
	// Without this option the task would wait for a larger worker to come.
	refused(c.stamp(2, 32, kept, millrace.WithNoWait()), millrace.ErrNoWorkerFits, "memory")
	c.check(c.stamp(3, 32, kept[:2]))
}

// TestManySmallAndOneHuge: 10,000 objects of a little more than 1 KiB, so that they are in the
// slab, and one of nine tenths of the slab, at the same time.
func TestManySmallAndOneHuge(t *testing.T) {
	t.Parallel()
	const slab, count, small = 64 << 20, 10_000, 1<<10 + 8
	c := start(t, 3)
	c.run(spec{host: 1, limit: fmt.Sprint(slab)})
	c.run(spec{host: 2, limit: fmt.Sprint(slab)})
	began := time.Now()
	var all []object
	for i := range int64(count) {
		if i == count/2 {
			all = append(all, c.stamp(count, slab/10*9, nil))
		}
		all = append(all, c.stamp(i, small, nil))
	}
	c.wait(all...)
	t.Logf("all are there after %v", time.Since(began).Round(time.Millisecond))
	var reads []object
	for first := 0; first < len(all); first += 500 {
		part := all[first:min(first+500, len(all))]
		reads = append(reads, c.stamp(int64(100_000+first), 32, part))
	}
	for _, r := range reads {
		c.wait(r)
	}
	t.Logf("all are right after %v", time.Since(began).Round(time.Millisecond))
	release(append(all, reads...)...)
	c.empty()
}
