package faults

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
)

// onSource and onReader are preferred workers of a task; onlySource and onlyReader are the only
// allowed ones.
var (
	onSource   = millrace.WithPreferredWorkers("source-0")
	onReader   = millrace.WithPreferredWorkers("reader-0")
	onlySource = millrace.WithWorkers("source-0")
	onlyReader = millrace.WithWorkers("reader-0")
)

// TestSourceIsKilledWhileIdle: the objects of the source are computed again for the tasks that need
// them.
func TestSourceIsKilledWhileIdle(t *testing.T) {
	t.Parallel()
	forEachProtocol(t, allProtocols, func(t *testing.T, p protocol) {
		t.Helper()
		c := start(t, 3)
		c.pair(p, spec{})
		kept := c.stamps(100, transferBytes()/16, onSource)
		c.checkStamp(c.stamp(1, 32, kept[:8], onlyReader))
		c.awaitRoute(p, "source-0", "reader-0")
		before := c.awaitWorker("source-0")
		c.signal(before, syscall.SIGKILL)
		c.awaitRestart(before)
		c.checkStamp(c.stamp(2, 32, kept, onlyReader))
	})
}

// TestSourceIsKilledAtConnect: the source dies when the reader first connects to it, or shortly
// after.
func TestSourceIsKilledAtConnect(t *testing.T) {
	t.Parallel()
	forEachProtocol(t, allProtocols, func(t *testing.T, p protocol) {
		t.Helper()
		c := start(t, 3)
		c.pair(p, spec{})
		for round, after := range []time.Duration{0, time.Millisecond, 3 * time.Millisecond, 8 * time.Millisecond} {
			first := int64(1000 * (round + 1))
			kept := c.stamps(first, transferBytes()/16, onSource)
			before := c.awaitWorker("source-0")
			read := c.stamp(int64(round+1), 32, kept, onlyReader)
			if err := c.client.Flush(c.ctx()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(after) // to hit different moments
			c.signal(before, syscall.SIGKILL)
			c.checkStamp(read)
			c.awaitRestart(before)
			release(append(kept, read)...)
		}
		c.awaitRoute(p, "source-0", "reader-0")
		c.awaitEmpty()
	})
}

// TestSourceIsKilledInTheMiddle: the source dies during a transfer of many bytes.
func TestSourceIsKilledInTheMiddle(t *testing.T) {
	t.Parallel()
	forEachProtocol(t, allProtocols, func(t *testing.T, p protocol) {
		t.Helper()
		c := start(t, 3)
		c.pair(p, spec{})
		kept := c.stamps(100, transferBytes(), onSource)
		before, reader := c.awaitWorker("source-0"), c.awaitWorker("reader-0")
		had := residentBytes(t, reader)
		read := c.stamp(1, 32, kept, onlyReader)
		c.awaitArrival(reader, had, transferBytes()/5)
		c.signal(before, syscall.SIGKILL)
		c.checkStamp(read)
		c.awaitRestart(before)
		release(append(kept, read)...)
		c.awaitRoute(p, "source-0", "reader-0")
		c.awaitEmpty()
	})
}

// TestReaderIsKilledInTheMiddle: the next incarnation of the reader reads again, and the source
// gets its memory back.
func TestReaderIsKilledInTheMiddle(t *testing.T) {
	t.Parallel()
	forEachProtocol(t, allProtocols, func(t *testing.T, p protocol) {
		t.Helper()
		c := start(t, 3)
		c.pair(p, spec{})
		kept := c.stamps(100, transferBytes(), onSource)
		reader := c.awaitWorker("reader-0")
		had := residentBytes(t, reader)
		read := c.stamp(1, 32, kept, onlyReader)
		c.awaitArrival(reader, had, transferBytes()/5)
		c.signal(reader, syscall.SIGKILL)
		c.checkStamp(read)
		release(append(kept, read)...)
		c.awaitRoute(p, "source-0", "reader-0")
		c.awaitEmpty()
	})
}

// TestSourceRestartsOnTheSameAddress: another process answers at the address, and has other bytes
// at the same places.
func TestSourceRestartsOnTheSameAddress(t *testing.T) {
	t.Parallel()
	forEachProtocol(t, allProtocols, func(t *testing.T, p protocol) {
		t.Helper()
		c := start(t, 3)
		c.pair(p, spec{listen: "7100"})
		kept := c.stamps(100, transferBytes()/16, onlySource)
		for life := range int64(4) {
			c.checkStamp(c.stamp(life+1, 32, kept, onlyReader))
			// In later lives the path to this address may be closed for some time.
			if life == 0 {
				c.awaitRoute(p, "source-0", "reader-0")
			}
			before := c.awaitWorker("source-0")
			// The new process first gets another object, so that no object has its old place.
			c.signal(before, syscall.SIGKILL)
			if now := c.awaitRestart(before); now.GetDataAddress() != before.GetDataAddress() {
				t.Fatalf("the address was %s and is %s", before.GetDataAddress(), now.GetDataAddress())
			}
			c.wait(c.stamp(500+life, (life+1)*100_000, nil, onlySource))
		}
		c.checkStamp(c.stamp(10, 32, kept, onlyReader))
	})
}

// TestSourceRestartsWithTheSameProcessID: the source restarts on the same address, and each time it
// is process 1 of a new process namespace.
func TestSourceRestartsWithTheSameProcessID(t *testing.T) {
	t.Parallel()
	forEachProtocol(t, betweenHosts, func(t *testing.T, p protocol) {
		t.Helper()
		c := start(t, 3)
		c.run(spec{host: 2, name: "reader", protocol: p})
		source := spec{
			host: 1, name: "source", protocol: p, listen: "7100",
			wrapper: []string{"unshare", "--pid", "--fork", "--mount-proc", "--kill-child"},
			child:   "source-0",
		}
		var kept []object
		for life := range int64(3) {
			wrapper := c.run(source)
			w := c.awaitWorker("source-0")
			if w.GetPid() != 1 {
				t.Fatalf("the source is process %d, not 1", w.GetPid())
			}
			c.wait(c.stamp(500+life, (life+1)*100_000, nil, onlySource))
			if life == 0 {
				kept = c.stamps(100, 64<<20, onlySource)
			}
			c.checkStamp(c.stamp(life+1, 32, kept, onlyReader))
			c.awaitRoute(p, "source-0", "reader-0")
			if err := syscall.Kill(-wrapper.Process.Pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			c.until(fmt.Sprintf("life %d is over", life), func() bool { return c.find("source-0") == nil })
		}
	})
}
