package faults

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
)

// stopped stops a worker until the returned function is called. That function first waits until the
// worker was stopped for at least the given time.
func (c *cluster) stopped(pid int64, name string, atLeast time.Duration) (wake func()) {
	c.t.Helper()
	if pid < 100 {
		c.t.Fatalf("%s is process %d, which is none of ours", name, pid)
	}
	began, awake := time.Now(), false
	if err := syscall.Kill(int(pid), syscall.SIGSTOP); err != nil {
		c.t.Fatal(err)
	}
	resume := func() {
		if !awake {
			awake = true
			_ = syscall.Kill(int(pid), syscall.SIGCONT) // the supervisor may have killed it
		}
	}
	c.t.Cleanup(resume)
	return func() {
		time.Sleep(time.Until(began.Add(atLeast))) // this is the fault itself
		resume()
		c.t.Logf("%s was stopped for %v", name, time.Since(began).Round(time.Millisecond))
	}
}

// TestSourceIsStopped: its objects are computed elsewhere; when it wakes it works again.
func TestSourceIsStopped(t *testing.T) {
	t.Parallel()
	with(t, everywhere, func(t *testing.T, p protocol) {
		t.Helper()
		c := start(t, 3)
		c.pair(p, spec{})
		kept := c.stamps(100, moved()/2, onSource)
		c.carried(p, "source-0", "reader-0")
		source, reader := c.must("source-0"), c.must("reader-0")
		had := resident(t, reader)
		read := c.stamp(1, 32, kept, onlyReader)
		c.arriving(reader, had, moved()/10)
		wake := c.stopped(source.GetPid(), "the source", *pause)
		c.check(read)
		wake()
		c.until("the source is back", func() bool { return c.find("source-0") != nil })
		more := c.stamps(200, moved()/16, onlySource)
		last := c.stamp(2, 32, more, onlyReader)
		c.check(last)
		release(append(append(kept, more...), read, last)...)
		c.empty()
	})
}

// TestReaderIsStopped: its tasks run elsewhere; when it wakes, the objects that it has read are not
// needed any more.
func TestReaderIsStopped(t *testing.T) {
	t.Parallel()
	with(t, everywhere, func(t *testing.T, p protocol) {
		t.Helper()
		c := start(t, 3)
		c.pair(p, spec{})
		kept := c.stamps(100, moved()/2, onSource)
		c.carried(p, "source-0", "reader-0")
		reader := c.must("reader-0")
		had := resident(t, reader)
		read := c.stamp(1, 32, kept, onReader)
		c.arriving(reader, had, moved()/10)
		wake := c.stopped(reader.GetPid(), "the reader", *pause)
		c.check(read)
		wake()
		c.until("the reader is back", func() bool { return c.find("reader-0") != nil })
		last := c.stamp(2, 32, kept, onlyReader)
		c.check(last)
		release(append(kept, read, last)...)
		c.empty()
	})
}

// TestLeaseExpiresWhileTheReaderIsStopped: the source waits for the reader no longer than a lease,
// and puts other bytes in the place that the reader was reading. The reader discards the bytes that
// it has, and reads again.
func TestLeaseExpiresWhileTheReaderIsStopped(t *testing.T) {
	t.Parallel()
	with(t, everywhere, func(t *testing.T, p protocol) {
		t.Helper()
		c := start(t, 3)
		c.pair(p, spec{args: []string{"--spill-limit", fmt.Sprint(4 * moved())}})
		kept := c.stamps(100, moved(), onlySource)
		c.carried(p, "source-0", "reader-0")
		reader := c.must("reader-0")
		had := resident(t, reader)
		read := c.stamp(1, 32, kept, onlyReader)
		c.arriving(reader, had, moved()/5)
		wake := c.stopped(reader.GetPid(), "the reader", *pause)
		began := time.Now()
		// This object fits only in the place of all the others. A lease over UCX is not renewed and
		// may last as long as a task waits for memory, so the task may need more tries.
		huge := c.stamp(200, moved()/8*9, nil, onlySource, millrace.WithRetries(5))
		c.wait(huge)
		t.Logf("the source has its memory back after %v", time.Since(began).Round(time.Millisecond))
		wake()
		c.check(read)
		c.check(c.stamp(2, 32, []object{huge}, onlyReader))
	})
}
