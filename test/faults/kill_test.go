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

// TestSourceIsKilledWhileIdle: its objects are computed again for the tasks that need them.
func TestSourceIsKilledWhileIdle(t *testing.T) {
	t.Parallel()
	with(t, everywhere, func(t *testing.T, p protocol) {
		t.Helper()
		c := start(t, 3)
		c.pair(p, spec{})
		kept := c.stamps(100, moved()/16, onSource)
		c.check(c.stamp(1, 32, kept[:8], onlyReader))
		c.carried(p, "source-0", "reader-0")
		before := c.must("source-0")
		c.signal(before, syscall.SIGKILL)
		c.back(before)
		c.check(c.stamp(2, 32, kept, onlyReader))
	})
}

// TestSourceIsKilledAtConnect: the source dies when the reader first connects to it, or shortly
// after.
func TestSourceIsKilledAtConnect(t *testing.T) {
	t.Parallel()
	with(t, everywhere, func(t *testing.T, p protocol) {
		t.Helper()
		c := start(t, 3)
		c.pair(p, spec{})
		for round, after := range []time.Duration{0, time.Millisecond, 3 * time.Millisecond, 8 * time.Millisecond} {
			first := int64(1000 * (round + 1))
			kept := c.stamps(first, moved()/16, onSource)
			before := c.must("source-0")
			read := c.stamp(int64(round+1), 32, kept, onlyReader)
			if err := c.client.Flush(c.soon()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(after) // to hit different moments
			c.signal(before, syscall.SIGKILL)
			c.check(read)
			c.back(before)
			release(append(kept, read)...)
		}
		c.carried(p, "source-0", "reader-0")
		c.empty()
	})
}

// TestSourceIsKilledInTheMiddle: many bytes are on their way, and the rest of them never arrives.
func TestSourceIsKilledInTheMiddle(t *testing.T) {
	t.Parallel()
	with(t, everywhere, func(t *testing.T, p protocol) {
		t.Helper()
		c := start(t, 3)
		c.pair(p, spec{})
		kept := c.stamps(100, moved(), onSource)
		before, reader := c.must("source-0"), c.must("reader-0")
		had := resident(t, reader)
		read := c.stamp(1, 32, kept, onlyReader)
		c.arriving(reader, had, moved()/5)
		c.signal(before, syscall.SIGKILL)
		c.check(read)
		c.back(before)
		release(append(kept, read)...)
		c.carried(p, "source-0", "reader-0")
		c.empty()
	})
}

// TestReaderIsKilledInTheMiddle: its next incarnation reads again, and the source gets its memory
// back.
func TestReaderIsKilledInTheMiddle(t *testing.T) {
	t.Parallel()
	with(t, everywhere, func(t *testing.T, p protocol) {
		t.Helper()
		c := start(t, 3)
		c.pair(p, spec{})
		kept := c.stamps(100, moved(), onSource)
		reader := c.must("reader-0")
		had := resident(t, reader)
		read := c.stamp(1, 32, kept, onlyReader)
		c.arriving(reader, had, moved()/5)
		c.signal(reader, syscall.SIGKILL)
		c.check(read)
		release(append(kept, read)...)
		c.carried(p, "source-0", "reader-0")
		c.empty()
	})
}

// TestSourceRestartsOnTheSameAddress: another process answers at the address, and has other bytes
// at the same places.
func TestSourceRestartsOnTheSameAddress(t *testing.T) {
	t.Parallel()
	with(t, everywhere, func(t *testing.T, p protocol) {
		t.Helper()
		c := start(t, 3)
		c.pair(p, spec{listen: "7100"})
		kept := c.stamps(100, moved()/16, onlySource)
		for life := range int64(4) {
			c.check(c.stamp(life+1, 32, kept, onlyReader))
			// Later a path to the same address may be closed for a while.
			if life == 0 {
				c.carried(p, "source-0", "reader-0")
			}
			before := c.must("source-0")
			// Other bytes come first, so that no object has its old place.
			c.signal(before, syscall.SIGKILL)
			if now := c.back(before); now.GetDataAddress() != before.GetDataAddress() {
				t.Fatalf("it was at %s, and is at %s", before.GetDataAddress(), now.GetDataAddress())
			}
			c.wait(c.stamp(500+life, (life+1)*100_000, nil, onlySource))
		}
		c.check(c.stamp(10, 32, kept, onlyReader))
	})
}

// TestSourceRestartsWithTheSameProcessID: as above, and the source is process 1 of a fresh process
// namespace each time.
func TestSourceRestartsWithTheSameProcessID(t *testing.T) {
	t.Parallel()
	with(t, apart, func(t *testing.T, p protocol) {
		t.Helper()
		c := start(t, 3)
		c.run(spec{host: 2, name: "reader", by: p})
		source := spec{
			host: 1, name: "source", by: p, listen: "7100",
			around: []string{"unshare", "--pid", "--fork", "--mount-proc", "--kill-child"},
			child:  "source-0",
		}
		var kept []object
		for life := range int64(3) {
			around := c.run(source)
			w := c.must("source-0")
			if w.GetPid() != 1 {
				t.Fatalf("it is process %d", w.GetPid())
			}
			c.wait(c.stamp(500+life, (life+1)*100_000, nil, onlySource))
			if life == 0 {
				kept = c.stamps(100, 64<<20, onlySource)
			}
			c.check(c.stamp(life+1, 32, kept, onlyReader))
			c.carried(p, "source-0", "reader-0")
			if err := syscall.Kill(-around.Process.Pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			c.until(fmt.Sprintf("life %d is over", life), func() bool { return c.find("source-0") == nil })
		}
	})
}
