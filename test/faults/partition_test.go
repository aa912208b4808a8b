package faults

import (
	"testing"

	millrace "github.com/millrace/millrace/clients/go"
)

const (
	// count float64 values have 8 MiB.
	count = 1 << 20
	sum   = float64(count) * (count - 1) / 2
)

// TestPartitionBetweenWorkers: two workers can reach the scheduler but not each other, from the
// beginning or after they have connected. An object that one needs from the other is computed again
// where it can be reached.
func TestPartitionBetweenWorkers(t *testing.T) {
	for name, cuts := range map[string][][2]int{
		"both ways":      {{1, 2}, {2, 1}},
		"requests only":  {{2, 1}},
		"responses only": {{1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			forEachProtocol(t, betweenHosts, func(t *testing.T, p protocol) {
				t.Helper()
				c := start(t, 3)
				c.run(spec{host: 1, protocol: p})
				numbers := c.arange(count)
				if err := numbers.Wait(c.ctx()); err != nil {
					t.Fatal(err)
				}
				c.run(spec{host: 2, protocol: p})
				if connected := len(cuts) == 1; connected {
					c.awaitRoute(p, "w1-0", "w2-0")
				}
				for _, cut := range cuts {
					c.lab.Cut(cut[0], cut[1])
				}
				if got := c.value(c.sum(numbers, millrace.WithWorkers("w2-0"))); got != sum {
					t.Errorf("the sum is %v, not %v", got, sum)
				}
			})
		})
	}
}

// TestPartitionInTheMiddle: the connection is cut during a transfer of many bytes.
func TestPartitionInTheMiddle(t *testing.T) {
	for name, cuts := range map[string][][2]int{
		"both ways":      {{1, 2}, {2, 1}},
		"responses only": {{1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			forEachProtocol(t, betweenHosts, func(t *testing.T, p protocol) {
				t.Helper()
				c := start(t, 3)
				c.source(p, spec{})
				kept := c.stamps(100, transferBytes()/2)
				c.reader(p, spec{})
				c.awaitRoute(p, "source-0", "reader-0")
				reader := c.awaitWorker("reader-0")
				had := residentBytes(t, reader)
				read := c.stamp(1, 32, kept, onlyReader)
				c.awaitArrival(reader, had, transferBytes()/10)
				for _, cut := range cuts {
					c.lab.Cut(cut[0], cut[1])
				}
				c.checkStamp(read)
				for _, cut := range cuts {
					c.lab.Mend(cut[0], cut[1])
				}
				release(append(kept, read)...)
				c.awaitEmpty()
			})
		})
	}
}

// TestPartitionFromScheduler: a worker that the scheduler cannot reach is declared lost after its
// lease, and its tasks run elsewhere. When the network works again, the worker comes back by
// itself.
func TestPartitionFromScheduler(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	c.worker(1)
	numbers := c.arange(count)
	if err := numbers.Wait(c.ctx()); err != nil {
		t.Fatal(err)
	}
	c.worker(2)
	c.lab.Cut(0, 1)
	c.lab.Cut(1, 0)
	if got := c.value(c.sum(numbers)); got != sum {
		t.Errorf("the sum is %v, not %v", got, sum)
	}
	c.lab.Mend(0, 1)
	c.lab.Mend(1, 0)
	c.until("the worker is back", func() bool { return c.find("w1-0") != nil && c.find("w2-0") != nil })
}
