package faults

import (
	"testing"

	millrace "github.com/millrace/millrace/clients/go"
)

const (
	// many float64 are 8 MiB.
	many = 1 << 20
	sum  = float64(many) * (many - 1) / 2
)

// TestPartitionBetweenWorkers: two workers see the scheduler and not each other. What one needs of the other is computed
// again where it can be reached.
func TestPartitionBetweenWorkers(t *testing.T) {
	for name, cuts := range map[string][][2]int{
		"both ways":                {{1, 2}, {2, 1}},
		"what is asked for":        {{2, 1}},
		"what is sent in response": {{1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t, 3)
			c.worker(1)
			numbers := c.numbers(many)
			if err := numbers.Wait(c.soon()); err != nil {
				t.Fatal(err)
			}
			c.worker(2)
			for _, cut := range cuts {
				c.lab.Cut(cut[0], cut[1])
			}
			if got := c.value(c.sum(numbers, millrace.WithWorkers("w2-0"))); got != sum {
				t.Errorf("the sum is %v, not %v", got, sum)
			}
		})
	}
}

// TestPartitionInTheMiddle: the connection is there and in use when it is cut.
func TestPartitionInTheMiddle(t *testing.T) {
	c := start(t, 3)
	c.worker(1)
	numbers, later := c.numbers(many), c.numbers(2*many)
	for _, f := range []*millrace.Future{numbers, later} {
		if err := f.Wait(c.soon()); err != nil {
			t.Fatal(err)
		}
	}
	c.worker(2)
	if got := c.value(c.sum(numbers, millrace.WithWorkers("w2-0"))); got != sum {
		t.Errorf("before the cut the sum is %v, not %v", got, sum)
	}
	c.lab.Cut(1, 2)
	c.lab.Cut(2, 1)
	if got, want := c.value(c.sum(later, millrace.WithWorkers("w2-0"))), float64(2*many)*(2*many-1)/2; got != want {
		t.Errorf("after the cut the sum is %v, not %v", got, want)
	}
}

// TestPartitionFromScheduler: a worker that the scheduler does not see is given up after its lease, and its work done
// elsewhere; when the network is whole again it comes back by itself.
func TestPartitionFromScheduler(t *testing.T) {
	c := start(t, 3)
	c.worker(1)
	numbers := c.numbers(many)
	if err := numbers.Wait(c.soon()); err != nil {
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
	c.until("the worker is back", func() bool {
		active := 0
		for _, w := range c.workers() {
			if w.State == "WORKER_STATE_ACTIVE" {
				active++
			}
		}
		return active == 2
	})
}
