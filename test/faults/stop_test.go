package faults

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	millrace "github.com/millrace/millrace/clients/go"
)

// stop stops a worker until the returned function is called. That function first waits until the
// worker was stopped for at least the given time.
func (c *cluster) stop(pid int64, name string, atLeast time.Duration) (wake func()) {
	c.t.Helper()
	if pid < 100 {
		c.t.Fatalf("%s is process %d, which the test did not start", name, pid)
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
		time.Sleep(time.Until(began.Add(atLeast))) // the fault itself is a pause
		resume()
		c.t.Logf("%s was stopped for %v", name, time.Since(began).Round(time.Millisecond))
	}
}

// TestSourceIsStopped: the objects of the source are computed elsewhere. When it continues, it
// works again.
func TestSourceIsStopped(t *testing.T) {
	t.Parallel()
	forEachProtocol(t, allProtocols, func(t *testing.T, p protocol) {
		t.Helper()
		c := start(t, 3)
		c.pair(p, spec{})
		kept := c.stamps(100, transferBytes()/2, onSource)
		c.awaitRoute(p, "source-0", "reader-0")
		source, reader := c.awaitWorker("source-0"), c.awaitWorker("reader-0")
		had := residentBytes(t, reader)
		read := c.stamp(1, 32, kept, onlyReader)
		c.awaitArrival(reader, had, transferBytes()/10)
		wake := c.stop(source.GetPid(), "the source", *stopFlag)
		c.checkStamp(read)
		wake()
		c.until("the source is back", func() bool { return c.find("source-0") != nil })
		more := c.stamps(200, transferBytes()/16, onlySource)
		last := c.stamp(2, 32, more, onlyReader)
		c.checkStamp(last)
		release(append(append(kept, more...), read, last)...)
		c.awaitEmpty()
	})
}

// TestReaderIsStopped: the tasks of the reader run elsewhere. When it continues, the objects that
// it has read are not needed any more.
func TestReaderIsStopped(t *testing.T) {
	t.Parallel()
	forEachProtocol(t, allProtocols, func(t *testing.T, p protocol) {
		t.Helper()
		c := start(t, 3)
		c.pair(p, spec{})
		kept := c.stamps(100, transferBytes()/2, onSource)
		c.awaitRoute(p, "source-0", "reader-0")
		reader := c.awaitWorker("reader-0")
		had := residentBytes(t, reader)
		read := c.stamp(1, 32, kept, onReader)
		c.awaitArrival(reader, had, transferBytes()/10)
		wake := c.stop(reader.GetPid(), "the reader", *stopFlag)
		c.checkStamp(read)
		wake()
		c.until("the reader is back", func() bool { return c.find("reader-0") != nil })
		last := c.stamp(2, 32, kept, onlyReader)
		c.checkStamp(last)
		release(append(kept, read, last)...)
		c.awaitEmpty()
	})
}

// TestLeaseExpiresWhileTheReaderIsStopped: the source waits for the reader no longer than a lease,
// and puts other bytes in the place that the reader was reading. The reader discards the bytes that
// it has, and reads again.
func TestLeaseExpiresWhileTheReaderIsStopped(t *testing.T) {
	t.Parallel()
	forEachProtocol(t, allProtocols, func(t *testing.T, p protocol) {
		t.Helper()
		c := start(t, 3)
		c.pair(p, spec{args: []string{"--spill-limit", fmt.Sprint(4 * transferBytes())}})
		kept := c.stamps(100, transferBytes(), onlySource)
		c.awaitRoute(p, "source-0", "reader-0")
		reader := c.awaitWorker("reader-0")
		had := residentBytes(t, reader)
		read := c.stamp(1, 32, kept, onlyReader)
		c.awaitArrival(reader, had, transferBytes()/5)
		wake := c.stop(reader.GetPid(), "the reader", *stopFlag)
		began := time.Now()
		// This object fits only in the place of all the others. A lease over UCX is not renewed and
		// may last as long as a task waits for memory, so the task may need more tries.
		huge := c.stamp(200, transferBytes()/8*9, nil, onlySource, millrace.WithRetries(5))
		c.wait(huge)
		t.Logf("the source has its memory back after %v", time.Since(began).Round(time.Millisecond))
		wake()
		c.checkStamp(read)
		c.checkStamp(c.stamp(2, 32, []object{huge}, onlyReader))
	})
}
